"""``geval-local score`` and ``decide``: the options, checked before anything expensive happens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import takes_options
from geval_local.options import INPUT, JudgeOptions, RunOptions


@takes_options()
def score(
    file: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="JSONL, JSON, CSV, Excel or Parquet; one sample per row. Also several, directories and patterns. - "
            "reads JSONL from standard input. Each may be an address, such as s3://BUCKET/DIR.",
        ),
    ],
    *,
    rated: options.RatedOptions,
    output: options.Output = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show the first form, its tokens and the label trie; load no weights.",
            rich_help_panel=INPUT,
        ),
    ] = False,
    no_steps: options.NoSteps = False,
    gates: options.Gates,
    reports: options.GateReports,
    lowest: options.Lowest = 3,
    as_json: options.Json = False,
    judges: list[JudgeOptions],
    run: RunOptions,
) -> None:
    """Score every row of a file on one or more metrics.

    Without -o only the closing table is printed. With it, finished work is always kept: the same command, or
    `geval-local resume`, continues after an interruption. A row that cannot be scored keeps its place, with the reason.
    """
    from geval_local.cli.scoring import follow
    from geval_local.cli.standard_input import input_files

    title = ", ".join(file)
    if not dry_run:
        reports.begin(title)
    chosen = options.chosen_metrics(rated, no_steps=no_steps)
    options.warn_of_scales(chosen)
    for metric in chosen:
        metric.check_on_scale(run.threshold, "--threshold")
    limits = gates.read(chosen, run.by)
    if dry_run:
        from geval_local.cli.output.audits import show_forms

        with input_files(file, keep=False) as given:
            show_forms(given, chosen, judges[0], run, as_json=as_json)
        return

    from geval_local.analysis.calibration import read_calibration
    from geval_local.runs.run_file import score_file
    from geval_local.runs.target import check_csv, find_target

    target = find_target(output, run.formats, shard=run.shard)
    check_csv(run, target.formats)
    with input_files(file, keep=target.directory is not None, keep_after=target.is_directory) as given:
        follow(
            lambda events: score_file(
                given,
                chosen,
                judges,
                output,
                run,
                metric_names=rated.metric or (),
                load_calibration=read_calibration,
                events=events,
            ),
            options.shown_name(given),
            limits,
            results=len(chosen) * sum(judge.think or 1 for judge in judges),
            judges=len(judges),
            as_json=as_json,
            lowest=lowest,
            reports=reports,
            title=title,
        )


@takes_options(
    *("limit", "encoding", "quoting", "rows", "formats", "columns", "csv_style"),
    *("window", "use_cache", "retry_errors", "overwrite", "shard", "workers"),
)
def decide(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="JSONL, JSON, CSV, Excel or Parquet; one evidence per row. Also an address. - reads JSONL from "
            "standard input.",
        ),
    ],
    questions: Annotated[
        Path,
        typer.Option("--questions", "-q", metavar="FILE", help="A YAML or JSON file of named questions."),
    ],
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="The column that holds the evidence, or a dotted path into one; several make one evidence, each a "
            "paragraph under its name, or under HEADING=COLUMN. Absent: the column `state`.",
        ),
    ] = None,
    output: options.Output = None,
    rotations: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Number of orders in which the options are shown; answers are means over them."
        ),
    ] = 1,
    max_unscored: options.MaxUnscored = None,
    as_json: options.Json = False,
    *,
    judges: list[JudgeOptions],
    run: RunOptions,
) -> None:
    """Answer typed questions about every row of a file, with exact probabilities.

    The evidence of a row is computed once for all its questions. Without -o only the closing table is printed. With it,
    finished work is kept at every moment: the same command, or `geval-local resume`, continues after an interruption. A
    row or a question without an answer keeps its place, with the reason.
    """
    from geval_local.cli.scoring import follow
    from geval_local.cli.standard_input import input_files
    from geval_local.io.input_checks import DEFAULT_STATE
    from geval_local.questions.question import load_questions
    from geval_local.runs.forms import question_metrics
    from geval_local.runs.run_file import decide_file
    from geval_local.runs.target import check_csv, find_target

    gates = options.Gates(max_unscored=max_unscored).read()
    asked = load_questions(questions)
    target = find_target(output, run.formats, "decisions", run.shard)
    check_csv(run, target.formats)
    with input_files([file], keep=target.directory is not None, keep_after=target.is_directory) as given:
        follow(
            lambda events: decide_file(
                given[0], asked, judges, output, run, state=state or DEFAULT_STATE, rotations=rotations, events=events
            ),
            options.shown_name(given),
            gates,
            results=len(question_metrics(asked, rotations)) * sum(judge.think or 1 for judge in judges),
            judges=len(judges),
            as_json=as_json,
        )
