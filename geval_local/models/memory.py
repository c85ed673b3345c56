"""Recognising a device that ran out of memory, whichever allocator says so."""

from __future__ import annotations

import gc

import torch

__all__ = ["is_out_of_memory", "release_memory"]


#: Of the CPU allocator on Unix and on Windows, and of cuBLAS, which allocates its own workspace.
_MESSAGES = ("can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on a GPU or on the CPU.

    Parameters
    ----------
    error : BaseException
        As caught around a forward pass.
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in _MESSAGES)


def release_memory() -> None:
    """Give back what a model held that nobody refers to any more, on a GPU too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
