"""The form's prior: what the judge answers when the input holds nothing, and scores with that divided out.

``p'(l) = p(l) / prior(l)``, renormalised (Zhao et al., 2021, "Calibrate before use", with a diagonal map and no bias).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem, usable
from geval_local.analysis.statistics.correlation import Correlation, correlate
from geval_local.analysis.statistics.distributions import expectations, probability_matrix
from geval_local.analysis.statistics.levels import Level
from geval_local.errors import DataError
from geval_local.scale import Scale

__all__ = ["PriorEffect", "correct_prior", "divide_prior", "prior_effect"]


@dataclass(frozen=True)
class PriorEffect:
    """What dividing the prior out does to a set of scores.

    Attributes
    ----------
    prior : dict of str to float
        The distribution that was divided out.
    prior_score : float
        Its expectation: the score of nothing.
    before, after : Correlation or None
        Agreement with the human ratings; None without ratings.
    mean_before, mean_after : float
        Mean scores.
    """

    prior: dict[str, float]
    prior_score: float
    before: Correlation | None
    after: Correlation | None
    mean_before: float
    mean_after: float


def divide_prior(p: NDArray[np.float64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide label probabilities by the prior and renormalise.

    Parameters
    ----------
    p : ndarray, shape (items, labels)
        Label probabilities.
    prior : ndarray, shape (labels,)
        Positive everywhere.

    Raises
    ------
    DataError
        If the prior holds no probability for a label: nothing can be divided by it.
    """
    if not (np.isfinite(prior) & (prior > 0)).all():
        raise DataError(
            "the prior gives a label no probability, so it cannot be divided out",
            hint="Average the prior over several content-free inputs, or leave the correction out.",
        )
    # In logarithms, and relative to the largest, so that tiny priors do not overflow.
    with np.errstate(divide="ignore"):
        logs = np.log(p) - np.log(prior)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def correct_prior(items: Sequence[ScoredItem], prior: Mapping[str, float], scale: Scale) -> list[ScoredItem]:
    """Copy scored items with the prior divided out of their distributions and scores; unscored ones stay as they are.

    Raises
    ------
    DataError
        If an item or the prior lacks a label of the scale, or the prior gives one no probability.
    """
    scored = [index for index, item in enumerate(items) if np.isfinite(item.predicted)]
    p = probability_matrix([items[index] for index in scored], scale)
    corrected = divide_prior(p, _prior_row(prior, scale))
    result = list(items)
    for index, row, value in zip(scored, corrected, expectations(corrected, scale), strict=True):
        probabilities = dict(zip(scale.labels, row.tolist(), strict=True))
        result[index] = replace(items[index], predicted=float(value), probabilities=probabilities)
    return result


def prior_effect(
    items: Sequence[ScoredItem],
    prior: Mapping[str, float],
    scale: Scale,
    level: Level = "summary",
) -> PriorEffect:
    """Compare agreement and mean score before and after dividing the prior out.

    Raises
    ------
    DataError
        As `correct_prior`.
    """
    after = correct_prior(items, prior, scale)
    means = [float(np.mean([i.predicted for i in own if np.isfinite(i.predicted)])) for own in (items, after)]
    rated = bool(usable(items)[0])
    agreement = [correlate(own, level) if rated else None for own in (items, after)]
    row = _prior_row(prior, scale)
    return PriorEffect(
        dict(zip(scale.labels, row.tolist(), strict=True)),
        float(expectations(row[None], scale)[0]),
        agreement[0],
        agreement[1],
        means[0],
        means[1],
    )


def _prior_row(prior: Mapping[str, float], scale: Scale) -> NDArray[np.float64]:
    nothing = ScoredItem("", "", np.nan, 0.0, probabilities=prior, key="content-free prior")
    return probability_matrix([nothing], scale).reshape(-1)
