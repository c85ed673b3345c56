"""The human ceiling: agreement of people with each other, and of a judge measured the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.agreement import krippendorff_alpha
from geval_local.analysis.statistics.coefficients import ALL_COEFFICIENTS
from geval_local.analysis.statistics.correlation import interval_at, known_target
from geval_local.analysis.statistics.jackknife import Replicates, Target, mean_of, minus
from geval_local.analysis.statistics.levels import Level, level_figures
from geval_local.errors import ConfigurationError, DataError
from geval_local.interval import Interval

__all__ = ["Ceiling", "JudgeBeside", "human_ceiling"]


@dataclass(frozen=True)
class JudgeBeside:
    """Agreement of a judge in place of each rater.

    Attributes
    ----------
    agreement : Interval
        Its coefficient with the mean of the others, averaged over the raters left out.
    difference : Interval
        That minus people's: below 0 if another person would agree better than the judge.
    p : float
        Two-sided p-value of "no difference".
    """

    agreement: Interval
    difference: Interval
    p: float


@dataclass(frozen=True)
class Ceiling:
    """Agreement of several raters.

    Attributes
    ----------
    level, coefficient : str
        Level and coefficient of the correlations.
    raters, n : int
        Number of raters, and of items with at least two ratings.
    alpha : float
        Krippendorff's alpha for interval data.
    people : Interval
        Leave-one-out agreement: each rater with the mean of the others, averaged over the raters.
    judges : dict of str to JudgeBeside
        Judges measured against the same means of the others.
    """

    level: Level
    coefficient: str
    raters: int
    n: int
    alpha: float
    people: Interval
    judges: dict[str, JudgeBeside]


def human_ceiling(
    ratings: Mapping[str, Sequence[float]],
    judges: Mapping[str, Sequence[ScoredItem]],
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
) -> Ceiling:
    """Measure the agreement of raters, and of judges in their place.

    Parameters
    ----------
    ratings : mapping of str to sequence of float
        Rater -> rating of each item; NaN if a rater has none.
    judges : mapping of str to sequence of ScoredItem
        Name -> its scores of the same items, in the same order; at least one, for groups and systems.
    level, coefficient, target
        As in `geval_local.analysis.statistics.significance.compare`.

    Raises
    ------
    ConfigurationError
        If there are fewer than two raters.
    DataError
        If the lists differ in length, or no rater shares an item with another.
    """
    if len(ratings) < 2:
        raise ConfigurationError("a human ceiling needs at least two raters", hint="Name a field for each of them.")
    table = np.array([list(own) for own in ratings.values()], dtype=np.float64)
    if any(len(items) != table.shape[1] for items in judges.values()):
        raise DataError("ratings and scores are not of the same items")
    index = ALL_COEFFICIENTS.index(coefficient)
    several = np.isfinite(table).sum(axis=0) >= 2
    people: list[Replicates] = []
    beside: dict[str, list[Replicates]] = {name: [] for name in judges}
    # All are measured on the items that all judges scored, so that none has easier ones.
    scored = np.all([[math.isfinite(item.predicted) for item in items] for items in judges.values()], axis=0)
    chosen = known_target((), level, target)
    for place in range(len(table)):
        own, others = table[place], np.delete(table, place, axis=0)
        use = np.flatnonzero(several & scored & np.isfinite(own) & np.isfinite(others).any(axis=0)).tolist()
        if not use:
            continue
        means = np.nanmean(others[:, use], axis=0)
        for name, items in judges.items():
            rated = [replace(items[i], human=float(mean)) for i, mean in zip(use, means, strict=True)]
            beside[name].append(_figures(rated, level, chosen, coefficient))
        anyone = next(iter(judges.values()))
        by_person = [
            replace(anyone[i], human=float(mean), predicted=float(own[i])) for i, mean in zip(use, means, strict=True)
        ]
        people.append(_figures(by_person, level, chosen, coefficient))
    if not people:
        raise DataError("no item has ratings of two people and a score", hint="Check the fields of the raters.")
    ceiling = mean_of(people)
    found = {}
    for name, parts in beside.items():
        average = mean_of(parts)
        less = minus(average, ceiling)
        found[name] = JudgeBeside(
            interval_at(average, coefficient, level, chosen), less.interval(index, chosen), less.p(index, chosen)
        )
    return Ceiling(
        level,
        coefficient,
        len(table),
        int(several.sum()),
        krippendorff_alpha(table),
        interval_at(ceiling, coefficient, level, chosen),
        found,
    )


def _figures(items: Sequence[ScoredItem], level: Level, target: Target, coefficient: str) -> Replicates:
    return level_figures(items, level, target, accuracy=coefficient == "accuracy").replicates
