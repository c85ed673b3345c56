"""``geval-local metrics``: list, show and validate metrics, and start a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import complete_metric
from geval_local.cli.output.console import note, print_json, print_table, show_text
from geval_local.errors import ConfigurationError, MetricError, OutputError

app = typer.Typer(no_args_is_help=True, help="List, show, validate and start metrics.")

TEMPLATE = """\
# A metric for geval-local. Everything after a # is a comment; lines that begin with one are optional.
name: {name}

# Opens the prompt. Absent: a neutral sentence.
# introduction: >-
#   You will be given a question and an answer to it. Your task is to rate the answer on one metric.

# What is rated, and what separates good from bad. Replace this text by your own.
criteria: >-
  How easy the text is to understand for a reader who is new to its subject. A clear text explains its terms, keeps its
  sentences short and says things in the order in which they are needed. Lower the score for unexplained terms and for
  sentences that have to be read twice.

# Columns of your data -> headings in the form, in the form's order.
fields:
  output: Text
# source: Source Text

# 1-5, 0-10, 0-1 step 0.25, Yes/No, or labels with values:  {{poor: 1, fair: 2, good: 3}}
scale: 1-5

# What single labels, or bands of them, mean; printed under the criteria.
# rubric:
#   1: hard to understand throughout
#   5: clear throughout

# Evaluation steps. Absent: the judge writes them once (`geval-local steps FILE`).
# steps:
#   - Read the text.
#   - Note every place that a newcomer would stumble over.
#   - Choose the score that fits the criteria.

# A score from which a text passes, on the scale above.
# threshold: 4

# The one field that may lose its end when a prompt is too long for the judge.
# shorten: source
"""


@app.command("list")
def list_metrics(as_json: options.Json = False) -> None:
    """List the preset metrics."""
    from rich import box
    from rich.table import Table

    from geval_local.metric import Metric
    from geval_local.metric_file import preset_names

    presets = [Metric.load(name) for name in preset_names()]
    if as_json:
        print_json(
            [{"name": metric.name, "scale": metric.scale.text, "fields": list(metric.fields)} for metric in presets]
        )
        return
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("metric", no_wrap=True)
    table.add_column("scale", no_wrap=True)
    table.add_column("fields", no_wrap=True)
    table.add_column("criteria")
    for metric in presets:
        table.add_row(
            metric.name, metric.scale.text, ", ".join(metric.fields), metric.criteria.split(". ")[0].strip(".")
        )
    print_table(table)
    note("next: geval-local metrics show NAME, or geval-local score FILE --metric NAME")


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A preset or a YAML file.", autocompletion=complete_metric)
    ],
) -> None:
    """Print a metric as YAML; a preset's is a good start for one of your own."""
    from geval_local.metric import Metric

    typer.echo(Metric.load(name).to_yaml(), nl=False)


@app.command()
def validate(files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files.")]) -> None:
    """Check metric files; every problem is named with its line."""
    from geval_local.metric import Metric
    from geval_local.yaml_model import read_file

    problems: list[str] = []
    hint = None
    for file in files:
        try:
            metric = Metric.from_yaml(read_file(file, "the metric file", MetricError), origin=str(file))
        except MetricError as error:
            problems.append(error.message)
            hint = error.hint or hint
        else:
            steps = "steps to be written" if metric.needs_steps else f"{len(metric.steps or ())} steps"
            show_text(f"{file}: {metric.name}, scale {metric.scale.text}, fields {', '.join(metric.fields)}, {steps}")
    if problems:
        raise MetricError("\n".join(problems), hint=hint)


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as support/clarity.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The YAML file to write.")],
) -> None:
    """Write a commented metric file to start from; an existing file is never overwritten."""
    from geval_local.metric import Metric

    if output.suffix not in (".yaml", ".yml"):
        raise OutputError(f"cannot write {output}: a metric file ends in .yaml or .yml")
    text = TEMPLATE.format(name=name)
    try:
        Metric.from_yaml(text)
    except MetricError as error:
        raise ConfigurationError(
            f"{name!r} is not a metric name",
            hint="Use letters, digits, '_', '-' and '.', with '/' between parts, such as support/clarity.",
        ) from error
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise OutputError(f"{output} exists already", hint="Choose another name.") from None
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror}") from error
    note(f"wrote {output}; edit it, then: geval-local metrics validate {output}")
