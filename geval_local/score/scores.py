"""Score, the figures of one sample on one metric, and the Outcome that runs keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geval_local.score.distribution import Distribution
from geval_local.score.estimators import Estimator, estimate

if TYPE_CHECKING:
    from geval_local.metric import Metric

__all__ = ["LOW_LABEL_MASS", "OrderFigures", "Outcome", "Score"]

#: Below this label mass a score lists the tokens that received the rest, and the row counts as low mass.
LOW_LABEL_MASS = 0.9


class OrderFigures(NamedTuple):
    """Figures of one order of a pair."""

    #: By the same estimator as the whole, on the metric's scale.
    score: float
    #: Probability that the model's next text is any label, 0-1.
    label_mass: float


@dataclass(frozen=True)
class Score:
    """The figures of one sample on one metric.

    A sample that could not be scored has `error` set and NaN figures; it is never 0. ``float(score)`` is its value.

    Attributes
    ----------
    metric : str
        Name of the metric.
    value : float
        The score on the metric's own scale; NaN if unscored.
    normalized : float
        The score mapped linearly to 0-1; NaN if unscored.
    probabilities : dict of str to float
        ``{label: p}``, normalised over the labels; empty if unscored.
    label_mass : float
        Probability that the model's next text is any label at all, 0-1. Low mass means that the model did not
        treat the form as a form.
    std, entropy : float
        Spread of the distribution: in units of the scale, and in nats.
    mode : str or None
        The most likely label.
    margin : float
        Difference between the two largest probabilities.
    threshold, threshold_probability : float or None
        The threshold in use, and the probability that the label reaches it.
    passed : bool or None
        Whether `value` reaches the threshold; None without a threshold or a score.
    calibrated : float or None
        The value on the scale of the human ratings, where a calibration was applied; all other figures are raw.
    other_tokens : tuple of (str, float)
        The likeliest next tokens outside the labels, when the label mass is low.
    prompt_tokens : int
        Length of the filled form in tokens, 0 if it was never tokenized.
    dropped_tokens : int
        Tokens removed from the field that the metric allows to shorten; 0 almost always.
    orders : tuple of OrderFigures
        Figures of each order in which a pair was shown, see `geval_local.questions.pair`. All other
        figures are those of the mean distribution.
    error : str or None
        Why the sample is unscored.
    """

    metric: str
    value: float = math.nan
    normalized: float = math.nan
    probabilities: dict[str, float] | None = None
    label_mass: float = math.nan
    std: float = math.nan
    entropy: float = math.nan
    mode: str | None = None
    margin: float = math.nan
    threshold: float | None = None
    threshold_probability: float | None = None
    passed: bool | None = None
    calibrated: float | None = None
    other_tokens: tuple[tuple[str, float], ...] = ()
    prompt_tokens: int = 0
    dropped_tokens: int = 0
    orders: tuple[OrderFigures, ...] = ()
    error: str | None = None

    @classmethod
    def from_distribution(
        cls,
        metric: str,
        distribution: Distribution,
        *,
        estimator: Estimator,
        sample_key: int = 0,
        threshold: float | None = None,
        other_tokens: tuple[tuple[str, float], ...] = (),
        prompt_tokens: int = 0,
        dropped_tokens: int = 0,
        orders: Sequence[Distribution] = (),
    ) -> Score:
        """Derive every figure from a label distribution, the mean of several `orders` where there are any."""
        value = estimate(distribution, estimator, sample_key=sample_key)
        return cls(
            metric=metric,
            value=value,
            normalized=distribution.scale.normalize(value),
            probabilities=distribution.probabilities,
            label_mass=distribution.label_mass,
            std=distribution.std,
            entropy=distribution.entropy,
            mode=distribution.mode,
            margin=distribution.margin,
            threshold=threshold,
            threshold_probability=None if threshold is None else distribution.probability_at_least(threshold),
            passed=None if threshold is None else value >= threshold,
            other_tokens=other_tokens,
            prompt_tokens=prompt_tokens,
            dropped_tokens=dropped_tokens,
            orders=tuple(
                OrderFigures(estimate(order, estimator, sample_key=sample_key), order.label_mass) for order in orders
            ),
        )

    @classmethod
    def unscored(cls, metric: str, reason: str, *, prompt_tokens: int = 0) -> Score:
        """Return the score of a sample that cannot be scored, with the reason."""
        return cls(metric=metric, error=reason, prompt_tokens=prompt_tokens)

    @property
    def is_scored(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON values; unscored samples have ``score: null`` and ``error``, not 0."""
        if self.error is not None:
            return {"score": None, "error": self.error, "prompt_tokens": self.prompt_tokens}
        record: dict[str, Any] = {
            "score": self.value,
            "normalized": self.normalized,
            "probabilities": self.probabilities,
            "label_mass": self.label_mass,
            "std": self.std,
            "entropy": self.entropy,
            "mode": self.mode,
            "margin": self.margin,
        }
        if self.threshold is not None:
            record |= {
                "threshold": self.threshold,
                "threshold_probability": self.threshold_probability,
                "passed": self.passed,
            }
        if self.calibrated is not None:
            record["calibrated"] = self.calibrated
        if self.other_tokens:
            record["other_tokens"] = [list(pair) for pair in self.other_tokens]
        if self.orders:
            record |= {
                "order_scores": [order.score for order in self.orders],
                "order_masses": [order.label_mass for order in self.orders],
            }
        record["prompt_tokens"] = self.prompt_tokens
        if self.dropped_tokens:
            record["dropped_tokens"] = self.dropped_tokens
        return record


@dataclass(frozen=True, eq=False)
class Outcome:
    """The model's result for one form: label log-probabilities, or the reason why there are none.

    Attributes
    ----------
    label_logprobs : ndarray of float64, shape (labels,), or None
        ``log P(l | form)``; None if there is no score.
    other_tokens : tuple of (str, float)
        The likeliest next tokens outside the labels, if the label mass is low.
    prompt_tokens, dropped_tokens : int
        Length of the form, and number of tokens removed from the field that may be shortened.
    sample_key : int
        Hash of the prompt, 0 to 2**64 - 1: the seed of the sampled estimator.
    error : str or None
        Why there is no score.
    orders : tuple of ndarray of float64, shape (labels,)
        ``log P(l | form)`` of every order where `label_logprobs` is the mean over several.
    """

    label_logprobs: NDArray[np.float64] | None = None
    other_tokens: tuple[tuple[str, float], ...] = ()
    prompt_tokens: int = 0
    dropped_tokens: int = 0
    sample_key: int = 0
    error: str | None = None
    orders: tuple[NDArray[np.float64], ...] = ()

    def score(self, metric: Metric, *, estimator: Estimator, threshold: float | None = None) -> Score:
        """Compute the score."""
        if self.label_logprobs is None:
            return Score.unscored(metric.name, self.error or "unknown reason", prompt_tokens=self.prompt_tokens)
        return Score.from_distribution(
            metric.name,
            Distribution(metric.scale, self.label_logprobs),
            estimator=estimator,
            sample_key=self.sample_key,
            threshold=threshold,
            other_tokens=self.other_tokens,
            prompt_tokens=self.prompt_tokens,
            dropped_tokens=self.dropped_tokens,
            orders=[Distribution(metric.scale, order) for order in self.orders],
        )
