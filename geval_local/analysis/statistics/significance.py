"""Tests of whether one judge is better than another on the same items and documents.

Choice of the test:

- Summary level, new documents: the sign-flip permutation test of the documents' differences (exact up to 13 documents).
- Anything else: Student's t of the difference, with the standard error of leaving out documents, systems or both.
- Williams' test compares two pooled Pearson correlations that share a variable (the human ratings). It assumes items to
  be independent and jointly normal, so it is shown beside the t test if no two items share a document.

Every p-value in a table is also given with Holm's correction for the number of tests in that table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from geval_local.analysis.records import ScoredItem, pair, usable
from geval_local.analysis.statistics.coefficients import ALL_COEFFICIENTS, COEFFICIENTS, coefficients
from geval_local.analysis.statistics.correlation import generalises_to, known_target, within
from geval_local.analysis.statistics.jackknife import Replicates, Target, mean_of, minus
from geval_local.analysis.statistics.levels import Constant, Level, LevelFigures, level_figures
from geval_local.analysis.statistics.resampling import SIGN_FLIP_GROUPS, sign_flip
from geval_local.errors import ConfigurationError, DataError
from geval_local.interval import Interval

__all__ = ["Comparison", "WilliamsTest", "common_ground", "compare", "compare_average", "corrected", "holm", "williams"]


@dataclass(frozen=True)
class WilliamsTest:
    """Williams' t for two dependent correlations.

    Attributes
    ----------
    t : float
        The statistic; positive when the first correlation is larger.
    df : int
        Degrees of freedom, n - 3.
    p : float
        Two-sided p-value.
    """

    t: float
    df: int
    p: float


@dataclass(frozen=True)
class Comparison:
    """Difference of two judges' agreement with the same human ratings, on the same documents.

    Attributes
    ----------
    level, coefficient : str
        Level and coefficient of the comparison.
    first, second : float
        Each judge's coefficient on the common documents.
    difference : Interval
        ``first - second``.
    p : float
        Two-sided p-value.
    p_holm : float
        The same, corrected for the number of tests in its table; NaN for a single test.
    detectable : float
        Smallest true difference that would have been found with 80 % probability (at .05, before correction).
    target : {"documents", "systems", "both"}
        Population that the interval and the test generalise to.
    holds_for : str
        The same in words.
    n, groups : int
        Items compared, and the documents they come from.
    kept : tuple of (int, int)
        Documents with a coefficient for each judge alone; more than `groups` if the judges differ.
    williams : WilliamsTest or None
        Additional test, where applicable.
    why : str
        Description of the test, in a sentence.
    """

    level: Level
    coefficient: str
    first: float
    second: float
    difference: Interval
    p: float
    p_holm: float
    detectable: float
    target: Target
    holds_for: str
    n: int
    groups: int
    kept: tuple[int, int]
    williams: WilliamsTest | None
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


def williams(r_first: float, r_second: float, r_between: float, n: int) -> WilliamsTest:
    """Compute Williams' (1959) test of two correlations that share a variable, as in Steiger (1980), equation 7.

    Parameters
    ----------
    r_first, r_second : float
        Correlation of each judge with the human ratings.
    r_between : float
        Correlation of the judges with each other.
    n : int
        Independent items, at least 4.

    Raises
    ------
    ValueError
        If there are fewer than 4 items, or the three correlations cannot occur together.
    """
    from scipy import stats

    if n < 4:
        raise ValueError(f"Williams' test needs at least 4 items, not {n}")
    determinant = 1 - r_first**2 - r_second**2 - r_between**2 + 2 * r_first * r_second * r_between
    if determinant < -1e-9:
        raise ValueError(f"no three variables correlate by {r_first:g}, {r_second:g} and {r_between:g}")
    mean = (r_first + r_second) / 2
    spread = 2 * max(determinant, 0.0) * (n - 1) / (n - 3) + mean**2 * (1 - r_between) ** 3
    difference = r_first - r_second
    if spread == 0:
        # The judges agree perfectly with each other: equal correlations, no difference.
        return WilliamsTest(0.0, n - 3, 1.0)
    t = difference * math.sqrt((n - 1) * (1 + r_between) / spread)
    return WilliamsTest(t, n - 3, float(2 * stats.t.sf(abs(t), n - 3)))


def common_ground(
    judges: Sequence[Sequence[ScoredItem]], level: Level = "summary", *, constant: Constant = "skip"
) -> tuple[list[list[ScoredItem]], list[int]]:
    """Restrict several judges to the items on which all can be compared.

    Parameters
    ----------
    judges : sequence of sequence of ScoredItem
        At least one, paired by key.
    level : {"summary", "pooled", "system"}
        At summary level only documents that every judge keeps are common; otherwise all items that every judge scored.
    constant : {"skip", "zero"}
        Whether a document on which a judge's scores are constant is kept, as no agreement.

    Returns
    -------
    items : list of list of ScoredItem
        Per judge, in one order. Empty lists if no document is kept by all.
    kept : list of int
        Documents that each judge keeps of those with items that all judges scored.

    Raises
    ------
    DataError
        If the judges share no rated and scored item, or do not hold the same ones.
    """
    shared = usable(judges[0])[0]
    for other in judges[1:]:
        shared = pair(shared, usable(other)[0])[0]
    aligned = [pair(shared, usable(other)[0])[1] for other in judges]
    if level != "summary":
        return aligned, [len({item.group for item in shared})] * len(judges)
    kept = [set(level_figures(items, level, constant=constant).per_group) for items in aligned]
    common = set.intersection(*kept)
    return [[item for item in items if item.group in common] for items in aligned], [len(own) for own in kept]


def compare(
    first: Sequence[ScoredItem],
    second: Sequence[ScoredItem],
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    constant: Constant = "skip",
    seed: int = 0,
    confidence: float = 0.95,
) -> Comparison:
    """Test the difference of two judges' agreement with people, on the items and documents that both keep.

    Parameters
    ----------
    first, second : sequence of ScoredItem
        Paired by key; items that either of them left unscored, or people left unrated, are not compared.
    level : {"summary", "pooled", "system"}
        See `geval_local.analysis.statistics.correlation.Correlation`.
    coefficient : {"pearson", "spearman", "kendall", "accuracy", "auc"}
        Coefficient to compare; ties of the accuracy are calibrated for each judge.
    target, confidence
        As in `geval_local.analysis.statistics.correlation.correlate`.
    constant : {"skip", "zero"}
        Documents on which a judge's scores are constant: left out, or counted as no agreement for that judge.
    seed : int
        Seed of the permutations.

    Raises
    ------
    DataError
        If the two lists do not hold the same items, or no item or document is rated and kept by both.
    """
    index = _index(coefficient)
    (left, right), kept = common_ground([first, second], level, constant=constant)
    if not left:
        raise DataError(
            f"no document is kept by both: of {kept[0]} and {kept[1]} documents with varying scores none is common",
            hint="Compare at the pooled level, or count constant documents as no agreement.",
        )
    target = known_target(left, level, target)
    figures = [
        level_figures(items, level, target, constant=constant, accuracy=coefficient == "accuracy")
        for items in (left, right)
    ]
    difference = minus(figures[0].replicates, figures[1].replicates)
    paired = None
    if level == "summary" and target == "documents":
        one, other = (own.per_group for own in figures)
        paired = np.array([values[index] - other[name][index] for name, values in one.items()])
    p, why = _test(difference, index, target, paired, seed)
    most = 2.0 if coefficient in COEFFICIENTS else 1.0
    interval = within(difference.interval(index, target, confidence), -most, most)
    beside = None
    if level == "pooled" and coefficient == "pearson" and figures[0].documents == len(left):
        beside = _williams(left, right, figures)
        why += " Williams' test beside it holds if no two rows share a document."
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
        beside,
        why,
    )


def compare_average(
    first: Sequence[Sequence[ScoredItem]],
    second: Sequence[Sequence[ScoredItem]],
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    constant: Constant = "skip",
    confidence: float = 0.95,
) -> Comparison:
    """Test the difference of two judges' average over the dimensions of a benchmark.

    Parameters
    ----------
    first, second : sequence of sequence of ScoredItem
        One list per dimension, in one order, over the same documents.
    level, coefficient, target, constant, confidence
        As in `compare`.

    Raises
    ------
    DataError
        As `compare`.
    """
    index = _index(coefficient)
    grounds = [common_ground([a, b], level, constant=constant) for a, b in zip(first, second, strict=True)]
    if not all(items[0] for items, _ in grounds):
        raise DataError("a dimension has no document that both judges keep")
    target = known_target([item for items, _ in grounds for item in items[0]], level, target)
    figures = [
        [level_figures(own, level, target, constant=constant, accuracy=coefficient == "accuracy") for own in items]
        for items, _ in grounds
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
        None,
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


def _williams(
    left: Sequence[ScoredItem], right: Sequence[ScoredItem], figures: Sequence[LevelFigures]
) -> WilliamsTest | None:
    p, q = (np.array([item.predicted for item in items]) for items in (left, right))
    between = float(coefficients(p, q)[0])
    a, b = (float(own.replicates.value[0]) for own in figures)
    if len(left) < 4 or not all(map(math.isfinite, (a, b, between))):
        return None
    return williams(a, b, between, len(left))
