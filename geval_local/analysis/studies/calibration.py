"""Calibration: a temperature on the label distribution and a monotone map, judged on held-out groups only.

There is no way to ask this module for the gain on the items it was fitted on: `calibrate` fits the map on everything
and reports figures from cross-validation over groups, where every item is scored by a map that never saw its document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem, usable
from geval_local.analysis.statistics.correlation import Level, level_statistic
from geval_local.analysis.statistics.distributions import expectations, probability_matrix
from geval_local.analysis.statistics.resampling import Interval, group_folds, mean_over_groups
from geval_local.analysis.studies.calibration_map import Knots, fit_isotonic, fit_temperature, follow, heat
from geval_local.errors import ConfigurationError, DataError
from geval_local.scale import Scale

__all__ = ["Calibration", "Figures", "HeldOut", "calibrate"]

Method = Literal["temperature", "isotonic", "both"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """Quality of a set of scores against human ratings.

    Attributes
    ----------
    mae : float
        Mean absolute error, in units of the ratings.
    pearson, spearman, kendall : float
        Correlation at the level asked for; NaN where undefined.
    """

    mae: float
    pearson: float
    spearman: float
    kendall: float


@dataclass(frozen=True)
class HeldOut:
    """What calibration gains on documents that it was not fitted on.

    Attributes
    ----------
    n, groups, folds : int
        Items, documents, and folds that the documents were dealt into.
    level : {"summary", "pooled", "system"}
        Of the correlations.
    before, after : Figures
        Raw scores, and each item under the map fitted on the other folds.
    gain : Interval
        Mean absolute error before minus after, with a bootstrap interval over documents.
    constant_mae : float
        Error of always answering the other folds' mean rating: what a map reaches that knows nothing of the score.
    """

    n: int
    groups: int
    folds: int
    level: Level
    before: Figures
    after: Figures
    gain: Interval
    constant_mae: float


@dataclass(frozen=True)
class Calibration:
    """A fitted calibration.

    Attributes
    ----------
    metric, human, signature : str
        What it was fitted on: the metric, the field of the ratings and the signature of the run.
    scale : Scale or None
        The metric's scale; None for an isotonic map of scores without label probabilities.
    method : {"temperature", "isotonic", "both"}
        What was fitted.
    temperature : float
        ``p'(l)`` is in proportion to ``p(l) ** (1 / temperature)``; above 1 flattens, 1 leaves as it is.
    knots : tuple of (float, float)
        Score -> rating, rising in both; linear between the knots and flat beyond them. Empty for no map.
    held_out : HeldOut
        Its quality.
    """

    metric: str
    human: str
    signature: str
    scale: Scale | None
    method: Method
    temperature: float
    knots: Knots
    held_out: HeldOut

    def apply(
        self, score: float, probabilities: Mapping[str, float] | None = None
    ) -> tuple[float, dict[str, float] | None]:
        """Calibrate one score.

        Parameters
        ----------
        score : float
            The raw score; NaN stays NaN.
        probabilities : mapping of str to float, optional
            The label distribution; needed where a temperature was fitted.

        Returns
        -------
        value : float
            The calibrated score.
        probabilities : dict of str to float or None
            The distribution after the temperature. The map acts on the score, not on the distribution.

        Raises
        ------
        DataError
            If a temperature needs a distribution and there is none over the scale's labels.
        """
        if not np.isfinite(score):
            return score, None if probabilities is None else dict(probabilities)
        item = ScoredItem("", "", np.nan, score, probabilities=probabilities, key="to be calibrated")
        p = None if self.method == "isotonic" else probability_matrix([item], _need(self.scale))
        value = float(_scores([item], p, self.scale, self.temperature, self.knots)[0])
        if p is None:
            return value, None if probabilities is None else dict(probabilities)
        return value, dict(zip(_need(self.scale).labels, heat(p, self.temperature)[0].tolist(), strict=True))


def calibrate(
    items: Sequence[ScoredItem],
    scale: Scale | None,
    method: Method = "both",
    *,
    level: Level = "summary",
    folds: int = 5,
    seed: int = 0,
    resamples: int = 1000,
    metric: str = "",
    human: str = "",
    signature: str = "",
) -> Calibration:
    """Fit a calibration on human ratings and measure it on held-out groups.

    Parameters
    ----------
    items : sequence of ScoredItem
        Unscored and unrated ones are left out.
    scale : Scale or None
        The metric's scale; may be None for ``isotonic``.
    method : {"temperature", "isotonic", "both"}
        ``both`` maps the scores after the temperature.
    level : {"summary", "pooled", "system"}
        Of the correlations reported.
    folds, seed, resamples : int
        Cross-validation over groups, and the bootstrap of the gain.
    metric, human, signature : str
        Recorded in the result.

    Raises
    ------
    ConfigurationError
        If fewer than two groups leave nothing to hold out, or a temperature is asked for without a scale or with
        ratings outside it.
    DataError
        If no item has a rating and a score, or one has no label probabilities where a temperature needs them.
    """
    if method not in ("temperature", "isotonic", "both"):
        raise ConfigurationError(f"unknown method {method!r}", hint="Choose temperature, isotonic or both.")
    kept = usable(items)[0]
    if not kept:
        raise DataError("no item has both a human rating and a score", hint="Check the field of the human ratings.")
    ratings = np.array([item.human for item in kept])
    p = None if method == "isotonic" else probability_matrix(kept, _need(scale))
    if p is not None and scale is not None and not (scale.low <= ratings.min() and ratings.max() <= scale.high):
        raise ConfigurationError(
            f"the ratings run from {ratings.min():g} to {ratings.max():g}, outside the scale {scale.text}",
            hint="No temperature reaches them: use the isotonic method, or bring the ratings onto the scale.",
        )
    fold = group_folds([item.group for item in kept], folds, seed)
    after, constant = np.empty(len(kept)), np.empty(len(kept))
    for number in np.unique(fold):
        inside, outside = fold == number, fold != number
        temperature, knots = _fit(kept, p, scale, method, outside)
        own = [item for item, held in zip(kept, inside, strict=True) if held]
        after[inside] = _scores(own, None if p is None else p[inside], scale, temperature, knots)
        constant[inside] = ratings[outside].mean()
    temperature, knots = _fit(kept, p, scale, method, np.ones(len(kept), dtype=bool))
    before = np.array([item.predicted for item in kept])
    improvement = np.abs(before - ratings) - np.abs(after - ratings)
    held_out = HeldOut(
        n=len(kept),
        groups=len({item.group for item in kept}),
        folds=int(fold.max()) + 1,
        level=level,
        before=_figures(kept, before, level),
        after=_figures(kept, after, level),
        gain=mean_over_groups([item.group for item in kept], improvement, resamples, seed),
        constant_mae=float(np.abs(constant - ratings).mean()),
    )
    return Calibration(metric, human, signature, scale, method, temperature, knots, held_out)


def _fit(
    items: Sequence[ScoredItem], p: Floats | None, scale: Scale | None, method: Method, chosen: NDArray[np.bool_]
) -> tuple[float, Knots]:
    own = [item for item, wanted in zip(items, chosen, strict=True) if wanted]
    human = np.array([item.human for item in own])
    part = None if p is None else p[chosen]
    temperature = 1.0 if part is None else fit_temperature(part, _need(scale), human)
    if method == "temperature":
        return temperature, ()
    return temperature, fit_isotonic(_scores(own, part, scale, temperature, ()), human)


def _scores(
    items: Sequence[ScoredItem],
    p: Floats | None,
    scale: Scale | None,
    temperature: float,
    knots: Knots,
) -> Floats:
    raw = np.array([i.predicted for i in items]) if p is None else expectations(heat(p, temperature), _need(scale))
    return follow(knots, raw)


def _figures(items: Sequence[ScoredItem], scores: Floats, level: Level) -> Figures:
    scored = [replace(item, predicted=float(value)) for item, value in zip(items, scores, strict=True)]
    pearson, spearman, kendall = level_statistic(scored, level).point.tolist()
    error = float(np.abs(scores - np.array([item.human for item in items])).mean())
    return Figures(error, pearson, spearman, kendall)


def _need(scale: Scale | None) -> Scale:
    if scale is None:
        raise ConfigurationError(
            "a temperature needs the metric's scale", hint="Give the metric, or use the isotonic method."
        )
    return scale
