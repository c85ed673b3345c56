"""The prefix-sharing engine: every distinct prompt token goes through the model once.

It knows nothing of texts or metrics. The requests' prompts, with the inner nodes of their label tries as further
leaves, become one stream (`packs`); a pack is a stretch of it, bounded in tokens whatever the length of a prompt.
Between packs only the keys and values on the root path of the next token are kept (`path_store`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.interface import Pack, PendingPositions, Readout, ReadoutTable
from geval_local.engine.prefix_sharing.forward import Launched, Launcher
from geval_local.engine.prefix_sharing.key_value_store import PathStore
from geval_local.engine.prefix_sharing.packs import StreamPack, Work, cut, lay_requests_out
from geval_local.engine.prefix_sharing.prefix_store import PrefixStore
from geval_local.engine.prefix_sharing.prompt_trie import build_stream
from geval_local.models.head import Head
from geval_local.models.memory import is_out_of_memory
from geval_local.models.rope import length_groups
from geval_local.tokens.requests import Request, common_prefix

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
    ) -> None:
        self._launcher = Launcher(model, head, fused=fused)
        self._group = length_groups(model.config)
        self._padded = padded
        self._store = PathStore()
        self._prefixes = PrefixStore()
        #: Whether a pack is launched before what the one before it gave is waited for. On a CPU launching is computing.
        self._runs_ahead = self._launcher.device.type == "cuda"
        self._ahead: Launched | None = None
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
        for pack, following in itertools.zip_longest(packs, packs[1:]):
            if not isinstance(pack, StreamPack):
                yield from self._padded.execute(requests, [pack])
                continue
            self._start_from_prefix(requests)
            reads: list[PendingPositions] = []
            resume = self._compute(pack.work, max(pack.start, resume), pack.stop, requests, reads, failed)
            self._launch_ahead(following, resume, requests)
            for read in reads:
                for result in read.wait():
                    table.add(*result)
            yield (
                pack,
                [
                    Readout(None, error=failed[index]) if index in failed else table.take(index)
                    for index in pack.requests
                ],
            )

    def forget(self) -> None:
        """Drop the keys and values of the last prompt, from which later work would go on; metrics' prefixes stay."""
        self._store = PathStore()
        self._ahead = None

    def _start_from_prefix(self, requests: Sequence[Request]) -> None:
        """Begin behind the prefix that the metric owns, if nothing else is held."""
        prefix = requests[0].prefix if requests else None
        if prefix is None or len(self._store.ids) or not self._prefixes.takes(prefix):
            return
        limit = self.limit
        kept = self._prefixes.find(prefix, limit)
        if kept is not None:
            self._store = kept
        elif not self._fill_path(prefix):
            self.limit = limit  # the prompts behind it will be given up, the rest keeps its pace
        elif self.limit == limit:
            self._prefixes.keep(prefix, limit, self._store)

    def _compute(
        self,
        work: Work,
        start: int,
        stop: int,
        requests: Sequence[Request],
        reads: list[PendingPositions],
        failed: dict[int, str],
    ) -> int:
        """Compute the stretch from `start` to `stop`; return where to go on, which is further if a prompt failed."""
        while (start := self._skip_held(work, start, stop)) < stop:
            limit = self.limit
            path = work.stream.tokens[work.stream.root_path(start)]
            if self._fill_path(path) and (done := self._compute_fitting(work, start, stop, requests, reads)):
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
            done = self._compute_fitting(lone, held, len(path), (), [])
            if not done:
                return False
            held = done
        return True

    def _compute_fitting(
        self, work: Work, start: int, stop: int, requests: Sequence[Request], reads: list[PendingPositions]
    ) -> int:
        """Compute from `start` on as many tokens as fit into memory; return where that ended, 0 if none did."""
        while True:
            end = min(stop, start + self.limit)
            launched = self._take_ahead(work, start, end, requests)
            launched = launched or self._launcher.launch(work, start, end, requests, self._store)
            if launched is not None and self._accept(launched):
                reads += [] if launched.read is None else [launched.read]
                return end
            launched = None
            if end - start <= FLOOR:
                return 0
            self.limit = max(FLOOR, (end - start) // 2)

    @torch.inference_mode()
    def _accept(self, launched: Launched) -> bool:
        """Go on from behind a stretch; False, with nothing changed, if memory does not suffice for its path."""
        try:
            self._store.commit(launched.keep_from, launched.ids, launched.added)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        self.windows = launched.windows
        self.computed_tokens += launched.stop - launched.start
        return True

    def _launch_ahead(self, pack: Pack | None, resume: int, requests: Sequence[Request]) -> None:
        """Launch a pack whose turn is next, if one forward pass is all that it takes."""
        if not (self._runs_ahead and isinstance(pack, StreamPack)) or pack.start < resume:
            return
        work, start = pack.work, self._skip_held(pack.work, pack.start, pack.stop)
        path = work.stream.tokens[work.stream.root_path(start)]
        if start < pack.stop <= start + self.limit and common_prefix(self._store.ids, path) == len(path):
            self._ahead = self._launcher.launch(work, start, pack.stop, requests, self._store)

    def _take_ahead(self, work: Work, start: int, stop: int, requests: Sequence[Request]) -> Launched | None:
        """Take what was launched ahead; None unless it is this very stretch behind the path that is held now."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.work is not work or (ahead.start, ahead.stop) != (start, stop):
            return None
        return ahead

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
