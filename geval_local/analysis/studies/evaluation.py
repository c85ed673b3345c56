"""The whole of a meta-evaluation: everybody who scored the rows, against the people and against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from geval_local.analysis.records import ScoredItem, usable
from geval_local.analysis.statistics.agreement import Agreement, agree
from geval_local.analysis.statistics.correlation import Correlation, Level, correlate
from geval_local.analysis.statistics.significance import Comparison, compare
from geval_local.errors import DataError

__all__ = ["Contender", "Evaluation", "evaluate"]

Kind = Literal["judge", "ablation", "responses", "predictions", "baseline"]


@dataclass(frozen=True)
class Contender:
    """Somebody who scored the rows.

    Attributes
    ----------
    name : str
        As its rows are to be called.
    kind : {"judge", "ablation", "responses", "predictions", "baseline"}
        A judge or its kept run; another estimate by one; somebody else's raw responses; somebody else's predictions,
        on a scale of their own; a reference metric.
    items : mapping of str to sequence of ScoredItem
        Dimension -> its scores.
    parent : str
        The judge that an ablation belongs to.
    """

    name: str
    kind: Kind
    items: Mapping[str, Sequence[ScoredItem]]
    parent: str = ""


@dataclass(frozen=True)
class Evaluation:
    """What came out.

    Attributes
    ----------
    contenders : tuple of Contender
        In the order given.
    correlations : mapping of Level to mapping of str to mapping of str to Correlation
        Level -> contender -> dimension. Baselines are there at the first level only.
    comparisons : mapping of str to Comparison
        ``dimension: first / second`` -> the test of their difference, at the first level.
    agreements : mapping of str to Agreement
        ``dimension: first / second`` -> their agreement with each other.
    notes : tuple of str
        What could not be correlated, and why.
    """

    contenders: tuple[Contender, ...]
    correlations: Mapping[Level, Mapping[str, Mapping[str, Correlation]]]
    comparisons: Mapping[str, Comparison]
    agreements: Mapping[str, Agreement]
    notes: tuple[str, ...] = field(default=())


def evaluate(
    contenders: Sequence[Contender],
    levels: Sequence[Level],
    coefficient: str = "spearman",
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Evaluation:
    """Correlate every contender with the human ratings, and compare those that are judges of some kind.

    Parameters
    ----------
    contenders : sequence of Contender
        With distinct names.
    levels : sequence of {"summary", "pooled", "system"}
        The one to report first.
    coefficient : {"pearson", "spearman", "kendall"}
        What the tests of a difference are about.
    resamples, seed : int
        Bootstrap draws of groups.
    """
    notes: list[str] = []
    correlations: dict[Level, dict[str, dict[str, Correlation]]] = {level: {} for level in levels}
    for contender in contenders:
        for dimension, items in contender.items.items():
            if not usable(items)[0]:
                notes.append(f"{contender.name}, {dimension}: {_why_none(items)}")
                continue
            for level in levels[:1] if contender.kind == "baseline" else levels:
                result = correlate(items, level, resamples=resamples, seed=seed)
                correlations[level].setdefault(contender.name, {})[dimension] = result
    comparisons: dict[str, Comparison] = {}
    agreements: dict[str, Agreement] = {}
    for first, second, dimension in _pairs(contenders):
        one, other = first.items[dimension], second.items[dimension]
        try:
            name = f"{dimension}: {first.name} / {second.name}"
            comparisons[name] = compare(one, other, levels[0], coefficient, resamples=resamples, seed=seed)
            if {first.kind, second.kind} <= {"judge", "responses"}:
                agreements[name] = agree(one, other)
        except DataError as error:
            notes.append(f"{dimension}: {first.name} and {second.name} cannot be compared: {error.message}")
    return Evaluation(tuple(contenders), correlations, comparisons, agreements, tuple(notes))


def _pairs(contenders: Sequence[Contender]) -> Iterator[tuple[Contender, Contender, str]]:
    """Judges, responses and predictions with each other; an ablation only with the judge that it is one of."""
    pairs = []
    for first, second in combinations([one for one in contenders if one.kind != "baseline"], 2):
        ablations = [one for one in (first, second) if one.kind == "ablation"]
        if not ablations or (len(ablations) == 1 and ablations[0].parent in (first.name, second.name)):
            pairs.append((first, second))
    for dimension in dict.fromkeys(dimension for contender in contenders for dimension in contender.items):
        for first, second in pairs:
            if dimension in first.items and dimension in second.items:
                yield first, second, dimension


def _why_none(items: Sequence[ScoredItem]) -> str:
    reasons = usable(items)[1]
    return "nothing to correlate: " + (", ".join(f"{count} x {reason}" for reason, count in reasons.items()) or "empty")
