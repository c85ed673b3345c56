"""Interval: a figure with its uncertainty, by Student's t with one degree of freedom less than independent units.

For means the standard error is the jackknife's: it leaves out one document at a time. For one value per document that
is the textbook formula. It keeps its coverage with ten documents and needs no random draws. If the ends of the scale
are known, the interval is Student's interval of the logit, which stays on the scale and extends further towards its
middle. If all values are at the ends, the interval is Jeffreys', with the row count reduced by the design effect
(benchmarks/small_samples.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: With fewer independent units than this, no interval is trustworthy, and it carries a warning.
FEW_UNITS = 10
#: Documents of so different size that they count like fewer equal ones, and like half of their number, carry a warning.
FEW_EFFECTIVE = 20
#: With fewer than this multiple of the squared skewness the interval of a mean is too short (Cochran, 1977).
_COCHRAN = 25
#: Two-sided tests and intervals take the skewness to be so many of its standard errors less favourable than observed.
CAUTION = 0.5

Floats = NDArray[np.float64]
#: Lowest and highest value of a scale.
Ends = tuple[float, float]


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % confidence interval."""

    #: The figure on the data; NaN if it is not defined there.
    value: float
    #: Ends of the interval; NaN with fewer than two independent units.
    low: float = math.nan
    high: float = math.nan
    #: Standard error of the figure, in its own units; NaN without an interval.
    error: float = math.nan
    #: Number of independent units (documents, systems or blocks of documents) behind the interval; 0 without one.
    units: int = 0
    #: Reason to distrust the interval; empty if there is none.
    warning: str = ""


def t_interval(
    value: float,
    error: float,
    units: float,
    *,
    unit: str = "documents",
    warning: str = "",
    ends: Ends | None = None,
    skewness: float = math.nan,
) -> Interval:
    """Compute Student's t interval with `units` - 1 degrees of freedom; with known ends, on the logit scale.

    The `skewness` of the units makes the interval longer, most on the side of their tail, as in `t_test`.
    If the error is undefined or 0, there is no interval: identical units say nothing about the next one.
    """
    from scipy.special import expit, logit

    if units <= 1 or not (math.isfinite(value) and math.isfinite(error)):
        # One NaN for all, so that equal results are equal.
        return Interval(float(value) if math.isfinite(value) else math.nan)
    if error <= 1e-14 * max(1.0, abs(value)):
        told = f"all {unit} are alike, and allow no interval"
        return Interval(float(value), error=float(error), units=int(units), warning=told)
    if units < FEW_UNITS and not warning:
        warning = f"only {units:g} {unit}"
    caution = CAUTION if ends is None else 0.0
    half = float(error) * np.array([side * critical(0.025, units, side * skewness, caution) for side in (-1, 1)])
    low, high = value + half
    if ends is not None:
        width = ends[1] - ends[0]
        share = (value - ends[0]) / width
        if 0 < share < 1:
            low, high = ends[0] + width * expit(logit(share) + half / width / (share * (1 - share)))
        low, high = max(ends[0], low), min(ends[1], high)
    return Interval(float(value), float(low), float(high), float(error), int(units), warning)


def _of_sizes(effective: float, units: int) -> str:
    """Warn of few documents, or of some that are so large that all of them count like few."""
    if effective < FEW_UNITS <= units or effective < min(FEW_EFFECTIVE, units / 2):
        return f"{units} documents of different size count like {effective:.2g}: the interval may be too short"
    return f"only {units} documents" if units < FEW_UNITS else ""


def independent_rows(rows: int, units: float, by_unit: float, by_row: float) -> float:
    """Compute the effective sample size of `rows` rows in `units` units (Korn and Graubard, 1998).

    `by_unit` is the sum of squares of the units' sums of residuals, `by_row` that of the rows' residuals.
    """
    from scipy.special import stdtrit

    short = float(stdtrit(rows - 1, 0.975) / stdtrit(units - 1, 0.975))
    return rows * short**2 / max(1.0, by_unit / by_row)


def t_test(value: float, error: float, units: float, skewness: float = math.nan, caution: float = CAUTION) -> float:
    """Compute the two-sided p-value of "the true figure is 0"; 1 if nothing differs at all, NaN without an error.

    If all units are alike, it is the share of the arrangements of their signs that are as extreme. With the
    `skewness` of the units, a tail that the sample may have missed counts: a Cornish-Fisher expansion (Hall, 1992)
    moves the critical value for a skewness that is `caution` of its standard errors less favourable.
    """
    from scipy.special import stdtr

    if units < 2 or not (math.isfinite(value) and math.isfinite(error)):
        return math.nan
    if error <= 1e-14 * max(1.0, abs(value)):
        return 1.0 if abs(value) <= 1e-12 else 2.0 ** (1 - units)
    t, tail = abs(value) / error, _tail(units, -skewness if value > 0 else skewness, caution)
    # The t of Student's table whose critical value is the observed one, see `critical`.
    beyond = max(0.0, t - tail / 6)
    return float(2 * stdtr(units - 1, -2 * beyond / (1 + math.sqrt(1 + 4 / 3 * tail * beyond))))


def critical(level: float, units: float, skewness: float = math.nan, caution: float = CAUTION) -> float:
    """Return the t beyond which a one-sided test of so many units rejects; `skewness` is that towards 0."""
    from scipy.special import stdtrit

    t = float(stdtrit(units - 1, 1 - level))
    return t + _tail(units, skewness, caution) * (2 * t**2 + 1) / 6


def _tail(units: float, skewness: float, caution: float) -> float:
    """Return the skewness of a mean, if that of its units is less favourable by `caution` standard errors; 0 if NaN."""
    if units < 3 or not math.isfinite(skewness):
        return 0.0
    error = math.sqrt(6 * units * (units - 1) / ((units - 2) * (units + 1) * (units + 3)))
    return max(0.0, skewness + caution * error) / math.sqrt(units)


def skewness_of(values: ArrayLike) -> float:
    """Estimate the skewness of the population of the values; 0 for equal ones, NaN for fewer than three."""
    data = np.asarray(values, dtype=np.float64)
    if data.size < 3:
        return math.nan
    apart = data - data.mean()
    spread = math.sqrt(float((apart**2).mean()))
    if spread <= 1e-14 * max(1.0, float(np.abs(data).max())):
        return 0.0
    return float((apart**3).mean()) / spread**3 * math.sqrt(data.size * (data.size - 1)) / (data.size - 2)


def by_name(names: Iterable[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the different names, sorted, and the place of each; an array of texts has the longest one's size each."""
    listed = names.tolist() if isinstance(names, np.ndarray) else list(names)
    known = sorted(set(listed))
    place = {name: at for at, name in enumerate(known)}
    return known, np.array([place[name] for name in listed], dtype=np.int64)


def mean_interval(values: ArrayLike, groups: Iterable[Any] | None = None, *, ends: Ends | None = None) -> Interval:
    """Compute the mean of one value per row, with an interval over the groups (documents) of the rows.

    Without the `ends` of the scale, an interval of skewed values carries a warning.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0 or not np.isfinite(data).all():
        raise ValueError("a mean needs a list of finite numbers, at least one")
    codes = np.arange(data.size) if groups is None else by_name(groups)[1]
    sums, sizes = np.bincount(codes, weights=data).astype(np.float64), np.bincount(codes)
    rows, units, mean = data.size, sums.size, float(sums.sum()) / data.size
    if units < 2:
        return Interval(mean)
    effective = rows**2 / int((sizes**2).sum())
    if ends is not None and ((data - ends[0]) * (ends[1] - data)).sum() <= 1e-9 * rows * (ends[1] - ends[0]) ** 2:
        return _of_two_values(mean, sums, sizes, effective, ends)
    residuals = sums - sizes * mean
    if residuals @ residuals <= 1e-14 * float(sums @ sums):
        residuals = np.zeros(units)  # only rounding errors: all groups have the same mean
    # Without a group the mean moves by -residual / (rows - size).
    moves = residuals / (rows - sizes)
    error = math.sqrt(float(((moves - moves.mean()) ** 2).sum()) * (units - 1) / units)
    tail = skewness_of(residuals)
    skewness = tail * (units - 2) / math.sqrt(units * (units - 1)) if units > 2 else 0.0
    warning = ""
    # Cannot detect a tail that the sample missed. The logit needs no warning near an end.
    if ends is None and units < _COCHRAN * skewness**2:
        warning = f"skewed scores (skewness {skewness:.1f}): the interval may be too short"
    warning = _of_sizes(effective, units) or warning
    # The logit knows the skewness near an end, but not that of sums over documents of different size.
    tail *= 1.0 if ends is None else 1 - effective / units
    return t_interval(mean, error, effective, warning=warning, ends=ends, skewness=tail)


def _of_two_values(mean: float, sums: Floats, sizes: NDArray[np.int64], effective: float, ends: Ends) -> Interval:
    """Compute Jeffreys' interval of the share of values at the upper end, converted to the mean."""
    from scipy.special import betaincinv

    width, rows = ends[1] - ends[0], int(sizes.sum())
    share = min(1.0, max(0.0, (mean - ends[0]) / width))
    # Residuals around the smoothed share: a sample with all values at one end still has a spread.
    prior = (share * rows + 0.5) / (rows + 1)
    by_unit = float(((sums - sizes * (ends[0] + width * prior)) ** 2).sum()) / width**2
    by_row = rows * (share * (1 - prior) ** 2 + (1 - share) * prior**2)
    count = independent_rows(rows, effective, by_unit, by_row)
    yes, no = count * share + 0.5, count * (1 - share) + 0.5
    low, high = (float(betaincinv(yes, no, tail)) for tail in (0.025, 0.975))
    error = math.sqrt(yes * no / (yes + no + 1)) / (yes + no)
    low, high = (ends[0] + width * one for one in (min(low, share), max(high, share)))
    return Interval(mean, low, high, width * error, int(effective), _of_sizes(effective, sizes.size))
