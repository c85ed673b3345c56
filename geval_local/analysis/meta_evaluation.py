"""A whole meta-evaluation: all contenders that scored the rows, against people and against each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Literal

import numpy as np

from geval_local.analysis.ratings.benchmarks import PublishedTable
from geval_local.analysis.ratings.responses import ParsedResponses
from geval_local.analysis.records import ScoredItem, usable
from geval_local.analysis.results import ABLATIONS, estimate_name, estimated_items
from geval_local.analysis.statistics.agreement import Agreement, agree, krippendorff_alpha
from geval_local.analysis.statistics.coefficients import ALL_COEFFICIENTS
from geval_local.analysis.statistics.correlation import (
    Correlation,
    average_interval,
    correlate,
    interval_at,
    known_target,
)
from geval_local.analysis.statistics.jackknife import Replicates, Target, mean_of, minus
from geval_local.analysis.statistics.levels import Level, level_figures
from geval_local.analysis.statistics.significance import Comparison, compare, compare_average, corrected
from geval_local.analysis.tables import Table, interval, interval_warnings, number, p_value
from geval_local.errors import ConfigurationError, DataError
from geval_local.interval import Interval
from geval_local.scale import Scale
from geval_local.score import Estimator

__all__ = [
    "Ceiling",
    "Contender",
    "Evaluation",
    "JudgeBeside",
    "against_exact",
    "benchmark_table",
    "ceiling_table",
    "evaluate",
    "human_ceiling",
    "response_table",
]

Kind = Literal["judge", "ablation", "responses", "predictions", "baseline"]


def against_exact(
    items: Sequence[ScoredItem],
    scale: Scale,
    judge: str,
    estimators: Sequence[Estimator] = ABLATIONS,
    *,
    level: Level,
    coefficient: str = "spearman",
    target: Target | None = None,
) -> dict[str, Comparison]:
    """Test the expectation against each other estimate, on the documents that both keep.

    Parameters
    ----------
    items : sequence of ScoredItem
        Scores by the expectation, with label probabilities and ratings.
    scale : Scale
        The metric's scale.
    judge : str
        What the rows are called by.
    estimators : sequence of Estimator
        The others.
    level, coefficient, target
        As in `geval_local.analysis.statistics.significance.compare`.

    Returns
    -------
    dict of str to Comparison
        ``judge / judge median`` and so on; an estimate that keeps no document is left out.

    Raises
    ------
    DataError
        If a scored item has no probabilities over the labels of `scale`.
    """
    found: dict[str, Comparison] = {}
    for name, other in _estimates(items, scale, judge, estimators).items():
        try:
            found[f"{judge} / {name}"] = compare(items, other, level, coefficient, target=target)
        except DataError:
            continue  # Constant everywhere, or nothing rated: there is nothing to compare.
    return found


def _estimates(
    items: Sequence[ScoredItem], scale: Scale, judge: str, estimators: Sequence[Estimator]
) -> Mapping[str, list[ScoredItem]]:
    return {estimate_name(judge, one): estimated_items(items, scale, one) for one in estimators}


@dataclass(frozen=True)
class JudgeBeside:
    """Agreement of a judge in place of each rater.

    Attributes
    ----------
    agreement : Interval
        Its coefficient with the mean of the others, averaged over the raters left out.
    difference : Interval
        That minus people's: below 0 if another person would agree better than the judge.
    p : float
        Two-sided p-value of "no difference".
    """

    agreement: Interval
    difference: Interval
    p: float


@dataclass(frozen=True)
class Ceiling:
    """Agreement of several raters.

    Attributes
    ----------
    level, coefficient : str
        Level and coefficient of the correlations.
    raters, n : int
        Number of raters, and of items with at least two ratings.
    alpha : float
        Krippendorff's alpha for interval data.
    people : Interval
        Leave-one-out agreement: each rater with the mean of the others, averaged over the raters.
    judges : dict of str to JudgeBeside
        Judges measured against the same means of the others.
    """

    level: Level
    coefficient: str
    raters: int
    n: int
    alpha: float
    people: Interval
    judges: dict[str, JudgeBeside]


def human_ceiling(
    ratings: Mapping[str, Sequence[float]],
    judges: Mapping[str, Sequence[ScoredItem]],
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
) -> Ceiling:
    """Measure the agreement of raters, and of judges in their place.

    Parameters
    ----------
    ratings : mapping of str to sequence of float
        Rater -> rating of each item; NaN if a rater has none.
    judges : mapping of str to sequence of ScoredItem
        Name -> its scores of the same items, in the same order; at least one, for groups and systems.
    level, coefficient, target
        As in `geval_local.analysis.statistics.significance.compare`.

    Raises
    ------
    ConfigurationError
        If there are fewer than two raters.
    DataError
        If the lists differ in length, or no rater shares an item with another.
    """
    if len(ratings) < 2:
        raise ConfigurationError("a human ceiling needs at least two raters", hint="Name a field for each of them.")
    table = np.array([list(own) for own in ratings.values()], dtype=np.float64)
    if any(len(items) != table.shape[1] for items in judges.values()):
        raise DataError("ratings and scores are not of the same items")
    index = ALL_COEFFICIENTS.index(coefficient)
    several = np.isfinite(table).sum(axis=0) >= 2
    people: list[Replicates] = []
    beside: dict[str, list[Replicates]] = {name: [] for name in judges}
    # All are measured on the items that all judges scored, so that none has easier ones.
    scored = np.all([[math.isfinite(item.predicted) for item in items] for items in judges.values()], axis=0)
    chosen = known_target((), level, target)
    for place in range(len(table)):
        own, others = table[place], np.delete(table, place, axis=0)
        use = np.flatnonzero(several & scored & np.isfinite(own) & np.isfinite(others).any(axis=0)).tolist()
        if not use:
            continue
        means = np.nanmean(others[:, use], axis=0)
        for name, items in judges.items():
            rated = [replace(items[i], human=float(mean)) for i, mean in zip(use, means, strict=True)]
            beside[name].append(_figures(rated, level, chosen, coefficient))
        anyone = next(iter(judges.values()))
        by_person = [
            replace(anyone[i], human=float(mean), predicted=float(own[i])) for i, mean in zip(use, means, strict=True)
        ]
        people.append(_figures(by_person, level, chosen, coefficient))
    if not people:
        raise DataError("no item has ratings of two people and a score", hint="Check the fields of the raters.")
    ceiling = mean_of(people)
    found = {}
    for name, parts in beside.items():
        average = mean_of(parts)
        less = minus(average, ceiling)
        found[name] = JudgeBeside(
            interval_at(average, coefficient, level, chosen), less.interval(index, chosen), less.p(index, chosen)
        )
    return Ceiling(
        level,
        coefficient,
        len(table),
        int(several.sum()),
        krippendorff_alpha(table),
        interval_at(ceiling, coefficient, level, chosen),
        found,
    )


def _figures(items: Sequence[ScoredItem], level: Level, target: Target, coefficient: str) -> Replicates:
    return level_figures(items, level, target, accuracy=coefficient == "accuracy").replicates


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


def ceiling_table(ceiling: Ceiling) -> Table:
    """Build a table of people with each other, and each judge in place of one of them."""
    rows = [("people, leave one out", interval(ceiling.people), "-", "-")]
    rows += [
        (name, interval(one.agreement), interval(one.difference), p_value(one.p))
        for name, one in ceiling.judges.items()
    ]
    notes = (
        f"{ceiling.raters} raters, {ceiling.n} items with two ratings or more, Krippendorff's alpha "
        f"{number(ceiling.alpha)} (interval data)",
        "each rater, or the judge in that rater's place, against the mean of the others; mean over raters",
    )
    headers = ("", f"{ceiling.level} {ceiling.coefficient}", "less people", "p")
    return Table(headers, tuple(rows), (*notes, *interval_warnings({"people": ceiling.people})))


def benchmark_table(
    own: Mapping[str, Mapping[str, Correlation]],
    published: PublishedTable,
    columns_of: Mapping[str, str] | None = None,
) -> Table:
    """Build a table of own rows above published ones, with the published table's coefficient and columns.

    Parameters
    ----------
    own : mapping of str to mapping of str to Correlation
        Name of a judge or metric -> dimension -> result. The average is over the table's dimensions, and only where all
        of them are defined.
    published : PublishedTable
        The paper's.
    columns_of : mapping of str to str, optional
        Dimension -> its column, where that has another name: the half of QAGS that the file is.
    """
    columns = published.columns
    rows = []
    for name, results in own.items():
        values = {
            (columns_of or {}).get(key, key): getattr(result, published.coefficient).value
            for key, result in results.items()
        }
        dimensions = [values.get(column, math.nan) for column in columns if column != "average"]
        values["average"] = sum(dimensions) / len(dimensions)
        rows.append((name, *(number(values.get(column, math.nan)) for column in columns), "measured"))
    for row in published.rows:
        rows.append((row.system, *(number(row.values.get(column, math.nan)) for column in columns), "published"))
    notes = (f"{published.level}-level {published.coefficient}", f"published: {published.citation}. {published.note}")
    return Table(("", *columns, "origin"), tuple(rows), notes)


def response_table(parsed: Mapping[str, ParsedResponses]) -> Table:
    """Build a table of parsed raw responses, one row per dimension."""
    rows = tuple(
        (name, str(len(p.values)), str(p.responses), str(p.unparseable), str(p.out_of_scale), str(p.counted))
        for name, p in parsed.items()
    )
    return Table(("", "rows", "responses", "unparseable", "out of scale", "counted"), rows)
