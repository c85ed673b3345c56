"""Several judges as a jury: the mean of their label distributions, optionally weighted, and their disagreements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem, pair
from geval_local.analysis.statistics.coefficients import coefficients
from geval_local.analysis.statistics.distributions import expectations, probability_matrix
from geval_local.analysis.statistics.jackknife import Target
from geval_local.analysis.statistics.levels import Level
from geval_local.analysis.statistics.resampling import group_folds
from geval_local.analysis.statistics.significance import Comparison, compare, corrected
from geval_local.analysis.tables import Table, number
from geval_local.errors import ConfigurationError, DataError
from geval_local.scale import Scale

__all__ = ["Jury", "against_judges", "convene", "disagreement_table", "distances", "weight_table"]

Weighting = Literal["equal", "human"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Jury:
    """The judges' joint scores.

    Attributes
    ----------
    items : tuple of ScoredItem
        The items that all judges scored, with the mean distribution and its expectation.
    weights : dict of str to float
        Weight of each judge, summing to 1; the mean over folds for ``human`` weighting.
    disagreement : tuple of float
        Mean distance between the distributions of two judges per item, in units of the scale; see `distances`.
    left_out : int
        Items of the first judge that some judge did not score.
    """

    items: tuple[ScoredItem, ...]
    weights: dict[str, float]
    disagreement: tuple[float, ...]
    left_out: int


def distances(p: Floats, weights: Floats, scale: Scale) -> Floats:
    """Mean distance between the distributions of two different judges, drawn by their weights.

    The distance is the earth mover's (Wasserstein-1): how far probability has to be moved along the scale, so that a
    judge who says 1 is further from one who says 5 than from one who says 2.

    Parameters
    ----------
    p : ndarray, shape (judges, items, labels)
        Label probabilities.
    weights : ndarray, shape (judges,) or (judges, items)
        Summing to 1 over the judges.
    scale : Scale
        The labels' values.

    Returns
    -------
    ndarray, shape (items,)
        In units of the scale: 0 where the judges agree, at most its width. 0 too where one judge has all the weight.
    """
    weights = np.broadcast_to(weights[:, None] if weights.ndim == 1 else weights, p.shape[:2])
    order = np.argsort(scale.array, kind="stable")
    cumulated = np.cumsum(p[:, :, order], axis=2)[:, :, :-1]
    steps = np.diff(scale.array[order])
    total, drawn = np.zeros(p.shape[1]), np.zeros(p.shape[1])
    for one, other in combinations(range(len(p)), 2):
        both = weights[one] * weights[other]
        total += both * (np.abs(cumulated[one] - cumulated[other]) @ steps)
        drawn += both
    return np.asarray(np.divide(total, drawn, out=np.zeros_like(total), where=drawn > 0))


def convene(
    judges: Mapping[str, Sequence[ScoredItem]],
    scale: Scale,
    *,
    weighting: Weighting = "equal",
    folds: int = 5,
    seed: int = 0,
) -> Jury:
    """Average the judges' label distributions, item by item.

    Parameters
    ----------
    judges : mapping of str to sequence of ScoredItem
        Name -> scores with label probabilities on one scale.
    scale : Scale
        The metric's scale.
    weighting : {"equal", "human"}
        ``human``: proportional to a judge's Spearman correlation with the ratings of the *other* folds of groups, so
        that no document affects its own weights; if items have no groups, rows of one document may. Negative
        correlations count as 0.
    folds, seed : int
        Folds and seed of ``human`` weighting.

    Raises
    ------
    ConfigurationError
        If there are fewer than two judges, or too few groups to hold any out.
    DataError
        If the judges share no scored item, an item has no probabilities, or no judge agrees with people.
    """
    if len(judges) < 2:
        raise ConfigurationError("a jury needs at least two judges", hint="Give two or more runs over the same file.")
    if weighting not in ("equal", "human"):
        raise ConfigurationError(f"unknown weighting {weighting!r}", hint="Choose equal or human.")
    names = list(judges)
    shared = list(judges[names[0]])
    for name in names[1:]:
        shared = pair(shared, judges[name])[0]
    aligned = [pair(shared, judges[name])[1] for name in names]
    p = np.stack([probability_matrix(items, scale) for items in aligned])
    weights = _weights(p, aligned[0], scale, weighting, folds, seed)
    mixture = (weights[:, :, None] * p).sum(axis=0)
    items = tuple(
        replace(item, predicted=float(value), probabilities=dict(zip(scale.labels, row.tolist(), strict=True)))
        for item, row, value in zip(aligned[0], mixture, expectations(mixture, scale), strict=True)
    )
    return Jury(
        items,
        dict(zip(names, weights.mean(axis=1).tolist(), strict=True)),
        tuple(distances(p, weights, scale).tolist()),
        len(judges[names[0]]) - len(items),
    )


def against_judges(
    jury: Jury,
    judges: Mapping[str, Sequence[ScoredItem]],
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
) -> tuple[str, dict[str, Comparison]]:
    """Test the jury against each of its judges, on the human ratings.

    Parameters
    ----------
    jury : Jury
        Result of `convene`.
    judges : mapping of str to sequence of ScoredItem
        Its judges.
    level, coefficient, target
        As in `geval_local.analysis.statistics.significance.compare`.

    Returns
    -------
    best : str
        The judge that agrees best with people on these very documents. Its choice benefits from chance, so a jury that
        beats it here is all the more convincing.
    tests : dict of str to Comparison
        Judge -> jury minus judge, with Holm's correction over the judges.

    Raises
    ------
    DataError
        If no item is rated, or jury and judge keep no document in common.
    """
    tests = {name: compare(jury.items, items, level, coefficient, target=target) for name, items in judges.items()}
    best = max(tests, key=lambda name: tests[name].second if math.isfinite(tests[name].second) else -math.inf)
    return best, corrected(tests)


def _weights(
    p: Floats, items: Sequence[ScoredItem], scale: Scale, weighting: Weighting, folds: int, seed: int
) -> Floats:
    """Compute weights of shape (judges, items)."""
    count = len(p)
    scores = np.stack([expectations(rows, scale) for rows in p])
    result = np.full(scores.shape, 1 / count)
    if weighting == "human":
        human = np.array([item.human for item in items])
        fold = group_folds([item.group for item in items], folds, seed)
        for held_out in np.unique(fold):
            rest = (fold != held_out) & np.isfinite(human)
            agreement = np.array([_spearman(human[rest], own[rest]) for own in scores])
            result[:, fold == held_out] = _normalised(agreement)[:, None]
    return result


def _spearman(a: Floats, b: Floats) -> float:
    value = float(coefficients(a, b)[1])
    return value if math.isfinite(value) else 0.0


def _normalised(agreement: Floats) -> Floats:
    positive = np.maximum(agreement, 0.0)
    if positive.sum() == 0:
        raise DataError(
            "no judge agrees with people, so agreement cannot weigh them",
            hint="Use equal weights, or look at the agreement table first.",
        )
    return np.asarray(positive / positive.sum())


def weight_table(jury: Jury) -> Table:
    """Build a table with the weight of each judge."""
    return Table(("judge", "weight"), tuple((name, number(weight)) for name, weight in jury.weights.items()))


def disagreement_table(jury: Jury, judges: Mapping[str, Mapping[str, float]], count: int = 10) -> Table:
    """Build a table of the items with the largest disagreement.

    Parameters
    ----------
    jury : Jury
        The jury.
    judges : mapping of str to mapping of str to float
        Judge -> key of an item -> its score.
    count : int
        Most items to list.
    """
    order = sorted(range(len(jury.items)), key=lambda index: -jury.disagreement[index])[:count]
    rows = tuple(
        (
            jury.items[index].key,
            number(jury.disagreement[index]),
            number(jury.items[index].predicted),
            *(number(scores[jury.items[index].key]) for scores in judges.values()),
        )
        for index in order
    )
    return Table(
        ("item", "disagreement", "jury", *judges),
        rows,
        ("disagreement: mean distance between two judges' distributions (earth mover's), in units of the scale",),
    )
