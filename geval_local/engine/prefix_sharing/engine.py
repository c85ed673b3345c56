"""The prefix-sharing engine: every distinct prompt token is computed once.

Independent of texts and metrics. The requests' prompts, with the inner nodes of their label tries as further
leaves, become one stream, the stream becomes units and packs (`packs`); a pack is a stretch of the stream, bounded in
tokens for prompts of any length. Between packs only the keys and values on the root path of the next token are
kept (`key_value_store`).

A position on that path always holds the result of its planned pack; a missing pack is
computed as a whole. So a unit's figures are bit-identical whatever was executed before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.interface import Pack, PendingPositions, Readout, ReadoutTable
from geval_local.engine.prefix_sharing.flex import FlexKernel
from geval_local.engine.prefix_sharing.forward import Launched, Launcher
from geval_local.engine.prefix_sharing.key_value_store import PathStore, PrefixStore
from geval_local.engine.prefix_sharing.packs import StreamPack, Work, plan_packs
from geval_local.engine.prefix_sharing.prompt_trie import Index
from geval_local.models.head import Head, gpus_of
from geval_local.models.memory import is_out_of_memory
from geval_local.tokens.requests import Request

#: Smallest pack: a prompt is given up if not even this many tokens fit.
FLOOR = 64


class PrefixSharingEngine:
    """Engine that shares prefixes between prompts.

    Parameters
    ----------
    model : PreTrainedModel
        A causal LM in evaluation mode whose layers use a registered attention function (see `choose`).
    head : Head
        Its read-out head.
    batch_tokens : int
        Most tokens per forward pass.
    padded : PaddedEngine
        Engine for prompts beyond the switch of a length-dependent rotary embedding.
    kernel : FlexKernel, optional
        Kernel for a layer's whole attention, see `flex.find_kernel`; computed in pieces when absent.
    look_ahead : int, optional
        Packs launched before waiting for the first one's results. When absent, the number of the model's GPUs; none on
        a CPU, where launching computes immediately.
    compiled : bool
        Whether the layers are compiled, see `compiled`.

    Attributes
    ----------
    name : str
        ``trie``, or ``trie-compiled``.
    kernel, compiled
        As given.
    computed_tokens : int
        Tokens computed so far.
    spans : tuple of (int or None)
        Sliding windows that the layers requested in the latest forward pass, one per call of the attention
        function.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        *,
        batch_tokens: int = 2048,
        padded: PaddedEngine,
        kernel: FlexKernel | None = None,
        look_ahead: int | None = None,
        compiled: bool = False,
    ) -> None:
        self.name = "trie-compiled" if compiled else "trie"
        self.kernel = kernel
        self.compiled = compiled
        self._launcher = Launcher(model, head, kernel=kernel, compiled=compiled)
        self._padded = padded
        self._work: Work | None = None
        self._path: Index = np.zeros(0, dtype=np.int64)
        self.path_store = PathStore()
        self._prefixes = PrefixStore()
        self.look_ahead = len(gpus_of(model)) if look_ahead is None else look_ahead
        self.limit = batch_tokens
        self.batch_tokens = batch_tokens
        self.computed_tokens = 0
        self.spans: tuple[int | None, ...] = ()

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """Lay out the requests' prompt trie and cut it into units of packs of at most `batch_tokens`."""
        groups = [self._launcher.trunk.group(len(request.ids) + request.trie.depth) for request in requests]
        members = [number for number, group in enumerate(groups) if group == 0]
        packs: list[Pack] = list(plan_packs(members, requests, self.batch_tokens))
        units = packs[-1].unit + 1 if packs else 0
        apart = [number for number, group in enumerate(groups) if group != 0]
        packs += [
            Pack(tuple(apart[local] for local in pack.requests), pack.tokens, units + pack.unit)
            for pack in self._padded.plan([requests[number] for number in apart])
        ]
        return packs

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """Compute packs in order; a prompt that does not fit into memory even piecemeal gets an error."""
        table = ReadoutTable(requests)
        failed: dict[int, str] = {}
        launched: deque[tuple[Pack, list[PendingPositions]]] = deque()
        resume = 0

        def read_out() -> tuple[Pack, list[Readout]]:
            pack, reads = launched.popleft()
            for read in reads:
                for result in read.wait():
                    table.add(*result)
            return pack, [
                Readout(None, error=failed[index]) if index in failed else table.take(index) for index in pack.requests
            ]

        for pack in packs:
            if isinstance(pack, StreamPack):
                reads: list[PendingPositions] = []
                resume = self._compute(pack, resume, requests, reads, failed)
                launched.append((pack, reads))
            while len(launched) > (self.look_ahead if isinstance(pack, StreamPack) else 0):
                yield read_out()
            if not isinstance(pack, StreamPack):
                yield from self._padded.execute(requests, [pack])
        while launched:
            yield read_out()

    def _compute(
        self,
        pack: StreamPack,
        resume: int,
        requests: Sequence[Request],
        reads: list[PendingPositions],
        failed: dict[int, str],
    ) -> int:
        """Compute a pack from `resume` on; return where to continue, which is beyond its end if a prompt failed."""
        work, start = pack.work, max(pack.start, resume)
        while start < pack.stop:
            stuck = self._hold(work, start)
            if stuck is None and not self._is_held(work, pack):
                stuck = self._run(work, start, pack.stop, requests, reads)
            if stuck is None:
                return pack.stop
            # Not even the smallest pack fits: give up every prompt that needs this token.
            end = work.stream.visible_until(stuck)
            for number in range(*np.searchsorted(work.places, [stuck, end])):
                index = work.positions[number].request
                failed[index] = (
                    f"out of memory: a prompt of {len(requests[index].ids)} tokens does not fit even piecemeal"
                )
            start = end
        return start

    def _is_held(self, work: Work, pack: StreamPack) -> bool:
        """Whether a pack without read-outs lies on the held path, such as a metric's prefix."""
        low, high = np.searchsorted(work.places, [pack.start, pack.stop])
        place = int(work.stream.positions[pack.stop - 1])
        return low == high and place < len(self._path) and int(self._path[place]) == pack.stop - 1

    def _hold(self, work: Work, token: int) -> int | None:
        """Ensure that the keys and values on a token's root path are held; return the first one that failed."""
        if self._work is not work:
            self._begin(work)
        wanted = work.stream.root_path(token)
        while (held := _shared(self._path, wanted)) < len(wanted):
            # Nothing is missing here, unless units were skipped or another run intervened.
            start, stop = work.pack_of(int(wanted[held]))
            stuck = self._hold(work, start)
            if stuck is None:
                stuck = self._run(work, start, min(stop, token), (), [], toward=token)
            if stuck is not None:
                return stuck
        return None

    def _begin(self, work: Work) -> None:
        """Start from the metric's prefix if it is kept, else from scratch."""
        kept = self._prefixes.find(work.prefix, self.limit) if len(work.prefix) else None
        self.path_store = PathStore() if kept is None else kept
        self._path = np.arange(self.path_store.length)
        self._work = work

    def _run(
        self,
        work: Work,
        start: int,
        stop: int,
        requests: Sequence[Request],
        reads: list[PendingPositions],
        toward: int | None = None,
    ) -> int | None:
        """Compute a stretch that follows the held path, in as many passes as memory allows.

        Afterwards the root path of `toward` is held, or of `stop` if absent. Returns the first token that could not be
        computed, None if all were.
        """
        begun = self.limit
        while start < stop:
            end = min(stop, start + self.limit)
            path = work.stream.root_path(end if end < stop or toward is None else toward)
            launched = self._launcher.launch(work, start, end, path, requests, self.path_store)
            if launched is not None and self._accept(launched):
                self._path = path[: np.searchsorted(path, end)]
                reads += [] if launched.read is None else [launched.read]
                start = end
            elif end - start > FLOOR:
                self.limit = max(FLOOR, (end - start) // 2)
            else:
                self.limit = begun  # one prompt that does not fit must not slow down others
                return start
            launched = None
        if stop == len(work.prefix) and self.limit == begun and len(self._path) == stop:
            self._prefixes.keep(work.prefix, begun, self.path_store)
        return None

    @torch.inference_mode()
    def _accept(self, launched: Launched) -> bool:
        """Commit a stretch; return False, with nothing changed, if memory does not suffice for its path."""
        try:
            self.path_store.commit(launched.keep_from, launched.path, launched.added)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        self.spans = launched.spans
        self.computed_tokens += launched.tokens
        return True


def _shared(first: Index, second: Index) -> int:
    """Return the length of the common part of two root paths."""
    length = min(len(first), len(second))
    return int(np.append(first[:length] == second[:length], False).argmin())
