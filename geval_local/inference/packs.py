"""Requests become a stream, and the stream becomes packs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from geval_local.inference.engine import Pack, Position, Request
from geval_local.inference.stream import Stream, build_stream

__all__ = ["StreamPack", "Work", "cut", "lay_requests_out"]


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
    for index in members:
        request = requests[index]
        nodes = {node.path: number for number, node in enumerate(request.trie.inner_nodes)}
        for path in request.trie.reading_paths:
            sequences.append(np.concatenate([request.ids, np.array(path, dtype=np.int32)]) if path else request.ids)
            # Every inner node is read once, on the first path that passes through it.
            found = [(depth, nodes.pop(path[:depth], None)) for depth in range(len(path) + 1)]
            places.append([len(request.ids) - 1 + depth for depth, node in found if node is not None])
            reads += [Position(index, node) for _, node in found if node is not None]
    stream, indices = build_stream(sequences, places)
    where = np.array([place for found in indices for place in found], dtype=np.int64)
    order = np.argsort(where, kind="stable")
    return Work(stream, where[order], tuple(reads[number] for number in order))


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
