"""Fitting of calibration maps: a temperature on distributions, an increasing map or a line on scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.statistics.distributions import expectations
from geval_local.scale import Scale

__all__ = ["Knots", "fit_isotonic", "fit_line", "fit_temperature", "follow", "heat"]

Floats = NDArray[np.float64]
Knots = tuple[tuple[float, float], ...]


# From nearly the mode (1/20) to nearly uniform (20); beyond these the expectation hardly moves.
_LOG_TEMPERATURES = (-3.0, 3.0)


def fit_temperature(p: Floats, scale: Scale, human: Floats) -> float:
    """Find the temperature, 0.05 to 20, whose expectation has the least loss against the ratings."""
    from scipy import optimize

    def error(log_temperature: float) -> float:
        expected = expectations(heat(p, float(np.exp(log_temperature))), scale)
        return float(((expected - human) ** 2).mean())

    found = optimize.minimize_scalar(error, bounds=_LOG_TEMPERATURES, method="bounded")
    # The error may have several minima; never return one worse than temperature 1.
    return float(np.exp(found.x)) if error(float(found.x)) < error(0.0) else 1.0


def fit_isotonic(scores: Floats, human: Floats) -> Knots:
    """Fit the increasing map from score to rating with the least loss; equal scores map to equal values."""
    from scipy import optimize

    x, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    means = np.bincount(inverse.reshape(-1), weights=human) / counts
    y = np.asarray(optimize.isotonic_regression(means, weights=counts.astype(np.float64)).x)
    # Only the ends of each constant stretch matter for linear interpolation.
    ends = np.ones(x.size, dtype=bool)
    ends[1:-1] = (np.diff(y)[:-1] > 0) | (np.diff(y)[1:] > 0)
    return tuple(zip(x[ends].tolist(), y[ends].tolist(), strict=True))


def fit_line(scores: Floats, human: Floats) -> tuple[float, float]:
    """Fit slope and intercept of the straight line with the least loss; the slope is never negative."""
    if np.unique(scores).size < 2:
        return 0.0, float(human.mean())
    slope = max(0.0, float(np.cov(scores, human, ddof=0)[0, 1] / scores.var()))
    return slope, float(human.mean() - slope * scores.mean())


def follow(knots: Knots, scores: Floats) -> Floats:
    """Map scores through knots: linear between them, flat beyond them; unchanged without knots."""
    if not knots:
        return scores
    x, y = np.array(knots).T
    return np.asarray(np.interp(scores, x, y))


def heat(p: Floats, temperature: float) -> Floats:
    """Raise label probabilities, shape (items, labels), to the power ``1 / temperature`` and renormalise."""
    with np.errstate(divide="ignore"):
        logs = np.log(p) / temperature
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
