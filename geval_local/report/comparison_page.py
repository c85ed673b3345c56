"""The page of two runs side by side: paired rows, unpaired rows, and columns that differ."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from geval_local.analysis.comparison import RunComparison, SystemComparison
from geval_local.analysis.differences import doubt_of
from geval_local.analysis.results import HumanFields, rating_fields
from geval_local.analysis.tables import agreement_table, comparison_table
from geval_local.errors import ConfigurationError, DataError
from geval_local.grouping import documents_of
from geval_local.io.columns import as_text
from geval_local.io.results import Record, Results, ResultsInput, load_results
from geval_local.report.overview import UNDESCRIBED, Described, describe, differences, overview_table, summaries
from geval_local.report.page import TextColumns, check_target, metric_payload, named_columns, render, write_page
from geval_local.report.run_page import RunPage, scored_items
from geval_local.statistics.correlation import agree
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.significance import Comparison

Both = tuple[list[ScoredItem], list[ScoredItem]]


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
        """Return the items' columns: the first run's values if it has any, and the second's where they differ."""
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


def pair_runs(first: Results, second: Results) -> tuple[Pairing, tuple[list[str], list[str]]]:
    """Pair the items by ``id`` if all rows of both runs have distinct ones, else by position."""
    ids = (first.ids(), second.ids())
    by_id = ids[0] is not None and ids[1] is not None
    keys = [
        found if by_id and found is not None else [str(place) for place in range(1, len(run.records) + 1)]
        for run, found in zip((first, second), ids, strict=True)
    ]
    left, right = (dict(zip(names, run.records, strict=True)) for names, run in zip(keys, (first, second), strict=True))
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
    pairing = Pairing(by_id, every, records, both, len(left) - both, len(right) - both, dict(differing))
    return pairing, (keys[0], keys[1])


def _differs(pair: Sequence[Record], name: str) -> bool:
    one, other = (record.columns.get(name) for record in pair)
    # A CSV file and a JSONL file of one input differ only in type.
    return one is not other and one != other and as_text(one) != as_text(other)


def write_comparison(
    run_a: ResultsInput,
    run_b: ResultsInput,
    path: str | os.PathLike[str],
    *,
    names: tuple[str, str] | None = None,
    described: tuple[Described, Described] = (UNDESCRIBED, UNDESCRIBED),
    human: HumanFields | None = None,
    group_by: str | None = None,
    only: Sequence[str] = (),
    against_people: Mapping[str, Comparison] | None = None,
) -> Path:
    """Write two runs side by side as one self-contained HTML page.

    The metrics are all that both runs have, or some `only`. Items are paired by ``id`` if all rows of both runs have
    distinct ones, else by position in the run.
    Differences between the signatures, and the number of pairs with different texts, are shown at the top;
    `against_people` says of every metric that people rated which run agrees better with them.
    """
    path_of_page = check_target(path, run_a, run_b)
    runs = (load_results(run_a, only=only), load_results(run_b, only=only))
    shared = tuple(metric for metric in runs[0].metrics if metric in runs[1].metrics)
    if not shared:
        have = "; ".join(f"{run.name}: {', '.join(run.metrics)}" for run in runs)
        raise DataError("the two runs have no metric in common", hint=f"They have: {have}.")
    names, human = names or _names(runs), rating_fields(human, shared)
    pairing, keys = pair_runs(*runs)
    documents = documents_of((record.columns for record in runs[0].records), group_by)[0]
    items = {metric: _items(runs, keys, metric, human.get(metric), documents) for metric in shared}
    signed = [
        {metric: one.signatures[metric] for metric in run.metrics if metric in shared and metric in one.signatures}
        for one, run in zip(described, runs, strict=True)
    ]
    page = render(
        "compare.html.j2",
        _data(names, pairing, items, human, described[0]),
        title=f"{names[0]} and {names[1]}",
        names=names,
        signed=signed,
        differing=differences(*signed),
        unsigned=[metric for metric in shared if not all(metric in one for one in signed)],
        alone=[
            (name, [metric for metric in run.metrics if metric not in shared])
            for name, run in zip(names, runs, strict=True)
        ],
        pairing=pairing,
        agreement=agreement_table({metric: agree(*both) for metric, both in items.items()}),
        doubts=[
            f"{metric} of {name}: {told}"
            for metric, both in items.items()
            for name, own in zip(names, both, strict=True)
            if (told := doubt_of(own))
        ],
        rated={field: None for metric in shared if (field := human.get(metric)) is not None},
        against_people=comparison_table(against_people) if against_people else None,
        overviews=[
            (name, overview_table(found), found)
            for name, found in zip(names, (summaries(run, group_by=group_by) for run in runs), strict=True)
        ],
        texts={
            name: replace(one, signature="")  # both runs' stand with their figures
            for name, one in described[0].texts(shared).items()
            if one.prompt or one.steps
        },
        facts=[(name, one.entries) for name, one in zip(names, described, strict=True)],
    )
    return write_page(path_of_page, page)


def write_compared(study: RunComparison | SystemComparison, path: str | os.PathLike[str]) -> Path:
    """Write what `geval_local.analysis.compare` found as one page: two runs, or the rows of all systems together."""
    runs = study.runs if isinstance(study, RunComparison) else study.together.runs
    if runs[0].estimator is not None:
        raise ConfigurationError("`page` shows the scores as they were written, so it does not go with `estimator`")
    if isinstance(study, RunComparison):
        first, second = map(describe, runs)
        return write_comparison(
            runs[0].path,
            runs[1].path,
            path,
            described=(first, second),
            against_people=study.against_human,
            **{name: study.asked[name] for name in ("human", "group_by", "only")},
        )
    told = describe(runs[0])
    metrics = {name: one for name, one in told.metrics.items() if name in study.systems}
    page = RunPage(
        study.together.rows(),
        Described(metrics, told.facts if len(runs) == 1 else {}),
        title=" and ".join(run.name for run in runs),
        fields=runs[0].mapping,
        system="system",
        **{**study.asked, "group_by": study.together.document, "only": tuple(study.systems)},
    )
    return page.write(path)


def _names(runs: Sequence[Results]) -> tuple[str, str]:
    first, second = (run.name for run in runs)
    return (first, second) if first != second else (f"A: {first}", f"B: {second}")


def _items(
    runs: Sequence[Results], keys: Sequence[Sequence[str]], metric: str, field: str | None, group_by: str | None
) -> Both:
    first, second = (scored_items(run, names, metric, field, group_by) for run, names in zip(runs, keys, strict=True))
    return first, second


def _data(
    names: tuple[str, str],
    pairing: Pairing,
    items: Mapping[str, Both],
    human: Mapping[str, str],
    described: Described,
) -> dict[str, Any]:
    texts = TextColumns()
    columns = pairing.columns()
    for name, values in columns:
        texts.add(name, values)
    metrics = []
    for metric, (first, second) in items.items():
        ratings = {item.key: item.human for item in [*second, *first]}
        rated = human.get(metric) is not None
        runs = [
            [None if record is None else record.scores[metric] for record in side]
            for side in zip(*pairing.records, strict=True)
        ]
        metrics.append(
            metric_payload(
                metric,
                runs,
                [ratings.get(key, math.nan) for key in pairing.keys] if rated else (),
                spec=described.metrics[metric].scale if metric in described.metrics else None,
                rating=human.get(metric),
            )
            | {"groups": [], "reasons": []}
        )
    return {
        "mode": "compare",
        "runs": [as_text(name) for name in names],
        "texts": texts.texts,
        "columns": texts.columns,
        **named_columns([name for name, _ in columns]),
        "group": -1,
        "keys": [as_text(key) for key in pairing.keys],
        "rows": [next(record.number for record in pair if record is not None) for pair in pairing.records],
        "metrics": metrics,
    }
