"""``geval-local run``: all that the file of an evaluation asks for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geval_local.cli import options

if TYPE_CHECKING:
    from geval_local.evaluation.execution import DataRun
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
    from geval_local.cli.output.evaluation import show_evaluation
    from geval_local.cli.progress import show_progress
    from geval_local.cli.scoring import EXIT_GATE, Stopper, shown_run
    from geval_local.errors import Interrupted
    from geval_local.evaluation.document import read_evaluation
    from geval_local.evaluation.execution import make_plan, run_evaluation
    from geval_local.fields import counted

    plan = make_plan(read_evaluation(file, overrides or ()), overwrite=overwrite)
    if check:
        metrics, judges = ", ".join(one.name for one in plan.metrics), counted(len(plan.judges), "judge")
        note(f"{file}: {counted(len(plan.data), 'data file')}, {judges}, metrics {metrics}; nothing is missing")
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
