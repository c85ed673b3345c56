"""A table of text: headers, rows and notes, and how figures are written in them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from geval_local.interval import Interval

__all__ = ["Table", "folded", "interval", "interval_warnings", "mean_warnings", "number", "p_value"]


@dataclass(frozen=True)
class Table:
    """Headers, rows of cells, and what belongs under the table.

    Attributes
    ----------
    headers : tuple of str
        One per column; the first names the rows, the others are to be aligned to the right.
    rows : tuple of tuple of str
        As many cells as headers.
    notes : tuple of str
        One line each.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def number(value: float, digits: int = 3) -> str:
    """Write a figure; a dash where it is undefined."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def p_value(p: float) -> str:
    """Write a p-value, never as 0."""
    return "-" if not math.isfinite(p) else "< .0001" if p < 1e-4 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def interval(value: Interval, digits: int = 3) -> str:
    """Write a figure with its interval, where it has one."""
    if not (math.isfinite(value.value) and math.isfinite(value.low)):
        return number(value.value, digits)
    return f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def interval_warnings(intervals: Mapping[str, Interval]) -> list[str]:
    """Say which intervals are not to be relied upon."""
    found: dict[str, list[str]] = {}
    for name, one in intervals.items():
        if one.warning:
            found.setdefault(one.warning, []).append(name)
    return [f"warning: {warning}: {', '.join(filter(None, names)) or 'all'}" for warning, names in found.items()]


def mean_warnings(means: Mapping[str, Interval]) -> list[str]:
    """Say of means over documents which intervals are not to be relied upon, and which have none."""
    without = [name for name, one in means.items() if math.isfinite(one.value) and not math.isfinite(one.low)]
    told = [f"no interval, since one document allows none: {', '.join(without)}"] if without else []
    return interval_warnings(means) + told


def folded(table: Table, headers: Collection[str]) -> Table:
    """Put columns into a note where all rows have the same cell, which makes room for the others.

    Parameters
    ----------
    table : Table
        The table.
    headers : collection of str
        Of the columns that may go; the first column stays.
    """
    constant = [
        index
        for index, header in enumerate(table.headers)
        if index and header in headers and len({row[index] for row in table.rows}) == 1
    ]
    if not constant:
        return table
    kept = [index for index in range(len(table.headers)) if index not in constant]
    same = "; ".join(f"{table.headers[index]}: {table.rows[0][index]}" for index in constant)
    rows = tuple(tuple(row[index] for index in kept) for row in table.rows)
    return Table(tuple(table.headers[index] for index in kept), rows, (f"in all rows: {same}", *table.notes))
