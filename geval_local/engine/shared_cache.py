"""The shared-cache engine: a shared prefix is computed once, and its cache is copied for the continuations.

For models that accept no external attention function but whose own cache can be continued: recurrent and
hybrid ones, ALiBi. A prefix is computed alone; its cache is repeated for a right-padded batch of continuations,
without a mask. Whether a model's cache is exact in this use cannot be seen from outside, so it is probed.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from transformers import Cache, PreTrainedModel

from geval_local.engine.batched import BatchRow, PaddedEngine, in_halves, rows_of
from geval_local.engine.interface import Engine, Pack, Readout, ReadoutTable
from geval_local.engine.pending import PendingPositions, computed_ahead
from geval_local.errors import UnsupportedModelError
from geval_local.models.head import Head, Trunk, gpus_of, to_device
from geval_local.tokens.requests import Ids, Request, common_prefix

#: Fixed cost of a forward pass, in tokens. A CPU loses little with short passes; a GPU computes some hundred tokens in
#: the time of launching a pass.
PASS_TOKENS, PASS_TOKENS_ELSEWHERE = {"cpu": 16}, 128
#: Least tokens beyond the previous prefix that are worth a pass of their own, even if a pass is cheap.
LEAST_SHARED = 8
#: Most nested prefixes: each one keeps a cache.
_DEEPEST = 8
#: Positions of the repeated cache per computed token: they consist of keys and values only.
_CACHED_PER_TOKEN = 8


def batches(
    rows: Sequence[BatchRow], budget: int, pass_tokens: int
) -> Iterator[tuple[tuple[int, ...], list[BatchRow]]]:
    """Batch rows after their shared prefixes, depth first."""
    arrays = [np.array(row.tokens, dtype=np.int32) for row in rows]
    shared = [common_prefix(one, other) for one, other in itertools.pairwise(arrays)]
    firsts = [min(place for place, _ in row.reads) for row in rows]
    worth = max(LEAST_SHARED, pass_tokens // 8)

    def walk(members: Sequence[int], cuts: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], list[BatchRow]]]:
        least = (cuts[-1] if cuts else 0) + worth
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
        yield from ((cuts, batch) for batch in _padded(lone, cuts[-1] if cuts else 0, budget, pass_tokens))
        for block in blocks:
            end = min(*shared[block[0] : block[-1]], *(firsts[number] for number in block))
            yield from walk(block, (*cuts, end))

    yield from walk(range(len(rows)), ())


def _padded(rows: Sequence[BatchRow], start: int, budget: int, pass_tokens: int) -> Iterator[list[BatchRow]]:
    """Batch rows of similar length, longest first, of which the tokens from `start` on are computed."""
    batch: list[BatchRow] = []
    padding = 0
    for row in sorted(rows, key=lambda row: -len(row.tokens)):
        width = len((batch or [row])[0].tokens)
        padding += width - len(row.tokens)
        full = (len(batch) + 1) * (width - start) > budget or (len(batch) + 1) * width > _CACHED_PER_TOKEN * budget
        if batch and (full or padding > pass_tokens):
            yield batch
            batch, padding = [], 0
        batch.append(row)
    if batch:
        yield batch


@dataclass(frozen=True)
class CachePack(Pack):
    """Continuations of one prefix."""

    #: Common prefix of all rows.
    prefix: Ids = field(repr=False, compare=False)
    #: Increasing lengths at which caches of parts of `prefix` are kept for later packs; the last is the whole prefix.
    cuts: tuple[int, ...]
    #: The whole rows, prefix included, longest first.
    rows: tuple[BatchRow, ...] = field(repr=False)


class SharedCacheEngine(Engine):
    """Right-padded batches after copies of a shared prefix's cache."""

    name = "cache"

    def __init__(self, model: PreTrainedModel, head: Head, *, batch_tokens: int = 4096, padded: PaddedEngine) -> None:
        self._trunk = Trunk(model)
        names = inspect.signature(self._trunk.module.forward).parameters
        keyword = next((name for name in ("past_key_values", "cache_params") if name in names), None)
        if keyword is None:
            raise UnsupportedModelError(f"{type(model).__name__} takes no cache")
        self._keyword = keyword
        self._pass_tokens = PASS_TOKENS.get(self._trunk.device.type, PASS_TOKENS_ELSEWHERE)
        self._head = head
        self.padded = padded
        self.turn = padded.turn
        #: Computed prefixes, each with the lengths of its pieces, shortest first.
        self._held: list[tuple[Ids, tuple[int, ...], Cache]] = []
        self.batch_tokens = self.limit = batch_tokens
        self.computed_tokens = 0
        #: Packs that are launched before waiting for earlier ones.
        self.look_ahead = len(gpus_of(model))

    @property
    def parts(self) -> Sequence[Engine]:
        """See `geval_local.engine.interface.Engine.parts`."""
        return [self, self.padded]

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """Find shared prefixes, and batch the continuations of each, depth first."""
        groups = [self._trunk.group(len(request.ids) + request.trie.depth) for request in requests]
        merged: dict[tuple[int, ...], BatchRow] = {}
        missing = dict.fromkeys(range(len(requests)), 0)
        for index, request in enumerate(requests):
            for row in rows_of(index, request, self._trunk.group) if groups[index] == 0 else ():
                twin = merged.get(row.tokens)
                merged[row.tokens] = row if twin is None else BatchRow(row.tokens, twin.reads + row.reads)
        ordered = [merged[tokens] for tokens in sorted(merged)]
        for row in ordered:
            for index in row.requests:
                missing[index] += 1
        packs: list[Pack] = []
        before = np.zeros(0, dtype=np.int32)
        opened: set[int] = set()
        unit = 0
        for cuts, rows in batches(ordered, self.batch_tokens, self._pass_tokens):
            prefix = np.array(rows[0].tokens[: cuts[-1] if cuts else 0], dtype=np.int32)
            kept = max((cut for cut in cuts if cut <= common_prefix(before, prefix)), default=0)
            finished = []
            for index in (index for row in rows for index in row.requests):
                missing[index] -= 1
                if missing[index] == 0:
                    finished.append(index)
            width = max(len(row.tokens) for row in rows) - len(prefix)
            tokens = len(rows) * width + len(prefix) - kept
            packs.append(CachePack(tuple(finished), tokens, unit, prefix, cuts, tuple(rows)))
            before = prefix
            # The rows of a request may be in several packs, which then form one unit.
            opened.update(index for row in rows for index in row.requests)
            opened.difference_update(finished)
            unit += not opened
        return [*packs, *self.padded.plan_apart(requests, groups, unit)]

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """Compute packs in order; a pack that does not fit into memory with a cache is retried without one."""
        table = ReadoutTable(requests)
        failed: set[int] = set()
        padded = partial(self.padded.execute, requests)

        def launch(pack: Pack) -> list[PendingPositions] | None:
            return self._compute(pack, requests, failed) if isinstance(pack, CachePack) else None

        def read_out(pack: Pack, reads: list[PendingPositions]) -> list[Readout]:
            table.collect(found for read in reads for found in read.wait())
            again = [index for index in pack.requests if index in failed]
            if again:
                self._held = []
            found = {index: readouts[0] for index in again for _, readouts in padded([Pack((index,), 0, 0)])}
            return [found[index] if index in found else table.take(index) for index in pack.requests]

        return computed_ahead(packs, launch, read_out, self.look_ahead, padded)

    def _compute(self, pack: CachePack, requests: Sequence[Request], failed: set[int]) -> list[PendingPositions]:
        """Send a pack's rows through the model, in as many passes as memory allows; `failed` gets what does not fit."""
        reads: list[PendingPositions] = []
        read = partial(self._read, pack, requests)
        for batch, found in in_halves(self, list(pack.rows), len(pack.prefix), read, again=False):
            if found is None:
                failed.update(batch[0].requests)
            else:
                reads.append(found)
        return reads

    def _read(self, pack: CachePack, requests: Sequence[Request], rows: Sequence[BatchRow]) -> PendingPositions:
        """Start reading the rows' positions."""
        positions = [position for row in rows for _, position in row.reads]
        return PendingPositions(self._head, self._hidden_states(pack, rows), positions, requests)

    @torch.inference_mode()
    def _hidden_states(self, pack: CachePack, rows: Sequence[BatchRow]) -> torch.Tensor:
        """Compute the final hidden states at the rows' read-out positions, in order."""
        start = len(pack.prefix)
        tokens = np.zeros((len(rows), max(len(row.tokens) for row in rows) - start), dtype=np.int32)
        for number, row in enumerate(rows):
            tokens[number, : len(row.tokens) - start] = row.tokens[start:]
        cache = None
        if start:
            # A forward pass modifies the given cache in place.
            cache = copy.deepcopy(self._cache(pack))
            cache.reorder_cache(torch.zeros(len(rows), dtype=torch.long, device=self._trunk.device))  # type: ignore[arg-type]
        hidden = self._forward(tokens, cache, keep=cache is not None)[0]
        where = [(number, place - start) for number, row in enumerate(rows) for place, _ in row.reads]
        index = to_device(np.array(where, dtype=np.int64), hidden.device)
        return hidden[index[:, 0], index[:, 1]]

    def _cache(self, pack: CachePack) -> Cache:
        """Return the cache of a pack's prefix, continuing the longest held one.

        A cache that was computed in other pieces differs in its last bits and is not continued.
        """
        while self._held and not self._is_held_for(pack):
            self._held.pop()
        for cut in pack.cuts:
            start = len(self._held[-1][0]) if self._held else 0
            cache = copy.deepcopy(self._held[-1][2]) if self._held and start < cut else None
            while start < cut:
                chunk = pack.prefix[start : min(cut, start + self.batch_tokens)]
                cache = self._forward(chunk[None], cache, keep=True)[1]
                start += len(chunk)
            if cache is not None:
                self._held.append((pack.prefix[:cut], pack.cuts[: pack.cuts.index(cut) + 1], cache))
        return self._held[-1][2]

    def _is_held_for(self, pack: CachePack) -> bool:
        """Whether the longest held prefix belongs to the pack and was computed in the same pieces."""
        ids, cuts, _ = self._held[-1]
        return pack.cuts[: len(cuts)] == cuts and common_prefix(ids, pack.prefix) == len(ids)

    def _forward(self, tokens: Ids, cache: Cache | None, *, keep: bool) -> tuple[torch.Tensor, Cache | None]:
        """Compute tokens, after a cache if there is one; with `keep`, return the resulting cache."""
        options = {} if cache is None else {self._keyword: cache}
        inputs = to_device(tokens.astype(np.int64), self._trunk.device)
        output = self._trunk(inputs, use_cache=keep, return_dict=True, **options)
        self.computed_tokens += tokens.size
        kept = getattr(output, self._keyword, None)
        if keep and not isinstance(kept, Cache):
            raise UnsupportedModelError("the model's cache is of an unsupported kind")
        return output[0], kept if keep else None
