"""``geval-local run``: all that the file of an evaluation asks for."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geval_local import __version__
from geval_local.cli import options
from geval_local.cli.output.console import note, print_json, print_table, result_console
from geval_local.cli.output.run_summary import run_record, show_unscored, show_warnings, summary_table

if TYPE_CHECKING:
    from geval_local.evaluation.execution import DataRun, EvaluationResult
    from geval_local.runs.events import RunEvents


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The YAML file; `geval-local init` writes one.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY.PATH=VALUE",
            help="Set a value for this run, in YAML: data.test.limit=10, judges.0.dtype=float64, 'judges=[nano]'; may "
            "be repeated.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check the file, its data, metrics and judges; score nothing.")
    ] = False,
    retry_errors: options.RetryErrors = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace runs of another configuration, and pages that are not this tool's."),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Do all that the file of an evaluation asks for: score its data, write results and reports, check its gates.

    The same command goes on after an interruption; what is finished is kept.
    """
    from geval_local.cli.output.console import note
    from geval_local.cli.progress import show_progress
    from geval_local.cli.scoring import EXIT_GATE, Stopper, shown_run
    from geval_local.errors import Interrupted
    from geval_local.evaluation.document import read_evaluation
    from geval_local.evaluation.execution import make_plan, run_evaluation

    plan = make_plan(read_evaluation(file, overrides or ()), overwrite=overwrite)
    if check:
        metrics, judges = ", ".join(one.name for one in plan.metrics), len(plan.judges)
        note(f"{file}: {len(plan.data)} data files, {judges} judges, metrics {metrics}; nothing is missing")
        return
    stopper = Stopper()
    results = len(plan.metrics) * len(plan.judges)
    with stopper.listening(), show_progress() as progress:

        def events(one: DataRun) -> RunEvents:
            note(f"{one.name}: {one.path} into {one.directory}/")
            return shown_run(stopper, progress, one.path.name, results, len(plan.judges))

        try:
            result = run_evaluation(plan, overwrite=overwrite, retry_errors=retry_errors, events=events)
        except Interrupted as stop:
            note("what is finished is kept")
            # The whole command goes on, and not its last run alone.
            raise Interrupted from stop
    show_evaluation(result, as_json=as_json)
    if not result.passed:
        raise typer.Exit(EXIT_GATE)


def show_evaluation(result: EvaluationResult, *, as_json: bool) -> None:
    """Print the figures of an evaluation to stdout, and its gates to stderr."""
    if as_json:
        print_json(
            {
                "version": __version__,
                "evaluation": result.file.record.model_dump(),
                "data": {name: run_record(run) for name, run in result.runs.items()},
                "reports": {name: str(page) for name, page in result.reports.items()},
                "failed_gates": result.failures,
            }
        )
    else:
        names = [name for name, run in result.runs.items() for _ in run.summaries]
        print_table(summary_table([one for run in result.runs.values() for one in run.summaries], names))
        for name, run in result.runs.items():
            show_unscored([(f"unscored in {one.metric} of {name}", one.reasons) for one in run.summaries])
        console = result_console()
        for signature in dict.fromkeys(one for run in result.runs.values() for one in run.signatures):
            console.print(f"signature {signature}", soft_wrap=True, markup=False)
        for run in result.runs.values():
            files = ", ".join(shlex.quote(str(file)) for file in run.files)
            note(f"wrote {files}", "dim")
        for page in result.reports.values():
            note(f"wrote {shlex.quote(str(page))}; open it in any browser")
    for name, run in result.runs.items():
        show_warnings(run, f"{name}: " if len(result.runs) > 1 else "")
    for failure in result.failures:
        note(f"gate failed: {failure}", "bold red")
