"""A worker of a distributed run: it loads the judge once, then reads, scores and writes one block after the other.

This module does not depend on Ray: a table with one task in, a table with one report out. Rows leave the worker only as
parts. Errors of the package are returned as values, so that the user sees their messages.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from geval_local import __version__
from geval_local.errors import ConfigurationError, DataError, GevalError, OutputError
from geval_local.fields import resolve
from geval_local.grouping import Documents
from geval_local.io.columns import SCORES
from geval_local.io.parts import PART_KEY, about_part
from geval_local.io.samples import Sample, samples_of
from geval_local.metric import Metric
from geval_local.prompt import sharing
from geval_local.questions.pair import mean_outcomes
from geval_local.ray.blocks import SourceFile, block_rows
from geval_local.ray.messages import Job, PartReport, Task, pack, told, unpack
from geval_local.runs.executor import Window, Worker
from geval_local.runs.manifest import JudgeRecord
from geval_local.runs.run import Identity, meet
from geval_local.runs.store import MemoryStore, Origin
from geval_local.score import LOW_LABEL_MASS, Score
from geval_local.summary import Tally

if TYPE_CHECKING:
    import pyarrow as pa

    from geval_local.judge.judge import Judge
    from geval_local.tokens.requests import Prepared

#: Workers that may die over a block before the block, or the one scored beside it, is held to be the cause.
ATTEMPTS = 4


def is_whole(job: Job, task: Task) -> PartReport | None:
    """Read the report in a block's part; None if the block has to be scored."""
    place = job.part(task.part)
    about = about_part(place)
    if about is None:
        return None
    if about.get("run") != job.run:
        raise OutputError(
            f"{place} belongs to another run than the manifest beside it",
            hint="Put back the files that belong here, or score into another directory.",
        )
    if about.get("block") != task.identity or about.get("signatures") != job.judge["signatures"]:
        return None  # of this run, but of an earlier state of the file or the judge
    try:
        report = PartReport.from_record(about["report"])
    except (KeyError, TypeError, ValueError) as error:
        raise OutputError(
            f"{place} is damaged: its footer is inconsistent",
            hint="Delete it and resume; its rows are scored again.",
        ) from error
    return None if task.again and report.failed else report


class _KilledError(Exception):
    """Too many workers died while they scored a block."""


@contextmanager
def _attempt(job: Job, task: Task) -> Iterator[None]:
    """Keep a marker file beside the parts while a block is scored; it outlives only a killed process.

    Ray reassigns the block of a dead worker without limit, so the next worker counts the markers.
    """
    kind = "alone" if job.alone else "try"
    marks = [job.part(f".{task.part}.{kind}{number}.{job.run}.tmp") for number in range(ATTEMPTS)]
    free = next((mark for mark in marks if mark.entry() is None), None)
    try:
        if free is None:
            raise _KilledError(f"{ATTEMPTS} workers were killed while they scored it")
        free.write(b"", mark=job.run)
        yield
    finally:
        for mark in marks:
            with suppress(OSError):
                mark.delete()


class _Scored(NamedTuple):
    """Rows of a window with their scores, tokens per metric, and the number of failures whose cause is not the row."""

    rows: list[tuple[Sample, list[Score]]]
    tokens: list[list[int]]
    failed: int


class BlockScorer:
    """Scorer of blocks."""

    def __init__(self, load: Callable[[JudgeRecord], Judge], job: Job) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub client
        self._load = load
        self._job = job
        self._metrics: list[Metric] = []
        self._judge: Judge | None = None
        self._failure: GevalError | None = None
        self._loading = threading.Lock()
        # The next block is read and tokenized while the model computes, as in one process.
        self._reading = threading.Lock()
        self._scoring = threading.Lock()

    def __call__(self, table: pa.Table) -> pa.Table:
        """Score one task: a table from `pack` in, a table for `unpack` out."""
        (record,) = unpack(table)
        try:
            return pack([self.score(Task.from_record(record)).to_record() | {"part": record["part"]}])
        except _KilledError as error:
            return pack([{"part": record["part"], "message": str(error), "killed": True}])
        except Exception as error:
            return pack([told(error) | {"part": record["part"]}])

    def score(self, task: Task) -> PartReport:
        """Score a block and write its part, unless the part exists."""
        if self._job.version != __version__:
            raise ConfigurationError(
                f"a worker runs geval-local {__version__}, the driver {self._job.version}",
                hint="Install the same version on every machine of the cluster.",
            )
        found = is_whole(self._job, task)
        if found is not None:
            return found
        judge, identity = self._ready()
        with _attempt(self._job, task), tempfile.TemporaryDirectory(prefix="geval-local-") as spool:
            part = _Part(self._job, self._metrics, Path(spool))
            for window, tokens, failed in self._windows(task, judge):
                part.add(window, tokens, failed)
            content, report = part.finish(task, identity)
        try:
            self._job.part(task.part).write(content, mark=self._job.run)
        except OSError as error:
            raise OutputError(
                f"cannot write {self._job.part(task.part)}: {error.strerror or error}",
                hint="Can every worker write there, and is the disk full? Existing parts are kept.",
            ) from error
        return report

    def _ready(self) -> tuple[Judge, Identity]:
        """Load the judge once, and check that it is the one that the run started with."""
        with self._loading:
            if self._failure is not None:
                raise self._failure
            try:
                if self._judge is None:
                    self._begin()
            except GevalError as error:
                self._failure = error
                raise
        assert self._judge is not None
        return self._judge, self._identity

    def _begin(self) -> None:
        job = self._job
        record = JudgeRecord.model_validate(job.judge)
        self._metrics = [Metric.model_validate(one) for one in job.metrics]
        judge = self._load(record)
        if record.batch_tokens is not None:
            judge.engine.batch_tokens = judge.engine.limit = record.batch_tokens
        signatures = {metric.name: str(judge.signature(metric, job.estimator)) for metric in self._metrics}
        self._identity = Identity(judge.fingerprint, judge.engine.name, judge.engine.batch_tokens, signatures)
        meet(record, self._identity)
        for name, calibration in job.calibrations.items():
            calibration.check(signatures[name])
        self._judge = judge

    def _windows(self, task: Task, judge: Judge) -> Iterator[_Scored]:
        """Score a block, window by window."""
        job = self._job
        samples = gathered_samples(task.file, job.fields) if job.gathered else samples_of_block(task, job)
        groups = sharing(self._metrics)
        count = 0
        while True:
            with self._reading:
                window = list(islice(samples, job.window))
                if not window:
                    break
                prepared = [[judge.prepare(self._metrics[one], window) for one in group] for group in groups]
            count += len(window)
            yield self._scored(window, list(zip(groups, prepared, strict=True)), judge)
        if count != task.block.rows:
            raise DataError(
                f"{task.where}: {count} rows were read instead of {task.block.rows}",
                hint="Has the file changed? Restore its former content.",
            )

    def _scored(
        self, window: list[Sample], prepared: Sequence[tuple[Sequence[int], list[list[Prepared]]]], judge: Judge
    ) -> _Scored:
        job, estimator, store = self._job, self._job.estimator, MemoryStore()
        worker = Worker(store, None, judge, 0, advance=lambda count: None, should_stop=lambda: False)
        with self._scoring:
            for group, entries in prepared:
                worker.execute(Window(0, 0, window, ()), group, entries)
        columns: list[list[Score]] = []
        tokens: list[list[int]] = []
        failed = 0
        for number, metric in enumerate(self._metrics):
            forms = range(len(window) * metric.forms)
            outcomes, origins = store.outcomes(0, number, 0, len(forms)), store.origins(0, number, 0, len(forms))
            totals = store.totals(0, number)
            tokens.append([totals["prompt_tokens"], totals["planned_tokens"]])
            failed += sum(origins[form] != Origin.INPUT and outcomes[form].error is not None for form in forms)
            threshold = metric.threshold if job.threshold is None else job.threshold
            scores = [
                outcome.score(metric, estimator=estimator, threshold=threshold)
                for outcome in mean_outcomes(metric, [outcomes[form] for form in forms])
            ]
            calibration = job.calibrations.get(metric.name)
            columns.append(scores if calibration is None else list(map(calibration.calibrate, scores)))
        scored = [(sample, [own[row] for own in columns]) for row, sample in enumerate(window)]
        return _Scored(scored, tokens, failed)


def samples_of_block(task: Task, job: Job) -> Iterator[Sample]:
    """Read the rows of a block of the input."""
    rows = block_rows(task.file, task.block, _columns(task, job))
    return samples_of(rows, task.file.place.name, job.fields, dict(task.block.repeated))


def gathered_samples(file: SourceFile, mapping: Mapping[str, str]) -> Iterator[Sample]:
    """Read the rows of a bucket as `geval_local.ray.gather.write_bucket` wrote them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.place.open() as source, pq.ParquetFile(source) as table:
            for batch in table.iter_batches(columns=["row"]):
                for value in batch.column(0):
                    origin, row, error, fields = json.loads(value.as_py())
                    yield Sample(fields, row, origin, error, mapping)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"cannot read {file.address}: {error}", hint="Resume the run: it gathers the rows again."
        ) from error


def _columns(task: Task, job: Job) -> list[str] | None:
    """Choose the columns to read of a Parquet file: those that are kept, and those that the run needs."""
    if job.columns is None or not task.file.address.lower().endswith(".parquet"):
        return None
    import pyarrow.parquet as pq

    with task.file.place.open() as source:
        there = tuple(pq.read_schema(source).names)
    mapped = {path.partition(".")[0] for path in job.fields.values()} | set(job.fields.values())
    needed = {name for metric in job.metrics for name in Metric.model_validate(metric).fields}
    wanted = tuple(name for name in needed if name not in job.fields)
    free = tuple(name for name in there if name not in job.fields.values())
    group = {(job.group_by or "").partition(".")[0]}
    return [*dict.fromkeys([*job.columns, "id", *mapped, *group, *resolve(wanted, free).values()])]


class _Part:
    """A part that is being written."""

    def __init__(self, job: Job, metrics: Sequence[Metric], spool: Path) -> None:
        from geval_local.io.parquet import ParquetSink
        from geval_local.io.writer import ResultWriter

        self._job = job
        self._names = [metric.name for metric in metrics]
        self._buffer = io.BytesIO()
        self._sink = ParquetSink(self._buffer, self._names, spool)
        self._writer = ResultWriter(spool, ExitStack(), self._sink, self._names, SCORES.column)
        self._documents = Documents(job.group_by)
        self._tallies = [Tally(name, low_mass=LOW_LABEL_MASS) for name in self._names]
        self._tokens = [[0, 0] for _ in self._names]
        self._rows = self._failed = 0

    def add(self, window: Sequence[tuple[Sample, list[Score]]], tokens: list[list[int]], failed: int) -> None:
        """Add the rows of a window."""
        kept = self._job.columns
        for sample, scores in window:
            document = self._documents.add(sample.fields) if sample.error is None else None
            row = f"{sample.origin}:{sample.row}" if self._job.several else sample.row
            for tally, score in zip(self._tallies, scores, strict=True):
                tally.add(sample.where, row, score, document)
            if kept is not None and sample.error is None:
                fields = {name: value for name, value in sample.fields.items() if name in kept or name == "geval"}
                sample = Sample(fields, sample.row, sample.origin)
            self._writer.write(sample, dict(zip(self._names, scores, strict=True)))
        for own, more in zip(self._tokens, tokens, strict=True):
            own[:] = [one + two for one, two in zip(own, more, strict=True)]
        self._rows += len(window)
        self._failed += failed

    def finish(self, task: Task, identity: Identity) -> tuple[memoryview, PartReport]:
        """Return the part's bytes and its report."""
        report = PartReport(
            self._rows,
            [tally.sums() for tally in self._tallies],
            self._documents.counts,
            self._tokens,
            self._failed,
            {name: str(kind) for name, kind in self._sink.settle().items()},
        )
        about = {
            "run": self._job.run,
            "version": __version__,
            "block": task.identity,
            "signatures": identity.signatures,
            "report": report.to_record(),
        }
        self._sink.about = {PART_KEY: json.dumps(about).encode()}
        self._sink.finish()
        self._sink.discard()
        report.judge = identity
        return self._buffer.getbuffer(), report
