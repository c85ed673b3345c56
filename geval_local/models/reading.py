"""How much of a judge's weights has been read, for whoever shows it; without torch and transformers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
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


def counted(items: Collection[Item], size: Callable[[Item], float]) -> Iterator[Item]:
    """Yield the items, and tell after each how many bytes have been read."""
    total, done = sum(map(size, items)), 0.0
    for item in items:
        yield item
        done += size(item)
        for watcher in _watchers:
            watcher(round(done), round(total))


@contextmanager
def counted_shards(total: int) -> Iterator[None]:
    """Count while transformers fills a model from safetensors files of so many bytes.

    It goes through the parameters, which may join many tensors each: all are taken for equally large.
    """
    from transformers.utils import logging

    def hook(factory: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if given and named.get("desc") == "Loading weights":
            return counted(given[0], lambda _: total / len(given[0]))
        return factory(*given, **named)

    former = logging.set_tqdm_hook(hook)
    try:
        yield
    finally:
        logging.set_tqdm_hook(former)
