"""Attention over one stretch of keys: the kernels under the prefix-sharing engine.

All take queries of shape (heads, queries, size) and keys and values of shape (key heads, keys, size); key heads divide
heads (grouped queries). Results come with the log-sum-exp of the scores, by which parts over different keys merge into
the softmax over all of them exactly::

    softmax over A and B = (exp(lse_A) out_A + exp(lse_B) out_B) / (exp(lse_A) + exp(lse_B))
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.nn import functional

__all__ = ["Packed", "VarlenKernel", "attend", "attend_to_oneself", "find_varlen", "merge"]

#: Most scores held at once where no fused kernel applies.
_MAX_SCORES = 1 << 24
#: The CPU's fused kernel is what `scaled_dot_product_attention` runs; only this name of it gives the log-sum-exp.
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
    """Attend to one stretch of keys.

    Parameters
    ----------
    query, key, value : Tensor
        Shapes as above; `value` may have a size of its own.
    scale : float
        Factor on the scores.
    softcap : float, optional
        Scores become ``softcap * tanh(score / softcap)``.
    causal : bool
        Query i sees keys 0 to i only; there are as many keys as queries.
    mask : Tensor of bool, shape (queries, keys), optional
        What each query sees: at least one key. Excludes `causal`.

    Returns
    -------
    out : Tensor, shape (heads, queries, value size)
    lse : Tensor, shape (heads, queries), float32 or float64
    """
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
    # Scaled before the product: in float16 a product of unscaled vectors may be beyond its 65,504.
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
    """Let every query see the one key of its own place; parameters and results as those of `attend`."""
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


@dataclass(frozen=True)
class Packed:
    """Sequences laid end to end.

    Attributes
    ----------
    query_ends, key_ends : Tensor of int32, shape (sequences + 1,)
        Cumulated lengths, from 0.
    most_queries, most_keys : int
        Longest of each.
    """

    query_ends: torch.Tensor
    key_ends: torch.Tensor
    most_queries: int
    most_keys: int


class VarlenKernel:
    """One of the kernels, under one signature.

    Parameters
    ----------
    flash_attn : bool
        The package flash-attn instead of PyTorch's own kernel.
    """

    def __init__(self, *, flash_attn: bool) -> None:
        self._module: Any = importlib.import_module("flash_attn" if flash_attn else "torch.nn.attention.varlen")
        self.name = "flash-attn" if flash_attn else "varlen"
        grouped = flash_attn or "enable_gqa" in inspect.signature(self._module.varlen_attn).parameters
        self._repeats_keys = not grouped

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        packed: Packed,
        *,
        scale: float,
        span: int | None,
        softcap: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend.

        Parameters
        ----------
        query, key, value : Tensor, shape (tokens, heads, size)
            Key heads divide heads; the value's size is at most the query's.
        packed : Packed
            Where sequences end.
        scale : float
            Factor on the scores.
        span : int, optional
            Keys that a query sees at most, itself included.
        softcap : float, optional
            Soft cap of the scores; flash-attn only.

        Returns
        -------
        out : Tensor, shape (tokens, heads, value size)
        lse : Tensor of float32, shape (tokens, heads)
        """
        heads, size = query.shape[1], value.shape[-1]
        if size < query.shape[-1]:
            value = functional.pad(value, (0, query.shape[-1] - size))
        if self._repeats_keys and key.shape[1] != heads:
            key, value = (part.repeat_interleave(heads // part.shape[1], dim=1) for part in (key, value))
        ends = (packed.query_ends, packed.key_ends, packed.most_queries, packed.most_keys)
        left = -1 if span is None else span - 1
        if self.name == "flash-attn":
            out, lse, _ = self._module.flash_attn_varlen_func(
                query,
                key,
                value,
                *ends,
                softmax_scale=scale,
                causal=True,
                window_size=(left, 0),
                softcap=softcap or 0.0,
                return_attn_probs=True,
            )
        else:
            grouped = {} if self._repeats_keys else {"enable_gqa": key.shape[1] != heads}
            out, lse = self._module.varlen_attn(
                query,
                key,
                value,
                *ends,
                return_aux=self._module.AuxRequest(lse=True),
                scale=scale,
                window_size=(left, 0),
                **grouped,
            )
        # Releases differ in the order of the log-sum-exp; all known kernels give (heads, tokens).
        return out[..., :size], lse.transpose(0, 1) if lse.shape[0] == heads else lse


def find_varlen(query: torch.Tensor, *, softcap: bool) -> VarlenKernel | None:
    """Find a kernel for the device and dtype of `query`, with or without soft-capped scores; None if there is none."""
    if not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return None
    return _kernel(softcap)


@lru_cache(maxsize=2)
def _kernel(softcap: bool) -> VarlenKernel | None:
    """Look for a kernel once: every layer of every pack asks."""
    if not softcap and importlib.util.find_spec("torch.nn.attention.varlen") is not None:
        module: Any = importlib.import_module("torch.nn.attention.varlen")
        if {"scale", "window_size"} <= set(inspect.signature(module.varlen_attn).parameters):
            return VarlenKernel(flash_attn=False)
    return VarlenKernel(flash_attn=True) if importlib.util.find_spec("flash_attn") is not None else None
