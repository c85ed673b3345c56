"""Keys and values on the root path of the current token, and of metrics' prefixes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from geval_local.engine.interface import MOST_POSITIONS
from geval_local.models.memory import unless_memory_runs_out


class PathStore:
    """Keys and values kept between packs.

    A forward pass only collects its additions; nothing that a retry needs is changed before `commit`.
    """

    def __init__(self) -> None:
        self.length = 0
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copy(self) -> PathStore:
        """Return an independent store with the same path."""
        other = PathStore()
        other.length = self.length
        other._buffers = [
            (keys[: self.length].clone(), values[: self.length].clone()) for keys, values in self._buffers
        ]
        return other

    def read(self, layer: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of the first `length` positions, each of shape (positions, heads, size)."""
        keys, values = self._buffers[layer]
        return keys[:length], values[:length]

    def commit(self, start: int, length: int, added: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Replace the path from position `start` on by new keys and values."""
        for layer, (keys, values) in enumerate(added):
            if layer == len(self._buffers):
                self._buffers.append((_grown(None, keys, length), _grown(None, values, length)))
            held_keys, held_values = self._buffers[layer]
            if len(held_keys) < length:
                self._buffers[layer] = (_grown(held_keys, keys, length), _grown(held_values, values, length))
        # If memory runs out above, nothing is lost; the lines below allocate nothing.
        if start < length:
            for (held_keys, held_values), (keys, values) in zip(self._buffers, added, strict=True):
                held_keys[start:length] = keys
                held_values[start:length] = values
        self.length = length


def _grown(held: torch.Tensor | None, like: torch.Tensor, length: int) -> torch.Tensor:
    """Allocate a buffer at least 50 % longer and copy the held positions; growing stays rare."""
    size = length if held is None else max(length, len(held) * 3 // 2)
    buffer = torch.empty((size, *like.shape[1:]), dtype=like.dtype, device=like.device)
    if held is not None:
        buffer[: len(held)] = held
    return buffer


class PrefixStore:
    """Recently used root paths, by their tokens, kept between plans.

    Each path was computed separately from the prompts that continue it, so figures are bit-identical whether
    a plan is a run's first or its hundredth.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, int], PathStore] = {}

    def find(self, prefix: NDArray[np.int32], limit: int) -> PathStore | None:
        """Return a copy of a kept prefix, to be continued; None if it is not kept or memory is too short."""
        key = self._key(prefix, limit)
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self._kept[key] = kept
        return unless_memory_runs_out(kept.copy)

    def keep(self, prefix: NDArray[np.int32], limit: int, path: PathStore) -> None:
        """Keep a copy of a path that holds exactly a prefix, if memory suffices.

        The least recently used ones are dropped.
        """
        copy = unless_memory_runs_out(path.copy)
        if copy is None:
            return
        self._kept[self._key(prefix, limit)] = copy
        while sum(kept.length for kept in self._kept.values()) > MOST_POSITIONS:
            del self._kept[next(iter(self._kept))]

    @staticmethod
    def _key(prefix: NDArray[np.int32], limit: int) -> tuple[bytes, int]:
        return prefix.tobytes(), min(limit, len(prefix))
