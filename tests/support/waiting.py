"""Waiting for what another thread or process does; the limit only ends a hang, and says nothing about speed."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds after which a test hangs, on any machine and next to any work.
HANGS = 300.0


def until(happens: Callable[[], object]) -> None:
    """Wait until something is so; an `AssertionError` where it never is."""
    end = time.monotonic() + HANGS
    while not happens():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
