"""Attention visibility within one pack: a stretch of the stream, cut into strands and blocks for the attention.

Pure numpy; independent of any model.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from geval_local.engine.prefix_sharing.prompt_trie import Index, Stream


@dataclass(frozen=True)
class Strand:
    """Consecutive tokens of a pack at successive positions: part of one chain."""

    #: Its bounds in the pack.
    start: int
    stop: int
    #: Position of its first token.
    position: int


@dataclass(frozen=True)
class Block:
    """Keys that are completely visible to a stretch of the pack."""

    #: Whether the keys lie on the root path of the pack's first token (and are counted by position) or in the pack.
    on_path: bool
    #: Bounds of the keys.
    key_start: int
    key_stop: int
    #: Bounds of the pack's tokens that see them.
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """Attention visibility within one pack. Every token sees the earlier ones of its strand, and the blocks over it."""

    #: Bounds of the stretch in the stream.
    start: int
    stop: int
    #: Length of the root path of the first token.
    path: int
    #: In order; together they cover the whole pack.
    strands: tuple[Strand, ...]
    blocks: tuple[Block, ...]
    #: Root path positions before this one stay as they are for the next pack.
    keep_from: int
    #: Indices in the pack whose keys and values become the root path from `keep_from` on.
    keep: Index
    #: For every key, on the path and in the pack, the index of the first later token of the pack that does not see it.
    ends: Index
    #: Positions of the pack's tokens.
    positions: Index

    @cached_property
    def keys_by_strand(self) -> tuple[Index, ...]:
        """For every strand, the keys visible to its last token: indices on the path, then ``path +`` pack indices.

        A strand's token at position x sees the first ``x + 1`` of them.
        """
        current = np.arange(
            max([self.path, *(strand.position + strand.stop - strand.start for strand in self.strands)])
        )
        keys = []
        for strand in self.strands:
            end = strand.position + strand.stop - strand.start
            current[strand.position : end] = self.path + np.arange(strand.start, strand.stop)
            keys.append(current[:end].copy())
        return tuple(keys)


def lay_out(stream: Stream, start: int, stop: int, following: Index | None = None) -> Layout:
    """Compute the attention visibility within a stretch of a stream."""
    path = stream.root_path(start)
    first, last = stream.chain_of(start), stream.chain_of(stop - 1) + 1
    borders = np.clip(np.append(stream.chain_starts[first:last], stop), start, stop)
    strands = tuple(
        Strand(int(begin - start), int(end - start), int(stream.positions[begin]))
        for begin, end in itertools.pairwise(borders)
    )
    blocks = (*_path_blocks(stream, path, start, stop), *_own_blocks(stream, strands, start, stop))
    # The next root path: its part on the old path stays, the rest comes from this pack.
    following = stream.root_path(stop) if following is None else following[: np.searchsorted(following, stop)]
    keep_from = int(np.searchsorted(following, start))
    keys = np.append(path, np.arange(start, stop))
    ends = stream.segment_ends[np.searchsorted(stream.segment_starts, keys, "right") - 1].clip(max=stop) - start
    kept = following[keep_from:] - start
    return Layout(start, stop, len(path), strands, blocks, keep_from, kept, ends, stream.positions[start:stop])


def _path_blocks(stream: Stream, path: Index, start: int, stop: int) -> list[Block]:
    """Cut the root path at each position beyond which fewer tokens of the pack see it."""
    if not len(path):
        return []
    ends = stream.segment_ends[np.searchsorted(stream.segment_starts, path, "right") - 1].clip(max=stop)
    cuts = [0, *(np.flatnonzero(np.diff(ends)) + 1).tolist(), len(path)]
    return [Block(True, low, high, 0, int(ends[low]) - start) for low, high in itertools.pairwise(cuts)]


def _own_blocks(stream: Stream, strands: Sequence[Strand], start: int, stop: int) -> list[Block]:
    """Find the parts of every strand that later strands see."""
    first = int(np.searchsorted(stream.segment_starts, start, "right")) - 1
    last = int(np.searchsorted(stream.segment_starts, stop, "left"))
    borders = np.clip(np.append(stream.segment_starts[first:last], stop), start, stop) - start
    ends = stream.segment_ends[first:last].clip(max=stop) - start
    strand_stops = np.array([strand.stop for strand in strands])
    blocks: list[Block] = []
    for low, high, end in zip(borders[:-1].tolist(), borders[1:].tolist(), ends.tolist(), strict=True):
        own_end = int(strand_stops[np.searchsorted(strand_stops, low, "right")])
        if end > own_end:
            blocks.append(Block(False, low, high, own_end, end))
    return blocks
