"""The cost of sampling: scores from n draws against the exact expectation that they estimate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem, usable
from geval_local.analysis.statistics.distributions import expectations, probability_matrix
from geval_local.analysis.statistics.levels import Level, level_figures
from geval_local.scale import Scale

__all__ = ["SamplingCost", "Spread", "sampling_cost"]


@dataclass(frozen=True)
class Spread:
    """A figure over repeated draws: its mean and its standard deviation over seeds (0 for exact scores)."""

    mean: float
    sd: float


@dataclass(frozen=True)
class SamplingCost:
    """One row of the table.

    Attributes
    ----------
    n : int or None
        Draws per item; None for the exact expectation.
    error : Spread
        Mean absolute difference from the exact expectation, in units of the scale.
    pearson, spearman, kendall : Spread or None
        Agreement with the human ratings; None without ratings.
    """

    n: int | None
    error: Spread
    pearson: Spread | None
    spearman: Spread | None
    kendall: Spread | None


def sampling_cost(
    items: Iterable[ScoredItem],
    scale: Scale,
    level: Level = "summary",
    *,
    sizes: Sequence[int] = (1, 5, 20, 100),
    seeds: Sequence[int] = tuple(range(10)),
) -> list[SamplingCost]:
    """Draw labels from the exact distributions and measure the error of sampling.

    Parameters
    ----------
    items : iterable of ScoredItem
        Items with label probabilities. If any item is rated, unrated items are left out.
    scale : Scale
        The metric's scale.
    level : {"summary", "pooled", "system"}
        Level of the correlation with human ratings.
    sizes : sequence of int
        Draws per item; the paper used 20.
    seeds : sequence of int
        One seed per repetition.

    Returns
    -------
    list of SamplingCost
        The exact row first, then one per size.

    Raises
    ------
    DataError
        If an item has no probabilities over the labels of `scale`.
    """
    everything = [item for item in items if np.isfinite(item.predicted)]
    rated = usable(everything)[0]
    kept = rated or everything
    p = probability_matrix(kept, scale)
    exact = expectations(p, scale)
    costs = [_cost(None, [exact], exact, kept if rated else [], level)]
    for n in sizes:
        draws = [np.random.default_rng([seed, n]).multinomial(n, p) @ scale.array / n for seed in seeds]
        costs.append(_cost(n, draws, exact, kept if rated else [], level))
    return costs


def _cost(
    n: int | None,
    scores: Sequence[NDArray[np.float64]],
    exact: NDArray[np.float64],
    rated: Sequence[ScoredItem],
    level: Level,
) -> SamplingCost:
    error = _spread([float(np.abs(values - exact).mean()) for values in scores])
    if not rated:
        return SamplingCost(n, error, None, None, None)
    points = [
        level_figures(
            [replace(item, predicted=float(value)) for item, value in zip(rated, values, strict=True)], level, None
        ).replicates.value
        for values in scores
    ]
    pearson, spearman, kendall = (_spread([float(point[index]) for point in points]) for index in range(3))
    return SamplingCost(n, error, pearson, spearman, kendall)


def _spread(values: Sequence[float]) -> Spread:
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)
