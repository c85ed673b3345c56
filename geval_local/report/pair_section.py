"""Pairs on the page of a run: what `preferences` says of the systems and of the judge, as pictures and as tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

from geval_local.analysis.pairs import (
    PairStudy,
    consistency_table,
    holds_pairs,
    pair_agreement_table,
    preference_of,
    rank_table,
    study_pairs,
    system_pair_table,
)
from geval_local.analysis.tables import Table, interval, number
from geval_local.io.results import Results
from geval_local.report.interval_chart import IntervalChart, interval_chart
from geval_local.report.system_section import MOST_SYSTEMS

__all__ = ["MatrixCell", "PairSection", "pair_section"]


@dataclass(frozen=True)
class MatrixCell:
    """Mean preference for the system of a row over that of a column.

    Attributes
    ----------
    text, title : str
        The figure, and the figure with its interval and what it rests on; empty where the two were not compared.
    level : str
        ``win2``, ``win1``, ``even``, ``loss1`` or ``loss2``, for the colour; empty where there is no figure.
    """

    text: str = ""
    title: str = ""
    level: str = ""


@dataclass(frozen=True)
class PairSection:
    """What comparisons on one metric say; figures are those of `study_pairs`.

    Attributes
    ----------
    metric : str
        Name of the metric.
    told : str
        What came out for the systems, in a sentence; empty where the rows name none.
    chart, strengths : IntervalChart or None
        Mean preference of every system, and its Bradley-Terry strength.
    ranks, pairs : Table or None
        The systems, and every two of them.
    names : tuple of str
        Systems of the matrix, the strongest first; empty where there are too many, or fewer than two.
    matrix : tuple of tuple of MatrixCell
        One row per system.
    consistency : Table
        How far the judge agrees with itself.
    agreement : Table or None
        How far it agrees with people's verdicts in the rows.
    """

    metric: str
    told: str
    chart: IntervalChart | None
    strengths: IntervalChart | None
    ranks: Table | None
    pairs: Table | None
    names: tuple[str, ...]
    matrix: tuple[tuple[MatrixCell, ...], ...]
    consistency: Table
    agreement: Table | None


def pair_section(run: Results, metric: str) -> PairSection | None:
    """Study the comparisons of a run on one metric; None where the metric rates single outputs.

    Raises
    ------
    DataError
        If a row holds no pair although the first one does, with its number.
    """
    rows = [(record, record.scores[metric].to_dict()) for record in run.records]
    record, figures = rows[0]
    if not holds_pairs({**record.columns, "geval": {metric: figures}}, metric):
        return None
    study = study_pairs(
        [preference_of(record.columns, own, f"{run.name}, row {record.number}") for record, own in rows]
    )
    names = tuple(one.system for one in study.ranks)
    shown = names if 2 <= len(names) <= MOST_SYSTEMS else ()
    letters = {name: study.letters(name) for name in names}
    grouped = "; systems that share a letter cannot be told apart" if study.groups else ""
    return PairSection(
        metric,
        study.told,
        interval_chart(
            "Mean preference for each system, with 95 % intervals",
            {one.system: one.preference for one in study.ranks},
            f"preferred{grouped}",
            remarks=letters,
        ),
        interval_chart(
            "Bradley-Terry strength of each system, with 95 % intervals",
            {one.system: one.strength for one in study.ranks},
            "strength in log-odds, mean 0",
        ),
        _without_sentence(rank_table(study, {}), study.told) if names else None,
        system_pair_table(study.pairs) if study.pairs else None,
        shown,
        _matrix(study, shown),
        consistency_table({metric: study.consistency}),
        None if study.agreement is None else pair_agreement_table({metric: study.agreement}),
    )


def _matrix(study: PairStudy, names: tuple[str, ...]) -> tuple[tuple[MatrixCell, ...], ...]:
    found = {}
    for pair in study.pairs:
        value = pair.preference.value
        if math.isfinite(value):
            told = f"first preferred {interval(pair.preference)}, n {pair.n}"
            ends = f"{pair.first} / {pair.second}: {told}"
            found[pair.first, pair.second] = MatrixCell(number(value), ends, _level(value))
            found[pair.second, pair.first] = MatrixCell(number(1 - value), ends, _level(1 - value))
    return tuple(tuple(found.get((one, other), MatrixCell()) for other in names) for one in names)


def _level(value: float) -> str:
    if abs(value - 0.5) < 0.05:
        return "even"
    return f"{'win' if value > 0.5 else 'loss'}{2 if abs(value - 0.5) >= 0.2 else 1}"


def _without_sentence(table: Table, told: str) -> Table:
    """Leave out of the table's notes what stands above the picture."""
    return Table(table.headers, table.rows, tuple(note for note in table.notes if note != told))
