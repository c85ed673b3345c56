"""``geval-local steps``: let a judge write a metric's evaluation steps, once, and keep them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geval_local.cli import options as shared
from geval_local.cli.option_groups import takes_options
from geval_local.cli.options import complete_metric
from geval_local.cli.output.console import note
from geval_local.cli.output.steps import show_difference, show_steps
from geval_local.cli.progress import load_shown, show_progress
from geval_local.errors import ConfigurationError, OutputError
from geval_local.options import JudgeOptions

if TYPE_CHECKING:
    from geval_local.metric import Metric


@takes_options(judge_without=("batch_tokens", "engine"))
def steps(
    metric: Annotated[
        str,
        typer.Argument(metavar="METRIC", help="A preset or a metric's YAML file.", autocompletion=complete_metric),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the whole metric with its steps to a new YAML file."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Rewrite the steps even if there are some, and show the difference.")
    ] = False,
    as_json: shared.Json = False,
    *,
    judge: JudgeOptions,
) -> None:
    """Write the evaluation steps of a metric (auto chain-of-thought) and print them.

    They go into the YAML file itself, with their provenance. Presets bring steps; -o writes a metric of your own with
    those of the judge. Existing steps are kept unless --force is given.
    """
    from geval_local.metric import Metric

    given = Metric.load(metric)
    if given.template is not None:
        raise ConfigurationError(f"{given.name} is a prompt used verbatim; its steps are part of its text")
    if output is not None:
        _check_output(output)
    file = Path(metric) if Path(metric).suffix in (".yaml", ".yml") else None
    if given.steps is not None and not force and (file is not None or output is None):
        more = "--force rewrites them" if file is not None else "-o FILE.yaml writes a metric with those of the judge"
        complete, place = given, f"{metric} has steps already; {more}"
    else:
        if file is None and output is None:
            raise ConfigurationError(
                f"{given.name} is a preset and brings its steps", hint="Write a metric of your own: -o FILE.yaml"
            )
        complete, place = _write_into(file if output is None else None, given, judge)
    if output is not None:
        from geval_local.files import save_text

        save_text(output, complete.to_yaml())
        place = f"the metric with its steps is in {output}"
    show_steps(complete, as_json=as_json)
    note(place)


def _check_output(output: Path) -> None:
    if output.suffix not in (".yaml", ".yml"):
        raise OutputError(f"cannot write {output}: a metric file ends in .yaml or .yml")
    if output.exists():
        raise OutputError(f"{output} exists already", hint="Choose another name.")
    if not output.parent.is_dir():
        raise OutputError(f"cannot write {output}: there is no directory {output.parent}")


def _write_into(file: Path | None, given: Metric, options: JudgeOptions) -> tuple[Metric, str]:
    """Write the steps of a metric file, into the file itself if one is given."""
    from geval_local.files import save_text
    from geval_local.judge.steps import write_steps
    from geval_local.metric import with_steps_in_text

    judge = load_shown(options)
    with show_progress() as progress:
        complete = write_steps(judge, given, on_steps=progress.show_steps)
    show_difference(given, complete)
    if file is not None:
        text = file.read_bytes().decode("utf-8")
        save_text(file, with_steps_in_text(text, complete, str(file)))
    return complete, f"written into {file}"
