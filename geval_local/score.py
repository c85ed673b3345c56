"""Score: what is reported for one sample on one metric, and the estimators that turn a distribution into it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from geval_local.errors import ConfigurationError
from geval_local.scale import Distribution

__all__ = ["Estimator", "Score", "estimate"]


@dataclass(frozen=True)
class Estimator:
    """How a label distribution becomes one number.

    Parameters
    ----------
    kind : {"exact", "mode", "sample"}
        ``exact`` is the expectation. ``mode`` is the value of the most likely label (the paper's "- Probs" row).
        ``sample`` is the mean of `n` seeded draws (what the paper had to do for GPT-4).
    n : int
        Draws per sample, for ``sample`` only.
    seed : int
        Seed of the draws, for ``sample`` only.
    """

    kind: Literal["exact", "mode", "sample"] = "exact"
    n: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in ("exact", "mode", "sample"):
            raise ConfigurationError(f"unknown estimator {self.kind!r}", hint="Choose exact, mode or sample.")
        if self.n < 1:
            raise ConfigurationError(f"an estimator draws at least once, not {self.n} times")
        if self.seed < 0:
            raise ConfigurationError(f"a seed is not negative: {self.seed}")

    @property
    def text(self) -> str:
        """Short form for the signature: ``exact``, ``mode`` or ``sample(n=20,seed=0)``."""
        return f"sample(n={self.n},seed={self.seed})" if self.kind == "sample" else self.kind


def estimate(distribution: Distribution, estimator: Estimator, *, sample_key: int = 0) -> float:
    """Reduce a distribution to one value.

    Parameters
    ----------
    distribution : Distribution
        The label distribution of one form.
    estimator : Estimator
        Which reduction.
    sample_key : int
        A number that belongs to the sample itself (a hash of its prompt), so that the draws of ``sample`` do not
        depend on the sample's place in a file.

    Returns
    -------
    float
        A value between the scale's lowest and highest.
    """
    if estimator.kind == "mode":
        return distribution.scale.values[distribution.mode_index]
    if estimator.kind == "sample":
        return distribution.sample_mean(estimator.n, seed=[estimator.seed, sample_key])
    return distribution.score


@dataclass(frozen=True)
class Score:
    """The figures of one sample on one metric.

    A sample that could not be scored has `error` set and NaN figures; it is never 0.

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
        understand the form as a form.
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
    ) -> Score:
        """Derive every figure from a label distribution."""
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
        )

    @classmethod
    def unscored(cls, metric: str, reason: str, *, prompt_tokens: int = 0) -> Score:
        """Record a sample that cannot be scored, with its reason."""
        return cls(metric=metric, error=reason, prompt_tokens=prompt_tokens)

    @property
    def is_scored(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    def to_dict(self) -> dict[str, Any]:
        """Figures as plain JSON values: unscored samples hold ``score: null`` and ``error``, never NaN or 0."""
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
        record["prompt_tokens"] = self.prompt_tokens
        if self.dropped_tokens:
            record["dropped_tokens"] = self.dropped_tokens
        return record
