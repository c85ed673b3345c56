"""Agreement between judges, or between runs of one judge, without human ratings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from geval_local.statistics.coefficients import coefficients
from geval_local.statistics.records import ScoredItem, pair


@dataclass(frozen=True)
class Agreement:
    """Agreement of two score lists."""

    #: Number of items scored by both.
    n: int
    #: Number of items scored by only one of them.
    only_first: int
    only_second: int
    #: Pooled coefficients (tau-b); NaN if one side is constant.
    pearson: float
    spearman: float
    kendall: float
    #: Mean of ``first - second``, in units of the scale: positive if the first is more lenient.
    mean_difference: float
    #: In units of the scale.
    mean_absolute_difference: float
    largest_difference: float
    #: Krippendorff's alpha for interval data: 1 is identity, 0 is chance level. Unlike a correlation it falls when one
    #: judge is more lenient than the other.
    alpha: float


def agree(first: Sequence[ScoredItem], second: Sequence[ScoredItem]) -> Agreement:
    """Measure the agreement of two score lists on the items that both scored."""
    left, right = pair(first, second, same_human=False)
    a = np.array([item.predicted for item in left])
    b = np.array([item.predicted for item in right])
    pearson, spearman, kendall = coefficients(a, b)[:3].tolist()
    scored = [sum(math.isfinite(item.predicted) for item in items) for items in (first, second)]
    return Agreement(
        n=len(left),
        only_first=scored[0] - len(left),
        only_second=scored[1] - len(left),
        pearson=pearson,
        spearman=spearman,
        kendall=kendall,
        mean_difference=float((a - b).mean()),
        mean_absolute_difference=float(np.abs(a - b).mean()),
        largest_difference=float(np.abs(a - b).max()),
        alpha=krippendorff_alpha([a, b]),
    )


def krippendorff_alpha(ratings: ArrayLike) -> float:
    """Compute Krippendorff's alpha with the interval difference function."""
    table = np.atleast_2d(np.asarray(ratings, dtype=np.float64))
    table = table[:, np.isfinite(table).sum(axis=0) >= 2]
    if table.size == 0:
        return math.nan
    raters = np.isfinite(table).sum(axis=0)
    # sum over ordered pairs of (x - y)^2 = 2 n sum (x - mean)^2, within an item and over all ratings.
    observed = float((2 * raters * np.nanvar(table, axis=0) * raters / (raters - 1)).sum())
    values = table[np.isfinite(table)]
    if np.unique(values).size < 2:
        return math.nan
    expected = 2 * values.size * float(values.var()) * values.size / (values.size - 1)
    return 1.0 - observed / expected
