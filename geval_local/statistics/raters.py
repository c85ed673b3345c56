"""Raters: how strict each one is, the noise of a mean rating without that, and the ratings' variance components.

A rater who is strict on all items shifts all means by the same amount, which is not noise. The model of a rating is the
item's value plus the rater's shift (two-way analysis of variance). If raters rated different items, the least squares
fit corrects for who rated which.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import DataError
from geval_local.statistics.records import ScoredItem

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Raters:
    """Ratings of the same items by several people."""

    #: Mean rating of every item minus the shifts of its raters, shape (items,); NaN without a rating.
    means: Floats
    #: How much higher every rater rates than the mean of all raters, shape (raters,).
    added: Floats
    #: Mean rating and number of rated items of every rater, without a correction.
    own: tuple[tuple[float, int], ...]
    #: Variance of a single rating around its item's mean and its rater's shift.
    rest: float
    #: Variance of the error of an item's mean rating.
    error: float

    def rated(self, items: Sequence[ScoredItem]) -> list[ScoredItem]:
        """Rate the items by the mean of their raters."""
        return [replace(item, human=float(mean)) for item, mean in zip(items, self.means, strict=True)]


def fit_raters(ratings: Floats) -> Raters:
    """Separate items from raters; `ratings` has shape (raters, items), NaN without a rating.

    Raises
    ------
    DataError
        If no item has ratings of two people, or if the fit is exact and leaves no residuals.
    """
    from scipy.sparse.csgraph import connected_components

    there = np.isfinite(ratings)
    count, rated = there.sum(axis=0), there.any(axis=0)
    filled = np.where(there, ratings, 0.0)
    weight = there / np.maximum(count, 1)
    means = filled.sum(axis=0) / np.maximum(count, 1)
    # Normal equations of the raters alone: the items' means eliminate the items.
    table = np.diag(there.sum(axis=1)) - there @ weight.T
    added = np.linalg.pinv(table) @ (filled - there * means).sum(axis=1)
    added -= added.mean()
    means = np.round(means - added @ weight, 12)  # equal means stay equal
    groups = connected_components(there[:, count > 1].astype(int) @ there[:, count > 1].T)[0]
    freedom = int(there.sum() - rated.sum() - (len(ratings) - groups))
    if not (count > 1).any() or freedom < 1:
        raise DataError("too few items have ratings of two people", hint="Check the fields of the raters.")
    left = np.where(there, ratings - means - added[:, None], 0.0)
    rest = float((left**2).sum()) / freedom
    both = zip(ratings, there, strict=True)
    own = [(float(np.mean(row[kept])) if kept.any() else np.nan, int(kept.sum())) for row, kept in both]
    error = rest * float((1 / count[rated]).mean())
    return Raters(np.where(rated, means, np.nan), added, tuple(own), rest, error)


def variance_components(fitted: Raters, documents: Sequence[Hashable], systems: Sequence[Hashable]) -> dict[str, float]:
    """Estimate the variance components of a rating from products of pairs of items; none is below 0."""
    kept = np.flatnonzero(np.isfinite(fitted.means)).tolist()
    x = fitted.means[kept] - fitted.means[kept].mean()

    def products(*keys: Sequence[Hashable]) -> Floats:
        """Sum up the products of all pairs of items with the same keys, and count the pairs."""
        numbers: dict[Hashable, int] = {}
        codes = [numbers.setdefault(tuple(own[place] for own in keys), len(numbers)) for place in kept]
        count, sums = np.bincount(codes), np.bincount(codes, x)
        return np.array([sums @ sums - x @ x, (count * (count - 1)).sum()], dtype=np.float64)

    if len(set(systems)) == 1:
        systems = range(len(systems))
    same_document, same_system, same_both = products(documents), products(systems), products(documents, systems)
    apart = products() - same_document - same_system + same_both

    def due(pairs: Floats) -> float:
        """Subtract the mean product of pairs that share nothing from that of pairs that share one key."""
        return max(0.0, float(pairs[0] / pairs[1] - apart[0] / apart[1])) if pairs[1] > 0 < apart[1] else 0.0

    document, system = due(same_document - same_both), due(same_system - same_both)
    items = max(0.0, due(np.array([x @ x, x.size])) - document - system - fitted.error)
    noise = fitted.rest * np.mean([1 / max(1, count) for _, count in fitted.own])
    rater = max(0.0, float(fitted.added.var(ddof=1) - noise))
    return {"documents": document, "systems": system, "outputs": items, "raters": rater, "rest": fitted.rest}
