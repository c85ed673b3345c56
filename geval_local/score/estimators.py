"""Estimators: how a label distribution becomes one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from geval_local.errors import ConfigurationError
from geval_local.score.distribution import Distribution

__all__ = ["Estimator", "estimate"]

_PLAIN = ("exact", "mode", "median")
_MOST_DRAWS = 1 << 31
_ESTIMATORS = "Choose exact, mode, median, or sample (sample:N for N draws, sample:N:SEED for other ones)."


@dataclass(frozen=True)
class Estimator:
    """How a label distribution becomes one number.

    All but the expectation are Wang, Zhang and Choi's (2025, "Improving LLM-as-a-Judge Inference with the Judgment
    Distribution", arXiv:2503.03064) or Liu et al.'s; all take a distribution and nothing else, so they can be applied
    to stored results as well.

    Parameters
    ----------
    kind : {"exact", "mode", "sample", "median"}
        ``exact`` is the expectation. ``mode`` is the value of the most likely label (the paper's "- Probs" row).
        ``sample`` is the mean of `n` seeded draws (what the paper had to do for GPT-4). ``median`` is
        that of the label's value.
    n : int
        Draws per sample, for ``sample`` only.
    seed : int
        Seed of the draws, for ``sample`` only.

    Raises
    ------
    ConfigurationError
        If the kind is unknown, or a number out of range.
    """

    kind: Literal["exact", "mode", "sample", "median"] = "exact"
    n: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in (*_PLAIN, "sample"):
            raise ConfigurationError(f"unknown estimator {self.kind!r}", hint=_ESTIMATORS)
        if not 1 <= self.n <= _MOST_DRAWS:
            raise ConfigurationError(f"an estimator draws at least once, not {self.n} times, and {_MOST_DRAWS} at most")
        if self.seed < 0:
            raise ConfigurationError(f"a seed is not negative: {self.seed}")

    @classmethod
    def parse(cls, text: str) -> Estimator:
        """Read an estimator as the command line has it."""
        kind, *numbers = text.strip().split(":")
        try:
            if kind == "sample" and len(numbers) <= 2:
                return cls("sample", *map(int, numbers))
        except ValueError:
            raise ConfigurationError(f"the estimator {text!r} holds what is no number", hint=_ESTIMATORS) from None
        if numbers and kind in _PLAIN:
            raise ConfigurationError(f"the estimator {kind} takes no parameter", hint=_ESTIMATORS)
        return cls(kind)  # type: ignore[arg-type]  # checked there

    @property
    def text(self) -> str:
        """Short form for the signature: ``exact``, ``sample(n=20,seed=0)``, ..."""
        if self.kind == "sample":
            return f"sample(n={self.n},seed={self.seed})"
        return self.kind


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
    if estimator.kind == "sample":
        return distribution.sample_mean(estimator.n, seed=[estimator.seed, sample_key])
    return distribution.score
