"""Results of ``geval-local score``, read from any of its formats or given as rows, once, into columns.

Report and analysis share the rules for which CSV columns are figures and how rows are numbered.
"""

from __future__ import annotations

import logging
import math
import os
import re
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from geval_local.direction import Direction
from geval_local.errors import Cause, DataError, ErrorCode
from geval_local.fields import decoded_json
from geval_local.figures import FIGURES, Kind
from geval_local.io.columns import as_text
from geval_local.io.input_files import FILE
from geval_local.io.ownership import file_sha256
from geval_local.io.places import state_of
from geval_local.io.result_manifest import ResultManifest, manifest_path, read_manifest, rows_path
from geval_local.io.rows import Row, read_rows
from geval_local.io.samples import INPUT_ROW
from geval_local.score import OrderFigures, Score
from geval_local.thinking import ThoughtFigures
from geval_local.wording import say_once

_HINT = "Expected a result file of `geval-local score`."
_ABSENT = "the row holds no figures of this metric"
#: No scale has values beyond; the squares of larger numbers are no numbers.
LARGEST = 1e150
#: Rows that are put into columns at once.
_AT_ONCE = 64
#: Most different texts of a column that are looked for in later rows.
_MOST_KNOWN = 1 << 16


def input_number(held: Any, number: int) -> int:
    """Return a row's number in the input that was scored: what its column `INPUT_ROW` holds, else its own `number`."""
    return int(str(held)) if re.fullmatch(r"[0-9]{1,18}", str(held)) else number


def numbered(rows: Iterable[Mapping[str, Any]], first: int = 1) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield rows with their numbers in their file; those that do not come from a file are counted from `first`."""
    return ((getattr(row, "number", 0) or place, row) for place, row in enumerate(rows, start=first))


def read_result_rows(path: str | os.PathLike[str]) -> ResultRows:
    """Read the rows of a data or result file; the figures of a result file come as ``geval`` from every format."""
    path, described = Path(path), None
    with suppress(DataError):
        described = read_manifest(path)
    if path.suffix.lower() == ".csv" and described is not None and described.rows_sha256 is not None:
        kept = rows_path(path)
        if kept.exists() and file_sha256(kept) == described.rows_sha256:
            if file_sha256(path) == described.results_sha256:
                return ResultRows.of(_rows_of(kept, described), kept)
            return ResultRows.of(_joined(list(_rows_of(path, described)), list(_rows_of(kept, described))), path)
        told = f"{kept} is gone or changed: of {path.name} only what the table itself holds is known"
        say_once(told, level=logging.WARNING)
    state = state_of(path)
    rows = ResultRows.of(_rows_of(path, described), path)
    if state_of(path) != state:
        raise DataError(f"{path} was changed while it was read", hint="Try again once nothing writes to it.")
    if rows.figures and not manifest_path(path).exists():
        told = f"{path} holds scores without a manifest: judge, fields, scale and documents are guessed. Copy that of"
        say_once(f"{told} the results that it was made from to {manifest_path(path).name}.", level=logging.WARNING)
    return rows


class ResultRows(Sequence[Row]):
    """The rows of results in columns, read in one pass; figures are numbers of 8 bytes, and equal texts one text.

    An item is a row of its own: the input's columns, and ``geval`` with the figures of every metric.
    """

    def __init__(self) -> None:
        #: The input's columns; `_NOTHING` where a row has none.
        self._columns: dict[str, _Values] = {}
        self._numbers = array("q")
        #: Metric -> its figures.
        self.figures: dict[str, MetricFigures] = {}
        #: A second file, its columns, and the number in it of each row, 0 for a row that it does not have.
        self.second: tuple[Any, frozenset[str], Sequence[int]] = ("", frozenset(), ())

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], path: str | os.PathLike[str] = "results") -> ResultRows:
        """Collect rows; a file without any is refused."""
        found, coming = cls(), iter(rows)
        while some := list(islice(coming, _AT_ONCE)):
            found._extend(some, path)
        if not found._numbers:
            raise DataError(f"{path} holds no rows")
        for values in found._columns.values():
            values.extend(len(found), ())
        return found

    def _extend(self, rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> None:
        start = len(self)
        numbers = [number for number, _ in numbered(rows, start + 1)]
        self._numbers.extend(numbers)
        held = [_figures_in(row) for row in rows]
        for name in dict.fromkeys(chain.from_iterable(rows)):
            values = [row.get(name, _NOTHING) for row in rows]
            if name == "geval":
                values = [value if own is None else _NOTHING for value, own in zip(values, held, strict=True)]
            if any(value is not _NOTHING for value in values):
                self._columns.setdefault(name, _Values()).extend(start, values)
        for metric in dict.fromkeys(chain.from_iterable(filter(None, held))):
            given = [None if own is None else own.get(metric) for own in held]
            if any(one is not None for one in given):
                own = self.figures.setdefault(str(metric), MetricFigures(str(metric)))
                own.extend(start, given, lambda at: f"{path}, row {numbers[at]}")

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        places = range(len(self))[index]
        return self._row(places) if isinstance(places, int) else list(map(self._row, places))

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, range(len(self)))

    def _row(self, place: int) -> Row:
        row = self.columns_of(place)
        if self.figures:
            row["geval"] = {name: own.at(place) for name, own in self.figures.items() if own.has(place)}
        return row

    def without(self, places: Collection[int]) -> ResultRows:
        """Return the rows but those at some places."""
        kept = [place for place in range(len(self)) if place not in places]
        found, (file, columns, numbers) = ResultRows.of(map(self._row, kept)), self.second
        found.second = file, columns, [numbers[place] for place in kept if numbers]
        return found

    def columns_of(self, place: int) -> Row:
        """Return the input's columns of a row, by its place from 0."""
        return next(self._inputs(range(place, place + 1)))

    def inputs(self) -> Iterator[Row]:
        """Yield the rows without figures."""
        return self._inputs(range(len(self)))

    def _inputs(self, places: range) -> Iterator[Row]:
        names = list(self._columns)
        columns = [values.held[places.start : places.stop] for values in self._columns.values()]
        has_gaps = any(values.has_gaps for values in self._columns.values())
        for place, values in zip(places, zip(*columns, strict=True) if columns else repeat(()), strict=False):
            row = Row(zip(names, values, strict=True))
            if has_gaps:
                row = Row((name, value) for name, value in row.items() if value is not _NOTHING)
            row.number = self._numbers[place]
            yield row

    @cached_property
    def unread(self) -> frozenset[int]:
        """The places of the rows that could not be read."""
        codes = ErrorCode.INVALID_ROW, ErrorCode.UNREADABLE_FILE
        found = {place for own in self.figures.values() for place in own.places_of(*codes)}
        held = {at: (name for name, value in self.columns_of(at).items() if value not in (None, "")) for at in found}
        return frozenset(at for at, names in held.items() if _UNREAD.issuperset(names))

    @property
    def first(self) -> Row:
        """The first row that could be read."""
        return self[next((place for place in range(len(self)) if place not in self.unread), 0)]

    def known_inputs(self) -> Iterator[Row]:
        """Yield the rows without figures; nothing is known of those that could not be read."""
        return (Row() if place in self.unread else row for place, row in enumerate(self.inputs()))

    def holding(self, field: str, path: Any) -> tuple[Iterator[tuple[int, Row]], Any]:
        """Return the rows with their numbers in the file that holds a field, and this file; `path` is their own."""
        second, columns, numbers = self.second
        if field.partition(".")[0] in columns or field in columns:
            return zip(numbers, self.inputs(), strict=True), second
        return zip(self.numbers, self.inputs(), strict=True), path

    @property
    def bare(self) -> int | None:
        """The number of the first row that has no figures of any metric; None if all have some."""
        has = np.zeros(len(self), np.bool_)
        for own in self.figures.values():
            has |= own.known(len(self))
        return None if has.all() else self._numbers[int(has.argmin())]

    @property
    def numbers(self) -> list[int]:
        """The rows' numbers in their file."""
        return self._numbers.tolist()

    @property
    def names(self) -> list[str]:
        """The names of the input's columns."""
        return list(self._columns)

    def column(self, name: str) -> list[Any]:
        """Return the values of a column of the input, None where a row has none."""
        values = self._columns.get(name)
        if values is None:
            return [None] * len(self)
        return [None if value is _NOTHING else value for value in values.held]


_NOTHING = object()

#: What a row that could not be read holds beside its scores: its place and its text.
_UNREAD = frozenset(("raw", "row", FILE, INPUT_ROW))


def _figures_in(row: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any] | None] | None:
    """Return a row's figures by metric; None if its column of their name, if any, is one of the input's."""
    held = row.get("geval")
    are_figures = isinstance(held, Mapping) and all(isinstance(own, Mapping | None) for own in held.values())
    return held if are_figures else None


class _Values:
    """The values of one column; equal texts are one."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        #: Whether any row has none.
        self.has_gaps = False
        self._known: dict[str, str] = {}

    def extend(self, start: int, values: Iterable[Any]) -> None:
        """Add values from a place on; `_NOTHING` fills the places before it."""
        before = len(self.held)
        self.held.extend([_NOTHING] * (start - before))
        same = self._known.setdefault if len(self._known) < _MOST_KNOWN else self._known.get
        self.held.extend(same(value, value) if type(value) is str else value for value in values)
        self.has_gaps = self.has_gaps or any(value is _NOTHING for value in self.held[before:])

    def at(self, place: int) -> Any:
        return self.held[place] if place < len(self.held) else _NOTHING


class MetricFigures:
    """The figures of one metric, in columns; a figure that a row does not have is None, a number NaN."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self._has = bytearray()
        self._numbers: dict[str, array[float]] = {}
        self._others: dict[str, _Values] = {}
        #: Labels, in one order for all rows, and their probabilities.
        self._labels: tuple[str, ...] = ()
        self._shares = array("d")

    @classmethod
    def of(cls, metric: str, rows: Iterable[Mapping[str, Any]]) -> MetricFigures:
        """Collect figures, one object per row."""
        found = cls(metric)
        found.extend(0, list(rows), lambda at: f"row {at + 1}")
        return found

    def extend(self, start: int, given: Sequence[Mapping[str, Any] | None], where: Callable[[int], str]) -> None:
        """Add the figures of rows from a place on, in any format's form; `where` names a row in messages."""
        self._has.extend(bytes(start - len(self._has)))
        self._has.extend(own is not None for own in given)
        names = dict.fromkeys(chain.from_iterable(filter(None, given)))
        for name in filter(FIGURES.__contains__, names):
            values = [None if own is None else own.get(name) for own in given]
            kind = FIGURES[name].kind
            read: list[Any] | None = _plain(values) if kind == "number" else None
            if read is None:
                read = self._read(name, values, where)
            if kind == "number":
                column = self._numbers.setdefault(name, array("d"))
                column.extend([math.nan] * (start - len(column)))
                column.extend(math.nan if one is _NOTHING else one for one in read)
                continue
            if kind == "distribution":
                read = self._without_shares(start, read)
            if any(one is not _NOTHING for one in read):
                self._others.setdefault(name, _Values()).extend(start, read)
        if "order_scores" in names or "order_masses" in names:
            for at, place in enumerate(range(start, start + len(given))):
                scores, masses = (self._other(name, place) or () for name in ("order_scores", "order_masses"))
                if len(scores) != len(masses):
                    told = f"{where(at)}: {self.metric}: order_scores and order_masses are not equally many"
                    raise DataError(told, hint=_HINT)

    def _read(self, name: str, values: Sequence[Any], where: Callable[[int], str]) -> list[Any]:
        """Read the values of a figure; `_NOTHING` where there is none."""
        read, found = _READ[FIGURES[name].kind], list[Any]()
        for at, value in enumerate(values):
            try:
                is_empty = value is None or (isinstance(value, float | str) and (value == "" or value != value))
                found.append(_NOTHING if is_empty else read(value))
            except (TypeError, ValueError) as error:
                told = f"{where(at)}: {self.metric}: {name}: {error}, not {value!r:.80}"
                raise DataError(told, hint=_HINT) from error
        return found

    def _without_shares(self, start: int, read: Sequence[Any]) -> list[Any]:
        """Keep the distributions over the labels of the first as numbers; return the others."""
        given = [() if one is _NOTHING else tuple(one) for one in read]
        self._labels = self._labels or next(filter(None, given), ())
        width = len(self._labels)
        self._shares.extend([math.nan] * (start * width - len(self._shares)))
        missing, others = (math.nan,) * width, list(read)
        for at, labels in enumerate(given):
            is_own = bool(labels) and labels == self._labels
            self._shares.extend(read[at].values() if is_own else missing)
            others[at] = _NOTHING if is_own else read[at]
        return others

    def has(self, place: int) -> bool:
        """Whether a row has figures of the metric."""
        return place < len(self._has) and self._has[place] == 1

    def known(self, rows: int) -> NDArray[np.bool_]:
        """Return which rows have figures of the metric."""
        return np.frombuffer(self._has.ljust(rows, b"\0"), np.bool_)

    def number(self, name: str, rows: int) -> NDArray[np.float64]:
        """Return the numbers of a figure, NaN where a row has none."""
        found = np.full(rows, math.nan)
        if (own := self._numbers.get(name)) is not None:
            found[: len(own)] = np.frombuffer(own)
        return found

    def probabilities(self, place: int) -> dict[str, float] | None:
        """Return the label probabilities of a row, if it has any."""
        width = len(self._labels)
        own = self._shares[place * width : (place + 1) * width]
        if width and len(own) and own[0] == own[0]:
            return dict(zip(self._labels, own, strict=True))
        shares: dict[str, float] | None = self._other("probabilities", place)
        return shares

    def _other(self, name: str, place: int) -> Any:
        found = self._others[name].at(place) if name in self._others else _NOTHING
        return None if found is _NOTHING else found

    def at(self, place: int) -> dict[str, Any]:
        """Return the figures of a row, in the order of `FIGURES`; `score` is always among them."""
        found = self._at(place)
        return {"score": None} | {name: found[name] for name in FIGURES if name in found}

    def _at(self, place: int) -> dict[str, Any]:
        numbers = ((name, own[place]) for name, own in self._numbers.items() if place < len(own))
        found: dict[str, Any] = {name: number for name, number in numbers if number == number}
        found |= {name: value for name, own in self._others.items() if (value := own.at(place)) is not _NOTHING}
        if (shares := self.probabilities(place)) is not None:
            found["probabilities"] = shares
        return found

    def places_of(self, *codes: ErrorCode) -> list[int]:
        """Return the places of the rows whose error has one of these codes."""
        held = self._others["error_code"].held if "error_code" in self._others else ()
        return [place for place, code in enumerate(held) if code in codes]

    def cause(self, place: int) -> Cause:
        """Say why a row has no score."""
        return _cause(self._other("error", place) or "unscored", self._other("error_code", place))

    def score(self, place: int, direction: Direction = Direction.HIGH) -> Score:
        """Return the score of a row."""
        found = self._at(place)
        if found.get("score") is None:
            told = _cause(found.get("error") or _ABSENT, found.get("error_code"))
            return Score.unscored(self.metric, told, prompt_tokens=found.get("prompt_tokens", 0))
        count = found.get("thought_count")
        error, spread, bias = (found.get(f"thought_{name}", math.nan) for name in ("error", "spread", "bias"))
        return Score(
            self.metric,
            found.pop("score"),
            orders=tuple(map(OrderFigures, found.get("order_scores", ()), found.get("order_masses", ()))),
            thoughts=None
            if count is None
            else ThoughtFigures(count, error, spread, found.get("cut_thoughts", 0), found.get("thoughts", ()), bias),
            direction=direction,
            **{name: value for name, value in found.items() if name in _OF_SCORE},
        )


#: Figures that are attributes of a score, and no parts of one.
_OF_SCORE = Score.__dataclass_fields__.keys() - {"metric", "value", "orders", "thoughts", "error", "direction"}


@lru_cache
def _cause(text: str, code: str | None) -> Cause:
    """Make the same causes of many rows once."""
    return Cause(text, ErrorCode.read(code))


def _plain(values: Sequence[Any]) -> list[float] | None:
    """Return values that are numbers already, NaN where there is none; None if any has to be read."""
    if not {float, type(None)}.issuperset(map(type, values)):
        return None
    numbers = np.array(values, np.float64)
    return None if (np.abs(numbers) > LARGEST).any() else numbers.tolist()


def _number(value: Any) -> float:
    if type(value) is float and -LARGEST <= value <= LARGEST:
        return value
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if number != number:
        raise ValueError("a number is expected")
    if not -LARGEST <= number <= LARGEST:
        raise ValueError("a number beyond all scales")
    return number


def _shares(value: Any) -> dict[str, float]:
    found = decoded_json(value) if isinstance(value, str) else value
    if not isinstance(found, Mapping):
        raise ValueError("probabilities by label are expected")
    if found and {str}.issuperset(map(type, found)) and {float}.issuperset(map(type, found.values())):
        low, high, total = min(found.values()), max(found.values()), sum(found.values())
        if low >= 0 and high <= 1 and total == total:
            return dict(found)
    shares = {str(label): _number(share) for label, share in found.items() if share is not None}
    if shares and not (min(shares.values()) >= -1e-9 and max(shares.values()) <= 1 + 1e-9):
        raise ValueError("a probability is 0 to 1")
    return shares


def _listed(value: Any) -> list[Any]:
    found = decoded_json(value)
    found = found.tolist() if isinstance(found, np.ndarray) else found
    if not isinstance(found, list | tuple):
        raise ValueError("a list is expected")
    return list(found)


def _flag(value: Any) -> bool:
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise ValueError("true or false is expected")
    return found


def _tokens(value: Any) -> tuple[tuple[str, float], ...]:
    """Read pairs, which tokens are in JSON and CSV; in Parquet they are structs."""
    pairs = [tuple(one.values()) if isinstance(one, Mapping) else tuple(one) for one in _listed(value)]
    if not all(len(pair) == 2 for pair in pairs):
        raise ValueError("pairs of token and probability are expected")
    return tuple((str(token), _number(share)) for token, share in pairs)


#: How the values of a kind are read, in the form of any format; a cell of a table is a text.
_READ: Mapping[Kind, Callable[[Any], Any]] = {
    "number": _number,
    "numbers": lambda value: [*map(_number, _listed(value))],
    "count": lambda value: int(_number(value)),
    "flag": _flag,
    "text": lambda value: value if isinstance(value, str) else str(value),
    "texts": lambda value: tuple(map(str, _listed(value))),
    "distribution": _shares,
    "tokens": _tokens,
}


def _rows_of(path: Path, described: ResultManifest | None) -> Iterator[Row]:
    for raw in read_rows(path):
        if raw.error is not None:
            raise DataError(f"{path}, row {raw.number}: {raw.error}")
        row = Row(with_figures(raw.fields, () if described is None else described.metrics))
        if row.get("extra") == "" and "geval" in row:  # the CSV column for late columns
            del row["extra"]
        row.number = raw.number
        yield row


def _joined(table: list[Row], kept: Sequence[Row]) -> list[Row]:
    """Give the rows of a table that was sorted, rated or saved by another program the figures that were kept of them.

    Rows are the same where the input's columns are; a score that differs was edited, and is the user's.
    """
    columns = [name for name in kept[0] if name in table[0] and name != "geval"] if table and kept else []
    waiting: dict[tuple[str, ...], deque[Row]] = {}
    for row in kept if columns else ():
        waiting.setdefault(tuple(_cell(row.get(name)) for name in columns), deque()).append(row)
    for row in table:
        found = waiting.get(tuple(_cell(row.get(name)) for name in columns))
        if found:
            given = row.get("geval", {})
            figures = found.popleft().get("geval", {})
            row["geval"] = given | {
                name: own for name, own in figures.items() if _is_same(given.get(name, {}).get("score"), own["score"])
            }
    return table


def _cell(value: Any) -> str:
    return "" if value is None else as_text(value).replace("\r\n", "\n").strip()


def _is_same(shown: Any, score: float | None) -> bool:
    """Whether a cell holds a score; spreadsheets may write a decimal comma and fewer digits."""
    if shown is None or score is None:
        return shown is None
    try:
        return abs(float(str(shown).replace(",", ".")) - score) < 1e-6
    except ValueError:
        return False


def with_figures(row: Mapping[str, Any], metrics: Collection[str] = ()) -> Mapping[str, Any]:
    """Gather a CSV row's ``metric.figure`` columns into one object, as in the other formats.

    A column is a figure if the manifest names its metric, or, in a table of results, if there is a mass or an error
    beside the score. Rows of a table that got another metric have both forms.
    """
    held = row.get("geval", {})
    if not isinstance(held, Mapping):
        return row
    others = () if "geval" in row else ("error", "label_mass")
    names = {str(name)[: -len(".score")] for name in row if str(name).endswith(".score")} - held.keys() - {""}
    scored = {name for name in names if name in metrics or any(f"{name}.{one}" in row for one in others)}
    if not scored:
        return row
    columns: dict[str, Any] = {}
    scores: dict[str, dict[str, Any]] = {}
    for column, value in row.items():
        metric, _, figure = str(column).rpartition(".")
        if metric in scored and figure in FIGURES:
            scores.setdefault(metric, {})[figure] = decoded(value)
        else:
            columns[column] = value
    return {**columns, "geval": {**scores, **held}}


def decoded(value: Any) -> Any:
    """Decode a cell of a CSV file; an empty one is None."""
    return None if value == "" else decoded_json(value)
