"""The end of a scoring run: the table, unscored rows with reasons, signatures, and suggested next commands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from geval_local import __version__
from geval_local.cli.output.console import note, print_json, print_table, result_console
from geval_local.signature import signature_parts

if TYPE_CHECKING:
    from rich.table import Table

    from geval_local.runs.completion import RunResult
    from geval_local.summary import Reason, Summary

#: Most reasons shown per metric; `--json` has them all.
REASONS_SHOWN = 8
#: Most labels whose probabilities fit on a line.
LABELS_SHOWN = 7
#: Share of the missing mass that the listed tokens must account for.
SAID_BY_TOKENS = 0.5


def show_result(result: RunResult, failures: list[str], *, as_json: bool, command: str) -> None:
    """Print a run's figures to stdout, and its gates to stderr."""
    if as_json:
        print_json(run_record(result) | {"failed_gates": failures})
    else:
        _show_first_rows(result)
        _show_table(result)
        show_unscored([(f"unscored in {summary.metric}", summary.reasons) for summary in result.summaries])
        console = result_console()
        for signature in result.signatures:
            console.print(f"signature {signature}", soft_wrap=True, markup=False)
        _show_next(result, command)
    show_warnings(result)
    for failure in failures:
        note(f"gate failed: {failure}", "bold red")


def show_warnings(result: RunResult, prefix: str = "") -> None:
    """Warn of low label mass and of rows that were cut; every line begins with `prefix`."""
    for summary, signature in zip(result.summaries, result.signatures, strict=True):
        if summary.low_mass_share > 0:
            note(prefix + low_mass_warning(summary, signature), "yellow")
        if summary.shortened:
            told = f"warning: {summary.metric}: {summary.shortened} rows were cut to fit the judge's context"
            note(prefix + told, "yellow")


def low_mass_warning(summary: Summary, signature: str) -> str:
    """Describe the rows with low label mass, the tokens that received the mass, and remedies."""
    told = (
        f"warning: {summary.metric}: {summary.low_mass_share:.1%} of the scored rows have a label mass below "
        f"{summary.low_mass:g}: there the judge wants to write something other than a label"
    )
    if summary.other_tokens:
        told += ", such as " + ", ".join(f"{token!r} ({p:.1%})" for token, p in summary.other_tokens)
    if sum(p for _, p in summary.other_tokens) < SAID_BY_TOKENS * (1 - summary.label_mass):
        told += "; the rest starts like a label but continues as another number or word"
    return f"{told}. {_low_mass_remedy(signature)}"


def _low_mass_remedy(signature: str) -> str:
    parts = signature_parts(signature)
    remedies = []
    if parts.get("style") == "completion":
        remedies.append("give it its chat template if it has one (--style chat)")
    if parts.get("style", "").startswith("chat-no-prefill"):
        remedies.append("let the form open its answer (--style chat)")
    if "/" in parts.get("scale", "") and not any(char.isdigit() for char in parts["scale"]):
        remedies.append("name the words that it writes in the scale, or take a scale of numbers such as 1-3")
    remedies.append("say in the criteria what each label means, or take a stronger judge")
    return f"Suggested fixes: {'; '.join(remedies)}."


def _show_first_rows(result: RunResult) -> None:
    """Show the first rows with their label probabilities."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    for place, summary in enumerate(result.summaries):
        scored = [(sample, scores[place]) for sample, scores in result.first_rows if scores[place].is_scored]
        labels = list(scored[0][1].probabilities or {}) if scored else []
        if not 0 < len(labels) <= LABELS_SHOWN:
            continue
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column(f"first rows: {summary.metric}", overflow="ellipsis", no_wrap=True, max_width=40)
        for heading in ("score", *(f"p({label})" for label in labels)):
            table.add_column(Text(heading), justify="right", no_wrap=True)
        for sample, score in scored:
            name = sample.fields.get("id") or f"row {sample.row}"
            shares = (f"{p:.3f}" for p in (score.probabilities or {}).values())
            table.add_row(*map(Text, (str(name), f"{score.value:.3f}", *shares)))
        print_table(table)


def summary_table(summaries: Sequence[Summary], data: Sequence[str] = ()) -> Table:
    """Lay out the figures of runs, a row for each result; narrow enough for a terminal of 80 columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    if data:
        table.add_column("data", overflow="fold")
    table.add_column("metric", overflow="fold")
    low_mass = summaries[0].low_mass
    for heading in ("scored", "mean [95 % CI]", "std", "mass", "min", f"<{low_mass:g}"):
        table.add_column(heading, justify="right", no_wrap=True)
    has_threshold = any(summary.threshold is not None for summary in summaries)
    if has_threshold:
        table.add_column("passed", justify="right", no_wrap=True)
    for place, summary in enumerate(summaries):
        cells = [*_cells(summary), *([_passed(summary)] if has_threshold else [])]
        table.add_row(*map(Text, [*data[place : place + 1], *cells]))
    return table


def _show_table(result: RunResult) -> None:
    print_table(summary_table(result.summaries))
    low_mass = result.summaries[0].low_mass
    show_pace(result, len(result.summaries), "scores")
    for line in dict.fromkeys(f"interval of the mean: {_interval_told(summary)}" for summary in result.summaries):
        note(line, "dim")
    note(f"mass, min, <{low_mass:g}: mean label mass, its minimum, and the share of rows below {low_mass:g}", "dim")


def show_pace(result: RunResult, each: int, what: str) -> None:
    """Say how many results a row has, who gave them, how fast, in what precision, and what was saved."""
    count = result.rows * each
    rate = f"{count / result.seconds:.1f} {what}/s" if result.seconds > 0 else ""
    loading = f"after {result.load_seconds:.1f} s of loading"
    note(f"{count} {what} by {', '.join(result.judges)} in {result.seconds:.1f} s ({rate}), {loading}")
    for precision in result.precisions:
        note(f"precision: {precision}", "dim")
    _show_savings(result)


def _interval_told(summary: Summary) -> str:
    """Describe the basis of the interval."""
    told = f"t over {summary.interval.units} documents" if summary.interval.units else "none"
    warning = f"; warning: {summary.interval.warning}" if summary.interval.warning else ""
    return f"{told}{warning}; {summary.grouping}"


def _show_savings(result: RunResult) -> None:
    """Show the savings by sharing and by the cache."""
    prompts, planned = result.totals.get("prompt_tokens", 0), result.totals.get("planned_tokens", 0)
    saved = f"{1 - planned / prompts:.1%} saved by shared texts" if planned < prompts else "with padding"
    if prompts:
        note(f"{prompts} prompt tokens, {planned} through the model ({saved})", "dim")
    if cached := result.totals.get("from_cache", 0):
        what = "outcomes" if result.answers else "scores"
        note(f"{cached} {what} are those of earlier runs, from the cache (--no-cache computes them again)")


def _cells(summary: Summary) -> list[str]:
    interval = "" if math.isnan(summary.low) else f" [{summary.low:.2f}, {summary.high:.2f}]"
    return [
        summary.metric,
        f"{summary.scored}/{summary.rows}",
        f"{_figure(summary.mean, 3)}{interval}",
        _figure(summary.std, 2),
        _figure(summary.label_mass, 3),
        _figure(summary.label_mass_min, 3),
        "-" if math.isnan(summary.low_mass_share) else f"{summary.low_mass_share:.1%}",
    ]


def _figure(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _passed(summary: Summary) -> str:
    return "-" if summary.passed_share is None else f"{summary.passed_share:.1%} (>= {summary.threshold:g})"


def show_unscored(found: Sequence[tuple[str, Sequence[Reason]]]) -> None:
    """List the reasons of rows without a figure, each list under its heading."""
    console = result_console()
    for heading, reasons in found:
        if not reasons:
            continue
        console.print(f"{heading}:", markup=False)
        for reason in reasons[:REASONS_SHOWN]:
            more = ", ..." if reason.count > len(reason.rows) else ""
            rows = f"row{'s' if reason.count > 1 else ''} {', '.join(map(str, reason.rows))}{more}"
            console.print(f"  {reason.count} x {reason.text} ({rows})", soft_wrap=True, markup=False)
        if len(reasons) > REASONS_SHOWN:
            console.print(f"  and {len(reasons) - REASONS_SHOWN} other reasons (see --json)", markup=False)


def _show_next(result: RunResult, command: str) -> None:
    settings, choice = result.manifest.settings, result.manifest.judges[0].choice
    note("next:")
    if result.target.results is None:
        note(f"  keep every row's figures     {command} -o scores.jsonl")
    else:
        output = shlex.quote(str(result.target.results))
        note(f"  look at them in a browser    geval-local report {output} -o report.html")
    judge = f" {shlex.quote(result.judges[0])}"
    if choice.get("models_file") is not None:
        judge += f" --models {shlex.quote(choice['models_file'])}"
    metric = f" --metric {shlex.quote(settings.metric_names[0])}" if settings.metric_names else ""
    note(f"  audit the judge              geval-local judges check{judge}{metric}")
    note("  compare with another judge   geval-local judges list, then the same command with --judge NAME")


def common_record(result: RunResult) -> dict[str, Any]:
    """Return what the JSON objects of `score` and `decide` have in common."""
    results = result.target.results
    return {
        "version": __version__,
        "input": result.manifest.input.path,
        "output": None if results is None else str(results),
        "judge": ", ".join(result.judges),
        "files": [str(file) for file in result.files],
        **{name: result.totals.get(name, 0) for name in ("from_cache", "prompt_tokens", "planned_tokens")},
        "rows": result.rows,
        "precision": result.precisions,
        "load_seconds": round(result.load_seconds, 3),
        "seconds": round(result.seconds, 3),
    }


def run_record(result: RunResult) -> dict[str, Any]:
    """Return a run's figures as plain JSON values."""
    return {
        **common_record(result),
        "estimator": result.manifest.settings.estimator.text,
        "scores_per_second": round(result.rows * len(result.summaries) / result.seconds, 3) if result.seconds else None,
        "metrics": {
            summary.metric: summary.to_dict() | {"signature": signature}
            for summary, signature in zip(result.summaries, result.signatures, strict=True)
        },
    }
