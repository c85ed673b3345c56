"""Agreement at four levels, on all of the data and on draws of documents and systems.

``summary``: within each document, then the mean over documents. ``pooled``: all items at once. ``partial``: all items
at once, given the system: without the means of its ratings and of its scores, so that a judge that tells systems apart
but not their outputs has 0 (the partial correlation of FRANK, Pagnoni et al., 2021). ``system``: over the means of the
systems.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import DataError
from geval_local.statistics.coefficients import (
    CHUNK,
    FOLDS,
    coefficients,
    correlation,
    from_forms,
    is_right,
    tie_threshold,
    tied_pairs,
    weighted,
)
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.resampling import Draws, FiguresWithErrors, Target, group_folds

Level = Literal["summary", "pooled", "partial", "system"]

#: Default population to which figures generalise. A mean over documents, or a pool of them, is a statement about the
#: same systems on new documents, valid from ten documents on. A correlation over systems is a statement about systems:
#: more documents for the same few systems say nothing about a new system.
DEFAULT_TARGETS: dict[Level, Target] = {
    "summary": "documents",
    "pooled": "documents",
    "partial": "documents",
    "system": "both",
}

#: Levels that need to know who wrote each output, as messages name them.
_OF_SYSTEMS: dict[Level, str] = {"system": "a correlation over systems", "partial": "a correlation given the system"}
#: More documents than this are pooled in blocks; a document is in the same block in every analysis.
BLOCKS = 200
# Pairwise accuracy needs a table of pairs; above this many compared items it is computed only on request.
_CHEAP = 200
# Above this many items, blocks of documents are correlated one by one, without a table of pairs.
_MOST_ITEMS = 20_000
# Most cells (document and system) whose table of pairs is kept.
_MOST_CELLS = 5_000

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Ties:
    """Pairs of compared items with equal values."""

    #: Pairs compared: within groups at summary level, all of them when pooled, of systems at system level.
    pairs: int
    #: Number of pairs that the people tie, and that the scores tie.
    human: int
    predicted: int


@dataclass(frozen=True)
class LevelFigures:
    """Coefficients at a level, with the data they were computed from."""

    figures: FiguresWithErrors
    #: Document -> why it has no coefficient of its own; summary level only.
    skipped: Mapping[str, str]
    points: int
    ties: Ties
    #: The tie threshold.
    epsilon: float | None
    documents: int = 0
    systems: int = 0


def level_figures(
    items: Sequence[ScoredItem],
    level: Level,
    target: Target | None = "documents",
    *,
    accuracy: bool | None = None,
    draws: Draws | None = None,
) -> LevelFigures:
    """Compute the coefficients of rated and scored items, on all of them and in every draw.

    Pass `draws` to share them with other judges or dimensions. With `accuracy` None, the accuracy is computed for few
    items only.
    """
    if not items:
        raise DataError(
            "no item has both a human rating and a score", hint="Check the name of the field with the human ratings."
        )
    table = ItemTable(_given_systems(items) if level == "partial" else items)
    if (level in _OF_SYSTEMS or target in ("systems", "both")) and not table.systems:
        wanted = _OF_SYSTEMS.get(level, "a statement about new systems")
        raise DataError(
            f"{wanted} needs to know who wrote each output",
            hint="Name the field that holds the system, or choose the summary or pooled level on new documents.",
        )
    if draws is None and target is not None:
        draws = draws_for([items], level, target)
    find = {"summary": _summary, "system": _system}.get(level, _pooled)
    found = find(table, target, accuracy, draws)
    return replace(found, documents=len(table.documents), systems=len(table.systems))


def _given_systems(items: Sequence[ScoredItem]) -> list[ScoredItem]:
    """Subtract from each rating and score the mean of its system."""
    systems = in_order([item.system for item in items])[1]
    values = np.array([(item.human, item.predicted) for item in items])
    values -= (np.stack([np.bincount(systems, own) for own in values.T], 1) / np.bincount(systems)[:, None])[systems]
    values = values.round(9)  # what is equal stays so
    return [replace(item, human=human, predicted=score) for item, (human, score) in zip(items, values, strict=True)]


def documents_kept(items: Sequence[ScoredItem]) -> set[str]:
    """Name the documents that have coefficients of their own."""
    table = ItemTable(items)
    return set(table.documents) - _skipped(table.documents, *table.pairs(_members(table.document))).keys()


def draws_for(judges: Sequence[Sequence[ScoredItem]], level: Level, target: Target) -> Draws | None:
    """Draw for several judges or dimensions at once; None where the level needs no draws."""
    if level == "summary" and target == "documents":
        return None
    documents: set[str] = set()
    for items in judges:
        own = {item.group for item in items}
        documents |= own if level not in ("pooled", "partial") or len(own) <= BLOCKS else set(map(_block, own))
    return Draws(sorted(documents), sorted({item.system for items in judges for item in items}), target)


def _block(document: str) -> str:
    return f"block {zlib.crc32(document.encode()) % BLOCKS}"


class ItemTable:
    """The items as columns; documents and systems numbered in order of appearance."""

    def __init__(self, items: Sequence[ScoredItem]) -> None:
        self.human = np.array([item.human for item in items], dtype=np.float64)
        self.predicted = np.array([item.predicted for item in items], dtype=np.float64)
        self.documents, self.document = in_order([item.group for item in items])
        writers = [item.system for item in items]
        self.systems, self.system = in_order(writers) if all(writers) else ((), np.zeros(len(items), dtype=np.int64))
        self.binary = np.unique(self.human).size == 2

    def marked(self, figures: Floats) -> Floats:
        """Set the AUC to NaN if ratings are not binary."""
        if not self.binary:
            figures[..., 4] = np.nan
        return figures

    def thresholds(self, *, across: bool) -> tuple[float | None, Floats | None]:
        """Calibrate the tie threshold on all documents, and for each document (or pair of items) on the other folds.

        Calibrated on the same documents, the accuracy would be 0.03 to 0.07 too high. Items are compared within
        documents, or `across` them. Returns None for a single document, or if a group is too large.
        """
        groups = np.zeros_like(self.document) if across else self.document
        epsilon = tie_threshold(self.human, self.predicted, groups) if len(self.documents) > 1 else None
        if epsilon is None:
            return None, None
        found, folds = np.empty((FOLDS, FOLDS)), group_folds(self.documents, FOLDS, 0)
        fold = folds[self.document]
        for one in range(FOLDS):
            for other in range(one, FOLDS if across else one + 1):
                rest = np.flatnonzero((fold != one) & (fold != other))
                known = rest.size > across  # else there is no pair
                own = tie_threshold(self.human[rest], self.predicted[rest], groups[rest]) if known else epsilon
                found[one, other] = found[other, one] = own
        return epsilon, found[fold[:, None], fold[None]] if across else np.diagonal(found)[folds]

    def pairs(self, members: Sequence[Ints]) -> tuple[Ints, Ints, Ints]:
        """Count, per document, all pairs, the pairs that people tie, and the pairs that the scores tie."""
        found = np.zeros((3, len(members)), dtype=np.int64)
        for places, columns in _by_size(members):
            size = columns.shape[1]
            found[0, places] = size * (size - 1) // 2
            for into, values in zip(found[1:], (self.human[columns], self.predicted[columns]), strict=True):
                into[places] = ((values[:, :, None] == values[:, None]).sum(axis=(1, 2)) - size) // 2
        return found[0], found[1], found[2]

    def by_cell(self, values: Floats) -> Floats:
        """Sum up values, shape (documents, systems)."""
        sums = np.zeros((len(self.documents), len(self.systems)))
        np.add.at(sums, (self.document, self.system), values)
        return sums


def _summary(table: ItemTable, target: Target | None, accuracy: bool | None, draws: Draws | None) -> LevelFigures:
    members = _members(table.document)
    is_wanted = _wants(accuracy, max(own.size for own in members))
    epsilon, thresholds = table.thresholds(across=False) if is_wanted else (None, None)
    found = np.full((len(members), 5), np.nan)
    drawn = None if draws is None else np.full((draws.count, len(members), 5), np.nan)
    pairs, ties_human, ties_predicted = table.pairs(members)
    skipped = _skipped(table.documents, pairs, ties_human, ties_predicted)
    for places, columns in _by_size(members):
        human, predicted = table.human[columns], table.predicted[columns]
        tied_within = None if thresholds is None else thresholds[places]
        found[places] = weighted(human, predicted, np.ones((1, 1, columns.shape[1])), tied_within)[:, 0]
        if drawn is None or draws is None:
            continue
        step = max(1, CHUNK // (draws.count * columns.shape[1]))
        for start in range(0, len(places), step):
            part = slice(start, start + step)
            rows = columns[part]
            weights = draws.systems(table.systems)[:, table.system[rows]].transpose(1, 0, 2)
            ties = None if tied_within is None else tied_within[part]
            drawn[:, places[part]] = weighted(human[part], predicted[part], weights, ties).transpose(1, 0, 2)
    kept = np.array([name not in skipped for name in table.documents])
    table.marked(found)
    value = found[kept].mean(axis=0) if kept.any() else np.full(5, np.nan)
    parts = {name: own for name, own in zip(table.documents, found, strict=True) if name not in skipped}
    figures = FiguresWithErrors(value, parts if target == "documents" and draws is None else {})
    if drawn is not None and draws is not None:
        weight = np.where(np.isfinite(drawn[..., 2]), draws.documents(table.documents), 0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = (np.nan_to_num(drawn) * weight[..., None]).sum(1) / weight.sum(1)[:, None]
        means[:, 3] = means[:, 3] if epsilon is not None else np.nan
        figures = draws.figures(value, table.marked(means))
    tied = Ties(int(pairs.sum()), int(ties_human.sum()), int(ties_predicted.sum()))
    return LevelFigures(figures, skipped, len(parts), tied, epsilon)


def _pooled(table: ItemTable, target: Target | None, accuracy: bool | None, draws: Draws | None) -> LevelFigures:
    count = table.human.size
    epsilon, thresholds = table.thresholds(across=True) if _wants(accuracy, count) else (None, None)
    value = coefficients(table.human, table.predicted)
    if thresholds is not None:
        order, gap = (values[:, None] - values for values in (table.human, table.predicted))
        value[3] = (is_right(np.sign(order), gap, thresholds).sum() - count) / (count * (count - 1))
    figures = FiguresWithErrors(table.marked(value))
    if draws is not None and count > _MOST_ITEMS:
        figures = FiguresWithErrors(value, _blocks(table) if target == "documents" else {})
    elif draws is not None:
        drawn = _pooled_draws(table, draws, thresholds)
        figures = draws.figures(value, drawn)
    ties = Ties(count * (count - 1) // 2, tied_pairs(table.human), tied_pairs(table.predicted))
    return LevelFigures(figures, {}, count, ties, epsilon)


def _blocks(table: ItemTable) -> dict[str, Floats]:
    """Correlate blocks of documents one by one; the spread between blocks estimates the sampling error of one block."""
    names, codes = in_order([_block(table.documents[place]) for place in table.document])
    found = np.array([coefficients(table.human[own], table.predicted[own]) for own in _members(codes)])
    table.marked(found)
    shifted = table.marked(coefficients(table.human, table.predicted)) + found - np.nanmean(found, axis=0)
    return dict(zip(names, shifted, strict=True))


def _pooled_draws(table: ItemTable, draws: Draws, thresholds: Floats | None) -> Floats | None:
    """Compute pooled coefficients in every draw from sums and pairs of cells; a draw takes whole cells."""
    documents = [table.documents[place] for place in table.document]
    names, unit = in_order(documents if draws.has(documents[0]) else [_block(name) for name in documents])
    drawn = {"documents": (unit, 0 * unit), "systems": (0 * unit, table.system), "both": (unit, table.system)}
    places, cell = np.unique(np.stack(drawn[draws.target]), axis=1, return_inverse=True)
    if places.shape[1] > _MOST_CELLS:
        return None
    cell = cell.reshape(-1)
    weights = draws.documents(names)[:, places[0]] * draws.systems(table.systems or ("",))[:, places[1]]
    order = np.argsort(cell, kind="stable")
    human, predicted, cell = table.human[order], table.predicted[order], cell[order]
    starts = np.searchsorted(cell, np.arange(weights.shape[1]))
    tables = np.zeros((3 + (thresholds is not None), weights.shape[1], weights.shape[1]))
    # Only their order counts, which numbers of 4 bytes hold exactly for fewer than 2 ** 24 values.
    ranks = [np.unique(one, return_inverse=True)[1].astype(np.float32) for one in (human, predicted)]
    step = max(1, CHUNK // cell.size)
    for start in range(0, cell.size, step):
        rows = slice(start, start + step)
        sh, sp = (np.sign(one[rows, None] - one) for one in ranks)
        pairs = [sh * sp, np.abs(sh), np.abs(sp)]
        if thresholds is not None:
            gap = predicted[rows, None] - predicted
            right = is_right(sh, gap, thresholds[order[rows, None], order])
            right[np.arange(len(right)), np.arange(cell.size)[rows]] = 0.0
            pairs.append(right)
        for into, own in zip(tables, pairs, strict=True):
            np.add.at(into, cell[rows], np.add.reduceat(own, starts, axis=1))
    forms = [((weights @ own) * weights).sum(axis=1) for own in tables]
    pearson, spearman = np.full((2, len(weights)), np.nan)
    total, squares = np.zeros((2, len(weights)))
    for start in range(0, len(weights), max(1, CHUNK // cell.size)):
        rows = slice(start, start + max(1, CHUNK // cell.size))
        by_item = weights[rows][:, cell]
        total[rows], squares[rows] = by_item.sum(axis=1), (by_item**2).sum(axis=1)
        pearson[rows] = correlation(human - human.mean(), predicted - predicted.mean(), by_item)
        spearman[rows] = correlation(_ranks(human, by_item), _ranks(predicted, by_item), by_item)
    return table.marked(from_forms(pearson, spearman, forms, total**2 - squares))


def _ranks(values: Floats, weights: Floats) -> Floats:
    """Rank values, each repeated by its weight, shape (draws, n); ties share their mean rank."""
    order = np.argsort(values, kind="stable")
    first = np.searchsorted(values[order], values[order], "left")
    upto = np.searchsorted(values[order], values[order], "right")
    below = np.pad(np.cumsum(weights[:, order], axis=1), ((0, 0), (1, 0)))
    ranks = np.empty_like(weights)
    ranks[:, order] = (below[:, first] + below[:, upto]) / 2
    return ranks


def _system(table: ItemTable, target: Target | None, accuracy: bool | None, draws: Draws | None) -> LevelFigures:
    human, predicted, count = map(table.by_cell, (table.human, table.predicted, np.ones(table.human.size)))
    h, p = (_means(own.sum(axis=0), count.sum(axis=0)) for own in (human, predicted))
    points = len(table.systems)
    wanted = accuracy is not False
    figures = FiguresWithErrors(table.marked(_of_means(h, p[None], np.ones(points), accuracy=wanted))[0])
    if draws is not None:
        weight, times = draws.documents(table.documents), draws.systems(table.systems)
        answered = weight @ count
        # If a draw has none of a system's documents, it lacks that system.
        times = np.where(answered > 0, times, 0.0)
        drawn_h, drawn_p = (np.nan_to_num(_means(weight @ own, answered)) for own in (human, predicted))
        drawn = table.marked(_of_means(drawn_h, drawn_p, times, accuracy=wanted))
        figures = draws.figures(figures.value, drawn)
    ties = Ties(points * (points - 1) // 2, tied_pairs(h), tied_pairs(p))
    return LevelFigures(figures, {}, points, ties, 0.0)


def exchanged(
    first: Sequence[ScoredItem], second: Sequence[ScoredItem], draws: Draws, *, accuracy: bool = True
) -> Floats:
    """Compute the difference of two judges' coefficients over systems, with their scores exchanged in every draw.

    A draw exchanges a cell (document and system) if it exchanges the document or the system, but not both. Both judges
    are standardised first, since a system's mean may then mix scores of both (Deutsch et al.).
    """
    one = ItemTable(first)
    scores = np.array([[item.predicted for item in items] for items in (first, second)])
    scores -= scores.mean(axis=1, keepdims=True)
    spread = scores.std(axis=1, keepdims=True)
    scores /= np.where(spread > 0, spread, 1.0)
    human, mine, theirs, count = map(one.by_cell, (one.human, *scores, np.ones(one.human.size)))
    change = theirs - mine
    by_document = draws.documents(one.documents) @ change
    moved = by_document + draws.systems(one.systems) * (change.sum(axis=0) - 2 * by_document)
    total = count.sum(axis=0)
    h, sides = _means(human.sum(axis=0), total), (mine.sum(axis=0) + moved, theirs.sum(axis=0) - moved)
    found = [_of_means(h, _means(own, total), np.ones(total.size), accuracy=accuracy) for own in sides]
    return one.marked(found[0] - found[1])


def _of_means(human: Floats, predicted: Floats, times: Floats, *, accuracy: bool) -> Floats:
    """Compute coefficients of systems' means, shape (draws, systems), each system repeated `times` times."""
    human, times = (np.broadcast_to(own, predicted.shape) for own in (human, times))
    step = max(1, CHUNK // predicted.shape[1] ** 2)
    parts = [slice(start, start + step) for start in range(0, len(predicted), step)]
    ties = np.zeros(len(predicted)) if accuracy else None
    found = [weighted(human[p], predicted[p], times[p, None], None if ties is None else ties[p])[:, 0] for p in parts]
    return np.concatenate(found)


def _wants(accuracy: bool | None, items: int) -> bool:
    return items <= _CHEAP if accuracy is None else accuracy


def _means(total: Floats, count: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        # The order of summation changes the last bits, which would break ties between equal means.
        return np.asarray(np.round(total / count, 12))


def in_order(names: Sequence[str]) -> tuple[tuple[str, ...], Ints]:
    """Return the different names in the order of their appearance, and the place of each name among them."""
    numbers: dict[str, int] = {}
    codes = np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)
    return tuple(numbers), codes


def _members(codes: Ints) -> list[Ints]:
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(1, int(codes.max()) + 1)))


def _by_size(members: Sequence[Ints]) -> Iterator[tuple[Ints, Ints]]:
    """Group documents by their number of items n: yields their places, and their items, shape (documents, n)."""
    sizes: dict[int, list[int]] = defaultdict(list)
    for place, own in enumerate(members):
        sizes[own.size].append(place)
    for size, places in sizes.items():
        step = max(1, CHUNK // size**2)
        for start in range(0, len(places), step):
            chosen = np.array(places[start : start + step])
            yield chosen, np.stack([members[place] for place in chosen])


def _skipped(documents: Sequence[str], pairs: Ints, ties_human: Ints, ties_predicted: Ints) -> dict[str, str]:
    """Return, for every document without a coefficient, the reason."""
    found = {}
    for place in np.flatnonzero((ties_human == pairs) | (ties_predicted == pairs)).tolist():
        sides = (("human ratings", ties_human), ("predictions", ties_predicted))
        flat = [name for name, tied in sides if tied[place] == pairs[place]]
        found[documents[place]] = f"constant {' and '.join(flat)}" if pairs[place] else "a single item"
    return found
