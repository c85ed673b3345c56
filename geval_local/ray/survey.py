"""The survey: a worker reads each file once, hashes it, counts rows, finds repeated ids and types, and cuts blocks.

Scoring does not wait for it. A block of a JSONL or Parquet file is ready as soon as the survey has passed it, unless an
id in it occurred before: whether repeated ids are errors or name documents depends on the whole file. Such blocks, and
blocks of files that are read from their beginning, are ready at the end of their file.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson

from geval_local.errors import DataError, GevalError, first_line
from geval_local.files import bounded_lines
from geval_local.io.parts import file_number, part_name
from geval_local.io.rows import format_of, line_rows, parquet_rows, read_rows
from geval_local.io.samples import id_hash, name_documents
from geval_local.io.shares import has_a_line_a_row, is_blank
from geval_local.ray.blocks import Block, readable, schema_text
from geval_local.runs.settings import Settings

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
#: Most bytes and most files that one task surveys, unless it is a single file; only they can share blocks.
BUNDLE_BYTES, BUNDLE_FILES = BLOCK_TOKENS * BYTES_PER_TOKEN, 200


class Cut(NamedTuple):
    """Largest size of a block: rows, bytes or files, whichever is reached first."""

    rows: int
    bytes: int
    files: int = 1


def choose_cut(settings: Settings, files: Sequence[Block], workers: Callable[[], int]) -> Cut:
    """Choose the size of blocks: by --window, else at most a few minutes of work with several blocks per worker.

    `workers` returns how many workers fit into the cluster; it is called only if the settings have no number.
    """
    together = BUNDLE_FILES if len(files) > MANY_FILES else 1
    if settings.block_rows is not None:
        return Cut(settings.block_rows, 1 << 62, together)
    size, prompts, count = sum(file.bytes for file in files), len(settings.metrics), settings.ray_workers or workers()
    least, most = (tokens * BYTES_PER_TOKEN // prompts for tokens in (LEAST_TOKENS, BLOCK_TOKENS))
    bound = max(least, -(-size // MANY_BLOCKS), min(most, size // (BLOCKS_EACH * count)))
    return Cut(MOST_ROWS, bound, together)


def bundled(files: Iterable[Block]) -> Iterator[list[Block]]:
    """Bundle small neighbouring files, so that a task's overhead stays below its work."""
    bundle: list[Block] = []
    size = 0
    for file in files:
        is_next = bool(bundle) and file_number(file.part) == file_number(bundle[-1].part) + 1
        if bundle and (not is_next or size + file.bytes > BUNDLE_BYTES or len(bundle) == BUNDLE_FILES):
            yield bundle
            bundle, size = [], 0
        bundle.append(file)
        size += file.bytes
    if bundle:
        yield bundle


def is_read_in_order(file: Block) -> bool:
    """Whether the first blocks of a file are ready before its last byte is read, judged by its name alone."""
    return file.place.name.lower().endswith((".parquet", ".jsonl", ".ndjson"))


def survey(files: Iterable[Block], cut: Cut) -> Iterator[Block]:
    """Survey a bundle of files; yield each block when it is ready. Small neighbours share blocks if `cut` allows it.

    A file that cannot be used becomes one block with the reason, and blocks of it that were ready do not count.
    """
    last: Block | None = None
    for block in chain.from_iterable(_survey(file, cut) for file in files):
        if last is not None and _fits(last, block, cut):
            last = replace(last, more=(*last.more, block))
            continue
        if last is not None:
            yield last
        last = block if _is_whole(block) and cut.files > 1 else None
        if last is None:
            yield block
    if last is not None:
        yield last


def _is_whole(block: Block) -> bool:
    """Whether a block has all rows of its file."""
    return bool(block.sha256) and block.first == 0


def _fits(last: Block, block: Block, cut: Cut) -> bool:
    suffixes = {format_of(one.place.name) for one in (last, block)}
    size = sum(one.bytes for one in last.members) + block.bytes
    return (
        _is_whole(block)
        and len(suffixes) == 1
        and (suffixes != {".parquet"} or last.schema == block.schema)
        and last.all_rows + block.rows <= cut.rows
        and size <= cut.bytes
        and len(last.more) + 1 < cut.files
    )


def _survey(file: Block, cut: Cut) -> Iterator[Block]:
    try:
        with readable(file):
            yield from _surveyed(file, cut)
        return
    except DataError as error:
        reason = error.message
    except GevalError:
        raise
    except Exception as error:  # from outside the package
        reason = f"{type(error).__name__}: {first_line(error)}"
    yield replace(file, repeated=[], error=reason if file.address in reason else f"{file.address}: {reason}")


def _surveyed(file: Block, cut: Cut) -> Iterator[Block]:
    found, held = _Found(file.address), list[_Closed]()
    for number, closed in enumerate(_closed_blocks(file, cut, found)):
        if held and held[-1].is_new:
            yield _ready(held.pop(), [])
        held.append(closed._replace(block=replace(closed.block, part=part_name(file_number(file.part), number))))
    if not held:
        raise DataError(f"{file.address} holds no rows", hint="Was the file written completely?")
    repeated = found.ids.repeated()
    for closed in held[:-1]:
        yield _ready(closed, repeated)
    yield _ready(held[-1], repeated, found.content.hexdigest())


class _Closed(NamedTuple):
    """A block that the survey has passed."""

    block: Block
    #: Number of its last row.
    until: int
    #: Whether no id in it occurred before in the file.
    is_new: bool


def _ready(closed: _Closed, repeated: Sequence[tuple[int, int]], sha256: str = "") -> Block:
    """Complete a block by its repeated rows, of those of the file; the last block by the hash of the file."""
    block = closed.block
    own = list(repeated[bisect_left(repeated, (block.line,)) : bisect_left(repeated, (closed.until + 1,))])
    digest = hashlib.sha256(f"{block.digest} {own}".encode()).hexdigest()
    return replace(block, digest=digest, repeated=own, sha256=sha256)


class _Found:
    """Collects content, ids and column types of a file during the survey."""

    def __init__(self, address: str) -> None:
        from geval_local.io.parquet import ColumnTypes

        self.content = hashlib.sha256()
        #: Hash of what the rows depend on beyond the content before them: the footer of a Parquet file.
        self.footer = ""
        self.ids = _Ids(address)
        self._types = ColumnTypes()
        self._bytes = 0
        self.schema = self._types.schema

    def add(self, number: int, row: Any, size: int) -> None:
        """Count a readable row of so many bytes."""
        if isinstance(row, dict):
            self.ids.add(number, row.get("id"))
            self._types.add(row, size)

    def read(self, file: BinaryIO, stop: int | None = None) -> None:
        """Read a file on, to an offset or its end."""
        while wanted := _READ_BYTES if stop is None else max(0, min(_READ_BYTES, stop - self._bytes)):
            part = file.read(wanted)
            if not part:
                return
            self.content.update(part)
            self._bytes += len(part)

    def close(self, block: Block, until: int, *, is_ready: bool = True) -> _Closed:
        """Describe a block whose last row was just added; `is_ready`: whether it may be ready before the file's end."""
        digest = f"{self.content.hexdigest()} {self.footer}"
        block = replace(block, digest=digest, schema=schema_text(self.schema()))
        return _Closed(block, until, is_ready and self.ids.are_new())


class _Ids:
    """Ids of a file, 24 bytes per row."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._hashes = array("Q")
        self._numbers = array("q")
        #: Sorted ids that `are_new` has seen, each array less than half as long as the one before it.
        self._sorted: list[Any] = []
        self._seen = 0

    def add(self, number: int, value: Any) -> None:
        hashed = id_hash(value)
        if hashed is not None:
            self._hashes.append(hashed)
            self._numbers.append(number)

    def are_new(self) -> bool:
        """Whether no id added since the last call occurred before it."""
        ids = np.sort(np.array(self._hashes[self._seen :], np.uint64))
        self._seen = len(self._hashes)
        is_new = not np.any(ids[1:] == ids[:-1]) and not any(_have_common(ids, before) for before in self._sorted)
        while self._sorted and len(self._sorted[-1]) < 2 * len(ids):
            ids = np.sort(np.concatenate([self._sorted.pop(), ids]), kind="stable")
        self._sorted.append(ids)
        return is_new

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


def _have_common(some: Any, many: Any) -> bool:
    """Whether two sorted arrays have a value in common."""
    places = np.searchsorted(many, some)
    inside = places < len(many)
    return bool(np.any(many[places[inside]] == some[inside]))


def _closed_blocks(file: Block, cut: Cut, found: _Found) -> Iterator[_Closed]:
    if has_a_line_a_row(file.place, file.bytes):
        return _blocks_of_lines(file, cut, found)
    return (_blocks_of_groups if format_of(file.place.name) == ".parquet" else _blocks_of_rows)(file, cut, found)


def _blocks_of_lines(file: Block, cut: Cut, found: _Found) -> Iterator[_Closed]:
    first = rows = start = line = offset = number = 0
    with file.place.lines_file() as source:
        for number, raw in enumerate(bounded_lines(source, file.address), start=1):
            found.content.update(raw)
            if not is_blank(raw):
                if rows == 0:
                    start, line = offset, number
                rows += 1
                found.add(number, _value_of_line(raw, number), len(raw))
            offset += len(raw)
            if rows and (rows >= cut.rows or offset - start >= cut.bytes):
                yield found.close(replace(file, first=first, rows=rows, line=line, start=start, stop=offset), number)
                first, rows = first + rows, 0
    if rows:
        yield found.close(replace(file, first=first, rows=rows, line=line, start=start, stop=offset), number)


def _value_of_line(raw: bytes, number: int) -> Any:
    try:
        return orjson.loads(raw)
    except ValueError:  # Python accepts more: NaN, lone surrogates
        row = next(line_rows([raw.decode("utf-8-sig", "surrogateescape")], number), None)
        return None if row is None or row.error is not None else row.fields


def _blocks_of_groups(file: Block, cut: Cut, found: _Found) -> Iterator[_Closed]:
    """Survey a Parquet file row group by row group; blocks have equal numbers of rows."""
    import pyarrow.parquet as pq

    with file.place.open() as source, pq.ParquetFile(source) as table, file.place.lines_file() as content:
        metadata, schema = table.metadata, table.schema_arrow
        found.schema = lambda: schema
        found.footer = _footer_hash(file, metadata)
        groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
        rows_until = list(accumulate(group.num_rows for group in groups))
        has_ids = "id" in schema.names
        ids = parquet_rows(table, file.address, columns=["id"]) if has_ids else iter(())
        step = _step(metadata.num_rows, sum(group.total_byte_size for group in groups), MOST_PIECES * len(groups), cut)
        for first in range(0, metadata.num_rows, step):
            rows = min(step, metadata.num_rows - first)
            for row in islice(ids, rows):
                found.ids.add(row.number, row.fields.get("id"))
            found.read(content, _group_end(groups[bisect_left(rows_until, first + rows)]))
            yield found.close(replace(file, first=first, rows=rows, line=first + 1), first + rows)
        found.read(content)


def _footer_hash(file: Block, metadata: Any) -> str:
    """Hash the footer of a Parquet file: it says what the bytes of the row groups mean."""
    footer = file.place.read(max(0, file.bytes - metadata.serialized_size - 8), file.bytes)
    return hashlib.sha256(footer).hexdigest()


def _group_end(group: Any) -> int:
    """Return the offset behind the last byte of a row group."""
    columns = [group.column(place) for place in range(group.num_columns)]
    offsets = [min(filter(None, (one.dictionary_page_offset, one.data_page_offset))) for one in columns]
    return int(max(offset + one.total_compressed_size for offset, one in zip(offsets, columns, strict=True)))


def _step(rows: int, size: int, pieces: int, cut: Cut) -> int:
    """Return the rows of a block of a file that has so many rows of equal size, in so many pieces at most."""
    return max(1, min(cut.rows, cut.bytes * rows // max(size, 1)), -(-rows // max(pieces, 1)))


def _blocks_of_rows(file: Block, cut: Cut, found: _Found) -> Iterator[_Closed]:
    """Survey a file that is read from its beginning; its blocks have equal numbers of rows."""
    numbers = array("q")
    with file.place.as_local() as path:
        for row in read_rows(path):
            found.add(row.number, row.fields if row.error is None else None, 0)
            numbers.append(row.number)
    with file.place.lines_file() as content:
        found.read(content)
    step = _step(len(numbers), file.bytes, MOST_PIECES, cut)
    for first in range(0, len(numbers), step):
        rows = min(step, len(numbers) - first)
        block = replace(file, first=first, rows=rows, line=numbers[first])
        yield found.close(block, numbers[first + rows - 1], is_ready=False)
