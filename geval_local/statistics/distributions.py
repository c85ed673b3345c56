"""Recorded label probabilities as `Distribution` objects and as one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import DataError
from geval_local.scale import Scale
from geval_local.score import Distribution
from geval_local.statistics.records import ScoredItem


def probability_matrix(items: Sequence[ScoredItem], scale: Scale) -> NDArray[np.float64]:
    """Collect the items' label probabilities."""
    rows = np.empty((len(items), len(scale.labels)))
    for index, item in enumerate(items):
        if item.probabilities is None:
            raise DataError(
                f"item {item.key!r} has no label probabilities",
                hint="Score with the exact estimator; raw responses and reference metrics have none.",
            )
        if set(item.probabilities) != set(scale.labels):
            raise DataError(
                f"item {item.key!r} has probabilities for {', '.join(item.probabilities)}, not for {scale.text}",
                hint="Give the scale of the metric that was scored.",
            )
        row = np.array([item.probabilities[label] for label in scale.labels], dtype=np.float64)
        if not (row >= 0).all() or abs(row.sum() - 1) > 1e-6:
            raise DataError(f"item {item.key!r}: its label probabilities sum to {row.sum():g}, not 1")
        # Through Distribution, so that stored and fresh probabilities obey the same arithmetic.
        with np.errstate(divide="ignore"):
            rows[index] = Distribution(scale, np.log(row)).p
    return rows


def expectations(p: NDArray[np.float64], scale: Scale) -> NDArray[np.float64]:
    """Compute the expected value of each row of label probabilities, shape (items,)."""
    # Float error may leave the interval by an ulp when one label holds everything.
    return np.clip(p @ scale.array, scale.low, scale.high)
