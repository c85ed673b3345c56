"""Memory: the default device, free memory, the memory that a judge needs on a CPU, and out-of-memory errors."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeVar

import torch

from geval_local.errors import JudgeError
from geval_local.files import readable
from geval_local.models.fingerprint import ADAPTER_WEIGHTS, weight_files
from geval_local.models.gguf.blocks import BLOCK_TYPES
from geval_local.models.gguf.model import kept_tensors, read_headers, tensor_size
from geval_local.models.reading import DTYPES, stored_in, stored_tensors
from geval_local.models.registry import JudgeEntry
from geval_local.models.stored import SLICE, are_few, is_kept_narrow, release_buffers

_T = TypeVar("_T")

#: Texts of out-of-memory errors raised as a plain RuntimeError by allocators and libraries: the CPU's on Unix and
#: Windows; CUDA's runtime (pinned memory, kernels loaded late) and its libraries, of which cuBLAS cannot even start
#: without memory; the same of AMD; Apple's; Intel's. Compilers quote the first.
_MESSAGES = (
    "CUDA out of memory",
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


def unless_memory_runs_out(work: Callable[[], _T], *, again: bool = False) -> _T | None:
    """Return the result of some work; None if memory ran out. Other errors are raised.

    With `again`, release unused memory and try once more: nothing smaller can be tried, and another process may have
    had the memory for a moment.
    """
    if again and (result := unless_memory_runs_out(work)) is not None:
        return result
    if again:
        release_memory()
    try:
        return work()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    # Callers retry after this return: inside the block above the traceback would keep the activations alive.
    return None


def count_gpus() -> int:
    """Count the GPUs of this machine that this process may use."""
    return torch.cuda.device_count()


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


#: Control groups of Linux, by the version of the interface: its root, and the names of a group's limit, of its use, and
#: of the cached files in that use.
_GROUPS = {
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def available_memory(system: Path = Path("/")) -> int:
    """Return the bytes of main memory that are available without swapping; 0 if unknown."""
    try:
        lines = (system / "proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return free_memory(torch.device("cpu"))
    return max(1, min([free, *_left_by_limits(system)]))


def _left_by_limits(system: Path) -> Iterator[int]:
    """Yield the free bytes under each limit (container, service) that this process is in."""
    with suppress(OSError, ValueError):
        for line in (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kind, name = line.split(":", 2)
            if kind not in _GROUPS:
                continue
            folder, limit, use, cached = _GROUPS[kind]
            root = system / "sys/fs/cgroup" / folder
            inner = root / name.lstrip("/")
            # A container may see its own group as the root, but read the name that the group has outside.
            for group in (inner, *inner.parents)[: len(inner.relative_to(root).parts) + 1]:
                with suppress(OSError, ValueError, StopIteration):
                    most = int((group / limit).read_text(encoding="ascii"))  # "max" is no number
                    taken = int((group / use).read_text(encoding="ascii"))
                    told = (line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
                    yield most - taken + next(int(count) for key, count in told if key == cached)


def peak_memory() -> tuple[int, int]:
    """Return the most bytes of main memory that this process had, and of GPU memory that PyTorch held in it."""
    gpu = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    try:
        import resource
    except ImportError:  # Windows
        return 0, gpu
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, gpu


def release_memory() -> None:
    """Release memory of a model that is no longer referenced, on a GPU too, and buffers of products."""
    gc.collect()
    release_buffers()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


#: Bytes of the interpreter with torch and transformers.
PROCESS = 600_000_000
#: Prompt tokens of a pack, and numbers that each one needs for each input and output of a layer's largest matrix.
_PACK, _TIMES = 3_072, 5
_WIDE = 4
_LAYER = re.compile(r"\.\d+\.")
_EXPERT = re.compile(r"\.experts\.\d+\..*|\.ffn_(gate|down|up)_exps\..*")
_SUGGESTED = ("Q8_0", "Q6_K", "Q4_K")


@dataclass(frozen=True)
class Needs:
    """Memory in bytes."""

    #: Weights as they will be kept.
    weights: int
    #: The largest matrix, or the experts of a layer, widened for a product.
    widened: int
    #: Number of weights.
    parameters: int
    #: A pack of prompts in the layers, with its keys and values.
    activations: int

    @property
    def total(self) -> int:
        """The sum, with the rest of the process."""
        return self.weights + self.widened + self.activations + PROCESS

    @property
    def text(self) -> str:
        """The memory in one line."""
        return f"{readable(self.total)} of memory, {readable(self.weights)} of it for weights"


def memory_needed(directory: Path, dtype: str, adapter: Path | None = None) -> Needs:
    """Estimate the main memory of a judge; `dtype` is that of the computation (``auto`` is float32)."""
    is_exact = dtype in ("auto", "float32")
    itemsize = _WIDE if is_exact else {"float64": 8}.get(dtype, 2)
    weights = parameters = widest = 0
    #: Number of weights widened for one product, by tensor or stack of experts.
    units: dict[str, int] = {}
    tensors = _tensors(directory)
    is_small = are_few(sum(prod(shape) for _, shape, _, _ in tensors))
    for name, shape, size, is_narrow in tensors:
        count = prod(shape)
        parameters += count
        if _LAYER.search(name) and len(shape) > 1:
            widest = max(widest, sum(shape[-2:]))
        if is_exact and is_narrow and not is_small:
            weights += size
            unit = _EXPERT.sub(".experts", name)
            units[unit] = units.get(unit, 0) + count
        else:
            weights += count * itemsize
    widened = [count if name.endswith(".experts") else min(count, SLICE) for name, count in units.items()]
    if adapter is not None and is_exact:
        shapes = {name: tensor.shape for name, tensor in stored_tensors(adapter / ADAPTER_WEIGHTS).items()}
        pairs = [(shape, shapes.get(name.replace("lora_A", "lora_B"))) for name, shape in shapes.items()]
        weights += sum(_WIDE * one[-1] * other[0] for one, other in pairs if one and other and one != other)
    return Needs(weights, _WIDE * max(widened, default=0), parameters, _PACK * _TIMES * widest * itemsize)


def _tensors(directory: Path) -> list[tuple[str, tuple[int, ...], int, bool]]:
    """List the tensors of a model: name, shape, bytes, and whether they are kept as they are."""
    if directory.is_file():
        headers = read_headers(directory)
        kept = kept_tensors(headers)
        return [
            (one.name, one.shape[::-1], tensor_size(one), one.name in kept)
            for header in headers
            for one in header.tensors
        ]
    return [
        (name, one.shape, one.size, is_kept_narrow(DTYPES.get(one.dtype), one.shape))
        for name, one in stored_in(weight_files(directory)).items()
    ]


def check_fits(entry: JudgeEntry, directory: Path, dtype: str) -> None:
    """Refuse a judge that does not fit into the free memory of the machine."""
    needs, free = memory_needed(directory, dtype, entry.adapter), available_memory()
    if not free or needs.total - PROCESS <= free:  # the process is already counted as used
        return
    sizes = {kind.name: needs.parameters / kind.elements * kind.size for kind in BLOCK_TYPES.values()}
    fitting = [name for name in _SUGGESTED if sizes[name] * 1.1 + needs.widened + needs.activations <= free]
    smaller = (
        f"As a GGUF file of the type {fitting[0]} ({sizes[fitting[0]] / 1e9:.1f} GB) it would fit. "
        if fitting
        else f"Not even its {_SUGGESTED[-1]} file ({sizes[_SUGGESTED[-1]] / 1e9:.1f} GB) would fit. "
    )
    raise JudgeError(
        f"judge {entry.name!r} takes {needs.text}, and {free / 1e9:.1f} GB are free on this machine",
        hint=f"{smaller}Or end what else uses the memory, take a smaller judge (`geval-local judges list`), or leave a "
        "part of it on the disk, which is slow: `device_map=auto`.",
    )
