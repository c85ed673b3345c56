"""Systems and pairs on the page of a run: rankings as pictures and as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from geval_local.analysis.differences import ROUNDING, Gap, Ranking, pair_table, rank_systems, ranking_table
from geval_local.analysis.pair_study import (
    consistency_table,
    pair_agreement_table,
    rank_table,
    study_pairs,
)
from geval_local.analysis.preferences import holds_pairs, read_preferences
from geval_local.analysis.results import ScoredRun
from geval_local.analysis.tables import Table, interval, number
from geval_local.direction import Direction
from geval_local.errors import DataError
from geval_local.statistics.interval import Interval
from geval_local.statistics.records import ScoredItem

#: Percent of a track's width that stay free at its ends, so that no dot is clipped.
_SIDE = 2
_LONGEST_NAME = 60
#: A column with more distinct names than this is no column of systems, unless the user named it.
MOST_SYSTEMS = 40


@dataclass(frozen=True)
class ChartRow:
    """One figure; places are percentages of the track's width."""

    name: str
    short: str
    text: str
    x: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class IntervalChart:
    """A picture of figures with intervals."""

    title: str
    axis: str
    rows: tuple[ChartRow, ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def description(self) -> str:
        """The picture in words."""
        return "; ".join(f"{row.name}: {row.text}" for row in self.rows)


def interval_chart(
    title: str, figures: Mapping[str, Interval], axis: str, *, remarks: Mapping[str, str] | None = None
) -> IntervalChart | None:
    """Lay out figures with their intervals; None if no figure is finite."""
    ends = [end for one in figures.values() for end in (one.low, one.value, one.high) if math.isfinite(end)]
    if not ends:
        return None
    low, high = min(ends), max(ends)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    step = _step(low, high)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step

    def place(value: float) -> float | None:
        inside = _SIDE + (value - low) / (high - low) * (100 - 2 * _SIDE)
        return round(inside, 2) if math.isfinite(value) else None

    rows = tuple(
        ChartRow(
            name,
            name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…",
            f"{interval(one)} {(remarks or {}).get(name, '')}".rstrip(),
            *(place(value) for value in (one.value, one.low, one.high)),
        )
        for name, one in figures.items()
    )
    count = round((high - low) / step)
    ticks = tuple((place(low + index * step) or 0.0, f"{round(low + index * step, 9):g}") for index in range(count + 1))
    return IntervalChart(title, axis, rows, ticks)


def _step(low: float, high: float) -> float:
    """Return the distance of ticks: 1, 2 or 5 times a power of ten, for four to nine ticks."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def system_section(
    metric: str,
    items: Sequence[ScoredItem],
    ranking: Ranking | None = None,
    *,
    named: bool,
    human: str | None = None,
    direction: Direction = Direction.HIGH,
    smallest: float = ROUNDING,
) -> dict[str, Any] | None:
    """Compare the systems on one metric for the template, unless the ranking is given; None without two systems."""
    found = {item.system for item in items}
    if not named and len(found - {""}) < 2:
        return None
    if not named and len(found) > MOST_SYSTEMS:
        why = f"The column of systems holds {len(found)} different texts, too many to compare each with each other."
        return {"metric": metric, "why": why}
    try:
        ranking = ranking or rank_systems(items, direction=direction, smallest=smallest)
    except DataError as error:
        if named:
            raise
        return {"metric": metric, "why": f"Systems are not compared: {error.message}."}
    if ranking.doubt:
        return {"metric": metric, "why": "", "told": ranking.doubt, "doubt": ranking.doubt}
    return {
        "metric": metric,
        "why": "",
        "told": ranking.told,
        "ranking": ranking,
        "doubt": "",
        "chart": interval_chart(
            "Mean score of each system, with 95 % intervals",
            {side.side: side.shown for side in ranking.systems},
            "mean score"
            + (", adjusted for documents" if any(side.adjusted for side in ranking.systems) else "")
            + ("; systems that share a letter cannot be told apart" if ranking.groups else ""),
            remarks={side.side: ranking.letters(side.side) for side in ranking.systems},
        ),
        "table": _without_sentence(ranking_table(ranking, human), ranking.told),
        "pairs": pair_table(ranking),
    }


@dataclass(frozen=True)
class MatrixCell:
    """Mean preference for the row's system over the column's."""

    text: str = ""
    title: str = ""
    level: str = ""


def pair_section(run: ScoredRun, metric: str) -> dict[str, Any] | None:
    """Return the figures of a run's comparisons on one metric for the template; None if it rates single outputs."""
    if not holds_pairs(run.rows.first, metric):
        return None
    study = study_pairs(read_preferences(run, metric))
    ranking = study.ranking
    names = () if ranking.doubt else tuple(study.names)
    shown = names if 2 <= len(names) <= MOST_SYSTEMS else ()
    letters = {name: ranking.letters(name) for name in names}
    grouped = "; systems that share a letter cannot be told apart" if ranking.groups else ""
    return {
        "metric": metric,
        "told": ranking.told,
        "chart": interval_chart(
            "Mean preference for each system, with 95 % intervals",
            {side.side: side.mean for side in ranking.systems if not ranking.doubt},
            f"preferred{grouped}",
            remarks=letters,
        ),
        "strengths": interval_chart(
            "Bradley-Terry strength of each system, with 95 % intervals",
            {name: study.strengths[name] for name in names},
            "strength in log-odds, mean 0",
        ),
        "ranks": _without_sentence(rank_table(study), ranking.told) if names else None,
        "pairs": pair_table(ranking) if ranking.pairs and not ranking.doubt else None,
        "names": shown,
        "matrix": _matrix(ranking.pairs, shown),
        "consistency": consistency_table({metric: study.consistency}),
        "agreement": None if study.agreement is None else pair_agreement_table({metric: study.agreement}),
    }


def _matrix(pairs: Sequence[Gap], names: tuple[str, ...]) -> tuple[tuple[MatrixCell, ...], ...]:
    found = {}
    for pair in pairs:
        ends = f"{pair.first} / {pair.second}: {interval(pair.difference)} on {pair.documents} documents"
        found[pair.first, pair.second] = MatrixCell(number(pair.means[0]), ends, _level(pair.means[0]))
        found[pair.second, pair.first] = MatrixCell(number(pair.means[1]), ends, _level(pair.means[1]))
    return tuple(tuple(found.get((one, other), MatrixCell()) for other in names) for one in names)


def _level(value: float) -> str:
    if abs(value - 0.5) < 0.05:
        return "even"
    return f"{'win' if value > 0.5 else 'loss'}{2 if abs(value - 0.5) >= 0.2 else 1}"


def _without_sentence(table: Table, told: str) -> Table:
    """Remove the sentence above the picture from the table's notes."""
    return replace(table, notes=tuple(note for note in table.notes if note != told))
