"""Figures with one document, one system, or both left out: the basis of all intervals and tests of agreement.

The target population determines the units left out. ``documents``: the same systems on new documents. ``systems``:
new systems on the same documents. ``both``: new systems on new documents, with the variances of the two added and the
part counted by both (one item left out) subtracted once (Cameron, Gelbach and Miller, 2011).

Deutsch, Dror and Roth (2021) draw the same units with replacement; with 16 systems their percentile intervals cover far
less than their nominal level, while the jackknife with Student's t keeps it (benchmarks/coverage.py). Nothing is drawn,
so no seed is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geval_local.statistics.interval import Interval, jackknife_error, t_interval, t_test

Target = Literal["documents", "systems", "both"]
#: ``items``: one output left out, the cell of a document and a system.
Axis = Literal["documents", "systems", "items"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Replicates:
    """Figures on the data, and with each unit left out."""

    value: Floats
    without: Mapping[Axis, tuple[tuple[str, ...], Floats]] = field(default_factory=dict)

    def error(self, target: Target) -> tuple[Floats, int]:
        """Return standard errors, shape (figures,), and the number of independent units they rest on."""
        return self._error(target, lambda values: values)

    def interval(self, index: int, target: Target, confidence: float = 0.95, *, correlation: bool = False) -> Interval:
        """Return the confidence interval of one figure."""
        value = float(self.value[index])
        errors, units = self.error(target)
        plain = t_interval(value, float(errors[index]), units, confidence, unit=_unit(target))
        if not correlation or not np.isfinite(plain.low) or abs(value) > 1 - 1e-9:
            return plain
        z_errors, _ = self._error(target, lambda values: np.arctanh(np.clip(values, -1 + 1e-12, 1 - 1e-12)))
        on_z = t_interval(float(np.arctanh(value)), float(z_errors[index]), units, confidence)
        return Interval(value, float(np.tanh(on_z.low)), float(np.tanh(on_z.high)), plain.error, units, plain.warning)

    def p(self, index: int, target: Target) -> float:
        """Return the two-sided p-value of "the true figure is 0" by Student's t."""
        errors, units = self.error(target)
        return t_test(float(self.value[index]), float(errors[index]), units)

    def _error(self, target: Target, scale: Callable[[Floats], Floats]) -> tuple[Floats, int]:
        axes: list[Axis] = ["documents", "systems"] if target == "both" else [target]
        if any(axis not in self.without or len(self.without[axis][0]) < 2 for axis in axes):
            return np.full(self.value.size, np.nan), 0
        units = min(len(self.without[axis][0]) for axis in axes)
        variances = [jackknife_error(scale(self.without[axis][1])) ** 2 for axis in axes]
        if target != "both":
            return np.sqrt(variances[0]), units
        counted_twice = np.zeros_like(variances[0])
        if "items" in self.without:
            counted_twice = np.nan_to_num(jackknife_error(scale(self.without["items"][1])) ** 2)
        # At least as large as either of the two: their sum minus the common part can fall below, by chance.
        return np.sqrt(np.maximum(np.maximum(*variances), sum(variances) - counted_twice)), units


def minus(first: Replicates, second: Replicates) -> Replicates:
    """Difference of the figures, on the data and without each unit."""
    return _combined([first, second], [1.0, -1.0])


def mean_of(parts: Sequence[Replicates]) -> Replicates:
    """Mean of the figures over several data sets on the same documents, such as the dimensions of a benchmark."""
    return _combined(parts, [1 / len(parts)] * len(parts))


def _combined(parts: Sequence[Replicates], weights: Sequence[float]) -> Replicates:
    axes = [axis for axis in parts[0].without if all(axis in part.without for part in parts)]
    without: dict[Axis, tuple[tuple[str, ...], Floats]] = {}
    for axis in axes:
        names = tuple(dict.fromkeys(name for part in parts for name in part.without[axis][0]))
        total = np.zeros((len(names), parts[0].value.size))
        for part, weight in zip(parts, weights, strict=True):
            total += weight * _aligned(part, axis, names)
        without[axis] = (names, total)
    value = np.sum([weight * part.value for part, weight in zip(parts, weights, strict=True)], axis=0)
    return Replicates(value, without)


def _aligned(part: Replicates, axis: Axis, names: tuple[str, ...]) -> Floats:
    own, values = part.without[axis]
    if own == names:
        return values
    place = {name: index for index, name in enumerate(own)}
    # Leaving out an absent unit changes nothing.
    return np.array([values[place[name]] if name in place else part.value for name in names])


def _unit(target: Target) -> str:
    return {"documents": "documents", "systems": "systems", "both": "systems or documents"}[target]
