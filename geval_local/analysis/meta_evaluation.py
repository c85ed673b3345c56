"""A whole meta-evaluation: all contenders that scored the rows, against people and against each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np

from geval_local.analysis.good_enough import GoodEnough
from geval_local.analysis.ratings.benchmarks import Benchmark, PublishedTable, published_table
from geval_local.analysis.ratings.rated import PublishedRatings, Rated
from geval_local.analysis.ratings.responses import ParsedResponses
from geval_local.analysis.results import ABLATIONS, estimate_name, estimated_items
from geval_local.analysis.tables import (
    FOLDED_TESTS,
    Study,
    Table,
    agreement_table,
    as_record,
    average_table,
    comparison_table,
    correlation_table,
    interval,
    interval_warnings,
    number,
    p_value,
)
from geval_local.errors import ConfigurationError, DataError
from geval_local.metric import Metric
from geval_local.scale import Scale
from geval_local.score import Estimator
from geval_local.statistics.agreement import Agreement, agree, krippendorff_alpha
from geval_local.statistics.coefficients import ALL_COEFFICIENTS, COEFFICIENTS
from geval_local.statistics.correlation import (
    Correlation,
    average_interval,
    correlate,
    interval_at,
    known_target,
)
from geval_local.statistics.interval import Interval
from geval_local.statistics.levels import Level, draws_for, level_figures
from geval_local.statistics.records import ScoredItem, usable
from geval_local.statistics.resampling import Figures, Target, mean_of, minus
from geval_local.statistics.significance import Comparison, compare, compare_average, corrected

#: What scores that know nothing are called.
CHANCE = "chance"

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
    """Test the expectation against each other estimate, on the documents that both keep."""
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
    """Agreement of a judge in place of each rater."""

    #: Its coefficient with the mean of the others, averaged over the raters left out.
    agreement: Interval
    #: That minus people's: below 0 if another person would agree better than the judge.
    difference: Interval
    #: Two-sided p-value of "no difference", and the same corrected for the number of judges.
    p: float
    p_holm: float = math.nan


@dataclass(frozen=True)
class Ceiling:
    """Agreement of several raters."""

    #: Level and coefficient of the correlations.
    level: Level
    coefficient: str
    #: Number of raters, and of items with at least two ratings.
    raters: int
    n: int
    #: Krippendorff's alpha for interval data.
    alpha: float
    #: Leave-one-out agreement: each rater with the mean of the others, averaged over the raters.
    people: Interval
    #: Judges measured against the same means of the others.
    judges: dict[str, JudgeBeside]


def human_ceiling(
    ratings: Mapping[str, Sequence[float]],
    judges: Mapping[str, Sequence[ScoredItem]],
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
) -> Ceiling:
    """Measure the agreement of raters, and of judges in their place."""
    if len(ratings) < 2:
        raise ConfigurationError("a human ceiling needs at least two raters", hint="Name a field for each of them.")
    table = np.array([list(own) for own in ratings.values()], dtype=np.float64)
    if any(len(items) != table.shape[1] for items in judges.values()):
        raise DataError("ratings and scores are not of the same items")
    index = ALL_COEFFICIENTS.index(coefficient)
    several = np.isfinite(table).sum(axis=0) >= 2
    people: list[Figures] = []
    beside: dict[str, list[Figures]] = {name: [] for name in judges}
    # All are measured on the items that all judges scored, so that none has easier ones.
    scored = np.all([[math.isfinite(item.predicted) for item in items] for items in judges.values()], axis=0)
    chosen = known_target(level, target)
    draws = draws_for(list(judges.values()), level, chosen)

    def figures(items: Sequence[ScoredItem]) -> Figures:
        return level_figures(items, level, chosen, accuracy=coefficient == "accuracy", draws=draws).figures

    for place in range(len(table)):
        own, others = table[place], np.delete(table, place, axis=0)
        use = np.flatnonzero(several & scored & np.isfinite(own) & np.isfinite(others).any(axis=0)).tolist()
        if not use:
            continue
        means = np.nanmean(others[:, use], axis=0)
        for name, items in judges.items():
            rated = [replace(items[i], human=float(mean)) for i, mean in zip(use, means, strict=True)]
            beside[name].append(figures(rated))
        anyone = next(iter(judges.values()))
        by_person = [
            replace(anyone[i], human=float(mean), predicted=float(own[i])) for i, mean in zip(use, means, strict=True)
        ]
        people.append(figures(by_person))
    if not people:
        raise DataError("no item has ratings of two people and a score", hint="Check the fields of the raters.")
    ceiling = mean_of(people)
    found = {}
    for name, parts in beside.items():
        average = mean_of(parts)
        less = minus(average, ceiling)
        found[name] = JudgeBeside(interval_at(average, coefficient, chosen), less.interval(index), less.p(index)[0])
    return Ceiling(
        level,
        coefficient,
        len(table),
        int(several.sum()),
        krippendorff_alpha(table),
        interval_at(ceiling, coefficient, chosen),
        corrected(found),
    )


@dataclass(frozen=True)
class Contender:
    """A judge or metric that scored the rows."""

    #: Name of its rows.
    name: str
    #: A judge or its kept run; another estimate by one; others' raw responses; others' predictions on their own scale;
    #: a reference metric.
    kind: Kind
    #: Dimension -> its scores.
    items: Mapping[str, Sequence[ScoredItem]]
    #: The judge that an ablation belongs to.
    parent: str = ""


@dataclass(frozen=True)
class Agreements:
    """Results of a meta-evaluation."""

    #: In the order given.
    contenders: tuple[Contender, ...]
    #: Contender -> dimension.
    correlations: Mapping[str, Mapping[str, Correlation]]
    #: Contender -> mean of the coefficient over the dimensions, if it has all of several.
    averages: Mapping[str, Interval]
    #: ``dimension: first / second`` -> the test of their difference, on the documents that both keep;
    #: ``average: first / second`` -> that of their averages. Holm's correction is over all of them.
    comparisons: Mapping[str, Comparison]
    #: ``dimension: judge / other`` -> the test of a judge against a baseline or chance, corrected by themselves.
    baselines: Mapping[str, Comparison]
    #: ``dimension: first / second`` -> their agreement with each other.
    agreements: Mapping[str, Agreement]
    #: Correlations that could not be computed, with reasons.
    notes: tuple[str, ...] = field(default=())


def evaluate(
    contenders: Sequence[Contender],
    level: Level,
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    seed: int = 0,
) -> Agreements:
    """Correlate every contender with the human ratings, and compare the judges with each other."""
    notes: list[str] = []
    correlations: dict[str, dict[str, Correlation]] = {}
    for contender in contenders:
        for dimension, items in contender.items.items():
            if not usable(items)[0]:
                notes.append(f"{contender.name}, {dimension}: {_why_none(items)}")
                continue
            wanted = True if coefficient == "accuracy" else None
            result = correlate(items, level, target=target, accuracy=wanted)
            correlations.setdefault(contender.name, {})[dimension] = result
    comparisons: dict[str, Comparison] = {}
    agreements: dict[str, Agreement] = {}
    for first, second, dimension in _pairs(contenders):
        one, other = first.items[dimension], second.items[dimension]
        name = f"{dimension}: {first.name} / {second.name}"
        try:
            comparisons[name] = compare(one, other, level, coefficient, target=target, seed=seed)
            if {first.kind, second.kind} <= {"judge", "responses"}:
                agreements[name] = agree(one, other)
        except DataError as error:
            notes.append(f"{dimension}: {first.name} and {second.name} cannot be compared: {error.message}")
    baselines: dict[str, Comparison] = {}
    for judge in (one for one in contenders if one.kind in ("judge", "responses")):
        for dimension, items in judge.items.items():
            simple = {one.name: one.items.get(dimension) for one in contenders if one.kind == "baseline"} | {
                CHANCE: None
            }
            for other_name, others in simple.items():
                if others is None and other_name != CHANCE:
                    continue
                try:
                    test = compare(items, others, level, coefficient, target=target, seed=seed)
                    baselines[f"{dimension}: {judge.name} / {other_name}"] = test
                except DataError:
                    continue  # Nothing in common: what is missing has a note of its own.
    averages, tests = _averages(contenders, level, coefficient, target)
    return Agreements(
        tuple(contenders),
        correlations,
        averages,
        corrected(comparisons | tests),
        corrected(baselines),
        agreements,
        tuple(notes),
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
    rows = [("people, leave one out", interval(ceiling.people), "-", "-", "-")]
    rows += [
        (name, interval(one.agreement), interval(one.difference), p_value(one.p), p_value(one.p_holm))
        for name, one in ceiling.judges.items()
    ]
    notes = (
        f"{ceiling.raters} raters, {ceiling.n} items with two ratings or more, Krippendorff's alpha "
        f"{number(ceiling.alpha)} (interval data)",
        "each rater, or the judge in that rater's place, against the mean of the others; mean over raters",
        'p: two-sided, "no difference from people"; p (Holm): for all judges of this table',
    )
    headers = ("", f"{ceiling.level} {ceiling.coefficient}", "less people", "p", "p (Holm)")
    return Table(headers, tuple(rows), (*notes, *interval_warnings({"people": ceiling.people})))


def benchmark_table(
    own: Mapping[str, Mapping[str, Correlation]],
    published: PublishedTable,
    columns_of: Mapping[str, str] | None = None,
) -> Table:
    """Build a table of own rows above published ones, with the published table's coefficient and columns."""
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


#: Columns that are often the same in all rows.
FOLDED = ("n", "points")


@dataclass(frozen=True)
class MetaEvaluation(Study):
    """Scores against people, at one level."""

    #: The rows and the ratings.
    rated: Rated
    #: Dimension -> metric.
    metrics: Mapping[str, Metric]
    #: The figures.
    found: Agreements
    #: Where scores are correlated with ratings.
    level: Level
    #: What is compared.
    coefficient: str
    #: Statistics of parsed raw responses.
    parsed: Mapping[str, ParsedResponses]
    #: Missing results, with reasons.
    notes: Sequence[str]
    #: Agreement between people, if several rated.
    ceiling: Ceiling | None = None
    #: What is known of judges besides correlations.
    good_enough: GoodEnough = field(default_factory=GoodEnough)

    @property
    def benchmark(self) -> Benchmark | None:
        """The published benchmark that the rows are of."""
        return self.rated.benchmark if isinstance(self.rated, PublishedRatings) else None

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values."""
        found, benchmark = self.found, self.benchmark
        counts = ("responses", "unparseable", "out_of_scale", "counted")
        record = {
            "file": self.rated.path,
            "benchmark": self.rated.name if isinstance(self.rated, PublishedRatings) else None,
            "rows": len(self.rated.rows),
            "metrics": {dimension: metric.name for dimension, metric in self.metrics.items()},
            "coefficient": self.coefficient,
            "levels": [self.level],
            "grouping": self.rated.grouping,
            "contenders": {one.name: {"kind": one.kind, "dimensions": list(one.items)} for one in found.contenders},
            "correlations": {self.level: found.correlations},
            "averages": found.averages,
            "comparisons": found.comparisons,
            "baselines": found.baselines,
            "ceiling": self.ceiling,
            "good_enough": self.good_enough,
            "agreements": found.agreements,
            "responses": {
                name: {"rows": len(p.values), **{count: getattr(p, count) for count in counts}}
                for name, p in self.parsed.items()
            },
            "published_columns": None if benchmark is None else benchmark.published,
            "published": None if benchmark is None else published_table(benchmark.name),
            "notes": [*self.notes, *found.notes],
        }
        written: dict[str, Any] = as_record(record)
        return written

    def tables(self) -> list[Table]:
        """Give the paper's table, then the figures that it rests on."""
        figures, level, shown = self.found, self.level, []
        coefficients: Sequence[str] = COEFFICIENTS
        if self.benchmark is not None and self.benchmark.level == level:
            coefficients = self.benchmark.columns
            paper = published_table(self.benchmark.name)
            table = benchmark_table(figures.correlations, paper, self.benchmark.published)
            title = f"{paper.benchmark}: {paper.level}-level {paper.coefficient}, measured and published"
            shown.append(table.titled(title))
        rows = _by_dimension(figures.correlations)
        if rows:
            table = correlation_table(rows, coefficients)
            shown.append(table.titled(f"{level} level, with 95 % intervals", fold=FOLDED, sections=True))
        if figures.averages:
            table = average_table(figures.averages, f"average {level} {self.coefficient}")
            shown.append(table.titled("average over the dimensions"))
        shown += self.good_enough.tables()
        if self.ceiling is not None:
            shown.append(ceiling_table(self.ceiling).titled("the human ceiling"))
        if self.parsed:
            shown.append(response_table(self.parsed).titled("raw responses"))
        if figures.baselines:
            title = f"is the judge better than what is cheaper? ({self.coefficient})"
            shown.append(comparison_table(figures.baselines).titled(title, fold=FOLDED_TESTS, sections=True))
        if figures.comparisons:
            title = f"is the difference real? ({self.coefficient})"
            shown.append(comparison_table(figures.comparisons).titled(title, fold=FOLDED_TESTS, sections=True))
        if figures.agreements:
            table = agreement_table(figures.agreements)
            shown.append(table.titled("agreement with each other", fold=FOLDED, sections=True))
        return shown

    def remarks(self) -> list[tuple[str, bool]]:
        """Say how rows were grouped, what other levels there are, and what is missing."""
        others = [level for level in self.rated.levels if level != self.level]
        more = [(f"also at {' and '.join(others)} level: `level`", False)] if others else []
        return [
            (self.rated.grouping, False),
            *more,
            *((f"note: {text}", True) for text in (*self.notes, *self.found.notes)),
        ]


def _by_dimension(results: Mapping[str, Mapping[str, Correlation]]) -> dict[str, Correlation]:
    """Order rows by dimension, so that all contenders of a dimension are adjacent."""
    names = dict.fromkeys(dimension for own in results.values() for dimension in own)
    return {
        f"{dimension}: {contender}": own[dimension]
        for dimension in names
        for contender, own in results.items()
        if dimension in own
    }
