"""``geval-local init``: a first file of an evaluation."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import complete_metric
from geval_local.errors import OutputError


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
            help="A preset or a metric's YAML file; may be repeated. Absent: those that fit the columns.",
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
    from geval_local.cli.output.console import note
    from geval_local.evaluation.start import SCHEMA_NAME, schema_text, start_evaluation, write_new

    if schema:
        typer.echo(schema_text(), nl=False)
        return
    if output.suffix not in (".yaml", ".yml"):
        raise OutputError(f"cannot write {output}: the file of an evaluation ends in .yaml or .yml")
    if output.is_symlink() or output.exists():
        raise OutputError(f"{output} is there already", hint="Choose another name with -o; nothing was changed.")
    start = start_evaluation(output, data, metrics=metric or (), judges=judge or ())
    described = output.with_name(SCHEMA_NAME)
    try:
        write_new(described, schema_text(), same_will_do=True)
    except OutputError as error:
        note(f"{error.message}; the schema for editors was not written", "yellow")
    write_new(output, start.text)
    for line in start.notes:
        note(line)
    note(f"wrote {output}; edit it, then: geval-local run {shlex.quote(str(output))}")
