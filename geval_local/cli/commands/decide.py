"""``geval-local decide``: the same questions about the evidence of every row of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.loading import Loading, takes_loading

__all__ = ["decide"]

EXIT_NOTHING = 1


@takes_loading()
def decide(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL, JSON, CSV or Parquet; one evidence per row.")],
    questions: Annotated[
        Path,
        typer.Option("--questions", "-q", metavar="FILE", help="A YAML or JSON file of named questions."),
    ],
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="The column that holds the evidence; several make one evidence. Absent: the column `state`.",
        ),
    ] = None,
    judge: options.JudgeName = None,
    models: options.ModelsFile = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="A new .jsonl file: the rows, each with its `decisions`."),
    ] = None,
    rotations: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="In how many orders the options are shown; the answers are the means over them."
        ),
    ] = 1,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Read the first N rows only.")] = None,
    as_json: options.Json = False,
    *,
    loading: Loading,
) -> None:
    """Answer typed questions about every row of a file, with exact probabilities.

    The evidence of a row is computed once for all its questions. A row or a question without an answer keeps its place,
    with the reason. The output appears under its name when it is complete.
    """
    from geval_local.cli.deciding import DecideTask, decide_file
    from geval_local.cli.output.decisions import show_decisions
    from geval_local.questions.question import load_questions

    task = DecideTask(
        file=file,
        questions=load_questions(questions),
        columns=tuple(state or ()),
        output=output,
        rotations=rotations,
        limit=limit,
    )
    result = decide_file(task, loading.of(judge, models))
    show_decisions(result, task, as_json=as_json)
    if not any(tally.answered for tally in result.tallies):
        raise typer.Exit(EXIT_NOTHING)
