"""Keys and values of one root path, kept between packs in one buffer per layer, indexed by position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["PathStore"]


class PathStore:
    """What is kept between packs, and from one run of the engine to the next.

    A forward pass only collects what it would add; nothing that a retry would need is touched before `commit`.

    Attributes
    ----------
    ids : ndarray of int32, shape (positions,)
        Tokens whose keys and values are held: a prefix of some sequence.
    """

    def __init__(self) -> None:
        self.ids: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copy(self) -> PathStore:
        """Give a store of its own that holds the same path."""
        other = PathStore()
        other.ids = self.ids
        held = len(self.ids)
        other._buffers = [(keys[:held].clone(), values[:held].clone()) for keys, values in self._buffers]
        return other

    def read(self, layer: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Give keys and values of the first `length` positions, each of shape (positions, heads, size)."""
        keys, values = self._buffers[layer]
        return keys[:length], values[:length]

    def commit(self, start: int, ids: NDArray[np.int32], added: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Make what was added the path from position `start` on.

        Parameters
        ----------
        start : int
            First position that is added; those before it stay.
        ids : ndarray of int32
            Tokens of the whole path.
        added : sequence of (Tensor, Tensor)
            For every layer keys and values, shapes as those from `read`.
        """
        for layer, (keys, values) in enumerate(added):
            if layer == len(self._buffers):
                self._buffers.append((_grown(None, keys, len(ids)), _grown(None, values, len(ids))))
            held_keys, held_values = self._buffers[layer]
            if len(held_keys) < len(ids):
                self._buffers[layer] = (_grown(held_keys, keys, len(ids)), _grown(held_values, values, len(ids)))
        # Memory may run out above, where nothing is lost; below nothing is allocated.
        for (held_keys, held_values), (keys, values) in zip(self._buffers, added, strict=True):
            held_keys[start : len(ids)] = keys
            held_values[start : len(ids)] = values
        self.ids = ids


def _grown(held: torch.Tensor | None, like: torch.Tensor, length: int) -> torch.Tensor:
    """Allocate a longer buffer and copy what is held; at least by half longer, so that growing stays rare."""
    size = length if held is None else max(length, len(held) * 3 // 2)
    buffer = torch.empty((size, *like.shape[1:]), dtype=like.dtype, device=like.device)
    if held is not None:
        buffer[: len(held)] = held
    return buffer
