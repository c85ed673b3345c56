"""Work: what one judge still owes a window, executed pack by pack and committed pack by pack."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from geval_local.errors import Interrupted
from geval_local.runs.cache import OutcomeCache
from geval_local.runs.schema import LimitRecord, Origin, PlanRecord
from geval_local.runs.store import Store
from geval_local.runs.windows import Window
from geval_local.score import Outcome

if TYPE_CHECKING:
    from geval_local.engine.interface import Engine, Pack
    from geval_local.engine.units import Unit
    from geval_local.judge import Judge
    from geval_local.tokens.requests import Prepared, Request

__all__ = ["Worker"]

_Plan = list[tuple["Unit", "list[Pack]"]]


class Worker:
    """Does one judge's work.

    The packs of a window are a function of its prompts, of the token budget on record, and of which rows the cache
    gave when the window was planned, which is on record too. So a run that was interrupted executes the packs that an
    uninterrupted one would have.

    Parameters
    ----------
    store : Store
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
        Asked behind every pack.
    """

    def __init__(
        self,
        store: Store,
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
        self._engine: Engine = judge.engine
        self._number = number
        self._advance = advance
        self._should_stop = should_stop
        self._limits = store.limits(number)

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
        fresh = None
        if not store.is_planned(number, metric, window.number):
            fresh = self._begin(window, metric, prepared)
        origins = store.origins(number, metric, first, window.stop)
        refused = [
            (first + place, self._judge.outcome(entry, None))
            for place, entry in enumerate(prepared)
            if entry.request is None and first + place not in origins
        ]
        if refused:  # taken back by --retry-errors, and still no prompt
            store.add(number, metric, refused)
        self._advance(len(origins) + len(refused))
        rounds = store.retries(number, metric, first, window.stop)
        planned = [
            place
            for place, entry in enumerate(prepared)
            if entry.request is not None and origins.get(first + place) != Origin.CACHE
        ]
        for round_number in sorted({0, *(one for numbers in rounds.values() for one in numbers)}):
            places = [place for place in planned if not round_number or round_number in rounds.get(first + place, ())]
            missing = {
                first + place
                for place in places
                if first + place not in origins and rounds.get(first + place, [0])[-1] == round_number
            }
            if missing:
                plan = fresh if fresh is not None and not round_number else self._plan(prepared, places)
                self._execute(window, metric, prepared, places, plan, missing, round_number)

    def _begin(self, window: Window, metric: int, prepared: Sequence[Prepared]) -> _Plan:
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
        plan = self._plan(prepared, places)
        tokens = PlanRecord(
            sum(len(request.ids) for request in _requests(prepared, places)),
            sum(pack.tokens for _, packs in plan for pack in packs),
        )
        self._store.begin_window(self._number, metric, window.number, tokens, given)
        return plan

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

    def _plan(self, prepared: Sequence[Prepared], places: Sequence[int]) -> _Plan:
        from geval_local.engine.units import cut_units

        requests = _requests(prepared, places)
        return [(unit, self._engine.plan(unit.requests(requests))) for unit in cut_units(requests, self._engine)]

    def _execute(
        self,
        window: Window,
        metric: int,
        prepared: Sequence[Prepared],
        places: Sequence[int],
        plan: _Plan,
        missing: set[int],
        round_number: int,
    ) -> None:
        """Execute what is missing of a plan, in the plan's own packs."""
        requests = _requests(prepared, places)
        learnt: list[tuple[Prepared, Outcome]] = []
        try:
            for unit_number, (unit, packs) in enumerate(plan):
                own = unit.requests(requests)
                todo = [
                    (number, pack)
                    for number, pack in enumerate(packs)
                    if any(window.first + places[unit.members[index]] in missing for index in pack.requests)
                ]
                if todo and not self._engine.independent_packs:
                    todo = list(enumerate(packs))
                self._engine.forget()
                results = self._engine.execute(own, [pack for _, pack in todo])
                for pack_number, _ in todo:
                    key = (round_number, window.number, metric, unit_number, pack_number)
                    allowed = self._engine.limit = self._limit_at(key)
                    pack, readouts = next(results)
                    finished = []
                    for index, readout in zip(pack.requests, readouts, strict=True):
                        place = places[unit.members[index]]
                        if window.first + place in missing:
                            outcome = self._judge.outcome(prepared[place], readout)
                            finished.append((window.first + place, outcome))
                            learnt.append((prepared[place], outcome))
                    limit = None
                    if self._engine.limit != allowed:
                        limit = LimitRecord(*key, self._engine.limit)
                        bisect.insort(self._limits, limit)
                    self._store.add(self._number, metric, finished, limit)
                    self._advance(len(finished))
                    if self._should_stop():
                        raise Interrupted
        finally:
            if self._cache is not None and self._cache.in_use and learnt:
                keys = self._keys([entry for entry, _ in learnt])
                self._cache.add(dict(zip(keys, (outcome for _, outcome in learnt), strict=True)))

    def _limit_at(self, key: tuple[int, int, int, int, int]) -> int:
        """Say how many tokens a forward pass of a pack takes: as many as when memory last ran out before or in it."""
        place = bisect.bisect_right(self._limits, (*key, 1 << 62))
        return self._limits[place - 1].tokens if place else self._engine.batch_tokens


def _fits(outcome: Outcome, entry: Prepared) -> bool:
    """Whether a cached outcome has as many figures as the form has labels; a damaged cache may say otherwise."""
    logprobs, request = outcome.label_logprobs, entry.request
    return logprobs is not None and request is not None and len(logprobs) == request.trie.labels


def _requests(prepared: Sequence[Prepared], places: Sequence[int]) -> list[Request]:
    return [request for place in places if (request := prepared[place].request) is not None]
