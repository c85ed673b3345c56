"""Not worse than before: tests for gates, of a candidate's scores less a baseline's on the same documents.

`not_worse` is looked at once, when all documents are scored. `not_worse_so_far` may be looked at after every batch, and
stopped at any time. Both are one-sided: the error they hold down is to pass a candidate that is lower by the margin.
Documents are independent. A sample that has missed the few documents on which a candidate fails looks better than the
candidate is: so both tests add one made-up document that falls as far as the worst one did, and where hardly any
document differs, the number of those that do bounds the loss (benchmarks/inference_edges.py, `gates`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geval_local.errors import ConfigurationError
from geval_local.statistics.interval import Interval, mean_interval

Floats = NDArray[np.float64]
#: With fewer documents that differ from the commonest difference, Student's t says nothing.
FEW_DIFFERING = 5
#: The sequential test looks first after so many documents: a failure on one document in twenty shows by then.
FIRST_LOOK = 50
#: Differences closer than this are equal.
_EQUAL = 1e-9


@dataclass(frozen=True)
class NotWorse:
    """Whether a candidate is shown to be not lower than its baseline by more than a margin."""

    #: Candidate less baseline, mean over documents, with its two-sided 95 % interval.
    difference: Interval
    #: How much lower the candidate may be, in units of the scale.
    margin: float
    #: The lowest true difference that the data allow, one-sided; NaN where they bound nothing.
    low: float
    #: One-sided p-value of "lower by the margin or more"; NaN where documents hardly differ.
    p: float
    #: The smallest margin that a candidate as good as the baseline would have kept with 80 % probability.
    detectable: float
    documents: int

    @property
    def is_shown(self) -> bool:
        """Whether it is shown; False where it is not known."""
        return self.low > -self.margin


def not_worse(differences: ArrayLike, margin: float, *, span: float = math.nan, level: float = 0.05) -> NotWorse:
    """Test that a candidate is not lower than its baseline by more than a margin (non-inferiority), one-sided.

    Parameters
    ----------
    differences : array of float
        Candidate less baseline, one value for each document that both answered, such as ``Gap.by_document``.
    margin : float
        How much lower the candidate may be, in units of the scale; 0 asks for a candidate that is better.
    span : float
        The largest difference that a document can have: the length of the scale. Only of use where hardly any document
        differs; then the bound is the worst of so many documents (Clopper and Pearson, 1934).
    level : float
        Probability of passing a candidate that is lower by the margin.
    """
    from scipy.special import betaincinv, stdtr, stdtrit

    values = _checked(differences, margin)
    mean = mean_interval(values)
    differing = int(_differing(values)[-1])
    if differing >= FEW_DIFFERING:
        cautious = mean_interval([*values, values.min()])
        freedom = values.size
        bound = cautious.value - float(stdtrit(freedom, 1 - level)) * cautious.error
        p = float(stdtr(freedom, -(cautious.value + margin) / cautious.error))
        detectable = mean.value - cautious.value + cautious.detectable(significance=2 * level)
        return NotWorse(mean, margin, bound, p, detectable, values.size)
    # At most this share of documents differs from the commonest, each by as much as the scale allows.
    share = float(betaincinv(differing + 1, values.size - differing, 1 - level))
    low = min(float(np.median(values)), mean.value) - span * share
    return NotWorse(mean, margin, low, math.nan, span * share, values.size)


@dataclass(frozen=True)
class NotWorseSoFar:
    """What the documents so far show; more may follow."""

    #: ``passed``: not lower by more than the margin; ``failed``: lower by more than the margin; ``open``: neither yet.
    verdict: str
    #: Always-valid p-values of the two opposites of these: lower by the margin or more, and higher than that.
    p_passed: float
    p_failed: float
    #: Documents so far, and after which the verdict was reached; None while it is open.
    documents: int
    decided: int | None


def not_worse_so_far(
    differences: ArrayLike, margin: float, *, level: float = 0.05, effect: float = 0.5
) -> NotWorseSoFar:
    """Test the same after every document, as often as one likes: the error holds for all looks together.

    The evidence is the likelihood ratio of Student's t, mixed over effects above the margin with a half normal prior
    (Lai, 1976; Perez-Ortiz et al., 2024, doi:10.1214/23-AOS2353): by chance it exceeds ``1 / level`` at any time with a
    probability of `level` at most. A verdict once reached stands.

    Parameters
    ----------
    differences : array of float
        Candidate less baseline of every document, in the order in which they were scored; the order must not depend on
        the scores.
    margin, level : float
        As in `not_worse`; the level is that of either verdict.
    effect : float
        The difference from the margin that is expected, in standard deviations of a document: a larger one decides
        clear cases sooner and near ones later.
    """
    values = _checked(differences, margin) + margin
    evidence = np.stack([_evidence(sign * values, effect) for sign in (1, -1)])
    reached = np.maximum.accumulate(evidence, axis=1)
    first = [int(np.argmax(own >= -math.log(level))) if own[-1] >= -math.log(level) else None for own in reached]
    known = [(at + 1, told) for at, told in zip(first, ("passed", "failed"), strict=True) if at is not None]
    decided, verdict = min(known) if known else (None, "open")
    p = np.exp(-np.maximum(reached[:, -1], 0.0)).tolist()
    return NotWorseSoFar(verdict, p[0], p[1], values.size, decided)


def _checked(differences: ArrayLike, margin: float) -> Floats:
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError("a test needs a list of finite numbers, at least one")
    if not 0 <= margin < math.inf:
        raise ConfigurationError(f"a margin is 0 or more, not {margin:g}", hint="In units of the scale.")
    return values


def _differing(values: Floats) -> NDArray[np.int64]:
    """Count after every document how many have another difference than the commonest."""
    counts: Counter[float] = Counter()
    largest, found = 0, np.empty(values.size, dtype=np.int64)
    for place, value in enumerate(np.round(values / _EQUAL).tolist()):
        counts[value] += 1
        largest = max(largest, counts[value])
        found[place] = place + 1 - largest
    return found


def _evidence(values: Floats, effect: float) -> Floats:
    """Log of the evidence for a mean above 0 after every document; 0 before the first look."""
    from scipy.special import stdtr

    worst = np.minimum.accumulate(values)
    n = np.arange(2, values.size + 2, dtype=np.float64)
    total, squares = np.cumsum(values) + worst, np.cumsum(values**2) + worst**2
    shrunk = n * effect**2 / (1 + n * effect**2)
    explained = total**2 / n
    # Sum of squares about 0, and about a mean that the prior draws towards 0.
    rest = np.maximum(squares - shrunk * explained, 1e-300)
    ratio = -0.5 * np.log1p(n * effect**2) - n / 2 * (np.log(rest) - np.log(np.maximum(squares, 1e-300)))
    t = (shrunk * total / n) / np.sqrt(rest / n * shrunk / n)
    above = stdtr(n, t)
    found = ratio + np.log(2 * np.maximum(above, 1e-300))
    return np.where((n > FIRST_LOOK) & (_differing(values) >= FEW_DIFFERING), found, 0.0)
