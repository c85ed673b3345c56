"""Report how much of a judge's weights has been read, and how many thoughts are drawn; without torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

#: Called with the bytes read so far, and the bytes of all weights; or with thoughts.
OnRead = Callable[[int, int], None]

#: Those who watch the reading of weights, and the drawing of thoughts.
_watching: list[tuple[OnRead, OnRead]] = []


@contextmanager
def watch_work(on_read: OnRead, on_drawn: OnRead = lambda done, total: None) -> Iterator[None]:
    """While this is open, call `on_read` with the progress of every judge that is loaded, in any thread.

    `on_drawn` takes the progress of drawing thoughts.
    """
    both = (on_read, on_drawn)
    _watching.append(both)
    try:
        yield
    finally:
        _watching.remove(both)


def meter(total: int, *, thoughts: bool = False) -> Callable[[float], None]:
    """Return a function that adds up bytes just read, in any thread, and reports the sum; or that of thoughts."""
    done, lock = 0.0, threading.Lock()

    def add(count: float) -> None:
        nonlocal done
        with lock:
            done += count
            for both in _watching:
                both[thoughts](round(done), total)

    return add


@contextmanager
def counted_shards(total: int) -> Iterator[None]:
    """Count while transformers fills a model from safetensors files of so many bytes.

    Transformers counts parameters, each of which may join many tensors; this function treats them as equally large.
    """
    from transformers.utils import logging

    def counted(items: Collection[Any]) -> Iterator[Any]:
        add = meter(total)
        for item in items:
            yield item
            add(total / len(items))

    def hook(factory: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        return counted(given[0]) if named.get("desc") == "Loading weights" else factory(*given, **named)

    former = logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        logging.set_tqdm_hook(former)
