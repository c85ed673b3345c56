"""The blocks of a run's input, as far as they are known: a run scores blocks while other files are still surveyed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from sys import intern
from typing import Any

import orjson

from geval_local.io.parts import file_number, part_name, part_place
from geval_local.ray.blocks import Block, widened

#: Most changed files that a message names.
_NAMED = 5


class BlockList:
    """The blocks of an input. A file that is not surveyed completely is also in it as one block without rows.

    Parameters
    ----------
    files : sequence of Block
        The files of the input, not surveyed.
    known : iterable of Block
        Blocks that an earlier run surveyed.
    """

    def __init__(self, files: Sequence[Block], known: Iterable[Block] = ()) -> None:
        self.files = list(files)
        self._blocks = {block.part: block for block in known}
        #: Files that the survey could not use, by address.
        self._failed: dict[str, Block] = {}

    def note(self, block: Block) -> bool:
        """Add a surveyed block; False if it does not count: its file failed, or it was split."""
        known = self._blocks.get(block.part)
        if block.address in self._failed:
            return False
        if block.error:
            self._failed[block.address] = block
            self._blocks = {part: one for part, one in self._blocks.items() if one.address != block.address}
            return True
        if known is not None and known.identity != block.identity:
            return False
        self._blocks[block.part] = _slim(block)
        return True

    def split(self, block: Block) -> list[Block]:
        """Replace a joined block by the blocks of its files."""
        del self._blocks[block.part]
        self._blocks.update((one.part, one) for one in block.members)
        return block.members

    @property
    def blocks(self) -> list[Block]:
        """The blocks that can be scored, in order."""
        return sorted(self._blocks.values(), key=_place)

    @property
    def failed(self) -> list[Block]:
        """The files that the survey could not use."""
        return sorted(self._failed.values(), key=_place)

    @property
    def waiting(self) -> list[Block]:
        """The files that are not surveyed completely."""
        known = complete_files(self._blocks.values())
        return [file for file in self.files if file.address not in known and file.address not in self._failed]

    @property
    def rows(self) -> int:
        """Number of rows of all known blocks."""
        return rows_in(self._blocks.values())

    @property
    def described(self) -> list[Block]:
        """One block of every file, which has the file's hash if it was surveyed completely."""
        known = complete_files(self._blocks.values())
        return [known.get(file.address, file) for file in self.files]

    def schema(self, first: Any = None) -> Any:
        """Return the joint Arrow schema of the surveyed files, and of an earlier one; None if there are none."""
        schema = first
        for text in dict.fromkeys(block.schema for block in self.described if block.schema):
            schema = widened(schema, text)
        return schema

    def to_lines(self) -> bytes:
        """Write the list as JSON lines."""
        return to_lines(sorted([*self._blocks.values(), *self._failed.values(), *self.waiting], key=_place))

    def limited(self, limit: int) -> BlockList:
        """Keep the first rows only, and the files that have them."""
        last, taken = complete_files(self._blocks.values()), dict[str, Block]()
        for block in single(self.blocks):
            if limit > 0:
                shown = last[block.address] if limit <= block.rows else block
                own = replace(block, sha256=shown.sha256, schema=shown.schema)
                taken[block.part] = replace(own, rows=min(block.rows, limit))
                limit -= block.rows
        there = {block.address for block in taken.values()}
        found = BlockList([file for file in self.files if file.address in there or file.address in self._failed])
        found._blocks, found._failed = taken, self._failed
        return found


def _slim(block: Block) -> Block:
    """Keep the schema of a file in its last block only, and equal ones in memory once: an input has few."""
    more = tuple(_slim(one) for one in block.more)
    return replace(block, schema=intern(block.schema) if block.sha256 else "", more=more)


def _place(block: Block) -> tuple[int, int, int]:
    return file_number(block.part), part_place(block.part), bool(block.digest)


def rows_in(blocks: Iterable[Block]) -> int:
    """Count the rows of blocks."""
    return sum(block.all_rows for block in blocks)


def single(blocks: Iterable[Block]) -> list[Block]:
    """List all blocks, with the further files of each as blocks of their own."""
    return [one for block in blocks for one in block.members]


def complete_files(blocks: Iterable[Block]) -> dict[str, Block]:
    """Return the last blocks of the files that are surveyed completely, by address."""
    blocks = [block for block in single(blocks) if block.digest]
    counts = Counter(block.address for block in blocks)
    return {
        block.address: block for block in blocks if block.sha256 and part_place(block.part) + 1 == counts[block.address]
    }


def numbered(files: Sequence[Block], known: Iterable[Block]) -> list[Block]:
    """Name the parts of files after the numbers that they are known by, even if a file between them is gone.

    If one of them is not known, the order of the files gives the numbers.
    """
    before = {block.address: block.part for block in single(known) if part_place(block.part) == 0}
    if any(file.address not in before for file in files):
        return list(files)
    return [replace(file, part=before[file.address]) for file in files]


def touched_files(files: Iterable[Block], known: Iterable[Block]) -> list[Block]:
    """List the files that may have changed since they were surveyed."""
    old = complete_files(known)
    pairs = ((file, old[file.address]) for file in files if file.address in old)
    return [file for file, before in pairs if (file.bytes, file.changed) != (before.bytes, before.changed)]


def changed_files(
    files: Iterable[Block], known: Sequence[Block], hashes: Mapping[str, str], *, is_whole: bool
) -> list[str]:
    """List in one message which input files changed, are missing or are new; empty if none.

    A file that could not be used, or was not surveyed completely, may be changed and removed. `hashes` are those of the
    `touched_files`. `is_whole`: whether all files of the input are known, and not only the first ones.
    """
    addresses = [file.address for file in files]
    old, listed = complete_files(known), {block.address for block in single(known)}
    new = [f"{name} (new)" for name in addresses if is_whole and name not in listed]
    changed = [name for name in addresses if name in old and hashes.get(name, old[name].sha256) != old[name].sha256]
    missing = [f"{name} (missing)" for name in old if name not in set(addresses)]
    told = [*new, *changed, *missing]
    more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return [f"the input has another content: {', '.join(told[:_NAMED])}{more}"] if told else []


def kept_blocks(files: Sequence[Block], known: Sequence[Block], hashes: Mapping[str, str]) -> Iterator[Block]:
    """Yield the known blocks of files that are complete and have not changed, with their present state and number.

    Blocks of small files are kept together, or not at all.
    """
    old, places = complete_files(known), {file.address: place for place, file in enumerate(files)}
    same = {
        file.address: file
        for file in files
        if file.address in old and hashes.get(file.address, old[file.address].sha256) == old[file.address].sha256
    }
    for block in known:
        first = places.get(block.address)
        if first is None or any(files[first + place : first + place + 1] != [same.get(one.address)]
                                for place, one in enumerate(block.members)):  # fmt: skip
            continue
        head, *rest = (_as_now(one, same[one.address]) for one in block.members)
        yield replace(head, more=tuple(rest))


def _as_now(block: Block, file: Block) -> Block:
    part = part_name(file_number(file.part), part_place(block.part))
    return replace(block, more=(), bytes=file.bytes, changed=file.changed, part=part)


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
