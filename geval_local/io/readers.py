"""Rows of a file as they stand: JSONL, JSON, CSV and Parquet, streamed; a row that cannot be read keeps its place.

Nothing here knows about metrics or fields: a row is a mapping of column names to values, or the reason why it is none.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from geval_local.errors import DataError

__all__ = ["FORMATS", "RawRow", "read_rows"]

PARQUET_BATCH_ROWS = 1024
#: Read at a time: a thread that reads ahead gives the interpreter up at every read, and has to wait for it again.
READ_BYTES = 1 << 20
#: The csv module refuses cells above 128 KiB unless told; a source document may well be longer.
CSV_CELL_LIMIT = 2**31 - 1
INSTALL_PARQUET = "Install it with `pip install 'geval-local[parquet]'`."
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class RawRow(NamedTuple):
    """One row of a file.

    Attributes
    ----------
    number : int
        The line for JSONL, the data row for the other formats; both from 1.
    fields : dict
        The columns, or what could be kept of a row that cannot be read, under ``raw``.
    error : str or None
        Why the row cannot be read.
    """

    number: int
    fields: dict[str, Any]
    error: str | None = None


class _RepeatedKey(dict[str, Any]):
    """An object that holds a key twice: the json module would keep the last value and say nothing."""

    repeated: str = ""


def read_rows(path: Path) -> Iterator[RawRow]:
    """Open a file of rows; the format is told by the extension (`FORMATS`; all but Parquet may also end in ``.gz``).

    Bytes that are not UTF-8 come through as lone surrogates, for the caller to find.

    Raises
    ------
    DataError
        At once if there is no readable file of a known format, and while iterating if the file as a whole is broken.
    """
    name = path.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    reader = None if suffix == ".parquet" and name.endswith(".gz") else FORMATS.get(suffix)
    if reader is None:
        raise DataError(
            f"cannot tell the format of {path} by its extension",
            hint=f"Known extensions: {', '.join(FORMATS)}; all but .parquet also with .gz behind.",
        )
    if path.is_dir():
        raise DataError(f"{path} is a directory", hint="Give the path of one file.")
    try:
        with path.open("rb") as file:
            head = file.read(2)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}", hint="Check the path, and the directory it starts from.") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", hint="Check the file's permissions.") from error
    if head in _UTF16_MARKS:
        raise DataError(f"{path} is encoded as UTF-16", hint="Convert the file to UTF-8.")
    return _guarded(reader, path)


def _guarded(reader: Callable[[Path], Iterator[RawRow]], path: Path) -> Iterator[RawRow]:
    last = 0
    try:
        for row in reader(path):
            last = row.number
            yield row
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path} beyond row {last}: {error}", hint="Is the file complete?") from error


def _open_text(path: Path, newline: str) -> TextIO:
    options: dict[str, Any] = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": newline}
    if path.name.lower().endswith(".gz"):
        return cast(TextIO, gzip.open(path, "rt", **options))
    return cast(TextIO, path.open("r", buffering=READ_BYTES, **options))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) == len(pairs):
        return record
    names = [name for name, _ in pairs]
    marked = _RepeatedKey(record)
    marked.repeated = next(name for name in names if names.count(name) > 1)
    return marked


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _parse(text: str) -> Any:
    # json.loads would build a decoder for every row; what it has to say about a byte order mark is its own.
    return json.loads(text) if text.startswith("\ufeff") else _DECODER.decode(text)


def _json_row(number: int, value: Any, raw: Any) -> RawRow:
    if isinstance(value, _RepeatedKey):
        return RawRow(number, {"raw": raw}, f"the column {value.repeated!r} is there twice")
    if not isinstance(value, dict):
        return RawRow(number, {"raw": raw}, f"not a JSON object but {type(value).__name__}")
    return RawRow(number, value)


def _read_jsonl(path: Path) -> Iterator[RawRow]:
    # Only "\n" ends a line, as editors count; a carriage return before it is white space to the parser.
    with _open_text(path, newline="\n") as file:
        for number, line in enumerate(file, start=1):
            raw = line.rstrip("\r\n")
            if not raw.strip():
                continue
            try:
                value = _parse(raw)
            except json.JSONDecodeError as error:
                yield RawRow(number, {"raw": raw}, f"not valid JSON: {error.msg} at column {error.colno}")
            except (ValueError, RecursionError) as error:
                yield RawRow(number, {"raw": raw}, f"not readable as JSON: {error}")
            else:
                yield _json_row(number, value, raw)


def _read_json(path: Path) -> Iterator[RawRow]:
    with _open_text(path, newline="") as file:
        text = file.read()
    if not text.strip():
        return
    try:
        rows = _parse(text)
    except json.JSONDecodeError as error:
        hint = "If the file holds one object per line, name it .jsonl." if error.msg == "Extra data" else None
        raise DataError(
            f"{path}, line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}", hint=hint
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(rows, list):
        raise DataError(
            f"{path} holds one {type(rows).__name__}, not a list of objects",
            hint="Put the rows in a list: [{...}, {...}], or write one object per line and name the file .jsonl.",
        )
    for number, value in enumerate(rows, start=1):
        yield _json_row(number, value, dict(value) if isinstance(value, dict) else value)


def _read_csv(path: Path) -> Iterator[RawRow]:
    csv.field_size_limit(CSV_CELL_LIMIT)
    with _open_text(path, newline="") as file:
        # Strict, because a quote that never closes would otherwise swallow the rest of the file as one cell's text.
        reader = csv.reader(file, strict=True)
        try:
            header = next(filter(None, reader), [])
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: the header is not valid CSV: {error}") from None
        _refuse_repeated(header, path)
        number = 0
        while True:
            first_line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                number += 1
                lines = f"{first_line}" if first_line == reader.line_num else f"{first_line} to {reader.line_num}"
                yield RawRow(
                    number, {}, f"not valid CSV in line {lines}: {error}; close every quote, and double those inside"
                )
                continue
            if not cells:
                continue
            number += 1
            if len(cells) == len(header):
                yield RawRow(number, dict(zip(header, cells, strict=True)))
            else:
                reason = f"{len(cells)} cells where the header has {len(header)} columns (line {first_line})"
                yield RawRow(number, {"raw": cells}, f"{reason}; quote cells that hold a comma")


def _read_parquet(path: Path) -> Iterator[RawRow]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise DataError(f"reading {path} needs pyarrow, the `parquet` extra", hint=INSTALL_PARQUET) from None
    try:
        with pq.ParquetFile(path) as file:
            _refuse_repeated(file.schema_arrow.names, path)
            start = 1
            for batch in file.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                yield from _batch_rows(batch, start)
                start += batch.num_rows
    except pa.ArrowException as error:
        raise DataError(f"{path} is not a readable Parquet file: {error}", hint="Is the file complete?") from error


def _batch_rows(batch: Any, start: int) -> Iterator[RawRow]:
    for index in range(batch.num_rows):
        # Row by row: one text that is not UTF-8 would fail the conversion of the whole batch.
        try:
            (record,) = batch.slice(index, 1).to_pylist()
        except UnicodeDecodeError as error:
            yield RawRow(start + index, {}, f"holds text that is not UTF-8: {error}; convert the file to UTF-8")
        else:
            yield RawRow(start + index, {name: _plain(value) for name, value in record.items()})


def _plain(value: Any) -> Any:
    """Turn Arrow's maps, the only source of tuples, from lists of pairs into dicts."""
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {key: _plain(item) for key, item in value}
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _refuse_repeated(names: Iterable[str], path: Path) -> None:
    names = list(names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise DataError(f"{path}: columns that are there twice: {', '.join(repeated)}", hint="Rename one of each.")


#: Extension -> reader.
FORMATS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
