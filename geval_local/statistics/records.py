"""ScoredItem: one rated text with its score, the record type of all analyses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from geval_local.errors import DataError

NO_HUMAN = "no human rating"


@dataclass(frozen=True)
class ScoredItem:
    """One output with its human rating and its score."""

    #: The document (or dialogue) that the output belongs to; items of one group are compared with each other, and
    #: resampled together.
    group: str
    #: Writer of the output; empty if unknown.
    system: str
    #: The human rating; NaN if there is none.
    human: float
    #: The score of the judge or metric; NaN if unscored, never 0.
    predicted: float
    #: ``{label: p}``, summing to 1, where the score is an expectation over labels.
    probabilities: Mapping[str, float] | None = None
    #: Length of the output in words.
    length: int | None = None
    #: Key of the item, which pairs it with the same item of another run.
    key: str = ""
    #: Why the item is unscored.
    error: str | None = None


def word_count(text: str) -> int:
    """Count the words of a text: its runs of non-space characters."""
    return len(text.split())


def usable(items: Iterable[ScoredItem]) -> tuple[list[ScoredItem], dict[str, int]]:
    """Separate the items that have both a rating and a score from those that do not."""
    kept: list[ScoredItem] = []
    left_out: Counter[str] = Counter()
    for item in items:
        if not math.isfinite(item.predicted):
            left_out[item.error or "unscored"] += 1
        elif not math.isfinite(item.human):
            left_out[NO_HUMAN] += 1
        else:
            kept.append(item)
    return kept, dict(left_out)


def pair(
    first: Sequence[ScoredItem], second: Sequence[ScoredItem], *, same_human: bool = True
) -> tuple[list[ScoredItem], list[ScoredItem]]:
    """Align two score lists on the items that both of them scored, in the order of the first."""
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
