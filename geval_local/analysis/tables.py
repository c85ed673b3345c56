"""Results as headers and rows of text, for terminal tables, Markdown or HTML."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from geval_local.analysis.ratings.published import PublishedTable
from geval_local.analysis.ratings.responses import ParsedResponses
from geval_local.analysis.statistics.agreement import Agreement
from geval_local.analysis.statistics.coefficients import COEFFICIENTS
from geval_local.analysis.statistics.correlation import Correlation
from geval_local.analysis.statistics.significance import Comparison
from geval_local.analysis.studies.calibration import Calibration, Figures
from geval_local.analysis.studies.ceiling import Ceiling
from geval_local.analysis.studies.comparison import Difference
from geval_local.analysis.studies.jury import Jury
from geval_local.analysis.studies.length import LengthBias
from geval_local.analysis.studies.sides import Gap, SideMean
from geval_local.analysis.text_table import Table, interval, interval_warnings, number, p_value
from geval_local.interval import Interval

__all__ = [
    "Table",
    "agreement_table",
    "average_table",
    "benchmark_table",
    "calibration_table",
    "ceiling_table",
    "comparison_table",
    "correlation_table",
    "difference_table",
    "disagreement_table",
    "gap_table",
    "interval",
    "interval_warnings",
    "largest_table",
    "length_table",
    "number",
    "p_value",
    "response_table",
    "side_table",
    "weight_table",
]


def correlation_table(
    results: Mapping[str, Correlation],
    coefficients: Sequence[str] = COEFFICIENTS,
) -> Table:
    """Build a table with one row per name: coefficients, counts, ties, and reasons for missing groups and items.

    The accuracy is shown if every row has one, the AUC if any has; the notes name the intervals' populations.
    """
    wanted = [*coefficients]
    if results and all(math.isfinite(result.accuracy.value) for result in results.values()):
        wanted.append("accuracy")
    if any(math.isfinite(result.auc.value) for result in results.values()):
        wanted.append("auc")
    wanted = list(dict.fromkeys(wanted))
    rows = []
    for name, result in results.items():
        ties = result.ties
        rows.append(
            (
                name,
                result.level,
                *(interval(getattr(result, coefficient)) for coefficient in wanted),
                str(result.n),
                f"{result.points}/{result.groups}" if result.level == "summary" else str(result.points),
                f"{_share(ties.human, ties.pairs)} / {_share(ties.predicted, ties.pairs)}",
                _reasons(result.skipped),
                _reasons(result.left_out),
            )
        )
    headers = ("", "level", *wanted, "n", "points", "ties human / score", "groups skipped", "items left out")
    notes = [f"95 % intervals hold for {result.holds_for}" for result in results.values()]
    if "accuracy" in wanted:
        notes.append("accuracy: pairs ordered, or tied, as people do, with calibrated ties (Deutsch et al., 2023)")
    if len({result.points for result in results.values() if result.level == "summary"}) > 1:
        notes.append("rows with different points are about different documents: only a test on common ones compares")
    notes += interval_warnings({name: getattr(result, wanted[0]) for name, result in results.items()})
    return Table(headers, tuple(rows), tuple(dict.fromkeys(notes)))


def average_table(averages: Mapping[str, Interval], what: str) -> Table:
    """Build a table of averages over a benchmark's dimensions, one row per contender."""
    rows = tuple((name, interval(one)) for name, one in averages.items())
    return Table(("", what), rows, tuple(interval_warnings(averages)))


def ceiling_table(ceiling: Ceiling) -> Table:
    """Build a table of people with each other, and each judge in place of one of them."""
    rows = [("people, leave one out", interval(ceiling.people), "-", "-")]
    rows += [
        (name, interval(one.agreement), interval(one.difference), p_value(one.p))
        for name, one in ceiling.judges.items()
    ]
    notes = (
        f"{ceiling.raters} raters, {ceiling.n} items with two ratings or more, Krippendorff's alpha "
        f"{number(ceiling.alpha)} (interval data)",
        "each rater, or the judge in that rater's place, against the mean of the others; mean over raters",
    )
    headers = ("", f"{ceiling.level} {ceiling.coefficient}", "less people", "p")
    return Table(headers, tuple(rows), (*notes, *interval_warnings({"people": ceiling.people})))


def benchmark_table(
    own: Mapping[str, Mapping[str, Correlation]],
    published: PublishedTable,
    columns_of: Mapping[str, str] | None = None,
) -> Table:
    """Build a table of own rows above published ones, with the published table's coefficient and columns.

    Parameters
    ----------
    own : mapping of str to mapping of str to Correlation
        Name of a judge or metric -> dimension -> result. The average is over the table's dimensions, and only where all
        of them are defined.
    published : PublishedTable
        The paper's.
    columns_of : mapping of str to str, optional
        Dimension -> its column, where that has another name: the half of QAGS that the file is.
    """
    columns = published.columns
    rows = []
    for name, results in own.items():
        values = {
            (columns_of or {}).get(key, key): getattr(result, published.coefficient).value
            for key, result in results.items()
        }
        dimensions = [values.get(column, math.nan) for column in columns if column != "average"]
        values["average"] = sum(dimensions) / len(dimensions)
        rows.append((name, *(number(values.get(column, math.nan)) for column in columns), "measured"))
    for row in published.rows:
        rows.append((row.system, *(number(row.values.get(column, math.nan)) for column in columns), "published"))
    notes = (f"{published.level}-level {published.coefficient}", f"published: {published.citation}. {published.note}")
    return Table(("", *columns, "origin"), tuple(rows), notes)


def comparison_table(results: Mapping[str, Comparison]) -> Table:
    """Build a table with one row per compared pair, on the documents that both keep."""
    rows = tuple(
        (
            name,
            f"{r.level} {r.coefficient}",
            number(r.first),
            number(r.second),
            interval(r.difference),
            p_value(r.p),
            p_value(r.p_holm),
            number(r.detectable),
            f"{r.n} / {r.groups}",
            f"{r.kept[0]} / {r.kept[1]}",
        )
        for name, r in results.items()
    )
    headers = (
        *("", "on", "first", "second", "difference", "p", "p (Holm)", "detectable"),
        *("items / documents", "kept by each"),
    )
    notes = [
        *(result.why for result in results.values()),
        *(f"intervals and tests hold for {result.holds_for}" for result in results.values()),
        "detectable: smallest true difference found with 80 % probability; p (Holm): for all tests of this table",
        *interval_warnings({name: result.difference for name, result in results.items()}),
    ]
    return Table(headers, rows, tuple(dict.fromkeys(notes)))


def agreement_table(results: Mapping[str, Agreement]) -> Table:
    """Build a table with one row per pair of judges or runs."""
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


def side_table(means: Sequence[SideMean]) -> Table:
    """Build a table with one row per side."""
    rows = tuple((m.side, interval(m.mean), number(m.human), str(m.n), str(m.unscored)) for m in means)
    notes = ("every document weighs the same", *interval_warnings({m.side: m.mean for m in means}))
    return Table(("", "mean score", "mean human", "n", "unscored"), rows, notes)


def gap_table(gaps: Mapping[str, Gap]) -> Table:
    """Build a table with one row per gap, such as one per human preference."""
    rows = tuple(
        (
            name,
            f"{g.first} - {g.second}",
            f"{number(g.means[0])} / {number(g.means[1])}",
            interval(g.difference),
            p_value(g.p),
            p_value(g.p_holm),
            number(g.detectable),
            g.test,
            str(g.documents),
            str(g.left_out),
        )
        for name, g in gaps.items()
    )
    headers = (*("", "gap", "means", "difference", "p", "p (Holm)", "detectable", "test", "documents", "left out"),)
    return Table(headers, rows, tuple(interval_warnings({name: g.difference for name, g in gaps.items()})))


def calibration_table(calibration: Calibration) -> Table:
    """Build a table of before and after on held-out groups, beside a straight line and a constant answer."""
    held = calibration.held_out

    def row(name: str, figures: Figures) -> tuple[str, ...]:
        return (name, *(number(value) for value in (figures.error, figures.pearson, figures.spearman, figures.kendall)))

    rows = (
        row("before", held.before),
        row("after", held.after),
        row("rescaled only", held.rescaled),
        ("constant (mean)", number(held.constant_error), "-", "-", "-"),
    )
    notes = (
        f"held out: {held.folds} folds over {held.groups} groups, {held.n} items, {held.level}-level correlations",
        f"gain in mean squared error over raw scores {interval(held.gain)}, "
        f"over rescaling {interval(held.over_rescaled)}, over the constant {interval(held.over_constant)}",
        f"verdict: {held.verdict}",
        *interval_warnings({"": held.gain}),
    )
    return Table(("", "RMSE", *COEFFICIENTS), rows, notes)


def length_table(bias: LengthBias) -> Table:
    """Build a table of scores against length, with the human ratings of the same items."""
    rows = [_against_length("scores", bias.score)]
    if bias.human is not None:
        rows.append(_against_length("human ratings", bias.human))
    if bias.partial:
        partial = (interval(bias.partial[coefficient]) for coefficient in COEFFICIENTS)
        rows.append(("scores, ratings held fixed", *partial, str(bias.n)))
    notes = (
        f"{bias.score.level}: correlation with the number of words of the output",
        f"95 % intervals hold for {bias.score.holds_for}",
    )
    return Table(("", *COEFFICIENTS, "n"), tuple(rows), notes)


def _against_length(name: str, result: Correlation) -> tuple[str, ...]:
    return (name, *(interval(getattr(result, coefficient)) for coefficient in COEFFICIENTS), str(result.n))


def weight_table(jury: Jury) -> Table:
    """Build a table with the weight of each judge."""
    return Table(("judge", "weight"), tuple((name, number(weight)) for name, weight in jury.weights.items()))


def disagreement_table(jury: Jury, judges: Mapping[str, Mapping[str, float]], count: int = 10) -> Table:
    """Build a table of the items with the largest disagreement.

    Parameters
    ----------
    jury : Jury
        The jury.
    judges : mapping of str to mapping of str to float
        Judge -> key of an item -> its score.
    count : int
        Most items to list.
    """
    order = sorted(range(len(jury.items)), key=lambda index: -jury.disagreement[index])[:count]
    rows = tuple(
        (
            jury.items[index].key,
            number(jury.disagreement[index]),
            number(jury.items[index].predicted),
            *(number(scores[jury.items[index].key]) for scores in judges.values()),
        )
        for index in order
    )
    return Table(
        ("item", "disagreement", "jury", *judges),
        rows,
        ("disagreement: mean distance between two judges' distributions (earth mover's), in units of the scale",),
    )


def difference_table(differences: Mapping[str, Difference]) -> Table:
    """Build a table with one row per metric shared by two runs."""
    rows = tuple(
        (
            name,
            str(d.agreement.n),
            number(d.mean_first),
            number(d.mean_second),
            interval(d.mean),
            number(d.agreement.mean_absolute_difference),
            number(d.agreement.largest_difference),
            *(number(getattr(d.agreement, coefficient)) for coefficient in COEFFICIENTS),
            number(d.agreement.alpha),
            f"{d.agreement.only_first} / {d.agreement.only_second}",
        )
        for name, d in differences.items()
    )
    headers = ("", "n", "A", "B", "A - B", "mean |diff|", "max |diff|", *COEFFICIENTS, "alpha", "A / B alone")
    return Table(headers, rows)


def response_table(parsed: Mapping[str, ParsedResponses]) -> Table:
    """Build a table of parsed raw responses, one row per dimension."""
    rows = tuple(
        (name, str(len(p.values)), str(p.responses), str(p.unparseable), str(p.out_of_scale), str(p.counted))
        for name, p in parsed.items()
    )
    return Table(("", "rows", "responses", "unparseable", "out of scale", "counted"), rows)


def largest_table(rows: Sequence[tuple[str, float, float, str]]) -> Table:
    """Build a table of the items with the largest difference: key, both scores, start of the output."""
    cells = tuple((key, number(a), number(b), f"{a - b:+.3f}", text) for key, a, b, text in rows)
    return Table(("item", "A", "B", "A - B", "output"), cells)


def _share(count: int, total: int) -> str:
    return f"{100 * count / total:.1f} %" if total else "-"


def _reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "0"
