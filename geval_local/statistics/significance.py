"""Tests of whether one judge is better than another on the same items and documents.

Two judges are exchanged on whole documents, of whole systems, or both, as the target says: PERM-INPUTS, PERM-SYSTEMS,
PERM-BOTH of Deutsch, Dror and Roth (2021, TACL, doi:10.1162/tacl_a_00417). At summary level for new documents that is
the sign-flip test of the documents' differences, exact up to 13 documents. Every p-value is two-sided; in a table it is
also given with Holm's correction for the number of tests there, and so is the smallest detectable difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from geval_local.errors import ConfigurationError, DataError
from geval_local.statistics.coefficients import ALL_COEFFICIENTS, COEFFICIENTS
from geval_local.statistics.correlation import generalises_to, known_target, within
from geval_local.statistics.interval import Interval
from geval_local.statistics.levels import Level, Ties, draws_for, level_figures
from geval_local.statistics.records import ScoredItem, pair, usable
from geval_local.statistics.resampling import PERMUTATIONS, RESAMPLES, Figures, Target, mean_of, minus, swapped_p

#: Exchanges of two judges at summary and pooled level, where one costs more.
FEWER_PERMUTATIONS = 999
#: With more items Student's t, with the bootstrap's error, takes the place of exchanges.
MOST_SWAPPED = 5_000


@dataclass(frozen=True)
class Comparison:
    """Difference of two judges' agreement with the same human ratings, on the same documents."""

    #: Level and coefficient of the comparison.
    level: Level
    coefficient: str
    #: Each judge's coefficient on the common documents.
    first: float
    second: float
    #: ``first - second``.
    difference: Interval
    #: Two-sided p-value.
    p: float
    #: The same, corrected for the number of tests in its table; NaN for a single test.
    p_holm: float
    #: Smallest true difference that would have been found with 80 % probability, at .05 or what Holm's correction
    #: leaves of it for the first of the tests in its table.
    detectable: float
    #: Population that the interval and the test generalise to.
    target: Target
    #: The same in words.
    holds_for: str
    #: Items compared, and the documents they come from.
    n: int
    groups: int
    #: Documents with a coefficient for each judge alone; more than `groups` if the judges differ.
    kept: tuple[int, int]
    #: Description of the test, in a sentence.
    why: str


def holm(p: Sequence[float]) -> list[float]:
    """Apply Holm's step-down correction; NaN values do not count as tests."""
    order = sorted((value, index) for index, value in enumerate(p) if math.isfinite(value))
    result, largest = [math.nan] * len(p), 0.0
    for rank, (value, index) in enumerate(order):
        largest = max(largest, min(1.0, value * (len(order) - rank)))
        result[index] = largest
    return result


_Tested = TypeVar("_Tested")


def corrected(tests: Mapping[str, _Tested]) -> dict[str, _Tested]:
    """Copy the tests of one table with Holm's correction: ``p_holm`` from ``p``, and ``detectable``."""
    p = holm([test.p for test in tests.values()])  # type: ignore[attr-defined]  # all kinds of tests have them
    level = 0.05 / max(1, sum(math.isfinite(value) for value in p))
    found = {}
    for (name, test), value in zip(tests.items(), p, strict=True):
        size = getattr(test, "difference", None)
        detectable = (
            {}
            if size is None or not hasattr(test, "detectable")
            else {"detectable": size.detectable(significance=level)}
        )
        found[name] = replace(test, p_holm=value, **detectable)  # type: ignore[type-var]
    return found


def common_ground(
    judges: Sequence[Sequence[ScoredItem]], level: Level = "summary"
) -> tuple[list[list[ScoredItem]], list[int]]:
    """Restrict several judges to the items on which all can be compared."""
    shared = usable(judges[0])[0]
    for other in judges[1:]:
        shared = pair(shared, usable(other)[0])[0]
    aligned = [pair(shared, usable(other)[0])[1] for other in judges]
    if level != "summary":
        return aligned, [len({item.group for item in shared})] * len(judges)
    kept = [set(level_figures(items, level, accuracy=False).per_group) for items in aligned]
    common = set.intersection(*kept)
    return [[item for item in items if item.group in common] for items in aligned], [len(own) for own in kept]


def compare(
    first: Sequence[ScoredItem],
    second: Sequence[ScoredItem] | None,
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> Comparison:
    """Test the difference of two judges' agreement with people, on the items and documents that both keep.

    Items are paired by key. Without a second judge, the first is held against chance.
    """
    both = [first], None if second is None else [second]
    return compare_average(*both, level, coefficient, target=target, seed=seed, confidence=confidence)


def compare_average(
    first: Sequence[Sequence[ScoredItem]],
    second: Sequence[Sequence[ScoredItem]] | None,
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> Comparison:
    """Test the difference of two judges' average over the dimensions of a benchmark, as `compare` does for one."""
    index = _index(coefficient)
    grounds = [common_ground([a, b], level) for a, b in zip(first, first if second is None else second, strict=True)]
    for (left, _), kept in grounds:
        if not left:
            raise DataError(
                f"no document is kept by both: of {kept[0]} and {kept[1]} documents with varying scores none is common",
                hint="Compare at the pooled level.",
            )
    target = known_target(level, target)
    draws = draws_for([items[0] for items, _ in grounds], level, target)
    wanted = coefficient == "accuracy"
    found = [[level_figures(own, level, target, accuracy=wanted, draws=draws) for own in items] for items, _ in grounds]
    sides = [mean_of([own[side].figures for own in found]) for side in (0, 1)]
    if second is None:
        sides[1] = _chance([own[0].ties for own in found], sides[0])
    difference = minus(*sides)
    p, why = difference.p(index, seed=seed)
    if second is not None and difference.draws is not None:
        p, why = _swapped([items for items, _ in grounds], level, index, target, seed, (p, why))
    most = 2.0 if coefficient in COEFFICIENTS else 1.0
    interval = within(difference.interval(index, confidence), -most, most)
    widest = max((own[0] for own in found), key=lambda own: own.documents)
    return Comparison(
        level,
        coefficient,
        float(sides[0].value[index]),
        float(sides[1].value[index]),
        interval,
        p,
        math.nan,
        interval.detectable(),
        target,
        generalises_to(target, widest),
        sum(len(items[0]) for items, _ in grounds),
        len({item.group for items, _ in grounds for item in items[0]}),
        (max(kept[0] for _, kept in grounds), max(kept[1] for _, kept in grounds)),
        why,
    )


def _index(coefficient: str) -> int:
    if coefficient not in ALL_COEFFICIENTS:
        raise ConfigurationError(
            f"unknown coefficient {coefficient!r}", hint=f"Choose one of: {', '.join(ALL_COEFFICIENTS)}."
        )
    return ALL_COEFFICIENTS.index(coefficient)


def _chance(ties: Sequence[Ties], like: Figures) -> Figures:
    """Give the figures of scores that know nothing: 0, one half, and the accuracy of ties always or never."""
    tied = np.array([own.human / own.pairs if own.pairs else math.nan for own in ties])
    value = np.array([0.0, 0.0, 0.0, np.maximum(tied, (1 - tied) / 2).mean(), 0.5])
    draws = None if like.draws is None else np.broadcast_to(value, like.draws.shape)
    return Figures(value, dict.fromkeys(like.parts, value), draws, like.units, like.unit)


def _swapped(
    grounds: Sequence[Sequence[Sequence[ScoredItem]]],
    level: Level,
    index: int,
    target: Target,
    seed: int,
    otherwise: tuple[float, str],
) -> tuple[float, str]:
    """Exchange two judges on documents, of systems, or both; `otherwise` where there are too many items for it."""
    if max(len(items[0]) for items in grounds) > MOST_SWAPPED:
        return otherwise
    count = PERMUTATIONS if level == "system" else FEWER_PERMUTATIONS
    draws = draws_for([items[0] for items in grounds], level, target, count=count, swap=True, seed=seed)
    # On one scale, since an average of both judges' scores is taken over a system's documents (Deutsch et al.).
    grounds = [[_standard(items) for items in both] for both in grounds]
    wanted = index == ALL_COEFFICIENTS.index("accuracy")
    drawn, observed = np.zeros((2, count)), np.zeros(2)
    for both in grounds:
        for side in (0, 1):
            swapped = both[1 - side]
            found = level_figures(both[side], level, target, accuracy=wanted, draws=draws, swapped=swapped).figures
            if found.draws is None:
                return otherwise
            drawn[side] += found.draws[:, index] / len(grounds)
            observed[side] += found.value[index] / len(grounds)
    name = {"documents": "PERM-INPUTS", "systems": "PERM-SYSTEMS", "both": "PERM-BOTH"}[target]
    units = {"documents": "documents", "systems": "systems", "both": "documents and systems"}[target]
    told = f"{count:,} exchanges of the two judges on {units} ({name}), two-sided; interval from {RESAMPLES:,} draws."
    return swapped_p(observed[0] - observed[1], *drawn), told


def _standard(items: Sequence[ScoredItem]) -> list[ScoredItem]:
    scores = np.array([item.predicted for item in items])
    spread = float(scores.std()) or 1.0
    return [replace(item, predicted=(item.predicted - float(scores.mean())) / spread) for item in items]
