"""How well scores agree with people: correlations at three levels, with ties, skipped groups and intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem, usable
from geval_local.analysis.statistics.levels import (
    LevelStatistic,
    PooledStatistic,
    SummaryStatistic,
    SystemStatistic,
    tied_pairs,
)
from geval_local.analysis.statistics.resampling import Interval, group_draws, interval_of
from geval_local.errors import DataError

__all__ = ["Correlation", "Level", "Ties", "correlate", "level_statistic"]

Level = Literal["summary", "pooled", "system"]


@dataclass(frozen=True)
class Ties:
    """Pairs of compared items with equal values.

    Attributes
    ----------
    pairs : int
        Pairs compared: within groups at summary level, all of them when pooled, of systems at system level.
    human, predicted : int
        How many of them the people, and the scores, do not tell apart.
    """

    pairs: int
    human: int
    predicted: int


@dataclass(frozen=True)
class Correlation:
    """Agreement of scores with human ratings at one level.

    Attributes
    ----------
    level : {"summary", "pooled", "system"}
        ``summary``: within each group, then the mean over groups. ``pooled``: all items at once. ``system``: over the
        means of the systems.
    pearson, spearman, kendall : Interval
        Coefficients (Kendall's is tau-b) with bootstrap percentile intervals over groups; NaN where undefined.
    n : int
        Items with a rating and a score.
    points : int
        What was correlated: groups kept (summary), items (pooled) or systems (system).
    groups : int
        Groups among the items.
    skipped : dict of str to int
        Reason -> groups without a coefficient of their own; summary level only.
    left_out : dict of str to int
        Reason -> items without a score or a rating.
    ties : Ties
        Pairs that cannot be ordered.
    """

    level: Level
    pearson: Interval
    spearman: Interval
    kendall: Interval
    n: int
    points: int
    groups: int
    skipped: dict[str, int]
    left_out: dict[str, int]
    ties: Ties


def correlate(
    items: Iterable[ScoredItem],
    level: Level = "summary",
    *,
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Correlation:
    """Correlate scores with human ratings.

    Parameters
    ----------
    items : iterable of ScoredItem
        Unscored and unrated items are counted and left out.
    level : {"summary", "pooled", "system"}
        See `Correlation`.
    resamples : int
        Bootstrap draws of groups (documents); 0 for none.
    seed : int
        Seed of the draws.
    confidence : float
        Coverage of the intervals, 0-1.

    Raises
    ------
    DataError
        If no item has both a rating and a score, or the system level is asked for without systems.
    """
    kept, left_out = usable(items)
    statistic = level_statistic(kept, level)
    human, predicted = _values(kept)
    groups = len({item.group for item in kept})
    draws = statistic.resample(group_draws(groups, resamples, seed)) if resamples else np.zeros((0, 3))
    pearson, spearman, kendall = (interval_of(statistic.point[i], draws[:, i], confidence) for i in range(3))
    skipped: dict[str, int] = {}
    if isinstance(statistic, SummaryStatistic):
        skipped = statistic.skipped
        points = groups - sum(skipped.values())
        ties = Ties(statistic.pairs, statistic.human_ties, statistic.predicted_ties)
    else:
        if isinstance(statistic, SystemStatistic):
            human, predicted = (means[0] for means in statistic.means)
        points = human.size
        ties = Ties(points * (points - 1) // 2, tied_pairs(human), tied_pairs(predicted))
    return Correlation(level, pearson, spearman, kendall, len(kept), points, groups, skipped, left_out, ties)


def level_statistic(items: Sequence[ScoredItem], level: Level) -> LevelStatistic:
    """Build the statistic that `correlate` resamples; all items must have a rating and a score.

    Raises
    ------
    DataError
        As `correlate`.
    """
    if not items:
        raise DataError(
            "no item has both a human rating and a score", hint="Check the name of the field with the human ratings."
        )
    human, predicted = _values(items)
    groups = _codes([item.group for item in items])
    if level == "summary":
        return SummaryStatistic(human, predicted, groups)
    if level == "pooled":
        return PooledStatistic(human, predicted, groups)
    systems = [item.system for item in items]
    if not all(systems):
        raise DataError(
            "a correlation over systems needs to know who wrote each output",
            hint="Name the field that holds the system, or choose the summary or pooled level.",
        )
    return SystemStatistic(human, predicted, groups, _codes(systems))


def _values(items: Sequence[ScoredItem]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.array([item.human for item in items]), np.array([item.predicted for item in items])


def _codes(names: Sequence[str]) -> NDArray[np.int64]:
    # In order of appearance, so that equal seeds draw the same groups for two judges on the same items.
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
