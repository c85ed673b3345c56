"""``geval-local init``, ``run`` and ``gate``: one file for all of an evaluation, and its comparison of two runs."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geval_local import __version__
from geval_local.cli import options
from geval_local.cli.options import AnalysisOptions, complete_metric, takes_options
from geval_local.cli.output.console import note, print_json
from geval_local.files import save_text
from geval_local.options import BaselineOptions

if TYPE_CHECKING:
    from geval_local.evaluation.execution import DataRun, EvaluationResult, Plan
    from geval_local.runs.events import RunEvents


def init(
    data: Annotated[
        Path | None,
        typer.Argument(metavar="[DATA]", help="A data file: its columns tell the fields, and which metrics fit."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "-m",
            metavar="NAME",
            help="A preset or a metric's YAML file; may be repeated. Absent: the group of presets that uses the most "
            "columns.",
            autocompletion=complete_metric,
        ),
    ] = None,
    judge: options.JudgeNames = None,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The YAML file to write.")] = Path(
        "evaluation.yaml"
    ),
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of such files, for editors; write nothing.")
    ] = False,
) -> None:
    """Write a commented file of an evaluation, and its JSON schema for editors; an existing file is never replaced."""
    from geval_local.evaluation.start import SCHEMA_NAME, schema_text, start_evaluation

    if schema:
        typer.echo(schema_text(), nl=False)
        return
    options.check_new_yaml(output, "the file of an evaluation")
    text, notes = start_evaluation(output, data, metrics=metric or (), judges=judge or ())
    described = output.with_name(SCHEMA_NAME)
    if not os.path.lexists(described):
        save_text(described, schema_text())
    elif not described.is_file() or described.read_text(encoding="utf-8", errors="replace") != schema_text():
        note(f"{described} is there already; the schema for editors was not written", "yellow")
    save_text(output, text)
    for line in notes:
        note(line)
    note(f"wrote {output}; edit it, then: geval-local run {shlex.quote(str(output))}")


@takes_options()
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The YAML file; `geval-local init` writes one.")],
    *,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY.PATH=VALUE",
            help="Set a value for this run, in YAML: data.test.limit=10, judges.0.dtype=float64, 'judges=[nano]'; may "
            "be repeated.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Compare with this earlier run, a directory or a result file, and exit with 1 if a metric is worse; "
            "last: the newest whole run of this file, of another commit, whose gates held. In place of the file's "
            "`baseline`.",
        ),
    ] = None,
    require_baseline: Annotated[
        bool, typer.Option("--require-baseline", help="Fail if there is no earlier run to compare with.")
    ] = False,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            help="Make this run the next baseline although it is worse or not comparable, for a change that is wanted.",
        ),
    ] = False,
    by: options.By = None,
    reports: options.GateReports,
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
    """Run the file of an evaluation: score its data, write results and reports, check its gates.

    After an interruption the same command continues; finished work is kept.
    """
    from geval_local.cli.progress import show_progress
    from geval_local.cli.scoring import EXIT_GATE, Stopper, shown_run
    from geval_local.errors import Interrupted
    from geval_local.evaluation.document import read_evaluation
    from geval_local.evaluation.execution import baseline_override, make_plan, run_evaluation

    given = [*(overrides or ()), *baseline_override(against)]
    given += ["baseline.require=true"] * require_baseline + ["baseline.accept=true"] * accept
    given += [f"by={json.dumps(by)}"] * bool(by)
    if not check:
        reports.begin(file.name)
    plan = make_plan(read_evaluation(file, given), overwrite=overwrite)
    options.warn_of_scales(plan.metrics)
    for one in plan.data:
        if one.waits:
            note(f"{one.name}: {one.waits}: its gates of the baseline begin with the next run", "yellow")
        elif one.baseline is not None:
            note(f"{one.name}: the baseline is {one.baseline.told}")
    if check:
        _show_plan(plan)
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
            # Continue the whole command, not only its last run.
            raise Interrupted from stop
    _show_evaluation(result, as_json=as_json)
    reports.write(result.outcomes, file.name, {name: one.summaries for name, one in result.runs.items()})
    if not result.passed:
        raise typer.Exit(EXIT_GATE)


def _show_plan(plan: Plan) -> None:
    """Say how every data file is read, and whether the judges are there: ``run --check``."""
    from geval_local.fields import counted
    from geval_local.io.input_checks import check_input, reading_of
    from geval_local.models.registry import entry_of, local_directory

    metrics, judges = ", ".join(one.name for one in plan.metrics), counted(len(plan.judges), "judge")
    entries = [entry_of(one) for one in plan.judges if one.backend.has_files]
    absent = [entry for entry in entries if local_directory(entry) is None]
    end = "the weights of a judge are missing" if absent else "nothing is missing"
    for one in plan.data:
        rows = check_input(one.path, plan.metrics, plan.file.settings.run_options(one.name))
        for line in [f"{one.name}: {one.path}", *reading_of(rows, plan.metrics)]:
            note(line)
    note(f"{plan.file.path}: {counted(len(plan.data), 'data file')}, {judges}, metrics {metrics}; {end}")
    for entry in absent:
        note(f"{entry.name} is not on this machine: geval-local judges fetch {entry.name}", "yellow")


@takes_options("metrics", "not_worse", "by", "sequential", "estimator", "group_by", "fields")
def gate(
    new: Annotated[
        Path, typer.Argument(parser=options.here, metavar="NEW", help="A result file of `score`, or a run directory.")
    ],
    old: Annotated[Path, typer.Argument(parser=options.here, metavar="OLD", help="Its baseline, over the same rows.")],
    *,
    asked: AnalysisOptions,
    reports: options.GateReports,
    as_json: options.Json = False,
    baseline: BaselineOptions,
) -> None:
    """Compare a new run with an old one on shared rows; exit with 1 if a metric is worse, or too many rows are missing.

    It is `not_worse` of an evaluation file, for two runs that are there.
    """
    from geval_local.analysis.worse import is_worse
    from geval_local.cli.output.run_summary import show_gates
    from geval_local.cli.output.tables import show_study
    from geval_local.cli.scoring import EXIT_GATE
    from geval_local.evaluation.execution import compare_command

    title = f"{new} against {old}"
    reports.begin(title)
    study = options.analyse(is_worse, new, old, asked=asked, **baseline.model_dump())
    show_study(study, as_json=as_json)
    found = [
        replace(one, baseline=str(old), next=compare_command(new, old, one.gate.metric))
        for one in study.changes.values()
    ]
    reports.write(found, title)
    show_gates(found)
    if not study.passed:
        raise typer.Exit(EXIT_GATE)


def _show_evaluation(result: EvaluationResult, *, as_json: bool) -> None:
    """Print the figures of an evaluation to stdout, and its warnings and gates to stderr."""
    from geval_local.cli.output.run_summary import gates_record, run_record, show_gates, show_runs, show_warnings

    for name, run in result.runs.items():
        show_warnings(run, f"{name}: " if len(result.runs) > 1 else "")
    if as_json:
        print_json(
            {
                "version": __version__,
                "evaluation": result.file.record.model_dump(),
                "data": {name: run_record(run) for name, run in result.runs.items()},
                "reports": {name: str(page) for name, page in result.reports.items()},
                "baselines": {name: str(path) for name, path in result.baselines.items()},
                **gates_record(result.outcomes),
            }
        )
    else:
        show_runs(result.runs)
        for page in result.reports.values():
            note(f"wrote {shlex.quote(str(page))}; open it in any browser")
    show_gates(result.outcomes)
