"""Blocks: rows of an input's files that one worker reads, scores and writes.

Blocks are read independently: JSONL by byte ranges, Parquet by the row groups that they touch. CSV, JSON and compressed
files can be read only from their beginning, which bounds the number of their blocks.
"""

from __future__ import annotations

import hashlib
import io
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from geval_local.conversation import CHATS
from geval_local.errors import DataError, first_line
from geval_local.fields import resolve
from geval_local.files import bounded_lines
from geval_local.io.input_files import find_entries
from geval_local.io.parts import part_name
from geval_local.io.places import Place, is_address
from geval_local.io.rows import (
    RawRow,
    format_of,
    line_rows,
    parquet_batches,
    parquet_rows,
    read_rows,
)
from geval_local.io.samples import Sample, samples_of
from geval_local.io.shares import has_a_line_a_row
from geval_local.metric import Metric
from geval_local.runs.settings import Settings

if TYPE_CHECKING:
    from geval_local.io.parquet import SourceColumns


@dataclass(frozen=True)
class Block:
    """Rows of one file of the input that one worker scores; before its survey, a file is one block."""

    #: Path or address of the file.
    address: str
    #: Size of the file, and time of its last change in nanoseconds: a cheap check for changes.
    bytes: int
    changed: int
    #: Hash of the file's content: only in its last block, or if it has one block. A file is complete if it is there.
    sha256: str = ""
    #: Hash of all that the block's rows depend on; empty before the survey, like the fields below.
    digest: str = ""
    #: Number of rows of the file before the block, and in it.
    first: int = 0
    rows: int = 0
    #: Number of its first row in messages: the line in JSONL, else the row, from 1.
    line: int = 1
    #: Its byte range if it is read by bytes, else 0.
    start: int = 0
    stop: int = 0
    #: Rows whose id occurs earlier in the file: the row's number and the number of the first row with the id.
    repeated: Sequence[tuple[int, int]] = ()
    #: Name of its part; before the survey, that of the file's first block.
    part: str = ""
    #: Arrow schema of the file's columns as far as it was surveyed; see `schema_text`. Kept in last blocks only.
    schema: str = ""
    #: Why the file cannot be used. The block then covers the whole file and has no rows.
    error: str = ""
    #: Further small files in this block; if the block fails, each of them becomes a block of its own.
    more: Sequence[Block] = ()

    @property
    def place(self) -> Place:
        """Where the file is."""
        return Place(self.address)

    @property
    def where(self) -> str:
        """The rows' location, for messages."""
        if self.more:
            return f"{self.address} and {len(self.more)} files after it"
        return f"{self.address}, rows {self.line} to {self.line + self.rows - 1}"

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of the block; its part records it."""
        if self.more:
            told = "\n".join(f"{one.digest} {one.rows}" for one in self.members)
            return {"file": hashlib.sha256(told.encode()).hexdigest(), "first": 0, "rows": self.all_rows}
        return {"file": self.digest, "first": self.first, "rows": self.rows}

    @property
    def members(self) -> list[Block]:
        """The block itself, and the blocks of the further files in it."""
        return [replace(self, more=()), *self.more] if self.more else [self]

    @property
    def all_rows(self) -> int:
        """Number of rows, with those of all its files."""
        return self.rows + sum(one.rows for one in self.more)


def find_files(given: Sequence[str]) -> list[Block]:
    """List the files of an input by paths and addresses, as `geval_local.io.input_files.find_entries` finds them."""
    files: dict[str, Block] = {}
    for number, entry in enumerate(entry for one in given for entry in find_entries(Place(one))):
        address = entry.place.address if is_address(entry.place.address) else entry.place.path
        if address in files:
            raise DataError(f"{address} is named twice", hint="Name every file once; patterns may overlap.")
        files[address] = Block(address, entry.bytes, entry.changed, part=part_name(number, 0))
    return list(files.values())


# --- the rows of a block ----------------------------------------------------------------------------------------------


def block_rows(block: Block, choose: Callable[[list[str]], list[str] | None] | None = None) -> Iterator[RawRow]:
    """Read the rows of a block; if the file was not surveyed, its first `rows` rows.

    `choose` selects columns of a Parquet file; the others are not read.
    """
    with readable(block):
        place = block.place
        if block.stop or has_a_line_a_row(place, block.bytes):
            source = io.BytesIO(place.read(block.start, block.stop)) if block.stop else place.lines_file()
            encoding = "utf-8-sig" if block.first == 0 else "utf-8"
            with io.TextIOWrapper(source, encoding=encoding, errors="surrogateescape", newline="\n") as text:
                yield from islice(line_rows(bounded_lines(text, block.address), block.line), block.rows)
        elif format_of(place.name) == ".parquet":
            import pyarrow.parquet as pq

            with place.open() as opened, pq.ParquetFile(opened) as table:
                columns = None if choose is None else choose(table.schema_arrow.names)
                yield from parquet_rows(table, block.address, first=block.first, count=block.rows, columns=columns)
        else:
            with place.as_local() as path:
                yield from islice(read_rows(path), block.first, block.first + block.rows)


@contextmanager
def block_columns(block: Block, settings: Settings) -> Iterator[SourceColumns | None]:
    """Open the columns of a block's rows as Arrow data; None if its file is not Parquet."""
    if settings.gather_by is not None or format_of(block.place.name) != ".parquet":
        yield None
        return
    import pyarrow.parquet as pq

    from geval_local.io.parquet import SourceColumns

    with readable(block), block.place.open() as source, pq.ParquetFile(source) as table:
        schema = table.schema_arrow
    with closing(_batches(block, settings)) as batches:
        yield SourceColumns(schema, batches, block.first + 1, [one.rows for one in block.members])


def _batches(block: Block, settings: Settings) -> Generator[Any, None, None]:
    import pyarrow.parquet as pq

    for one in block.members:
        with readable(one), one.place.open() as source, pq.ParquetFile(source) as table:
            columns = _columns(settings, table.schema_arrow.names)
            yield from parquet_batches(table, first=one.first, count=one.rows, columns=columns)


def schema_text(schema: Any) -> str:
    """Write an Arrow schema as text."""
    return b64encode(schema.serialize()).decode()


def schema_hash(schema: Any) -> str:
    """Hash an Arrow schema; empty for None."""
    return "" if schema is None else hashlib.sha256(schema.serialize()).hexdigest()[:16]


def widened(schema: Any, text: str) -> Any:
    """Return the joint schema of files so far, widened by that of another file, as `schema_text` wrote it."""
    import pyarrow as pa

    from geval_local.io.parquet import common_schema

    other = pa.ipc.read_schema(pa.py_buffer(b64decode(text)))
    if schema is None or schema.equals(other, check_metadata=True):
        return other
    return common_schema([schema, other])


def kept_schema(schema: Any, columns: list[str] | None) -> Any:
    """Return the schema of the columns that parts keep, of all or the named ones of the input."""
    if schema is None or columns is None:
        return schema
    for place in reversed(range(len(schema))):
        if schema.field(place).name not in columns:
            schema = schema.remove(place)
    return schema


def first_schema(files: Iterable[Block], rows: int) -> Any:
    """Return the schema of the first readable file: of a Parquet file all, of others that of the first rows.

    The parts have it until more is known: the joint schema has its columns first, and its metadata.
    """
    import pyarrow.parquet as pq

    from geval_local.io.parquet import ColumnTypes

    for file in files:
        types = ColumnTypes()
        try:
            if format_of(file.place.name) == ".parquet":
                with readable(file), file.place.open() as source:
                    return pq.read_schema(source)
            for row in block_rows(replace(file, rows=rows)):
                types.add({} if row.error is not None else row.fields, 0)
            return types.schema()
        except DataError:  # the survey says why
            continue
    return None


def block_samples(block: Block, settings: Settings) -> Iterator[Sample]:
    """Read the rows of a block as samples."""
    for one in block.members:
        rows = block_rows(one, partial(_columns, settings))
        yield from samples_of(rows, one.place.name, settings.fields, dict(one.repeated))


def _columns(settings: Settings, there: list[str]) -> list[str] | None:
    """Choose the columns to read from a Parquet file: columns that are kept, and columns that the run needs."""
    if settings.columns is None:
        return None
    given = settings.fields.values()
    paths = [*given, *filter(None, (settings.group_by, settings.gather_by))]
    needed = {name for metric in settings.metrics for name in Metric.model_validate(metric).fields}
    found = resolve(tuple(needed.difference(settings.fields)), tuple(name for name in there if name not in given))
    wanted = {*settings.columns, "id", *CHATS, *found.values(), *paths, *(path.partition(".")[0] for path in paths)}
    return [name for name in there if name in wanted] or None


@contextmanager
def readable(file: Block) -> Iterator[None]:
    """Refuse a file that has changed; turn errors of file systems and Arrow into a `DataError` that names it."""
    import pyarrow as pa

    try:
        entry = file.place.entry()
        if entry is None:
            raise DataError(f"there is no file {file.address}", hint="Put it back; what is scored already is kept.")
        if (entry.bytes, entry.changed) != (file.bytes, file.changed):
            raise DataError(
                f"{file.address} was changed while it was scored",
                hint="Put the former content back, or score the new one into another directory.",
            )
        yield
    except (OSError, EOFError, pa.ArrowException) as error:
        raise DataError(
            f"cannot read {file.address}: {first_line(error)}", hint="Is the file complete, and may you read it?"
        ) from error
