"""Whether the judge favours somebody: mean score per side, the gap between two sides, and the gap less people's own.

A gap between sides is not yet a bias: one side may be better. With human ratings the difference in differences, judge
less people on the same texts, says how much of the gap the judge adds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.resampling import SIGN_FLIP_GROUPS, sign_flip, welch_permuted
from geval_local.errors import DataError
from geval_local.interval import Interval, mean_interval, t_interval, t_test

__all__ = ["Gap", "SideMean", "against_people", "gap", "gaps_by_preference", "preferences", "side_means"]

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
        ``sign-flip`` (paired by document), ``t`` (paired, too few documents for a permutation) or ``permuted Welch t``
        (documents not shared; the larger p of Welch's t and of its permutation).
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
        mean = mean_interval(list(_document_means(scored).values())) if scored else Interval(math.nan)
        human = [replace(item, predicted=item.human) for item in rated]
        rating = float(np.mean(list(_document_means(human).values()))) if rated else math.nan
        result.append(SideMean(side, mean, rating, len(scored), len(members) - len(scored)))
    return result


def gap(items: Sequence[ScoredItem], sides: Sequence[str], first: str, second: str, *, seed: int = 0) -> Gap:
    """Test whether one side is scored above another.

    Paired by document on all documents that have both sides, if there are at least `SHARED`, so that easy and hard
    documents cancel: signs of the documents' differences are flipped at random. Otherwise documents' means are permuted
    between the sides, with Welch's t.

    Parameters
    ----------
    items, sides
        As for `side_means`.
    first, second : str
        The two sides.
    seed : int
        Seed of the permutations.

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
        means.append(_document_means(members))
    shared = [group for group in means[0] if group in means[1]]
    documents = len(means[0].keys() | means[1].keys())
    if len(shared) >= SHARED or (shared and len(shared) == documents):
        a, b = (np.array([own[group] for group in shared]) for own in means)
        difference = mean_interval(a - b)
        if len(shared) >= SHARED:
            p, test = sign_flip(a - b, seed=seed), "sign-flip"
        else:
            p, test = t_test(difference.value, difference.error, difference.units), "t"
        left_out = documents - len(shared)
    else:
        a, b = (np.array(list(own.values())) for own in means)
        difference, p, test, left_out = _welch(a, b), welch_permuted(a, b, seed=seed), "permuted Welch t", 0
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


def against_people(items: Sequence[ScoredItem], *, standardise: bool = False) -> list[ScoredItem]:
    """Copy the rated items with the judge's excess over people as their score: for the difference in differences.

    Parameters
    ----------
    items : sequence of ScoredItem
        Unrated ones come back unscored.
    standardise : bool
        Whether scores and ratings are each brought to standard deviations first, which they must be where people used
        another scale than the judge. It is then assumed that both spread their grades alike.

    Raises
    ------
    DataError
        If nothing is rated and scored, or one of the two does not vary where it has to be standardised.
    """
    both = [item for item in items if math.isfinite(item.predicted) and math.isfinite(item.human)]
    if not both:
        raise DataError("no item has both a human rating and a score", hint="Check the field of the human ratings.")
    centres, spreads = (0.0, 0.0), (1.0, 1.0)
    if standardise:
        columns = [np.array([item.predicted for item in both]), np.array([item.human for item in both])]
        if any(np.unique(column).size < 2 for column in columns):
            raise DataError("scores or ratings are all equal: they cannot be brought to standard deviations")
        centres = (float(columns[0].mean()), float(columns[1].mean()))
        spreads = (float(columns[0].std()), float(columns[1].std()))
    return [
        replace(
            item,
            predicted=(item.predicted - centres[0]) / spreads[0] - (item.human - centres[1]) / spreads[1],
            probabilities=None,
        )
        for item in items
    ]


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
    seed: int = 0,
) -> dict[str, Gap]:
    """Take the gap within the documents of each human preference: the paper's Figure 2.

    A judge without bias has gaps that follow the preference. A judge that favours the first side keeps a positive gap
    where people prefer the second.

    Parameters
    ----------
    preferred : dict of str to str
        Document -> preference, given by people directly or derived by `preferences`.
    items, sides, first, second, seed
        As for `gap`.
    """
    result = {}
    for preference in dict.fromkeys(preferred.values()):
        chosen = [
            (item, side) for item, side in zip(items, sides, strict=True) if preferred.get(item.group) == preference
        ]
        result[preference] = gap([item for item, _ in chosen], [side for _, side in chosen], first, second, seed=seed)
    return result


def _document_means(items: Sequence[ScoredItem]) -> dict[str, float]:
    groups: dict[str, list[float]] = defaultdict(list)
    for item in items:
        groups[item.group].append(item.predicted)
    return {group: float(np.mean(values)) for group, values in groups.items()}


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
