"""Blocks: an input of many files, cut into blocks of rows that one worker reads, scores and writes.

A worker surveys each file once: it hashes the content, counts the rows, finds repeated ids, and cuts the file. Blocks
are then read independently: JSONL by byte ranges, Parquet by the row groups that they touch. CSV, JSON and compressed
files can be read only from their beginning, which bounds the number of their blocks.
"""

from __future__ import annotations

import hashlib
import io
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from geval_local.conversation import CHATS
from geval_local.errors import DataError, GevalError, first_line
from geval_local.fields import resolve
from geval_local.files import bounded_lines
from geval_local.io.input_files import find_entries
from geval_local.io.parts import file_number, part_name
from geval_local.io.places import Place, is_address
from geval_local.io.rows import (
    RawRow,
    format_of,
    line_rows,
    parquet_batches,
    parquet_rows,
    read_rows,
)
from geval_local.io.samples import Sample, id_hash, name_documents, samples_of
from geval_local.io.shares import has_a_line_a_row, is_blank
from geval_local.metric import Metric
from geval_local.runs.settings import Settings

if TYPE_CHECKING:
    from geval_local.io.parquet import SourceColumns

#: Most blocks of a file that is read from its beginning, or per row group: the file is read about as often.
MOST_PIECES = 16
#: Most repeated ids of a file that are reported row by row; more reject the file.
MOST_REPEATED = 10_000
_READ_BYTES = 1 << 20

#: Estimated prompt tokens of a block: a few minutes of a GPU, the most that a dying worker loses.
BLOCK_TOKENS = 1 << 21
#: Least tokens of a block, if there are enough rows: several packs, so that they share texts and the GPU does not wait.
LEAST_TOKENS = 1 << 16
#: Least number of blocks per worker, if there are enough rows, so that a slow worker does not delay the end.
BLOCKS_EACH = 4
#: Number of blocks from which blocks grow in size instead: the driver keeps 6 KB for each.
MANY_BLOCKS = 20_000
#: Estimated bytes per token.
BYTES_PER_TOKEN = 4
#: Largest number of rows in a block.
MOST_ROWS = 1 << 16
#: Number of files from which small ones share blocks.
MANY_FILES = 256
#: Most changed files that a message names.
_NAMED = 5


@dataclass(frozen=True)
class Block:
    """Rows of one file of the input that one worker scores; before its survey, a file is one block."""

    #: Path or address of the file.
    address: str
    #: Size of the file, and time of its last change in nanoseconds: a cheap check for changes.
    bytes: int
    changed: int
    #: Hash of its content; empty before the survey, like the fields below.
    sha256: str = ""
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
    #: Name of its part.
    part: str = ""
    #: In the first block of a file: the Arrow schema of its columns, as text; see `schema_of`.
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
            told = "\n".join(f"{one.sha256} {one.rows}" for one in self.members)
            return {"file": hashlib.sha256(told.encode()).hexdigest(), "first": 0, "rows": self.all_rows}
        return {"file": self.sha256, "first": self.first, "rows": self.rows}

    @property
    def members(self) -> list[Block]:
        """The block itself, and the blocks of the further files in it."""
        return [replace(self, more=()), *self.more] if self.more else [self]

    @property
    def all_rows(self) -> int:
        """Number of rows, with those of all its files."""
        return self.rows + sum(one.rows for one in self.more)


class Cut(NamedTuple):
    """Largest size of a block: rows or bytes, whichever is reached first."""

    rows: int
    bytes: int


def find_files(given: Sequence[str]) -> list[Block]:
    """List the files of an input by paths and addresses, as `geval_local.io.input_files.find_entries` finds them."""
    files: dict[str, Block] = {}
    for entry in (entry for one in given for entry in find_entries(Place(one))):
        address = entry.place.address if is_address(entry.place.address) else entry.place.path
        if address in files:
            raise DataError(f"{address} is named twice", hint="Name every file once; patterns may overlap.")
        files[address] = Block(address, entry.bytes, entry.changed)
    return list(files.values())


# --- the survey -------------------------------------------------------------------------------------------------------


def survey(file: Block, cut: Cut) -> list[Block]:
    """Survey a file: hash it, count its rows, find repeated ids, and cut it into blocks.

    A file that cannot be used becomes one block with the reason; other files are scored.
    """
    try:
        return _surveyed(file, cut)
    except DataError as error:
        reason = error.message
    except GevalError:
        raise
    except Exception as error:  # from outside the package
        reason = f"{type(error).__name__}: {first_line(error)}"
    return [replace(file, repeated=[], error=reason if file.address in reason else f"{file.address}: {reason}")]


def _surveyed(file: Block, cut: Cut) -> list[Block]:
    with _readable(file):
        found = _Found(file.address)
        blocks = (_survey_lines if has_a_line_a_row(file.place, file.bytes) else _survey_rows)(file, cut, found)
    if not blocks:
        raise DataError(f"{file.address} holds no rows", hint="Was the file written completely?")
    repeated = found.ids.repeated()
    blocks[0] = replace(blocks[0], schema=b64encode(found.schema().serialize()).decode())
    starts = [0, *(bisect_left(repeated, (block.line,)) for block in blocks[1:]), len(repeated)]
    return [
        replace(block, repeated=repeated[start:stop])
        for block, (start, stop) in zip(blocks, pairwise(starts), strict=True)
    ]


class _Found:
    """Collects ids and column types of a file's rows during the survey."""

    def __init__(self, address: str) -> None:
        from geval_local.io.parquet import ColumnTypes

        self.ids = _Ids(address)
        self._types = ColumnTypes()
        self.schema = self._types.schema

    def add(self, number: int, row: Any, size: int) -> None:
        """Count a readable row of so many bytes."""
        if isinstance(row, dict):
            self.ids.add(number, row.get("id"))
            self._types.add(row, size)


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
        earliest = first[inverse.reshape(-1)]
        again = np.flatnonzero(earliest != np.arange(len(hashes)))
        ids, counts = np.unique(hashes, return_counts=True)
        if again.size and name_documents(dict(zip(ids.tolist(), counts.tolist(), strict=True))):
            return []
        pairs = list(zip(numbers[again].tolist(), numbers[earliest[again]].tolist(), strict=True))
        if len(pairs) > MOST_REPEATED:
            raise DataError(
                f"{self._address}: {len(pairs)} rows repeat the id of an earlier row, the first of them row "
                f"{pairs[0][0]}",
                hint="Give every row its own id, or name that column otherwise, such as doc_id.",
            )
        return pairs


def _survey_lines(file: Block, cut: Cut, found: _Found) -> list[Block]:
    digest, blocks = hashlib.sha256(), list[Block]()
    first = rows = start = 0
    line = offset = number = 0
    with file.place.lines_file() as source:
        for number, raw in enumerate(bounded_lines(source, file.address), start=1):
            digest.update(raw)
            if not is_blank(raw):
                if rows == 0:
                    start, line = offset, number
                rows += 1
                found.add(number, _value_of_line(raw, number), len(raw))
            offset += len(raw)
            if rows and (rows >= cut.rows or offset - start >= cut.bytes):
                blocks.append(replace(file, first=first, rows=rows, line=line, start=start, stop=offset))
                first, rows = first + rows, 0
    if rows:
        blocks.append(replace(file, first=first, rows=rows, line=line, start=start, stop=offset))
    return [replace(block, sha256=digest.hexdigest()) for block in blocks]


def _value_of_line(raw: bytes, number: int) -> Any:
    try:
        return orjson.loads(raw)
    except ValueError:  # Python accepts more: NaN, lone surrogates
        row = next(line_rows([raw.decode("utf-8-sig", "surrogateescape")], number), None)
        return None if row is None or row.error is not None else row.fields


def _survey_rows(file: Block, cut: Cut, found: _Found) -> list[Block]:
    """Survey a file that is read by row groups or from its beginning; its blocks have equal numbers of rows."""
    numbers: Sequence[int]
    if format_of(file.place.name) == ".parquet":
        import pyarrow.parquet as pq

        with file.place.open() as source, pq.ParquetFile(source) as table:
            groups = [table.metadata.row_group(place) for place in range(table.num_row_groups)]
            size, pieces = sum(group.total_byte_size for group in groups), MOST_PIECES * len(groups)
            schema = table.schema_arrow
            found.schema = lambda: schema
            if "id" in schema.names:
                for row in parquet_rows(table, file.address, columns=["id"]):
                    found.ids.add(row.number, row.fields.get("id"))
            numbers = range(1, table.metadata.num_rows + 1)
    else:
        numbers, size, pieces = array("q"), file.bytes, MOST_PIECES
        with file.place.as_local() as path:
            for row in read_rows(path):
                found.add(row.number, row.fields if row.error is None else None, 0)
                numbers.append(row.number)
    total = len(numbers)
    most = min(cut.rows, cut.bytes * total // max(size, 1))  # as if rows were of equal size
    step = max(1, most, -(-total // max(pieces, 1)))
    digest = hashlib.sha256()
    with file.place.lines_file() as content:
        while part := content.read(_READ_BYTES):
            digest.update(part)
    known = replace(file, sha256=digest.hexdigest())
    return [
        replace(known, first=first, rows=min(step, total - first), line=numbers[first])
        for first in range(0, total, step)
    ]


# --- the rows of a block ----------------------------------------------------------------------------------------------


def block_rows(block: Block, choose: Callable[[list[str]], list[str] | None] | None = None) -> Iterator[RawRow]:
    """Read the rows of a block; if the file was not surveyed, its first `rows` rows.

    `choose` selects columns of a Parquet file; the others are not read.
    """
    with _readable(block):
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

    with _readable(block), block.place.open() as source, pq.ParquetFile(source) as table:
        schema = table.schema_arrow
    with closing(_batches(block, settings)) as batches:
        yield SourceColumns(schema, batches, block.first + 1, [one.rows for one in block.members])


def _batches(block: Block, settings: Settings) -> Generator[Any, None, None]:
    import pyarrow.parquet as pq

    for one in block.members:
        with _readable(one), one.place.open() as source, pq.ParquetFile(source) as table:
            columns = _columns(settings, table.schema_arrow.names)
            yield from parquet_batches(table, first=one.first, count=one.rows, columns=columns)


def schema_of(blocks: Iterable[Block]) -> Any:
    """Return the joint Arrow schema of all files of the input; None if no block has one."""
    import pyarrow as pa

    from geval_local.io.parquet import common_schema

    texts = dict.fromkeys(block.schema for block in blocks if block.schema)
    return common_schema(pa.ipc.read_schema(pa.py_buffer(b64decode(text))) for text in texts)


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
def _readable(file: Block) -> Iterator[None]:
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


# --- the blocks of a run ----------------------------------------------------------------------------------------------


def choose_cut(settings: Settings, size: int, workers: Callable[[], int]) -> Cut:
    """Choose the size of blocks: by --window, else at most a few minutes of work with several blocks per worker.

    `size` is the size of all files in bytes. `workers` returns how many workers fit into the cluster; it is called
    only if the settings have no number.
    """
    if settings.block_rows is not None:
        return Cut(settings.block_rows, 1 << 62)
    prompts, count = len(settings.metrics), settings.workers or workers()
    least, most = (tokens * BYTES_PER_TOKEN // prompts for tokens in (LEAST_TOKENS, BLOCK_TOKENS))
    return Cut(MOST_ROWS, max(least, -(-size // MANY_BLOCKS), min(most, size // (BLOCKS_EACH * count))))


def rows_in(blocks: Iterable[Block]) -> int:
    """Count the rows of blocks."""
    return sum(block.all_rows for block in blocks)


def longest_first(blocks: Iterable[Block]) -> list[Block]:
    """Sort blocks by their estimated bytes, largest first, so that no long block starts last."""
    blocks = list(blocks)
    rows = Counter[str]()
    for one in single(blocks):
        rows[one.address] += one.rows
    sizes = {
        block.part: sum(one.bytes * one.rows / max(1, rows[one.address]) for one in block.members) for block in blocks
    }
    return sorted(blocks, key=lambda block: -sizes[block.part])


def single(blocks: Iterable[Block]) -> list[Block]:
    """List all blocks, with the further files of each as blocks of their own."""
    return [one for block in blocks for one in block.members]


def joined(blocks: Sequence[Block], known: Iterable[Block], new: Collection[str], cut: Cut | None) -> list[Block]:
    """Join the blocks of small neighbouring files, so that there are fewer blocks than files.

    Blocks that are `known` to be joined stay joined. Of the others, only blocks of `new` files (addresses) are joined,
    up to the size of `cut`, and only if there are more than `MANY_FILES` files.
    """
    groups = {block.address: [one.address for one in block.more] for block in known if block.more}
    files = Counter(block.address for block in blocks)
    found: list[list[Block]] = []
    last: tuple[str, str] | None = None  # format and schema that a file needs to join the last block
    rows = size = place = 0
    while place < len(blocks):
        block = blocks[place]
        group = groups.get(block.address, [])
        whole = blocks[place : place + 1 + len(group)]
        if group and [one.address for one in whole[1:]] == group:
            found.append([*whole])
            last, place = None, place + len(whole)
            continue
        suffix = format_of(block.place.name) or ""
        kind = (suffix, block.schema if suffix == ".parquet" else "")
        is_small = cut is not None and block.address in new and files[block.address] == 1 and not block.error
        rows, size = rows + block.rows, size + block.bytes
        if is_small and kind == last and cut is not None and rows <= cut.rows and size <= cut.bytes:
            found[-1].append(block)
        else:
            found.append([block])
            last, rows, size = (kind if is_small and len(files) > MANY_FILES else None), block.rows, block.bytes
        place += 1
    return [replace(head, more=tuple(rest)) if rest else head for head, *rest in found]


def limited(blocks: Sequence[Block], limit: int) -> list[Block]:
    """Keep the first rows only."""
    taken: list[Block] = []
    for block in blocks:
        if limit > 0:
            taken.append(replace(block, rows=min(block.rows, limit)))
            limit -= block.rows
    return taken


def changed_files(before: Iterable[Block], after: Iterable[Block]) -> list[str]:
    """List in one message which input files changed, are missing or are new; empty if none.

    A file that could not be used may be repaired or removed.
    """
    before, after = list(before), list(after)
    failed = {block.address for block in before if block.error}
    old, new = (
        {block.address: block.sha256 for block in blocks if block.address not in failed} for blocks in (before, after)
    )
    changed = [
        f"{name}{'' if name in old and name in new else ' (new)' if name in new else ' (missing)'}"
        for name in {**new, **old}
        if old.get(name) != new.get(name)
    ]
    more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
    return [f"the input has another content: {', '.join(changed[:_NAMED])}{more}"] if changed else []


def to_lines(blocks: Iterable[Block]) -> bytes:
    """Write blocks as JSON lines."""
    return b"".join(orjson.dumps(block) + b"\n" for block in blocks)


def from_lines(content: bytes) -> list[Block]:
    """Read what `to_lines` wrote."""
    return [_from_record(orjson.loads(line)) for line in content.splitlines()]


def _from_record(record: dict[str, Any]) -> Block:
    own = {
        "repeated": [(row, first) for row, first in record["repeated"]],
        "schema": intern(record.get("schema", "")),
        "more": tuple(map(_from_record, record.get("more", ()))),
    }
    return Block(**record | own)


def named(files: Iterable[Sequence[Block]], known: Iterable[Block] = ()) -> list[Block]:
    """Name the part of every block after the number of its file and its place in the file.

    If all files are `known`, they keep their numbers, even if a file between them is gone.
    """
    files = list(files)
    before = {block.address: file_number(block.part) for block in known}
    numbers: Sequence[int] = range(len(files))
    if all(blocks[0].address in before for blocks in files):
        numbers = [before[blocks[0].address] for blocks in files]
    return [
        # The files of an input have few schemas: keep equal ones in memory once.
        replace(block, part=part_name(number, place), schema=intern(block.schema))
        for number, blocks in zip(numbers, files, strict=True)
        for place, block in enumerate(blocks)
    ]
