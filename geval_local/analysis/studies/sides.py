"""Two sides scored by one judge: the mean of each, and the difference of two with its test.

A side is a system, a kind of writer, or any other grouping of the outputs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.resampling import PERMUTATIONS, SIGN_FLIP_GROUPS, sign_flip
from geval_local.errors import DataError
from geval_local.interval import Interval, mean_interval, t_interval, t_test

__all__ = ["SHARED", "Gap", "SideMean", "document_means", "gap", "shared_documents", "side_means"]

#: With fewer documents that both sides share, documents are compared unpaired.
SHARED = SIGN_FLIP_GROUPS

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SideMean:
    """Mean score of one side (LLM-written, human-written, a system, ...), every document weighing the same.

    Attributes
    ----------
    side : str
        Which one.
    mean : Interval
        Mean over its documents of their mean score.
    human : float
        Mean human rating of the same items, weighed alike, where they are rated, else NaN.
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
    """Difference of two sides' scores, every document weighing the same.

    Attributes
    ----------
    first, second : str
        The sides.
    means : tuple of (float, float)
        Their means on the documents that the gap is about.
    difference : Interval
        ``first - second`` in units of the scale.
    p : float
        Two-sided p-value of the test; NaN where there are too few documents.
    p_holm : float
        The same, corrected for the number of tests in its table; NaN where it stands alone.
    detectable : float
        Smallest true gap that would have been found with 80 % probability.
    test : str
        ``sign-flip`` (paired by document), ``t`` (paired, too few documents for a permutation) or ``Welch t``
        (documents not shared).
    documents : int
        Pairs, or documents of both sides together.
    left_out : int
        Documents of one side alone that a paired test cannot use.
    """

    first: str
    second: str
    means: tuple[float, float]
    difference: Interval
    p: float
    p_holm: float
    detectable: float
    test: str
    documents: int
    left_out: int


def side_means(items: Sequence[ScoredItem], sides: Sequence[str]) -> list[SideMean]:
    """Mean score per side, in order of appearance.

    Parameters
    ----------
    items : sequence of ScoredItem
        The scores.
    sides : sequence of str
        Side of each item.
    """
    result = []
    for side in dict.fromkeys(sides):
        members = [item for item, own in zip(items, sides, strict=True) if own == side]
        scored = [item for item in members if math.isfinite(item.predicted)]
        rated = [item for item in scored if math.isfinite(item.human)]
        mean = mean_interval(list(document_means(scored).values())) if scored else Interval(math.nan)
        human = [replace(item, predicted=item.human) for item in rated]
        rating = float(np.mean(list(document_means(human).values()))) if rated else math.nan
        result.append(SideMean(side, mean, rating, len(scored), len(members) - len(scored)))
    return result


def gap(
    items: Sequence[ScoredItem],
    sides: Sequence[str],
    first: str,
    second: str,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Gap:
    """Test whether one side is scored above another.

    Paired by document on all documents that have both sides, if there are at least `SHARED`, so that easy and hard
    documents cancel: signs of the documents' differences are flipped at random. Otherwise by Welch's t of
    the documents' means.

    Parameters
    ----------
    items, sides
        As for `side_means`.
    first, second : str
        The two sides.
    permutations : int
        Most arrangements that are tried.
    seed : int
        Seed of the permutations.

    Raises
    ------
    DataError
        If one of the sides has no scored item.
    """
    means = [_of_side(items, sides, side) for side in (first, second)]
    documents = len(means[0].keys() | means[1].keys())
    shared = _paired(means[0], means[1])
    if shared:
        a, b = (np.array([own[group] for group in shared]) for own in means)
        difference = mean_interval(a - b)
        if len(shared) >= SHARED:
            p, test = sign_flip(a - b, permutations=permutations, seed=seed), "sign-flip"
        else:
            p, test = t_test(difference.value, difference.error, difference.units), "t"
        left_out = documents - len(shared)
    else:
        a, b = (np.array(list(own.values())) for own in means)
        difference = _welch(a, b)
        p, test, left_out = t_test(difference.value, difference.error, difference.units), "Welch t", 0
    return Gap(
        first,
        second,
        (float(a.mean()), float(b.mean())),
        difference,
        p,
        math.nan,
        difference.detectable(),
        test,
        documents - left_out,
        left_out,
    )


def shared_documents(
    items: Sequence[ScoredItem], sides: Sequence[str], first: str, second: str
) -> tuple[Floats, Floats] | None:
    """Mean scores of two sides on the documents by which `gap` pairs them; None where it does not pair them.

    Raises
    ------
    DataError
        If one of the sides has no scored item.
    """
    one, other = (_of_side(items, sides, side) for side in (first, second))
    shared = _paired(one, other)
    if not shared:
        return None
    return np.array([one[group] for group in shared]), np.array([other[group] for group in shared])


def document_means(items: Sequence[ScoredItem]) -> dict[str, float]:
    """Mean score of every document."""
    groups: dict[str, list[float]] = defaultdict(list)
    for item in items:
        groups[item.group].append(item.predicted)
    return {group: float(np.mean(values)) for group, values in groups.items()}


def _of_side(items: Sequence[ScoredItem], sides: Sequence[str], side: str) -> dict[str, float]:
    """Mean scores of a side's documents."""
    members = [i for i, own in zip(items, sides, strict=True) if own == side and math.isfinite(i.predicted)]
    if not members:
        raise DataError(f"no scored item belongs to {side!r}", hint=f"Sides: {', '.join(dict.fromkeys(sides))}.")
    return document_means(members)


def _paired(one: dict[str, float], other: dict[str, float]) -> list[str]:
    """Documents by which two sides are compared: those of both, if there are enough or no others; else none."""
    shared = [group for group in one if group in other]
    return shared if len(shared) >= SHARED or len(shared) == len(one.keys() | other.keys()) else []


def _welch(a: Floats, b: Floats) -> Interval:
    """Welch's interval of the difference of two independent means."""
    value = float(a.mean() - b.mean())
    if min(a.size, b.size) < 2:
        return Interval(value)
    parts = np.array([v.var(ddof=1) / v.size for v in (a, b)])
    error = float(np.sqrt(parts.sum()))
    if error == 0:
        return t_interval(value, 0.0, min(a.size, b.size))
    degrees = parts.sum() ** 2 / (parts**2 / np.array([a.size - 1, b.size - 1])).sum()
    warning = next((side for v in (a, b) if (side := mean_interval(v).warning)), "")
    return t_interval(value, error, math.floor(degrees) + 1, warning=warning)
