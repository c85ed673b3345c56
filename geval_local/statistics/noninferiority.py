"""Non-inferiority tests for gates, on the candidate's score minus the baseline's for each document.

Use `not_worse` once, when all documents are scored. Use `not_worse_so_far` after every batch; you may stop at any time.
Both are one-sided: they limit the probability of passing a candidate that is lower by the margin. Documents are
independent. If a sample misses the few documents on which a candidate fails, the candidate looks too good. Both tests
therefore add one pseudo-document with the worst observed difference. If hardly any document differs, the number of
differing documents bounds the loss (benchmarks/inference_edges.py, `gates`).
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
#: Student's t needs this many documents whose difference is not the most common one.
FEW_DIFFERING = 5
#: The sequential test first looks after this many documents; by then a failure on one document in twenty shows.
FIRST_LOOK = 50
#: Differences closer than this are equal.
_EQUAL = 1e-9


@dataclass(frozen=True)
class NotWorse:
    """Result of a test that a candidate is not lower than its baseline by more than a margin."""

    #: Candidate minus baseline, mean over documents, with its two-sided 95 % interval.
    difference: Interval
    #: How much lower the candidate may be, in units of the scale.
    margin: float
    #: One-sided lower confidence bound of the difference; NaN if the data give none.
    low: float
    #: One-sided p-value of "lower by the margin or more"; NaN if hardly any document differs.
    p: float
    #: The smallest margin that a candidate as good as the baseline would have passed with 80 % probability.
    detectable: float
    documents: int

    @property
    def is_shown(self) -> bool:
        """Whether the data show it; False if they cannot tell."""
        return self.low > -self.margin


def not_worse(differences: ArrayLike, margin: float, *, span: float = math.nan, level: float = 0.05) -> NotWorse:
    """Test that a candidate is not lower than its baseline by more than a margin (non-inferiority), one-sided.

    Parameters
    ----------
    differences : array of float
        Candidate minus baseline, one value for each document that both answered, such as ``Gap.by_document``.
    margin : float
        How much lower the candidate may be, in units of the scale; with 0 only a better candidate passes.
    span : float
        The largest possible difference of a document: the length of the scale. The test uses it only if hardly any
        document differs; the bound is then that of a binomial share (Clopper and Pearson, 1934).
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
    # At most this share of documents differs from the most common difference, each by the length of the scale.
    share = float(betaincinv(differing + 1, values.size - differing, 1 - level))
    low = min(float(np.median(values)), mean.value) - span * share
    return NotWorse(mean, margin, low, math.nan, span * share, values.size)


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
    differences: ArrayLike, margin: float, *, level: float = 0.05, effect: float = 0.5
) -> NotWorseSoFar:
    """Test the same after every document; the error level covers all looks together.

    The evidence is the likelihood ratio of Student's t, mixed over effects above the margin with a half normal prior
    (Lai, 1976; Perez-Ortiz et al., 2024, doi:10.1214/23-AOS2353): under the null hypothesis it ever exceeds ``1 /
    level`` with a probability of at most `level`. A verdict is final.

    Parameters
    ----------
    differences : array of float
        Candidate minus baseline of every document, in the order in which they were scored; the order must not depend on
        the scores.
    margin, level : float
        As in `not_worse`; each verdict has this level.
    effect : float
        The expected distance from the margin, in standard deviations of a document. A larger value decides clear cases
        sooner and close cases later.
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
    """Count, after every document, how many differences so far are not the most common one."""
    counts: Counter[float] = Counter()
    largest, found = 0, np.empty(values.size, dtype=np.int64)
    for place, value in enumerate(np.round(values / _EQUAL).tolist()):
        counts[value] += 1
        largest = max(largest, counts[value])
        found[place] = place + 1 - largest
    return found


def _evidence(values: Floats, effect: float) -> Floats:
    """Compute the log evidence for a mean above 0 after every document; 0 before the first look."""
    from scipy.special import stdtr

    worst = np.minimum.accumulate(values)
    n = np.arange(2, values.size + 2, dtype=np.float64)
    total, squares = np.cumsum(values) + worst, np.cumsum(values**2) + worst**2
    shrunk = n * effect**2 / (1 + n * effect**2)
    explained = total**2 / n
    # Sum of squares around the mean that the prior shrinks towards 0.
    rest = np.maximum(squares - shrunk * explained, 1e-300)
    ratio = -0.5 * np.log1p(n * effect**2) - n / 2 * (np.log(rest) - np.log(np.maximum(squares, 1e-300)))
    t = (shrunk * total / n) / np.sqrt(rest / n * shrunk / n)
    above = stdtr(n, t)
    found = ratio + np.log(2 * np.maximum(above, 1e-300))
    return np.where((n > FIRST_LOOK) & (_differing(values) >= FEW_DIFFERING), found, 0.0)
