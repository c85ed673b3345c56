"""Whether the judge favours somebody: mean score per side, the gap between two sides and its test."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.resampling import Interval, group_draws, interval_of, mean_over_groups
from geval_local.errors import DataError

__all__ = ["Gap", "SideMean", "gap", "gaps_by_preference", "preferences", "side_means"]

_PERMUTATIONS = 4999

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SideMean:
    """Mean score of one side (LLM-written, human-written, a system, ...).

    Attributes
    ----------
    side : str
        Which one.
    mean : Interval
        Mean score of its items, with a bootstrap interval over documents.
    human : float
        Mean human rating of the same items where they are rated, else NaN.
    n, unscored : int
        Scored items, and items without a score.
    """

    side: str
    mean: Interval
    human: float
    n: int
    unscored: int


@dataclass(frozen=True)
class Gap:
    """Difference of two sides' scores.

    Attributes
    ----------
    first, second : str
        The sides.
    difference : Interval
        ``first - second`` in units of the scale, with a bootstrap interval over documents.
    p : float
        Two-sided p-value of the test; NaN where there are too few documents.
    test : str
        ``Wilcoxon signed-rank`` (paired by document) or ``permutation`` (documents not shared).
    documents : int
        Pairs, or documents of both sides together.
    left_out : int
        Documents of one side alone that a paired test cannot use.
    """

    first: str
    second: str
    difference: Interval
    p: float
    test: str
    documents: int
    left_out: int


def side_means(
    items: Sequence[ScoredItem], sides: Sequence[str], *, resamples: int = 1000, seed: int = 0
) -> list[SideMean]:
    """Mean score per side, in order of appearance.

    Parameters
    ----------
    items : sequence of ScoredItem
        The scores.
    sides : sequence of str
        Side of each item.
    resamples, seed : int
        Bootstrap over documents.
    """
    result = []
    for side in dict.fromkeys(sides):
        members = [item for item, own in zip(items, sides, strict=True) if own == side]
        scored = [item for item in members if math.isfinite(item.predicted)]
        rated = [item.human for item in scored if math.isfinite(item.human)]
        mean = Interval(math.nan)
        if scored:
            values = np.array([item.predicted for item in scored])
            mean = mean_over_groups([item.group for item in scored], values, resamples, seed)
        human = float(np.mean(rated)) if rated else math.nan
        result.append(SideMean(side, mean, human, len(scored), len(members) - len(scored)))
    return result


def gap(
    items: Sequence[ScoredItem],
    sides: Sequence[str],
    first: str,
    second: str,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Gap:
    """Test whether one side is scored above another.

    Paired by document where at least half of the documents have both sides, so that easy and hard documents cancel;
    otherwise the documents' means are compared by permutation.

    Parameters
    ----------
    items, sides
        As for `side_means`.
    first, second : str
        The two sides.
    resamples, seed : int
        Bootstrap over documents, and the permutations.

    Raises
    ------
    DataError
        If one of the sides has no scored item.
    """
    means = []
    for side in (first, second):
        members = [i for i, own in zip(items, sides, strict=True) if own == side and math.isfinite(i.predicted)]
        if not members:
            raise DataError(f"no scored item belongs to {side!r}", hint=f"Sides: {', '.join(dict.fromkeys(sides))}.")
        means.append({group: float(np.mean(values)) for group, values in _by_group(members).items()})
    shared = [group for group in means[0] if group in means[1]]
    documents = len(means[0].keys() | means[1].keys())
    if 2 * len(shared) >= documents:
        differences = np.array([means[0][group] - means[1][group] for group in shared])
        draws = group_draws(len(shared), resamples, seed) @ differences / len(shared)
        interval = interval_of(float(differences.mean()), draws)
        left_out = documents - len(shared)
        return Gap(first, second, interval, _wilcoxon(differences), "Wilcoxon signed-rank", len(shared), left_out)
    a, b = (np.array(list(own.values())) for own in means)
    parts = [group_draws(v.size, resamples, [seed, i]) @ v / v.size for i, v in enumerate((a, b))]
    defined = all(part.size for part in parts)
    draws = parts[0] - parts[1] if defined else np.zeros(0)
    interval = interval_of(float(a.mean() - b.mean()), draws)
    return Gap(first, second, interval, _permutation(a, b, seed), "permutation", a.size + b.size, 0)


def preferences(items: Sequence[ScoredItem], sides: Sequence[str], first: str, second: str) -> dict[str, str]:
    """Which side people prefer in each document, from their mean ratings: a side's name, or ``equal``.

    Documents without ratings of both sides are not in the result.
    """
    rated: dict[str, dict[str, list[float]]] = defaultdict(lambda: {first: [], second: []})
    for item, side in zip(items, sides, strict=True):
        if side in (first, second) and math.isfinite(item.human):
            rated[item.group][side].append(item.human)
    result = {}
    for group, ratings in rated.items():
        if ratings[first] and ratings[second]:
            difference = round(float(np.mean(ratings[first]) - np.mean(ratings[second])), 12)
            result[group] = first if difference > 0 else second if difference < 0 else "equal"
    return result


def gaps_by_preference(
    items: Sequence[ScoredItem],
    sides: Sequence[str],
    first: str,
    second: str,
    preferred: dict[str, str],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Gap]:
    """Take the gap within the documents of each human preference: the paper's Figure 2.

    A judge without bias has gaps that follow the preference. A judge that favours the first side keeps a positive gap
    where people prefer the second.

    Parameters
    ----------
    preferred : dict of str to str
        Document -> preference, given by people directly or derived by `preferences`.
    items, sides, first, second, resamples, seed
        As for `gap`.
    """
    result = {}
    for preference in dict.fromkeys(preferred.values()):
        chosen = [
            (item, side) for item, side in zip(items, sides, strict=True) if preferred.get(item.group) == preference
        ]
        result[preference] = gap(
            [item for item, _ in chosen],
            [side for _, side in chosen],
            first,
            second,
            resamples=resamples,
            seed=seed,
        )
    return result


def _by_group(items: Sequence[ScoredItem]) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = defaultdict(list)
    for item in items:
        groups[item.group].append(item.predicted)
    return groups


def _wilcoxon(differences: Floats) -> float:
    from scipy import stats

    if differences.size < 2:
        return math.nan
    if not differences.any():
        return 1.0
    return float(stats.wilcoxon(differences)[1])


def _permutation(a: Floats, b: Floats, seed: int) -> float:
    if min(a.size, b.size) < 2:
        return math.nan
    everything = np.concatenate([a, b])
    shuffled = np.random.default_rng(seed).permuted(np.tile(everything, (_PERMUTATIONS, 1)), axis=1)
    drawn = shuffled[:, : a.size].mean(axis=1) - shuffled[:, a.size :].mean(axis=1)
    # The observed arrangement is one of the permutations; the slack keeps its equals from being lost to rounding.
    extreme = int((np.abs(drawn) >= abs(a.mean() - b.mean()) - 1e-12).sum())
    return (extreme + 1) / (_PERMUTATIONS + 1)
