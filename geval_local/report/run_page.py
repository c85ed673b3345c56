"""The page of one run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from geval_local.analysis.results import HumanFields, rating_fields
from geval_local.analysis.tables import Table, correlation_table, folded
from geval_local.grouping import documents_of
from geval_local.io.columns import as_text
from geval_local.io.results import Record, Results, ResultsInput, load_results
from geval_local.report.human_ratings import (
    GroupCorrelation,
    agreement,
    group_correlations,
    scored_items,
)
from geval_local.report.overview import (
    MetricNotes,
    SignatureInput,
    facts,
    group_names,
    judges,
    notes_of,
    overview_table,
    signatures_by_metric,
    summaries,
)
from geval_local.report.page import check_target, render, write_page
from geval_local.report.payload import TextColumns, metric_payload, named_columns
from geval_local.report.sections import pair_section, system_section
from geval_local.report.written_reasons import WrittenReason, check_reasons, reason_notes
from geval_local.statistics.correlation import Correlation
from geval_local.statistics.records import ScoredItem
from geval_local.summary import Summary

#: Rows that a page holds unless it is told otherwise.
MOST_ROWS = 20_000
#: Groups that the page lists by name; the histogram has all of them.
GROUPS_LISTED = 200
#: Columns of correlations that most often say the same in all rows.
FOLDED = ("n", "groups skipped", "items left out")


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


def write_report(
    results: ResultsInput,
    path: str | os.PathLike[str],
    *,
    metrics: Mapping[str, MetricNotes] | None = None,
    human: HumanFields | None = None,
    group_by: str | None = None,
    signature: SignatureInput | None = None,
    manifest: Mapping[str, Any] | None = None,
    ablation: Table | Sequence[Table] | None = None,
    title: str | None = None,
    fields: Mapping[str, str] | None = None,
    system: str | None = None,
    baseline: str | None = None,
    tie: float = 0.0,
    seed: int = 0,
    reasons: Sequence[WrittenReason] = (),
    rows: int = MOST_ROWS,
    up: str = "",
    only: Sequence[str] = (),
    on_figures: Callable[[Sequence[Summary], Sequence[People]], object] = lambda overall, people: None,
) -> Path:
    """Write a run as one self-contained HTML page, with all of its metrics or some `only`.

    `on_figures` is given what the page shows: the figures of every metric, and the agreement with people.
    """
    target = check_target(path, results)
    run = load_results(results, fields, only)
    check_reasons(reasons, run)
    human = rating_fields(human, run.metrics)
    notes, manifest = metrics or {}, manifest or {}
    signatures = signatures_by_metric(signature, run.metrics)
    texts = notes_of(run, notes, signatures)
    documents = documents_of((record.columns for record in run.records), group_by)[0]
    keys = run.row_keys()
    chosen = _chosen(run, rows, reasons)
    shown = run if len(chosen) == len(run.records) else replace(run, records=_taken(run.records, chosen))
    items = {metric: scored_items(run, keys, metric, human.get(metric), documents, system) for metric in run.metrics}
    people = _people(run, items, human, grouped=documents is not None)
    pairs = [one for metric in run.metrics if (one := pair_section(run, metric)) is not None]
    compared = [
        system_section(
            metric,
            own,
            named=system is not None,
            baseline=baseline,
            tie=tie,
            seed=seed,
            human=human.get(metric),
        )
        for metric, own in items.items()
    ]
    overall = summaries(run, group_by=group_by)
    on_figures(overall, people)
    page = render(
        "report.html.j2",
        _data(shown, [keys[place] for place in chosen], notes, people, chosen, documents, reasons),
        title=title or run.name,
        file=run.name,
        count=len(run.records),
        shown=len(chosen),
        judge=judges(signatures, manifest),
        overview=overview_table(overall),
        summaries=overall,
        people=people,
        systems=[one for one in compared if one is not None],
        pairs=pairs,
        reasons=reason_notes(reasons),
        up=up,
        ablation=() if ablation is None else (ablation,) if isinstance(ablation, Table) else tuple(ablation),
        texts=texts,
        facts=facts(manifest),
    )
    return write_page(target, page)


def _chosen(run: Results, most: int, reasons: Sequence[WrittenReason]) -> Sequence[int]:
    """Choose the rows that the page holds, from 0, in order."""
    count = len(run.records)
    if count <= most:
        return range(count)
    explained = {reason.row for reason in reasons}
    numbered = enumerate(run.records) if explained else ()
    with_reason = {place for place, record in numbered if record.number in explained}
    return sorted(with_reason | {place * count // most for place in range(most)})


def _taken(records: Iterable[Record], chosen: Sequence[int]) -> tuple[Record, ...]:
    """Take the chosen ones, in one pass."""
    wanted = set(chosen)
    return tuple(record for place, record in enumerate(records) if place in wanted)


def _people(
    run: Results, scored: Mapping[str, Sequence[ScoredItem]], human: Mapping[str, str], *, grouped: bool
) -> list[People]:
    found = []
    for index, metric in enumerate(run.metrics):
        field = human.get(metric)
        if field is None:
            continue
        items = scored[metric]
        levels = agreement(items)
        found.append(
            People(
                metric,
                field,
                index,
                tuple(item.human for item in items),
                levels,
                folded(correlation_table(levels), FOLDED) if levels else None,
                tuple(group_correlations(items)) if grouped else (),
            )
        )
    return found


def _data(
    run: Results,
    keys: Sequence[str],
    notes: Mapping[str, MetricNotes],
    people: Sequence[People],
    chosen: Sequence[int],
    group_by: str | None,
    reasons: Sequence[WrittenReason],
) -> dict[str, Any]:
    """Lay out the page's rows; `people` is of all rows of the run, of which these are the `chosen` ones."""
    texts = TextColumns()
    names = list(dict.fromkeys(name for record in run.records for name in record.columns))
    for name in names:
        texts.add(name, [record.columns.get(name) for record in run.records])
    groups = group_names(run.records, group_by)
    if groups is not None and group_by not in names:  # a dotted path
        texts.add(str(group_by), groups)
        names.append(str(group_by))
    found = named_columns(names)
    if {"system_a", "system_b"} <= set(names) and found["system"] < 0:  # a run of pairs
        sides = [[record.columns.get(name) for name in ("system_a", "system_b")] for record in run.records]
        found["system"] = len(names)
        texts.add("pair", [None if None in both else " / ".join(map(as_text, both)) for both in sides])
    by_metric = {one.metric: one for one in people}
    place = {record.number: index for index, record in enumerate(run.records)}
    return {
        "mode": "report",
        "runs": [as_text(run.name)],
        "texts": texts.texts,
        "columns": texts.columns,
        **found,
        "group": -1 if group_by is None else names.index(group_by),
        "keys": [as_text(key) for key in keys],
        "rows": [record.number for record in run.records],
        "metrics": [
            metric_payload(
                metric,
                [[record.scores[metric] for record in run.records]],
                [by_metric[metric].ratings[place] for place in chosen] if metric in by_metric else (),
                spec=notes.get(metric, {}).get("scale"),
                rating=by_metric[metric].field if metric in by_metric else None,
            )
            | {
                "groups": _spearman(by_metric.get(metric)),
                "reasons": [[place[one.row], one.payload()] for one in reasons if one.metric == metric],
            }
            for metric in run.metrics
        ],
    }


def _spearman(people: People | None) -> list[float]:
    groups = people.groups if people else ()
    return [round(group.spearman, 6) for group in groups if group.spearman == group.spearman]
