"""Systems side by side on the page of a run: the ranking of `compare`, as a picture and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geval_local.analysis.differences import Ranking, pair_table, rank_systems, ranking_table
from geval_local.analysis.records import ScoredItem
from geval_local.analysis.tables import Table
from geval_local.errors import DataError
from geval_local.report.interval_chart import IntervalChart, interval_chart

__all__ = ["MOST_SYSTEMS", "SystemSection", "system_section"]

#: More distinct names than this in a column that was not named as the system's are no systems.
MOST_SYSTEMS = 40


@dataclass(frozen=True)
class SystemSection:
    """Systems compared on one metric.

    Attributes
    ----------
    metric : str
        Name of the metric.
    told : str
        What came out, in a sentence.
    chart : IntervalChart or None
        Means with their intervals.
    table, pairs : Table or None
        The ranking, and all differences.
    why : str
        Why there is no ranking; empty where there is one.
    """

    metric: str
    told: str = ""
    chart: IntervalChart | None = None
    table: Table | None = None
    pairs: Table | None = None
    why: str = ""


def system_section(
    metric: str,
    items: Sequence[ScoredItem],
    *,
    named: bool,
    baseline: str | None = None,
    tie: float = 0.0,
    seed: int = 0,
) -> SystemSection | None:
    """Compare the systems of a run on one metric; None where its rows name fewer than two.

    Parameters
    ----------
    metric : str
        Name of the metric.
    items : sequence of ScoredItem
        Its scores.
    named : bool
        Whether the user named the column; then everything that speaks against a comparison is an error.
    baseline, tie, seed
        As in `rank_systems`.

    Raises
    ------
    DataError, ConfigurationError
        As `rank_systems`, where the column was named.
    """
    found = {item.system for item in items}
    if not named and len(found - {""}) < 2:
        return None
    if not named and len(found) > MOST_SYSTEMS:
        why = f"The column of systems holds {len(found)} different texts, too many to compare each with each other."
        return SystemSection(metric, why=why)
    try:
        ranking = rank_systems(items, baseline=baseline, tie=tie, seed=seed)
    except DataError as error:
        if named:
            raise
        return SystemSection(metric, why=f"Systems are not compared: {error.message}.")
    return SystemSection(metric, ranking.told, _chart(ranking), _without_sentence(ranking), pair_table(ranking))


def _chart(ranking: Ranking) -> IntervalChart | None:
    return interval_chart(
        "Mean score of each system, with 95 % intervals",
        {side.side: side.mean for side in ranking.systems},
        "mean score" + ("; systems that share a letter cannot be told apart" if ranking.groups else ""),
        remarks={side.side: ranking.letters(side.side) for side in ranking.systems},
    )


def _without_sentence(ranking: Ranking) -> Table:
    """Leave out of the table's notes what stands above the picture."""
    table = ranking_table(ranking)
    return Table(table.headers, table.rows, tuple(note for note in table.notes if note != ranking.told))
