"""Tests for gates, on the candidate's score minus the baseline's for each document; one-sided.

Without a margin, `not_worse` asks whether the scores fell: by Student's t with the skewness of the differences. With a
margin it shows that they did not fall by as much. Its bound is that of Gaffke (2005; Learned-Miller and Thomas, 2019,
arXiv:1905.06208): the mean of the documents and of one more that falls by the whole scale, under random weights. If all
documents are equal it is the bound of Clopper and Pearson (1934), so rounding changes nothing, and failures that the
sample may have missed count. `not_worse_so_far` may be asked after every batch; its evidence is the capital of bets
(Waudby-Smith and Ramdas, 2024, doi:10.1093/jrsssb/qkad009), valid for any differences that the scale allows. Documents
are independent (benchmarks/inference_edges.py, `gates`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geval_local.errors import ConfigurationError
from geval_local.statistics.interval import Interval, mean_interval, skewness_of, t_test

Floats = NDArray[np.float64]
#: A test of so few documents cannot show a drop, whatever they say.
TOO_FEW = 2
# Student's t takes the skewness to be so many of its standard errors less favourable than observed: the one-sided test
# then keeps its level for exponential differences of six documents or more.
_CAUTION = 2.0
# The bets, as shares of the largest possible one; each has half of the stake of the one before.
_BETS = 0.5 ** np.arange(8)


@dataclass(frozen=True)
class NotWorse:
    """Result of a test of a candidate against its baseline."""

    #: Candidate minus baseline, mean over documents, with its two-sided 95 % interval.
    difference: Interval
    #: How much lower the candidate may be, in units of the scale; None: any drop counts.
    margin: float | None
    #: With a margin, the one-sided lower confidence bound of the difference; NaN without one, or without a scale.
    low: float
    #: One-sided p-value: without a margin, of a drop as large by chance; with one, of "lower by the margin or more".
    p: float
    documents: int
    #: Whether the candidate passes; None if so few documents cannot decide it.
    passed: bool | None


def not_worse(
    differences: ArrayLike, margin: float | None = None, *, span: float = math.nan, level: float = 0.05
) -> NotWorse:
    """Test that a candidate did not drop or, with a margin, that it is not lower by the margin or more.

    Parameters
    ----------
    differences : array of float
        Candidate minus baseline, one value for each document that both answered, such as ``Gap.by_document``; 0 where
        they differ by no more than rounding.
    margin : float, optional
        How much lower the candidate may be, in units of the scale; with 0 only a better candidate passes.
    span : float
        The largest possible difference of a document: the length of the scale. With a margin the test needs it.
    level : float
        Probability of a false alarm; with a margin, of passing a candidate that is lower by the margin.
    """
    values = _checked(differences, margin)
    mean, count = mean_interval(values), values.size
    if margin is None:
        p = _p_of_drop(values, mean)
        return NotWorse(mean, None, math.nan, p, count, None if count <= TOO_FEW else p > level)
    if not math.isfinite(span):
        return NotWorse(mean, margin, math.nan, math.nan, count, False)
    from scipy.optimize import brentq

    # The lower bound is the mean whose p-value is the level.
    highest = float((values.sum() - span) / (count + 1))
    low = brentq(lambda mean: p_of_mean(values, -span, mean) - level, -span, highest, xtol=1e-9 * span)
    p = p_of_mean(values, -span, -margin)
    return NotWorse(mean, margin, float(low), p, count, p < level)


def _p_of_drop(values: Floats, mean: Interval) -> float:
    """Compute the one-sided p-value of "no drop"."""
    if values.size <= TOO_FEW:
        return math.nan
    p = t_test(mean.value, mean.error, values.size, skewness_of(values), _CAUTION)
    # If some do not differ: not below that of flipping the signs of the others, of which so few may all agree.
    differ = int(np.count_nonzero(values))
    p = max(p, 2.0 ** (1 - differ)) if 0 < differ < values.size else p
    return p / 2 if mean.value < 0 else 1 - p / 2


def p_of_mean(values: Floats, worst: float, mean: float) -> float:
    """Compute a p-value of "the true mean is at most `mean`", if no value can be below `worst`.

    It is the probability that the mean of the values and the worst one, under random weights, is at most `mean`.

    The weights are those of the Bayesian bootstrap (Dirichlet), whose sums of exponential variables have a saddlepoint
    approximation (Lugannani and Rice, 1980) to within one percent.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr

    y = np.append(values, worst) - mean
    if y.min() >= 0 or y.sum() <= 0:
        return float(y.min() < 0)
    s = brentq(lambda s: (y / (1 - s * y)).sum(), (1 - 1e-12) / y.min(), 0.0)
    w = -math.sqrt(2 * np.log1p(-s * y).sum())
    v = s * math.sqrt(((y / (1 - s * y)) ** 2).sum())
    density = math.exp(-(w**2) / 2) / math.sqrt(2 * math.pi)
    return float(ndtr(w) + density * (1 / w - 1 / v)) if w < -1e-4 else 0.5


def missed(documents: int) -> str:
    """Say how probably a sample lacks what happens on one document in twenty; empty below a probability of .05."""
    chance = 0.95**documents
    return f"; what happens on one document in twenty is missed with probability {chance:.2f}" if chance >= 0.05 else ""


@dataclass(frozen=True)
class NotWorseSoFar:
    """Result of the sequential test on the documents so far; more may follow."""

    #: ``passed``: not lower by more than the margin; ``failed``: lower by more than the margin; ``open``: neither yet.
    verdict: str
    #: Always-valid p-values of the two null hypotheses: lower by the margin or more, and higher than that.
    p_passed: float
    p_failed: float
    #: Number of documents so far, and the number at which the verdict was reached; None while it is open.
    documents: int
    decided: int | None


def not_worse_so_far(
    differences: ArrayLike, margin: float, *, span: float = math.nan, level: float = 0.05
) -> NotWorseSoFar:
    """Test the same after every document; the error level covers all looks together, and a verdict is final.

    Parameters
    ----------
    differences : array of float
        Candidate minus baseline of every document, in the order in which they were scored; the order must not depend on
        the scores.
    margin, span, level : float
        As in `not_worse`; each verdict has this level. Without the scale there is no verdict.
    """
    values = _checked(differences, margin) + margin
    evidence = np.stack([_evidence(sign * values, span - sign * margin) for sign in (1, -1)])
    reached = np.maximum.accumulate(evidence, axis=1)
    first = [int(np.argmax(own >= -math.log(level))) if own[-1] >= -math.log(level) else None for own in reached]
    known = [(at + 1, told) for at, told in zip(first, ("passed", "failed"), strict=True) if at is not None]
    decided, verdict = min(known) if known else (None, "open")
    p = np.exp(-np.maximum(reached[:, -1], 0.0)).tolist()
    return NotWorseSoFar(verdict, p[0], p[1], values.size, decided)


def _checked(differences: ArrayLike, margin: float | None) -> Floats:
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError("a test needs a list of finite numbers, at least one")
    if margin is not None and not 0 <= margin < math.inf:
        raise ConfigurationError(f"a margin is 0 or more, not {margin:g}", hint="In units of the scale.")
    return values


def _evidence(values: Floats, furthest: float) -> Floats:
    """Compute the log capital of bets on a mean above 0 after every document; no value is below -`furthest`."""
    if not furthest > 0:
        return np.zeros(values.size)
    with np.errstate(divide="ignore"):  # the largest bet may lose everything
        capital = np.cumsum(np.log1p(np.maximum(_BETS[:, None] * values / furthest, -1.0)), axis=1)
    return np.asarray(np.logaddexp.reduce(capital + np.log(_BETS / _BETS.sum())[:, None], axis=0))
