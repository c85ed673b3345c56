"""Where the figures of results stand, in a row and in the columns of a CSV file, and how values are written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any, NamedTuple

from geval_local.errors import ConfigurationError
from geval_local.fields import nearest
from geval_local.figures import ANSWERS, FIGURES, Figure
from geval_local.io.samples import Sample

EVERYTHING = "all"
INPUT = "input"
ROW = "row"
#: Blanks before a sign are passed over, also those without width, as some spreadsheets do.
_FORMULA = re.compile("[\t\r\n]|[\\s\u200b-\u200f\u2060\ufeff]*[=+\\-@|\uff1d\uff0b\uff0d\uff20]")


@dataclass(frozen=True)
class ColumnLayout:
    """Where the results of a row stand, and which figures they have."""

    #: Name of the object that holds them, in JSONL and Parquet; empty if a row is its results and nothing else.
    column: str
    #: Every figure, in the order of the columns.
    figures: Mapping[str, Figure]
    #: Question -> its type, where results have different figures.
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def default(self) -> tuple[str, ...]:
        """Those that a CSV file holds unless others are asked for."""
        return tuple(name for name, one in self.figures.items() if one.csv != "asked")

    @property
    def needed(self) -> tuple[str, ...]:
        """Those of them that have a column even where no row has the figure."""
        return tuple(name for name, one in self.figures.items() if one.csv == "always")

    def figures_of(self, result: str) -> dict[str, Figure]:
        """Return the figures of one result."""
        kind = self.types.get(result)
        return {name: one for name, one in self.figures.items() if not one.types or kind is None or kind in one.types}


#: Scores on metrics.
SCORES = ColumnLayout("geval", FIGURES)
#: Reasons, as JSONL.
ALONE = ColumnLayout("", {})


def decision_layout(types: Mapping[str, str]) -> ColumnLayout:
    """Lay out answers to questions, given the type of every question by the name of its results."""
    return ColumnLayout("decisions", ANSWERS, types)


def check_chosen(
    columns: Sequence[str] | None, samples: Iterable[Sample], metrics: Sequence[str], layout: ColumnLayout = SCORES
) -> None:
    """Make sure that columns that were asked for exist."""
    if not columns:
        return
    inputs = dict.fromkeys(str(name) for sample in samples for name in sample.fields)
    known = [*inputs, ROW, INPUT, EVERYTHING, *layout.figures]
    for name in columns:
        result, _, figure = name.rpartition(".")
        is_result = any(
            (result == one or result.startswith(f"{one}@")) and figure in layout.figures_of(one) for one in metrics
        )
        if name not in known and not is_result:
            raise ConfigurationError(
                f"`columns`: there is no column {name!r}{nearest(name, known)}",
                hint=f"Input columns: {', '.join(inputs) or 'none'}. Figures: {', '.join(layout.figures)}. Others: "
                "row, input (all input columns), all, and METRIC.FIGURE.",
            )


def renamed_columns(names: Collection[str], results: Iterable[str], layout: ColumnLayout = SCORES) -> dict[str, str]:
    """Rename the input columns of a CSV file that are called like a figure of a result: ``{old: new}``.

    Columns that hold an earlier result of the same name keep theirs, since the new result replaces them: such a result
    has both a score and an error.
    """
    own = {
        f"{result}.{figure}"
        for result in results
        if not {f"{result}.score", f"{result}.error"} <= set(names)
        for figure in layout.figures
    }
    return {name: free_name(f"{name}_input", names) for name in names if name in own}


def header_of(
    columns: Sequence[str] | None,
    inputs: Sequence[str],
    metrics: Sequence[str],
    present: Container[str],
    layout: ColumnLayout = SCORES,
) -> list[str]:
    """Lay out the columns of a file: ``metric.figure`` for the figures of every metric, side by side."""
    own = {f"{metric}.{figure}": figure for metric in metrics for figure in layout.figures_of(metric)}
    kept = [name for name in inputs if name not in own]
    chosen = [INPUT, *layout.default] if columns is None else columns
    if EVERYTHING in chosen:
        return [*kept, *own]
    figures = [name for name in chosen if name in layout.figures]
    if columns is None:
        figures = [name for name in figures if name in present or name in layout.needed]
    earlier = [name for name in kept if "." in name and name.rpartition(".")[2] in figures]
    header: list[str] = []
    for name in chosen:
        if name == INPUT:
            header += kept
        elif name in layout.figures:
            header += [
                *earlier,
                *(f"{metric}.{one}" for metric in metrics for one in figures if one in layout.figures_of(metric)),
            ]
        else:
            header.append(name)
    return list(dict.fromkeys(header))


def neutral(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would run as a formula."""
    return "'" + text if _FORMULA.match(text) else text


def figures_in(rows: Iterable[Mapping[str, Mapping[str, object]]]) -> set[str]:
    """Collect the figures that occur in any row."""
    return {name for row in rows for figures in row.values() for name, value in figures.items() if value is not None}


class ResultRow(NamedTuple):
    """The parts of one row of results."""

    #: The input columns.
    columns: dict[str, Any]
    #: Metric -> figures that the input already held, for metrics that are not scored now.
    earlier: dict[str, Any]
    #: Metric or question -> figures as by `Score.to_dict`, or an answer's.
    figures: dict[str, dict[str, Any]]
    #: Whether the input row could not be read.
    is_bad: bool
    #: The row's number in its file; 0 where it has none.
    number: int = 0


# --- values -----------------------------------------------------------------------------------------------------------

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def as_text(value: Any) -> str:
    """Write a value as one text: a string as it is (see `plain`), everything else as JSON."""
    value = plain(value)
    return value if isinstance(value, str) else to_json(value)


def to_json(value: Any) -> str:
    """Write a value as strict JSON (no NaN) in UTF-8-encodable text; floats with all their digits."""
    return _ENCODER.encode(plain(value))


def plain(value: Any) -> Any:
    """Convert a value to one that strict JSON can represent.

    NaN and infinities become None, dates ISO 8601, bytes and lone surrogates visible escapes, NumPy's scalars Python's,
    and any other object its ``str``.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return plain(value.tolist())
    return plain(str(value))


def free_name(name: str, taken: Container[str]) -> str:
    """Append underscores until the name is unique."""
    while name in taken:
        name += "_"
    return name
