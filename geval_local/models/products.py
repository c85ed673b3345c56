"""Linear layers on CPUs: the library that is faster computes the product, in the same precision.

PyTorch computes float32 products with MKL, which does not use the wide instructions of AMD's processors. On those with
AVX-512, oneDNN, which PyTorch contains too, is more than twice as fast (`benchmarks/results/2026-11-29-products.txt`).
The processor alone decides, never a measurement: a resumed run has to give the same bytes.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

_CPUINFO = Path("/proc/cpuinfo")
#: What oneDNN, and PyTorch's layer above it, keep for every shape that they have met: some 0.2 MB, for up to 1,024.
_KEPT_SHAPES = {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}


@cache
def uses_onednn() -> bool:
    """Whether oneDNN computes float32 products on this machine; before the first one, this bounds what it keeps."""
    if not is_faster():
        return False
    for name, count in _KEPT_SHAPES.items():
        os.environ.setdefault(name, count)
    return True


def is_faster() -> bool:
    """Whether this is a processor of AMD's with AVX-512."""
    backends: Any = torch.backends
    if not backends.mkldnn.is_available() or "AVX512" not in backends.cpu.get_cpu_capability():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return "AuthenticAMD" in about_processor()


def about_processor() -> str:
    """Return what the system says of its processor."""
    return _CPUINFO.read_text(encoding="utf-8", errors="replace") if _CPUINFO.is_file() else platform.processor()


def linear(given: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute ``given @ weight.T + bias`` as `torch.nn.functional.linear` does, by the faster library."""
    is_plain = type(weight) in (torch.Tensor, nn.Parameter) and type(given) is torch.Tensor
    if (
        not (is_plain and uses_onednn())
        or given.dtype != torch.float32
        or weight.dtype != torch.float32
        or given.device.type != "cpu"
        or weight.dim() != 2
        or given.dim() < 2
        or not given.numel()
        or (torch.is_grad_enabled() and (weight.requires_grad or given.requires_grad))
    ):
        return nn.functional.linear(given, weight, bias)
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(given, weight, bias, "none", [], "")
    return found


class _Linear(nn.Linear):
    """A linear layer whose product is that of `linear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Compute the layer."""
        return linear(input, self.weight, self.bias)


def use_faster_products(model: nn.Module) -> None:
    """Let the linear layers of a model on a CPU compute with `linear`; those of other classes stay as they are."""
    if uses_onednn():
        for module in model.modules():
            if type(module) is nn.Linear and module.weight.device.type == "cpu":
                module.__class__ = _Linear
