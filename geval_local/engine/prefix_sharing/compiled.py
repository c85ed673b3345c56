"""Layers compiled with `torch.compile`, which fuses their element-wise operations; only where it is asked for.

A layer is compiled in parts: before its attention, and after it. The attention function itself is left out: it reads
the pack's layout on the host, and its kernel is compiled for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from geval_local.errors import UnsupportedModelError

__all__ = ["CompiledLayers"]

#: Variants of a layer's parts: its dtypes, kinds of layer, a pack of one token. Beyond PyTorch's usual 8 of them it
#: would go on uncompiled.
_VARIANTS = 64


class CompiledLayers:
    """Compiled forward passes of a trunk's layers, beside their usual ones."""

    def __init__(self, trunk: nn.Module, layers: int) -> None:
        lists = (module for module in trunk.modules() if isinstance(module, nn.ModuleList) and len(module) == layers)
        found = next(lists, None)
        if found is None:
            raise UnsupportedModelError(f"{type(trunk).__name__} has no list of {layers} layers to compile")
        # The number of tokens differs from pack to pack.
        self._passes: list[tuple[nn.Module, Callable[..., Any]]] = [
            (layer, torch.compile(layer.forward, dynamic=True)) for layer in found
        ]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the layers compute by their compiled passes for a while."""
        config: Any = torch._dynamo.config
        before = [(layer, vars(layer).get("forward")) for layer, _ in self._passes]
        for layer, compiled in self._passes:
            layer.forward = compiled
        try:
            with config.patch(recompile_limit=_VARIANTS):
                yield
        finally:
            for layer, forward in before:
                del layer.forward
                if forward is not None:  # a hook of accelerate's
                    layer.forward = forward
