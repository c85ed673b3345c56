"""The forward pass of one stretch of the stream through the model.

Launching prepares index tensors and queues the computation; on a GPU the host is free long before the
device has finished. The engine's state does not change until a stretch is accepted, so one that ran out of memory is
simply dropped.

The layers call the attention function registered with transformers under `NAME`, so every architecture
whose layers look it up there is served. Transformers makes no mask for a name without a mask function: no tensor of
size tokens x tokens is ever built; visibility is in the pack's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from geval_local.engine.interface import PendingPositions
from geval_local.engine.prefix_sharing.attention import PackAttention
from geval_local.engine.prefix_sharing.flex import FlexKernel, keep_compilations
from geval_local.engine.prefix_sharing.key_value_store import PathStore
from geval_local.engine.prefix_sharing.layout import lay_out
from geval_local.engine.prefix_sharing.packs import Work
from geval_local.engine.prefix_sharing.prompt_trie import Index
from geval_local.errors import UnsupportedModelError
from geval_local.models.head import Head, to_device
from geval_local.models.memory import is_out_of_memory
from geval_local.models.rope import Trunk
from geval_local.tokens.requests import Request

#: Variants of a layer's parts: its dtypes, kinds of layer, a pack of one token. Beyond PyTorch's usual 8 of them it
#: would go on uncompiled.
_VARIANTS = 64


class CompiledLayers:
    """Compiled forward passes of a trunk's layers, beside their usual ones."""

    def __init__(self, trunk: nn.Module, layers: int) -> None:
        lists = (module for module in trunk.modules() if isinstance(module, nn.ModuleList) and len(module) == layers)
        found = next(lists, None)
        if found is None:
            raise UnsupportedModelError(f"{type(trunk).__name__} has no list of {layers} layers to compile")
        keep_compilations()
        # The number of tokens differs from pack to pack.
        self._passes: list[tuple[nn.Module, Callable[..., Any]]] = [
            (layer, torch.compile(layer.forward, dynamic=True)) for layer in found
        ]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the layers compute by their compiled passes for a while."""
        config: Any = torch._dynamo.config
        before = [(layer, vars(layer).get("forward")) for layer, _ in self._passes]
        for layer, compiled in self._passes:
            layer.forward = compiled
        try:
            with config.patch(recompile_limit=_VARIANTS):
                yield
        finally:
            for layer, forward in before:
                del layer.forward
                if forward is not None:  # a hook of accelerate's
                    layer.forward = forward


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
    #: Length of the root path to hold afterwards.
    path: int
    #: First new position of that path; earlier ones are already held.
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
        compiled: bool = False,
    ) -> None:
        self.trunk = Trunk(model)
        self._config = model.config
        self._head = head
        self._kernel = kernel
        self._attention = attention
        self._compiled = None
        if compiled:
            self._compiled = CompiledLayers(self.trunk.module, int(model.config.get_text_config().num_hidden_layers))
            compiler: Any = torch.compiler
            AttentionInterface.register(NAME, compiler.disable(_attention))

    def launch(
        self, work: Work, start: int, stop: int, path: Index, requests: Sequence[Request], store: PathStore
    ) -> Launched | None:
        """Send the stretch from `start` to `stop` through the model; None if memory ran out."""
        try:
            return self._launch(work, start, stop, path, requests, store)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # The caller retries: in the block above, the traceback would pin the activations.
        return None

    @torch.inference_mode()
    def _launch(
        self, work: Work, start: int, stop: int, path: Index, requests: Sequence[Request], store: PathStore
    ) -> Launched:
        stream = work.stream
        layout = lay_out(stream, start, stop, path)
        attention = self._attention(layout, store, kernel=self._kernel)
        tokens = to_device(stream.tokens[start:stop].astype(np.int64), self.trunk.device)
        positions = to_device(stream.positions[start:stop], self.trunk.device)
        compiled = nullcontext() if self._compiled is None else self._compiled.in_use()
        with attending_through(self._config, attention), compiled:
            hidden = self.trunk(tokens[None], position_ids=positions[None], use_cache=False)[0][0]
        read = None
        low, high = np.searchsorted(work.places, [start, stop]).tolist()
        if low < high and requests:
            places = to_device(work.places[low:high] - start, hidden.device)
            read = PendingPositions(self._head, hidden[places], work.positions[low:high], requests)
        length = layout.keep_from + len(layout.keep)
        return Launched(stop - start, length, layout.keep_from, attention.added, tuple(attention.spans), read)
