"""The attention function that a model calls while a pack goes through it.

It is registered with transformers under `NAME` and so serves every architecture whose layers look their attention up
there. No mask is made for a name that has no mask function, so nothing of size tokens x tokens is ever built: who sees
whom is in the pack's layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from transformers import AttentionInterface

from geval_local.engine.prefix_sharing.attention import PackAttention
from geval_local.errors import UnsupportedModelError

__all__ = ["NAME", "attending_through"]

NAME = "geval_local_trie"

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
    """Attend as the current pack's layout says; this is what transformers calls."""
    pack = _current.get()
    if pack is None:
        raise UnsupportedModelError(f"the attention function {NAME!r} was called outside of a pack")
    if attention_mask is not None:
        raise UnsupportedModelError(f"{type(module).__name__} brings an attention mask of its own")
    if position_bias is not None:
        raise UnsupportedModelError(f"{type(module).__name__} adds a bias by position to its scores")
    if query.shape[0] != 1 or query.shape[2] != pack.layout.stop - pack.layout.start or key.shape[2] != query.shape[2]:
        raise UnsupportedModelError(f"{type(module).__name__} does not attend token by token")
    out = pack(
        query[0],
        key[0],
        value[0],
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return out[None], None


AttentionInterface.register(NAME, _attention)


@contextmanager
def attending_through(config: Any, pack: PackAttention) -> Iterator[None]:
    """Let a model's layers attend through `pack`; its own attention comes back afterwards.

    Parameters
    ----------
    config : PreTrainedConfig
        The model's configuration, where its layers look their attention up.
    pack : PackAttention
        The pack that will go through the model.
    """
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
    """List a configuration and the ones inside it, outermost first, each with its attention implementation."""
    found = [(config, config._attn_implementation)]
    for name in getattr(config, "sub_configs", {}):
        inner = getattr(config, name, None)
        if inner is not None:
            found += _implementations(inner)
    return found
