"""The paper's ablations that need no second look by the judge: other estimates from the same label distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.distributions import probability_matrix
from geval_local.scale import Scale

__all__ = ["mode_items", "sampled_items"]


def mode_items(items: Sequence[ScoredItem], scale: Scale) -> list[ScoredItem]:
    """Score by the value of the likeliest label, the paper's "- Probs" row; unscored items stay as they are.

    Raises
    ------
    DataError
        If a scored item has no probabilities over the labels of `scale`.
    """
    scored, p = _distributions(items, scale)
    return _with_scores(items, scored, scale.array[p.argmax(axis=1)])


def sampled_items(items: Sequence[ScoredItem], scale: Scale, n: int, *, seed: int = 0) -> list[ScoredItem]:
    """Score by the mean of `n` labels drawn from each distribution; unscored items stay as they are.

    Raises
    ------
    DataError
        If a scored item has no probabilities over the labels of `scale`.
    """
    scored, p = _distributions(items, scale)
    draws = np.random.default_rng([seed, n]).multinomial(n, p)
    return _with_scores(items, scored, draws @ scale.array / n)


def _distributions(items: Sequence[ScoredItem], scale: Scale) -> tuple[list[int], NDArray[np.float64]]:
    scored = [index for index, item in enumerate(items) if np.isfinite(item.predicted)]
    return scored, probability_matrix([items[index] for index in scored], scale)


def _with_scores(items: Sequence[ScoredItem], scored: Sequence[int], values: NDArray[np.float64]) -> list[ScoredItem]:
    result = list(items)
    for index, value in zip(scored, values.tolist(), strict=True):
        # What the estimate has in hand is one number; its distribution is not known to whoever sampled it.
        result[index] = replace(items[index], predicted=value, probabilities=None)
    return result
