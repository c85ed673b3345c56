"""Keys and values of the prefixes that metrics own, kept from one window to the next and from one run to another.

What is kept was computed by itself, whatever the prompts behind it, so figures are the same to the last bit whether a
window is a run's first or its hundredth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from geval_local.engine.prefix_sharing.key_value_store import PathStore
from geval_local.models.memory import is_out_of_memory

__all__ = ["PrefixStore"]

#: Positions kept at most: a metric's own prefix has some hundreds, and a run goes through its metrics in turns.
MOST_POSITIONS = 4_096


class PrefixStore:
    """Root paths by their tokens, the latest used ones."""

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, int], PathStore] = {}

    def takes(self, prefix: NDArray[np.int32]) -> bool:
        """Whether a prefix is of a length that is kept."""
        return 0 < len(prefix) <= MOST_POSITIONS

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
        while sum(len(kept.ids) for kept in self._kept.values()) > MOST_POSITIONS:
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
