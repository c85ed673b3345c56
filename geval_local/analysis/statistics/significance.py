"""Whether one judge is better than another on the same items.

Two tests, and when each applies:

- The paired bootstrap draws whole groups (documents) and correlates both judges on the same draws. It holds at every
  level, for every coefficient, with items of one document depending on each other. It is the test that is reported.
- Williams' test compares two Pearson correlations that share a variable (the human ratings). It takes items to be
  independent and jointly normal, so it applies to pooled Pearson with one item per document, and is given beside the
  bootstrap there. With several items per document it takes them for more evidence than they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from geval_local.analysis.records import ScoredItem, pair, usable
from geval_local.analysis.statistics.correlation import Level, level_statistic
from geval_local.analysis.statistics.levels import COEFFICIENTS, coefficients
from geval_local.analysis.statistics.resampling import Interval, group_draws, interval_of, two_sided_p

__all__ = ["Comparison", "WilliamsTest", "compare", "williams"]


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
    """Difference of two judges' correlation with the same human ratings.

    Attributes
    ----------
    level, coefficient : str
        What was compared.
    first, second : float
        Each judge's coefficient on the items that both scored.
    difference : Interval
        ``first - second`` with its paired bootstrap interval.
    p : float
        Two-sided p-value of the paired bootstrap.
    n, groups : int
        Items that both scored, and the groups they come from.
    williams : WilliamsTest or None
        Beside it, where it applies.
    why : str
        Which test to read, in a sentence.
    """

    level: Level
    coefficient: str
    first: float
    second: float
    difference: Interval
    p: float
    n: int
    groups: int
    williams: WilliamsTest | None
    why: str


def williams(r_first: float, r_second: float, r_between: float, n: int) -> WilliamsTest:
    """Williams' (1959) test of two correlations that share a variable, in the form of Steiger (1980), equation 7.

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
        # The judges agree perfectly with each other: equal correlations, nothing to tell apart.
        return WilliamsTest(0.0, n - 3, 1.0)
    t = difference * math.sqrt((n - 1) * (1 + r_between) / spread)
    return WilliamsTest(t, n - 3, float(2 * stats.t.sf(abs(t), n - 3)))


def compare(
    first: Sequence[ScoredItem],
    second: Sequence[ScoredItem],
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    resamples: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> Comparison:
    """Test the difference of two judges' correlations on the items that both scored.

    Parameters
    ----------
    first, second : sequence of ScoredItem
        Paired by key; items that either of them left unscored, or people left unrated, are not compared.
    level : {"summary", "pooled", "system"}
        See `geval_local.analysis.statistics.correlation.Correlation`.
    coefficient : {"pearson", "spearman", "kendall"}
        Which one.
    resamples, seed, confidence
        As in `geval_local.analysis.statistics.correlation.correlate`.

    Raises
    ------
    DataError
        If the two lists do not hold the same items, or no item is rated and scored by both.
    """
    index = COEFFICIENTS.index(coefficient)
    left, right = pair(usable(first)[0], usable(second)[0])
    statistics = [level_statistic(items, level) for items in (left, right)]
    groups = len({item.group for item in left})
    draws = group_draws(groups, resamples, seed)
    a, b = (float(statistic.point[index]) for statistic in statistics)
    differences = statistics[0].resample(draws)[:, index] - statistics[1].resample(draws)[:, index]
    beside = None
    if level != "pooled":
        why = f"Paired bootstrap over groups: a {level}-level correlation has no closed-form test."
    elif groups < len(left):
        why = "Paired bootstrap over groups: items of one group depend on each other, which Williams' test rules out."
    elif coefficient != "pearson":
        why = "Paired bootstrap over items: Williams' test is about Pearson correlations."
    else:
        why = "Paired bootstrap over items; Williams' test beside it, since the items are independent of each other."
        p, q = (np.array([item.predicted for item in items]) for items in (left, right))
        between = float(coefficients(p, q)[0])
        if len(left) >= 4 and all(map(math.isfinite, (a, b, between))):
            beside = williams(a, b, between, len(left))
    return Comparison(
        level,
        coefficient,
        a,
        b,
        interval_of(a - b, differences, confidence),
        two_sided_p(differences),
        len(left),
        groups,
        beside,
        why,
    )
