"""Comparison of two runs item by item, without human ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from geval_local.analysis.records import ScoredItem, pair
from geval_local.analysis.statistics.agreement import Agreement, agree
from geval_local.interval import Interval, mean_interval

__all__ = ["Difference", "differences"]


@dataclass(frozen=True)
class Difference:
    """Difference of two runs on the items that both scored.

    Attributes
    ----------
    mean_first, mean_second : float
        Mean scores on the shared items.
    mean : Interval
        Mean of ``first - second`` in units of the scale, with an interval over documents.
    agreement : Agreement
        Correlations and absolute differences.
    largest : tuple of (str, float, float)
        Key and both scores of the items that differ most, largest difference first; equal items are not listed.
    """

    mean_first: float
    mean_second: float
    mean: Interval
    agreement: Agreement
    largest: tuple[tuple[str, float, float], ...]


def differences(
    first: Sequence[ScoredItem],
    second: Sequence[ScoredItem],
    *,
    count: int = 10,
) -> Difference:
    """Compare two runs item by item.

    Parameters
    ----------
    first, second : sequence of ScoredItem
        Paired by key.
    count : int
        Most items to list.

    Raises
    ------
    DataError
        If keys repeat, or the runs have no scored item in common.
    """
    left, right = pair(first, second, same_human=False)
    a, b = (np.array([item.predicted for item in items]) for items in (left, right))
    order = np.argsort(-np.abs(a - b), kind="stable")[:count]
    return Difference(
        float(a.mean()),
        float(b.mean()),
        mean_interval(a - b, [item.group for item in left]),
        agree(first, second),
        tuple((left[index].key, float(a[index]), float(b[index])) for index in order if a[index] != b[index]),
    )
