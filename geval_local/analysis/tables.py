"""Results as headers and rows of text: what a terminal table, Markdown or HTML is made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from geval_local.analysis.ratings.published import PublishedTable
from geval_local.analysis.statistics.agreement import Agreement
from geval_local.analysis.statistics.correlation import Correlation
from geval_local.analysis.statistics.resampling import Interval
from geval_local.analysis.statistics.significance import Comparison
from geval_local.analysis.studies.bias import Gap, SideMean
from geval_local.analysis.studies.calibration import Calibration, Figures
from geval_local.analysis.studies.sampling import SamplingCost, Spread

__all__ = [
    "Table",
    "agreement_table",
    "benchmark_table",
    "calibration_table",
    "comparison_table",
    "correlation_table",
    "gap_table",
    "interval",
    "number",
    "sampling_table",
    "side_table",
]


@dataclass(frozen=True)
class Table:
    """Headers, rows of cells, and what belongs under the table.

    Attributes
    ----------
    headers : tuple of str
        One per column; the first names the rows, the others are to be aligned to the right.
    rows : tuple of tuple of str
        As many cells as headers.
    notes : tuple of str
        One line each.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def number(value: float, digits: int = 3) -> str:
    """Write a figure; a dash where it is undefined."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def interval(value: Interval, digits: int = 3) -> str:
    """Write a figure with its interval, where it has one."""
    if not (math.isfinite(value.value) and math.isfinite(value.low)):
        return number(value.value, digits)
    return f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def correlation_table(
    results: Mapping[str, Correlation],
    coefficients: Sequence[str] = ("pearson", "spearman", "kendall"),
    *,
    digits: int = 3,
) -> Table:
    """One row per name, with coefficients, counts, ties, and why groups and items are missing."""
    rows = []
    for name, result in results.items():
        ties = result.ties
        rows.append(
            (
                name,
                result.level,
                *(interval(getattr(result, coefficient), digits) for coefficient in coefficients),
                str(result.n),
                f"{result.points}/{result.groups}" if result.level == "summary" else str(result.points),
                f"{_share(ties.human, ties.pairs)} / {_share(ties.predicted, ties.pairs)}",
                _reasons(result.skipped),
                _reasons(result.left_out),
            )
        )
    headers = ("", "level", *coefficients, "n", "points", "ties human / score", "groups skipped", "items left out")
    return Table(headers, tuple(rows))


def benchmark_table(
    own: Mapping[str, Mapping[str, Correlation]], published: PublishedTable, *, digits: int = 3
) -> Table:
    """Own rows above the published ones, on the published table's coefficient and columns.

    Parameters
    ----------
    own : mapping of str to mapping of str to Correlation
        Name of a judge or metric -> dimension -> result. The average is over the table's dimensions, and only where all
        of them are defined. A benchmark of one dimension fills the column of the file that it is (``xsum`` for QAGS).
    published : PublishedTable
        The paper's.
    """
    columns = published.columns
    rows = []
    for name, results in own.items():
        values = {key: getattr(result, published.coefficient).value for key, result in results.items()}
        if published.benchmark == "qags":
            values = {"xsum": values.get("consistency", math.nan)}
        dimensions = [values.get(column, math.nan) for column in columns if column != "average"]
        values["average"] = sum(dimensions) / len(dimensions)
        rows.append((name, *(number(values.get(column, math.nan), digits) for column in columns), "measured"))
    for row in published.rows:
        rows.append((row.system, *(number(row.values.get(column, math.nan)) for column in columns), "published"))
    notes = (f"{published.level}-level {published.coefficient}", f"published: {published.citation}. {published.note}")
    return Table(("", *columns, "origin"), tuple(rows), notes)


def comparison_table(results: Mapping[str, Comparison]) -> Table:
    """One row per compared pair."""
    rows = tuple(
        (
            name,
            f"{r.level} {r.coefficient}",
            number(r.first),
            number(r.second),
            interval(r.difference),
            number(r.p),
            "-" if r.williams is None else f"t({r.williams.df}) = {r.williams.t:.2f}, p = {r.williams.p:.3f}",
            f"{r.n} / {r.groups}",
        )
        for name, r in results.items()
    )
    headers = ("", "on", "first", "second", "difference", "p", "Williams", "items / groups")
    return Table(headers, rows, tuple(dict.fromkeys(result.why for result in results.values())))


def agreement_table(results: Mapping[str, Agreement]) -> Table:
    """One row per pair of judges or runs."""
    figures = ("pearson", "spearman", "kendall", "mean_difference", "mean_absolute_difference", "largest_difference")
    rows = tuple(
        (
            name,
            str(r.n),
            *(number(getattr(r, figure)) for figure in figures),
            number(r.alpha),
            f"{r.only_first} / {r.only_second}",
        )
        for name, r in results.items()
    )
    headers = (
        "",
        "n",
        "pearson",
        "spearman",
        "kendall",
        "mean diff",
        "mean |diff|",
        "max |diff|",
        "alpha",
        "one alone",
    )
    return Table(headers, rows)


def sampling_table(costs: Sequence[SamplingCost]) -> Table:
    """One row per number of draws, the exact expectation first; the spread over seeds behind each figure."""

    def spread(value: Spread | None, exact: bool) -> str:
        if value is None:
            return "-"
        return number(value.mean) if exact else f"{number(value.mean)} ± {number(value.sd)}"

    rows = tuple(
        (
            "exact" if cost.n is None else f"n = {cost.n}",
            *(spread(figure, cost.n is None) for figure in (cost.error, cost.pearson, cost.spearman, cost.kendall)),
        )
        for cost in costs
    )
    return Table(
        ("draws", "mean |error|", "pearson", "spearman", "kendall"), rows, ("± standard deviation over seeds",)
    )


def side_table(means: Sequence[SideMean]) -> Table:
    """One row per side."""
    rows = tuple((m.side, interval(m.mean), number(m.human), str(m.n), str(m.unscored)) for m in means)
    return Table(("", "mean score", "mean human", "n", "unscored"), rows)


def gap_table(gaps: Mapping[str, Gap]) -> Table:
    """One row per gap, such as one per human preference."""
    rows = tuple(
        (
            name,
            f"{g.first} - {g.second}",
            interval(g.difference),
            number(g.p),
            g.test,
            str(g.documents),
            str(g.left_out),
        )
        for name, g in gaps.items()
    )
    return Table(("", "gap", "difference", "p", "test", "documents", "left out"), rows)


def calibration_table(calibration: Calibration) -> Table:
    """Before and after on held-out groups, beside the constant answer."""
    held = calibration.held_out

    def row(name: str, figures: Figures) -> tuple[str, ...]:
        return (name, *(number(value) for value in (figures.mae, figures.pearson, figures.spearman, figures.kendall)))

    rows = (
        row("before", held.before),
        row("after", held.after),
        ("constant", number(held.constant_mae), "-", "-", "-"),
    )
    notes = (
        f"held out: {held.folds} folds over {held.groups} groups, {held.n} items, {held.level}-level correlations",
        f"gain in mean absolute error {interval(held.gain)}",
    )
    return Table(("", "MAE", "pearson", "spearman", "kendall"), rows, notes)


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %" if total else "-"


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "0"
