"""A whole meta-evaluation: compares all contenders that scored the rows with people and with each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from geval_local.analysis.contenders import Contender, ablations, from_responses, from_results, predictions
from geval_local.analysis.contenders import baselines as reference_metrics
from geval_local.analysis.differences import doubt_of
from geval_local.analysis.example_rows import examples_told
from geval_local.analysis.good_enough import GoodEnough
from geval_local.analysis.ratings.benchmarks import PublishedTable, published_table
from geval_local.analysis.ratings.rated import Rated
from geval_local.analysis.ratings.responses import ParsedResponses
from geval_local.analysis.results import level_of_rated
from geval_local.analysis.tables import (
    FOLDED_TESTS,
    Columns,
    Study,
    Table,
    agreement_table,
    as_record,
    columns_of,
    comparison_table,
    correlation_table,
    interval_warnings,
    number,
    p_value,
    said_of,
)
from geval_local.errors import ConfigurationError, DataError
from geval_local.score import Estimator
from geval_local.statistics.coefficients import ALL_COEFFICIENTS
from geval_local.statistics.correlation import (
    Agreement,
    Correlation,
    agree,
    average_interval,
    correlate,
    interval_at,
    known_target,
    krippendorff_alpha,
)
from geval_local.statistics.interval import Interval
from geval_local.statistics.levels import Level, draws_for, level_figures
from geval_local.statistics.records import ScoredItem, usable
from geval_local.statistics.resampling import FiguresWithErrors, Target, mean_of, minus
from geval_local.statistics.significance import Comparison, compare_all, corrected

#: Name of uninformative scores.
CHANCE = "chance"

#: Scores of one dimension.
Items = Sequence[ScoredItem]
#: Columns that are often the same in all rows.
FOLDED = ("n", "points")


@dataclass(frozen=True)
class JudgeBeside:
    """Agreement of a judge that takes the place of each rater."""

    #: Its coefficient with the mean of the other raters, averaged over the raters that it replaces.
    agreement: Interval
    #: That coefficient minus people's: below 0 if another person would agree better than the judge.
    difference: Interval
    #: Two-sided p-value of "no difference", a description of the test, and p adjusted for all judges.
    p: float
    why: str
    p_adjusted: float = math.nan
    #: Document -> its difference, if the total is their mean.
    by_document: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Ceiling:
    """Agreement of several raters."""

    #: Level and coefficient of the correlations.
    level: Level
    coefficient: str
    #: Number of raters, and of items with at least two ratings.
    raters: int
    n: int
    #: Krippendorff's alpha for interval data, and for ordinal data.
    alpha: float
    alpha_ordinal: float
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
    """Measure the agreement of raters with each other, and of judges in their place."""
    if len(ratings) < 2:
        raise ConfigurationError("a human ceiling needs at least two raters", hint="Name a field for each of them.")
    table = np.array([list(own) for own in ratings.values()], dtype=np.float64)
    if any(len(items) != table.shape[1] for items in judges.values()):
        raise DataError("ratings and scores are not of the same items")
    index = ALL_COEFFICIENTS.index(coefficient)
    several = np.isfinite(table).sum(axis=0) >= 2
    people: list[FiguresWithErrors] = []
    beside: dict[str, list[FiguresWithErrors]] = {name: [] for name in judges}
    # Only the items that all judges scored, so that no judge has easier ones.
    scored = np.all([[math.isfinite(item.predicted) for item in items] for items in judges.values()], axis=0)
    chosen = known_target(level, target)
    draws = draws_for(list(judges.values()), level, chosen)

    def figures(items: Sequence[ScoredItem]) -> FiguresWithErrors:
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
        people.append(figures([replace(item, predicted=float(own[i])) for i, item in zip(use, rated, strict=True)]))
    if not people:
        raise DataError("no item has ratings of two people and a score", hint="Check the fields of the raters.")
    ceiling = mean_of(people)
    found = {}
    for name, parts in beside.items():
        average = mean_of(parts)
        less = minus(average, ceiling)
        in_steps = level == "system" and coefficient != "pearson"
        own = less.interval(index, in_steps=in_steps), *less.p(index, in_steps=in_steps)
        agreed = interval_at(average, coefficient, chosen, level)
        found[name] = JudgeBeside(agreed, *own, by_document=less.by_document(index))
    return Ceiling(
        level,
        coefficient,
        len(table),
        int(several.sum()),
        krippendorff_alpha(table),
        krippendorff_alpha(table, ordinal=True),
        interval_at(ceiling, coefficient, chosen, level),
        corrected(found),
    )


def ceiling_table(ceiling: Ceiling) -> Table:
    """Build a table of people's agreement with each other, and of each judge's in place of one of them."""
    rows: list[Sequence[Any]] = [("people, leave one out", ceiling.people, "-", "-", "-")]
    rows += [
        (name, one.agreement, one.difference, p_value(one.p), p_value(one.p_adjusted))
        for name, one in ceiling.judges.items()
    ]
    notes = (
        f"{ceiling.raters} raters, {ceiling.n} items with two ratings or more, Krippendorff's alpha "
        f"{number(ceiling.alpha)} (interval data) and {number(ceiling.alpha_ordinal)} (ordinal data)",
        "each rater, or the judge in that rater's place, against the mean of the others; mean over raters",
        'p: two-sided, "no difference from people"; p (adjusted): for all judges of this table (Holm)',
    )
    headers = ("", f"{ceiling.level} {ceiling.coefficient}", "less people", "p", "p (adjusted)")
    return Table.of(headers, rows, (*notes, *interval_warnings({"people": ceiling.people})))


def benchmark_table(
    own: Mapping[str, Mapping[str, Correlation]],
    published: PublishedTable,
    columns_of: Mapping[str, str] | None = None,
) -> Table:
    """Build a table of our rows above published ones, with the published table's coefficient and columns."""
    columns = published.columns
    rows = []
    for name, results in own.items():
        values = {
            (columns_of or {}).get(key, key): getattr(result, published.coefficient).value
            for key, result in results.items()
        }
        dimensions = [values.get(column, math.nan) for column in columns if column != "average"]
        values["average"] = sum(dimensions) / len(dimensions)
        rows.append((name, *(values.get(column, math.nan) for column in columns), "measured"))
    for row in published.rows:
        rows.append((row.system, *(row.values.get(column, math.nan) for column in columns), "published"))
    notes = (f"{published.level}-level {published.coefficient}", f"published: {published.citation}. {published.note}")
    return Table.of(("", *columns, "origin"), rows, notes)


def response_table(parsed: Mapping[str, ParsedResponses]) -> Table:
    """Build a table of parsed raw responses, one row per dimension."""
    rows = [(name, len(p.values), p.responses, p.unparseable, p.out_of_scale, p.counted) for name, p in parsed.items()]
    return Table.of(("", "rows", "responses", "unparseable", "out of scale", "counted"), rows)


@dataclass(frozen=True)
class MetaEvaluation(Study):
    """Agreement of scores with people, and with each other, at one level."""

    #: The rows, their ratings and metrics.
    rated: Rated
    #: Level of the correlations, and the compared coefficient.
    level: Level
    coefficient: str
    #: Contenders, in the order given.
    contenders: Sequence[Contender]
    #: Contender -> dimension -> correlation.
    correlations: Mapping[str, Mapping[str, Correlation]]
    #: Contender -> mean of the coefficient over the dimensions, if it has all of several.
    averages: Mapping[str, Interval]
    #: ``dimension: first / second`` -> the test of their difference, on the documents that both keep;
    #: ``average: first / second`` -> that of their averages. Holm's correction is over all of them.
    comparisons: Mapping[str, Comparison]
    #: ``dimension: judge / other`` -> the test of a judge against a baseline or chance, with a correction of their own.
    baselines: Mapping[str, Comparison]
    #: ``dimension: first / second`` -> their agreement with each other.
    agreements: Mapping[str, Agreement]
    #: Statistics of parsed raw responses.
    parsed: Mapping[str, ParsedResponses]
    #: Missing results, with reasons.
    notes: Sequence[str]
    #: Agreement between people, if several rated.
    ceiling: Ceiling | None = None
    #: Figures of judges besides correlations.
    good_enough: GoodEnough = field(default_factory=GoodEnough)
    #: Coefficients in tables.
    columns: Columns = "one"

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values."""
        benchmark = self.rated.benchmark
        counts = ("responses", "unparseable", "out_of_scale", "counted")
        record = {
            "file": self.rated.path,
            "benchmark": self.rated.name,
            "rows": len(self.rated.rows),
            "metrics": {dimension: metric.name for dimension, metric in self.rated.metrics.items()},
            "coefficient": self.coefficient,
            "levels": [self.level],
            "grouping": self.rated.documents.told,
            "contenders": {one.name: {"kind": one.kind, "dimensions": list(one.items)} for one in self.contenders},
            "correlations": {self.level: self.correlations},
            "averages": self.averages,
            "comparisons": self.comparisons,
            "baselines": self.baselines,
            "ceiling": self.ceiling,
            "good_enough": self.good_enough,
            "agreements": self.agreements,
            "responses": {
                name: {"rows": len(p.values), **{count: getattr(p, count) for count in counts}}
                for name, p in self.parsed.items()
            },
            "published_columns": None if benchmark is None else benchmark.published,
            "published": None if benchmark is None else published_table(benchmark.name),
            "notes": self.notes,
        }
        return dict(as_record(record))

    def shown(self) -> Iterator[Table]:
        """Give the paper's table, then the figures behind it."""
        benchmark, level = self.rated.benchmark, self.level
        coefficients = columns_of(self.columns, self.coefficient)
        if benchmark is not None and benchmark.level == level:
            coefficients = (*benchmark.columns, *coefficients)
            paper = published_table(benchmark.name)
            title = f"{paper.benchmark}: {paper.level}-level {paper.coefficient}, measured and published"
            yield benchmark_table(self.correlations, paper, benchmark.published).titled(title)
        known = self.correlations.items()
        rows = {f"{d}: {name}": own[d] for d in _dimensions(self.contenders) for name, own in known if d in own}
        if rows:
            title = f"{level} level, with 95 % intervals"
            yield correlation_table(rows, coefficients).titled(title, fold=FOLDED, sections=True)
        if self.averages:
            headers, notes = ("", f"average {level} {self.coefficient}"), interval_warnings(self.averages)
            yield Table.of(headers, self.averages.items(), notes).titled("average over the dimensions")
        yield from self.good_enough.tables()
        if self.ceiling is not None:
            yield ceiling_table(self.ceiling).titled("the human ceiling")
        if self.parsed:
            yield response_table(self.parsed).titled("raw responses")
        asked = {
            "is the judge better than what is cheaper?": self.baselines,
            "is the difference real?": self.comparisons,
        }
        for question, tests in asked.items():
            if tests:
                title = f"{question} ({self.coefficient})"
                yield comparison_table(tests).titled(title, fold=FOLDED_TESTS, sections=True)
        if self.agreements:
            yield agreement_table(self.agreements).titled("agreement with each other", fold=FOLDED, sections=True)

    def remarks(self) -> list[tuple[str, bool]]:
        """Say how rows were grouped, which other levels exist, and what is missing."""
        others = [level for level in self.rated.levels if level != self.level]
        more = [(f"also at {' and '.join(others)} level: `level`", False)] if others else []
        return [(self.rated.documents.told, False), *more, *((f"note: {text}", True) for text in self.notes)]


def meta_evaluate(
    rows: Rated,
    results: Sequence[str | Path] = (),
    *,
    judged: Callable[[Sequence[str]], Sequence[Contender]] | None = None,
    responses: Sequence[str] = (),
    estimators: Sequence[Estimator] = (),
    baselines: bool = True,
    level: Level | None = None,
    coefficient: str | None = None,
    target: Target | None = None,
    coefficients: Columns = "one",
    seed: int = 0,
) -> MetaEvaluation:
    """Compare scores with people, and with each other.

    Parameters
    ----------
    rows : Rated
        The rated rows, see `read_rated`.
    results : sequence of path
        Results of `score` over these rows, or run directories, besides those that `rows` was read with.
    judged : callable, optional
        Scores the rows with judges. It is called with the names already in use, after everything else was read and
        checked.
    responses : sequence of str
        G-Eval's raw responses, or UniEval's predictions: ``[DIMENSION=]FILE``; for a benchmark.
    estimators : sequence of Estimator
        Other estimators, applied to the distributions of `results`; each gets a row of its own.
    baselines : bool
        Whether to add length, ROUGE, BLEU and chrF as baselines.
    level, coefficient, target
        The level that is compared first, the coefficient, and the population to which intervals generalise.
    coefficients : ``one`` or ``all``
        Whether tables show the compared coefficient or all; the record always has all.
    seed : int
        Seed of the permutations.

    Raises
    ------
    ConfigurationError, DataError
        If results belong to other rows, or the rows have no such level.
    """
    if level is not None and level not in rows.levels:
        raise ConfigurationError(
            f"these rows have no {level} level", hint=f"They have: {', '.join(rows.levels)}; see `group_by`, `system`."
        )
    found, parsed, notes = _contenders(rows, results, judged, responses, estimators, baselines)
    if level is None:
        scored = [one for one in found if one.kind in ("judge", "responses")] or found
        level = level_of_rated(rows.levels[0], (items for one in scored for items in one.items.values()))
        if level != rows.levels[0]:
            notes.append(f"no document has two rows with a score and a rating, so this is the {level} level")
    coefficient = coefficient or rows.coefficient
    correlations = _correlations(found, level, coefficient, target, notes)
    couples = {
        f"{dimension}: {first.name} / {second.name}": (first, second, dimension)
        for dimension in _dimensions(found)
        for first, second in _couples(found)
        if dimension in first.items and dimension in second.items
    }
    pairs = {name: (one.items[d], other.items[d]) for name, (one, other, d) in couples.items()}
    comparisons, failed = compare_all(pairs, level, coefficient, target=target, seed=seed)
    notes += [f"cannot be compared, since {why}: {', '.join(own)}" for why, own in said_of(failed.items()).items()]
    agreements = {
        name: agree(one.items[dimension], other.items[dimension])
        for name, (one, other, dimension) in couples.items()
        if name in comparisons and {one.kind, other.kind} <= {"judge", "responses"}
    }
    averages, tests = _averages(found, level, coefficient, target)
    judges = {f"{d}: {one.name}": items for one in found if one.kind == "judge" for d, items in one.items.items()}
    scales = {d: (rows.rating_scale(d), metric.scale) for d, metric in rows.metrics.items()}
    elsewhere = [d for d, (people, own) in scales.items() if (people.low, people.high) != (own.low, own.high)]
    notes += [f"{d}: people rated on another scale than the judge, so that no label is compared" for d in elsewhere]
    ceiling, ratings = None, None
    if rows.raters:
        people = rows.ratings()
        ratings = np.array(list(people.values()))
        named = {one.name: own for one in found if one.kind == "judge" for own in one.items.values() if len(own) > 1}
        ceiling = human_ceiling(people, named, level, coefficient, target=target)
    return MetaEvaluation(
        rows,
        level,
        coefficient,
        found,
        correlations,
        averages,
        corrected(comparisons | tests),
        # A test fails if the contenders share nothing; a note already says what is missing.
        corrected(compare_all(_simple(found), level, coefficient, target=target, seed=seed)[0]),
        agreements,
        parsed,
        notes,
        ceiling,
        GoodEnough.of(judges, ratings, elsewhere),
        coefficients,
    )


def _contenders(
    rows: Rated,
    results: Sequence[str | Path],
    judged: Callable[[Sequence[str]], Sequence[Contender]] | None,
    responses: Sequence[str],
    estimators: Sequence[Estimator],
    baselines: bool,
) -> tuple[list[Contender], dict[str, ParsedResponses], list[str]]:
    """Read everything that is compared with people, what was parsed of responses, and notes about it."""
    others, parsed = from_responses(rows, responses) if responses else ([], {})
    found: list[Contender] = []
    for path in dict.fromkeys([*rows.results, *map(Path, results)]):
        for run in from_results(rows, path, [one.name for one in found]):
            found += [run, *ablations(run, rows.metrics, estimators)]
    if judged is not None:
        found += judged([one.name for one in found if one.kind == "judge"])
    found += [*others, *predictions(rows)]
    reference, notes = reference_metrics(rows) if baselines else ([], [])
    found += reference
    notes += [
        f"{one.name}, {dimension}: {told}"
        for one in found
        if one.kind == "judge"
        for dimension, items in one.items.items()
        if (told := doubt_of(items))
    ]
    notes += _one_score(found)
    for dimension in _dimensions(found):
        left_out = (examples_told(dimension, one.items[dimension]) for one in found if dimension in one.items)
        notes += next(filter(None, left_out), [])
    return found, parsed, notes


def _one_score(contenders: Sequence[Contender]) -> Iterator[str]:
    """Name the judges that give all rows the same score."""
    for one in contenders:
        for dimension, items in one.items.items() if one.kind in ("judge", "responses") else ():
            scores = [item.predicted for item in usable(items)[0]]
            if len(scores) > 1 and max(scores) - min(scores) <= 1e-9:
                yield (
                    f"{one.name}, {dimension}: all {len(scores)} rated rows have the same score, {scores[0]:.3f}, so "
                    "nothing correlates with it"
                )


def _dimensions(contenders: Sequence[Contender]) -> list[str]:
    return list(dict.fromkeys(dimension for contender in contenders for dimension in contender.items))


def _correlations(
    contenders: Sequence[Contender], level: Level, coefficient: str, target: Target | None, notes: list[str]
) -> dict[str, dict[str, Correlation]]:
    """Correlate every contender with the human ratings; if that is impossible, a note says why."""
    found: dict[str, dict[str, Correlation]] = {}
    for contender in contenders:
        for dimension, items in contender.items.items():
            kept, reasons = usable(items)
            if kept:
                wanted = True if coefficient == "accuracy" else None
                result = correlate(items, level, target=target, accuracy=wanted)
                found.setdefault(contender.name, {})[dimension] = result
            else:
                why = ", ".join(f"{count} x {reason}" for reason, count in reasons.items()) or "empty"
                notes.append(f"{contender.name}, {dimension}: nothing to correlate: {why}")
    return found


def _couples(contenders: Sequence[Contender]) -> list[tuple[Contender, Contender]]:
    """Pair judges, responses and predictions with each other; an ablation only with its judge."""
    couples = []
    for first, second in combinations([one for one in contenders if one.kind != "baseline"], 2):
        parents = [one.parent for one in (first, second) if one.kind == "ablation"]
        if not parents or (len(parents) == 1 and parents[0] in (first.name, second.name)):
            couples.append((first, second))
    return couples


def _simple(contenders: Sequence[Contender]) -> dict[str, tuple[Items, Items | None]]:
    """Pair every judge with cheaper scores: reference metrics, length, and uninformative scores."""
    return {
        f"{dimension}: {judge.name} / {other}": (items, others)
        for judge in contenders
        if judge.kind in ("judge", "responses")
        for dimension, items in judge.items.items()
        for other, others in [
            *((one.name, one.items.get(dimension)) for one in contenders if one.kind == "baseline"),
            (CHANCE, None),
        ]
        if others is not None or other == CHANCE
    }


def _averages(
    contenders: Sequence[Contender], level: Level, coefficient: str, target: Target | None
) -> tuple[dict[str, Interval], dict[str, Comparison]]:
    """Compute means over all dimensions, for contenders with several and all, and test their differences."""
    dimensions = _dimensions(contenders)
    whole = [one for one in contenders if len(dimensions) > 1 and set(one.items) == set(dimensions)]
    items = {one.name: [one.items[dimension] for dimension in dimensions] for one in whole}
    found = {
        name: average_interval(own, level, coefficient, target=target)
        for name, own in items.items()
        if all(usable(one)[0] for one in own)
    }
    couples = [(one.name, other.name) for one, other in _couples(whole)]
    pairs = {f"average: {one} / {other}": (items[one], items[other]) for one, other in couples}
    # A dimension that cannot be compared has its own note.
    return found, compare_all(pairs, level, coefficient, target=target)[0]
