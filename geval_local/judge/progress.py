"""How a caller hears how far scoring is: a bar, a callable, or beside an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias, TypeVar

_T = TypeVar("_T")

#: Whether to show a bar on stderr; or what is called with the number of scores that are finished, and of all.
OnProgress: TypeAlias = bool | Callable[[int, int], object]


class _Cancelled(Exception):
    """Nobody waits for the work any more."""


@contextmanager
def progress_of(progress: OnProgress, label: str, total: int) -> Iterator[Callable[[int], object]]:
    """Give what is to be called with the number of scores that were finished since the last call."""
    if progress is False:
        yield lambda count: None
        return
    if callable(progress):
        done, tell = 0, progress

        def count_up(count: int) -> None:
            nonlocal done
            done += count
            tell(done, total)

        yield count_up
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


async def in_thread(work: Callable[[OnProgress], _T], progress: OnProgress, turn: AbstractContextManager[object]) -> _T:
    """Run work in a thread while the event loop goes on."""
    loop, cancelled = asyncio.get_running_loop(), threading.Event()

    def tell(done: int, total: int) -> None:
        if cancelled.is_set():
            raise _Cancelled
        if callable(progress):
            loop.call_soon_threadsafe(progress, done, total)

    def run() -> _T:
        with turn:
            # A bar is drawn by the work itself, which then hears of a cancellation at its end only.
            return work(progress if progress is True else tell)

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        cancelled.set()
        raise
