"""Rows that share prefixes, in batches: pure, nothing here knows a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from geval_local.engine.batched import Row
from geval_local.tokens.requests import common_prefix

__all__ = ["batches"]

#: A prefix shorter than this beyond the one before is not worth a forward pass of its own.
LEAST_SHARED = 16
#: Prefixes within prefixes: a cache is held for each.
_DEEPEST = 8
#: Positions of the repeated cache per token that goes through the layers: keys and values are all there is of them.
_CACHED_PER_TOKEN = 8


def batches(rows: Sequence[Row], budget: int) -> Iterator[tuple[tuple[int, ...], list[Row]]]:
    """Batch rows behind their shared prefixes, depth first.

    Parameters
    ----------
    rows : sequence of Row
        Sorted by their tokens, each distinct.
    budget : int
        Most tokens of a batch, padding included and the prefix not; a single longer row still comes alone.

    Yields
    ------
    cuts : tuple of int
        Growing lengths of the prefixes within prefixes that the batch hangs on; its own is the last. Every read-out of
        a row lies behind them, so that a prefix whose cache is held need not be computed again.
    rows : list of Row
        The batch, longest row first.
    """
    arrays = [np.array(row.tokens, dtype=np.int32) for row in rows]
    shared = [common_prefix(one, other) for one, other in itertools.pairwise(arrays)]
    firsts = [min(place for place, _ in row.reads) for row in rows]

    def walk(members: Sequence[int], cuts: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], list[Row]]]:
        least = (cuts[-1] if cuts else 0) + LEAST_SHARED
        far = [number for number in members if firsts[number] >= least and len(cuts) < _DEEPEST]
        blocks: list[list[int]] = []
        for number in far:
            if blocks and min(shared[blocks[-1][-1] : number]) >= least:
                blocks[-1].append(number)
            else:
                blocks.append([number])
        blocks = [block for block in blocks if len(block) > 1]
        inside = {number for block in blocks for number in block}
        lone = [rows[number] for number in members if number not in inside]
        yield from ((cuts, batch) for batch in _padded(lone, cuts[-1] if cuts else 0, budget))
        for block in blocks:
            end = min(*shared[block[0] : block[-1]], *(firsts[number] for number in block))
            yield from walk(block, (*cuts, end))

    yield from walk(range(len(rows)), ())


def _padded(rows: Sequence[Row], start: int, budget: int) -> Iterator[list[Row]]:
    """Batch rows of similar length, longest first, of which the tokens from `start` on are computed."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: -len(row.tokens)):
        width = len((batch or [row])[0].tokens)
        full = (len(batch) + 1) * (width - start) > budget or (len(batch) + 1) * width > _CACHED_PER_TOKEN * budget
        if batch and full:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
