"""Distribution: the labels' probabilities for one form, and every figure derived from them, in float64.

With ``P(l)`` the probability that the model's next text is label ``l`` and ``m = sum P(l)`` the label mass,
``p(l) = P(l) / m`` and the score is ``sum p(l) * value(l)`` (Liu et al., 2023, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geval_local.scale import Scale

__all__ = ["Distribution"]

# What is left of a sum of a thousand probabilities by rounding.
_SUM_ERROR = 1e-12


class Distribution:
    """The labels' probabilities for one form, and every figure derived from them.

    Parameters
    ----------
    scale : Scale
        The labels and their values.
    label_logprobs : array_like, shape (labels,)
        Natural logarithms of ``P(l | form)``, the probability that the model's next text is the label (not
        normalised over the labels); ``-inf`` is allowed, but not for all labels.

    Raises
    ------
    ValueError
        If the shape is wrong, a value is NaN or ``+inf``, or no label has any probability.
    """

    __slots__ = ("label_logprobs", "label_mass", "p", "scale")

    def __init__(self, scale: Scale, label_logprobs: ArrayLike) -> None:
        logprobs = np.asarray(label_logprobs, dtype=np.float64)
        if logprobs.shape != (len(scale.labels),):
            raise ValueError(f"expected {len(scale.labels)} label log-probabilities, got shape {logprobs.shape}")
        if np.isnan(logprobs).any() or np.isposinf(logprobs).any():
            raise ValueError("a label log-probability is NaN or infinite")
        top = float(logprobs.max())
        if math.isinf(top):
            raise ValueError("no label of the scale has any probability")
        weights = np.exp(logprobs - top)
        total = float(weights.sum())
        self.scale = scale
        self.label_logprobs: NDArray[np.float64] = logprobs
        self.p: NDArray[np.float64] = weights / total
        self.label_mass: float = math.exp(top) * total

    @property
    def probabilities(self) -> dict[str, float]:
        """``{label: p(label)}``, summing to 1, in the order of the scale."""
        return dict(zip(self.scale.labels, self.p.tolist(), strict=True))

    @property
    def score(self) -> float:
        """The exact expectation ``sum p(l) * value(l)``, on the scale's own units."""
        return self._on_scale(float(self.p @ self.scale.array))

    @property
    def std(self) -> float:
        """Standard deviation of the label's value under the distribution."""
        return math.sqrt(float(self.p @ (self.scale.array - self.score) ** 2))

    @property
    def entropy(self) -> float:
        """Shannon entropy in nats: 0 for a certain label, ``log(labels)`` for a uniform distribution."""
        positive = self.p[self.p > 0]
        return max(0.0, -float((positive * np.log(positive)).sum()))

    @property
    def mode_index(self) -> int:
        """Index of the most likely label; the first one of the scale on an exact tie."""
        return int(self.p.argmax())

    @property
    def mode(self) -> str:
        """The most likely label."""
        return self.scale.labels[self.mode_index]

    @property
    def margin(self) -> float:
        """Difference between the two largest probabilities, 0 to 1."""
        top_two = np.sort(self.p)[-2:]
        return float(top_two[1] - top_two[0])

    def probability_at_least(self, threshold: float) -> float:
        """Probability that the label's value is at least `threshold`."""
        return min(1.0, float(self.p[self.scale.array >= threshold].sum()))

    @property
    def median(self) -> float:
        """The median of the label's value; halfway between two values where each side holds exactly half."""
        lower, upper = self._reaching(0.5, beyond=False), self._reaching(0.5, beyond=True)
        return (lower + upper) / 2

    def _reaching(self, q: float, *, beyond: bool) -> float:
        """Smallest value whose cumulated probability reaches `q`, or exceeds it."""
        order = np.argsort(self.scale.array, kind="stable")
        cumulated = np.cumsum(self.p[order])
        # A sum of decimals such as .1 + .2 + .2 is half, whatever its last bits say.
        reached = cumulated > q + _SUM_ERROR if beyond else cumulated >= q - _SUM_ERROR
        return self.scale.values[order[int(reached.argmax())]] if reached.any() else self.scale.high

    def sample_mean(self, n: int, seed: int | Sequence[int]) -> float:
        """Mean value of `n` labels drawn from the distribution: the estimator of judges that can only sample."""
        if n < 1:
            raise ValueError(f"the number of draws must be at least 1, not {n}")
        counts = np.random.default_rng(seed).multinomial(n, self.p)
        return self._on_scale(float(counts @ self.scale.array) / n)

    def _on_scale(self, mean: float) -> float:
        # Float error may leave the interval by an ulp when one label holds everything.
        return min(max(mean, self.scale.low), self.scale.high)
