"""Rated rows drawn as examples of a metric, with labels spread over its scale."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from geval_local.analysis.ratings.values import no_values, number_at
from geval_local.analysis.results import read_rows
from geval_local.errors import DataError, UnscorableError
from geval_local.examples import Example, content
from geval_local.fields import check_mapping, field_value
from geval_local.io.results import numbered
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.scale import Scale


@dataclass(frozen=True)
class DrawnExamples:
    """Examples drawn from rated rows."""

    #: In the order that the form shows.
    examples: tuple[Example, ...]
    #: Rated rows that they were drawn from, each text once.
    candidates: int
    #: Why other rows were no candidates -> how many.
    left_out: Mapping[str, int]


def draw_examples(
    file: str | Path,
    metric: Metric,
    human: str,
    *,
    count: int = 6,
    seed: int = 0,
    reason: str | None = None,
    fields: Mapping[str, str] | None = None,
) -> DrawnExamples:
    """Draw rated rows whose labels are spread over the scale.

    Parameters
    ----------
    file : path
        Rows with ratings, in any format that `score` reads.
    metric : Metric
        The metric whose fields are read.
    human : str
        Field of the rating: a label, or a number; a number between labels, such as a mean of several people, becomes
        the label with the nearest value (the lower one in the middle).
    count : int
        How many rows.
    seed : int
        Seed of the draw.
    reason : str, optional
        Field of the reason for a rating.
    fields : mapping of str to str, optional
        Field of the metric -> its column, or the dotted path into one.

    Raises
    ------
    ConfigurationError, DataError
        If fewer rows can be used.
    """
    mapping = dict(fields or {})
    check_mapping(mapping, metric.fields)
    rows = read_rows(file)
    found: dict[str, list[Example]] = defaultdict(list)
    left_out: dict[str, int] = defaultdict(int)
    seen, first = set[tuple[str, ...]](), ""
    for number, row in numbered(rows):
        label = label_of(row, human, metric.scale, f"{file}, row {number}")
        try:
            texts = Sample(row, number, str(file), mapping=mapping).texts(metric.fields)
        except UnscorableError as error:
            first = first or f": {error.message}"
            left_out["lack the metric's fields"] += 1
            continue
        key = content(texts, metric.fields)
        if label is None:
            left_out["have no rating on the scale"] += 1
        elif key in seen:
            left_out["repeat the texts of another"] += 1
        else:
            seen.add(key)
            name, why = row.get("id"), None if reason is None else field_value(row, reason)
            own = {"id": f"{Path(file).name}:{number}" if name in (None, "") else str(name)}
            if why is not None and str(why).strip():
                own["reason"] = str(why)
            found[label].append(Example.model_validate({**texts, **own, "label": label}))
    for field in (human, *([] if reason is None else [reason])):
        if all(field_value(row, field) in (None, "") for row in rows):
            raise no_values(rows, field, file, "a value")
    if len(seen) < count:
        told = "".join(f"; {left} {why}" for why, left in left_out.items())
        raise DataError(
            f"{file}: {count} examples cannot be drawn from {len(seen)} rated rows{told}{first}",
            hint="Draw fewer, or map the metric's fields to their columns with `fields`.",
        )
    return DrawnExamples(_spread(found, metric.scale, count, seed), len(seen), dict(left_out))


def label_of(row: Mapping[str, Any], human: str, scale: Scale, where: str) -> str | None:
    """Return the label of a rating: itself, or the one with the nearest value; None if it is not on the scale."""
    given = field_value(row, human)
    if isinstance(given, str) and given.strip() in scale.labels:
        return given.strip()
    rating = number_at(row, human, where)
    if math.isnan(rating) or not scale.low <= rating <= scale.high:
        return None
    return min(zip(scale.values, scale.labels, strict=True), key=lambda pair: (abs(pair[0] - rating), pair[0]))[1]


def _spread(found: Mapping[str, list[Example]], scale: Scale, count: int, seed: int) -> tuple[Example, ...]:
    """Draw the same number of every label, and spread the rest over the scale; in random order."""
    rng = np.random.default_rng(seed)
    by_value = sorted(zip(scale.values, scale.labels, strict=True))
    left = {label: [found[label][at] for at in rng.permutation(len(found[label]))] for _, label in by_value}
    drawn: list[Example] = []
    while len(drawn) < count:
        labels = [label for label in left if left[label]]
        wanted = count - len(drawn)
        if wanted < len(labels):
            places = np.linspace(0, len(labels) - 1, wanted) if wanted > 1 else [(len(labels) - 1) / 2]
            labels = [labels[round(float(place))] for place in places]
        drawn += [_take(left[label], drawn) for label in labels]
    return tuple(drawn[at] for at in rng.permutation(count))


def _take(rows: list[Example], drawn: Sequence[Example]) -> Example:
    """Take the first row that shares no text (such as a source) with the drawn ones; else the first."""
    used = {text for one in drawn for text in one.texts.values()}
    return rows.pop(next((at for at, one in enumerate(rows) if used.isdisjoint(one.texts.values())), 0))
