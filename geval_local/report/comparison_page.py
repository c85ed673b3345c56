"""The page of two runs side by side: paired rows, unpaired rows, and columns that differ."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from geval_local.analysis.comparison import RunComparison, SystemComparison
from geval_local.analysis.ratings.values import read_ratings
from geval_local.analysis.results import ScoredRun, has_ids, row_keys
from geval_local.analysis.tables import agreement_table, comparison_table
from geval_local.conversation import named_turns
from geval_local.io.columns import as_text
from geval_local.io.results import ResultRows, numbered
from geval_local.io.rows import Row
from geval_local.report.headline import difference_answer, means_table, tab_title, unscored_once, written_on
from geval_local.report.overview import entries, facts, overview_table, signatures, summaries, texts
from geval_local.report.page import (
    TextColumns,
    check_estimator,
    check_target,
    metric_payload,
    named_columns,
    render,
    write_page,
)
from geval_local.report.run_page import RunPage


@dataclass(frozen=True)
class Pairing:
    """The paired items of two runs: by ``id`` if all rows of both have distinct ones, else by position."""

    runs: tuple[ScoredRun, ScoredRun]

    @cached_property
    def by_id(self) -> bool:
        """Whether items are paired by ``id``."""
        return all(has_ids(run.rows) for run in self.runs)

    @cached_property
    def places(self) -> dict[str, list[int | None]]:
        """Key of every item -> its place in each run, from 0; None where a run has none."""
        keys = [row_keys(run.rows) if self.by_id else map(str, range(1, len(run.rows) + 1)) for run in self.runs]
        left, right = ({key: place for place, key in enumerate(own)} for own in keys)
        return {key: [left.get(key), right.get(key)] for key in {**left, **right}}

    @cached_property
    def rows(self) -> list[list[Row]]:
        """The rows of every item: of both runs, or of the one that has it."""
        sides = [zip(self.runs, pair, strict=True) for pair in self.places.values()]
        return [[run.rows.columns_of(place) for run, place in pair if place is not None] for pair in sides]

    @cached_property
    def _pairs(self) -> list[list[Row]]:
        return [pair for pair in self.rows if len(pair) == 2]

    @property
    def both(self) -> int:
        """Number of items of both runs."""
        return len(self._pairs)

    @property
    def alone(self) -> list[int]:
        """Number of items of each run alone."""
        return [len(run.rows) - self.both for run in self.runs]

    @cached_property
    def differing(self) -> dict[str, int]:
        """Column -> number of items whose values differ."""
        return dict(
            Counter(name for pair in self._pairs for name in {**pair[0], **pair[1]} if _differs(pair[0], pair[1], name))
        )

    def columns(self) -> list[tuple[str, list[Any]]]:
        """Return the items' columns: the first run's values if it has any, and the second run's if they differ."""
        names = dict.fromkeys(name for pair in self.rows for row in pair for name in row)
        found: list[tuple[str, list[Any]]] = []
        for name in names:
            found.append((name, [next((row[name] for row in pair if name in row), None) for pair in self.rows]))
            if name in self.differing:
                others = [p[1].get(name) if len(p) == 2 and _differs(p[0], p[1], name) else None for p in self.rows]
                found.append((f"{name} (second run)", others))
        return found


def _differs(first: Row, second: Row, name: str) -> bool:
    one, other = first.get(name), second.get(name)
    # The same input as CSV and as JSONL differs only in types.
    return one is not other and one != other and as_text(one) != as_text(other)


def write_compared(study: RunComparison | SystemComparison, path: str | os.PathLike[str]) -> Path:
    """Write a result of `geval_local.analysis.compare` as one page: two runs, or the rows of all systems together."""
    runs = study.runs if isinstance(study, RunComparison) else study.together.runs
    check_estimator(runs[0].estimator)
    if isinstance(study, RunComparison):
        return _write_runs(study, check_target(path, *(run.path for run in runs)))
    rows = ResultRows.of(study.together.rows())
    read = runs[0].people.model_copy(update=dict.fromkeys(("ratings", "on", "rater_column")))  # in the rows by now
    page = RunPage(
        replace(runs[0], path=Path("results"), held=rows, described=runs[0].manifest, people=read, system="system"),
        title=" and ".join(run.name for run in runs),
        human=study.human,
        rule=study.together.rule,
        only=tuple(study.systems),
        rankings=study.systems,
        facts=facts(runs[0]) if len(runs) == 1 else {},
    )
    return page.write(path)


def _write_runs(study: RunComparison, target: Path) -> Path:
    """Write two runs side by side: differences in settings and texts, their agreement, and their items."""
    shared = tuple(study.metrics)
    first, second = study.runs
    names = (first.file, second.file)
    if first.file == second.file:
        names = (f"A: {first.file}", f"B: {second.file}")
    pairing = Pairing(study.runs)
    differing: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for metric, own in study.differ.items():
        for key, (one, other) in own.items():
            if key != "input":  # the pairing lists the columns that differ
                differing[key, one, other].append(metric)
    held = [run.metrics for run in study.runs]
    page = render(
        "compare.html.j2",
        _data(study, names, pairing),
        title=f"{names[0]} and {names[1]}",
        tab=tab_title(f"{names[0]} and {names[1]}", written_on(study.runs[0].source), metrics=shared),
        dates=[written_on(run.source) for run in study.runs],
        answer=difference_answer(study.answered),
        differences=means_table(study.answered) if study.answered else None,
        names=names,
        metrics=shared,
        signed=[signatures(run, shared) for run in study.runs],
        differing=differing,
        unsigned=[metric for metric in shared if not all(run.is_described(metric) for run in study.runs)],
        alone=[
            (name, [metric for metric in own if metric not in others])
            for name, own, others in zip(names, held, held[::-1], strict=True)
        ],
        pairing=pairing,
        agreement=agreement_table({metric: one.agreement for metric, one in study.answered.items()}),
        doubts=study.doubts(names),
        rated=dict.fromkeys(study.human[metric] for metric in shared if metric in study.human),
        against_people=comparison_table(study.against_human) if study.against_human else None,
        overviews=[
            (name, overview_table(found), unscored_once(found), [one for one in found if one.shortened])
            for name, run in zip(names, study.runs, strict=True)
            for found in [summaries(run, metrics=shared)]
        ],
        texts={
            name: one | {"signature": ""}  # the figures already have both runs' signatures
            for name, one in texts(first, shared).items()
            if one["prompt"] or one["steps"]
        },
        facts=[(name, entries(facts(run))) for name, run in zip(names, study.runs, strict=True)],
    )
    return write_page(target, page)


def _data(study: RunComparison, names: Sequence[str], pairing: Pairing) -> dict[str, Any]:
    """Lay out the items and their scores."""
    held, first, known = TextColumns(), study.runs[0], [pair[0] for pair in pairing.rows]
    columns = pairing.columns()
    for name, values in columns:
        held.add(name, values)
    sides = zip(*pairing.places.values(), strict=True)
    places = list(zip(study.runs, sides, strict=True))
    metrics = []
    for metric in study.metrics:
        field = study.human.get(metric)
        metrics.append(
            metric_payload(
                metric,
                [[None if place is None else run.score(metric, place) for place in side] for run, side in places],
                () if field is None else read_ratings(numbered(known), field, names[0], first.rating_scale(metric)),
                ends=first.ends(metric),
                rating=field,
            )
            | {"groups": [], "reasons": []}
        )
    return {
        "mode": "compare",
        "runs": [as_text(name) for name in names],
        "texts": held.texts,
        "columns": held.columns,
        **named_columns(held, [name for name, _ in columns], known, first.rule),
        "group": -1,
        "keys": [as_text(key) for key in named_turns(known, [*pairing.places])],
        "rows": [one.number for one in known],
        "metrics": metrics,
    }
