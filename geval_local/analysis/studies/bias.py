"""Whether the judge favours somebody: a gap between two sides less people's own, and gaps by what people prefer.

A gap between sides is not yet a bias: one side may be better. With human ratings the difference in differences, judge
minus people on the same texts, shows how much of the gap the judge adds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.studies.sides import Gap, gap
from geval_local.errors import DataError

__all__ = ["against_people", "gaps_by_preference", "preferences"]


def against_people(items: Sequence[ScoredItem], *, standardise: bool = False) -> list[ScoredItem]:
    """Copy the rated items with the score minus the human rating as their score, for the difference in differences.

    Parameters
    ----------
    items : sequence of ScoredItem
        The scores; unrated items are returned unscored.
    standardise : bool
        Whether to standardise scores and ratings first, which is needed if people used
        another scale than the judge. This assumes that both have the same relative spread.

    Raises
    ------
    DataError
        If nothing is rated and scored, or one of the two is constant and has to be standardised.
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
    """Find the side that people prefer in each document, by mean ratings: a side's name, or ``equal``.

    Documents without ratings of both sides are left out.
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
    """Compute the gap within the documents of each human preference: the paper's Figure 2.

    Gaps of an unbiased judge follow the preference. A judge that favours the first side keeps a positive gap
    if people prefer the second.

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
