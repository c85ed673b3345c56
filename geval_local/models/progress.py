"""How much of a judge's weights has been read, for whoever shows it; without torch and transformers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Takes the bytes that have been read, and those of all weights.
OnRead = Callable[[int, int], None]

_watchers: list[OnRead] = []


@contextmanager
def watch_reading(on_read: OnRead) -> Iterator[None]:
    """Tell `on_read` of every judge that is loaded meanwhile, in whatever thread, how much of it has been read."""
    _watchers.append(on_read)
    try:
        yield
    finally:
        _watchers.remove(on_read)


def meter(total: int) -> Callable[[float], None]:
    """Give what takes counts of bytes that were just read, in any thread, and tells their sum."""
    done, lock = 0.0, threading.Lock()

    def add(count: float) -> None:
        nonlocal done
        with lock:
            done += count
            for watcher in _watchers:
                watcher(round(done), total)

    return add
