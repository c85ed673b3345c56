"""Output of ``meta-eval``: the paper's table, then the figures that it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from geval_local.analysis.meta_evaluation import Ceiling, Evaluation, benchmark_table, ceiling_table, response_table
from geval_local.analysis.ratings.benchmarks import published_table
from geval_local.analysis.ratings.rated import PublishedRatings, Rated
from geval_local.analysis.ratings.responses import ParsedResponses
from geval_local.analysis.statistics.coefficients import COEFFICIENTS
from geval_local.analysis.statistics.correlation import Correlation
from geval_local.analysis.statistics.levels import Level
from geval_local.analysis.tables import agreement_table, average_table, comparison_table, correlation_table
from geval_local.cli.output.console import note, print_json
from geval_local.cli.output.tables import as_record, show_table
from geval_local.metric import Metric

__all__ = ["Report", "show_report"]

#: Columns that are often the same in all rows.
FOLDED = ("level", "n", "points", "groups skipped", "items left out", "on", "one alone")
FOLDED_TESTS = (*FOLDED, "items / documents", "kept by each")


@dataclass(frozen=True)
class Report:
    """A meta-evaluation for display.

    Attributes
    ----------
    rated : Rated
        The rows and the ratings.
    metrics : dict of str to Metric
        Dimension -> metric.
    evaluation : Evaluation
        The figures.
    levels : sequence of {"summary", "pooled", "system"}
        Levels to report, the main one first.
    coefficient : str
        Coefficient to report.
    benchmark : str or None
        Name of the benchmark.
    parsed : dict of str to ParsedResponses
        Statistics of parsed raw responses.
    notes : tuple of str
        Missing results, with reasons.
    ceiling : Ceiling or None
        Agreement between people, if several rated.
    """

    rated: Rated
    metrics: Mapping[str, Metric]
    evaluation: Evaluation
    levels: Sequence[Level]
    coefficient: str
    benchmark: str | None
    parsed: Mapping[str, ParsedResponses]
    notes: Sequence[str]
    ceiling: Ceiling | None = None


def show_report(report: Report, *, as_json: bool) -> None:
    """Print a meta-evaluation to stdout, and notes on missing results to stderr."""
    if as_json:
        print_json(_record(report))
    else:
        _show(report)
    for text in (*report.notes, *report.evaluation.notes):
        note(f"note: {text}", "yellow")


def _show(report: Report) -> None:
    evaluation, levels = report.evaluation, report.levels
    coefficients: Sequence[str] = COEFFICIENTS
    note(report.rated.grouping)
    if isinstance(report.rated, PublishedRatings):
        coefficients = report.rated.data.benchmark.columns
        layout = report.rated.data.benchmark
        paper = published_table(layout.name)
        table = benchmark_table(evaluation.correlations[layout.level], paper, layout.published)
        show_table(table, f"{paper.benchmark}: {paper.level}-level {paper.coefficient}, measured and published")
    for level in levels:
        rows = _by_dimension(evaluation.correlations[level], report)
        shown = coefficients if level == levels[0] else COEFFICIENTS
        if rows:
            title = f"{level} level, with 95 % intervals"
            show_table(correlation_table(rows, shown), title, fold=FOLDED, sections=True)
    if evaluation.averages:
        what = f"average {levels[0]} {report.coefficient}"
        show_table(average_table(evaluation.averages, what), "average over the dimensions")
    if report.ceiling is not None:
        show_table(ceiling_table(report.ceiling), "the human ceiling")
    if report.parsed:
        show_table(response_table(report.parsed), "raw responses")
    if evaluation.comparisons:
        show_table(
            comparison_table(evaluation.comparisons),
            f"is the difference real? ({report.coefficient})",
            fold=FOLDED_TESTS,
            sections=True,
        )
    if evaluation.agreements:
        show_table(agreement_table(evaluation.agreements), "agreement with each other", fold=FOLDED, sections=True)


def _by_dimension(results: Mapping[str, Mapping[str, Correlation]], report: Report) -> dict[str, Correlation]:
    """Order rows by dimension, so that all contenders of a dimension are adjacent."""
    names = dict.fromkeys(dimension for own in results.values() for dimension in own)
    return {
        f"{dimension}: {contender}": own[dimension]
        for dimension in names
        for contender, own in results.items()
        if dimension in own
    }


def _record(report: Report) -> dict[str, Any]:
    evaluation = report.evaluation
    record = {
        "file": report.rated.path,
        "benchmark": report.benchmark,
        "rows": len(report.rated.rows),
        "metrics": {dimension: metric.name for dimension, metric in report.metrics.items()},
        "coefficient": report.coefficient,
        "levels": list(report.levels),
        "grouping": report.rated.grouping,
        "contenders": {one.name: {"kind": one.kind, "dimensions": list(one.items)} for one in evaluation.contenders},
        "correlations": evaluation.correlations,
        "averages": evaluation.averages,
        "comparisons": evaluation.comparisons,
        "ceiling": report.ceiling,
        "agreements": evaluation.agreements,
        "responses": {
            name: {
                "rows": len(p.values),
                "responses": p.responses,
                "unparseable": p.unparseable,
                "out_of_scale": p.out_of_scale,
                "counted": p.counted,
            }
            for name, p in report.parsed.items()
        },
        "published_columns": report.rated.data.benchmark.published
        if isinstance(report.rated, PublishedRatings)
        else None,
        "published": None if report.benchmark is None else published_table(report.benchmark),
        "notes": [*report.notes, *evaluation.notes],
    }
    written: dict[str, Any] = as_record(record)
    return written
