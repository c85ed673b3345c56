"""What becomes of the rows of a distributed run, as sums: a report for each part, and their totals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from geval_local.grouping import DocumentCounts
from geval_local.runs.run import Identity
from geval_local.summary import Summary, Sums

__all__ = ["PartReport", "Totals"]


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
                f"and its shared text is computed again (--gather-by {documents.field} would bring {pieces - count} "
                "of them together)"
            )
        return [sums.summary(told, grouped=documents.field is not None) for sums in self.sums]
