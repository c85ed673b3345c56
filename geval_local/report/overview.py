"""The static part of the page, readable without the script: figures per metric, prompts, settings from manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from geval_local.analysis.results import ScoredRun
from geval_local.analysis.tables import Table, number
from geval_local.errors import UnscorableError
from geval_local.grouping import Documents
from geval_local.io.columns import as_text
from geval_local.io.results import input_number
from geval_local.io.samples import INPUT_ROW, Sample
from geval_local.metric import Metric
from geval_local.prompt import render_form
from geval_local.report.headline import passing, said_once
from geval_local.score import LOW_LABEL_MASS
from geval_local.signature import signature_parts
from geval_local.slices import find_slicings
from geval_local.summary import Summary, Tally, mass_remark


def summaries(
    results: ScoredRun,
    *,
    metrics: Sequence[str] = (),
    documents: Documents | None = None,
    by: Sequence[str] = (),
) -> list[Summary]:
    """Summarize every metric of a run, or some, with its slices; `documents` are by default those of the run."""
    documents = documents or results.collected
    tallies = [Tally(metric, ends=results.ends(metric)) for metric in metrics or results.metrics]
    slicings = find_slicings(results.rows.inputs(), by, results.rule) if by else []
    for tally in tallies:
        tally.cut(slicings)
    inputs = results.rows.inputs() if slicings else ()
    slices = [{one.column: one.slice_of(row, results.rule) for one in slicings} for row in inputs]
    for place, row in enumerate(map(input_number, results.rows.column(INPUT_ROW), results.rows.numbers)):
        for tally in tallies:
            own = slices[place] if slices else {}
            tally.add(f"row {row}", row, results.score(tally.name, place), place, own)
    return [tally.summary(documents) for tally in tallies]


def slice_tables(found: Sequence[Summary]) -> list[Table]:
    """Build a table per slicing column, with one row per slice and metric."""
    tables = []
    for column in dict.fromkeys(one.column for summary in found for one in summary.slices):
        rows = [
            (
                one.value if len(found) == 1 else f"{one.value}, {summary.metric}",
                f"{one.summary.scored:,} of {one.summary.rows:,}",
                one.summary.documents,
                one.summary.shown,
                "-" if one.summary.passed_share is None else f"{one.summary.passed_share:.1%}",
                one.summary.shown.warning or "-",
            )
            for summary in found
            for one in summary.slices
            if one.column == column
        ]
        headers = (column, "scored", "documents", "mean", "passed", "note")
        tables.append(Table.of(headers, rows).titled(f"by {column}"))
    return tables


def overview_table(found: Sequence[Summary]) -> Table:
    """Build a table with one row per metric."""
    columns: dict[str, Callable[[Summary], str]] = {
        "scored": lambda one: f"{one.scored:,} of {one.rows:,}",
        "mean": lambda one: number(one.mean),
        "95 % interval": lambda one: f"{number(one.low)} to {number(one.high)}" if one.low == one.low else "-",
        "std": lambda one: number(one.std),
        "label mass": lambda one: number(one.label_mass),
        "lowest mass": lambda one: number(one.label_mass_min),
        f"mass < {LOW_LABEL_MASS:g}": lambda one: (
            f"{one.low_mass_share:.1%}" if one.low_mass_share == one.low_mass_share else "-"
        ),
        "threshold": lambda one: passing(one) or "-",
        "unscored": lambda one: f"{one.unscored:,}",
    }
    notes = [
        *said_once((one.metric, mass_remark(one)) for one in found if one.low_mass_share > 0),
        f"interval of the mean: Student's t over documents; {found[0].grouping}",
        "std: between rows, n - 1 in the denominator",
        *said_once((one.metric, f"warning: {one.shown.warning}") for one in found if one.shown.warning),
    ]
    return replace(Table.over({one.metric: one for one in found}, columns, notes), headers=("metric", *columns))


def signatures(run: ScoredRun, metrics: Iterable[str]) -> dict[str, str]:
    """Return the signatures of some metrics, as far as they are known."""
    return {name: run.origin(name).signature for name in metrics if run.is_described(name)}


def judge_of(run: ScoredRun, metrics: Iterable[str]) -> str:
    """Return the judge's name from the signatures or the manifest; empty if neither has it."""
    found = [signature_parts(signature).get("judge", "") for signature in signatures(run, metrics).values()]
    return ", ".join(dict.fromkeys(filter(None, found))) or ("" if run.manifest is None else run.manifest.judge)


def facts(run: ScoredRun) -> dict[str, Any]:
    """Return what is known of a run as a whole: name -> value."""
    one = run.manifest
    return {} if one is None else {"judge": one.judges, "input": one.input, "input sha256": one.input_sha256}


def entries(known: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Write facts as texts, with objects as JSON."""
    return [(as_text(name), as_text(value)) for name, value in known.items() if value is not None]


def texts(run: ScoredRun, metrics: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return metrics as the judge saw them: signature, steps, and the form filled with the first row."""
    found = {}
    for name, signature in signatures(run, metrics).items():
        metric = run.origin(name).definition
        found[name] = {"prompt": _form(run, metric), "steps": metric.steps or (), "signature": signature}
    return found


def _form(run: ScoredRun, metric: Metric) -> str:
    for row in run.rows.inputs():
        with suppress(UnscorableError):
            return render_form(metric, Sample(row, mapping=run.mapping).texts(metric.fields)).text
    return ""
