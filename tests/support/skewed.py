"""Student's t that reckons with skewness, written out: the critical value of Hall (1992), and p by its inversion."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, stats


def critical(values: ArrayLike, side: int, level: float, caution: float = 0.5) -> float:
    """How many standard errors beyond 0 a mean on this side must be, at a one-sided level."""
    n = np.size(values)
    t = stats.t.isf(level, n - 1)
    toward_zero = -side * stats.skew(values, bias=False)
    error = math.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
    return t + max(0.0, toward_zero + caution * error) / math.sqrt(n) * (2 * t**2 + 1) / 6


def interval_of(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Ends of the 95 % interval of the mean."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    return mean - critical(values, 1, 0.025) * error, mean + critical(values, -1, 0.025) * error


def p_of(values: Sequence[float] | np.ndarray, caution: float = 0.5) -> float:
    """The two-sided p-value of "the mean is 0"."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    side = 1 if mean > 0 else -1
    t = abs(mean) / error
    found = optimize.brentq(
        lambda z: critical(values, side, stats.t.sf(z, np.size(values) - 1), caution) - t, 0.0, t + 1e-6
    )
    return float(2 * stats.t.sf(found, np.size(values) - 1))
