"""The two maps of a calibration and how they are fitted: a temperature on distributions, a rising map on scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.statistics.distributions import expectations
from geval_local.scale import Scale

__all__ = ["Knots", "fit_isotonic", "fit_temperature", "follow", "heat"]

Floats = NDArray[np.float64]
Knots = tuple[tuple[float, float], ...]

# From nearly the mode (1/20) to nearly uniform (20); beyond these the expectation hardly moves.
_LOG_TEMPERATURES = (-3.0, 3.0)


def fit_temperature(p: Floats, scale: Scale, human: Floats) -> float:
    """Find the temperature, 0.05 to 20, whose expectation has the least mean squared error against the ratings."""
    from scipy import optimize

    def error(log_temperature: float) -> float:
        return float(((expectations(heat(p, float(np.exp(log_temperature))), scale) - human) ** 2).mean())

    found = optimize.minimize_scalar(error, bounds=_LOG_TEMPERATURES, method="bounded")
    # The error need not have a single valley; never worse than doing nothing.
    return float(np.exp(found.x)) if error(float(found.x)) < error(0.0) else 1.0


def fit_isotonic(scores: Floats, human: Floats) -> Knots:
    """Fit the least-squares rising map from score to rating (pool adjacent violators); equal scores are averaged."""
    from scipy import optimize

    x, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    means = np.bincount(inverse.reshape(-1), weights=human) / counts
    y = np.asarray(optimize.isotonic_regression(means, weights=counts.astype(np.float64)).x)
    # Of each level stretch only its ends matter to linear interpolation.
    ends = np.ones(x.size, dtype=bool)
    ends[1:-1] = (np.diff(y)[:-1] > 0) | (np.diff(y)[1:] > 0)
    return tuple(zip(x[ends].tolist(), y[ends].tolist(), strict=True))


def follow(knots: Knots, scores: Floats) -> Floats:
    """Map scores through knots: linear between them, flat beyond them; as they are where there are none."""
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
