"""Coefficients of agreement between two columns: correlations, pairwise accuracy with calibrated ties, and AUC.

A weight counts how often an item is drawn: in resampled data, or 0 or 1 in data in which two judges are swapped.
Kendall's tau-b, accuracy and AUC are quadratic forms in the weights over stored tables of pairs; Spearman's ranks are
linear forms. A draw therefore only costs sums.
"""

from __future__ import annotations

from collections.abc import Sequence
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

# Most elements in memory at once: 32 MB of float64.
CHUNK = 4_000_000
# Pairs of more values than this are not kept in memory to calibrate ties.
_MOST_PAIRED = 3_000
#: Folds of documents over which the threshold of ties is calibrated on the others.
FOLDS = 5


def coefficients(human: Floats, predicted: Floats) -> Floats:
    """Compute coefficients of two vectors in the order of `ALL_COEFFICIENTS`, without the accuracy; NaN if constant."""
    from scipy import stats

    if np.unique(human).size < 2 or np.unique(predicted).size < 2:
        return np.full(5, np.nan)
    r, rho, tau = (float(test(human, predicted)[0]) for test in (stats.pearsonr, stats.spearmanr, stats.kendalltau))
    pairs = human.size * (human.size - 1) / 2
    ordered = pairs - tied_pairs(human)
    concordance = tau * np.sqrt(ordered * (pairs - tied_pairs(predicted)))
    return np.array([r, rho, tau, np.nan, (1 + concordance / ordered) / 2])


def weighted(human: Floats, predicted: Floats, weights: Floats, epsilon: Floats | None = None) -> Floats:
    """Compute coefficients of sets of items, shape (sets, n), under weights (sets or 1, draws, n): (sets, draws, 5).

    `epsilon` has one tie threshold per set.
    """
    h, p = (values - values.mean(axis=1, keepdims=True) for values in (human, predicted))
    sh, sp = (np.sign(values[:, :, None] - values[:, None]) for values in (h, p))
    pairs = [sh * sp, np.abs(sh), np.abs(sp)]
    if epsilon is not None:
        pairs.append(is_right(sh, predicted[:, :, None] - predicted[:, None], epsilon[:, None, None]))
    forms = [((weights @ table) * weights).sum(axis=-1) for table in pairs]
    pearson = correlation(h[:, None], p[:, None], weights)
    spearman = correlation(weights @ sh.transpose(0, 2, 1), weights @ sp.transpose(0, 2, 1), weights)
    return from_forms(pearson, spearman, forms, weights.sum(axis=-1) ** 2 - (weights**2).sum(axis=-1))


def is_right(order: Floats, gap: Floats, epsilon: Floats | float) -> Floats:
    """Return whether the scores order, or tie, each pair as people do; in sets, 0 for an item with itself."""
    told = np.where(np.abs(gap) <= epsilon, 0.0, np.sign(gap))
    right = np.asarray(order == told, dtype=np.float64)
    if right.ndim == 3:
        right[:, np.arange(right.shape[1]), np.arange(right.shape[1])] = 0.0
    return right


def from_forms(pearson: Floats, spearman: Floats, forms: Sequence[Floats], pairs: Floats) -> Floats:
    """Combine weighted pairs (concordant - discordant, untied by people, by scores, right) into all coefficients."""
    concordance, told_h, told_p = forms[:3]
    with np.errstate(invalid="ignore", divide="ignore"):
        tau, auc = concordance / np.sqrt(told_h * told_p), (1 + concordance / told_h) / 2
        accuracy = forms[3] / pairs if len(forms) > 3 else np.full_like(tau, np.nan)
    result = np.stack([pearson, spearman, tau, accuracy, auc], axis=-1)
    result[~((told_h > 0.5) & (told_p > 0.5))] = np.nan
    return result


def correlation(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Compute Pearson's correlation under weights, along the last axis."""
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        dx, dy = (v - (v * weights).sum(axis=-1, keepdims=True) / total for v in (x, y))
        found = (weights * dx * dy).sum(-1) / np.sqrt((weights * dx * dx).sum(-1) * (weights * dy * dy).sum(-1))
    return np.asarray(np.clip(found, -1.0, 1.0))


def tied_pairs(values: Floats) -> int:
    """Count the pairs of equal values."""
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


def tie_threshold(human: Floats, predicted: Floats, groups: Ints) -> float | None:
    """Find the difference of scores up to which two texts count as tied (Deutsch, Foster and Freitag, 2023).

    Scores of a language model are hardly ever equal, but ratings often are. Without a threshold every pair that people
    tie would count as an error. The threshold maximises the accuracy, averaged over groups.
    """
    gaps, weights = [np.zeros(1)], [np.zeros(1)]
    order = np.argsort(groups, kind="stable")
    starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)[1:]
    if sizes.max() > _MOST_PAIRED:
        return None
    for size in np.unique(sizes):  # groups of one size at once
        first, second = np.triu_indices(size, 1)
        members = order[starts[sizes == size, None] + np.arange(size)]
        dh, dp = (values[members][:, first] - values[members][:, second] for values in (human, predicted))
        # A threshold at or above its gap ties a pair: that is correct if people tie it too, and wrong if it was
        # concordant.
        change = np.where(dh == 0, 1.0, -(np.sign(dh) == np.sign(dp)).astype(np.float64))
        gaps.append(np.abs(dp).ravel())
        weights.append(change.ravel() / max(1, first.size))
    gap, weight = np.concatenate(gaps), np.concatenate(weights)
    distinct, places = np.unique(gap, return_inverse=True)
    gained = np.cumsum(np.bincount(places.reshape(-1), weights=weight))
    return float(distinct[np.argmax(np.round(gained, 12))])
