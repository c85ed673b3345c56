"""Requests become a stream, and the stream becomes units and packs.

A unit is whole documents with their candidates, as many as fit into a pack, or one larger document over several packs.
Tokens shared by several units form a separate stretch before the first of them, computed by itself: a unit depends on
these stretches only, and no token is computed twice. A group of documents larger than a pack is split
where the fewest tokens are shared, recursively, as long as the added passes are cheap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.engine.interface import MOST_POSITIONS, Pack, Position
from geval_local.engine.prefix_sharing.prompt_trie import Index, Stream, build_stream
from geval_local.tokens.requests import Ids, Request

#: Fixed cost of a forward pass (reading the weights), as a fraction of a full pass's tokens.
_PASS = 1 / 32
#: Largest cost of the passes added by splitting a group, as a fraction of the group's tokens.
_ALLOWANCE = 1 / 16
#: Units stay small: documents, which share less than a pass costs, are separated if that is cheap, and so are the
#: parts of one document larger than the first number of full packs; a group larger than the second is always split.
_SOME_PACKS, _MOST_PACKS = 4, 16

#: A stretch of the stream, and whether it ends a unit; otherwise several units share it.
_Stretch = tuple[int, int, bool]


@dataclass(frozen=True)
class Work:
    """A planned stream and its read-outs, in stream order."""

    #: The prompt trie, laid out.
    stream: Stream
    #: Stream indices of the read-outs, ascending.
    places: Index
    #: The position read at each of them.
    positions: tuple[Position, ...]
    #: Start of every pack, and the end of the last.
    bounds: Index = field(default_factory=lambda: np.zeros(0, dtype=np.int64), repr=False)
    #: The metric's prefix at the start of the stream, a separate stretch; empty if there is none to keep.
    prefix: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int32), repr=False)

    def pack_of(self, token: int) -> tuple[int, int]:
        """Return the bounds of the pack that contains a token of the stream."""
        number = int(np.searchsorted(self.bounds, token, "right"))
        return int(self.bounds[number - 1]), int(self.bounds[number])


@dataclass(frozen=True)
class StreamPack(Pack):
    """A stretch of a stream."""

    #: Bounds of the stretch.
    start: int
    stop: int
    #: The planned stream.
    work: Work = field(repr=False, compare=False)


def plan_packs(members: Sequence[int], requests: Sequence[Request], budget: int) -> list[StreamPack]:
    """Lay requests out as a stream and cut it into units and packs; a pure function of them."""
    if not members:
        return []
    work = lay_requests_out(members, requests)
    prefix = _common_prefix(work, [requests[index].prefix for index in members])
    cuts = [
        (low, min(low + budget, stop), ends_unit and low + budget >= stop)
        for start, stop, ends_unit in _stretches(work, len(prefix), budget)
        for low in range(start, stop, budget)
    ]
    bounds = np.array([*(start for start, _, _ in cuts), len(work.stream)], dtype=np.int64)
    work = replace(work, bounds=bounds, prefix=prefix)
    finished = _finished(work)
    packs: list[StreamPack] = []
    unit = 0
    for number, (start, stop, ends_unit) in enumerate(cuts):
        packs.append(StreamPack(tuple(finished.get(number, ())), stop - start, unit, start, stop, work))
        unit += ends_unit
    return packs


def lay_requests_out(members: Sequence[int], requests: Sequence[Request]) -> Work:
    """Build the stream of some requests: their prompts, followed by the paths to their label tries' inner nodes."""
    sequences: list[NDArray[np.int32]] = []
    places: list[list[int]] = []
    reads: list[Position] = []
    for index in members:
        ids = requests[index].ids
        for path, nodes in requests[index].trie.reads:
            sequences.append(np.concatenate([ids, np.array(path, dtype=np.int32)]) if path else ids)
            places.append([len(ids) - 1 + depth for depth, _ in nodes])
            reads += [Position(index, node) for _, node in nodes]
    stream, indices = build_stream(sequences, places)
    where = np.array([place for found in indices for place in found], dtype=np.int64)
    order = np.argsort(where, kind="stable")
    return Work(stream, where[order], tuple(reads[number] for number in order))


def _common_prefix(work: Work, prefixes: Sequence[Ids | None]) -> Ids:
    """Return the metric's prefix if every prompt starts with it and it has no read-outs; else an empty array."""
    prefix, stream = prefixes[0], work.stream
    none: Ids = np.zeros(0, dtype=np.int32)
    if prefix is None or not 0 < len(prefix) <= MOST_POSITIONS or len(prefix) > work.places[0]:
        return none
    if not all(other is prefix or np.array_equal(other, prefix) for other in prefixes if other is not None):
        return none
    # The first sequence starts the stream; the others have the prefix if they branch off after it.
    is_shared = bool((stream.chain_depths[1:] >= len(prefix)).all())
    return prefix if is_shared and np.array_equal(stream.tokens[: len(prefix)], prefix) else none


def _stretches(work: Work, prefix: int, budget: int) -> list[_Stretch]:
    """Cut the stream after a separately kept prefix into shared stretches and units."""
    stream = work.stream
    depths = stream.chain_depths
    # A unit may start with a chain whose root path has no read-outs: no earlier prompt is still open there.
    heads = np.flatnonzero(~_is_read_above(work))
    starts = np.append(stream.chain_starts[heads], len(stream))
    shared = depths[heads]
    found: list[_Stretch] = [(0, prefix, False)] if prefix else []
    # A group starts at a stream index and contains the heads from `low` up to, but not including, `high`.
    todo = [(prefix, 0, len(heads), (len(stream) - prefix) * _ALLOWANCE)]
    while todo:
        begin, low, high, allowance = todo.pop()
        end = int(starts[high])
        size = end - begin
        if size <= budget or high - low == 1:
            found.append((begin, end, True))
            continue
        depth = int(shared[low + 1 : high].min())
        own = begin + depth - int(stream.positions[begin])
        borders = [low, *(low + 1 + np.flatnonzero(shared[low + 1 : high] == depth)).tolist(), high]
        parts = _joined(own, borders, starts, budget)
        sizes = [own - begin, *(int(starts[part_high]) - part_begin for part_begin, _, part_high in parts)]
        added = sum(math.ceil(one / budget) for one in sizes) - math.ceil(size / budget)
        cost = added * budget * _PASS
        are_documents = own - begin <= budget * _PASS
        cheap = added <= 0 or (cost <= allowance and (are_documents or size > _SOME_PACKS * budget))
        if len(parts) == 1 or not (cheap or size > _MOST_PACKS * budget):
            found.append((begin, end, True))
            continue
        if own > begin:
            found.append((begin, own, False))
        left = max(0.0, allowance - max(0.0, cost)) / size
        todo += [(*part, left * part_size) for part, part_size in zip(parts, sizes[1:], strict=True)][::-1]
    return found


def _joined(begin: int, borders: Sequence[int], starts: Index, budget: int) -> list[tuple[int, int, int]]:
    """Merge neighbours that fit into one pack: ``(begin, low, high)``; the first starts at `begin`."""
    parts: list[tuple[int, int, int]] = []
    for low, high in itertools.pairwise(borders):
        if parts and int(starts[high]) - parts[-1][0] <= budget:
            parts[-1] = (parts[-1][0], parts[-1][1], high)
        else:
            parts.append((int(starts[low]) if parts else begin, low, high))
    return parts


def _is_read_above(work: Work) -> NDArray[np.bool_]:
    """Return, for every chain, whether its root path has any read-outs."""
    stream = work.stream
    ends = np.append(stream.chain_starts[1:], len(stream))
    first = np.searchsorted(work.places, stream.chain_starts)
    places = np.append(work.places, len(stream))[first]
    # Position of the first token read in each chain; greater than any depth if there is none.
    read_at = np.where(places < ends, stream.chain_depths + places - stream.chain_starts, 1 << 62).tolist()
    above: list[bool] = []
    for depth, parent in zip(stream.chain_depths.tolist(), stream.chain_parents.tolist(), strict=True):
        above.append(parent >= 0 and (above[parent] or read_at[parent] < depth))
    return np.array(above, dtype=bool)


def _finished(work: Work) -> dict[int, list[int]]:
    """Return, for every pack, the requests whose last read-out it contains."""
    last: dict[int, int] = {}
    for place, position in zip(work.places.tolist(), work.positions, strict=True):
        last[position.request] = place
    finished: dict[int, list[int]] = {}
    packs = np.searchsorted(work.bounds, list(last.values()), "right") - 1
    for index, number in zip(last, packs.tolist(), strict=True):
        finished.setdefault(number, []).append(index)
    return finished
