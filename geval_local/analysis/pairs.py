"""Systems ranked by comparisons of their outputs, side by side for several judges or ways to compare."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from geval_local.analysis.differences import pair_table
from geval_local.analysis.pair_study import (
    PairStudy,
    consistency_table,
    pair_agreement_table,
    rank_table,
    study_pairs,
)
from geval_local.analysis.preferences import (
    Preference,
    Ratings,
    holds_pairs,
    outputs_of,
    preferences_from_scores,
    read_preferences,
    with_people,
)
from geval_local.analysis.ratings.values import HumanFields, RatingScale, no_values, rating_fields
from geval_local.analysis.results import (
    Grouped,
    Reading,
    ResultsGiven,
    ScoredRun,
    check_named,
    check_sides,
    each_given,
    grouped,
    rated_items,
    read_rows,
)
from geval_local.analysis.tables import (
    FOLDED_TESTS,
    Columns,
    Study,
    Table,
    as_record,
    columns_of,
    comparison_table,
    correlation_table,
)
from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import SYSTEM_FIELDS, field_value
from geval_local.grouping import DocumentRule, Documents
from geval_local.io.results import ResultRows
from geval_local.runs.addresses import local_results
from geval_local.statistics.coefficients import Coefficient
from geval_local.statistics.correlation import Correlation, correlate
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.resampling import Target
from geval_local.statistics.significance import Comparison, compare_all, corrected

_WAY = "`group_by=COLUMN` names the document that outputs are for."
_OF_SYSTEM = "of the system (`system=COLUMN` names it) "


@dataclass(frozen=True)
class Source:
    """One way to compare."""

    name: str
    found: list[Preference]
    #: Outputs with their human ratings, if there are any.
    items: list[ScoredItem] = field(default_factory=list)

    @cached_property
    def study(self) -> PairStudy:
        """All figures of its comparisons."""
        return study_pairs(self.found, {(item.group, item.system): item.human for item in self.items})


def sources_of(
    results: ResultsGiven | Sequence[ResultsGiven],
    *,
    metric: str | None = None,
    human: HumanFields | None = None,
    prefers: Mapping[str, str] | None = None,
    **reading: Unpack[Reading],
) -> list[Source]:
    """Read runs as comparisons; a run of single scores gives two sources, its distributions and its scores."""
    ratings = None if reading.get("on") else reading.pop("ratings", None)
    if ratings is not None and human is None:
        raise ConfigurationError("`ratings` needs `human`: the field of it that holds the rating")
    runs = [(run := ScoredRun.of(one, **reading).readable(), _pair_metric(run, metric)) for one in each_given(results)]
    system = reading.get("system")
    names = [key.removesuffix("/pairs") if key else run.one_metric(metric) for run, key in runs]
    people: dict[tuple[str, str], float] = {}
    fields = list(rating_fields(human, names[:1]).values())
    of_pairs = fields[0] if fields and ratings is None and all(key for _, key in runs) else None
    for run, _ in runs if of_pairs is not None else ():
        if not any(field_value(row, str(of_pairs)) is not None for row in run.rows.inputs()):
            raise no_values(run.rows, str(of_pairs), run.path, "people's preference")
    for rating_field in fields if of_pairs is None else ():
        # Pairs say nothing about the rating scale of single outputs.
        scales = [run.rating_scale(run.one_metric(metric)) for run, key in runs if key is None]
        scales = scales or [RatingScale.of_people(runs[0][0].people, None)]
        given = [(run.rows, run.path, run.rule) for run, key in runs if key is None]
        if ratings is not None:  # what pairs record is a column of theirs
            rule = runs[0][0].rule
            rule = rule if runs[0][1] is None else replace(rule, used=None)
            rows = read_rows(local_results(str(ratings)))
            given = [(rows, Path(ratings), rule)]
        for (rows, path, rule), rated_on in zip(given, scales, strict=False):
            people |= _ratings(rows, path, rating_field, rule, system, rated_on)
    sources: list[Source] = []
    for run, key in runs:
        name = run.name if [other.name for other, _ in runs].count(run.name) == 1 else str(run.path)
        if key is not None:
            found = read_preferences(run, key, of_pairs, prefers)
            found = with_people(found, people) if people else found
            sources.append(Source(name, found, outputs_of(found, people) if people else []))
            continue
        own_metric = run.one_metric(metric)
        items = run.items(own_metric, documents=_documents(run.rows, run.path, run.rule))
        check_named([one.system or None for one in items], run.rows, SYSTEM_FIELDS[0], run.path, _OF_SYSTEM)
        definition = run.origin(own_metric).definition
        # Preferences are for the better output, ratings have the direction of the scores.
        prized = {output: definition.direction.sign * rating for output, rating in people.items()}
        rated = [  # with the keys of `outputs_of`
            replace(i, human=people.get((i.group, i.system), math.nan), key=f"{i.group}/{i.system}") for i in items
        ]
        for told, by_score in (("distributions", False), ("scores", True)):
            found = preferences_from_scores(rated, definition.scale, by_score=by_score, direction=definition.direction)
            if not found:
                raise DataError(f"{run.path}: no document has outputs of two systems", hint=_WAY)
            own = rated if by_score else outputs_of(found, prized)
            sources.append(Source(f"{name}, {told}", found, own if people else []))
    return sources


def _pair_metric(run: ScoredRun, metric: str | None) -> str | None:
    """Name the metric of a run that compares pairs; None for a run of single scores."""
    wanted = [name for name in (metric, f"{metric}/pairs") if name in run.metrics] if metric else run.metrics
    pairs = [name for name in wanted if holds_pairs(run.rows.first, name)]
    if len(pairs) > 1:
        raise ConfigurationError(
            f"{run.path} holds several metrics", hint=f"Name one with `metric`: {', '.join(pairs)}."
        )
    return pairs[0] if pairs else None


def _ratings(
    rows: ResultRows,
    path: Path,
    human: str,
    rule: DocumentRule,
    system: str | None,
    scale: RatingScale,
) -> Ratings:
    """Read people's ratings by document and system."""
    groups = _documents(rows, path, rule).names
    items = rated_items(rows, None, path, human=human, groups=groups, system=system, scale=scale)
    check_sides(items, human, path, is_of_pairs=True)
    check_named([one.system or None for one in items], rows, SYSTEM_FIELDS[0], path, _OF_SYSTEM)
    found: dict[tuple[str, str], float] = {}
    for item in items:
        key = (item.group, item.system)
        if key in found:
            raise DataError(f"{path}: the system {key[1]!r} has two outputs for the document {key[0]!r}", hint=_WAY)
        found[key] = item.human
    return found


def _documents(rows: ResultRows, path: Path, rule: DocumentRule) -> Grouped:
    """Name the documents, of which there may be one; outputs of the same document are compared."""
    used = None if rule.used is None else tuple(name for name in rule.used if name != rule.judged)
    collected = Documents.of(replace(rule, answer="", used=used), rows.known_inputs())
    if not collected.counts.is_about_items:
        raise DataError(f"{path}: nothing says which outputs are for the same document", hint=_WAY)
    return grouped(collected, rows, path, alone=True)


@dataclass(frozen=True)
class Preferences(Study):
    """Several ways to compare outputs, side by side, with their agreement with people."""

    #: The ways.
    sources: tuple[Source, ...]
    #: ``level: source`` -> its agreement with people's ratings.
    correlations: dict[str, Correlation]
    #: ``level: source less source`` -> the test of which agrees better.
    tests: dict[str, Comparison]
    #: Whether a table lists every pair of systems.
    every_pair: bool = False
    #: Coefficients in tables.
    coefficients: Sequence[str] = ("spearman",)

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values."""
        records = {one.name: one.study.to_dict() for one in self.sources}
        return {"sources": records, "against_people": as_record(self.correlations), "tests": as_record(self.tests)}

    def lines(self) -> list[str]:
        """List the sources from which nothing can be concluded, with reasons."""
        bad = {one.name: sum(pair.both_bad for pair in one.found) for one in self.sources}
        told = [
            f"{name}: people call both bad {count} times, which counts as a tie" for name, count in bad.items() if count
        ]
        return [f"{one.name}: {doubt}" for one in self.sources if (doubt := one.study.ranking.doubt)] + told

    def shown(self) -> Iterator[Table]:
        """Give ranks of every source, its consistency, and its agreement with people."""
        for source in self.sources:
            study = source.study
            if study.ranking.doubt:  # `lines` has the sentence
                continue
            if study.names:
                yield rank_table(study).titled(f"{source.name}: the systems")
            if self.every_pair:
                yield pair_table(study.ranking).titled(f"{source.name}: every pair of systems")
        figures = {source.name: source.study.consistency for source in self.sources}
        yield consistency_table(figures).titled("how far the judge agrees with itself")
        agreements = {one.name: own for one in self.sources if (own := one.study.agreement) is not None}
        if agreements:
            yield pair_agreement_table(agreements).titled("comparisons against people's")
        if self.correlations:
            title = "outputs against people's ratings: each by its mean preference in its document, or by its score"
            yield correlation_table(self.correlations, self.coefficients).titled(title, fold=("n",))
        if self.tests:
            yield comparison_table(self.tests).titled("which way agrees better with people?", fold=FOLDED_TESTS)


def rank(
    results: ResultsGiven | Sequence[ResultsGiven],
    *,
    metric: str | None = None,
    human: HumanFields | None = None,
    prefers: Mapping[str, str] | None = None,
    coefficient: Coefficient = "spearman",
    coefficients: Columns = "one",
    target: Target | None = None,
    every_pair: bool = False,
    **reading: Unpack[Reading],
) -> Preferences:
    """Rank systems by comparisons of their outputs; several results are ranked side by side.

    Parameters
    ----------
    results : path, RunResult, rows or data frame, or sequence of them
        Results of `pairs`, or of `score`: outputs of the latter are compared by their distributions and by their
        scores.
    metric : str, optional
        The metric, if the results have several.
    human : str, optional
        Field of the human rating. Without `ratings`, a field of pairs says which output people prefer; `ratings`
        without `on` are joined by document and system.
    prefers : mapping, optional
        What the values of that field mean: ``{"left": "a", "right": "b"}``, see `geval_local.io.pairs.sides_of`.
    coefficient, target
        Coefficient and target population of the agreement with people.
    coefficients : ``one`` or ``all``
        Whether tables show that coefficient or all.
    every_pair : bool
        Whether a table lists every two systems.
    **reading
        Fields of the document and of the system, and how scores are read: see `Reading`.

    Raises
    ------
    ConfigurationError, DataError
        If the results cannot be used, or name no systems or documents.
    """
    sources = sources_of(results, metric=metric, human=human, prefers=prefers, **reading)
    rated = [source for source in sources if any(math.isfinite(item.human) for item in source.items)]
    levels: tuple[Level, ...] = ("summary", "system")
    correlations: dict[str, Correlation] = {}
    tests: dict[str, Comparison] = {}
    for level in levels:
        correlations |= {f"{level}: {one.name}": correlate(one.items, level, target=target) for one in rated}
        couples = combinations(rated, 2)
        pairs = {f"{level}: {one.name} less {other.name}": (one.items, other.items) for one, other in couples}
        # Without common documents there is no test; the counts show that.
        tests |= compare_all(pairs, level, coefficient, target=target)[0]
    return Preferences(
        tuple(sources), correlations, corrected(tests), every_pair, columns_of(coefficients, coefficient)
    )


def rank_run(path: str | Path, metric: str) -> Preferences:
    """Study the results of one run of pairs on one of its metrics."""
    return Preferences((Source(metric, read_preferences(ScoredRun.of(path).readable(), metric)),), {}, {})
