"""Blocks: an input of many files, cut into blocks of rows that one worker reads, scores and writes.

A worker surveys each file once: it hashes the content, counts the rows, finds repeated ids, and cuts the file. Blocks
are then read independently: JSONL by byte ranges, Parquet by row groups. CSV, JSON and compressed files can be read
only from their beginning, which bounds the number of their blocks.
"""

from __future__ import annotations

import hashlib
import io
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import orjson

from geval_local.errors import DataError
from geval_local.files import bounded_lines, encoding_of, kind_of_no_text
from geval_local.io.places import Entry, Place, is_address, is_pattern
from geval_local.io.rows import FORMATS, RawRow, format_of, is_over_lines, line_rows, parquet_rows, read_rows
from geval_local.io.samples import id_hash

#: Most blocks of a file that is read from its beginning, or of one row group: it is read as many times.
MOST_PIECES = 16
#: Most repeated ids of a file that are reported row by row; more reject the file.
MOST_REPEATED = 10_000
#: Files beside the parts in a directory that this tool wrote.
_NO_INPUT = (".meta.json", "manifest.json")
_HEAD_BYTES = 4096
_BLOCK = 1 << 20


@dataclass(frozen=True)
class SourceFile:
    """One file of an input."""

    #: Its path or address.
    address: str
    #: Size, and time of the last change in nanoseconds: a cheap check for changes.
    bytes: int
    changed: int
    #: Hash of its content; empty before the survey.
    sha256: str = ""

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place(self.address)


@dataclass(frozen=True)
class Cut:
    """Largest size of a block: rows or bytes, whichever is reached first."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class Block:
    """Rows of one file that one worker scores."""

    #: Number of rows of the file before the block, and in it.
    first: int
    rows: int
    #: Number of its first row in messages: the line for JSONL, else the row, from 1.
    line: int
    #: Its byte range if it is read by bytes, else 0.
    start: int = 0
    stop: int = 0
    #: Rows whose id occurs earlier in the file: the row's number and the number of the first row with the id.
    repeated: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Survey:
    """Result of surveying a file."""

    #: The file, with its hash.
    file: SourceFile
    #: Its blocks, in order.
    blocks: list[Block] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Survey:
        """Restore it from plain values."""
        blocks = [Block(**{**one, "repeated": tuple(map(tuple, one["repeated"]))}) for one in record["blocks"]]
        return cls(SourceFile(**record["file"]), blocks)


def find_files(given: Sequence[str]) -> list[SourceFile]:
    """List the files of an input, which may be given as files, directories and patterns; sorted within each.

    From a directory, files with a known extension are taken at any depth, except those whose name, or the name of a
    directory above them, begins with ``.`` or ``_``.
    """
    found: list[Entry] = []
    for one in given:
        place = Place(one)
        try:
            found += _files_of(place)
        except OSError as error:
            raise DataError(f"cannot list {one}: {error}", hint="Check the address and your rights to it.") from error
    files = [SourceFile(_absolute(entry.place), entry.bytes, entry.changed) for entry in found]
    seen: set[str] = set()
    for file in files:
        if file.address in seen:
            raise DataError(f"{file.address} is named twice", hint="Name every file once; patterns may overlap.")
        seen.add(file.address)
    return files


def _absolute(place: Place) -> str:
    return place.address if is_address(place.address) else place.path


def _files_of(place: Place) -> list[Entry]:
    entry = None if is_pattern(place.address) and place.local is None else place.entry()
    if entry is not None and entry.is_file:
        if format_of(place.name) is None:
            raise DataError(
                f"cannot tell the format of {place} by its extension", hint=f"Known extensions: {', '.join(FORMATS)}."
            )
        return [entry]
    if entry is not None:
        base = place.path.rstrip("/")
        inside = [
            one for one in place.entries(recursive=True) if one.is_file and _is_input(one.place.path[len(base) :])
        ]
        if not inside:
            raise DataError(f"{place} holds no file of rows", hint=f"Known extensions: {', '.join(FORMATS)}.")
        return inside
    if is_pattern(place.address):
        matching = [one for one in place.matches() if _is_input(f"/{one.place.name}")]
        if not matching:
            raise DataError(f"no file of rows matches {place}", hint="Quote the pattern, and check where it begins.")
        return matching
    raise DataError(f"there is no file {place}", hint="Check the path, and the directory it starts from.")


def _is_input(path: str) -> bool:
    parts = path.strip("/").split("/")
    hidden = any(part.startswith((".", "_")) for part in parts)
    return not hidden and format_of(parts[-1]) is not None and not parts[-1].endswith(_NO_INPUT)


# --- the survey -------------------------------------------------------------------------------------------------------


def survey(file: SourceFile, cut: Cut) -> Survey:
    """Survey a file: hash it, count its rows, find repeated ids, and cut it into blocks."""
    with _readable(file.address):
        _check_unchanged(file)
        kind = _kind(file)
        ids = _Ids(file.address)
        look = {"lines": _survey_lines, "parquet": _survey_parquet, "stream": _survey_stream}[kind]
        sha256, blocks = look(file, cut, ids)
    if not blocks:
        raise DataError(f"{file.address} holds no rows", hint="Was the file written completely?")
    known = SourceFile(file.address, file.bytes, file.changed, sha256)
    return Survey(known, list(_with_repeated(blocks, ids.repeated())))


class _Ids:
    """Ids of a file, 16 bytes per row."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._hashes = array("Q")
        self._numbers = array("q")

    def add(self, number: int, value: Any) -> None:
        hashed = id_hash(value)
        if hashed is not None:
            self._hashes.append(hashed)
            self._numbers.append(number)

    def repeated(self) -> list[tuple[int, int]]:
        """Return rows with a repeated id, each with the first row that has it; ascending."""
        hashes, numbers = np.frombuffer(self._hashes, np.uint64), np.frombuffer(self._numbers, np.int64)
        _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        again = np.flatnonzero(first[inverse.reshape(-1)] != np.arange(len(hashes)))
        pairs = [(int(numbers[place]), int(numbers[first[inverse.reshape(-1)[place]]])) for place in again]
        if len(pairs) > MOST_REPEATED:
            raise DataError(
                f"{self._address}: {len(pairs)} rows repeat the id of an earlier row, the first of them row "
                f"{pairs[0][0]}",
                hint="Give every row its own id, or name that column otherwise, such as doc_id.",
            )
        return pairs


def _with_repeated(blocks: Iterable[Block], repeated: list[tuple[int, int]]) -> Iterator[Block]:
    blocks = list(blocks)
    if not repeated:
        yield from blocks
        return
    ends = [block.line for block in blocks[1:]] + [1 << 62]
    place = 0
    for block, end in zip(blocks, ends, strict=True):
        begin = place
        while place < len(repeated) and repeated[place][0] < end:
            place += 1
        yield Block(block.first, block.rows, block.line, block.start, block.stop, tuple(repeated[begin:place]))


def _kind(file: SourceFile) -> str:
    """Determine how blocks are read: by lines, by row groups, or from the beginning of the file."""
    place = file.place
    suffix = format_of(place.name)
    if suffix == ".parquet":
        return "parquet"
    if suffix not in (".jsonl", ".ndjson") or place.name.lower().endswith(".gz"):
        return "stream"
    head = place.read(0, min(_HEAD_BYTES, file.bytes))
    if encoding_of(head) != "utf-8-sig" or kind_of_no_text(head) is not None:
        return "stream"
    with place.lines_file() as source:
        text = io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape", newline="\n")
        return "stream" if is_over_lines(bounded_lines(text, file.address)) else "lines"


def _survey_lines(file: SourceFile, cut: Cut, ids: _Ids) -> tuple[str, list[Block]]:
    digest, blocks = hashlib.sha256(), list[Block]()
    first = rows = start = 0
    line = offset = number = 0
    with file.place.lines_file() as source:
        for number, raw in enumerate(bounded_lines(source, file.address), start=1):
            digest.update(raw)
            if not _is_blank(raw):
                if rows == 0:
                    start, line = offset, number
                rows += 1
                ids.add(number, _id_of_line(raw, number))
            offset += len(raw)
            if rows and (rows >= cut.rows or offset - start >= cut.bytes):
                blocks.append(Block(first, rows, line, start, offset))
                first, rows = first + rows, 0
    if rows:
        blocks.append(Block(first, rows, line, start, offset))
    return digest.hexdigest(), blocks


def _is_blank(raw: bytes) -> bool:
    # Text has more white-space characters than bytes.
    return not raw.strip() or (len(raw) < 64 and not raw.decode("utf-8-sig", "surrogateescape").strip())


def _id_of_line(raw: bytes, number: int) -> Any:
    try:
        value = orjson.loads(raw)
    except ValueError:  # Python accepts more: NaN, lone surrogates
        row = next(line_rows([raw.decode("utf-8-sig", "surrogateescape")], number), None)
        value = None if row is None else row.fields
    return value.get("id") if isinstance(value, dict) else None


def _survey_parquet(file: SourceFile, cut: Cut, ids: _Ids) -> tuple[str, list[Block]]:
    import pyarrow.parquet as pq

    with file.place.open() as source, pq.ParquetFile(source) as table:
        groups = [table.metadata.row_group(place) for place in range(table.num_row_groups)]
        sizes = [(group.num_rows, group.total_byte_size) for group in groups if group.num_rows]
        if "id" in table.schema_arrow.names:
            for row in parquet_rows(table, file.address, columns=["id"]):
                ids.add(row.number, row.fields.get("id"))
    blocks, first, gathered = list[Block](), 0, 0
    total = sum(rows for rows, _ in sizes)
    most = _rows_in(cut, total, sum(size for _, size in sizes))
    for rows, _ in sizes:
        if gathered and gathered + rows > most:
            blocks.append(Block(first, gathered, first + 1))
            first, gathered = first + gathered, 0
        if rows > most:
            for piece in _pieces(rows, most):
                blocks.append(Block(first, piece, first + 1))
                first += piece
        else:
            gathered += rows
    if gathered:
        blocks.append(Block(first, gathered, first + 1))
    return _sha256(file), blocks


def _survey_stream(file: SourceFile, cut: Cut, ids: _Ids) -> tuple[str, list[Block]]:
    numbers = array("q")
    with file.place.as_local() as path:
        for row in read_rows(path):
            ids.add(row.number, row.fields.get("id"))
            numbers.append(row.number)
    blocks, first = list[Block](), 0
    for piece in _pieces(len(numbers), _rows_in(cut, len(numbers), file.bytes)):
        blocks.append(Block(first, piece, numbers[first]))
        first += piece
    return _sha256(file), blocks


def _rows_in(cut: Cut, rows: int, size: int) -> int:
    """Return the number of rows per block, assuming rows of equal size."""
    return max(1, min(cut.rows, cut.bytes * rows // max(size, 1)))


def _pieces(rows: int, most: int) -> list[int]:
    """Divide rows into pieces of equal size, at most `MOST_PIECES`."""
    if not rows:
        return []
    count = min(MOST_PIECES, -(-rows // most))
    return [rows * (place + 1) // count - rows * place // count for place in range(count)]


def _sha256(file: SourceFile) -> str:
    digest = hashlib.sha256()
    with file.place.lines_file() as source:
        while part := source.read(_BLOCK):
            digest.update(part)
    return digest.hexdigest()


# --- the rows of a block ----------------------------------------------------------------------------------------------


def block_rows(file: SourceFile, block: Block, columns: Sequence[str] | None = None) -> Iterator[RawRow]:
    """Read the rows of a block."""
    with _readable(file.address):
        _check_unchanged(file)
        if block.stop:
            text = io.TextIOWrapper(
                io.BytesIO(file.place.read(block.start, block.stop)),
                encoding="utf-8-sig" if block.first == 0 else "utf-8",
                errors="surrogateescape",
                newline="\n",
            )
            yield from islice(line_rows(text, block.line), block.rows)
        elif format_of(file.place.name) == ".parquet":
            import pyarrow.parquet as pq

            with file.place.open() as source, pq.ParquetFile(source) as table:
                there = None if columns is None else [name for name in table.schema_arrow.names if name in columns]
                yield from parquet_rows(
                    table, file.address, first=block.first, count=block.rows, columns=there if there else None
                )
        else:
            with file.place.as_local() as path:
                yield from islice(read_rows(path), block.first, block.first + block.rows)


def first_rows(file: SourceFile, count: int) -> list[RawRow]:
    """Read the first rows of a file before it is surveyed."""
    with _readable(file.address):
        kind = _kind(file)
        if kind == "parquet":
            import pyarrow.parquet as pq

            with file.place.open() as source, pq.ParquetFile(source) as table:
                return list(parquet_rows(table, file.address, count=min(count, table.metadata.num_rows)))
        if kind == "lines":
            with file.place.lines_file() as source:
                text = io.TextIOWrapper(source, encoding="utf-8-sig", errors="surrogateescape", newline="\n")
                return list(islice(line_rows(bounded_lines(text, file.address)), count))
        with file.place.as_local() as path:
            return list(islice(read_rows(path), count))


@contextmanager
def _readable(address: str) -> Iterator[None]:
    """Turn errors of file systems and Arrow into a `DataError` that names the file."""
    import pyarrow as pa

    try:
        yield
    except (OSError, EOFError, pa.ArrowException) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"cannot read {address}: {text}", hint="Is the file complete, and may you read it?") from error


def is_unchanged(file: SourceFile) -> bool:
    """Whether a file exists with the size and time on record."""
    entry = file.place.entry()
    return entry is not None and (entry.bytes, entry.changed) == (file.bytes, file.changed)


def _check_unchanged(file: SourceFile) -> None:
    if file.place.entry() is None:
        raise DataError(f"there is no file {file.address}", hint="Put it back; what is scored already is kept.")
    if not is_unchanged(file):
        raise DataError(
            f"{file.address} was changed while it was scored",
            hint="Put the former content back, or score the new one into another directory.",
        )
