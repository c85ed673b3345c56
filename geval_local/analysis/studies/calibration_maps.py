"""Fitting of calibration maps: a temperature on distributions, an increasing map or a line on scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.statistics.distributions import expectations
from geval_local.scale import Scale

__all__ = ["LOSSES", "Knots", "Loss", "fit_isotonic", "fit_line", "fit_temperature", "follow", "heat"]

Loss = Literal["squared", "absolute"]
Floats = NDArray[np.float64]
Knots = tuple[tuple[float, float], ...]

LOSSES: Mapping[Loss, Callable[[Floats], Floats]] = {"squared": np.square, "absolute": np.abs}

# From nearly the mode (1/20) to nearly uniform (20); beyond these the expectation hardly moves.
_LOG_TEMPERATURES = (-3.0, 3.0)


def fit_temperature(p: Floats, scale: Scale, human: Floats, loss: Loss = "squared") -> float:
    """Find the temperature, 0.05 to 20, whose expectation has the least loss against the ratings."""
    from scipy import optimize

    def error(log_temperature: float) -> float:
        expected = expectations(heat(p, float(np.exp(log_temperature))), scale)
        return float(LOSSES[loss](expected - human).mean())

    found = optimize.minimize_scalar(error, bounds=_LOG_TEMPERATURES, method="bounded")
    # The error may have several minima; never return one worse than temperature 1.
    return float(np.exp(found.x)) if error(float(found.x)) < error(0.0) else 1.0


def fit_isotonic(scores: Floats, human: Floats, loss: Loss = "squared") -> Knots:
    """Fit the increasing map from score to rating with the least loss; equal scores map to equal values."""
    from scipy import optimize

    x, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    places = inverse.reshape(-1)
    if loss == "squared":
        means = np.bincount(places, weights=human) / counts
        y = np.asarray(optimize.isotonic_regression(means, weights=counts.astype(np.float64)).x)
    else:
        # With non-negative steps, least absolute deviations are a linear program in the steps.
        y = np.maximum.accumulate(_least_absolute(x, places, human))
    # Only the ends of each constant stretch matter for linear interpolation.
    ends = np.ones(x.size, dtype=bool)
    ends[1:-1] = (np.diff(y)[:-1] > 0) | (np.diff(y)[1:] > 0)
    return tuple(zip(x[ends].tolist(), y[ends].tolist(), strict=True))


def _least_absolute(x: Floats, places: NDArray[np.intp], human: Floats) -> Floats:
    """Solve for the increasing values at `x` with the least sum of absolute deviations (HiGHS)."""
    from scipy import optimize, sparse

    n, k = human.size, x.size
    at = sparse.csr_matrix((np.ones(n), (np.arange(n), places)), shape=(n, k))
    eye = sparse.identity(n, format="csr")
    rising = sparse.diags([np.ones(k - 1), -np.ones(k - 1)], [0, 1], shape=(k - 1, k)) if k > 1 else None
    rows = [sparse.hstack([at, -eye]), sparse.hstack([-at, -eye])]
    limits = [human, -human]
    if rising is not None:
        rows.append(sparse.hstack([rising, sparse.csr_matrix((k - 1, n))]))
        limits.append(np.zeros(k - 1))
    solved = optimize.linprog(
        np.concatenate([np.zeros(k), np.ones(n)]),
        A_ub=sparse.vstack(rows).tocsr(),
        b_ub=np.concatenate(limits),
        bounds=[(float(human.min()), float(human.max()))] * k + [(0, None)] * n,
        method="highs",
    )
    return np.asarray(solved.x[:k], dtype=np.float64)


def fit_line(scores: Floats, human: Floats, loss: Loss) -> tuple[float, float]:
    """Fit slope and intercept of the straight line with the least loss; the slope is never negative."""
    from scipy import optimize, sparse

    if np.unique(scores).size < 2:
        return 0.0, float(human.mean() if loss == "squared" else np.median(human))
    if loss == "squared":
        slope = float(np.cov(scores, human, ddof=0)[0, 1] / scores.var())
        slope = max(0.0, slope)
        return slope, float(human.mean() - slope * scores.mean())
    n = human.size
    design = sparse.csr_matrix(np.column_stack([scores, np.ones(n)]))
    eye = sparse.identity(n, format="csr")
    solved = optimize.linprog(
        np.concatenate([np.zeros(2), np.ones(n)]),
        A_ub=sparse.vstack([sparse.hstack([design, -eye]), sparse.hstack([-design, -eye])]).tocsr(),
        b_ub=np.concatenate([human, -human]),
        bounds=[(0, None), (None, None)] + [(0, None)] * n,
        method="highs",
    )
    return float(solved.x[0]), float(solved.x[1])


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
