"""Coefficients of agreement between two columns: correlations, pairwise accuracy with calibrated ties, and AUC."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Coefficient = Literal["pearson", "spearman", "kendall", "accuracy", "auc"]

#: Coefficients shown in every table.
COEFFICIENTS = ("pearson", "spearman", "kendall")
#: Columns of `coefficients`: plus the fraction of pairs ordered as by people, and the area under the ROC curve.
ALL_COEFFICIENTS = (*COEFFICIENTS, "accuracy", "auc")

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Elements held at once: 32 MB of float64.
_CHUNK = 4_000_000
# Longer rows are sorted one by one (scipy); shorter ones are compared pair by pair, many rows at once.
_SHORT = 64
# Pairs of more values than this are not kept in memory to calibrate ties.
_MOST_PAIRED = 3_000
# More items than this are sorted anew for every group left out, which costs less than comparing all pairs.
_MOST_PAIRED_UP = 20_000


def coefficients(human: Floats, predicted: Floats, epsilon: float | None = None) -> Floats:
    """Compute coefficients of two vectors in the order of `ALL_COEFFICIENTS`; NaN if either is constant."""
    from scipy import stats

    if np.unique(human).size < 2 or np.unique(predicted).size < 2:
        return np.full(5, np.nan)
    r, rho, tau = (float(test(human, predicted)[0]) for test in (stats.pearsonr, stats.spearmanr, stats.kendalltau))
    pairs = human.size * (human.size - 1) / 2
    ordered = pairs - tied_pairs(human)
    concordance = tau * np.sqrt(ordered * (pairs - tied_pairs(predicted)))
    accuracy = np.nan
    if epsilon is not None:
        accuracy = float(_correct(human, predicted, epsilon).sum() / (2 * pairs))
    return np.array([r, rho, tau, accuracy, (1 + concordance / ordered) / 2])


def coefficient_rows(human: Floats, predicted: Floats, epsilon: float | None = None) -> Floats:
    """Compute coefficients per row of two tables of shape (rows, n); shape (rows, 5), NaN if either is constant."""
    rows, n = human.shape
    if n > _SHORT:
        return np.array([coefficients(h, p, epsilon) for h, p in zip(human, predicted, strict=True)]).reshape(rows, 5)
    step = max(1, _CHUNK // max(1, n * n))
    parts = [_rows(human[i : i + step], predicted[i : i + step], epsilon) for i in range(0, rows, step)]
    return np.concatenate(parts) if parts else np.zeros((0, 5))


def leave_one_out(human: Floats, predicted: Floats, epsilon: float | None = None) -> Floats:
    """Compute leave-one-out coefficients, shape (n, 5): exact for pairs, to first order for Pearson and Spearman."""
    from scipy import stats

    n = human.size
    point = coefficients(human, predicted, epsilon)
    result = np.empty((n, 5))
    ranks = (stats.rankdata(human), stats.rankdata(predicted))
    for column, (x, y) in enumerate(((human, predicted), ranks)):
        zx, zy = ((v - v.mean()) / v.std() for v in (x, y))
        result[:, column] = point[column] - (zx * zy - point[column] / 2 * (zx**2 + zy**2)) / n
    sums = _pair_sums(human, predicted, epsilon)
    rest = sums.sum(axis=0) / 2 - sums
    result[:, 2:] = _of_pairs(rest, np.full(n, n - 1.0), epsilon)
    return result


def leave_groups_out(human: Floats, predicted: Floats, groups: Ints, epsilon: float | None = None) -> Floats:
    """Compute exact coefficients with each group left out; NaN if the rest is constant."""
    members = np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))[:-1])
    if human.size > _MOST_PAIRED_UP:
        rest = [np.delete(np.arange(human.size), own) for own in members]
        return np.array([coefficients(human[own], predicted[own], epsilon) for own in rest])
    result = np.full((len(members), 5), np.nan)
    left = human.size - np.array([own.size for own in members], dtype=np.float64)
    members_left = [place for place, count in enumerate(left) if count >= 2]
    for column, (x, y) in enumerate(((human, predicted), (_ranks(human), _ranks(predicted)))):
        for place in members_left:
            own = members[place]
            keep = np.ones(human.size, dtype=bool)
            keep[own] = False
            u, v = x[keep], y[keep]
            if column == 1:
                # Ranks among the rest: subtract the group's own values below.
                u, v = (part - _below(part, values[own]) for part, values in ((u, x), (v, y)))
            du, dv = u - u.mean(), v - v.mean()
            with np.errstate(invalid="ignore", divide="ignore"):
                result[place, column] = (du @ dv) / np.sqrt((du @ du) * (dv @ dv))
    sums = _pair_sums(human, predicted, epsilon)
    total = sums.sum(axis=0) / 2
    # Pairs within a group are subtracted twice, so they are added back once.
    pairs = np.array(
        [total - sums[own].sum(0) + _pair_sums(human[own], predicted[own], epsilon).sum(0) / 2 for own in members]
    )
    result[:, 2:] = _of_pairs(pairs, left, epsilon)
    result[~(pairs[:, 1] * pairs[:, 2] > 0)] = np.nan
    result[:, :3] = np.clip(result[:, :3], -1.0, 1.0)
    return result


def _ranks(values: Floats) -> Floats:
    from scipy import stats

    return np.asarray(stats.rankdata(values), dtype=np.float64)


def _below(values: Floats, others: Floats) -> Floats:
    """Count, for each value, the others below it; equal ones count half."""
    ordered = np.sort(others)
    above, upto = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    return np.asarray((above + upto) / 2)


def _pair_sums(human: Floats, predicted: Floats, epsilon: float | None) -> Floats:
    """Count each item's pairs, (n, 4): concordant minus discordant, untied by people, untied by scores, right."""
    sums = np.zeros((human.size, 4))
    step = max(1, _CHUNK // human.size)
    for start in range(0, human.size, step):
        rows = slice(start, start + step)
        dh, dp = (np.sign(v[rows, None] - v[None]) for v in (human, predicted))
        sums[rows, :3] = np.stack([(dh * dp).sum(1), np.abs(dh).sum(1), np.abs(dp).sum(1)], axis=1)
        if epsilon is not None:
            sums[rows, 3] = _correct(human, predicted, epsilon, rows).sum(axis=1)
    return sums


def _of_pairs(pairs: Floats, items: Floats, epsilon: float | None) -> Floats:
    """Compute Kendall's tau-b, accuracy and AUC from the pair counts of `_pair_sums`, shape (rows, 3)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        tau = pairs[:, 0] / np.sqrt(pairs[:, 1] * pairs[:, 2])
        accuracy = np.full(len(pairs), np.nan) if epsilon is None else pairs[:, 3] / (items * (items - 1) / 2)
        return np.column_stack([tau, accuracy, (1 + pairs[:, 0] / pairs[:, 1]) / 2])


def tied_pairs(values: Floats) -> int:
    """Count the pairs of equal values."""
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def tie_threshold(human: Floats, predicted: Floats, groups: Ints) -> float | None:
    """Find the difference of scores up to which two texts count as tied (Deutsch, Foster and Freitag, 2023).

    Scores of a language model are hardly ever equal, ratings often are: without a threshold every pair tied by people
    would be an error. The threshold maximises the accuracy, averaged over groups.
    """
    gaps, weights = [np.zeros(1)], [np.zeros(1)]
    order = np.argsort(groups, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        if members.size > _MOST_PAIRED:
            return None
        first, second = np.triu_indices(members.size, 1)
        dh = human[members][first] - human[members][second]
        dp = predicted[members][first] - predicted[members][second]
        # From its gap on, a pair is a tie: now correct if people tie it too, no longer correct if it was concordant.
        change = np.where(dh == 0, 1.0, -(np.sign(dh) == np.sign(dp)).astype(np.float64))
        gaps.append(np.abs(dp))
        weights.append(change / max(1, dh.size))
    gap, weight = np.concatenate(gaps), np.concatenate(weights)
    distinct, places = np.unique(gap, return_inverse=True)
    gained = np.cumsum(np.bincount(places.reshape(-1), weights=weight))
    return float(distinct[np.argmax(np.round(gained, 12))])


def _correct(human: Floats, predicted: Floats, epsilon: float, rows: slice = slice(None)) -> Floats:
    """Return whether each pair is ordered, or tied, as by people; shape (rows, n), false for an item with itself."""
    dh, dp = human[rows, None] - human[None], predicted[rows, None] - predicted[None]
    right = np.sign(dh) == np.where(np.abs(dp) <= epsilon, 0.0, np.sign(dp))
    right[np.arange(len(right)), np.arange(human.size)[rows]] = False
    return np.asarray(right, dtype=np.float64)


def _rows(human: Floats, predicted: Floats, epsilon: float | None) -> Floats:
    from scipy import stats

    n = human.shape[1]
    dh, dp = (values[:, :, None] - values[:, None] for values in (human, predicted))
    sh, sp = np.sign(dh), np.sign(dp)
    told_h, told_p = np.abs(sh).sum(axis=(1, 2)), np.abs(sp).sum(axis=(1, 2))
    accuracy = np.full(len(human), np.nan)
    if epsilon is not None and n > 1:
        right = (sh == np.where(np.abs(dp) <= epsilon, 0.0, sp)).sum(axis=(1, 2)) - n
        accuracy = right / (n * (n - 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        r = _pearson(human, predicted)
        rho = _pearson(stats.rankdata(human, axis=1), stats.rankdata(predicted, axis=1))
        concordance = (sh * sp).sum(axis=(1, 2))
        tau, auc = concordance / np.sqrt(told_h * told_p), (1 + concordance / told_h) / 2
    result = np.column_stack([r, rho, tau, accuracy, auc])
    result[~(told_h * told_p > 0)] = np.nan
    return result


def _pearson(x: Floats, y: Floats) -> Floats:
    dx, dy = (v - v.mean(axis=1, keepdims=True) for v in (x, y))
    return np.asarray(np.clip((dx * dy).sum(1) / np.sqrt((dx * dx).sum(1) * (dy * dy).sum(1)), -1.0, 1.0))
