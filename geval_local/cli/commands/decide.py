"""``geval-local decide``: the same questions about every row of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.loading import Loading, takes_loading

__all__ = ["decide"]


@takes_loading()
def decide(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="JSONL, JSON, CSV or Parquet; one evidence per row. - reads JSONL from standard input."
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
    judge: options.JudgeNames = None,
    models: options.ModelsFile = None,
    output: options.Output = None,
    overwrite: options.OverwriteRun = False,
    export: options.Formats = None,
    rotations: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Number of orders in which the options are shown; answers are means over them."
        ),
    ] = 1,
    window: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Rows that are gathered to share their texts. Absent: as many as make 4096 prompts.",
            show_default=False,
        ),
    ] = None,
    columns: options.Columns = None,
    csv_safe: options.CsvSafe = False,
    retry_errors: options.RetryErrors = False,
    no_cache: options.NoCache = False,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Read the first N rows only.")] = None,
    max_unscored: options.MaxUnscored = None,
    as_json: options.Json = False,
    *,
    loading: Loading,
) -> None:
    """Answer typed questions about every row of a file, with exact probabilities.

    The evidence of a row is computed once for all its questions. Without -o only the closing table is printed. With it,
    finished work is kept at every moment: the same command, or `geval-local resume`, goes on after an interruption. A
    row or a question without an answer keeps its place, with the reason.
    """
    from geval_local.cli.gates import read_gates
    from geval_local.cli.scoring import follow
    from geval_local.cli.standard_input import input_file
    from geval_local.io.columns import read_columns
    from geval_local.io.evidence import DEFAULT_STATE
    from geval_local.questions.question import load_questions
    from geval_local.runs.asked import question_metrics
    from geval_local.runs.completion import RunResult
    from geval_local.runs.decide_file import decide_file
    from geval_local.runs.events import RunEvents
    from geval_local.runs.target import find_target

    gates = read_gates(None, max_unscored)
    asked = load_questions(questions)
    choices = loading.all_of(judge, models)
    target = find_target(output, export or [], "decisions")
    options.check_csv(columns, csv_safe, target.formats)
    is_directory = target.directory is not None and target.output is None
    with input_file(file, keep=target.directory is not None, keep_after=is_directory) as path:

        def run(events: RunEvents) -> RunResult:
            return decide_file(
                path,
                asked,
                choices,
                output,
                state=state or DEFAULT_STATE,
                rotations=rotations,
                formats=export or (),
                limit=limit,
                columns=read_columns(columns),
                csv_safe=csv_safe,
                window=window,
                use_cache=not no_cache,
                retry_errors=retry_errors,
                overwrite=overwrite,
                events=events,
            )

        results = len(question_metrics(asked, rotations)) * len(choices)
        command = str(context.find_root().obj)
        follow(run, path.name, gates, results=results, judges=len(choices), as_json=as_json, command=command)
