"""Rows out of a frame, and figures into a copy of it, as pandas and polars have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from geval_local.errors import DataError

__all__ = ["Column", "FrameLibrary", "Kind", "library_of"]

Kind = Literal["number", "count", "flag", "text", "distribution", "tokens"]


class Column(NamedTuple):
    """A column of figures."""

    #: Such as ``summarization/coherence.score``.
    name: str
    #: What its values are.
    kind: Kind
    #: One per row; None where there is none.
    values: list[Any]
    #: The labels of a distribution.
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class FrameLibrary:
    """How a library's frames are read and extended."""

    #: Gives the rows of a frame, each a dictionary of its columns.
    rows: Callable[[Any], list[dict[str, Any]]]
    #: Copies a frame with more columns; those of the same name are replaced.
    extended: Callable[[Any, Sequence[Column]], Any]


def library_of(frame: object) -> FrameLibrary:
    """Find the library of a frame."""
    known = {
        (base.__module__.split(".")[0], base.__name__)
        for base in type(frame).__mro__
        if base.__name__ in ("DataFrame", "LazyFrame")
    }
    if ("polars", "LazyFrame") in known:
        raise TypeError("a LazyFrame has no rows yet; score what it collects: frame.collect()")
    for (module, _), library in ((one, _LIBRARIES[one[0]]) for one in known if one[0] in _LIBRARIES):
        del module
        return library
    raise TypeError(f"a DataFrame of pandas or polars is expected, not {type(frame).__name__}")


def _refuse_repeated(names: Sequence[str]) -> None:
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"the frame has columns twice: {', '.join(repeated)}", hint="Rename one of each.")


# --- pandas -----------------------------------------------------------------------------------------------------------


def _pandas_rows(frame: Any) -> list[dict[str, Any]]:
    if frame.columns.nlevels > 1:
        raise DataError(
            "the frame's columns have several levels", hint="Flatten them: frame.columns = ['.'.join(c) for c in ...]."
        )
    names = [str(name) for name in frame.columns]
    _refuse_repeated(names)
    # By place, so that nothing depends on the index. A missing value is None, whatever the column calls it.
    columns = [
        [None if missing else value for value, missing in zip(series.tolist(), series.isna().tolist(), strict=True)]
        for series in (frame.iloc[:, place] for place in range(len(names)))
    ]
    # A frame may have rows and no column, as groups have whose only column is the one that they are grouped by.
    cells = zip(*columns, strict=True) if columns else [()] * len(frame)
    return [dict(zip(names, row, strict=True)) for row in cells]


def _pandas_extended(frame: Any, columns: Sequence[Column]) -> Any:
    import numpy as np
    import pandas as pd

    copy = frame.copy(deep=False)
    for column in columns:
        # By place: rows stay where they are, also under an index with repeated labels.
        if column.kind == "number":
            values: Any = np.array([np.nan if one is None else one for one in column.values], dtype=np.float64)
        elif column.kind in ("count", "flag"):
            values = pd.array(column.values, dtype="Int64" if column.kind == "count" else "boolean")
        else:
            # A dtype of texts would turn None into NaN, which is true in a condition.
            values = pd.Series(column.values, index=copy.index, dtype=object)
        copy[column.name] = values
    return copy


# --- polars -----------------------------------------------------------------------------------------------------------


def _polars_rows(frame: Any) -> list[dict[str, Any]]:
    return list(frame.iter_rows(named=True))


def _polars_extended(frame: Any, columns: Sequence[Column]) -> Any:
    import polars as pl

    kinds: Mapping[str, Any] = {
        "number": pl.Float64,
        "count": pl.Int64,
        "flag": pl.Boolean,
        "text": pl.String,
        "tokens": pl.List(pl.Struct({"token": pl.String, "probability": pl.Float64})),
    }

    def series(column: Column) -> Any:
        values = column.values
        if column.kind == "distribution":
            return pl.Series(column.name, values, dtype=pl.Struct(dict.fromkeys(column.labels, pl.Float64)))
        if column.kind == "tokens":
            values = [
                None if one is None else [{"token": token, "probability": p} for token, p in one] for one in values
            ]
        return pl.Series(column.name, values, dtype=kinds[column.kind])

    return frame.with_columns([series(column) for column in columns])


_LIBRARIES = {
    "pandas": FrameLibrary(_pandas_rows, _pandas_extended),
    "polars": FrameLibrary(_polars_rows, _polars_extended),
}
