"""Keys and values on the root path of the token at work, and those of the prefixes that metrics own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from geval_local.models.memory import is_out_of_memory

__all__ = ["MOST_POSITIONS", "PathStore", "PrefixStore"]

#: Positions of prefixes kept at most: a metric's own has some hundreds, and a run goes through its metrics in turns.
MOST_POSITIONS = 4_096


class PathStore:
    """What is kept between packs.

    A forward pass only collects what it would add; nothing that a retry would need is touched before `commit`.

    Attributes
    ----------
    length : int
        Positions held.
    """

    def __init__(self) -> None:
        self.length = 0
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def copy(self) -> PathStore:
        """Give a store of its own that holds the same path."""
        other = PathStore()
        other.length = self.length
        other._buffers = [
            (keys[: self.length].clone(), values[: self.length].clone()) for keys, values in self._buffers
        ]
        return other

    def read(self, layer: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Give keys and values of the first `length` positions, each of shape (positions, heads, size)."""
        keys, values = self._buffers[layer]
        return keys[:length], values[:length]

    def commit(self, start: int, length: int, added: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Make what was added the path from position `start` on.

        Parameters
        ----------
        start : int
            First position that is added; those before it stay.
        length : int
            Positions of the whole path.
        added : sequence of (Tensor, Tensor)
            For every layer keys and values, shapes as those from `read`.
        """
        for layer, (keys, values) in enumerate(added):
            if layer == len(self._buffers):
                self._buffers.append((_grown(None, keys, length), _grown(None, values, length)))
            held_keys, held_values = self._buffers[layer]
            if len(held_keys) < length:
                self._buffers[layer] = (_grown(held_keys, keys, length), _grown(held_values, values, length))
        # Memory may run out above, where nothing is lost; below nothing is allocated.
        for (held_keys, held_values), (keys, values) in zip(self._buffers, added, strict=True):
            held_keys[start:length] = keys
            held_values[start:length] = values
        self.length = length


def _grown(held: torch.Tensor | None, like: torch.Tensor, length: int) -> torch.Tensor:
    """Allocate a longer buffer and copy what is held; at least by half longer, so that growing stays rare."""
    size = length if held is None else max(length, len(held) * 3 // 2)
    buffer = torch.empty((size, *like.shape[1:]), dtype=like.dtype, device=like.device)
    if held is not None:
        buffer[: len(held)] = held
    return buffer


class PrefixStore:
    """Root paths by their tokens, the latest used ones, kept from one plan to the next.

    What is kept was computed by itself, whatever prompts follow it, so figures are the same to the last bit whether
    a plan is a run's first or its hundredth.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, int], PathStore] = {}

    def find(self, prefix: NDArray[np.int32], limit: int) -> PathStore | None:
        """Give a copy, to go on from, of what is kept of a prefix; None if nothing is, or memory has no room for two.

        Parameters
        ----------
        prefix : ndarray of int32
            Its tokens.
        limit : int
            Tokens that a forward pass takes. A prefix that took several passes has other last bits.
        """
        key = self._key(prefix, limit)
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self._kept[key] = kept
        return _copy(kept)

    def keep(self, prefix: NDArray[np.int32], limit: int, path: PathStore) -> None:
        """Keep a copy, if memory has room, of a path that holds a prefix and no more.

        The ones used longest ago make room.
        """
        copy = _copy(path)
        if copy is None:
            return
        self._kept[self._key(prefix, limit)] = copy
        while sum(kept.length for kept in self._kept.values()) > MOST_POSITIONS:
            del self._kept[next(iter(self._kept))]

    @staticmethod
    def _key(prefix: NDArray[np.int32], limit: int) -> tuple[bytes, int]:
        return prefix.tobytes(), min(limit, len(prefix))


def _copy(path: PathStore) -> PathStore | None:
    try:
        return path.copy()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    return None
