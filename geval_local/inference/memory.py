"""Recognising a device that ran out of memory, whichever allocator says so."""

from __future__ import annotations

import torch

__all__ = ["is_out_of_memory"]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on a GPU or on the CPU.

    Parameters
    ----------
    error : BaseException
        As caught around a forward pass.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
