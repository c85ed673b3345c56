"""Estimators: how a label distribution becomes one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from geval_local.errors import ConfigurationError
from geval_local.score.distribution import Distribution

__all__ = ["Estimator", "estimate"]

_PLAIN = ("exact", "mode", "median")
_PARAMETERS = ("quantile", "risk")
_MOST_DRAWS = 1 << 31
_ESTIMATORS = (
    "Choose exact, mode, sample, median, quantile:Q (such as quantile:0.25) or risk:LAMBDA (such as risk:0.5)."
)


@dataclass(frozen=True)
class Estimator:
    """How a label distribution becomes one number.

    All but the expectation are Wang, Zhang and Choi's (2025, "Improving LLM-as-a-Judge Inference with the Judgment
    Distribution", arXiv:2503.03064) or Liu et al.'s; all take a distribution and nothing else, so they can be applied
    to stored results as well.

    Parameters
    ----------
    kind : {"exact", "mode", "sample", "median", "quantile", "risk"}
        ``exact`` is the expectation. ``mode`` is the value of the most likely label (the paper's "- Probs" row).
        ``sample`` is the mean of `n` seeded draws (what the paper had to do for GPT-4). ``median`` and ``quantile`` are
        those of the label's value. ``risk`` is the expectation less `parameter` times the lower semideviation.
    n : int
        Draws per sample, for ``sample`` only.
    seed : int
        Seed of the draws, for ``sample`` only.
    parameter : float, optional
        The probability of the quantile, above 0 and below 1; the aversion to risk, 0 to 1, up to which the result
        stays on the scale and a better distribution is never scored lower. For these two only.

    Raises
    ------
    ConfigurationError
        If the kind is unknown, or a parameter missing, superfluous or out of range.
    """

    kind: Literal["exact", "mode", "sample", "median", "quantile", "risk"] = "exact"
    n: int = 20
    seed: int = 0
    parameter: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in (*_PLAIN, "sample", *_PARAMETERS):
            raise ConfigurationError(f"unknown estimator {self.kind!r}", hint=_ESTIMATORS)
        if not 1 <= self.n <= _MOST_DRAWS:
            raise ConfigurationError(f"an estimator draws at least once, not {self.n} times, and {_MOST_DRAWS} at most")
        if self.seed < 0:
            raise ConfigurationError(f"a seed is not negative: {self.seed}")
        if (self.parameter is None) == (self.kind in _PARAMETERS):
            needs = "needs its parameter" if self.parameter is None else "takes no parameter"
            raise ConfigurationError(f"the estimator {self.kind} {needs}", hint=_ESTIMATORS)
        if self.kind == "quantile" and not 0 < float(self.parameter or 0) < 1:
            raise ConfigurationError(f"the probability of a quantile is above 0 and below 1, not {self.parameter}")
        if self.kind == "risk" and not 0 <= float(self.parameter or 0) <= 1:
            raise ConfigurationError(
                f"the aversion to risk is 0 to 1, not {self.parameter}",
                hint="Beyond 1 a score may leave the scale, and fall where a distribution improves.",
            )

    @classmethod
    def parse(cls, text: str) -> Estimator:
        """Read an estimator as the command line has it.

        Parameters
        ----------
        text : str
            ``exact``, ``mode``, ``median``, ``sample``, ``sample:N`` or ``sample:N:SEED``, ``quantile:Q`` or
            ``risk:LAMBDA``.

        Raises
        ------
        ConfigurationError
            If it is none of these.
        """
        kind, *numbers = text.strip().split(":")
        try:
            if kind == "sample" and len(numbers) <= 2:
                return cls("sample", *map(int, numbers))
            parameter = float(numbers[0]) if numbers else None
        except ValueError:
            raise ConfigurationError(f"the estimator {text!r} holds what is no number", hint=_ESTIMATORS) from None
        return cls(kind, parameter=parameter)  # type: ignore[arg-type]  # checked there

    @property
    def text(self) -> str:
        """Short form for the signature: ``exact``, ``sample(n=20,seed=0)``, ``quantile:0.25``, ..."""
        if self.kind == "sample":
            return f"sample(n={self.n},seed={self.seed})"
        return self.kind if self.parameter is None else f"{self.kind}:{self.parameter:.12g}"


def estimate(distribution: Distribution, estimator: Estimator, *, sample_key: int = 0) -> float:
    """Reduce a distribution to one value.

    Parameters
    ----------
    distribution : Distribution
        The label distribution of one form.
    estimator : Estimator
        The reduction to use.
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
    if estimator.kind == "median":
        return distribution.median
    if estimator.kind == "quantile":
        return distribution.quantile(float(estimator.parameter or 0))
    if estimator.kind == "risk":
        return distribution.risk_averse_mean(float(estimator.parameter or 0))
    if estimator.kind == "sample":
        return distribution.sample_mean(estimator.n, seed=[estimator.seed, sample_key])
    return distribution.score
