"""The executor: windows of rows, read and tokenized ahead of the model; missing outcomes are computed unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from geval_local.engine.window import window_sizes
from geval_local.errors import Cause, GevalError, Interrupted
from geval_local.io.samples import Sample
from geval_local.runs.cache import OutcomeCache
from geval_local.runs.store import Origin, PlanRecord, Store
from geval_local.score import Outcome
from geval_local.thinking import Thought

if TYPE_CHECKING:
    from geval_local.engine.backend import Draw
    from geval_local.engine.window import Unit
    from geval_local.judge.judge import Judge
    from geval_local.judge.thoughts import Thinker
    from geval_local.tokens.requests import Prepared, Request

_Item = TypeVar("_Item")

#: Turns samples into what the engine takes, for the metrics of a group: one list for each of them.
Preparer = Callable[[Sequence[Sample]], "list[list[Prepared]]"]
#: A metric of a group, the number of a form of it in the store, and what the engine takes for the two.
_Part = tuple[int, int, "Prepared"]


@dataclass(frozen=True)
class Window:
    """A stretch of the input."""

    #: Number of the window, from 0.
    number: int
    #: Index of its first row, from 0.
    first: int
    #: The rows.
    samples: list[Sample]
    #: One per group of metrics, with one list for each of them that holds all forms of a row side by side; None where
    #: every row has its outcomes already.
    prepared: tuple[list[list[Prepared]] | None, ...]

    @property
    def stop(self) -> int:
        """Index of the row after the window's last."""
        return self.first + len(self.samples)


def read_windows(
    samples: Iterable[Sample],
    rows: int,
    preparers: Sequence[Preparer | None],
    done: Callable[[int, int, int], bool],
    before: int = 0,
) -> Iterator[Window]:
    """Cut the input, which begins after some windows, into windows and prepare rows without an outcome."""
    stream = iter(samples)
    first = 0
    for number, size in enumerate(islice(window_sizes(rows), before, None)):
        window = list(islice(stream, size))
        if not window:
            return
        prepared = tuple(
            None if prepare is None or done(group, first, first + len(window)) else prepare(window)
            for group, prepare in enumerate(preparers)
        )
        yield Window(number, first, window, prepared)
        first += len(window)


def run_ahead(items: Iterable[_Item]) -> Generator[_Item, None, None]:
    """Iterate in a separate thread, one item ahead of the consumer.

    Exceptions of the iterable are raised here, in order. Closing the generator ends the thread.
    """
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(1, thread_name_prefix="geval-local reader") as reader:
        coming = reader.submit(next, iterator, end)
        while (item := coming.result()) is not end:
            coming = reader.submit(next, iterator, end)
            yield item  # type: ignore[misc]


@dataclass
class Worker:
    """Executor of one judge's windows.

    What a store calls a row is a form here: row `r` of the input has the forms ``r * forms`` and those after it, where
    a metric shows a pair in both orders (see `geval_local.questions.pair`).

    The units of a window are a function of its prompts, of the token budget on record, and of which rows the cache gave
    when the window was planned, which is on record too; and the figures of a unit depend on nothing but the unit. So a
    run that is resumed, or whose rows without a score are tried again, gives the bytes of an uninterrupted one. The one
    exception is memory that runs out: passes become smaller for the rest of the process, another process finds out by
    itself, and figures agree to rounding only.
    """

    store: Store
    cache: OutcomeCache
    judge: Judge
    number: int
    advance: Callable[[int], object]
    should_stop: Callable[[], bool]

    def execute(self, window: Window, metrics: Sequence[int], prepared: Sequence[Sequence[Prepared]]) -> None:
        """Bring every row of a window to its outcomes on a group of metrics, whose prompts are planned together."""
        store, number, rows = self.store, self.number, len(window.samples)
        thinker = self.judge.thinker
        if thinker is not None:
            prepared = [self._think(thinker, window, *one) for one in zip(metrics, prepared, strict=True)]
        forms = {metric: len(entries) // max(1, rows) for metric, entries in zip(metrics, prepared, strict=True)}
        # Row by row, so that a unit finishes whole rows where prompts of one row share their text.
        parts: list[_Part] = [
            (metric, window.first * forms[metric] + place, entries[place])
            for row in range(rows)
            for metric, entries in zip(metrics, prepared, strict=True)
            for place in range(row * forms[metric], (row + 1) * forms[metric])
        ]
        units: list[Unit] | None = None
        if not all(store.is_planned(number, metric, window.number) for metric in metrics):
            units = self._begin(window, metrics, parts)
        origins = {
            (metric, form): origin
            for metric, each in forms.items()
            for form, origin in store.origins(number, metric, window.first * each, window.stop * each).items()
        }
        refused = [
            (metric, form, self.judge.outcome(entry, None))
            for metric, form, entry in parts
            if entry.request is None and (metric, form) not in origins
        ]
        if refused:  # taken back by --retry-errors, and still no prompt
            store.add(number, refused)
        self.advance(len(origins) + len(refused))
        asked = [
            part for part in parts if part[2].request is not None and origins.get((part[0], part[1])) != Origin.CACHE
        ]
        missing = [(metric, form) not in origins for metric, form, _ in asked]
        if any(missing):
            self._execute(asked, missing, units, (metrics[0], window.number))

    def _think(self, thinker: Thinker, window: Window, metric: int, entries: Sequence[Prepared]) -> list[Prepared]:
        """Draw the thoughts that are missing before the labels of a window; each is committed before it is used."""
        from geval_local.tokens.thought_requests import after_thoughts

        count, store, number = thinker.settings.count, self.store, self.number
        first = window.first * count * (len(entries) // max(1, len(window.samples)))
        draws = thinker.draws(entries)
        known = store.thoughts(number, metric, first, first + count * len(entries))
        thoughts: dict[int, Thought | Cause] = {form - first: thought for form, thought in known.items()}
        for batch in self._thoughts(thinker, draws, thoughts):
            store.add_thoughts(number, metric, [(first + place, thought) for place, thought in _drawn(batch).items()])
            thoughts.update(batch)
            self._stop_if_asked()
        return after_thoughts(entries, thoughts, count)

    def _thoughts(
        self, thinker: Thinker, draws: Mapping[int, Draw], known: Mapping[int, Thought | Cause]
    ) -> Iterator[Mapping[int, Thought | Cause]]:
        """Give the thoughts that are not known, from the cache or as they are drawn.

        The cache is asked before the first thought of a window is stored, and never again: else those that are left
        would be drawn in other company when the run goes on.
        """
        missing = {place: draw for place, draw in draws.items() if place not in known}
        keys_of = partial(self.cache.thought_keys, judge=self.judge.identity, settings=thinker.drawing)
        if not known and self.cache.in_use:
            keys = keys_of(list(missing.values()))
            kept = self.cache.find_thoughts(keys)
            found = {place: kept[key] for place, key in zip(missing, keys, strict=True) if key in kept}
            yield found
            missing = {place: draw for place, draw in missing.items() if place not in found}
        for batch in thinker.draw(missing):
            self.judge.check_files()
            yield batch
            if self.cache.in_use:
                drawn = _drawn(batch)
                keys = keys_of([draws[place] for place in drawn])
                self.cache.add_thoughts(dict(zip(keys, drawn.values(), strict=True)))

    def _begin(self, window: Window, metrics: Sequence[int], parts: Sequence[_Part]) -> list[Unit]:
        """Plan a window and write down that it is planned, with what needs no model."""
        given: list[tuple[int, int, int, Outcome]] = []
        asked: list[_Part] = []
        for part, known in zip(parts, self._known([entry for _, _, entry in parts]), strict=True):
            metric, form, entry = part
            if entry.request is None:
                given.append((metric, form, Origin.INPUT, self.judge.outcome(entry, None)))
            elif known is not None:
                given.append((metric, form, Origin.CACHE, known))
            else:
                asked.append(part)
        requests = _requests(asked)
        units = self._plan(requests)
        tokens = dict.fromkeys(metrics, 0)
        for (metric, _, _), request in zip(asked, requests, strict=True):
            tokens[metric] += len(request.ids)
        # What goes through the model serves all metrics of a group: it stands with the first.
        planned = dict.fromkeys(metrics, 0) | {metrics[0]: sum(unit.tokens for unit in units)}
        plans = {metric: PlanRecord(tokens[metric], planned[metric]) for metric in metrics}
        self.store.begin_window(self.number, window.number, plans, given)
        return units

    def _known(self, entries: Sequence[Prepared]) -> list[Outcome | None]:
        """Ask the cache, for every entry."""
        if not self.cache.in_use:
            return [None] * len(entries)
        asked = [entry for entry in entries if entry.request is not None]
        keys = self._keys(asked)
        found = self.cache.find(keys)
        known = iter(
            replace(found[key], prompt_tokens=entry.prompt_tokens, dropped_tokens=entry.dropped_tokens)
            if key in found and _fits(found[key], entry)
            else None
            for entry, key in zip(asked, keys, strict=True)
        )
        return [None if entry.request is None else next(known) for entry in entries]

    def _keys(self, entries: Sequence[Prepared]) -> list[bytes]:
        requests: list[Any] = [entry.request for entry in entries]
        return self.cache.keys(requests, self.judge.identity)

    def _plan(self, requests: Sequence[Request]) -> list[Unit]:
        from geval_local.engine.window import plan_units

        return plan_units(self.judge.engine, requests)

    def _execute(
        self,
        asked: Sequence[_Part],
        missing: Sequence[bool],
        units: Sequence[Unit] | None,
        place: tuple[int, int],
    ) -> None:
        """Execute the units in which an outcome is missing, and commit each when it is finished.

        `place` is the metric and the window whose plan has the tokens.
        """
        from geval_local.engine.window import execute

        requests = _requests(asked)
        planned = self._plan(requests) if units is None else units
        todo = [unit for unit in planned if any(missing[index] for index in unit.requests)]
        learnt: list[tuple[Prepared, Outcome]] = []
        try:
            executed = execute(self.judge.engine, requests, todo, checkpoint=self._stop_if_asked)
            for plan, (unit, readouts) in zip(todo, executed, strict=True):
                self.judge.check_files()
                finished = [
                    (*asked[index], self.judge.outcome(asked[index][2], readout))
                    for index, readout in zip(unit.requests, readouts, strict=True)
                    if missing[index]
                ]
                learnt += [(entry, outcome) for _, _, entry, outcome in finished]
                self.store.add(
                    self.number,
                    ((metric, form, outcome) for metric, form, _, outcome in finished),
                    more=(*place, unit.tokens - plan.tokens),
                )
                self.advance(len(finished))
        except GevalError:
            # Ctrl-C reaches the processes that compute, too: what fails then fails for it.
            self._stop_if_asked()
            raise
        finally:
            if self.cache.in_use and learnt:
                keys = self._keys([entry for entry, _ in learnt])
                self.cache.add(dict(zip(keys, (outcome for _, outcome in learnt), strict=True)))

    def _stop_if_asked(self) -> None:
        if self.should_stop():
            raise Interrupted


def _drawn(batch: Mapping[int, Thought | Cause]) -> dict[int, Thought]:
    """Leave out the thoughts that another program did not write: nothing is lost by that."""
    return {place: thought for place, thought in batch.items() if isinstance(thought, Thought)}


def _fits(outcome: Outcome, entry: Prepared) -> bool:
    """Whether a cached outcome has one figure per label of the form; false for a damaged cache."""
    logprobs, request = outcome.label_logprobs, entry.request
    return logprobs is not None and request is not None and len(logprobs) == request.trie.labels


def _requests(parts: Sequence[_Part]) -> list[Request]:
    return [request for _, _, entry in parts if (request := entry.request) is not None]
