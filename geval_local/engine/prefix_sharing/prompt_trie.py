"""A trie of token sequences, laid out as one stream.

Pure numpy, independent of any model. Sorted sequences are laid out one after the other, each without the prefix that
it shares with the one before::

    [a b c d]        stream     a b c d e x y f
    [a b c e]        position   0 1 2 3 3 2 3 1
    [a b x y]        chain      0 0 0 0 1 2 2 3
    [a f]

This is the trie in depth-first preorder: a *chain* is the part added by one sequence, attached to an earlier
one. Token j is visible to token i exactly when j <= i and i lies in the subtree of j, and that subtree is a stretch
of the stream that ends at `Stream.visible_until`. So a stretch of the stream, wherever it is cut, depends only
on the root path of its first token. For the attention within such a pack it is cut into strands and blocks (`Layout`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from geval_local.tokens.requests import Ids, common_prefix

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Stream:
    """A trie in preorder."""

    #: Every distinct token of the trie, once.
    tokens: Ids
    #: Depth of each token: its position in every sequence that it belongs to.
    positions: Index
    #: Start of each chain in the stream, the position of its first token, and its parent chain (-1: none).
    chain_starts: Index
    chain_depths: Index
    chain_parents: Index
    #: The stream cut wherever the subtree's end changes: tokens from ``segment_starts[s]`` on are visible up to, but
    #: not including, ``segment_ends[s]``.
    segment_starts: Index
    segment_ends: Index

    def __len__(self) -> int:
        return len(self.tokens)

    def visible_until(self, token: int) -> int:
        """Return the first stream index after `token` that does not see it."""
        return int(self.segment_ends[np.searchsorted(self.segment_starts, token, "right") - 1])

    def root_path(self, token: int) -> Index:
        """Return the stream indices of earlier tokens visible to `token`; for ``len(self)``, the last sequence."""
        if not len(self):
            return np.zeros(0, dtype=np.int64)
        if token == len(self):
            chain, upper = len(self.chain_starts) - 1, int(self.positions[-1]) + 1
        else:
            chain, upper = self.chain_of(token), int(self.positions[token])
        path = np.empty(upper, dtype=np.int64)
        while upper > 0:
            depth = int(self.chain_depths[chain])
            path[depth:upper] = self.chain_starts[chain] + np.arange(upper - depth)
            upper, chain = min(upper, depth), int(self.chain_parents[chain])
        return path

    def chain_of(self, token: int) -> int:
        """Return the number of the chain that contains `token`."""
        return int(np.searchsorted(self.chain_starts, token, "right")) - 1


@dataclass
class _Open:
    """A chain on the current root path; its positions up to `limit` are still visible."""

    chain: int
    start: int
    depth: int
    limit: int


def build_stream(sequences: Sequence[Ids], places: Sequence[Sequence[int]]) -> tuple[Stream, list[list[int]]]:
    """Merge token sequences into a trie and lay it out."""
    # Big-endian bytes compare like the tokens, and memcmp is faster than comparing tuples.
    keys = [sequence.astype(">u4").tobytes() for sequence in sequences]
    order = sorted(range(len(sequences)), key=keys.__getitem__)
    current = np.zeros(max(map(len, sequences), default=0), dtype=np.int64)
    indices: list[list[int]] = [[] for _ in sequences]
    tokens: list[Ids] = []
    chains: list[tuple[int, int, int]] = []
    segments: list[tuple[int, int]] = []
    stack: list[_Open] = []
    previous = np.zeros(0, dtype=np.int32)
    size = 0
    for number in order:
        sequence = sequences[number]
        shared = common_prefix(previous, sequence)
        added = len(sequence) - shared
        if added:
            _close(stack, shared, size, segments)
            stack.append(_Open(len(chains), size, shared, len(sequence)))
            chains.append((size, shared, stack[-2].chain if len(stack) > 1 else -1))
            tokens.append(sequence[shared:])
            current[shared : len(sequence)] = size + np.arange(added)
            size += added
        indices[number] = [int(current[place]) for place in places[number]]
        previous = sequence
    _close(stack, 0, size, segments)
    starts, depths, parents = (np.array(chains, dtype=np.int64).reshape(-1, 3)).T
    positions = np.arange(size) - np.repeat(starts - depths, np.diff(np.append(starts, size)))
    segment_starts, segment_ends = np.array(sorted(segments), dtype=np.int64).reshape(-1, 2).T
    all_tokens = np.concatenate(tokens) if tokens else previous
    return Stream(all_tokens, positions, starts, depths, parents, segment_starts, segment_ends), indices


def _close(stack: list[_Open], depth: int, place: int, segments: list[tuple[int, int]]) -> None:
    """End the visibility of the root path from position `depth` on, at `place` in the stream."""
    while stack and stack[-1].depth >= depth:
        segments.append((stack.pop().start, place))
    if stack and stack[-1].limit > depth:
        top = stack[-1]
        segments.append((top.start + depth - top.depth, place))
        top.limit = depth


@dataclass(frozen=True)
class Strand:
    """Consecutive tokens of a pack at successive positions: part of one chain."""

    #: Its bounds in the pack.
    start: int
    stop: int
    #: Position of its first token.
    position: int


@dataclass(frozen=True)
class VisibleBlock:
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
    blocks: tuple[VisibleBlock, ...]
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


def _path_blocks(stream: Stream, path: Index, start: int, stop: int) -> list[VisibleBlock]:
    """Cut the root path at each position beyond which fewer tokens of the pack see it."""
    if not len(path):
        return []
    ends = stream.segment_ends[np.searchsorted(stream.segment_starts, path, "right") - 1].clip(max=stop)
    cuts = [0, *(np.flatnonzero(np.diff(ends)) + 1).tolist(), len(path)]
    return [VisibleBlock(True, low, high, 0, int(ends[low]) - start) for low, high in itertools.pairwise(cuts)]


def _own_blocks(stream: Stream, strands: Sequence[Strand], start: int, stop: int) -> list[VisibleBlock]:
    """Find the parts of every strand that later strands see."""
    first = int(np.searchsorted(stream.segment_starts, start, "right")) - 1
    last = int(np.searchsorted(stream.segment_starts, stop, "left"))
    borders = np.clip(np.append(stream.segment_starts[first:last], stop), start, stop) - start
    ends = stream.segment_ends[first:last].clip(max=stop) - start
    strand_stops = np.array([strand.stop for strand in strands])
    blocks: list[VisibleBlock] = []
    for low, high, end in zip(borders[:-1].tolist(), borders[1:].tolist(), ends.tolist(), strict=True):
        own_end = int(strand_stops[np.searchsorted(strand_stops, low, "right")])
        if end > own_end:
            blocks.append(VisibleBlock(False, low, high, own_end, end))
    return blocks
