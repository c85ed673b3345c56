"""Draws of documents and systems: bootstrap intervals, permutation tests, and folds.

The bootstrap draws whole documents, whole systems, or both with replacement; the target population decides which
(Deutsch, Dror and Roth, 2021, TACL; two-way draws: Owen and Eckles, 2012). All judges and dimensions of an analysis
share the draws, so differences and means are computed draw by draw. A mean of one figure per document uses Student's
interval and test, which need no bootstrap. This module also draws the exchanges between two judges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import ConfigurationError
from geval_local.statistics.interval import Interval, by_name, skewness_of, t_interval, t_test

Target = Literal["documents", "systems", "both"]
#: Number of exchanges of two judges.
PERMUTATIONS = 9_999
#: Draws of every bootstrap.
RESAMPLES = 1_000
#: Exchanges of fewer systems cannot reject at 0.05.
LEAST_EXCHANGED = 6

Floats = NDArray[np.float64]


class Draws:
    """How often each draw takes every document and every system, the same for all judges and dimensions."""

    def __init__(
        self,
        documents: Sequence[str],
        systems: Sequence[str],
        target: Target,
        *,
        count: int = RESAMPLES,
        seed: int = 0,
        swap: bool = False,
    ) -> None:
        self.target, self.count, self.swap = target, count, swap
        rng = np.random.default_rng(seed)
        self._documents = self._drawn(rng, documents if target != "systems" else ())
        self._systems = self._drawn(rng, systems if target != "documents" else ())
        sizes = [len(own) for own in (self._documents, self._systems) if own]
        self.units = min(sizes) if len(sizes) == 1 + (target == "both") else 0

    def _drawn(self, rng: np.random.Generator, names: Sequence[str]) -> dict[str, Floats]:
        names = sorted(names)
        if self.swap:
            found = rng.integers(0, 2, size=(len(names), self.count)).astype(np.float64)
        elif names:
            found = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=self.count).T.astype(float)
        return {name: found[place] for place, name in enumerate(names)}

    def has(self, document: str) -> bool:
        """Whether the draws take a document by itself, not in a block with others."""
        return document in self._documents

    def documents(self, names: Sequence[str]) -> Floats:
        """Return how often documents are drawn, or whether they are swapped, shape (draws, documents)."""
        return self._given(self._documents, names)

    def systems(self, names: Sequence[str]) -> Floats:
        """Return how often systems are drawn, or whether they are swapped, shape (draws, systems)."""
        return self._given(self._systems, names)

    def figures(self, value: Floats, drawn: Floats | None) -> FiguresWithErrors:
        """Combine figures on the data with the figures of every draw."""
        unit = "systems or documents" if self.target == "both" else self.target
        return FiguresWithErrors(value, {}, drawn, self.units, unit)

    def _given(self, drawn: Mapping[str, Floats], names: Sequence[str]) -> Floats:
        if not drawn:
            return np.full((self.count, len(names)), 0.0 if self.swap else 1.0)
        return np.stack([drawn[name] for name in names], axis=1)


@dataclass(frozen=True)
class FiguresWithErrors:
    """Figures on the data, with the values by document or by draw that give their errors."""

    #: Shape (figures,).
    value: Floats
    #: Document -> its own figures, if the value is their mean.
    parts: Mapping[str, Floats] = field(default_factory=dict)
    #: The figures in every draw, shape (draws, figures); None if `parts` gives the errors, or nothing was drawn.
    draws: Floats | None = None
    #: Number of independent units that were drawn: documents, systems, or the smaller of both.
    units: int = 0
    #: Their name.
    unit: str = "documents"

    def interval(self, index: int, *, on_z: bool = False, in_steps: bool = False) -> Interval:
        """Return the 95 % interval of one figure: Student's t, with the standard deviation of the draws as its error.

        Percentile intervals are too short for few units, and biased for ranks, since rank correlations of a draw are
        closer to 0 than those of the data (benchmarks/interval_coverage.py). Use `on_z` (Fisher's z) for Pearson's
        correlation over drawn systems. Use `in_steps` for rank coefficients of few systems: two nearly equal systems
        change places in half of the draws, and Student's interval never reaches the other step. The interval then also
        covers the middle 95 % of the draws (inference_edges.py).
        """
        value = float(self.value[index])
        if self.parts:
            own = np.array([part[index] for part in self.parts.values()])
            error = float(own.std(ddof=1) / math.sqrt(own.size)) if own.size > 1 else math.nan
            return t_interval(value, error, own.size, skewness=skewness_of(own))
        error = self._error(index)
        plain = t_interval(value, error, self.units, unit=self.unit)
        if in_steps and self.draws is not None and math.isfinite(plain.low):
            low, high = np.nanquantile(self.draws[:, index], (0.025, 0.975)).tolist()
            plain = replace(plain, low=min(plain.low, low), high=max(plain.high, high))
        if not on_z or not math.isfinite(plain.low) or abs(value) > 1 - 1e-9:
            return plain
        z = t_interval(math.atanh(value), self._error(index, on_z=True), self.units)
        return Interval(value, math.tanh(z.low), math.tanh(z.high), error, self.units, plain.warning)

    def by_document(self, index: int) -> dict[str, float]:
        """Return one figure for every document, if the value is their mean; else an empty dict."""
        return {name: float(part[index]) for name, part in self.parts.items()}

    def p(self, index: int, *, in_steps: bool = False) -> tuple[float, str]:
        """Return the two-sided p-value of "the true figure is 0", and a description of the test."""
        mean = self.interval(index)
        p = t_test(mean.value, mean.error, mean.units, skewness_of(list(self.by_document(index).values())))
        if in_steps and self.draws is not None:
            # Not below the p of the draws: else a near tie in one judge alone would separate equal judges.
            p = max(p, min(1.0, 2 * min(float(np.nanmean(sign * self.draws[:, index] >= 0)) for sign in (1, -1))))
        told = "." if self.parts else f"; standard error from {RESAMPLES:,} draws of {self.unit} (bootstrap)."
        return p, f"Student's t test, two-sided{told}"

    def _error(self, index: int, *, on_z: bool = False) -> float:
        if self.draws is None:
            return math.nan
        drawn = self.draws[:, index]
        drawn = drawn[np.isfinite(drawn)]
        if drawn.size < 0.9 * len(self.draws) or drawn.size < 2:
            return math.nan
        # Means of n drawn units vary by (n - 1) / n of the variance of means of n units (Efron, 1982).
        short = math.sqrt(self.units / max(1, self.units - 1))
        return short * float((np.arctanh(np.clip(drawn, -0.999, 0.999)) if on_z else drawn).std(ddof=1))


def minus(first: FiguresWithErrors, second: FiguresWithErrors) -> FiguresWithErrors:
    """Subtract the figures of one analysis, document by document and draw by draw."""
    return _combined([first, second], [1.0, -1.0])


def mean_of(parts: Sequence[FiguresWithErrors]) -> FiguresWithErrors:
    """Average the figures of several data sets on the same documents, such as the dimensions of a benchmark."""
    return _combined(parts, [1 / len(parts)] * len(parts))


def _combined(given: Sequence[FiguresWithErrors], weights: Sequence[float]) -> FiguresWithErrors:
    value = np.sum([weight * one.value for one, weight in zip(given, weights, strict=True)], axis=0)
    if any(one.parts for one in given):
        # Each document's contribution to the value; a document missing from a data set contributes nothing there.
        names = list(dict.fromkeys(name for one in given for name in one.parts))
        added = np.zeros((len(names), value.size))
        place = {name: index for index, name in enumerate(names)}
        for one, weight in zip(given, weights, strict=True):
            for name, own in one.parts.items():
                added[place[name]] += weight * (own - one.value) * len(names) / len(one.parts)
        return FiguresWithErrors(value, dict(zip(names, value + added, strict=True)))
    drawn = [one.draws for one in given if one.draws is not None]
    draws = None
    if len(drawn) == len(given):
        draws = np.asarray(sum(weight * one for weight, one in zip(weights, drawn, strict=True)))
    return FiguresWithErrors(value, {}, draws, min(one.units for one in given), given[0].unit)


def drawn_by_document(
    documents: Sequence[str], columns: Floats, figures: Callable[[Floats], Floats], seed: int = 0
) -> FiguresWithErrors:
    """Compute figures from sums of columns, shape (columns, items), over all items and over draws of documents.

    `figures` turns sums, shape (sets, columns), into figures, shape (sets, figures).
    """
    names, codes = by_name(documents)
    sums = np.stack([np.bincount(codes, column) for column in columns], axis=1)
    draws = Draws(names, (), "documents", seed=seed).documents(names)
    return FiguresWithErrors(figures(sums.sum(axis=0, keepdims=True))[0], {}, figures(draws @ sums), len(names))


def swapped_p(observed: float, drawn: Floats) -> float:
    """Compute the two-sided p-value of a difference of two judges from draws of swaps; the data are one more draw."""
    drawn = drawn[np.isfinite(drawn)]
    if not drawn.size or not math.isfinite(observed):
        return math.nan
    # The order of a sum must not separate equal arrangements.
    return float((np.count_nonzero(np.abs(drawn) >= abs(observed) - 1e-9) + 1) / (drawn.size + 1))


def group_folds(groups: Sequence[str], folds: int, seed: int) -> NDArray[np.int64]:
    """Assign whole groups to folds of nearly equal size."""
    names = sorted(set(groups))
    if folds < 2 or len(names) < 2:
        raise ConfigurationError(
            f"nothing can be held out with {len(names)} group(s) and {folds} fold(s)",
            hint="Give at least two groups (documents) and two folds: figures on the items fitted on are not reported.",
        )
    order = np.random.default_rng(seed).permutation(len(names))
    fold = {names[place]: rank % min(folds, len(names)) for rank, place in enumerate(order)}
    return np.array([fold[group] for group in groups], dtype=np.int64)
