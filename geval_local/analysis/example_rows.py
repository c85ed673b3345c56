"""Rows that a metric shows as examples: analyses against people skip them, since the judge saw their labels."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from geval_local.errors import UnscorableError
from geval_local.examples import content
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.statistics.records import EXAMPLE, ScoredItem
from geval_local.wording import say_once


def without_examples(
    items: Sequence[ScoredItem],
    rows: Iterable[Mapping[str, Any]],
    metric: Metric | None,
    mapping: Mapping[str, str],
    path: object,
    *,
    keep_scores: bool = False,
) -> list[ScoredItem]:
    """Remove rating and score, or the rating alone, from items whose rows are examples; every item keeps its place.

    A row is an example if the texts of all fields are the same (`geval_local.examples.content`); its id does not
    matter.
    """
    if metric is None or not metric.examples:
        return list(items)
    shown = {content(one.texts, metric.fields) for one in metric.examples}
    left, unknown = list(items), 0
    for place, (item, row) in enumerate(zip(items, rows, strict=True)):
        try:
            texts = Sample(row, mapping=mapping).texts(metric.fields)
        except UnscorableError:
            unknown += 1
            continue
        if content(texts, metric.fields) in shown:
            unrated = replace(item, human=math.nan)
            gone = replace(unrated, predicted=math.nan, probabilities=None, error=EXAMPLE)
            left[place] = unrated if keep_scores else gone
    if unknown:
        told = f"{path}: {unknown} rows lack texts of {metric.name} and cannot be compared with its examples"
        say_once(told, level=logging.WARNING)
    return left


def examples_told(metric: str, items: Sequence[ScoredItem]) -> list[str]:
    """Say how many rows were left out because the metric shows them as examples; empty if none."""
    count = sum(item.error == EXAMPLE for item in items)
    rows = "1 row is an example" if count == 1 else f"{count} rows are examples"
    return [f"{metric}: {rows} in the form, and left out"] if count else []
