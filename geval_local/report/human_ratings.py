"""Scores beside human ratings: the ratings themselves, correlations at every level that the data allows, per group."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from geval_local.analysis.results import joined
from geval_local.errors import DataError
from geval_local.io.results import Results
from geval_local.statistics.coefficients import coefficients
from geval_local.statistics.correlation import Correlation, correlate
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem, usable


@dataclass(frozen=True)
class GroupCorrelation:
    """Agreement within one group."""

    group: str
    n: int
    pearson: float
    spearman: float
    kendall: float


def scored_items(
    results: Results,
    keys: Sequence[str],
    metric: str,
    field: str | None,
    group_by: str | None,
    system: str | None = None,
) -> list[ScoredItem]:
    """Convert the rows of one metric to items for the analyses."""
    items = []
    for record, key in zip(results.records, keys, strict=True):
        score = record.scores[metric]
        # Only this text: the reasons, which may differ from row to row, are stored with the scores.
        error = None if score.error is None else "unscored"
        item = ScoredItem("", "", math.nan, score.value, score.probabilities, None, key, error, score.label_mass)
        where = f"{results.name}, row {record.number}"
        items.append(joined(item, record.columns, where, field, group_by, system, results.fields))
    if field is not None and all(math.isnan(item.human) for item in items):
        columns = ", ".join(next(iter(results.records)).columns)
        raise DataError(f"{results.name}: no row has a human rating in {field!r}", hint=f"Columns: {columns}.")
    return items


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
    groups: dict[str, list[ScoredItem]] = defaultdict(list)
    for item in usable(items)[0]:
        groups[item.group].append(item)
    found = [
        GroupCorrelation(
            group,
            len(members),
            *coefficients(np.array([item.human for item in members]), np.array([item.predicted for item in members]))[
                :3
            ].tolist(),
        )
        for group, members in groups.items()
        if len(members) > 1
    ]
    return sorted(found, key=lambda group: (math.isnan(group.spearman), group.spearman))
