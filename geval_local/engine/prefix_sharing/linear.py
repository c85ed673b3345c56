"""Linear layers in float32 on processors where PyTorch's default matrix product is not its fastest.

PyTorch's x86 builds multiply float32 matrices with MKL, which is tuned for Intel's processors. A 1x1 convolution is the
same sum of products, and runs in oneDNN. Tokens laid out as the pixels of one image in channels-last order are the
matrix itself, so nothing is copied.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["by_convolution", "convertible", "convolution_is_faster"]

#: With fewer tokens than this there is nothing to gain.
_LEAST_TOKENS = 128


@lru_cache(maxsize=1)
def convolution_is_faster() -> bool:
    """Whether oneDNN beats the default on this processor: an x86 processor not made by Intel.

    Decided by the machine's type and not by a measurement, so that a resumed run uses the same kernels.
    """
    backends: Any = torch.backends
    if not (backends.mkldnn.is_available() and backends.mkl.is_available()):
        return False
    cpuinfo = Path("/proc/cpuinfo")
    vendor = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else platform.processor()
    return "AuthenticAMD" in vendor


def convertible(trunk: nn.Module) -> tuple[nn.Linear, ...]:
    """List the linear layers whose product may be replaced: plain, unmodified ones."""
    return tuple(module for module in trunk.modules() if type(module) is nn.Linear and "forward" not in vars(module))


@contextmanager
def by_convolution(layers: Sequence[nn.Linear]) -> Iterator[None]:
    """Let linear layers compute their product as a convolution, if they are in float32 on a CPU."""
    chosen = [layer for layer in layers if layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"]
    for layer in chosen:
        layer.forward = partial(_product, layer, layer.forward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in chosen:
            del layer.forward


def _product(layer: nn.Linear, usual: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor) -> torch.Tensor:
    tokens = given.numel() // given.shape[-1]
    if tokens < _LEAST_TOKENS or given.dtype != torch.float32 or not given.is_contiguous():
        return usual(given)
    # One image of one row of pixels: (1, channels, 1, tokens) in channels-last order is (tokens, channels).
    image = given.view(1, 1, tokens, given.shape[-1]).permute(0, 3, 1, 2)
    kernel = layer.weight[:, :, None, None]
    out = functional.conv2d(image, kernel, layer.bias)
    return out.permute(0, 2, 3, 1).reshape(*given.shape[:-1], kernel.shape[0])
