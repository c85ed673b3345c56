"""Rows of a file: JSONL, JSON, CSV, Parquet and Excel, streamed; a row that cannot be read keeps its place.

The module knows no metrics or fields: a row is a mapping of column names to values, or the reason why it is invalid.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import shlex
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import IO, Any, NamedTuple

from geval_local.errors import Cause, ConfigurationError, DataError, ErrorCode, ReadError, telling
from geval_local.fields import field_value, nearest
from geval_local.io.places import File, check_is_there, open_bytes, parquet_source, state_of
from geval_local.io.text_files import MOST_IN_A_LINE, bounded_lines, kind_of_no_text, open_text
from geval_local.options import Quoting
from geval_local.scale import number_in

#: The csv module rejects cells above 128 KiB by default; a source document may be longer.
CSV_CELL_LIMIT = 2**31 - 1
#: Most characters searched for the end of a quote; they are buffered, to be reread if there is none.
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

    @property
    def first(self) -> int:
        """Number of the record's first line."""
        return self.number - len(self._taken) + 1

    def take_back(self) -> None:
        """Push back all lines of the record except the first."""
        self.doubtful = max(self.doubtful, self.number)
        self.number -= len(self._taken) - 1
        self._waiting.extendleft(reversed(self._taken[1:]))
        del self._taken[1:]


class _QuoteTooLong(Exception):
    pass


def _begun(file: IO[str], path: File, delimiter: str | None) -> tuple[_Lines, str]:
    """Return the lines of a table from its header on, and its delimiter."""
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
    return lines, delimiter or find_delimiter("".join(head))


def csv_records(
    file: IO[str], path: File, delimiter: str | None, look: _Look
) -> Iterator[list[str] | tuple[str, list[str]]]:
    """Yield the header, then every record: its cells, or the reason why it is invalid and its readable cells.

    An unclosed quote, which makes the record run over the following lines until it fails, invalidates only the line
    that contains it; the lines after it are read again, one by one. `look` tells whether quotes mean anything.
    """
    lines, delimiter = _begun(file, path, delimiter)
    quoting: Any = csv.QUOTE_NONE if look.is_unquoted else csv.QUOTE_MINIMAL
    header: list[str] | None = None
    while True:
        lines.begin()
        reader = csv.reader(lines, delimiter=delimiter, strict=True, quoting=quoting)
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
            raise DataError(
                f"{path}, line {lines.first}: a quote is opened that does not close within "
                f"{QUOTED_CHARACTERS:,} characters",
                hint="Close every quote, and double those inside.",
            ) from None
        if not cells:
            continue
        # Spreadsheets write deleted columns as empty cells at the end of a row.
        while len(cells) > (1 if header is None else len(header)) and not cells[-1].strip():
            cells.pop()
        if header is None:
            header = cells
            yield cells
            continue
        if len(lines.record) > 1 and look.are_rows(lines.record, delimiter, len(header)):
            yield _broken(lines, "each of these lines is a row"), []
            continue
        is_doubtful = lines.number <= lines.doubtful and _proper(delimiter).fullmatch("".join(lines.record)) is None
        if len(cells) == len(header) and not is_doubtful:
            yield cells
        elif len(cells) == len(header):
            yield _broken(lines, "a quote in the middle of a cell, after a quote that does not close"), []
        elif len(lines.record) > 1 and _is_record(lines.record[1], delimiter, len(header)):
            yield _broken(lines, f"{len(cells)} cells where the header has {len(header)} columns"), []
        else:
            reason = f"{len(cells)} cells where the header has {len(header)} columns (line {lines.first})"
            yield f"{reason}; quote cells that hold {delimiter!r}", cells


def _broken(lines: _Lines, error: str) -> str:
    """Describe the error in the current record, and push back the lines after its first."""
    last, first = lines.number, lines.first
    if last == first:
        return f"not valid CSV in line {first}: {error}; close every quote, and double those inside"
    lines.take_back()
    return (
        f"not valid CSV in line {first}: a quote is opened and not closed (reading on to line {last}: {error}); "
        "close every quote, and double those inside, or read quotes as characters (`quoting=none`)"
    )


# --- tables without quoting -------------------------------------------------------------------------------------------

#: Rows without a quote that tell how rows look, and that make a table of texts doubtful.
_FEW, _ENOUGH = 2, 10


@dataclass(frozen=True)
class _Look:
    """How the rows of a table look."""

    #: Whether quotes are characters like others.
    is_unquoted: bool = False
    #: Columns that hold a number in every row without quotes.
    numeric: frozenset[int] = frozenset()

    def are_rows(self, lines: Sequence[str], delimiter: str, columns: int) -> bool:
        """Whether the lines of one quoted cell are rows: of as many cells, and with numbers where rows have them."""
        rows = [_plain_cells(line, delimiter, columns) for line in lines]
        return bool(self.numeric) and all(
            len(row) == columns and None not in (number_in(row[place]) for place in self.numeric) for row in rows
        )


def _plain_cells(line: str, delimiter: str, columns: int) -> list[str]:
    cells = line.rstrip("\r\n").split(delimiter)
    while len(cells) > columns and not cells[-1].strip():
        cells.pop()
    return cells


@lru_cache(maxsize=64)
def _look_at(path: File, encoding: str | None, delimiter: str | None, *_: int) -> _Look:
    """Read a table once to find out whether it knows quoting; the last arguments are the state of the file.

    In a table without quoting a cell may begin with a quote, and a later one end with one: as a quoted cell, all rows
    between them would be one text. It is recognised by lines that are rows themselves, like those without any quote. Of
    a comma that is followed by a space only inside of a cell, and of a table that quotes other cells, a text is one.
    """
    with open_text(path, newline="", encoding=encoding, guess=True) as file:
        lines, delimiter = _begun(file, path, delimiter)
        header = _plain_cells(next(lines, ""), delimiter, 1)
        columns, swallowed, spaced = len(header), list[str](), f"{delimiter} "
        plain, numeric = 0, frozenset[int]()  # rows without a quote, and the columns that are numbers in all of them
        is_quoted, is_spaced, is_tab = any('"' in name for name in header), False, delimiter == "\t"
        while not is_quoted:
            lines.begin()
            is_broken = False
            try:
                cells = next(csv.reader(lines, delimiter=delimiter, strict=True))
            except StopIteration:
                break
            except (csv.Error, _QuoteTooLong):
                if not is_tab:  # the row is refused by name
                    break
                lines.take_back()
                is_broken, cells = True, []
            line = lines.record[0]
            fits = len(_plain_cells(line, delimiter, columns)) == columns
            if is_tab and (is_broken or (fits and len(cells) < columns and len(lines.record) == 1 and '"' in line)):
                # Texts hold no tabs: that lines have as many as the header is no chance.
                others = chain(swallowed, (other for other in _each(lines) if '"' in other))
                fits = fits and all(len(_plain_cells(other, delimiter, columns)) == columns for other in others)
                return _Look(fits, numeric) if plain >= _FEW else _Look()
            if len(lines.record) > 1:
                swallowed += lines.record
            elif '"' in line:
                is_quoted = not is_tab and ('""' in line or any(f'"{cell}"' in line for cell in cells))
                is_quoted |= len(cells) == columns and not fits
            elif fits:
                cells = _plain_cells(line, delimiter, columns)
                numbers = frozenset(place for place, cell in enumerate(cells) if number_in(cell) is not None)
                plain, numeric = plain + 1, numeric & numbers if plain else numbers
                is_spaced |= spaced in line
        look = _Look(numeric=numeric) if plain >= _FEW else _Look()
        rows = [_plain_cells(line, delimiter, columns) for line in swallowed]
        if is_quoted or not rows or plain < _FEW or any(len(row) != columns for row in rows):
            return look
        if numeric or is_tab:
            found = look.are_rows(swallowed, delimiter, columns) if numeric else all(map(all, rows))
            return _Look(found, numeric)
        if plain < _ENOUGH or (not is_spaced and any(spaced in line for line in swallowed)):
            return look
        raise DataError(
            f"{path}: {swallowed[0].rstrip()[:80]!r} opens a quote that a later line closes, and each of these lines "
            "may be a row of its own",
            hint="If the table quotes its cells, `quoting=standard` makes one row of them; if not, `quoting=none`.",
        )


def _each(lines: _Lines) -> Iterator[str]:
    """Read lines one by one, of which none is pushed back."""
    lines.begin()
    for line in lines:
        yield line
        lines.begin()


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


def _is_record(line: str, delimiter: str, columns: int) -> bool:
    """Whether a line is a record with the right number of cells, with quotes only at the start and end of cells."""
    if _proper(delimiter).fullmatch(line) is None:
        return False
    return len(next(csv.reader([line], delimiter=delimiter), [])) == columns


PARQUET_BATCH_ROWS = 1024
#: Bytes of a Parquet batch converted to Python values at a time: a wide or long batch must not multiply memory.
CONVERTED_BYTES = 1 << 22
INSTALL_PARQUET = "Install it with `pip install 'geval-local[parquet]'`."
#: Formats that say themselves how texts are encoded, and pack them.
_ENCODED = (".parquet", ".xlsx")
#: First lines of a .jsonl file whose JSON values span several lines.
_PRETTY = ("[", "{", "[{")
_SPACE = re.compile(r"\s*")


class RawRow(NamedTuple):
    """One row of a file."""

    #: Its place in the file, from 1; blank lines are no rows. Scoring, report and analysis use this number.
    number: int
    #: The columns, or the raw text of an unreadable row, under ``raw``.
    fields: dict[str, Any]
    #: Why the row cannot be read.
    error: Cause | None = None


def _invalid(why: str) -> Cause:
    return Cause(why, ErrorCode.INVALID_ROW)


class Row(dict[str, Any]):
    """The columns of a readable row, with the row's number in its file; see `RawRow`."""

    number: int = 0


class _RepeatedKey(dict[str, Any]):
    """An object with a repeated key, where the json module would silently keep the last value."""

    repeated: str = ""


class _Decoder(json.JSONDecoder):
    """A decoder that marks objects with a repeated key."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=self._object)
        #: Whether any text decoded so far had one.
        self.has_repeated = False

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) == len(pairs):
            return record
        names = [name for name, _ in pairs]
        marked = _RepeatedKey(record)
        marked.repeated = next(name for name in names if names.count(name) > 1)
        self.has_repeated = True
        return marked

    def row(self, number: int, value: Any, raw: Any) -> RawRow:
        """Make a row from a decoded value; for an invalid one keep `raw`."""
        if self.has_repeated and (name := _repeated(value)) is not None:
            return RawRow(number, {"raw": raw}, _invalid(f"{name} occurs twice"))
        if not isinstance(value, dict):
            return RawRow(number, {"raw": raw}, _invalid(f"not a JSON object but {type(value).__name__}"))
        return RawRow(number, value)


def _repeated(value: Any) -> str | None:
    """Return a description of a repeated key in one object, at any depth."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, _RepeatedKey):
            return f"the {'column' if one is value else 'key'} {one.repeated!r}"
        waiting += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
    return None


def read_rows(
    path: File, encoding: str | None = None, rows: str | None = None, quoting: Quoting | None = None
) -> Iterator[RawRow]:
    """Open a file of rows; the format follows from the extension (`FORMATS`; texts may also end in ``.gz``).

    `rows` says where they are inside of a file that holds more than rows: a path in JSON, a sheet of a spreadsheet.
    `quoting` says whether quotes in a table enclose cells; without it the lines tell, see `_look_at`. Without
    `encoding`, texts are UTF-8 or UTF-16; tables may also be Windows-1252, see `io.text_files.is_western`.
    Undecodable bytes become lone surrogates, for the caller to detect.
    """
    check_is_there(path)
    suffix = format_of(path.name)
    if suffix is None:
        kind = None
        with suppress(OSError), open_bytes(path) as file:
            kind = kind_of_no_text(file.read(16))
        told, remedy = ("", "") if kind is None else (f": it is {kind}", "Save it as CSV. ")
        raise DataError(
            f"cannot tell the format of {path} by its extension{told}",
            hint=f"{remedy}Known extensions: {', '.join(FORMATS)}; all but .parquet and .xlsx also with .gz after it.",
        )
    reader = FORMATS[suffix]
    if rows is not None and suffix not in (".json", ".xlsx"):
        raise ConfigurationError(f"`rows` leads into a JSON file or a workbook, {path} is none", hint="Leave it out.")
    reader = reader if rows is None else partial(reader, rows=rows)
    if quoting is not None:
        if suffix not in (".csv", ".tsv"):
            raise ConfigurationError(f"`quoting` is for tables (.csv, .tsv), and {path} is none", hint="Leave it out.")
        reader = partial(reader, quoting=quoting)
    if suffix in _ENCODED and encoding is not None:
        raise ConfigurationError(f"{path} is a file with an encoding of its own", hint="Leave `encoding` out.")
    if isinstance(path, Path):  # an address has just been asked for
        with telling(DataError, f"cannot read {path}", "Check the file's permissions."):
            path.open("rb").close()
    return guarded(reader, path, encoding)


def rows_and_failure(rows: Iterator[RawRow], *, alone: bool = False, before: int = 0) -> Iterator[RawRow]:
    """Yield the rows of a file; if its content cannot be read to its end, a last row says why.

    Of a file that is read `alone`, at least one row has to be readable; `before` counts those that were left out.
    """
    number = before
    try:
        for row in rows:
            number = row.number
            yield row
    except ReadError:
        raise
    except DataError as error:
        if alone and not number:
            raise
        told = f"{error.message.rstrip('.')}; mend the file, or leave it out. {error.hint or ''}".rstrip()
        yield RawRow(number + 1, {}, Cause(told, ErrorCode.UNREADABLE_FILE))


def format_of(name: str) -> str | None:
    """Return the format of a file by its name: one of `FORMATS`, or None."""
    name = name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    return None if suffix not in FORMATS or (suffix in _ENCODED and name.endswith(".gz")) else suffix


def guarded(reader: Reader, path: File, encoding: str | None) -> Iterator[RawRow]:
    """Read rows; file errors become a `DataError` that says how far the file could be read."""
    last = 0
    try:
        for row in reader(path, encoding):
            last = row.number
            yield row
    except LookupError as error:  # an unknown time zone, in any column
        raise DataError(
            f"cannot read {path} beyond row {last}: {type(error).__name__}: {error}",
            hint="If a column's type names a time zone, convert the column to UTC or to text.",
        ) from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        kind = ReadError if is_read_failure(error, path) else DataError
        raise kind(f"cannot read {path} beyond row {last}: {error}", hint="Is the file complete?") from error


def is_read_failure(error: BaseException, path: File) -> bool:
    """Whether an error is of a disk or a store, rather than of a file's content: Arrow and gzip tell that so, too."""
    is_content = isinstance(error, gzip.BadGzipFile) or (isinstance(path, Path) and not getattr(error, "errno", None))
    return isinstance(error, OSError) and not is_content


def _read_jsonl(path: File, encoding: str | None) -> Iterator[RawRow]:
    with open_text(path, newline="\n", encoding=encoding) as file:
        over_lines = is_over_lines(bounded_lines(file, path))
    if over_lines:
        decoder = _Decoder()
        values = _documents(path, decoder, encoding)
        if values is not None:
            for number, value in enumerate(values, start=1):
                yield decoder.row(number, value, value)
            return
    # Only "\n" ends a line, as in editors; the parser treats a carriage return before it as white space.
    with open_text(path, newline="\n", encoding=encoding) as file:
        yield from line_rows(bounded_lines(file, path))


def line_rows(lines: Iterable[str], first: int = 1) -> Iterator[RawRow]:
    """Read one object per line; `first` is the number of the first row."""
    decoder = _Decoder()
    for number, raw in enumerate((line.rstrip("\r\n") for line in lines if line.strip()), start=first):
        decoder.has_repeated = False
        try:
            value = decoder.decode(raw)
        except json.JSONDecodeError as error:
            yield RawRow(number, {"raw": raw}, _invalid(f"not valid JSON: {error.msg} at column {error.colno}"))
        except (ValueError, RecursionError) as error:
            yield RawRow(number, {"raw": raw}, _invalid(f"not readable as JSON: {error}"))
        else:
            yield decoder.row(number, value, raw)


def is_over_lines(lines: Iterable[str]) -> bool:
    """Whether a .jsonl file begins like JSON over several lines: a list, or objects as `jq` prints them."""
    first, second = islice(chain((line.strip() for line in lines if line.strip()), ("", "")), 2)
    if first in _PRETTY:
        return True
    return first.startswith(("[", "{")) and not _is_json(first) and not _is_json(second)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _documents(path: File, decoder: _Decoder, encoding: str | None) -> list[Any] | None:
    """Read a file as one list, or as one JSON value after another; None if it is neither from end to end."""
    with open_text(path, newline="", encoding=encoding) as file:
        text = file.read()
    values: list[Any] = []
    place = _SPACE.match(text).end()  # type: ignore[union-attr]
    try:
        while place < len(text):
            value, place = decoder.raw_decode(text, place)
            values.append(value)
            place = _SPACE.match(text, place).end()  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        return None
    return values[0] if len(values) == 1 and isinstance(values[0], list) else values


def _read_json(path: File, encoding: str | None, rows: str | None = None) -> Iterator[RawRow]:
    decoder = _Decoder()
    with open_text(path, newline="", encoding=encoding) as file:
        text = file.read()
    if not text.strip():
        return
    try:
        found = decoder.decode(text)
    except json.JSONDecodeError as error:
        hint = "If the file holds one object per line, name it .jsonl." if error.msg == "Extra data" else None
        raise DataError(
            f"{path}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}", hint=hint
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON: {error}") from None
    inside = _lists_in(found)
    told = (
        f"; lists of objects in it: {', '.join(f'{name} ({size})' for name, size in inside.items())}" if inside else ""
    )
    if rows is not None:
        found = field_value(found, rows) if isinstance(found, dict) else None
        if not isinstance(found, list):
            raise DataError(f"{path} holds no list at {rows!r}{nearest(rows, inside)}{told}")
    if not isinstance(found, list):
        raise DataError(
            f"{path} holds one {type(found).__name__}, not a list of objects{told}",
            hint=f"Name the list: `rows={shlex.quote(next(iter(inside)))}`."
            if inside
            else "Put the rows in a list: [{...}, {...}] (pandas: orient='records'), or one a line in a .jsonl file.",
        )
    for number, value in enumerate(found, start=1):
        yield decoder.row(number, value, dict(value) if isinstance(value, dict) else value)


def _lists_in(value: Any, levels: int = 3) -> dict[str, int]:
    """List the paths of lists of objects inside of an object, with their lengths."""
    found: dict[str, int] = {}
    for name, item in value.items() if isinstance(value, dict) and levels else ():
        if isinstance(item, list) and any(isinstance(one, dict) for one in item):
            found[name] = len(item)
        found |= {f"{name}.{inner}": size for inner, size in _lists_in(item, levels - 1).items()}
    return found


def _read_csv(
    path: File, encoding: str | None, delimiter: str | None = None, quoting: Quoting | None = None
) -> Iterator[RawRow]:
    look = _Look(quoting == "none")
    if quoting is None:
        with suppress(OSError, EOFError, zlib.error):  # reading it again says how far it can be read
            look = _look_at(path, encoding, delimiter, *state_of(path))
    with open_text(path, newline="", encoding=encoding, guess=True) as file:
        records = csv_records(file, path, delimiter, look)
        header = next(records, [])
        assert isinstance(header, list)
        refuse_repeated(header, path)
        for number, record in enumerate(records, start=1):
            if isinstance(record, list):
                yield RawRow(number, dict(zip(header, record, strict=True)))
            else:
                error, cells = record
                yield RawRow(number, {"raw": cells} if cells else {}, _invalid(error))


def parquet_rows(path: File, *, first: int = 0, stop: int | None = None) -> Iterator[RawRow]:
    """Read rows of a Parquet file; see `parquet_batches`."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(f"reading {path} needs pyarrow, the `parquet` extra", hint=INSTALL_PARQUET) from None
    start = first + 1
    try:
        with pq.ParquetFile(parquet_source(path)) as file:
            refuse_repeated(file.schema_arrow.names, path)
            for batch in parquet_batches(file, first=first, stop=stop):
                yield from _batch_rows(batch, start)
                start += batch.num_rows
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}", hint="Is the file complete?") from error


def parquet_batches(file: Any, *, first: int = 0, stop: int | None = None) -> Iterator[Any]:
    """Read rows of an open `pyarrow.parquet.ParquetFile`, from the one with the index `first` to that before `stop`.

    Row groups without any of them are not read.
    """
    stop = file.metadata.num_rows if stop is None else stop
    start, groups, place = 0, list[int](), 0
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if place + rows > first and place < stop:
            start = start if groups else place
            groups.append(group)
        place += rows
    # A file without row groups has no batches.
    batches = file.iter_batches(batch_size=PARQUET_BATCH_ROWS, row_groups=groups) if groups else ()
    for batch in batches:
        low, high = max(first - start, 0), min(stop - start, batch.num_rows)
        if low < high:
            yield batch.slice(low, high - low)
        start += batch.num_rows
        if start >= stop:
            return


def _batch_rows(batch: Any, start: int) -> Iterator[RawRow]:
    step = max(1, batch.num_rows * CONVERTED_BYTES // max(batch.nbytes, 1))
    for first in range(0, batch.num_rows, step):
        some = batch.slice(first, step)
        try:
            yield from converted_rows(some, start + first)
        except (ValueError, ArithmeticError):  # Arrow's own value errors are ValueErrors
            # One value that Python cannot represent fails the conversion of all rows.
            for index in range(some.num_rows):
                yield _without_broken(some.slice(index, 1), start + first + index)


def converted_rows(batch: Any, start: int) -> list[RawRow]:
    """Convert a batch by column: a call per value would cost more than the values."""
    names, columns = batch.schema.names, list(map(_values, batch.columns))
    records = zip(*columns, strict=True) if columns else ((),) * batch.num_rows
    return [RawRow(number, dict(zip(names, record, strict=True))) for number, record in enumerate(records, start=start)]


def _values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return list(map(_plain, values)) if any(isinstance(value, list | dict) for value in values) else values


def _without_broken(row: Any, number: int) -> RawRow:
    """Keep the values of a row that Python can represent, with the reason for the others."""
    record: dict[str, Any] = {}
    reasons = []
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            (record[name],) = _held_values(column)
        except UnicodeDecodeError as error:
            reasons.append(f"the column {name!r} holds text that is not UTF-8: {error}; convert the file to UTF-8")
        except (ValueError, ArithmeticError) as error:
            reasons.append(f"the column {name!r} holds a value that cannot be read: {error}; mend or drop it")
    return RawRow(number, record, _invalid("; ".join(reasons)) if reasons else None)


def _held_values(column: Any) -> list[Any]:
    """Convert a column; nanoseconds, for which Python has no type without pandas, become texts."""
    try:
        return _values(column)
    except ValueError:
        kind = _with_texts(column.type)
        if kind == column.type:
            raise
        return _values(column.cast(kind))


def _with_texts(kind: Any) -> Any:
    """Return an Arrow type with text instead of nanoseconds."""
    import pyarrow as pa

    if getattr(kind, "unit", None) == "ns":
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_texts(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    return pa.list_(_with_texts(kind.value_type)) if pa.types.is_list(kind) else kind


def _plain(value: Any) -> Any:
    """Turn Arrow's maps, the only source of tuples, from lists of pairs into dicts."""
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {key: _plain(item) for key, item in value}
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def refuse_repeated(names: Iterable[str], path: object) -> None:
    """Refuse a table whose columns cannot be told apart."""
    names = list(names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated == [""]:
        raise DataError(f"{path} has columns without a name, among others", hint="Give each a name, or remove it.")
    if repeated:
        raise DataError(f"{path}: columns that occur twice: {', '.join(repeated)}", hint="Rename one of each.")


def _read_excel(path: File, encoding: str | None, rows: str | None = None) -> Iterator[RawRow]:
    from geval_local.io.excel import sheet_lines  # needs openpyxl

    lines = sheet_lines(path, rows)
    header = ["" if name is None else str(name) for name in next(lines, ([], None))[0]]
    refuse_repeated(header, path)
    for number, (cells, unknown) in enumerate(lines, start=1):
        if len(cells) > len(header):
            why = f"{len(cells)} cells where the header has {len(header)} columns"
            yield RawRow(number, {"raw": ["" if cell is None else str(cell) for cell in cells]}, _invalid(why))
            continue
        why = "the column {!r} holds a formula that was never computed; open the workbook and save it"
        error = None if unknown is None else _invalid(why.format(header[unknown]))
        yield RawRow(number, dict(zip_longest(header, cells)), error)


#: Reads a file, given its path and its encoding, if known.
Reader = Callable[..., Iterator[RawRow]]
#: Extension -> reader.
FORMATS: dict[str, Reader] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": partial(_read_csv, delimiter="\t"),
    ".parquet": lambda path, encoding: parquet_rows(path),
    ".xlsx": _read_excel,
}
