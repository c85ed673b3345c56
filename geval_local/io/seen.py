"""What has been seen before: millions of keys in a few bytes each, where a dict would take hundreds."""

from __future__ import annotations

from array import array

__all__ = ["FirstSeen"]

_EMPTY = 0


class FirstSeen:
    """Remembers for every key the number that it first came with: 12 bytes a slot, at most two thirds of them taken."""

    def __init__(self) -> None:
        self._size = 0
        self._code = "I"
        self._make(1 << 10)

    def _make(self, slots: int) -> None:
        self._mask = slots - 1
        self._keys = array("Q", bytes(8 * slots))
        self._numbers = array(self._code, bytes(array(self._code).itemsize * slots))

    def add(self, key: int, number: int) -> int:
        """Return the number that a key first came with, which is `number` if it is new.

        Parameters
        ----------
        key : int
            A hash, 1 to 2**64 - 1.
        number : int
            Not negative.
        """
        if number >> 32 and self._code == "I":
            self._code = "Q"
            self._numbers = array("Q", self._numbers)
        slot = key & self._mask
        while (found := self._keys[slot]) != _EMPTY:
            if found == key:
                return self._numbers[slot]
            slot = (slot + 1) & self._mask
        self._keys[slot] = key
        self._numbers[slot] = number
        self._size += 1
        if 3 * self._size > 2 * self._mask:
            self._grow()
        return number

    def _grow(self) -> None:
        keys, numbers = self._keys, self._numbers
        self._make(2 * len(keys))
        for key, number in zip(keys, numbers, strict=True):
            if key != _EMPTY:
                slot = key & self._mask
                while self._keys[slot] != _EMPTY:
                    slot = (slot + 1) & self._mask
                self._keys[slot] = key
                self._numbers[slot] = number
