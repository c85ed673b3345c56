"""The text formats of results, JSONL and CSV, and the conversion of any value to strict JSON."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from collections.abc import Container, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, BinaryIO, NamedTuple, Protocol

import orjson

from geval_local.io.columns import SCORES, Layout, figures_in, header_of, holds_all_input, neutral

#: Rows that determine the columns of a CSV file; later rows have to fit.
HEADER_ROWS = 1000
#: Key of a row's number among its cells; cannot be a column name.
_NUMBER = "\ud800number"
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
#: Same output as orjson, for values that orjson rejects.
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
#: Values that `plain` converts itself are not passed to orjson.
_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


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


class Sink(Protocol):
    """One output format."""

    def write(self, row: ResultRow) -> None:
        """Append a row."""

    def finish(self) -> None:
        """Write the buffered rows."""

    def discard(self) -> None:
        """Release everything except the file itself; called once, after `finish` or instead of it."""


class JsonlSink:
    """One object per line; equal rows give equal bytes."""

    def __init__(self, file: BinaryIO, layout: Layout = SCORES) -> None:
        self._file = file
        self._column = layout.column

    def write(self, row: ResultRow) -> None:
        """Append a row; NaN and infinities become null."""
        if not self._column:  # what was written stands alone
            self._file.writelines(json.dumps(figures).encode() + b"\n" for figures in row.figures.values())
            return
        record = {**row.columns, self._column: {**row.earlier, **row.figures}}
        try:
            line = orjson.dumps(record, option=_STRICT)
        except TypeError:  # long integers, keys that are no texts, lone surrogates, dates, objects
            line = _COMPACT.encode(plain(record)).encode()
        self._file.write(line + b"\n")

    def finish(self) -> None:
        """Do nothing: no rows are buffered."""

    def discard(self) -> None:
        """Do nothing: no resources are held."""


class CsvSink:
    """The requested columns: input columns, ``row``, and ``metric.figure`` for every metric and figure.

    Texts are written as they are, null and NaN as empty cells, everything else as JSON. The header stands first in the
    file, so it is made from the first `HEADER_ROWS` readable rows. If all input columns are requested, those that
    appear only later, or only in unreadable rows, go into ``extra`` as one JSON object, so that nothing is
    lost and memory stays bounded.
    """

    def __init__(
        self,
        file: BinaryIO,
        metrics: Sequence[str],
        columns: Sequence[str] | None = None,
        layout: Layout = SCORES,
        *,
        safe: bool = False,
    ) -> None:
        self._text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        self._writer = csv.writer(self._text)
        self._metrics = metrics
        self._columns = columns
        self._layout = layout
        self._safe = safe
        self._figure_columns = {f"{metric}.{figure}" for metric in metrics for figure in layout.figures}
        self._header: list[str] | None = None
        self._extra: str | None = None
        self._waiting: list[tuple[dict[str, Any], bool]] = []
        self._present: set[str] = set()

    def write(self, row: ResultRow) -> None:
        """Append a row; the first rows are buffered until the header is known."""
        # A figure from an earlier run must not survive its replacement.
        cells = {as_text(name): value for name, value in row.columns.items() if name not in self._figure_columns}
        for metric, values in {**row.earlier, **row.figures}.items():
            cells |= {as_text(f"{metric}.{figure}"): value for figure, value in values.items()}
        if self._header is None:
            self._present |= figures_in([row.figures])
            self._waiting.append((cells | {_NUMBER: row.number}, row.is_bad))
            if len(self._waiting) >= HEADER_ROWS:
                self._start()
        else:
            self._put(cells | {_NUMBER: row.number})

    def finish(self) -> None:
        """Write the buffered rows, and the header if it is missing."""
        if self._header is None:
            self._start()
        self._text.flush()

    def discard(self) -> None:
        """Detach from the file, which belongs to the caller."""
        with contextlib.suppress(OSError, ValueError):  # a full disk, or a file that is already closed
            self._text.detach()

    def _start(self) -> None:
        good = [cells for cells, is_bad in self._waiting if not is_bad] or [cells for cells, _ in self._waiting]
        names = dict.fromkeys(name for cells in good for name in cells if name != _NUMBER)
        self._header = header_of(self._columns, list(names), self._metrics, self._present, self._layout)
        self._extra = free_name("extra", self._header) if holds_all_input(self._columns) else None
        header = [*self._header, *([] if self._extra is None else [self._extra])]
        self._writer.writerow(map(neutral, header) if self._safe else header)
        for cells, _ in self._waiting:
            self._put(cells)
        self._waiting.clear()

    def _put(self, cells: dict[str, Any]) -> None:
        number, header = cells.pop(_NUMBER), self._header or []
        if "row" in header and "row" not in cells:
            cells["row"] = number or None
        known = [self._cell(cells.pop(name, None)) for name in header]
        if self._extra is not None:
            known.append(to_json(cells) if cells else "")
        self._writer.writerow(known)

    def _cell(self, value: Any) -> str:
        text = _cell(value)
        # Numbers keep their sign: spreadsheets execute only texts.
        return neutral(text) if self._safe and isinstance(value, str) else text


def _cell(value: Any) -> str:
    value = plain(value)
    return "" if value is None else as_text(value)


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
