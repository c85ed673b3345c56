"""Agreement at three levels, on all of the data and with each document or system left out.

``summary``: within each document, then the mean over documents. ``pooled``: all items at once. ``system``: over the
means of the systems.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import DataError
from geval_local.statistics.coefficients import (
    coefficient_rows,
    coefficients,
    leave_groups_out,
    leave_one_out,
    tie_threshold,
    tied_pairs,
)
from geval_local.statistics.jackknife import Axis, Replicates, Target
from geval_local.statistics.records import ScoredItem

Level = Literal["summary", "pooled", "system"]

#: Default population that figures generalise to. A mean over documents, or a pool of them, is a statement
#: about the systems at hand on more documents, and valid from ten documents on; a correlation over systems is about
#: systems, and more documents for these few systems say nothing about the next one.
DEFAULT_TARGETS: dict[Level, Target] = {"summary": "documents", "pooled": "documents", "system": "both"}

#: More documents than this are pooled in blocks: the same blocks wherever a document occurs.
BLOCKS = 200
# Pairwise accuracy costs a pair table per left-out unit; above this many compared items it is computed only on request.
_CHEAP = 200
# Above this many items the pairs of single items are not counted; errors are then too large rather than too small.
_MOST_ITEMS = 20_000

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ties:
    """Pairs of compared items with equal values."""

    #: Pairs compared: within groups at summary level, all of them when pooled, of systems at system level.
    pairs: int
    #: Number of pairs tied by the people, and by the scores.
    human: int
    predicted: int


@dataclass(frozen=True)
class LevelFigures:
    """Coefficients at a level, with the data they were computed from."""

    replicates: Replicates
    per_group: Mapping[str, Floats]
    skipped: Mapping[str, str]
    points: int
    documents: int
    systems: int
    ties: Ties
    epsilon: float | None


def level_figures(
    items: Sequence[ScoredItem],
    level: Level,
    target: Target | None = "documents",
    *,
    accuracy: bool = False,
) -> LevelFigures:
    """Compute the coefficients of rated and scored items, on all of them and with each unit left out."""
    if not items:
        raise DataError(
            "no item has both a human rating and a score", hint="Check the name of the field with the human ratings."
        )
    table = _Table(items)
    if (level == "system" or target in ("systems", "both")) and not table.systems:
        wanted = "a correlation over systems" if level == "system" else "a statement about new systems"
        raise DataError(
            f"{wanted} needs to know who wrote each output",
            hint="Name the field that holds the system, or choose the summary or pooled level on new documents.",
        )
    figures = {"summary": _summary, "pooled": _pooled, "system": _system}[level]
    return figures(table, target, accuracy)


class _Table:
    """The items as columns; documents and systems numbered in order of appearance."""

    def __init__(self, items: Sequence[ScoredItem]) -> None:
        self.human = np.array([item.human for item in items], dtype=np.float64)
        self.predicted = np.array([item.predicted for item in items], dtype=np.float64)
        self.documents, self.document = _numbered([item.group for item in items])
        writers = [item.system for item in items]
        self.systems, self.system = _numbered(writers) if all(writers) else ((), np.zeros(len(items), dtype=np.int64))
        self.binary = np.unique(self.human).size == 2

    def rows(self, sets: Sequence[Ints], epsilon: float | None) -> Floats:
        """Coefficients of sets of items, shape (sets, 5)."""
        result = np.full((len(sets), 5), np.nan)
        by_size: dict[int, list[int]] = defaultdict(list)
        for index, members in enumerate(sets):
            by_size[members.size].append(index)
        for size, chosen in by_size.items():
            if size > 1:
                members = np.stack([sets[index] for index in chosen])
                result[chosen] = coefficient_rows(self.human[members], self.predicted[members], epsilon)
        return self.marked(result)

    def marked(self, figures: Floats) -> Floats:
        """Set the AUC to NaN if ratings are not binary."""
        if not self.binary:
            figures[..., 4] = np.nan
        return figures


def _summary(table: _Table, target: Target | None, accuracy: bool) -> LevelFigures:
    members = _members(table.document)
    epsilon = None
    if accuracy or max(own.size for own in members) <= _CHEAP:
        epsilon = tie_threshold(table.human, table.predicted, table.document)
    figures = table.rows(members, epsilon)
    skipped: dict[str, str] = {}
    pairs = ties_human = ties_predicted = 0
    for index, own in enumerate(members):
        human, predicted = table.human[own], table.predicted[own]
        pairs += own.size * (own.size - 1) // 2
        ties_human += tied_pairs(human)
        ties_predicted += tied_pairs(predicted)
        reason = _constant(human, predicted)
        if reason is not None:
            skipped[table.documents[index]] = reason
    kept = np.array([name not in skipped for name in table.documents])
    names, values = tuple(np.array(table.documents, dtype=object)[kept]), figures[kept]
    without: dict[Axis, tuple[tuple[str, ...], Floats]] = {}
    value = np.full(5, np.nan)
    if names:
        value = values.mean(axis=0)
    if len(names) > 1:
        without["documents"] = (names, (values.sum(axis=0) - values) / (len(names) - 1))
    if target in ("systems", "both") and names:
        places = np.flatnonzero(kept)
        sets = [
            members[place][table.system[members[place]] != system]
            for place in places
            for system in range(len(table.systems))
        ]
        held = table.rows(sets, epsilon).reshape(len(places), len(table.systems), 5)
        with np.errstate(invalid="ignore"):
            defined = np.isfinite(held).sum(axis=0)
            means = np.where(defined > 0, np.nansum(held, axis=0) / np.maximum(defined, 1), np.nan)
        without["systems"] = (table.systems, means)
        change = np.nan_to_num(held - values[:, None]) / len(names)
        # Leaving out an absent item changes nothing and is not a replicate.
        there = np.zeros((len(table.documents), len(table.systems)), dtype=bool)
        there[table.document, table.system] = True
        cells = [
            f"{name}\x1f{system}"
            for place, name in zip(places, names, strict=True)
            for system, present in zip(table.systems, there[place], strict=True)
            if present
        ]
        without["items"] = (tuple(cells), value + change[there[places]])
    return LevelFigures(
        Replicates(value, without),
        dict(zip(names, values, strict=True)),
        skipped,
        len(names),
        len(table.documents),
        len(table.systems),
        Ties(pairs, ties_human, ties_predicted),
        epsilon,
    )


def _pooled(table: _Table, target: Target | None, accuracy: bool) -> LevelFigures:
    count = table.human.size
    epsilon = None
    if accuracy or count <= _CHEAP:
        epsilon = tie_threshold(table.human, table.predicted, np.zeros(count, dtype=np.int64))
    value = table.marked(coefficients(table.human, table.predicted, epsilon))
    without: dict[Axis, tuple[tuple[str, ...], Floats]] = {}
    if target is not None:
        names, codes = table.documents, table.document
        if len(names) > BLOCKS:
            names, numbers = _numbered([f"block {zlib.crc32(name.encode()) % BLOCKS}" for name in names])
            codes = numbers[codes]
        held = leave_groups_out(table.human, table.predicted, codes, epsilon)
        without["documents"] = (names, table.marked(held))
    if target in ("systems", "both"):
        own = table.systems
        held = leave_groups_out(table.human, table.predicted, table.system, epsilon)
        without["systems"] = (own, table.marked(held))
        if 3 <= count <= _MOST_ITEMS and np.isfinite(value[0]):
            cells = tuple(
                f"{table.documents[d]}\x1f{table.systems[s]}\x1f{place}"
                for place, (d, s) in enumerate(zip(table.document, table.system, strict=True))
            )
            without["items"] = (cells, table.marked(leave_one_out(table.human, table.predicted, epsilon)))
    ties = Ties(count * (count - 1) // 2, tied_pairs(table.human), tied_pairs(table.predicted))
    return LevelFigures(
        Replicates(value, without), {}, {}, count, len(table.documents), len(table.systems), ties, epsilon
    )


def _system(table: _Table, target: Target | None, accuracy: bool) -> LevelFigures:
    shape = (len(table.documents), len(table.systems))
    sums = [np.zeros(shape) for _ in range(3)]
    for into, values in zip(sums, (table.human, table.predicted, np.ones(table.human.size)), strict=True):
        np.add.at(into, (table.document, table.system), values)
    human, predicted, count = sums
    totals = [part.sum(axis=0) for part in sums]
    h, p = _means(totals[0], totals[2]), _means(totals[1], totals[2])
    epsilon = tie_threshold(h, p, np.zeros(h.size, dtype=np.int64))
    value = table.marked(coefficient_rows(h[None], p[None], epsilon)[0])
    rest = totals[2] - count
    rest_h, rest_p = _means(totals[0] - human, rest), _means(totals[1] - predicted, rest)
    without: dict[Axis, tuple[tuple[str, ...], Floats]] = {}
    by_document = coefficient_rows(rest_h, rest_p, epsilon) if len(table.documents) > 1 else np.zeros((0, 5))
    without["documents"] = (table.documents, table.marked(by_document))
    if target in ("systems", "both"):
        sets = [np.delete(np.arange(h.size), unit) for unit in range(h.size)]
        chosen = np.stack(sets)
        without["systems"] = (table.systems, table.marked(coefficient_rows(h[chosen], p[chosen], epsilon)))
        places = np.argwhere(count > 0)
        if len(places) <= _MOST_ITEMS:
            one_h, one_p = np.repeat(h[None], len(places), axis=0), np.repeat(p[None], len(places), axis=0)
            documents, systems = places.T
            row = np.arange(len(places))
            one_h[row, systems], one_p[row, systems] = rest_h[documents, systems], rest_p[documents, systems]
            cells = tuple(f"{table.documents[d]}\x1f{table.systems[s]}" for d, s in places)
            without["items"] = (cells, table.marked(coefficient_rows(one_h, one_p, epsilon)))
    points = len(table.systems)
    ties = Ties(points * (points - 1) // 2, tied_pairs(h), tied_pairs(p))
    return LevelFigures(Replicates(value, without), {}, {}, points, len(table.documents), points, ties, epsilon)


def skipped_by_reason(skipped: Mapping[str, str]) -> dict[str, int]:
    """Count the documents without a coefficient by reason."""
    return dict(Counter(skipped.values()))


def _means(total: Floats, count: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        # The order of summation changes the last bits, which would break ties between equal means.
        return np.asarray(np.round(total / count, 12))


def _numbered(names: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
    return tuple(numbers), codes


def _members(codes: Ints) -> list[Ints]:
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(1, int(codes.max()) + 1)))


def _constant(human: Floats, predicted: Floats) -> str | None:
    if human.size < 2:
        return "a single item"
    flat = [name for name, v in (("human ratings", human), ("predictions", predicted)) if np.unique(v).size < 2]
    return f"constant {' and '.join(flat)}" if flat else None
