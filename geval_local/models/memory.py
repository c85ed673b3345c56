"""Devices: which one is there, free memory, peak use of a computation, and detection of out-of-memory errors."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence

import torch

#: Texts of out-of-memory errors raised as a plain RuntimeError by allocators and libraries: the CPU's on Unix and
#: Windows; CUDA's runtime (pinned memory, kernels loaded late) and its libraries, of which cuBLAS cannot even start
#: without memory; the same of AMD; Apple's; Intel's.
_MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "error: out of memory",
    "backend out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "HIPBLAS_STATUS_ALLOC_FAILED",
    "hipErrorOutOfMemory",
    "OUT_OF_DEVICE_MEMORY",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


def default_device() -> torch.device:
    """Return the device of a judge that asks for none: an accelerator (CUDA, AMD, mps, xpu), else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def free_memory(device: torch.device) -> int:
    """Return the free memory of a device in bytes, including PyTorch's unused reserve; 0 if unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    if device.type == "cpu" and "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


class PeakMemory:
    """Peak memory of a computation, relative to the memory in use when the object was created."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        for device in devices:
            torch.cuda.reset_peak_memory_stats(device)
        self._before = {device: torch.cuda.memory_allocated(device) for device in devices}

    def added(self, device: torch.device) -> int:
        """Return the peak number of bytes in use since then, less those in use before."""
        return torch.cuda.max_memory_allocated(device) - self._before[device]


def release_memory() -> None:
    """Release memory of a model that is no longer referenced, on a GPU too."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
