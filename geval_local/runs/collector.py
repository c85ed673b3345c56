"""The garbage collector during a long run."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["LONG_RUN", "collecting_rarely"]

#: Rows from which on a run is long: going once through all objects of all libraries takes as long as a thousand rows.
LONG_RUN = 4096
#: New objects between two collections of young ones, and so many of these between two of middle-aged ones. The rows of
#: a window are tens of thousands of objects, none of them in a cycle: reference counting frees them.
_YOUNG, _MIDDLE = 50_000, 20


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Take what is loaded away from the collector, and let it look at new objects more rarely, until the block ends."""
    thresholds = gc.get_threshold()
    gc.collect(1)  # all of it would take what is saved
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, thresholds[2])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
