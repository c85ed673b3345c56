"""Attention over one stretch of keys: the kernels of the prefix-sharing engine.

All take queries of shape (heads, queries, size) and keys and values of shape (key heads, keys, size); key heads divide
heads (grouped queries). Results come with the log-sum-exp of the scores, by which parts over different keys merge into
the softmax over all of them exactly::

    softmax over A and B = (exp(lse_A) out_A + exp(lse_B) out_B) / (exp(lse_A) + exp(lse_B))
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

__all__ = ["attend", "attend_to_oneself", "merge"]

#: Most scores held at once without a fused kernel.
_MAX_SCORES = 1 << 24
#: The CPU's fused kernel of `scaled_dot_product_attention`; only under this name it returns the log-sum-exp.
_FUSED_CPU: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend to one stretch of keys."""
    if query.device.type == "cpu" and _FUSED_CPU is not None and softcap is None:
        size = value.shape[-1]
        if size < query.shape[-1]:
            value = functional.pad(value, (0, query.shape[-1] - size))
        if value.shape[-1] == query.shape[-1]:
            bias = None
            if mask is not None:
                bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
            out, lse = _FUSED_CPU(query[None], key[None], value[None], 0.0, causal, attn_mask=bias, scale=scale)
            return out[0, ..., :size], lse[0]
        value = value[..., :size]
    if causal:
        mask = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool, device=query.device).tril()
    step = max(1, _MAX_SCORES // (query.shape[0] * key.shape[1]))
    parts = [
        _attend_by_matmul(
            query[:, low : low + step], key, value, scale, softcap, None if mask is None else mask[low : low + step]
        )
        for low in range(0, query.shape[1], step)
    ]
    return torch.cat([out for out, _ in parts], dim=1), torch.cat([lse for _, lse in parts], dim=1)


def _attend_by_matmul(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    softcap: float | None,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    heads, queries, _ = query.shape
    # Heads that share keys are folded into the queries instead of repeating the keys.
    folded = query.reshape(key.shape[0], -1, *query.shape[1:])
    wide = torch.promote_types(query.dtype, torch.float32)
    # Scale before the product: in float16 a product of unscaled vectors may exceed 65,504.
    scores = torch.matmul((folded * scale).to(query.dtype), key[:, None].transpose(-1, -2)).to(wide)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse[..., None]).to(value.dtype)
    out = torch.matmul(weights, value[:, None])
    return out.reshape(heads, queries, -1), lse.reshape(heads, queries)


def attend_to_oneself(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float, softcap: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from every query to the one key at its own position; parameters and results as for `attend`."""
    group = query.shape[0] // key.shape[0]
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) * key.repeat_interleave(group, 0).to(wide)).sum(-1) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return value.repeat_interleave(group, 0), scores


def merge(out: torch.Tensor, lse: torch.Tensor, more_out: torch.Tensor, more_lse: torch.Tensor) -> None:
    """Add the attention to further keys to `out` and `lse`, in place."""
    total = torch.logaddexp(lse, more_lse)
    out.mul_(torch.exp(lse - total)[..., None]).add_(more_out * torch.exp(more_lse - total)[..., None])
    lse.copy_(total)
