"""Who sees whom in one pack: a stretch of the stream, cut into runs and blocks for the attention.

Pure numpy; nothing here knows a model.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from geval_local.engine.prefix_sharing.prompt_trie import Index, Stream

__all__ = ["Block", "Layout", "Run", "lay_out"]


@dataclass(frozen=True)
class Run:
    """Tokens of a pack that follow one another at successive positions: part of one chain.

    Attributes
    ----------
    start, stop : int
        Where it lies in the pack.
    position : int
        Position of its first token.
    """

    start: int
    stop: int
    position: int


@dataclass(frozen=True)
class Block:
    """Keys that a stretch of the pack sees completely.

    Attributes
    ----------
    on_path : bool
        Whether the keys lie on the root path of the pack's first token (and are counted by position) or in the pack.
    key_start, key_stop : int
        Which keys.
    start, stop : int
        Which tokens of the pack see them.
    """

    on_path: bool
    key_start: int
    key_stop: int
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """Who sees whom in one pack. Every token sees what is before it in its run, and the blocks that cover it.

    Attributes
    ----------
    start, stop : int
        Which stretch of the stream it is.
    path : int
        Length of the root path of the first token.
    runs : tuple of Run
        In order; together they are the whole pack.
    blocks : tuple of Block
    keep_from : int
        Root path positions before this one stay as they are for the next pack.
    keep : ndarray of int64
        Places in the pack whose keys and values become the root path from `keep_from` on.
    """

    start: int
    stop: int
    path: int
    runs: tuple[Run, ...]
    blocks: tuple[Block, ...]
    keep_from: int
    keep: Index

    @cached_property
    def keys_by_run(self) -> tuple[Index, ...]:
        """For every run what its last token sees, by position: places on the path, then ``path +`` places in the pack.

        A run's token at position x sees the first ``x + 1`` of them.
        """
        current = np.arange(max([self.path, *(run.position + run.stop - run.start for run in self.runs)]))
        keys = []
        for run in self.runs:
            end = run.position + run.stop - run.start
            current[run.position : end] = self.path + np.arange(run.start, run.stop)
            keys.append(current[:end].copy())
        return tuple(keys)


def lay_out(stream: Stream, start: int, stop: int) -> Layout:
    """Find out who sees whom in the stretch from `start` to `stop` of a stream."""
    path = stream.root_path(start)
    first, last = stream.chain_of(start), stream.chain_of(stop - 1) + 1
    borders = np.clip(np.append(stream.chain_starts[first:last], stop), start, stop)
    runs = tuple(
        Run(int(begin - start), int(end - start), int(stream.positions[begin]))
        for begin, end in itertools.pairwise(borders)
    )
    blocks = (*_path_blocks(stream, path, start, stop), *_own_blocks(stream, runs, start, stop))
    # The next root path: what is on the old one already stays, the rest is taken from this pack.
    following = stream.root_path(stop)
    keep_from = int(np.searchsorted(following, start))
    return Layout(start, stop, len(path), runs, blocks, keep_from, following[keep_from:] - start)


def _path_blocks(stream: Stream, path: Index, start: int, stop: int) -> list[Block]:
    """Cut the root path wherever fewer tokens of the pack see it."""
    if not len(path):
        return []
    ends = stream.segment_ends[np.searchsorted(stream.segment_starts, path, "right") - 1].clip(max=stop)
    cuts = [0, *(np.flatnonzero(np.diff(ends)) + 1).tolist(), len(path)]
    return [Block(True, low, high, 0, int(ends[low]) - start) for low, high in itertools.pairwise(cuts)]


def _own_blocks(stream: Stream, runs: Sequence[Run], start: int, stop: int) -> list[Block]:
    """Find the parts of every run that later runs see."""
    first = int(np.searchsorted(stream.segment_starts, start, "right")) - 1
    last = int(np.searchsorted(stream.segment_starts, stop, "left"))
    borders = np.clip(np.append(stream.segment_starts[first:last], stop), start, stop) - start
    ends = stream.segment_ends[first:last].clip(max=stop) - start
    run_stops = np.array([run.stop for run in runs])
    blocks: list[Block] = []
    for low, high, end in zip(borders[:-1].tolist(), borders[1:].tolist(), ends.tolist(), strict=True):
        own_end = int(run_stops[np.searchsorted(run_stops, low, "right")])
        if end > own_end:
            blocks.append(Block(False, low, high, own_end, end))
    return blocks
