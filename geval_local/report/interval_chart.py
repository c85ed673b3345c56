"""Figures with their intervals as a picture: one row each, on a common axis. Geometry only; the skeleton draws it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from geval_local.analysis.tables import interval
from geval_local.interval import Interval

__all__ = ["WIDTH", "ChartRow", "IntervalChart", "interval_chart"]

#: Of the drawing, in its own units; the style sheet decides how large it is shown.
WIDTH = 420
_SIDE, _TOP, _ROW, _AXIS = 10, 6, 34, 22
_LONGEST_NAME = 36


@dataclass(frozen=True)
class ChartRow:
    """One figure.

    Attributes
    ----------
    name, short : str
        What it belongs to, and that cut to fit.
    text : str
        The figure with its interval, as tables write it, and a remark.
    y : float
        Where the row begins.
    x, low, high : float or None
        Places of the figure and of its interval's ends; None where there is none.
    """

    name: str
    short: str
    text: str
    y: float
    x: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class IntervalChart:
    """A picture of figures with intervals.

    Attributes
    ----------
    title, axis : str
        Heading, and what the axis counts.
    height : int
        Of the drawing.
    rows : tuple of ChartRow
        From the top.
    ticks : tuple of (float, str)
        Place on the axis, and what stands there.
    """

    title: str
    axis: str
    height: int
    rows: tuple[ChartRow, ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def description(self) -> str:
        """The picture in words."""
        return "; ".join(f"{row.name}: {row.text}" for row in self.rows)


def interval_chart(
    title: str, figures: Mapping[str, Interval], axis: str, *, remarks: Mapping[str, str] | None = None
) -> IntervalChart | None:
    """Lay out figures with their intervals; None where no figure is finite.

    Parameters
    ----------
    title : str
        Heading.
    figures : mapping of str to Interval
        Name -> figure, from the top.
    axis : str
        What the axis counts.
    remarks : mapping of str to str, optional
        Name -> what follows the figure, such as the letters of its groups.
    """
    ends = [end for one in figures.values() for end in (one.low, one.value, one.high) if math.isfinite(end)]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    step = _step(low, high)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step

    def place(value: float) -> float | None:
        inside = _SIDE + (value - low) / (high - low) * (WIDTH - 2 * _SIDE)
        return round(inside, 2) if math.isfinite(value) else None

    rows = tuple(
        ChartRow(
            name,
            name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…",
            f"{interval(one)} {(remarks or {}).get(name, '')}".rstrip(),
            _TOP + index * _ROW,
            *(place(value) for value in (one.value, one.low, one.high)),
        )
        for index, (name, one) in enumerate(figures.items())
    )
    count = round((high - low) / step)
    ticks = tuple((place(low + index * step) or 0.0, f"{round(low + index * step, 9):g}") for index in range(count + 1))
    return IntervalChart(title, axis, _TOP + len(rows) * _ROW + _AXIS + 16, rows, ticks)


def _step(low: float, high: float) -> float:
    """Distance of ticks: 1, 2 or 5 times a power of ten, so that there are four to nine."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
