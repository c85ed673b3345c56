"""Worker of a distributed run: it loads the judge once, then reads, scores and writes one block after the other.

A block is scored as a run of its own that keeps nothing (`geval_local.runs.run.Run`). This module does not depend on
Ray: a table with one block in, a table with one report out. Rows leave the worker only as parts. Errors of the package
are returned as values, so that the user sees their messages.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from geval_local import __version__
from geval_local.errors import ConfigurationError, DataError, GevalError, OutputError
from geval_local.fields import lookup, resolve
from geval_local.grouping import DocumentCounts, Documents
from geval_local.io.columns import SCORES
from geval_local.io.parts import PART_KEY, about_part, part_name
from geval_local.io.places import Place
from geval_local.io.samples import Sample, samples_of
from geval_local.metric import Metric
from geval_local.ray.blocks import Block, block_rows
from geval_local.runs.asked import Result
from geval_local.runs.events import Calibrator
from geval_local.runs.executor import Window, Worker
from geval_local.runs.manifest import JudgeRecord, Manifest
from geval_local.runs.run import Identity, Run
from geval_local.runs.settings import Settings
from geval_local.runs.store import MemoryStore, Origin
from geval_local.score import LOW_LABEL_MASS, Score
from geval_local.summary import Summary, Sums, Tally

if TYPE_CHECKING:
    import pyarrow as pa

    from geval_local.judge.judge import Judge


#: Workers that may die over a block before the block, or the one scored beside it, is held to be the cause.
ATTEMPTS = 4


@dataclass(frozen=True)
class Job:
    """A run, for its workers."""

    #: Its manifest; the metrics in it have their final evaluation steps.
    manifest: Manifest
    #: The directory of parts.
    output: Place
    #: Metric -> map of its scores.
    calibrations: Mapping[str, Calibrator] = field(default_factory=dict)
    #: Whether the input has several files, so that messages name the file of a row.
    several: bool = False
    #: Whether parts with failed scores are replaced.
    again: bool = False
    #: Whether a worker scores one block at a time, so that its block is the cause if it dies.
    alone: bool = False
    #: Version of the driver.
    version: str = __version__


@dataclass
class Counts:
    """Sums over the rows of a part, or of all parts so far; their size does not depend on the number of rows."""

    #: Figures per metric, and counts of documents.
    sums: list[Sums]
    documents: DocumentCounts
    #: Per metric, tokens of the prompts and tokens that went through the model.
    tokens: list[list[int]]
    rows: int = 0
    #: Missing scores whose cause is not the row.
    failed: int = 0
    #: Input columns -> Arrow types.
    columns: dict[str, str] = field(default_factory=dict)

    @classmethod
    def none(cls, metrics: Sequence[str], group_by: str | None) -> Counts:
        """Return those of no row."""
        return cls([Sums(metric) for metric in metrics], DocumentCounts(group_by), [[0, 0] for _ in metrics])

    def add(self, more: Counts) -> None:
        """Add those of other rows."""
        self.rows += more.rows
        self.failed += more.failed
        for own, other in zip(self.sums, more.sums, strict=True):
            own.add(other)
        self.tokens = [[*map(sum, zip(*pair, strict=True))] for pair in zip(self.tokens, more.tokens, strict=True)]
        self.documents += more.documents
        for name, kind in more.columns.items():
            # Types differ where a column is empty in one part, or has only integers.
            self.columns[name] = kind if self.columns.get(name, kind) == kind else f"{self.columns[name]} or {kind}"

    def summaries(self, gather_by: str | None) -> list[Summary]:
        """Return the summaries, one per metric."""
        documents = self.documents
        told, pieces, count = documents.told, documents.distinct, documents.documents
        if documents.field is not None and documents.field != gather_by and pieces > count:
            told += (
                f"; about {count} documents are in {pieces} pieces, since blocks cut them: each piece counts as one, "
                f"and its shared text is computed again (`gather_by={documents.field}` would bring {pieces - count} "
                "of them together)"
            )
        return [sums.summary(told, grouped=documents.field is not None) for sums in self.sums]

    def to_record(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return vars(self) | {"sums": [one.to_record() for one in self.sums], "documents": asdict(self.documents)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Counts:
        """Restore them from plain values."""
        documents = record["documents"]
        return cls(
            [Sums.from_record(one) for one in record["sums"]],
            DocumentCounts(**{**documents, "smallest": tuple(documents["smallest"])}),
            [[int(count) for count in pair] for pair in record["tokens"]],
            int(record["rows"]),
            int(record["failed"]),
            dict(record["columns"]),
        )


@dataclass(frozen=True)
class PartReport:
    """What became of a block."""

    part: str
    #: Sums over the rows of the part; None where there is none, for the reason in `error`.
    counts: Counts | None = None
    error: GevalError | None = None
    #: Identity of the worker's judge; None for a part that was there.
    judge: Identity | None = None


def pack(item: object) -> pa.Table:
    """Pack an object into a table of one row, as Ray Data hands it on."""
    import pyarrow as pa

    return pa.table({"item": pa.array([pickle.dumps(item)], pa.large_binary())})


def unpack(table: pa.Table) -> list[Any]:
    """Unpack the objects of a table."""
    return [pickle.loads(one) for one in table.column("item").to_pylist()]


def is_whole(job: Job, block: Block) -> Counts | None:
    """Read the counts in a block's part; None if the block has to be scored."""
    place = job.output.child(block.part)
    about = about_part(place)
    if about is None:
        return None
    if about.get("run") != job.manifest.run:
        raise OutputError(
            f"{place} belongs to another run than the manifest beside it",
            hint="Put back the files that belong here, or score into another directory.",
        )
    if about.get("block") != block.identity or about.get("signatures") != job.manifest.judges[0].signatures:
        return None  # of this run, but not scored, or of an earlier state of the file or the judge
    try:
        counts = Counts.from_record(about["report"])
    except (KeyError, TypeError, ValueError) as error:
        raise OutputError(
            f"{place} is damaged: its footer is inconsistent",
            hint="Delete it and resume; its rows are scored again.",
        ) from error
    return None if job.again and counts.failed else counts


class KilledError(DataError):
    """Too many workers died while they scored a block."""


@contextmanager
def _attempt(job: Job, block: Block) -> Iterator[None]:
    """Keep a marker file beside the parts while a block is scored; it outlives only a killed process.

    Ray reassigns the block of a dead worker without limit, so the next worker counts the markers. (Ray's own limit,
    `max_task_retries`, is no longer taken by Ray Data from 2.64 on.)
    """
    kind, run = "alone" if job.alone else "try", job.manifest.run
    marks = [job.output.child(f".{block.part}.{kind}{number}.{run}.tmp") for number in range(ATTEMPTS)]
    free = next((mark for mark in marks if mark.entry() is None), None)
    try:
        if free is None:
            raise KilledError(f"{ATTEMPTS} workers were killed while they scored it")
        free.write(b"", mark=run)
        yield
    finally:
        for mark in marks:
            with suppress(OSError):
                mark.delete()


class BlockScorer:
    """Scorer of blocks."""

    def __init__(self, load: Callable[[JudgeRecord], Judge], job: Job) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports the hub client
        self._load = load
        self._job = job
        self._ready: tuple[Judge, Identity] | None = None
        self._loading = threading.Lock()
        # The next block is read and tokenized while the model computes, as in one process.
        self._reading = threading.Lock()
        self._scoring = threading.Lock()

    def __call__(self, table: pa.Table) -> pa.Table:
        """Score one block, packed; return its packed report."""
        (block,) = unpack(table)
        try:
            return pack(self.score(block))
        except GevalError as error:
            return pack(PartReport(block.part, error=error))
        except Exception as error:  # from outside the package: it concerns this block only
            return pack(PartReport(block.part, error=DataError(f"{type(error).__name__}: {error}".strip()[:500])))

    def score(self, block: Block) -> PartReport:
        """Score a block and write its part, unless the part exists."""
        if self._job.version != __version__:
            raise ConfigurationError(
                f"a worker runs geval-local {__version__}, the driver {self._job.version}",
                hint="Install the same version on every machine of the cluster.",
            )
        found = is_whole(self._job, block)
        if found is not None:
            return PartReport(block.part, found)
        judge, identity = self._met()
        with _attempt(self._job, block):
            content, counts = self._scored(block, judge, identity)
        place = self._job.output.child(block.part)
        try:
            place.write(content, mark=self._job.manifest.run)
        except OSError as error:
            raise OutputError(
                f"cannot write {place}: {error.strerror or error}",
                hint="Can every worker write there, and is the disk full? Existing parts are kept.",
            ) from error
        return PartReport(block.part, counts, judge=identity)

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

    def _scored(self, block: Block, judge: Judge, identity: Identity) -> tuple[memoryview, Counts]:
        """Score a block; return its part's bytes, and the sums over its rows."""
        from geval_local.io.parquet import ParquetSink
        from geval_local.io.writer import ResultWriter

        job, settings = self._job, self._job.manifest.settings
        run, buffer, spool = Run(job.manifest, MemoryStore(), None), io.BytesIO(), Path(tempfile.gettempdir())
        documents, tallies = Documents(settings.group_by), [Tally(key, low_mass=LOW_LABEL_MASS) for key in run.keys]
        counts = Counts.none(run.keys, settings.group_by)
        sink = ParquetSink(buffer, run.keys, spool)
        writer = ResultWriter(spool, ExitStack(), sink, run.keys, SCORES.column)
        with ExitStack() as stack:
            stack.callback(sink.discard)
            for window in self._windows(block, run, judge):
                for sample, scores in run.scored(window):
                    document = documents.add(sample.fields) if sample.error is None else None
                    row = f"{sample.origin}:{sample.row}" if job.several else sample.row
                    figures = {name: self._calibrated(name, score) for name, score in scores.items()}
                    for tally, score in zip(tallies, figures.values(), strict=True):
                        tally.add(sample.where, row, score, document)
                    writer.write(_kept(sample, settings.columns), figures)
                _count(run, window, counts)
            if counts.rows != block.rows:
                raise DataError(
                    f"{block.where}: {counts.rows} rows were read instead of {block.rows}",
                    hint="Has the file changed? Restore its former content.",
                )
            counts.sums, counts.documents = [tally.sums() for tally in tallies], documents.counts
            counts.columns = {name: str(kind) for name, kind in sink.settle().items()}
            about = {
                "run": job.manifest.run,
                "version": __version__,
                "input": job.manifest.input.sha256,
                "block": block.identity,
                "signatures": identity.signatures,
                "report": counts.to_record(),
            }
            sink.about = {PART_KEY: json.dumps(about).encode()}
            sink.finish()
        return buffer.getbuffer(), counts

    def _windows(self, block: Block, run: Run, judge: Judge) -> Iterator[Window]:
        """Score a block window by window, each in a store of its own."""
        settings = run.manifest.settings
        samples = (samples_of_block if settings.gather_by is None else gathered_samples)(block, settings)
        preparers = run.asked.preparers(judge, run.metrics)
        while True:
            with self._reading:
                rows = list(islice(samples, settings.window))
                if not rows:
                    return
                prepared = [prepare(rows) for prepare in preparers]
            run.store, window = MemoryStore(), Window(0, 0, rows, tuple(prepared))
            worker = Worker(run.store, None, judge, 0, advance=lambda count: None, should_stop=lambda: False)
            with self._scoring:
                for metrics, entries in zip(run.asked.groups, prepared, strict=True):
                    worker.execute(window, metrics, entries)
            yield window

    def _calibrated(self, name: str, score: Result) -> Score:
        assert isinstance(score, Score)  # nothing else is asked on a cluster
        calibration = self._job.calibrations.get(name)
        return score if calibration is None else calibration.calibrate(score)


def _count(run: Run, window: Window, counts: Counts) -> None:
    """Add the rows of a window, its tokens, and the failures whose cause is not the row."""
    counts.rows += window.stop
    for number, (metric, tokens) in enumerate(zip(run.metrics, counts.tokens, strict=True)):
        totals, origins = run.store.totals(0, number), run.store.origins(0, number, 0, window.stop * metric.forms)
        tokens[:] = [tokens[0] + totals["prompt_tokens"], tokens[1] + totals["planned_tokens"]]
        counts.failed += totals["unscored"] - list(origins.values()).count(Origin.INPUT)


def _kept(sample: Sample, columns: list[str] | None) -> Sample:
    """Leave out the columns that a part does not keep; of a row that could not be read it keeps all there is."""
    if columns is None or sample.error is not None:
        return sample
    fields = {name: value for name, value in sample.fields.items() if name in columns or name == SCORES.column}
    return Sample(fields, sample.row, sample.origin)


def samples_of_block(block: Block, settings: Settings) -> Iterator[Sample]:
    """Read the rows of a block of the input."""
    rows = block_rows(block, _columns(block, settings))
    return samples_of(rows, block.place.name, settings.fields, dict(block.repeated))


def gathered_samples(block: Block, settings: Settings) -> Iterator[Sample]:
    """Read the rows of a bucket as `write_bucket` wrote them."""
    import pyarrow.parquet as pq

    with block.place.open() as source, pq.ParquetFile(source) as table:
        for batch in table.iter_batches(columns=["row"]):
            for value in batch.column(0):
                origin, row, error, fields = json.loads(value.as_py())
                yield Sample(fields, row, origin, error, settings.fields)


def _columns(block: Block, settings: Settings) -> list[str] | None:
    """Choose the columns to read of a Parquet file: those that are kept, and those that the run needs."""
    if settings.columns is None or not block.address.lower().endswith(".parquet"):
        return None
    import pyarrow.parquet as pq

    with block.place.open() as source:
        there = tuple(pq.read_schema(source).names)
    given = settings.fields.values()
    mapped = {path.partition(".")[0] for path in given} | set(given)
    needed = {name for metric in settings.metrics for name in Metric.model_validate(metric).fields}
    wanted = tuple(name for name in needed if name not in settings.fields)
    free = tuple(name for name in there if name not in given)
    group = {(settings.group_by or "").partition(".")[0]}
    return [*dict.fromkeys([*settings.columns, "id", *mapped, *group, *resolve(wanted, free).values()])]


# --- gathering --------------------------------------------------------------------------------------------------------
#
# Rows of one document are brought into one block before they are scored. A worker gives each row of a block to a
# bucket, by a hash of its document; Ray Data exchanges the rows, and each bucket is written under the name of its part,
# which is scored as one block and then replaces it. A row keeps its file and number, and its error if it could not be
# read. Buckets depend on the input and on their number only, so gathering twice gives the same buckets; those whose
# rows are scored already stay scored.


def rows_of_block(table: pa.Table, job: Job, buckets: int) -> pa.Table:
    """Read a block; return its rows with their documents and buckets. An error is a row of the first bucket."""
    import pyarrow as pa

    ((number, block),) = unpack(table)
    settings = job.manifest.settings
    documents, texts = list[int](), list[str]()
    try:
        for sample in samples_of_block(block, settings):
            documents.append(_document(sample, str(settings.gather_by)))
            texts.append(json.dumps([sample.origin, sample.row, sample.error, dict(sample.fields)]))
    except GevalError as error:
        documents, texts = [0], [json.dumps({"message": error.message, "hint": error.hint})]
    codes = np.asarray(documents, dtype=np.uint64)
    return pa.table(
        {
            "bucket": pa.array((codes % buckets).astype(np.int64)),
            "document": pa.array(codes),
            "block": pa.array(np.full(len(codes), number, dtype=np.int64)),
            "place": pa.array(np.arange(len(codes))),
            "row": pa.array(texts, pa.large_string()),
        }
    )


def _document(sample: Sample, field: str) -> int:
    """Hash the document of a row to 64 bits; a row that has none is its own."""
    value = None if sample.error is not None else lookup(sample.fields, field)
    text = f"\0{sample.origin}\0{sample.row}" if value is None else str(value)
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big")


def write_bucket(table: pa.Table, job: Job) -> pa.Table:
    """Write the rows of one bucket, document by document; return its block, or the first error of one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = table.sort_by([("block", "ascending"), ("place", "ascending")])
    _, first, document = np.unique(table.column("document").to_numpy(), return_index=True, return_inverse=True)
    # Documents in the order of their first rows, and the rows of each in the order of the input.
    rows = table.column("row").take(pa.array(np.argsort(first[document.reshape(-1)], kind="stable")))
    digest, name, content = hashlib.sha256(), part_name(0, int(table.column("bucket")[0].as_py())), io.BytesIO()
    place, manifest = job.output.child(name), job.manifest
    try:
        for text in rows:
            if text.as_py().startswith("{"):
                raise DataError(**json.loads(text.as_py()))
            digest.update(text.as_py().encode())
        block = Block(place.address, 0, 0, digest.hexdigest(), rows=len(rows), part=name)
        if is_whole(job, block) is None:
            about = {"run": manifest.run, "input": manifest.input.sha256, "block": block.identity}
            pq.write_table(pa.table({"row": rows}).replace_schema_metadata({PART_KEY: json.dumps(about)}), content)
            place.write(content.getbuffer(), mark=manifest.run)
    except OSError as error:
        return pack(DataError(f"cannot write {place}: {error.strerror or error}", hint="Is the disk full?"))
    except GevalError as error:
        return pack(error)
    return pack(block)
