"""A half-precision model in float32 for the moment of a probe: what rounding hides there shows here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

__all__ = ["widened"]

_HALF = (torch.bfloat16, torch.float16)


@contextmanager
def widened(model: PreTrainedModel) -> Iterator[bool]:
    """Hold a half-precision model in float32; its own tensors come back afterwards, untouched.

    Yields
    ------
    bool
        Whether the model is in float32 now. It stays as it is where memory does not suffice, or where its weights are
        quantized or offloaded.
    """
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.dtype in _HALF]
    if not tensors or getattr(model, "is_quantized", False) or not _fits(tensors):
        yield False
        return
    narrow = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.float()
        yield True
    finally:
        for tensor, data in zip(tensors, narrow, strict=True):
            tensor.data = data


def _fits(tensors: list[Any]) -> bool:
    """Whether float32 copies take at most half of the free memory of every device."""
    needed: dict[torch.device, int] = {}
    for tensor in tensors:
        needed[tensor.device] = needed.get(tensor.device, 0) + 4 * tensor.numel()
    return all(2 * size <= _free_memory(device) for device, size in needed.items())


def _free_memory(device: torch.device) -> int:
    """Free memory of a device in bytes; 0 where it cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "cpu" and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0
