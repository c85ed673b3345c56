"""Tests of whether one judge is better than another on the same items and documents.

Choice of the test:

- Summary level, new documents: the sign-flip permutation test of the documents' differences (exact up to 13 documents).
- Anything else: Student's t of the difference, with the standard error of leaving out documents, systems or both.

Every p-value in a table is also given with Holm's correction for the number of tests in that table.
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
from geval_local.statistics.jackknife import Replicates, Target, mean_of, minus
from geval_local.statistics.levels import Level, level_figures
from geval_local.statistics.records import ScoredItem, pair, usable
from geval_local.statistics.resampling import SIGN_FLIP_GROUPS, sign_flip


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
    #: Smallest true difference that would have been found with 80 % probability (at .05, before correction).
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
    """Copy the tests of one table with Holm's correction in ``p_holm``, from their ``p``."""
    p = holm([test.p for test in tests.values()])  # type: ignore[attr-defined]  # Comparison and Gap both have them
    return {
        name: replace(test, p_holm=value)  # type: ignore[type-var]
        for (name, test), value in zip(tests.items(), p, strict=True)
    }


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
    kept = [set(level_figures(items, level).per_group) for items in aligned]
    common = set.intersection(*kept)
    return [[item for item in items if item.group in common] for items in aligned], [len(own) for own in kept]


def compare(
    first: Sequence[ScoredItem],
    second: Sequence[ScoredItem],
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> Comparison:
    """Test the difference of two judges' agreement with people, on the items and documents that both keep.

    Parameters
    ----------
    first, second : sequence of ScoredItem
        Paired by key; items that either of them left unscored, or people left unrated, are not compared.
    level : {"summary", "pooled", "system"}
        See `geval_local.statistics.correlation.Correlation`.
    coefficient : {"pearson", "spearman", "kendall", "accuracy", "auc"}
        Coefficient to compare; ties of the accuracy are calibrated for each judge.
    target, confidence
        As in `geval_local.statistics.correlation.correlate`.
    seed : int
        Seed of the permutations.

    Raises
    ------
    DataError
        If the two lists do not hold the same items, or no item or document is rated and kept by both.
    """
    index = _index(coefficient)
    (left, right), kept = common_ground([first, second], level)
    if not left:
        raise DataError(
            f"no document is kept by both: of {kept[0]} and {kept[1]} documents with varying scores none is common",
            hint="Compare at the pooled level.",
        )
    target = known_target(left, level, target)
    figures = [level_figures(items, level, target, accuracy=coefficient == "accuracy") for items in (left, right)]
    difference = minus(figures[0].replicates, figures[1].replicates)
    paired = None
    if level == "summary" and target == "documents":
        one, other = (own.per_group for own in figures)
        paired = np.array([values[index] - other[name][index] for name, values in one.items()])
    p, why = _test(difference, index, target, paired, seed)
    most = 2.0 if coefficient in COEFFICIENTS else 1.0
    interval = within(difference.interval(index, target, confidence), -most, most)
    return Comparison(
        level,
        coefficient,
        float(figures[0].replicates.value[index]),
        float(figures[1].replicates.value[index]),
        interval,
        p,
        math.nan,
        interval.detectable(),
        target,
        generalises_to(target, figures[0]),
        len(left),
        figures[0].documents,
        (kept[0], kept[1]),
        why,
    )


def compare_average(
    first: Sequence[Sequence[ScoredItem]],
    second: Sequence[Sequence[ScoredItem]],
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    confidence: float = 0.95,
) -> Comparison:
    """Test the difference of two judges' average over the dimensions of a benchmark."""
    index = _index(coefficient)
    grounds = [common_ground([a, b], level) for a, b in zip(first, second, strict=True)]
    if not all(items[0] for items, _ in grounds):
        raise DataError("a dimension has no document that both judges keep")
    target = known_target([item for items, _ in grounds for item in items[0]], level, target)
    figures = [
        [level_figures(own, level, target, accuracy=coefficient == "accuracy") for own in items] for items, _ in grounds
    ]
    sides = [mean_of([own[side].replicates for own in figures]) for side in (0, 1)]
    difference = minus(*sides)
    p, why = _test(difference, index, target, None, 0)
    most = 2.0 if coefficient in COEFFICIENTS else 1.0
    interval = within(difference.interval(index, target, confidence), -most, most)
    widest = max((own[0] for own in figures), key=lambda own: own.documents)
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


def _test(
    difference: Replicates, index: int, target: Target, paired: np.ndarray | None, seed: int
) -> tuple[float, str]:
    if paired is not None and paired.size >= SIGN_FLIP_GROUPS and np.isfinite(paired).all():
        return sign_flip(paired, seed=seed), "Sign-flip permutation test over documents; Student's t interval."
    units = {"documents": "documents", "systems": "systems", "both": "documents and systems"}[target]
    return difference.p(index, target), f"Student's t test; standard error from leaving out {units} (jackknife)."
