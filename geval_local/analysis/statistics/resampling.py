"""Draws, folds and intervals over groups. Items of one group are never separated, and nothing is ever rescored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import ConfigurationError

__all__ = ["Interval", "group_draws", "group_folds", "interval_of", "mean_over_groups", "two_sided_p"]


@dataclass(frozen=True)
class Interval:
    """A figure with its bootstrap percentile interval.

    Attributes
    ----------
    value : float
        The figure on the data; NaN if it is not defined there.
    low, high : float
        Ends of the interval; NaN where fewer than two groups allow none.
    """

    value: float
    low: float = math.nan
    high: float = math.nan


def group_draws(groups: int, resamples: int, seed: int | Sequence[int]) -> NDArray[np.int64]:
    """Draw `groups` groups with replacement, `resamples` times.

    Returns
    -------
    ndarray of int64, shape (resamples, groups)
        How often each group was drawn. Rows sum to `groups`; equal seeds give equal draws.
    """
    if groups < 2:
        # One group resampled is itself: an interval of no width would claim a certainty that is not there.
        return np.zeros((0, groups), dtype=np.int64)
    return np.random.default_rng(seed).multinomial(groups, np.full(groups, 1.0 / groups), size=resamples)


def interval_of(value: float, draws: NDArray[np.float64], confidence: float = 0.95) -> Interval:
    """Wrap a figure in the percentile interval of its resampled values; undefined (NaN) draws are left out."""
    defined = draws[np.isfinite(draws)]
    if defined.size == 0 or not math.isfinite(value):
        return Interval(float(value))
    tail = (1.0 - confidence) / 2
    low, high = np.quantile(defined, [tail, 1.0 - tail])
    return Interval(float(value), float(low), float(high))


def mean_over_groups(groups: Sequence[str], values: NDArray[np.float64], resamples: int, seed: int) -> Interval:
    """Mean of one value per item, with an interval from resampling the items' groups."""
    _, codes = np.unique(groups, return_inverse=True)
    table = np.column_stack([np.bincount(codes, weights=values), np.bincount(codes)])
    draws = group_draws(len(table), resamples, seed) @ table
    return interval_of(float(values.mean()), draws[:, 0] / draws[:, 1])


def two_sided_p(draws: NDArray[np.float64]) -> float:
    """Two-sided p-value of "the difference is 0", by inverting the percentile interval.

    Twice the share of resampled differences on the rarer side of 0, so that p < .05 exactly where the 95 % interval
    leaves 0 out. One draw is added on each side: a finite number of resamples cannot show p = 0.
    """
    defined = draws[np.isfinite(draws)]
    if defined.size == 0:
        return math.nan
    below, above = int((defined <= 0).sum()), int((defined >= 0).sum())
    return min(1.0, 2 * (min(below, above) + 1) / (defined.size + 1))


def group_folds(groups: Sequence[str], folds: int, seed: int) -> NDArray[np.int64]:
    """Deal whole groups into folds of nearly equal size.

    Parameters
    ----------
    groups : sequence of str
        Group of each item.
    folds : int
        How many folds, at least 2; no more than there are groups are used.
    seed : int
        Seed of the shuffle.

    Returns
    -------
    ndarray of int64, shape (items,)
        Fold of each item, from 0.

    Raises
    ------
    ConfigurationError
        If there are fewer than two folds or groups: then nothing could be held out.
    """
    names = sorted(set(groups))
    if folds < 2 or len(names) < 2:
        raise ConfigurationError(
            f"nothing can be held out with {len(names)} group(s) and {folds} fold(s)",
            hint="Give at least two groups (documents) and two folds: figures on the items fitted on are not reported.",
        )
    order = np.random.default_rng(seed).permutation(len(names))
    fold = {names[place]: rank % min(folds, len(names)) for rank, place in enumerate(order)}
    return np.array([fold[group] for group in groups], dtype=np.int64)
