"""Worker of a distributed run: it loads the judge once, then reads, scores and writes one block after the other.

A block is scored as a run of its own that keeps nothing (`geval_local.runs.run.Run`). This module does not depend on
Ray: a row with a block in, a row with its report out. Rows of the input leave the worker only as parts.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local import __version__
from geval_local.errors import ConfigurationError, DataError, GevalError
from geval_local.grouping import Documents
from geval_local.io.columns import SCORES
from geval_local.io.parts import PART_KEY, part_rows, remove_windows
from geval_local.io.places import Place
from geval_local.io.results import read_score
from geval_local.io.samples import Sample
from geval_local.ray.blocks import Block, block_columns, block_samples, kept_schema, schema_hash, widened
from geval_local.ray.gather import gathered_samples
from geval_local.ray.job import Counts, Job, PartReport, is_whole
from geval_local.ray.parts_directory import write_file
from geval_local.runs.asked import Result
from geval_local.runs.executor import Window, Worker
from geval_local.runs.manifest import JudgeRecord
from geval_local.runs.run import Identity, Run
from geval_local.runs.store import MemoryStore, Origin
from geval_local.score import LOW_LABEL_MASS, Score
from geval_local.summary import Tally

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge


#: Workers that may die over a block before the block, or the one scored next to it, is held to be the cause.
ATTEMPTS = 4


#: Names the machine of a worker, and all that there are.
Nodes = Callable[[], tuple[str, frozenset[str]]]


class KilledError(DataError):
    """Too many workers died while they scored a block."""


@contextmanager
def _attempt(job: Job, block: Block, nodes: Nodes) -> Iterator[None]:
    """Keep a marker file next to the parts while a block is scored; it outlives only a killed process.

    It names the worker's machine: one that is gone, such as a preempted one, was not killed by a block.

    Ray reassigns the block of a dead worker without limit, so the next worker counts the markers. (Ray's own limit,
    `max_task_retries`, is no longer taken by Ray Data from 2.64 on.)
    """
    kind, run = "alone" if job.alone else "try", job.manifest.run
    marks = [job.output.child(f".{block.part}.{kind}{number}.{run}.tmp") for number in range(ATTEMPTS)]
    here, there = nodes()
    for mark in marks:
        if mark.entry() is not None and (node := mark.read().decode("utf-8", "replace")) and node not in there:
            mark.delete()
    free = next((mark for mark in marks if mark.entry() is None), None)
    try:
        if free is None:
            raise KilledError(f"{ATTEMPTS} workers were killed while they scored it")
        free.write(here.encode(), mark=run)
        yield
    finally:
        for mark in marks:
            with suppress(OSError):
                mark.delete()


class BlockScorer:
    """Scorer of blocks."""

    def __init__(
        self, load: Callable[[JudgeRecord], Judge], job: Job, nodes: Nodes = lambda: ("", frozenset())
    ) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub client
        self._load = load
        self._job = job
        self._nodes = nodes
        self._ready: tuple[Judge, Identity] | None = None
        self._schema = job.schema
        self._schemas: set[str] = set()
        self._loading = threading.Lock()
        # The next block is read and tokenized while the model computes, as in one process.
        self._reading = threading.Lock()
        self._scoring = threading.Lock()

    def __call__(self, row: dict[str, Any]) -> dict[str, PartReport]:
        """Score the block in a row of a data set; a row with its report. What concerns this block only is reported."""
        block: Block = row["item"]
        try:
            report = self.score(block)
        except DataError as error:
            report = PartReport(block, error=error)
        except GevalError:
            raise
        except Exception as error:  # from outside the package
            report = PartReport(block, error=DataError(f"{type(error).__name__}: {error}".strip()[:500]))
        return {"item": report}

    def score(self, block: Block) -> PartReport:
        """Score a block and write its part, unless the part exists."""
        if self._job.version != __version__:
            raise ConfigurationError(
                f"a worker runs geval-local {__version__}, the driver {self._job.version}",
                hint="Install the same version on every machine of the cluster.",
            )
        if block.error:
            return PartReport(block)
        schema, found = self._schema_with(block), is_whole(self._job, block)
        if found is not None and (not self._job.is_surveyed or found.schema == schema_hash(schema)):
            return PartReport(block, found)
        content, counts, identity = self._content(block, found, schema)
        write_file(self._job.output.child(block.part), content, self._job.manifest)
        if self._is_long(block):
            remove_windows(self._job.output, self._job.manifest.run, block.part)
        return PartReport(block, counts, judge=identity)

    def _content(self, block: Block, found: Counts | None, schema: Any) -> tuple[memoryview, Counts, Identity | None]:
        """Return a part's bytes and sums, and the judge's identity; `found` are the sums of a part with other types."""
        if found is not None:
            with _attempt(self._job, block, self._nodes):
                return *self._written_again(block, found, schema), None
        judge, identity = self._met()
        with _attempt(self._job, block, self._nodes):
            return *self._scored(block, judge, identity, schema), identity

    def _schema_with(self, block: Block) -> Any:
        """Return the joint schema of all blocks that this worker has met, which is that of the input in the end."""
        with self._loading:
            for one in block.members:
                if one.schema and one.schema not in self._schemas:
                    self._schemas.add(one.schema)
                    self._schema = self._schema if self._job.is_surveyed else widened(self._schema, one.schema)
            return kept_schema(self._schema, self._job.manifest.settings.columns)

    def _met(self) -> tuple[Judge, Identity]:
        """Load the judge once, and check that it is the one that the run started with."""
        with self._loading:
            if self._ready is None:
                run = Run(self._job.manifest.model_copy(deep=True), MemoryStore(), None)
                (record,) = run.manifest.judges
                judge = self._load(record)
                identity = run.meet(record, judge)
                for name, calibration in self._job.calibrations.items():
                    calibration.check(identity.signatures[name])
                self._ready = judge, identity
            return self._ready

    def _scored(self, block: Block, judge: Judge, identity: Identity, schema: Any) -> tuple[memoryview, Counts]:
        """Score a block; return its part's bytes, and the sums over its rows."""
        job, settings = self._job, self._job.manifest.settings
        run = Run(job.manifest, MemoryStore(), None)
        documents, tallies = Documents(settings.documents), [Tally(key, low_mass=LOW_LABEL_MASS) for key in run.keys]
        counts = Counts.none(run.keys, settings.group_by)

        def rows() -> Iterator[tuple[Sample, dict[str, Score]]]:
            for window in self._windows(block, run, judge, identity):
                for sample, scores in run.scored(window):
                    place = documents.add(sample.fields) if sample.error is None else 0
                    row = f"{sample.origin}:{sample.row}" if job.several else sample.row
                    figures = {name: self._calibrated(name, score) for name, score in scores.items()}
                    for tally, score in zip(tallies, figures.values(), strict=True):
                        tally.add(sample.where, row, score, place)
                    yield sample, figures
                _count(run, window, counts)
            if counts.rows != block.all_rows:
                raise DataError(
                    f"{block.where}: {counts.rows} rows were read instead of {block.all_rows}",
                    hint="Has the file changed? Restore its former content.",
                )
            counts.sums, counts.documents = [tally.sums(documents) for tally in tallies], documents.counts

        return self._part(block, rows(), schema, counts, identity.signatures), counts

    def _written_again(self, block: Block, counts: Counts, schema: Any) -> tuple[memoryview, Counts]:
        """Write a part with the schema of the whole input: the block's rows again, with the part's figures."""
        manifest, place = self._job.manifest, self._job.output.child(block.part)
        keys, signatures = Run(manifest, MemoryStore(), None).keys, manifest.judges[0].signatures

        def rows() -> Iterator[tuple[Sample, dict[str, Score]]]:
            for sample, row in zip(block_samples(block, manifest.settings), part_rows(place), strict=True):
                yield sample, {key: read_score(key, row["geval"][key], f"{place}, row {row.number}") for key in keys}

        return self._part(block, rows(), schema, counts, signatures), counts

    def _part(
        self,
        block: Block,
        rows: Iterator[tuple[Sample, dict[str, Score]]],
        schema: Any,
        counts: Counts,
        signatures: Mapping[str, str],
    ) -> memoryview:
        """Write rows and their scores as a part; `counts` are complete when the rows are."""
        from geval_local.io.parquet import ParquetSink
        from geval_local.io.writer import ResultWriter

        manifest, buffer, spool = self._job.manifest, io.BytesIO(), Path(tempfile.gettempdir())
        keys = Run(manifest, MemoryStore(), None).keys
        with ExitStack() as stack:
            source = stack.enter_context(block_columns(block, manifest.settings))
            sink = ParquetSink(buffer, keys, spool, source=source, schema=schema)
            stack.callback(sink.discard)
            writer = ResultWriter(spool, ExitStack(), sink, keys, SCORES.column)
            for sample, figures in rows:
                writer.write(_kept(sample, manifest.settings.columns), figures)
            counts.columns = {name: str(kind) for name, kind in sink.settle().items()}
            counts.schema = schema_hash(schema)
            about = {
                "run": manifest.run,
                "version": __version__,
                "block": block.identity,
                "signatures": signatures,
                "report": counts.to_record(),
            }
            if manifest.settings.gather_by is not None:
                about["input"] = manifest.input.sha256
            sink.about = {PART_KEY: json.dumps(about).encode()}
            sink.finish()
        return buffer.getbuffer()

    def _is_long(self, block: Block) -> bool:
        """Whether a block has several windows, each of which is kept when it is finished."""
        return block.all_rows > self._job.manifest.settings.window

    def _windows(self, block: Block, run: Run, judge: Judge, identity: Identity) -> Iterator[Window]:
        """Score a block window by window, each in a store of its own."""
        settings = run.manifest.settings
        samples = (block_samples if settings.gather_by is None else gathered_samples)(block, settings)
        preparers = run.asked.preparers(judge, run.metrics)
        for number in count():
            place = self._place(block, number, identity)
            with self._reading:
                rows = list(islice(samples, settings.window))
                if not rows:
                    return
                kept = self._kept(place, run, len(rows)) if self._is_long(block) else None
                if kept is None:
                    prepared = [prepare(rows) for prepare in preparers]
            if kept is not None:
                run.store = kept
                yield Window(0, 0, rows, ())
                continue
            run.store = store = MemoryStore()
            window = Window(0, 0, rows, tuple(prepared))
            worker = Worker(store, None, judge, 0, advance=lambda count: None, should_stop=lambda: False)
            with self._scoring:
                for metrics, entries in zip(run.asked.groups, prepared, strict=True):
                    worker.execute(window, metrics, entries)
            if self._is_long(block):
                write_file(place, store.to_bytes(), self._job.manifest)
            yield window

    def _place(self, block: Block, number: int, identity: Identity) -> Place:
        """Name the file that keeps a window of a block, and with it all that its figures depend on."""
        told = json.dumps([block.identity, identity.signatures, identity.batch_tokens], sort_keys=True)
        mark = hashlib.sha256(told.encode()).hexdigest()[:16]
        return self._job.output.child(f"_{block.part}.{number}.{mark}.{self._job.manifest.run}.window")

    def _kept(self, place: Place, run: Run, rows: int) -> MemoryStore | None:
        """Read a window that another worker finished before it was killed; failed scores may be asked for again."""
        try:
            found = None if self._job.again or place.entry() is None else MemoryStore.from_bytes(place.read())
        except OSError:
            return None
        there = found is not None and all(
            found.totals(0, metric)["rows"] == rows * each for metric, each in enumerate(run.outcomes(0))
        )
        return found if there else None

    def _calibrated(self, name: str, score: Result) -> Score:
        assert isinstance(score, Score)  # nothing else is asked on a cluster
        calibration = self._job.calibrations.get(name)
        return score if calibration is None else calibration.calibrate(score)


def _count(run: Run, window: Window, counts: Counts) -> None:
    """Add the rows of a window, its tokens, and the failures whose cause is not the row."""
    counts.rows += window.stop
    for number, (each, tokens) in enumerate(zip(run.outcomes(0), counts.tokens, strict=True)):
        totals, origins = run.store.totals(0, number), run.store.origins(0, number, 0, window.stop * each)
        tokens[:] = [tokens[0] + totals["prompt_tokens"], tokens[1] + totals["planned_tokens"]]
        counts.failed += totals["unscored"] - list(origins.values()).count(Origin.INPUT)


def _kept(sample: Sample, columns: list[str] | None) -> Sample:
    """Leave out the columns that a part does not keep; of a row that could not be read it keeps all there is."""
    if columns is None or sample.error is not None:
        return sample
    fields = {name: value for name, value in sample.fields.items() if name in columns or name == SCORES.column}
    return Sample(fields, sample.row, sample.origin)
