"""Outcome: what a judge said about one form, enough to derive every figure of its score again without the judge.

This is what runs store and caches keep. Estimators and thresholds are applied to it afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geval_local.metric import Metric
from geval_local.scale import Distribution
from geval_local.score import Estimator, Score

__all__ = ["Outcome"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of one form.

    Attributes
    ----------
    label_logprobs : ndarray of float64, shape (labels,), or None
        ``log P(l | form)``; None if there is no score.
    other_tokens : tuple of (str, float)
        The likeliest next tokens outside the labels, where the label mass is low.
    prompt_tokens, dropped_tokens : int
        Length of the form, and what the field that may be shortened has lost, in tokens.
    sample_key : int
        Hash of the prompt, 0 to 2**64 - 1: the seed of the sampled estimator.
    error : str or None
        Why there is no score.
    """

    label_logprobs: NDArray[np.float64] | None = None
    other_tokens: tuple[tuple[str, float], ...] = ()
    prompt_tokens: int = 0
    dropped_tokens: int = 0
    sample_key: int = 0
    error: str | None = None

    def score(self, metric: Metric, *, estimator: Estimator, threshold: float | None = None) -> Score:
        """Derive the score.

        Parameters
        ----------
        metric : Metric
            The metric whose form it was.
        estimator : Estimator
            How the distribution becomes one number.
        threshold : float, optional
            The score that passes, on the metric's scale.
        """
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
        )
