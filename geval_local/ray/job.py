"""The data that the driver sends to workers, and their reports: a few kilobytes per block, never a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from geval_local import __version__
from geval_local.errors import DataError, OutputError
from geval_local.grouping import DocumentCounts
from geval_local.io.parts import about_part
from geval_local.io.places import Place
from geval_local.ray.blocks import Block
from geval_local.ray.survey import Cut
from geval_local.runs.events import Calibrator
from geval_local.runs.manifest import RunManifest
from geval_local.runs.run import Identity
from geval_local.signature import signature_differences
from geval_local.summary import Summary, Sums


@dataclass(frozen=True)
class Job:
    """A run, for its workers."""

    #: Its manifest; the metrics in it have their final evaluation steps.
    manifest: RunManifest
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
    #: Arrow schema of the input's columns, as far as it is known.
    schema: Any = None
    #: Whether `schema` is that of the whole input: parts that were written with another one are written again.
    is_surveyed: bool = False
    #: Size of the blocks of files that are still to be surveyed; None if there are none.
    cut: Cut | None = None
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
    #: Of a part: hash of the schema of the input's columns that it was written with.
    schema: str = ""

    @classmethod
    def none(cls, metrics: Sequence[str], group_by: str | None) -> Counts:
        """Return sums over no rows."""
        return cls([Sums(metric) for metric in metrics], DocumentCounts(group_by), [[0, 0] for _ in metrics])

    def add(self, more: Counts) -> None:
        """Add the sums over other rows."""
        self.rows += more.rows
        self.failed += more.failed
        for own, other in zip(self.sums, more.sums, strict=True):
            own.add(other)
        self.tokens = [[*map(sum, zip(*pair, strict=True))] for pair in zip(self.tokens, more.tokens, strict=True)]
        self.documents += more.documents
        for name, kind in more.columns.items():
            # Types differ if a column is empty in one part, or has only integers there.
            self.columns[name] = kind if self.columns.get(name, kind) == kind else f"{self.columns[name]} or {kind}"

    def summaries(self, gather_by: str | None) -> list[Summary]:
        """Return the summaries, one per metric."""
        documents, found = self.documents, [sums.summary(self.documents) for sums in self.sums]
        pieces, count, by = documents.distinct, documents.documents, documents.columns
        if documents.is_grouped and by != (gather_by,) and pieces > count:
            gathered = f" (`gather_by={by[0]}` would bring {pieces - count} of them together)" if len(by) == 1 else ""
            told = (
                f"{documents.told}; about {count} documents are in {pieces} pieces, since blocks cut them: each piece "
                f"counts as one, and its shared text is computed again{gathered}"
            )
            return [replace(one, grouping=told) for one in found]
        return found

    def to_record(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return vars(self) | {"sums": [one.to_record() for one in self.sums], "documents": asdict(self.documents)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Counts:
        """Build sums from plain values."""
        return cls(
            [Sums.from_record(one) for one in record["sums"]],
            DocumentCounts.from_record(record["documents"]),
            [[int(count) for count in pair] for pair in record["tokens"]],
            int(record["rows"]),
            int(record["failed"]),
            dict(record["columns"]),
            str(record["schema"]),
        )


@dataclass(frozen=True)
class PartReport:
    """The result of scoring a block."""

    block: Block
    #: Sums over the rows of the part; None if there is no part, with the reason in `error`.
    counts: Counts | None = None
    error: DataError | None = None
    #: Identity of the worker's judge; None if the part already existed.
    judge: Identity | None = None
    #: Number of rows of the files that were still to be surveyed; None while it is not known.
    surveyed: int | None = None

    @property
    def part(self) -> str:
        """Name of the block's part."""
        return self.block.part


def _is_of(about: Mapping[str, Any], signatures: Mapping[str, str]) -> bool:
    """Whether a part has these signatures: those of workers agree in canaries, which need not be equal."""
    kept = about.get("signatures")
    if not isinstance(kept, dict) or kept.keys() != signatures.keys():
        return False
    return not any(signature_differences(str(kept[name]), one) for name, one in signatures.items())


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
    if about.get("block") != block.identity or not _is_of(about, job.manifest.judges[0].signatures):
        return None  # not scored yet, or scored with an earlier state of the file or the judge
    try:
        counts = Counts.from_record(about["report"])
    except (KeyError, TypeError, ValueError) as error:
        raise OutputError(
            f"{place} is damaged: its footer is inconsistent",
            hint="Delete it and resume; its rows are scored again.",
        ) from error
    return None if job.again and counts.failed else counts
