"""The statistics behind a correlation, kept so that resampled groups can be correlated without looking at items again.

Three levels: ``summary`` (within each document, then the mean), ``pooled`` (all items at once), ``system`` (means of
systems). Each holds the coefficients on the data (`point`) and computes them for drawn groups (`resample`), in the
order Pearson, Spearman, Kendall tau-b, NaN where one side is constant.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "COEFFICIENTS",
    "LevelStatistic",
    "PooledStatistic",
    "SummaryStatistic",
    "SystemStatistic",
    "coefficients",
    "tied_pairs",
]

COEFFICIENTS = ("pearson", "spearman", "kendall")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Elements held at once while resampling: 32 MB of float64.
_CHUNK = 4_000_000
# Above this many groups the groups' pair matrix (groups squared) costs more than one sort per resample.
_MAX_PAIR_GROUPS = 2_500


class LevelStatistic(Protocol):
    """What a level offers to the bootstrap."""

    point: Floats

    def resample(self, draws: Ints) -> Floats:
        """Coefficients, shape (resamples, 3), for group draws of shape (resamples, groups)."""
        ...


def coefficients(human: Floats, predicted: Floats) -> Floats:
    """Pearson, Spearman and Kendall tau-b of two vectors (scipy); NaN where either has at most one distinct value."""
    from scipy import stats

    if np.unique(human).size < 2 or np.unique(predicted).size < 2:
        return np.full(3, np.nan)
    return np.array([float(test(human, predicted)[0]) for test in (stats.pearsonr, stats.spearmanr, stats.kendalltau)])


def tied_pairs(values: Floats) -> int:
    """Count the pairs of equal values."""
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


class SummaryStatistic:
    """Coefficients of each group, averaged over the groups where both sides vary."""

    def __init__(self, human: Floats, predicted: Floats, groups: Ints) -> None:
        count = int(groups.max()) + 1
        self.per_group = np.full((count, 3), np.nan)
        skipped: Counter[str] = Counter()
        self.pairs = self.human_ties = self.predicted_ties = 0
        for group, members in enumerate(_members(groups)):
            h, p = human[members], predicted[members]
            self.pairs += h.size * (h.size - 1) // 2
            self.human_ties += tied_pairs(h)
            self.predicted_ties += tied_pairs(p)
            reason = _constant(h, p)
            if reason is None:
                self.per_group[group] = coefficients(h, p)
            else:
                skipped[reason] += 1
        self.skipped = dict(skipped)
        self._kept = np.isfinite(self.per_group[:, 0])
        self.point = self.resample(np.ones((1, count), dtype=np.int64))[0]

    def resample(self, draws: Ints) -> Floats:
        """Mean coefficients over the drawn groups that are not skipped."""
        kept = draws[:, self._kept].astype(np.float64)
        weight = kept.sum(axis=1, keepdims=True)
        total = kept @ self.per_group[self._kept]
        return np.asarray(np.divide(total, weight, out=np.full(total.shape, np.nan), where=weight > 0))


class PooledStatistic:
    """Coefficients over all items at once, groups drawn as a whole.

    A resample repeats every item of a group equally often, so a resample is a vector of weights: ranks come from
    cumulative weights over the sorted distinct values, and Kendall's concordance from a matrix of signed pair counts
    between groups, computed once.
    """

    def __init__(self, human: Floats, predicted: Floats, groups: Ints) -> None:
        self._groups = groups
        self._values = (human, predicted)
        self._centred = (human - human.mean(), predicted - predicted.mean())
        self._sorted = [np.unique(values, return_inverse=True)[1].reshape(-1) for values in self._values]
        self._signs: Floats | None = None
        self.point = coefficients(human, predicted)

    def resample(self, draws: Ints) -> Floats:
        """Coefficients of the drawn groups' items."""
        step = max(1, _CHUNK // self._groups.size)
        parts = [self._resample(draws[start : start + step]) for start in range(0, len(draws), step)]
        return np.concatenate(parts) if parts else np.zeros((0, 3))

    def _resample(self, draws: Ints) -> Floats:
        weights = draws[:, self._groups].astype(np.float64)
        total = weights.sum(axis=1)
        ranks, ties, constant = [], [], np.zeros(len(draws), dtype=bool)
        for positions in self._sorted:
            order = np.argsort(positions, kind="stable")
            starts = np.searchsorted(positions[order], np.arange(positions.max() + 1))
            held = np.add.reduceat(weights[:, order], starts, axis=1)
            ranks.append((np.cumsum(held, axis=1) - held / 2 + 0.5)[:, positions])
            ties.append((held * (held - 1)).sum(axis=1) / 2)
            constant |= (held > 0).sum(axis=1) < 2
        pairs = total * (total - 1) / 2
        with np.errstate(invalid="ignore", divide="ignore"):
            tau = self._concordance(draws) / np.sqrt((pairs - ties[0]) * (pairs - ties[1]))
            result = np.column_stack(
                [_weighted_r(*self._centred, weights), _weighted_r(ranks[0], ranks[1], weights), tau]
            )
        result[constant] = np.nan
        return result

    def _concordance(self, draws: Ints) -> Floats:
        """Concordant minus discordant pairs of each resample."""
        groups = draws.shape[1]
        if groups > _MAX_PAIR_GROUPS:
            return np.array([self._concordance_by_sorting(row) for row in draws])
        if self._signs is None:
            self._signs = _signed_pairs(*self._values, self._groups, groups)
        counts = draws.astype(np.float64)
        return np.asarray(((counts @ self._signs) * counts).sum(axis=1) / 2)

    def _concordance_by_sorting(self, row: Ints) -> float:
        from scipy import stats

        human, predicted = (np.repeat(values, row[self._groups]) for values in self._values)
        pairs = human.size * (human.size - 1) / 2
        untied = (pairs - tied_pairs(human)) * (pairs - tied_pairs(predicted))
        return float(stats.kendalltau(human, predicted)[0] * np.sqrt(untied)) if untied else 0.0


class SystemStatistic:
    """Coefficients over the systems' mean rating and mean score."""

    def __init__(self, human: Floats, predicted: Floats, groups: Ints, systems: Ints) -> None:
        shape = (int(groups.max()) + 1, int(systems.max()) + 1)
        self._sums = [np.zeros(shape) for _ in range(3)]
        for table, values in zip(self._sums, (human, predicted, np.ones(human.size)), strict=True):
            np.add.at(table, (groups, systems), values)
        self.means = self._means(np.ones((1, shape[0]), dtype=np.int64))
        self.point = coefficients(self.means[0][0], self.means[1][0])

    def resample(self, draws: Ints) -> Floats:
        """Coefficients of the systems' means over the drawn groups; NaN where a draw leaves a system without items."""
        human, predicted = self._means(draws)
        step = max(1, _CHUNK // human.shape[1] ** 2)
        parts = [_rowwise(human[i : i + step], predicted[i : i + step]) for i in range(0, len(draws), step)]
        return np.concatenate(parts) if parts else np.zeros((0, 3))

    def _means(self, draws: Ints) -> tuple[Floats, Floats]:
        human, predicted, count = (draws.astype(np.float64) @ table for table in self._sums)
        with np.errstate(invalid="ignore", divide="ignore"):
            # The order of a sum moves its last bits, which would break a tie between equal means.
            return np.round(human / count, 12), np.round(predicted / count, 12)


def _constant(human: Floats, predicted: Floats) -> str | None:
    if human.size < 2:
        return "a single item"
    flat = [name for name, v in (("human ratings", human), ("predictions", predicted)) if np.unique(v).size < 2]
    return f"constant {' and '.join(flat)}" if flat else None


def _members(groups: Ints) -> list[Ints]:
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.searchsorted(groups[order], np.arange(1, int(groups.max()) + 1)))


def _weighted_r(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson correlation per row of weights; `x` and `y` of shape (items,) or (rows, items)."""
    total = weights.sum(axis=1, keepdims=True)
    dx = x - (weights * x).sum(axis=1, keepdims=True) / total
    dy = y - (weights * y).sum(axis=1, keepdims=True) / total
    moments = [(weights * product).sum(axis=1) for product in (dx * dy, dx * dx, dy * dy)]
    return np.asarray(np.clip(moments[0] / np.sqrt(moments[1] * moments[2]), -1.0, 1.0))


def _rowwise(human: Floats, predicted: Floats) -> Floats:
    """Coefficients of each row; NaN where a row holds a NaN or a constant side."""
    from scipy import stats

    ones = np.ones_like(human)
    with np.errstate(invalid="ignore", divide="ignore"):
        r = _weighted_r(human, predicted, ones)
        rho = _weighted_r(stats.rankdata(human, axis=1), stats.rankdata(predicted, axis=1), ones)
        signs = [np.sign(values[:, :, None] - values[:, None]) for values in (human, predicted)]
        untied = np.abs(signs[0]).sum(axis=(1, 2)) * np.abs(signs[1]).sum(axis=(1, 2))
        tau = (signs[0] * signs[1]).sum(axis=(1, 2)) / np.sqrt(untied)
    result = np.column_stack([r, rho, tau])
    result[~(untied > 0)] = np.nan
    return result


def _signed_pairs(human: Floats, predicted: Floats, groups: Ints, count: int) -> Floats:
    """Sum sign(dh) * sign(dp) over all item pairs of two groups, shape (groups, groups), both orders counted."""
    order = np.argsort(groups, kind="stable")
    h, p, g = human[order], predicted[order], groups[order]
    starts = np.searchsorted(g, np.arange(count))
    signs = np.zeros((count, count))
    step = max(1, _CHUNK // h.size)
    for start in range(0, h.size, step):
        rows = slice(start, start + step)
        products = np.sign(h[rows, None] - h[None]) * np.sign(p[rows, None] - p[None])
        np.add.at(signs, g[rows], np.add.reduceat(products, starts, axis=1))
    return signs
