"""What the driver of a distributed run tells its workers, and how: a task for each block, in tables of plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from geval_local import __version__, errors
from geval_local.errors import GevalError
from geval_local.grouping import DocumentCounts
from geval_local.io.places import Place
from geval_local.ray.blocks import Block, SourceFile
from geval_local.runs.events import Calibrator
from geval_local.runs.run import Identity
from geval_local.score import Estimator
from geval_local.summary import Summary, Sums

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Task:
    """A block to be scored, and the name of its part."""

    #: Name of the part.
    part: str
    #: The file.
    file: SourceFile
    #: The block.
    block: Block
    #: Whether an existing part with failed scores is replaced.
    again: bool = False

    @property
    def where(self) -> str:
        """The rows' location, for messages."""
        first = self.block.line
        return f"{self.file.address}, rows {first} to {first + self.block.rows - 1}"

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of the block, which its part contains."""
        return {"file": self.file.sha256, "first": self.block.first, "rows": self.block.rows}

    def to_record(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Task:
        """Restore it from plain values."""
        block = Block(**{**record["block"], "repeated": tuple(map(tuple, record["block"]["repeated"]))})
        return cls(record["part"], SourceFile(**record["file"]), block, record["again"])


@dataclass(frozen=True)
class Job:
    """Settings of a run for its workers, as plain values, since the versions of two machines may differ."""

    #: The run's identifier.
    run: str
    #: Address of the directory of parts.
    output: str
    #: The judge's record in the manifest, with its token budget and signatures if they are known.
    judge: dict[str, Any]
    #: Definitions, with their final evaluation steps.
    metrics: list[dict[str, Any]]
    #: Fields of `Estimator`.
    estimator: Estimator = field(default_factory=Estimator)
    #: Overrides the thresholds of the metrics.
    threshold: float | None = None
    fields: dict[str, str] = field(default_factory=dict)
    #: Input columns to keep in parts; None for all.
    columns: list[str] | None = None
    #: Rows that are planned together.
    window: int = 4096
    group_by: str | None = None
    #: Whether blocks are buckets of gathered rows, see `geval_local.ray.gather`.
    gathered: bool = False
    #: Whether the input has several files, so that messages name the file of a row.
    several: bool = False
    #: Metric -> map of its scores.
    calibrations: Mapping[str, Calibrator] = field(default_factory=dict)
    #: Whether a worker scores one block at a time, so that its block is the cause if it dies.
    alone: bool = False
    #: Version of the driver.
    version: str = __version__

    def part(self, name: str) -> Place:
        """Return the place of a part."""
        return Place(self.output).child(name)


def pack(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Pack records of plain values into a table, one row each."""
    import pyarrow as pa

    return pa.table({"record": pa.array([json.dumps(record) for record in records], type=pa.large_string())})


def unpack(table: pa.Table) -> list[dict[str, Any]]:
    """Unpack the records of a table."""
    return [json.loads(text) for text in table.column("record").to_pylist()]


def told(error: Exception) -> dict[str, Any]:
    """Return an error as plain values; an error from outside the package concerns this block only."""
    if isinstance(error, GevalError):
        return {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    return {"error": None, "message": f"{type(error).__name__}: {error}".strip()[:500], "hint": None}


def error_of(report: Mapping[str, Any]) -> GevalError | None:
    """Restore the error in a report; None if it is not one of the package."""
    kind = getattr(errors, str(report.get("error")), None)
    if not (isinstance(kind, type) and issubclass(kind, GevalError)):
        return None
    return kind(report["message"], hint=report["hint"])


@dataclass
class PartReport:
    """Sums over the rows of a part, which is all that the driver learns about them."""

    #: Number of rows.
    rows: int
    #: Figures per metric.
    sums: list[Sums]
    #: Counts of documents.
    documents: DocumentCounts
    #: Per metric, tokens of the prompts and tokens that went through the model.
    tokens: list[list[int]]
    #: Missing scores whose cause is not the row.
    failed: int
    #: Input columns -> Arrow types.
    columns: dict[str, str] = field(default_factory=dict)
    #: Identity of the judge; None for an existing part.
    judge: Identity | None = None

    def to_record(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "rows": self.rows,
            "sums": [one.to_record() for one in self.sums],
            "documents": asdict(self.documents),
            "tokens": self.tokens,
            "failed": self.failed,
            "columns": self.columns,
            "judge": None if self.judge is None else self.judge._asdict(),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> PartReport:
        """Restore it from plain values."""
        judge = record["judge"]
        return cls(
            int(record["rows"]),
            [Sums.from_record(one) for one in record["sums"]],
            DocumentCounts(**{**record["documents"], "smallest": tuple(record["documents"]["smallest"])}),
            [[int(count) for count in pair] for pair in record["tokens"]],
            int(record["failed"]),
            dict(record["columns"]),
            None if judge is None else Identity(**judge),
        )


class Totals:
    """Sums over the parts so far; their size does not depend on the number of rows."""

    def __init__(self, metrics: Sequence[str], group_by: str | None, gather_by: str | None = None) -> None:
        self.gather_by = gather_by
        self.rows = 0
        self.sums = [Sums(metric) for metric in metrics]
        self.tokens = [[0, 0] for _ in metrics]
        self.documents = DocumentCounts(group_by)
        self.columns: dict[str, str] = {}
        self.failed = 0

    def add(self, report: PartReport) -> None:
        """Add a part."""
        self.rows += report.rows
        for own, more in zip(self.sums, report.sums, strict=True):
            own.add(more)
        self.tokens = [
            [one + two for one, two in zip(*pair, strict=True)] for pair in zip(self.tokens, report.tokens, strict=True)
        ]
        self.documents += report.documents
        for name, kind in report.columns.items():
            # Types differ where a column is empty in one part, or has only integers.
            self.columns[name] = kind if self.columns.get(name, kind) == kind else f"{self.columns[name]} or {kind}"
        self.failed += report.failed

    def summaries(self) -> list[Summary]:
        """Return the summaries, one per metric."""
        documents = self.documents
        told, pieces, count = documents.told, documents.distinct, documents.documents
        if documents.field is not None and documents.field != self.gather_by and pieces > count:
            told += (
                f"; about {count} documents are in {pieces} pieces, since blocks cut them: each piece counts as one, "
                f"and its shared text is computed again (`gather_by={documents.field}` would bring {pieces - count} "
                "of them together)"
            )
        return [sums.summary(told, grouped=documents.field is not None) for sums in self.sums]
