"""Length bias of a judge: correlation of scores with the number of words, plain and with human ratings held fixed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.coefficients import COEFFICIENTS
from geval_local.analysis.statistics.correlation import Correlation, correlate, within
from geval_local.analysis.statistics.jackknife import Replicates
from geval_local.analysis.statistics.levels import Level, level_figures
from geval_local.interval import Interval

__all__ = ["LengthBias", "length_bias"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LengthBias:
    """Correlation of scores, and of human ratings, with the length of the output in words.

    Attributes
    ----------
    score : Correlation
        Scores against length, on the rated items if there are any; its field for human ratings contains the length.
    human : Correlation or None
        Human ratings against length on the same items: the value for a fair judge. None without ratings.
    partial : dict of str to Interval
        Coefficient -> partial correlation of score and length with the human rating held fixed, on the same items;
        empty without ratings. Above 0 if the judge rewards length more than people do. Random error in the
        ratings pulls it towards the plain correlation.
    n : int
        Number of items that all figures are computed from.
    """

    score: Correlation
    human: Correlation | None
    partial: dict[str, Interval]
    n: int


def length_bias(items: Sequence[ScoredItem], level: Level = "pooled") -> LengthBias:
    """Correlate scores, and human ratings if there are any, with the output's length in words.

    Parameters
    ----------
    items : sequence of ScoredItem
        The scores; if any item is rated, unrated ones are left out, so that all figures use the same items.
    level : {"summary", "pooled", "system"}
        Level of the correlations.

    Raises
    ------
    DataError
        If no scored item has a length.
    """
    known = [item for item in items if item.length is not None and math.isfinite(item.predicted)]
    rated = [item for item in known if math.isfinite(item.human)]
    chosen = rated or known
    against = [replace(item, human=float(item.length or 0)) for item in chosen]
    score = correlate(against, level)
    if not rated:
        return LengthBias(score, None, {}, len(chosen))
    ratings = [replace(item, human=float(item.length or 0), predicted=item.human) for item in rated]
    return LengthBias(score, correlate(ratings, level), _partial(rated, against, ratings, level, score), len(chosen))


def _partial(
    rated: Sequence[ScoredItem],
    against: Sequence[ScoredItem],
    ratings: Sequence[ScoredItem],
    level: Level,
    score: Correlation,
) -> dict[str, Interval]:
    """Compute partial correlations from three plain ones; at summary level per document, then their mean."""
    parts = [level_figures(items, level, score.target) for items in (against, ratings, rated)]
    count = len(COEFFICIENTS)
    if level == "summary":
        names = [name for name in parts[0].per_group if all(name in part.per_group for part in parts)]
        each = [np.array([part.per_group[name][:count] for name in names]).reshape(-1, count) for part in parts]
        values = _partialled(*each)
        kept = np.flatnonzero(np.isfinite(values).all(axis=1))
        values, names = values[kept], [names[place] for place in kept]
        if not names:
            return {}
        without = (values.sum(axis=0) - values) / max(1, len(names) - 1)
        figures = Replicates(values.mean(axis=0), {"documents": (tuple(names), without)})
    else:
        point = _partialled(*(part.replicates.value[None, :count] for part in parts))[0]
        axes = parts[0].replicates.without
        figures = Replicates(
            point,
            {
                axis: (names, _partialled(*(part.replicates.without[axis][1][:, :count] for part in parts)))
                for axis, (names, _) in axes.items()
            },
        )
    target = "documents" if level == "summary" else score.target
    return {
        name: within(figures.interval(index, target, correlation=level != "summary"), -1.0, 1.0)
        for index, name in enumerate(COEFFICIENTS)
    }


def _partialled(with_length: Floats, of_people: Floats, of_judge: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (with_length - of_people * of_judge) / np.sqrt((1 - of_people**2) * (1 - of_judge**2))
    return np.where(np.isfinite(found) & (np.abs(found) <= 1 + 1e-9), np.clip(found, -1, 1), np.nan)
