"""The page of one run: its scores, and next to them what people say."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from geval_local.analysis.differences import Ranking
from geval_local.analysis.ratings.values import HumanFields, rating_fields
from geval_local.analysis.results import (
    Grouped,
    ResultsGiven,
    ScoredRun,
    estimate_name,
    estimated_items,
    grouped,
    has_ids,
    row_keys,
    writers,
)
from geval_local.analysis.tables import FOLDED_TESTS, Table, comparison_table, correlation_table, folded
from geval_local.conversation import named_turns
from geval_local.grouping import DocumentRule, Documents
from geval_local.io.columns import as_text
from geval_local.io.input_files import FILE
from geval_local.io.results import input_number
from geval_local.io.samples import INPUT_ROW
from geval_local.report.headline import answer, matrix, tab_title, unscored_once, written_on
from geval_local.report.overview import entries, judge_of, overview_table, slice_tables, summaries, texts
from geval_local.report.page import TextColumns, check_target, metric_payload, named_columns, render, write_page
from geval_local.report.sections import pair_section, system_section
from geval_local.report.written_reasons import WrittenReason, check_reasons, reason_notes
from geval_local.score import Estimator
from geval_local.statistics.correlation import Correlation, correlate
from geval_local.statistics.levels import Level, level_figures
from geval_local.statistics.records import ScoredItem, usable
from geval_local.statistics.significance import compare_all, corrected
from geval_local.summary import Summary

#: Rows that a page holds unless it is told otherwise.
MOST_ROWS = 20_000
#: Groups that the page lists by name; the histogram has all of them.
GROUPS_LISTED = 200


@dataclass(frozen=True)
class People:
    """Agreement with human ratings on one metric."""

    metric: str
    field: str
    index: int
    ratings: tuple[float, ...]
    levels: Mapping[str, Correlation]
    table: Table | None
    groups: tuple[GroupCorrelation, ...]
    listed: int = GROUPS_LISTED


@dataclass(frozen=True)
class RunPage:
    """The page of one run, with all of its metrics or some `only`: a self-contained HTML file."""

    results: ResultsGiven
    human: HumanFields | None = None
    #: What decides which rows are one document, if it is not what the results say.
    rule: DocumentRule | None = None
    #: Metric -> how its systems compare, where that is known already.
    rankings: Mapping[str, Ranking] = field(default_factory=dict)
    only: Sequence[str] = ()
    #: Others than that of the scores, which are tested against it.
    estimators: Sequence[Estimator] = ()
    reasons: Sequence[WrittenReason] = ()
    title: str | None = None
    #: Most rows that charts and list hold; tables are of all.
    rows: int = MOST_ROWS
    #: The page that leads here.
    up: str = ""
    #: Columns whose slices have a table of their own.
    by: Sequence[str] = ()
    #: Rows of failed gates.
    gates: Sequence[Table] = ()
    #: What is known of the run as a whole: name -> value.
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def run(self) -> ScoredRun:
        """The run's rows."""
        return ScoredRun.of(self.results)

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics of the page."""
        return [metric for metric in self.run.metrics if not self.only or metric in self.only]

    @cached_property
    def ratings(self) -> dict[str, str]:
        """Metric -> field of its human ratings."""
        return rating_fields(self.human, self.metrics)

    @cached_property
    def documents(self) -> Documents:
        """The documents of the rows."""
        return self.run.collected if self.rule is None else Documents.of(self.rule, self.run.rows.known_inputs())

    @cached_property
    def groups(self) -> Grouped:
        """The document of every row."""
        return grouped(self.documents, self.run.rows, self.run.path)

    @cached_property
    def keys(self) -> list[str]:
        """Names of the rows."""
        rows = self.run.rows
        names = row_keys(rows)
        if FILE in rows.names and not has_ids(rows):
            of_files = zip(rows.column(FILE), rows.column(INPUT_ROW), rows.numbers, strict=True)
            placed = [f"{file}, row {input_number(held, number)}" for file, held, number in of_files]
            names = placed if len({*placed}) == len(placed) else names
        return named_turns(rows.inputs(), names)

    @cached_property
    def items(self) -> dict[str, list[ScoredItem]]:
        """Metric -> its scores, with ratings, documents and systems, where the page compares them with anything."""
        run = self.run
        has_systems = run.system is not None or len({*writers(run.rows, run.path)} - {""}) > 1
        return {
            metric: run.items(metric, human=self.ratings, documents=self.groups, partly=True)
            for metric in self.metrics
            if has_systems or metric in self.ratings
        }

    @cached_property
    def people(self) -> dict[str, People]:
        """Metric -> its agreement with people, where they rated it."""
        found = {}
        for metric, items in self.items.items():
            if metric in self.ratings:
                levels = agreement(items)
                found[metric] = People(
                    metric,
                    self.ratings[metric],
                    self.metrics.index(metric),
                    tuple(item.human for item in items),
                    levels,
                    folded(correlation_table(levels), ("n",)) if levels else None,
                    tuple(group_correlations(items)) if self.groups.names is not None else (),
                )
        return found

    @cached_property
    def ablation(self) -> Table | None:
        """Other estimators on the run's distributions: the part of the paper's ablation that needs no judge.

        It tests every estimator against the scores on the documents that both keep, as `meta-eval --ablations` does.
        None without ratings, or without a manifest that gives the scales.
        """
        pairs = {}
        for name in self.metrics if self.estimators else ():
            if name not in self.ratings or not self.run.is_described(name):
                continue
            items, _ = usable(self.items[name])
            scale = self.run.origin(name).definition.scale
            for one in self.estimators:
                pairs[f"{name}: score / {estimate_name('score', one)}"] = items, estimated_items(items, scale, one)
        tests, _ = compare_all(pairs, self.groups.level)
        return folded(comparison_table(corrected(tests)), FOLDED_TESTS) if tests else None

    @cached_property
    def summaries(self) -> list[Summary]:
        """The figures of every metric."""
        return summaries(self.run, metrics=self.metrics, documents=self.documents, by=self.by)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page."""
        run = self.run
        target = check_target(path, run.source)
        check_reasons(self.reasons, run)
        people = list(self.people.values())
        pairs = [one for metric in self.metrics if (one := pair_section(run, metric)) is not None]
        compared = [
            system_section(
                metric,
                own,
                self.rankings.get(metric),
                named=run.system is not None,
                human=self.ratings.get(metric),
                direction=run.direction(metric),
                smallest=run.rounding(metric),
            )
            for metric, own in self.items.items()
        ]
        chosen = self._chosen()
        title, date, judge = self.title or run.file, written_on(run.source), judge_of(run, self.metrics)
        systems = [one for one in compared if one is not None]
        page = render(
            "report.html.j2",
            self._data(chosen),
            title=title,
            tab=tab_title(title, judge, date, metrics=self.metrics),
            date=date,
            answer=answer(
                self.summaries,
                {ends for metric in self.metrics if (ends := run.ends(metric)) is not None},
                {one["metric"]: one["ranking"] for one in systems if "ranking" in one},
            ),
            matrix=matrix(self.summaries),
            file=run.file,
            count=len(run.rows),
            shown=len(chosen),
            judge=judge,
            overview=overview_table(self.summaries),
            unscored=unscored_once(self.summaries),
            shortened=[one for one in self.summaries if one.shortened],
            slices=[*self.gates, *slice_tables(self.summaries)],
            people=people,
            systems=systems,
            pairs=pairs,
            reasons=reason_notes(self.reasons),
            up=self.up,
            ablation=self.ablation,
            texts=texts(run, self.metrics),
            facts=entries(self.facts),
        )
        return write_page(target, page)

    def _chosen(self) -> Sequence[int]:
        """Choose the rows that the page holds, from 0, in order: at equal distances, and those with a reason."""
        count = len(self.run.rows)
        if count <= self.rows:
            return range(count)
        explained = {reason.row for reason in self.reasons}
        with_reason = {place for place, number in enumerate(self.run.rows.numbers) if number in explained}
        return sorted(with_reason | {place * count // self.rows for place in range(self.rows)})

    def _data(self, chosen: Sequence[int]) -> dict[str, Any]:
        """Lay out the page's rows, the `chosen` ones of the run."""
        rows = [*map(self.run.rows.columns_of, chosen)]
        held, groups = TextColumns(), self.groups.names
        names = list(dict.fromkeys(name for row in rows for name in row))
        for name in names:
            held.add(name, [row.get(name) for row in rows])
        document = None if groups is None else " and ".join(self.documents.counts.columns)
        if groups is not None and document is not None and document not in names:  # a path, or several columns
            held.add(document, [groups[place] for place in chosen])
            names.append(document)
        found = named_columns(held, names, rows, self.rule or self.run.rule)
        if {"system_a", "system_b"} <= set(names) and found["system"] < 0:  # a run of pairs
            sides = [[row.get(name) for name in ("system_a", "system_b")] for row in rows]
            found["system"] = len(names)
            held.add("pair", [None if None in both else " / ".join(map(as_text, both)) for both in sides])
        place = {row.number: index for index, row in enumerate(rows)}
        metrics = []
        for metric in self.metrics:
            people = self.people.get(metric)
            scores = [self.run.score(metric, one) for one in chosen]
            payload = metric_payload(
                metric,
                [scores],
                () if people is None else [people.ratings[one] for one in chosen],
                ends=self.run.ends(metric),
                rating=None if people is None else people.field,
            )
            within = [] if people is None else [group.spearman for group in people.groups]
            payload["groups"] = [round(spearman, 6) for spearman in within if spearman == spearman]
            kept = [
                [index, list(map(as_text, drawn.texts))]
                for index, score in enumerate(scores)
                if (drawn := score.thoughts) is not None and drawn.texts
            ]
            payload |= {"thoughts": kept} if kept else {}
            payload["reasons"] = [[place[one.row], one.shown] for one in self.reasons if one.metric == metric]
            metrics.append(payload)
        return {
            "mode": "report",
            "runs": [as_text(self.run.file)],
            "texts": held.texts,
            "columns": held.columns,
            **found,
            "group": -1 if document is None else names.index(document),
            "keys": [as_text(self.keys[one]) for one in chosen],
            "rows": [row.number for row in rows],
            "metrics": metrics,
        }


# --- scores beside human ratings --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupCorrelation:
    """Agreement within one group."""

    group: str
    n: int
    pearson: float
    spearman: float
    kendall: float


def agreement(items: Sequence[ScoredItem]) -> dict[str, Correlation]:
    """Correlate at every level that the items allow: summary needs groups of several items, system needs systems."""
    kept, _ = usable(items)
    if not kept:
        return {}
    levels: list[Level] = ["pooled"]
    if len({item.group for item in kept}) < len(kept):
        levels.insert(0, "summary")
    systems = {item.system for item in kept}
    if "" not in systems and len(systems) > 2:
        levels.append("system")
    return {level: correlate(items, level) for level in levels}


def group_correlations(items: Sequence[ScoredItem]) -> list[GroupCorrelation]:
    """Correlate within every group that has at least two usable items, lowest Spearman first, undefined ones last."""
    kept = usable(items)[0]
    if not kept:
        return []
    known = level_figures(kept, "summary", accuracy=False).figures.parts
    sizes = Counter(item.group for item in kept)
    own = {group: known[group][:3].tolist() if group in known else [math.nan] * 3 for group in sizes}
    found = [GroupCorrelation(group, count, *own[group]) for group, count in sizes.items() if count > 1]
    return sorted(found, key=lambda group: (math.isnan(group.spearman), group.spearman))
