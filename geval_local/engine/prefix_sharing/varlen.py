"""Fused attention over many sequences of different lengths in one call, on a GPU in half precision.

PyTorch's own kernel where it fits, the package flash-attn where scores are soft-capped or PyTorch is too old. Both are
causal with the last query aligned to the last key of its sequence.
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

__all__ = ["Packed", "VarlenKernel", "find_varlen"]


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
        window: int | None,
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
        window : int, optional
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
        left = -1 if window is None else window - 1
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
