"""What the driver of a distributed run tells its workers, and how: a task for each block, in tables of plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from geval_local import __version__, errors
from geval_local.errors import GevalError
from geval_local.io.blocks import Block, SourceFile
from geval_local.io.places import Place
from geval_local.runs.events import Calibrator
from geval_local.score import Estimator

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Job", "Task", "error_of", "pack", "told", "unpack"]


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
    #: Whether blocks are buckets of gathered rows, see `geval_local.runs.ray.gather`.
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
