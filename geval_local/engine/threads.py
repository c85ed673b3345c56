"""Threads that run a model: one at a time keeps all cores busy, two do not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_own_thread"]

_T = TypeVar("_T")


def in_own_thread(work: Callable[[], _T]) -> _T:
    """Do some work in a thread that ends with it, and return its result or raise its exception.

    On a CPU, a thread that has run a model keeps a team of OpenMP threads as long as it lives. Two teams are more
    threads than cores, and libgomp then puts waiting ones to sleep at every small operation: with the embedded judge,
    probed by the main thread and used by another (a batcher, a server), a batch took 1.5 to 2 times as long.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    # A daemon: whoever interrupts the wait does not want to wait for the end of loading.
    thread = threading.Thread(target=run, name="geval-local loading", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
