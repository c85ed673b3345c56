"""The page of two runs side by side: paired rows, unpaired rows, and columns that differ."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from geval_local.analysis.comparison import RunComparison, SystemComparison
from geval_local.analysis.ratings.values import RatingScale, read_ratings
from geval_local.analysis.results import ScoredRun, row_keys
from geval_local.analysis.tables import agreement_table, comparison_table
from geval_local.errors import ConfigurationError
from geval_local.grouping import DocumentRule
from geval_local.io.columns import as_text
from geval_local.io.results import Record
from geval_local.report.headline import difference_answer, means_table, tab_title, unscored_once, written_on
from geval_local.report.overview import Described, describe, overview_table, summaries
from geval_local.report.page import TextColumns, check_target, metric_payload, named_columns, render, write_page
from geval_local.report.run_page import RunPage


@dataclass(frozen=True)
class Pairing:
    """The paired items of two runs."""

    by_id: bool
    keys: tuple[str, ...]
    records: tuple[tuple[Record | None, Record | None], ...]
    both: int
    only_first: int
    only_second: int
    differing: dict[str, int]

    def columns(self) -> list[tuple[str, list[Any]]]:
        """Return the items' columns: the first run's values if it has any, and the second run's if they differ."""
        present = [[record for record in pair if record is not None] for pair in self.records]
        names = dict.fromkeys(name for pair in present for record in pair for name in record.columns)
        found: list[tuple[str, list[Any]]] = []
        for name in names:
            values = [next((r.columns[name] for r in pair if name in r.columns), None) for pair in present]
            found.append((name, values))
            if name in self.differing:
                others = [
                    pair[1].columns.get(name) if len(pair) == 2 and _differs(pair, name) else None for pair in present
                ]
                found.append((f"{name} (second run)", others))
        return found


def pair_runs(first: ScoredRun, second: ScoredRun) -> Pairing:
    """Pair the items by ``id`` if all rows of both runs have distinct ones, else by position."""
    by_id = None not in (first.ids, second.ids)
    left, right = (
        dict(zip(row_keys(run.rows), run.records, strict=True))
        if by_id
        else {str(place): record for place, record in enumerate(run.records, start=1)}
        for run in (first, second)
    )
    every = tuple(dict.fromkeys([*left, *right]))
    records = tuple((left.get(key), right.get(key)) for key in every)
    pairs = [[record for record in pair if record is not None] for pair in records]
    differing = Counter(
        name
        for pair in pairs
        if len(pair) == 2
        for name in {**pair[0].columns, **pair[1].columns}
        if _differs(pair, name)
    )
    both = sum(len(pair) == 2 for pair in pairs)
    return Pairing(by_id, every, records, both, len(left) - both, len(right) - both, dict(differing))


def _differs(pair: Sequence[Record], name: str) -> bool:
    one, other = (record.columns.get(name) for record in pair)
    # The same input as CSV and as JSONL differs only in types.
    return one is not other and one != other and as_text(one) != as_text(other)


def write_compared(study: RunComparison | SystemComparison, path: str | os.PathLike[str]) -> Path:
    """Write a result of `geval_local.analysis.compare` as one page: two runs, or the rows of all systems together."""
    runs = study.runs if isinstance(study, RunComparison) else study.together.runs
    if runs[0].estimator is not None:
        raise ConfigurationError("`page` shows the scores as they were written, so it does not go with `estimator`")
    if isinstance(study, RunComparison):
        return _write_runs(study, check_target(path, *(run.path for run in runs)))
    told = describe(runs[0])
    metrics = {name: one for name, one in told.metrics.items() if name in study.systems}
    page = RunPage(
        ScoredRun.of(study.together.rows(), fields=runs[0].mapping),
        Described(metrics, told.facts if len(runs) == 1 else {}),
        title=" and ".join(run.name for run in runs),
        human=study.human,
        rule=study.together.rule,
        system="system",
        only=tuple(study.systems),
        scales={metric: runs[0].rating_scale(metric) for metric in study.human},
        rankings=study.systems,
    )
    return page.write(path)


def _write_runs(study: RunComparison, target: Path) -> Path:
    """Write two runs side by side: differences in settings and texts, their agreement, and their items."""
    shared = tuple(study.metrics)
    first, second = study.runs
    names = (first.file, second.file)
    if first.file == second.file:
        names = (f"A: {first.file}", f"B: {second.file}")
    pairing = pair_runs(first, second)
    described = [describe(run) for run in study.runs]
    differing: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for metric, own in study.differ.items():
        for key, (one, other) in own.items():
            if key != "input":  # the pairing lists the columns that differ
                differing[key, one, other].append(metric)
    held = [run.metrics for run in study.runs]
    page = render(
        "compare.html.j2",
        _data(
            names,
            pairing,
            shared,
            study.human,
            {metric: study.runs[0].rating_scale(metric) for metric in study.human},
            described[0],
            study.runs[0].rule,
        ),
        title=f"{names[0]} and {names[1]}",
        tab=tab_title(f"{names[0]} and {names[1]}", written_on(study.runs[0].given), metrics=shared),
        dates=[written_on(run.given) for run in study.runs],
        answer=difference_answer(study.answered),
        differences=means_table(study.answered) if study.answered else None,
        names=names,
        metrics=shared,
        signed=[{name: text for name, text in told.signatures.items() if name in shared} for told in described],
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
            for name, run, own in zip(names, study.runs, described, strict=True)
            for found in [summaries(run, own, metrics=shared)]
        ],
        texts={
            name: replace(one, signature="")  # the figures already have both runs' signatures
            for name, one in described[0].texts(shared).items()
            if one.prompt or one.steps
        },
        facts=[(name, one.entries) for name, one in zip(names, described, strict=True)],
    )
    return write_page(target, page)


def _data(
    names: Sequence[str],
    pairing: Pairing,
    shared: Sequence[str],
    human: Mapping[str, str],
    scales: Mapping[str, RatingScale],
    described: Described,
    rule: DocumentRule,
) -> dict[str, Any]:
    texts = TextColumns()
    columns = pairing.columns()
    for name, values in columns:
        texts.add(name, values)
    known = [next(record for record in pair if record is not None) for pair in pairing.records]
    metrics = []
    for metric in shared:
        field = human.get(metric)
        runs = [
            [None if record is None else record.scores[metric] for record in side]
            for side in zip(*pairing.records, strict=True)
        ]
        metrics.append(
            metric_payload(
                metric,
                runs,
                ()
                if field is None
                else read_ratings(((one.number, one.columns) for one in known), field, names[0], scales[metric]),
                spec=described.metrics[metric].scale if metric in described.metrics else None,
                rating=field,
            )
            | {"groups": [], "reasons": []}
        )
    return {
        "mode": "compare",
        "runs": [as_text(name) for name in names],
        "texts": texts.texts,
        "columns": texts.columns,
        **named_columns(texts, [name for name, _ in columns], [one.columns for one in known], rule),
        "group": -1,
        "keys": [as_text(key) for key in pairing.keys],
        "rows": [one.number for one in known],
        "metrics": metrics,
    }
