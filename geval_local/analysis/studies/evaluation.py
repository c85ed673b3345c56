"""A whole meta-evaluation: all contenders that scored the rows, against people and against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from geval_local.analysis.records import ScoredItem, usable
from geval_local.analysis.statistics.agreement import Agreement, agree
from geval_local.analysis.statistics.correlation import Correlation, average_interval, correlate
from geval_local.analysis.statistics.jackknife import Target
from geval_local.analysis.statistics.levels import Level
from geval_local.analysis.statistics.significance import Comparison, compare, compare_average, corrected
from geval_local.errors import DataError
from geval_local.interval import Interval

__all__ = ["Contender", "Evaluation", "evaluate"]

Kind = Literal["judge", "ablation", "responses", "predictions", "baseline"]


@dataclass(frozen=True)
class Contender:
    """A judge or metric that scored the rows.

    Attributes
    ----------
    name : str
        Name of its rows.
    kind : {"judge", "ablation", "responses", "predictions", "baseline"}
        A judge or its kept run; another estimate by one; others' raw responses; others' predictions
        on their own scale; a reference metric.
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
    """Results of a meta-evaluation.

    Attributes
    ----------
    contenders : tuple of Contender
        In the order given.
    correlations : mapping of Level to mapping of str to mapping of str to Correlation
        Level -> contender -> dimension. Baselines appear at the first level only.
    averages : mapping of str to Interval
        Contender -> mean of the coefficient over the dimensions, at the first level, if it has all of several.
    comparisons : mapping of str to Comparison
        ``dimension: first / second`` -> the test of their difference, at the first level and on the documents that
        both keep; ``average: first / second`` -> that of their averages. Holm's correction is over all of them.
    agreements : mapping of str to Agreement
        ``dimension: first / second`` -> their agreement with each other.
    notes : tuple of str
        Correlations that could not be computed, with reasons.
    """

    contenders: tuple[Contender, ...]
    correlations: Mapping[Level, Mapping[str, Mapping[str, Correlation]]]
    averages: Mapping[str, Interval]
    comparisons: Mapping[str, Comparison]
    agreements: Mapping[str, Agreement]
    notes: tuple[str, ...] = field(default=())


def evaluate(
    contenders: Sequence[Contender],
    levels: Sequence[Level],
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    seed: int = 0,
) -> Evaluation:
    """Correlate every contender with the human ratings, and compare the judges with each other.

    Parameters
    ----------
    contenders : sequence of Contender
        The contenders, with distinct names.
    levels : sequence of {"summary", "pooled", "system"}
        Levels to report, the main one first.
    coefficient : {"pearson", "spearman", "kendall", "accuracy", "auc"}
        Coefficient for averages and tests of differences.
    target : {"documents", "systems", "both"}, optional
        Population that intervals and tests generalise to; by default that of each level.
    seed : int
        Seed of the permutations.
    """
    notes: list[str] = []
    correlations: dict[Level, dict[str, dict[str, Correlation]]] = {level: {} for level in levels}
    for contender in contenders:
        for dimension, items in contender.items.items():
            if not usable(items)[0]:
                notes.append(f"{contender.name}, {dimension}: {_why_none(items)}")
                continue
            for level in levels[:1] if contender.kind == "baseline" else levels:
                wanted = coefficient == "accuracy" and level == levels[0]
                result = correlate(items, level, target=target, accuracy=wanted)
                correlations[level].setdefault(contender.name, {})[dimension] = result
    comparisons: dict[str, Comparison] = {}
    agreements: dict[str, Agreement] = {}
    for first, second, dimension in _pairs(contenders):
        one, other = first.items[dimension], second.items[dimension]
        name = f"{dimension}: {first.name} / {second.name}"
        try:
            comparisons[name] = compare(one, other, levels[0], coefficient, target=target, seed=seed)
            if {first.kind, second.kind} <= {"judge", "responses"}:
                agreements[name] = agree(one, other)
        except DataError as error:
            notes.append(f"{dimension}: {first.name} and {second.name} cannot be compared: {error.message}")
    averages, tests = _averages(contenders, levels[0], coefficient, target)
    return Evaluation(
        tuple(contenders), correlations, averages, corrected(comparisons | tests), agreements, tuple(notes)
    )


def _averages(
    contenders: Sequence[Contender], level: Level, coefficient: str, target: Target | None
) -> tuple[dict[str, Interval], dict[str, Comparison]]:
    """Compute means over all dimensions, for contenders with several and all, and test their differences."""
    dimensions = list(dict.fromkeys(dimension for contender in contenders for dimension in contender.items))
    whole = [one for one in contenders if len(dimensions) > 1 and set(one.items) == set(dimensions)]
    found: dict[str, Interval] = {}
    for contender in whole:
        items = [contender.items[dimension] for dimension in dimensions]
        if all(usable(own)[0] for own in items):
            found[contender.name] = average_interval(items, level, coefficient, target=target)
    tests: dict[str, Comparison] = {}
    for first, second in _couples(whole):
        try:
            tests[f"average: {first.name} / {second.name}"] = compare_average(
                [first.items[dimension] for dimension in dimensions],
                [second.items[dimension] for dimension in dimensions],
                level,
                coefficient,
                target=target,
            )
        except DataError:
            continue  # The dimension that cannot be compared has its own note.
    return found, tests


def _couples(contenders: Sequence[Contender]) -> list[tuple[Contender, Contender]]:
    """Pair judges, responses and predictions with each other; an ablation only with its judge."""
    couples = []
    for first, second in combinations([one for one in contenders if one.kind != "baseline"], 2):
        ablations = [one for one in (first, second) if one.kind == "ablation"]
        if not ablations or (len(ablations) == 1 and ablations[0].parent in (first.name, second.name)):
            couples.append((first, second))
    return couples


def _pairs(contenders: Sequence[Contender]) -> Iterator[tuple[Contender, Contender, str]]:
    for dimension in dict.fromkeys(dimension for contender in contenders for dimension in contender.items):
        for first, second in _couples(contenders):
            if dimension in first.items and dimension in second.items:
                yield first, second, dimension


def _why_none(items: Sequence[ScoredItem]) -> str:
    reasons = usable(items)[1]
    return "nothing to correlate: " + (", ".join(f"{count} x {reason}" for reason, count in reasons.items()) or "empty")
