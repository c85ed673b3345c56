"""The prefix-sharing engine: every distinct prompt token is computed once.

Independent of texts and metrics. The requests' prompts, with the inner nodes of their label tries as further leaves,
become one stream, and the stream becomes units and packs (`packs`). A pack is a stretch of the stream, bounded in
tokens for prompts of any length. Between packs only the keys and values on the root path of the next token are kept
(`key_value_store`).

A position on that path always contains the result of its planned pack; a missing pack is computed as a whole. So a
unit's figures are bit-identical and do not depend on what was executed before.

Launching a stretch prepares index tensors and queues the computation; on a GPU the host is free long before the
device has finished. The engine's state does not change until a stretch is accepted, so one that ran out of memory is
simply dropped.

The layers call the attention function that is registered with transformers as `NAME`, so the engine serves every
architecture whose layers look it up there. Transformers makes no mask for a name without a mask function: no tensor of
size tokens x tokens is ever built; the pack's layout describes visibility.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, PreTrainedModel

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.interface import Engine, Pack, Readout, ReadoutTable
from geval_local.engine.pending import PendingPositions, computed_ahead
from geval_local.engine.prefix_sharing.attention import PackAttention
from geval_local.engine.prefix_sharing.flex import FlexKernel
from geval_local.engine.prefix_sharing.key_value_store import PathStore, PrefixStore
from geval_local.engine.prefix_sharing.packs import StreamPack, Work, plan_packs
from geval_local.engine.prefix_sharing.prompt_trie import Index, lay_out
from geval_local.errors import UnsupportedModelError
from geval_local.models.head import Head, Trunk, gpus_of, to_device
from geval_local.models.memory import release_memory, unless_memory_runs_out
from geval_local.tokens.requests import Request, common_prefix

NAME = "geval_local_prefix_sharing"

_current: ContextVar[PackAttention | None] = ContextVar("geval_local_pack", default=None)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    *_: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **__: Any,
) -> tuple[torch.Tensor, None]:
    """Attend by the current pack's layout; called by transformers."""
    pack = _current.get()
    if pack is None:
        raise UnsupportedModelError(f"the attention function {NAME!r} was called outside of a pack")
    if attention_mask is not None:
        raise UnsupportedModelError(f"{type(module).__name__} brings its own attention mask")
    if position_bias is not None:
        raise UnsupportedModelError(f"{type(module).__name__} adds a bias by position to its scores")
    if query.shape[0] != 1 or query.shape[2] != pack.layout.stop - pack.layout.start or key.shape[2] != query.shape[2]:
        raise UnsupportedModelError(f"{type(module).__name__} does not attend token by token")
    out = pack(
        query[0],
        key[0],
        value[0],
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        span=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return out[None], None


AttentionInterface.register(NAME, _attention)


@contextmanager
def attending_through(config: Any, pack: PackAttention) -> Iterator[None]:
    """Let a model's layers attend through `pack`; restore its own attention afterwards."""
    before = _implementations(config)
    token = _current.set(pack)
    config._attn_implementation = NAME
    try:
        yield
    finally:
        for part, name in before:
            part._attn_implementation = name
        _current.reset(token)


def _implementations(config: Any) -> list[tuple[Any, Any]]:
    """List a configuration and its nested ones, outermost first, each with its attention implementation."""
    found = [(config, config._attn_implementation)]
    for name in getattr(config, "sub_configs", {}):
        inner = getattr(config, name, None)
        if inner is not None:
            found += _implementations(inner)
    return found


@dataclass(frozen=True)
class Launched:
    """A stretch whose computation is done or queued."""

    #: Number of tokens.
    tokens: int
    #: Length of the root path to keep afterwards.
    path: int
    #: First new position of that path; earlier ones are already stored.
    keep_from: int
    #: For every layer, keys and values of the new positions.
    added: list[tuple[torch.Tensor, torch.Tensor]]
    #: Sliding windows that the layers requested.
    spans: tuple[int | None, ...]
    #: Its read-outs; None if there are none.
    read: PendingPositions | None


class Launcher:
    """Sends stretches through a model."""

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        *,
        kernel: FlexKernel | None,
        attention: Callable[..., PackAttention] = PackAttention,
    ) -> None:
        self.trunk = Trunk(model)
        self._config = model.config
        self._head = head
        self._kernel = kernel
        self._attention = attention

    def launch(
        self, work: Work, start: int, stop: int, path: Index, requests: Sequence[Request], store: PathStore
    ) -> Launched | None:
        """Send the stretch from `start` to `stop` through the model; None if memory ran out."""
        return unless_memory_runs_out(partial(self._launch, work, start, stop, path, requests, store))

    @torch.inference_mode()
    def _launch(
        self, work: Work, start: int, stop: int, path: Index, requests: Sequence[Request], store: PathStore
    ) -> Launched:
        stream = work.stream
        layout = lay_out(stream, start, stop, path)
        attention = self._attention(layout, store, kernel=self._kernel)
        tokens = to_device(stream.tokens[start:stop].astype(np.int64), self.trunk.device)
        positions = to_device(stream.positions[start:stop], self.trunk.device)
        with attending_through(self._config, attention):
            hidden = self.trunk(tokens[None], position_ids=positions[None], use_cache=False)[0][0]
        read = None
        low, high = np.searchsorted(work.places, [start, stop]).tolist()
        if low < high and requests:
            places = to_device(work.places[low:high] - start, hidden.device)
            read = PendingPositions(self._head, hidden[places], work.positions[low:high], requests)
        length = layout.keep_from + len(layout.keep)
        return Launched(stop - start, length, layout.keep_from, attention.added, tuple(attention.spans), read)


#: Smallest pack: if not even this many tokens fit, the prompt gets an error.
FLOOR = 64


class PrefixSharingEngine(Engine):
    """Engine that shares prefixes between prompts, for a model whose layers use a registered attention function.

    `padded` serves prompts beyond the switch of a length-dependent rotary embedding, `kernel` a layer's whole attention
    (in pieces when absent, see `flex.find_kernel`).
    """

    name = "trie"

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        *,
        batch_tokens: int = 2048,
        padded: PaddedEngine,
        kernel: FlexKernel | None = None,
        look_ahead: int | None = None,
    ) -> None:
        self.kernel = kernel
        self._launcher = Launcher(model, head, kernel=kernel)
        self.padded = padded
        self.turn = padded.turn
        self._work: Work | None = None
        self._path: Index = np.zeros(0, dtype=np.int64)
        self.path_store = PathStore()
        self._prefixes = PrefixStore()
        #: Packs launched before waiting for the first one's results; none on a CPU, where launching computes at once.
        self.look_ahead = len(gpus_of(model)) if look_ahead is None else look_ahead
        self.batch_tokens = self.limit = batch_tokens
        self.computed_tokens = 0
        #: Sliding windows that the layers requested in the latest pass, one per call of the attention function.
        self.spans: tuple[int | None, ...] = ()

    @property
    def parts(self) -> Sequence[Engine]:
        """See `geval_local.engine.interface.Engine.parts`."""
        return [self, self.padded]

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """Lay out the requests' prompt trie and cut it into units of packs of at most `batch_tokens`."""
        groups = [self._launcher.trunk.group(len(request.ids) + request.trie.depth) for request in requests]
        members = [number for number, group in enumerate(groups) if group == 0]
        packs = plan_packs(members, requests, self.batch_tokens)
        return [*packs, *self.padded.plan_apart(requests, groups, packs[-1].unit + 1 if packs else 0)]

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """Compute packs in order; a prompt that does not fit into memory even piecemeal gets an error."""
        table = ReadoutTable(requests)
        resume = 0

        def launch(pack: Pack) -> list[PendingPositions] | None:
            nonlocal resume
            if not isinstance(pack, StreamPack):
                return None
            reads: list[PendingPositions] = []
            resume = self._compute(pack, resume, requests, reads, table)
            return reads

        def read_out(pack: Pack, reads: list[PendingPositions]) -> list[Readout]:
            table.collect(found for read in reads for found in read.wait())
            return [table.take(index) for index in pack.requests]

        padded = partial(self.padded.execute, requests)
        return computed_ahead(packs, launch, read_out, self.look_ahead, padded)

    def _compute(
        self,
        pack: StreamPack,
        resume: int,
        requests: Sequence[Request],
        reads: list[PendingPositions],
        table: ReadoutTable,
    ) -> int:
        """Compute a pack from `resume` on; return where to continue, which is beyond its end if a prompt failed."""
        work, start = pack.work, max(pack.start, resume)
        while start < pack.stop:
            stuck = self._hold(work, start)
            if stuck is None and not self._is_held(work, pack):
                stuck = self._run(work, start, pack.stop, requests, reads)
            if stuck is None:
                return pack.stop
            # Not even the smallest pack fits: every prompt that needs this token gets an error.
            end = work.stream.visible_until(stuck)
            for number in range(*np.searchsorted(work.places, [stuck, end])):
                table.fail(work.positions[number].request, "piecemeal")
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
        while (held := common_prefix(self._path, wanted)) < len(wanted):
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
        begun, is_last_try = self.limit, False
        while start < stop:
            end = min(stop, start + self.limit)
            path = work.stream.root_path(end if end < stop or toward is None else toward)
            launched = self._launcher.launch(work, start, end, path, requests, self.path_store)
            if launched is not None and self._accept(launched):
                self._path = path[: np.searchsorted(path, end)]
                reads += [] if launched.read is None else [launched.read]
                start, is_last_try = end, False
            elif end - start > FLOOR:
                self.limit = max(FLOOR, (end - start) // 2)
            elif not is_last_try:
                # Another process may have had the memory for a moment.
                release_memory()
                is_last_try = True
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

        def commit() -> bool:
            self.path_store.commit(launched.keep_from, launched.path, launched.added)
            return True

        if not unless_memory_runs_out(commit):
            return False
        self.spans = launched.spans
        self.computed_tokens += launched.tokens
        return True
