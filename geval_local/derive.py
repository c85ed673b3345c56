"""Scores of many outcomes of one metric at once: to the last bit those of `Outcome.score`, at a fraction of its cost.

`Distribution` defines every figure for one form; here its lines stand again for rows of forms. What NumPy computes
element by element, or sums along contiguous rows, it computes as it does for one row alone. Scalar products are BLAS's
business, which has another kernel for matrices: they are taken row by row. Whatever is out of the ordinary goes the
one-by-one way, errors included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from geval_local.metric import Metric
from geval_local.outcome import Outcome
from geval_local.scale import Scale
from geval_local.score import Estimator, Score

__all__ = ["derive_scores"]


class _Figures(NamedTuple):
    """Figures of one form each, as lists of Python's own numbers."""

    probabilities: list[list[float]]
    label_mass: list[float]
    score: list[float]
    std: list[float]
    entropy: list[float]
    mode: list[int]
    margin: list[float]
    threshold_probability: Sequence[float | None]


def derive_scores(
    outcomes: Sequence[Outcome], metric: Metric, *, estimator: Estimator, threshold: float | None = None
) -> list[Score]:
    """Derive the scores of outcomes, in order.

    Parameters
    ----------
    outcomes : sequence of Outcome
        Outcomes of the metric's own form.
    metric, estimator, threshold
        See `Outcome.score`.
    """
    rows = [outcome.label_logprobs for outcome in outcomes if outcome.label_logprobs is not None]
    labels = len(metric.scale.labels)
    figures = None
    if estimator.kind != "sample" and rows and all(row.shape == (labels,) for row in rows):
        figures = _figures(metric.scale, np.array(rows, dtype=np.float64), threshold)
    if figures is None:
        return [outcome.score(metric, estimator=estimator, threshold=threshold) for outcome in outcomes]
    given = (outcome for outcome in outcomes if outcome.label_logprobs is not None)
    scored = _scores(figures, given, metric, estimator, threshold)
    return [
        outcome.score(metric, estimator=estimator) if outcome.label_logprobs is None else next(scored)
        for outcome in outcomes
    ]


def _figures(scale: Scale, logprobs: NDArray[np.float64], threshold: float | None) -> _Figures | None:
    """Compute the figures of rows of label log-probabilities; None if a row is not a distribution."""
    top = logprobs.max(axis=1)
    if not np.isfinite(top).all() or np.isnan(logprobs).any():
        return None
    values, low, high = scale.array, scale.low, scale.high
    weights = np.exp(logprobs - top[:, None])
    total = weights.sum(axis=1)
    p = weights / total[:, None]
    score = [min(max(float(row @ values), low), high) for row in p]
    squares = (values - np.array(score)[:, None]) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = [max(0.0, -one) for one in (p * np.log(p)).sum(axis=1).tolist()]
    for number in np.flatnonzero((p <= 0).any(axis=1)).tolist():
        positive = p[number][p[number] > 0]
        entropy[number] = max(0.0, -float((positive * np.log(positive)).sum()))
    ordered = np.sort(p, axis=1)
    reached: Sequence[float | None] = [None] * len(p)
    if threshold is not None:
        above = np.ascontiguousarray(p[:, values >= threshold])
        reached = [min(1.0, one) for one in above.sum(axis=1).tolist()]
    return _Figures(
        p.tolist(),
        [math.exp(one) * rest for one, rest in zip(top.tolist(), total.tolist(), strict=True)],
        score,
        [math.sqrt(float(row @ square)) for row, square in zip(p, squares, strict=True)],
        entropy,
        p.argmax(axis=1).tolist(),
        (ordered[:, -1] - ordered[:, -2]).tolist(),
        reached,
    )


def _scores(
    figures: _Figures, outcomes: Iterable[Outcome], metric: Metric, estimator: Estimator, threshold: float | None
) -> Iterator[Score]:
    scale, name = metric.scale, metric.name
    labels, low, high = scale.labels, scale.low, scale.high
    for outcome, row, mass, score, std, entropy, mode, margin, reached in zip(outcomes, *figures, strict=True):
        value = scale.values[mode] if estimator.kind == "mode" else score
        yield Score(
            name,
            value,
            (value - low) / (high - low),
            dict(zip(labels, row, strict=True)),
            mass,
            std,
            entropy,
            labels[mode],
            margin,
            threshold,
            reached,
            None if threshold is None else value >= threshold,
            None,
            outcome.other_tokens,
            outcome.prompt_tokens,
            outcome.dropped_tokens,
        )
