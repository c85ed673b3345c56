"""Rows of a CSV file: the delimiter is detected, and an unclosed quote spoils its own row only."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import IO

from geval_local.errors import DataError
from geval_local.files import MOST_IN_A_LINE, bounded_lines

__all__ = ["csv_records", "find_delimiter"]

#: The csv module rejects cells above 128 KiB by default; a source document may well be longer.
CSV_CELL_LIMIT = 2**31 - 1
#: Characters searched for the end of a quote, and buffered so that they can be reread if there is none.
QUOTED_CHARACTERS = MOST_IN_A_LINE
#: Records used to detect the delimiter.
SNIFFED_RECORDS = 20
SNIFFED_CHARACTERS = 1 << 20
DELIMITERS = ",;\t|"
_EXCEL_MARK = re.compile(r'"?sep=(.)"?', re.IGNORECASE)


class _Lines:
    """Lines of a file with their numbers; the lines of the current record can be pushed back."""

    def __init__(self, file: Iterable[str], first: Iterable[str]) -> None:
        self._waiting = deque(first)
        self._file = iter(file)
        self._taken: list[str] = []
        self._characters = 0
        self.number = 0
        #: Lines up to this one were read before, inside a quote that did not close.
        self.doubtful = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._waiting.popleft() if self._waiting else next(self._file)
        self.number += 1
        self._taken.append(line)
        self._characters += len(line)
        if self._characters > QUOTED_CHARACTERS and len(self._taken) > 1:
            raise _QuoteTooLong
        return line

    def begin(self) -> None:
        """Start a record: earlier lines can no longer be pushed back."""
        self._taken.clear()
        self._characters = 0

    @property
    def record(self) -> list[str]:
        """The lines of the current record."""
        return self._taken

    def take_back(self) -> None:
        """Push back all lines of the record except the first."""
        self.doubtful = max(self.doubtful, self.number)
        self.number -= len(self._taken) - 1
        self._waiting.extendleft(reversed(self._taken[1:]))
        del self._taken[1:]


class _QuoteTooLong(Exception):
    pass


def csv_records(file: IO[str], path: Path, delimiter: str | None = None) -> Iterator[list[str] | tuple[str, list[str]]]:
    """Yield the header, then every record: its cells, or the reason why it is invalid and its readable cells.

    An unclosed quote, which makes the record run over the following lines until it fails, invalidates only the line
    that contains it; the lines after it are read again, one by one.
    """
    csv.field_size_limit(CSV_CELL_LIMIT)
    head: list[str] = []
    all_lines = bounded_lines(file, path)
    while (
        len(head) < 2 * SNIFFED_RECORDS and sum(map(len, head)) < SNIFFED_CHARACTERS and (line := next(all_lines, ""))
    ):
        head.append(line)
    lines = _Lines(all_lines, head)
    if head and (mark := _EXCEL_MARK.fullmatch(head[0].rstrip("\r\n"))):
        delimiter = mark[1]
        next(lines)
    delimiter = delimiter or find_delimiter("".join(head))
    header: list[str] | None = None
    while True:
        lines.begin()
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if header is None:
                raise DataError(f"{path}, line {lines.number}: the header is not valid CSV: {error}") from None
            yield _broken(lines, str(error)), []
            continue
        except _QuoteTooLong:
            first = lines.number - len(lines.record) + 1
            raise DataError(
                f"{path}, line {first}: a quote is opened that does not close within {QUOTED_CHARACTERS:,} characters",
                hint="Close every quote, and double those inside.",
            ) from None
        if not cells:
            continue
        if header is None:
            header = cells
            yield cells
            continue
        if len(cells) == len(header) and not (lines.number <= lines.doubtful and _is_doubtful(lines.record, delimiter)):
            yield cells
            continue
        spans_lines = len(lines.record) > 1
        if lines.number <= lines.doubtful and len(cells) == len(header):
            yield _broken(lines, "a quote in the middle of a cell, after a quote that does not close"), []
        elif spans_lines and _is_record(lines.record[1], delimiter, len(header)):
            yield _broken(lines, f"{len(cells)} cells where the header has {len(header)} columns"), []
        else:
            first = lines.number - len(lines.record) + 1
            reason = f"{len(cells)} cells where the header has {len(header)} columns (line {first})"
            yield f"{reason}; quote cells that hold {_named(delimiter)}", cells


def _broken(lines: _Lines, error: str) -> str:
    """Describe the error in the current record, and push back the lines after its first."""
    last, first = lines.number, lines.number - len(lines.record) + 1
    if last == first:
        return f"not valid CSV in line {first}: {error}; close every quote, and double those inside"
    lines.take_back()
    return (
        f"not valid CSV in line {first}: a quote is opened and not closed (reading on to line {last}: {error}); "
        "close every quote, and double those inside"
    )


def find_delimiter(text: str) -> str:
    """Detect the delimiter of a CSV file: comma, semicolon, tab or bar.

    The delimiter splits the header and the first records into equally many cells; a comma if several do.
    """
    best, best_share = ",", -1.0
    for delimiter in DELIMITERS:
        counts = []
        try:
            for cells in csv.reader(text.splitlines(keepends=True), delimiter=delimiter):
                counts += [len(cells)] if cells else []
                if len(counts) > SNIFFED_RECORDS:
                    break
        except csv.Error:
            pass
        if not counts or counts[0] < 2:
            continue
        rows = counts[1:]
        share = rows.count(counts[0]) / len(rows) if rows else 1.0
        if share > best_share:
            best, best_share = delimiter, share
    return best


@cache
def _proper(delimiter: str) -> re.Pattern[str]:
    cell = rf'(?:"[^"]*(?:""[^"]*)*"|[^"{re.escape(delimiter)}\r\n]*)'
    return re.compile(rf"{cell}(?:{re.escape(delimiter)}{cell})*[\r\n]*")


def _is_doubtful(record: list[str], delimiter: str) -> bool:
    return _proper(delimiter).fullmatch("".join(record)) is None


def _is_record(line: str, delimiter: str, columns: int) -> bool:
    """Whether a line is a record with the right number of cells, with quotes only at the start and end of cells."""
    if _proper(delimiter).fullmatch(line) is None:
        return False
    return len(next(csv.reader([line], delimiter=delimiter), [])) == columns


def _named(delimiter: str) -> str:
    return {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}.get(delimiter, repr(delimiter))
