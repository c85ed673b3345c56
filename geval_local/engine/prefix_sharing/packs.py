"""Requests become a stream, and the stream becomes packs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geval_local.engine.interface import Pack, Position
from geval_local.engine.prefix_sharing.prompt_trie import Stream, build_stream
from geval_local.tokens.label_trie import LabelTrie
from geval_local.tokens.requests import Ids, Request

__all__ = ["StreamPack", "Work", "cut", "lay_requests_out"]

#: Tokens behind a prompt, and the inner nodes that are read along them: (depth, node).
_Path = tuple[Ids, list[tuple[int, int]]]


@dataclass(frozen=True)
class Work:
    """A planned stream and what is to be read in it, in stream order."""

    stream: Stream
    places: NDArray[np.int64]
    positions: tuple[Position, ...]


@dataclass(frozen=True)
class StreamPack(Pack):
    """A stretch of a stream.

    Attributes
    ----------
    start, stop : int
        Which stretch.
    work : Work
        The stream itself.
    """

    start: int
    stop: int
    work: Work = field(repr=False, compare=False)


def lay_requests_out(members: Sequence[int], requests: Sequence[Request]) -> Work:
    """Build the stream of some requests: their prompts, and behind them the paths to their label tries' inner nodes."""
    sequences: list[NDArray[np.int32]] = []
    places: list[list[int]] = []
    reads: list[Position] = []
    paths: dict[int, list[_Path]] = {}
    for index in members:
        ids, trie = requests[index].ids, requests[index].trie
        found = paths.get(id(trie))
        if found is None:
            found = paths[id(trie)] = list(_paths(trie))
        last = len(ids) - 1
        for tokens, nodes in found:
            sequences.append(np.concatenate([ids, tokens]) if len(tokens) else ids)
            places.append([last + depth for depth, _ in nodes])
            reads += [Position(index, node) for _, node in nodes]
    stream, indices = build_stream(sequences, places)
    where = np.array([place for found in indices for place in found], dtype=np.int64)
    order = np.argsort(where, kind="stable")
    return Work(stream, where[order], tuple(reads[number] for number in order))


def _paths(trie: LabelTrie) -> Iterator[_Path]:
    """List the paths to a trie's inner nodes; every inner node is read once, on the first path through it."""
    nodes = {node.path: number for number, node in enumerate(trie.inner_nodes)}
    for path in trie.reading_paths:
        found = [(depth, nodes.pop(path[:depth], None)) for depth in range(len(path) + 1)]
        yield np.array(path, dtype=np.int32), [(depth, node) for depth, node in found if node is not None]


def cut(work: Work, members: Sequence[int], requests: Sequence[Request], budget: int) -> Iterator[StreamPack]:
    """Cut a stream into packs; a request belongs to the pack that holds its last read-out."""
    last = dict.fromkeys(members, 0)
    for place, position in zip(work.places.tolist(), work.positions, strict=True):
        last[position.request] = place
    finished: dict[int, list[int]] = {}
    for index, place in last.items():
        finished.setdefault(place // budget, []).append(index)
    for number, start in enumerate(range(0, len(work.stream), budget)):
        stop = min(start + budget, len(work.stream))
        yield StreamPack(tuple(finished.get(number, ())), stop - start, start, stop, work)
