"""The prefix-sharing engine: every distinct prompt token goes through the model once.

It knows nothing of texts or metrics. The requests' prompts, with the inner nodes of their label tries as further
leaves, become one stream (`packs`); a pack is a stretch of it, bounded in tokens whatever the length of a prompt.
Between packs only the keys and values on the root path of the next token are kept (`path_store`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from geval_local.inference.attention import attending_through
from geval_local.inference.engine import Pack, Readout, ReadoutTable, Request, read_positions
from geval_local.inference.last_layer import reading_only, token_wise_parts
from geval_local.inference.memory import is_out_of_memory
from geval_local.inference.pack_attention import PackAttention
from geval_local.inference.packs import StreamPack, Work, cut, lay_requests_out
from geval_local.inference.padded import PaddedEngine
from geval_local.inference.path_store import PathStore
from geval_local.inference.plan import lay_out
from geval_local.inference.readout import Head, input_device, trunk_of
from geval_local.inference.rope import length_groups, rope_reset
from geval_local.inference.stream import build_stream, common_prefix

__all__ = ["TrieEngine"]

#: A pack is not halved below this: a prompt of which not even so many tokens fit is given up.
FLOOR = 64


class TrieEngine:
    """Packs that share prefixes.

    Parameters
    ----------
    model : PreTrainedModel
        A causal LM in evaluation mode whose layers take a registered attention function (see `gate`).
    head : Head
        Its read-out head.
    batch_tokens : int
        Most tokens per forward pass.
    padded : PaddedEngine
        Takes prompts that no pack may hold: those beyond the switch of a rotary embedding that changes with length.
    fused : bool
        Whether attention may use a fused kernel for packed sequences, where the device has one.
    prune : bool
        Whether the last layer's feed-forward part is computed at the read-out positions only.

    Attributes
    ----------
    computed_tokens : int
        Tokens that went through the model so far.
    windows : tuple of (int or None)
        What the layers asked for in the latest forward pass: their sliding windows, one per call of the attention
        function.
    """

    name = "trie"
    independent_packs = False

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        *,
        batch_tokens: int = 2048,
        padded: PaddedEngine,
        fused: bool = True,
        prune: bool = True,
    ) -> None:
        self._config: Any = model.config
        self._trunk = trunk_of(model)
        self._device = input_device(model)
        self._group = length_groups(model.config)
        self._reset_rope = rope_reset(self._trunk)
        self._head = head
        self._padded = padded
        self._fused = fused
        self._last_parts = token_wise_parts(self._trunk) if prune else ()
        self._store = PathStore()
        self.limit = batch_tokens
        self.batch_tokens = batch_tokens
        self.computed_tokens = 0
        self.windows: tuple[int | None, ...] = ()

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """Lay the requests' trie out and cut it every `batch_tokens` tokens."""
        groups = [self._group(len(request.ids) + request.trie.depth) for request in requests]
        members = [number for number, group in enumerate(groups) if group == 0]
        packs: list[Pack] = list(cut(lay_requests_out(members, requests), members, requests, self.batch_tokens))
        apart = [number for number, group in enumerate(groups) if group != 0]
        packs += [
            Pack(tuple(apart[local] for local in pack.requests), pack.tokens)
            for pack in self._padded.plan([requests[number] for number in apart])
        ]
        return packs

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """Compute packs in order; a prompt that does not fit into memory even piecemeal comes back with an error."""
        table = ReadoutTable(requests)
        failed: dict[int, str] = {}
        resume = 0
        for pack in packs:
            if not isinstance(pack, StreamPack):
                yield from self._padded.execute(requests, [pack])
                continue
            resume = self._compute(pack.work, max(pack.start, resume), pack.stop, requests, table, failed)
            yield (
                pack,
                [
                    Readout(None, error=failed[index]) if index in failed else table.take(index)
                    for index in pack.requests
                ],
            )

    def forget(self) -> None:
        """Drop the keys and values of the last prompt, from which later work would go on."""
        self._store = PathStore()

    def _compute(
        self,
        work: Work,
        start: int,
        stop: int,
        requests: Sequence[Request],
        table: ReadoutTable,
        failed: dict[int, str],
    ) -> int:
        """Compute the stretch from `start` to `stop`; return where to go on, which is further if a prompt failed."""
        while (start := self._skip_held(work, start, stop)) < stop:
            limit = self.limit
            path = work.stream.tokens[work.stream.root_path(start)]
            if self._fill_path(path) and (done := self._compute_fitting(work, start, stop, requests, table)):
                start = done
                continue
            # Not even the smallest pack fitted: whatever needs this token is given up, the rest keeps its pace.
            self.limit = limit
            end = work.stream.visible_until(start)
            for number in range(*np.searchsorted(work.places, [start, end])):
                index = work.positions[number].request
                failed[index] = (
                    f"out of memory: a prompt of {len(requests[index].ids)} tokens does not fit even piecemeal"
                )
            start = end
        return start

    def _fill_path(self, path: NDArray[np.int32]) -> bool:
        """Make sure that keys and values of a root path are held; whether they are.

        They are, unless packs were left out or another run came between.
        """
        held = common_prefix(self._store.ids, path)
        if held == len(path):
            return True
        lone = Work(build_stream([path], [()])[0], np.zeros(0, dtype=np.int64), ())
        while held < len(path):
            done = self._compute_fitting(lone, held, len(path), (), ReadoutTable(()))
            if not done:
                return False
            held = done
        return True

    def _compute_fitting(
        self, work: Work, start: int, stop: int, requests: Sequence[Request], table: ReadoutTable
    ) -> int:
        """Compute from `start` on as many tokens as fit into memory; return where that ended, 0 if none did."""
        while True:
            end = min(stop, start + self.limit)
            if self._forward(work, start, end, requests, table):
                return end
            if end - start <= FLOOR:
                return 0
            self.limit = max(FLOOR, (end - start) // 2)

    def _skip_held(self, work: Work, start: int, stop: int) -> int:
        """Go past tokens whose keys and values are held from before, up to the first that is to be read."""
        if start >= stop:
            return start
        stream = work.stream
        reads = work.places[np.searchsorted(work.places, start) :]
        border = min(stop, stream.chain_stop(start), *reads[:1].tolist())
        path = stream.root_path(start)
        wanted = stream.tokens[np.concatenate([path, np.arange(start, border)])]
        return start + max(0, common_prefix(self._store.ids, wanted) - len(path))

    @torch.inference_mode()
    def _forward(self, work: Work, start: int, stop: int, requests: Sequence[Request], table: ReadoutTable) -> bool:
        """Send one stretch of the stream through the model; False, with nothing changed, if memory ran out."""
        stream = work.stream
        layout = lay_out(stream, start, stop)
        attention = PackAttention(layout, self._store, fused=self._fused)
        low, high = np.searchsorted(work.places, [start, stop])
        try:
            tokens = torch.from_numpy(stream.tokens[start:stop].astype(np.int64)).to(self._device)
            positions = torch.from_numpy(stream.positions[start:stop]).to(self._device)
            self._reset_rope()
            # Where nothing is read any row will do; identical prompts are read at the same place.
            wanted = np.unique(work.places[low:high] - start) if low < high else np.zeros(1, dtype=np.int64)
            rows = torch.from_numpy(wanted).to(self._device)
            with attending_through(self._config, attention), reading_only(self._last_parts, rows, stop - start):
                hidden = self._trunk(input_ids=tokens[None], position_ids=positions[None], use_cache=False)[0][0]
            self.windows = tuple(attention.windows)
            if low < high:
                places = torch.from_numpy(work.places[low:high] - start).to(hidden.device)
                read = read_positions(self._head, hidden[places], work.positions[low:high], requests)
            else:
                read = []
            self._store.commit(layout.keep_from, stream.tokens[stream.root_path(stop)])
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # The caller retries: inside this block the traceback would pin the activations.
            read = None
        finally:
            self._store.discard()
        if read is None:
            return False
        for result in read:
            table.add(*result)
        self.computed_tokens += stop - start
        return True
