"""The form's prior: the judge's distribution for content-free input, and scores with the prior divided out.

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
from geval_local.analysis.statistics.resampling import group_folds
from geval_local.analysis.statistics.significance import Comparison, compare
from geval_local.analysis.studies.calibration_maps import fit_line
from geval_local.errors import DataError
from geval_local.interval import Interval, mean_interval
from geval_local.scale import Scale

__all__ = ["PriorEffect", "correct_prior", "divide_prior", "prior_effect"]


@dataclass(frozen=True)
class PriorEffect:
    """Effect of dividing out the prior on a set of scores.

    Attributes
    ----------
    prior : dict of str to float
        The prior distribution.
    prior_score : float
        Its expectation: the score of content-free input.
    before, after : Correlation or None
        Agreement with the human ratings; None without ratings.
    mean_before, mean_after : float
        Mean scores.
    gain : Interval or None
        Mean squared error of the scores less that of the corrected ones, in squared units of the ratings, with an
        interval over documents; both after a straight line to the ratings that was fitted on other documents. The prior
        itself saw no document. None without ratings.
    agreement : Comparison or None
        Agreement of the corrected scores less that of the scores, with its test; None without ratings.
    verdict : str
        Whether removing the prior helps, in words.
    """

    prior: dict[str, float]
    prior_score: float
    before: Correlation | None
    after: Correlation | None
    mean_before: float
    mean_after: float
    gain: Interval | None
    agreement: Comparison | None
    verdict: str

    @property
    def helps(self) -> bool:
        """Whether the corrected scores agree better with held-out ratings, beyond chance."""
        return self.verdict.startswith("helps")


def divide_prior(p: NDArray[np.float64], prior: NDArray[np.float64]) -> NDArray[np.float64]:
    """Divide label probabilities by the prior and renormalise.

    Parameters
    ----------
    p : ndarray, shape (items, labels)
        Label probabilities.
    prior : ndarray, shape (labels,)
        The prior; positive for every label.

    Raises
    ------
    DataError
        If the prior of a label is 0.
    """
    if not (np.isfinite(prior) & (prior > 0)).all():
        raise DataError(
            "the prior gives a label no probability, so it cannot be divided out",
            hint="Average the prior over several content-free inputs, or leave the correction out.",
        )
    # Computed in logarithms relative to the largest, so that tiny priors do not overflow.
    with np.errstate(divide="ignore"):
        logs = np.log(p) - np.log(prior)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def correct_prior(items: Sequence[ScoredItem], prior: Mapping[str, float], scale: Scale) -> list[ScoredItem]:
    """Copy scored items with the prior divided out of their distributions and scores; unscored ones are unchanged.

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
    *,
    folds: int = 5,
    seed: int = 0,
) -> PriorEffect:
    """Compare agreement, held-out error and mean score before and after dividing the prior out.

    Parameters
    ----------
    items : sequence of ScoredItem
        With label probabilities; rated or not.
    prior : mapping of str to float
        Label -> probability without any content.
    scale : Scale
        The metric's scale.
    level : {"summary", "pooled", "system"}
        Of the agreement.
    folds, seed : int
        Folds of documents for the held-out error.

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
    gain = _held_out_gain(items, after, folds, seed) if rated else None
    test = _agreement_gained(after, items, level) if rated else None
    return PriorEffect(
        dict(zip(scale.labels, row.tolist(), strict=True)),
        float(expectations(row[None], scale)[0]),
        agreement[0],
        agreement[1],
        means[0],
        means[1],
        gain,
        test,
        _verdict(gain, test),
    )


def _held_out_gain(before: Sequence[ScoredItem], after: Sequence[ScoredItem], folds: int, seed: int) -> Interval | None:
    """Squared error before less after, each on documents that its line to the ratings was not fitted on."""
    pairs = [pair for pair in zip(before, after, strict=True) if usable([pair[0]])[0]]
    groups = [one.group for one, _ in pairs]
    if len(set(groups)) < 2:
        return None
    ratings = np.array([one.human for one, _ in pairs])
    fold = group_folds(groups, folds, seed)
    lost = []
    for scores in (np.array([one.predicted for one, _ in pairs]), np.array([other.predicted for _, other in pairs])):
        line = np.empty(len(pairs))
        for number in np.unique(fold):
            slope, shift = fit_line(scores[fold != number], ratings[fold != number], "squared")
            line[fold == number] = slope * scores[fold == number] + shift
        lost.append((line - ratings) ** 2)
    return mean_interval(lost[0] - lost[1], groups)


def _agreement_gained(after: Sequence[ScoredItem], before: Sequence[ScoredItem], level: Level) -> Comparison | None:
    try:
        return compare(after, before, level)
    except DataError:
        return None  # no document is kept by both


def _verdict(gain: Interval | None, test: Comparison | None) -> str:
    if gain is None or not np.isfinite(gain.low):
        return "cannot be told: without ratings of two documents or more nothing says whether it helps"
    worse = gain.high < 0 or (test is not None and test.difference.high < 0)
    if worse:
        return "does harm: held out, the corrected scores agree less with the ratings"
    if gain.low > 0 or (test is not None and test.difference.low > 0):
        return "helps: held out, the corrected scores agree better with the ratings"
    return "does not help beyond chance: held out, the interval of the gain holds 0"


def _prior_row(prior: Mapping[str, float], scale: Scale) -> NDArray[np.float64]:
    nothing = ScoredItem("", "", np.nan, 0.0, probabilities=prior, key="content-free prior")
    return probability_matrix([nothing], scale).reshape(-1)
