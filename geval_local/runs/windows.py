"""Windows: the input in stretches of rows, read and tokenized ahead of the model in a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from geval_local.io.samples import Sample

if TYPE_CHECKING:
    from geval_local.tokens.requests import Prepared

__all__ = ["Preparer", "Window", "read_windows", "run_ahead"]

_Item = TypeVar("_Item")

#: Turns samples into what the engine takes, for one metric.
Preparer = Callable[[Sequence[Sample]], "list[Prepared]"]


@dataclass(frozen=True)
class Window:
    """A stretch of the input.

    Attributes
    ----------
    number : int
        From 0.
    first : int
        Index of its first row, from 0.
    samples : list of Sample
        The rows.
    prepared : tuple of (list of Prepared or None)
        One per metric; None where every row has its outcome already.
    """

    number: int
    first: int
    samples: list[Sample]
    prepared: tuple[list[Prepared] | None, ...]

    @property
    def stop(self) -> int:
        """Index of the row behind its last."""
        return self.first + len(self.samples)


def read_windows(
    samples: Iterable[Sample], rows: int, preparers: Sequence[Preparer | None], done: Callable[[int, int, int], bool]
) -> Iterator[Window]:
    """Cut the input into windows and prepare what is missing.

    Parameters
    ----------
    samples : iterable of Sample
        The input, in order.
    rows : int
        Rows per window.
    preparers : sequence of callable
        One per metric; None where nothing is to be prepared.
    done : callable
        ``done(metric, window, rows)``: whether all of a window's rows have their outcome.
    """
    stream = iter(samples)
    number = 0
    while window := list(islice(stream, rows)):
        prepared = tuple(
            None if prepare is None or done(metric, number, len(window)) else prepare(window)
            for metric, prepare in enumerate(preparers)
        )
        yield Window(number, number * rows, window, prepared)
        number += 1


def run_ahead(items: Iterable[_Item], depth: int = 1) -> Generator[_Item, None, None]:
    """Iterate in a thread of its own, at most `depth` finished items ahead of the consumer.

    What the iterable raises is raised here, in its place. Closing the generator ends the thread.
    """
    finished: queue.Queue[tuple[str, object]] = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(kind: str, value: object) -> bool:
        while not stop.is_set():
            try:
                finished.put((kind, value), timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end", None)
        except BaseException as error:  # whatever it is belongs to the consumer
            put("error", error)

    thread = threading.Thread(target=work, name="geval-local reader", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = finished.get()
            if kind == "end":
                return
            if kind == "error":
                assert isinstance(value, BaseException)
                raise value
            yield value  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
