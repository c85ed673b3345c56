"""Slices: rows of a file by the values of a column, such as a language, a product or a length.

A column of names makes one slice per name. A column of numbers with more than `MOST_NUMBERS` values is cut into
quartiles. Rows without a value form a separate slice.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from geval_local.errors import ConfigurationError
from geval_local.fields import field_value, nearest
from geval_local.grouping import DocumentRule
from geval_local.statistics.records import word_count

#: The slice of the rows without a value.
NO_VALUE = "(none)"
#: Most names in a column; a column with more is an id.
MOST_SLICES = 20
#: Numbers with at most this many distinct values count as names, such as years or ratings.
MOST_NUMBERS = 8
#: If no column has this name, it is the number of words of the output.
LENGTH = "length"
#: Most distinct values counted for a message.
_MOST_COUNTED = 100_000


@dataclass(frozen=True)
class Slicing:
    """How a column cuts the rows of a file.

    Attributes
    ----------
    column : str
        The column, or the dotted path into one.
    names : tuple of str
        The slices, in the order of a table; `NO_VALUE` last.
    edges : tuple of float
        For numbers, the largest number of every slice but the last; empty if values are names.
    of_output : bool
        Whether the value is the number of words of the output.
    """

    column: str
    names: tuple[str, ...]
    edges: tuple[float, ...] = ()
    of_output: bool = False

    @property
    def told(self) -> str:
        """Say how numbers were cut, in a sentence; empty for names."""
        if not self.edges:
            return f"{self.column}: words of the output" if self.of_output else ""
        what = "words of the output" if self.of_output else "its numbers"
        return f"{self.column}: {what}, cut into quartiles of the rows"

    def slice_of(self, row: Mapping[str, Any], rule: DocumentRule | None = None) -> str:
        """Return the slice of a row; `rule` knows which of its texts is the output."""
        value = _length(row, rule) if self.of_output else field_value(row, self.column)
        if not self.edges:
            return _name(value)
        number = _number(value)
        return NO_VALUE if math.isnan(number) else self.names[bisect_left(self.edges, number)]


def find_slicings(
    rows: Iterable[Mapping[str, Any]], columns: Sequence[str], rule: DocumentRule | None = None
) -> list[Slicing]:
    """Read all rows once, and find the slices of every column.

    Parameters
    ----------
    rows : iterable of mapping
        The rows of a file.
    columns : sequence of str
        Columns, or dotted paths into them. ``length`` is the number of words of the output if there is no such column.
    rule : DocumentRule, optional
        Knows which text of a row is the output.

    Raises
    ------
    ConfigurationError
        If a column is in no row, or has more than `MOST_SLICES` names.
    """
    found = {(column, False): _Values() for column in columns}
    if LENGTH in columns:
        found[LENGTH, True] = _Values()
    known: dict[str, None] = {}
    for row in rows:
        if len(known) < _MOST_COUNTED:
            known |= dict.fromkeys(map(str, row))
        for (column, of_output), values in found.items():
            values.add(_length(row, rule) if of_output else field_value(row, column))
    slicings = []
    for column in dict.fromkeys(columns):
        known_as = [place for place in ((column, False), (column, True)) if place in found and found[place].names]
        if not known_as:
            raise ConfigurationError(
                f"`by={column}`: no row has a value in this column{nearest(column, known)}",
                hint=f"Columns: {', '.join(known)}.",
            )
        slicings.append(Slicing(column, *found[known_as[0]].cut(column), known_as[0][1]))
    return slicings


class _Values:
    """The values of one column."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._numbers: list[float] | None = []
        self._missing = 0

    def add(self, value: Any) -> None:
        """Add the value of a row."""
        name = _name(value)
        if name == NO_VALUE:
            self._missing += 1
            return
        if len(self.names) < _MOST_COUNTED:
            self.names[name] = None
        if self._numbers is not None:
            number = _number(value)
            if math.isnan(number):
                self._numbers = None
            else:
                self._numbers.append(number)

    def cut(self, column: str) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Return the names of the slices, and of numbers the largest of every slice but the last."""
        last = (NO_VALUE,) if self._missing else ()
        if self._numbers is not None and len(self.names) > MOST_NUMBERS and column != "id":
            numbers = np.asarray(self._numbers)
            # Largest number of every quarter: equal numbers stay in one slice.
            edges = np.unique(np.quantile(numbers, (0.25, 0.5, 0.75), method="inverted_cdf"))
            edges = edges[edges < numbers.max()]
            places = np.searchsorted(edges, numbers, side="left")
            parts = [numbers[places == place] for place in range(len(edges) + 1)]
            return (*(f"{part.min():g} to {part.max():g}" for part in parts), *last), tuple(edges.tolist())
        if len(self.names) > MOST_SLICES:
            many = "or more " if len(self.names) >= _MOST_COUNTED else ""
            raise ConfigurationError(
                f"`by={column}`: the column has {len(self.names):,} {many}different values, more than the "
                f"{MOST_SLICES} that make slices",
                hint="Choose a column that many rows share, such as a language or a product.",
            )
        return (*sorted(self.names, key=None if self._numbers is None else float), *last), ()


def _length(row: Mapping[str, Any], rule: DocumentRule | None) -> int | None:
    text = (rule or DocumentRule()).output(row)
    return None if text is None else word_count(text)


def _name(value: Any) -> str:
    """Write a value as the name of its slice."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NO_VALUE
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text.split()) or NO_VALUE


def _number(value: Any) -> float:
    """Read a finite number; NaN for anything else."""
    if isinstance(value, bool):
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan
