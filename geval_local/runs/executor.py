"""The executor: windows of rows, read and tokenized ahead of the model; what is missing is executed, unit by unit."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from geval_local.errors import Interrupted
from geval_local.io.samples import Sample
from geval_local.runs.cache import OutcomeCache
from geval_local.runs.store import MemoryStore, Origin, PlanRecord, Store
from geval_local.score import Outcome

if TYPE_CHECKING:
    from geval_local.engine.window import Unit
    from geval_local.judge import Judge
    from geval_local.tokens.requests import Prepared, Request

__all__ = ["Preparer", "Window", "Worker", "read_windows", "run_ahead"]

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
        """Index of the row after its last."""
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


class Worker:
    """Does one judge's work.

    The units of a window are a function of its prompts, of the token budget on record, and of which rows the cache gave
    when the window was planned, which is on record too; and the figures of a unit depend on nothing but the unit. So a
    run that is resumed, or whose rows without a score are tried again, gives the bytes of an uninterrupted one. The one
    exception is memory that runs out: passes become smaller for the rest of the process, another process finds out by
    itself, and figures agree to rounding only.

    Parameters
    ----------
    store : Store or MemoryStore
        Takes the outcomes.
    cache : OutcomeCache or None
        Asked before a window is planned, and told what the judge said.
    judge : Judge
        The judge.
    number : int
        Its number in the run.
    advance : callable
        Called with the number of rows finished.
    should_stop : callable
        Asked after every pack. A unit that is not finished then is lost, one that is was committed.
    """

    def __init__(
        self,
        store: Store | MemoryStore,
        cache: OutcomeCache | None,
        judge: Judge,
        number: int,
        *,
        advance: Callable[[int], object],
        should_stop: Callable[[], bool],
    ) -> None:
        self._store = store
        self._cache = cache
        self._judge = judge
        self._number = number
        self._advance = advance
        self._should_stop = should_stop

    def execute(self, window: Window, metric: int, prepared: Sequence[Prepared]) -> None:
        """Bring every row of a window to its outcome on one metric.

        Raises
        ------
        Interrupted
            If the run is to stop; everything finished is committed.
        OutputError
            If the store cannot take more.
        """
        store, number, first = self._store, self._number, window.first
        units: list[Unit] | None = None
        if not store.is_planned(number, metric, window.number):
            units = self._begin(window, metric, prepared)
        origins = store.origins(number, metric, first, window.stop)
        refused = [
            (first + place, self._judge.outcome(entry, None))
            for place, entry in enumerate(prepared)
            if entry.request is None and first + place not in origins
        ]
        if refused:  # taken back by --retry-errors, and still no prompt
            store.add(number, metric, refused)
        self._advance(len(origins) + len(refused))
        places = [
            place
            for place, entry in enumerate(prepared)
            if entry.request is not None and origins.get(first + place) != Origin.CACHE
        ]
        missing = {place for place in places if first + place not in origins}
        if missing:
            self._execute(window, metric, prepared, places, missing, units)

    def _begin(self, window: Window, metric: int, prepared: Sequence[Prepared]) -> list[Unit]:
        """Plan a window and write down that it is planned, with the rows that need no model."""
        given: list[tuple[int, int, Outcome]] = []
        places = []
        known = self._known(prepared)
        for place, entry in enumerate(prepared):
            if entry.request is None:
                given.append((window.first + place, Origin.INPUT, self._judge.outcome(entry, None)))
            elif place in known:
                given.append((window.first + place, Origin.CACHE, known[place]))
            else:
                places.append(place)
        requests = _requests(prepared, places)
        units = self._plan(requests)
        tokens = PlanRecord(sum(len(request.ids) for request in requests), sum(unit.tokens for unit in units))
        self._store.begin_window(self._number, metric, window.number, tokens, given)
        return units

    def _known(self, prepared: Sequence[Prepared]) -> dict[int, Outcome]:
        """Ask the cache; by place in the window."""
        if self._cache is None or not self._cache.in_use:
            return {}
        places = [place for place, entry in enumerate(prepared) if entry.request is not None]
        keys = self._keys([prepared[place] for place in places])
        found = self._cache.find(keys)
        return {
            place: replace(
                found[key],
                prompt_tokens=prepared[place].prompt_tokens,
                dropped_tokens=prepared[place].dropped_tokens,
            )
            for place, key in zip(places, keys, strict=True)
            if key in found and _fits(found[key], prepared[place])
        }

    def _keys(self, entries: Sequence[Prepared]) -> list[bytes]:
        assert self._cache is not None
        requests: list[Any] = [entry.request for entry in entries]
        return self._cache.keys(requests, self._judge.identity)

    def _plan(self, requests: Sequence[Request]) -> list[Unit]:
        from geval_local.engine.window import plan_units

        return plan_units(self._judge.engine, requests)

    def _execute(
        self,
        window: Window,
        metric: int,
        prepared: Sequence[Prepared],
        places: Sequence[int],
        missing: set[int],
        units: list[Unit] | None,
    ) -> None:
        """Execute the units in which a row is missing, and commit each when it is finished."""
        from geval_local.engine.window import execute

        requests = _requests(prepared, places)
        planned = self._plan(requests) if units is None else units
        todo = [unit for unit in planned if any(places[index] in missing for index in unit.requests)]
        learnt: list[tuple[Prepared, Outcome]] = []
        try:
            for unit, readouts in execute(self._judge.engine, requests, todo, checkpoint=self._stop_if_asked):
                finished = {
                    places[index]: self._judge.outcome(prepared[places[index]], readout)
                    for index, readout in zip(unit.requests, readouts, strict=True)
                    if places[index] in missing
                }
                learnt += [(prepared[place], outcome) for place, outcome in finished.items()]
                self._store.add(
                    self._number, metric, ((window.first + place, outcome) for place, outcome in finished.items())
                )
                self._advance(len(finished))
        finally:
            if self._cache is not None and self._cache.in_use and learnt:
                keys = self._keys([entry for entry, _ in learnt])
                self._cache.add(dict(zip(keys, (outcome for _, outcome in learnt), strict=True)))

    def _stop_if_asked(self) -> None:
        if self._should_stop():
            raise Interrupted


def _fits(outcome: Outcome, entry: Prepared) -> bool:
    """Whether a cached outcome has as many figures as the form has labels; a damaged cache may say otherwise."""
    logprobs, request = outcome.label_logprobs, entry.request
    return logprobs is not None and request is not None and len(logprobs) == request.trie.labels


def _requests(prepared: Sequence[Prepared], places: Sequence[int]) -> list[Request]:
    return [request for place in places if (request := prepared[place].request) is not None]
