"""ScoredItem: one rated text with its score, the record type of all analyses; label probabilities as an array."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import Cause, DataError, code_of, kind_of
from geval_local.scale import Scale

#: The place of a row before its reason: ``data.jsonl, row 3: ``.
_PLACE = re.compile(r"^[^:\n]*\brow \d+: ")
NO_HUMAN = "no human rating"
#: Why an item that its metric shows as an example has neither a rating nor a score.
EXAMPLE = "an example in the form"


@dataclass(frozen=True)
class ScoredItem:
    """One output with its human rating and its score."""

    #: The document (or dialogue) of the output. Analyses compare the items of one group with each other, and resample
    #: them together.
    group: str
    #: Writer of the output; empty if unknown.
    system: str
    #: The human rating; NaN if there is none.
    human: float
    #: The score of the judge or metric; NaN if unscored, never 0.
    predicted: float
    #: ``{label: p}``, summing to 1, if the score is an expectation over labels.
    probabilities: Mapping[str, float] | None = None
    #: Length of the output in words.
    length: int | None = None
    #: Key of the item, which pairs it with the same item of another run.
    key: str = ""
    #: Why the item is unscored.
    error: str | None = None
    #: Total probability of all labels; NaN if unknown.
    label_mass: float = math.nan


def word_count(text: str) -> int:
    """Count the words of a text: its runs of non-space characters."""
    return len(text.split())


def usable(items: Iterable[ScoredItem]) -> tuple[list[ScoredItem], dict[str, int]]:
    """Return the items with both a rating and a score, and the number of others by reason.

    Reasons with the same code count as one, with the first message as the example.
    """
    kept: list[ScoredItem] = []
    left_out: Counter[str] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for item in items:
        if not math.isfinite(item.predicted):
            reason = item.error or "unscored"
            text = _PLACE.sub("", reason.split("\n", 1)[0])
            code, kind = kind_of(Cause(text, code_of(reason)))
            told = text if kind else f"{code}, for example {text}"
            left_out[examples.setdefault((code, kind), told)] += 1
        elif not math.isfinite(item.human):
            left_out[NO_HUMAN] += 1
        else:
            kept.append(item)
    return kept, dict(left_out)


def pair(
    first: Sequence[ScoredItem], second: Sequence[ScoredItem], *, same_human: bool = True
) -> tuple[list[ScoredItem], list[ScoredItem]]:
    """Align two score lists on the items that both have scored, in the order of the first."""
    for items in (first, second):
        doubled = [key for key, count in Counter(item.key for item in items).items() if count > 1]
        if doubled:
            raise DataError(f"the item {doubled[0]!r} is there more than once, so it cannot be paired")
    others = {item.key: item for item in second if math.isfinite(item.predicted)}
    left = [item for item in first if math.isfinite(item.predicted) and item.key in others]
    right = [others[item.key] for item in left]
    if not left:
        raise DataError(
            "the two score lists have no scored item in common",
            hint="Give both files the same `id` column, or the same rows in the same order.",
        )
    for a, b in zip(left, right, strict=True):
        differ = same_human and not (a.human == b.human or (math.isnan(a.human) and math.isnan(b.human)))
        if a.group != b.group or differ:
            raise DataError(
                f"item {a.key!r} is not the same in both score lists: group {a.group!r} rated {a.human:g} "
                f"against group {b.group!r} rated {b.human:g}",
                hint="Pair runs over the same file, with the same human field and grouping.",
            )
    return left, right


def labels_of(items: Iterable[ScoredItem]) -> list[float]:
    """List the values of the labels in ascending order; empty without labels, or if they are words."""
    labels = {label for item in items for label in item.probabilities or ()}
    try:
        return sorted(float(label) for label in labels)
    except ValueError:
        return []


def probability_matrix(items: Sequence[ScoredItem], scale: Scale) -> NDArray[np.float64]:
    """Collect the items' label probabilities, shape (items, labels)."""
    rows = np.empty((len(items), len(scale.labels)))
    for index, item in enumerate(items):
        if item.probabilities is None:
            raise DataError(
                f"item {item.key!r} has no label probabilities",
                hint="Score with the exact estimator; raw responses and reference metrics have none.",
            )
        if set(item.probabilities) != set(scale.labels):
            raise DataError(
                f"item {item.key!r} has probabilities for {', '.join(item.probabilities)}, not for {scale.text}",
                hint="Give the scale of the metric that was scored.",
            )
        rows[index] = [item.probabilities[label] for label in scale.labels]
    total = rows.sum(axis=1)
    if not (right := (rows >= 0).all(axis=1) & (np.abs(total - 1) <= 1e-6)).all():
        index = int(right.argmin())
        raise DataError(f"item {items[index].key!r}: its label probabilities sum to {total[index]:g}, not 1")
    # As in `Distribution`, so that stored and fresh probabilities use the same arithmetic.
    return heat(rows, 1.0)


def heat(p: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """Raise label probabilities, shape (items, labels), to the power ``1 / temperature`` and renormalise."""
    with np.errstate(divide="ignore"):
        logs = np.log(p) / temperature
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def expectations(p: NDArray[np.float64], scale: Scale) -> NDArray[np.float64]:
    """Compute the expected value of each row of label probabilities, shape (items,)."""
    # Rounding may leave the scale by an ulp when one label has all the probability.
    return np.clip(p @ scale.array, scale.low, scale.high)
