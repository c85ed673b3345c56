"""``geval-local steps``: let a judge write a metric's evaluation steps, once, and keep them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from ruamel.yaml.error import YAMLError

from geval_local.cli import options as shared
from geval_local.cli.option_groups import takes_options
from geval_local.cli.options import complete_metric
from geval_local.cli.output.console import note, print_json, show_text
from geval_local.cli.progress import load_shown, show_progress
from geval_local.errors import ConfigurationError, MetricError, OutputError
from geval_local.metric import Metric
from geval_local.options import JudgeOptions
from geval_local.yaml_text import edit_yaml

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

    They go into the YAML file itself, with their provenance, or, for a preset, into this machine's pinned steps, where
    scoring finds them. Existing steps are kept unless --force is given.
    """
    from geval_local.metric import Metric

    given = Metric.load(metric)
    if given.template is not None:
        raise ConfigurationError(f"{given.name} is a prompt used verbatim; its steps are part of its text")
    if output is not None:
        _check_output(output)
    file = Path(metric) if Path(metric).suffix in (".yaml", ".yml") else None
    if file is not None and given.steps is not None and not force:
        complete, place = given, f"{file} has steps already; --force rewrites them"
    else:
        if file is None:
            complete, place = _pin(given, judge, force)
        else:
            complete, place = _write_into(file if output is None else None, given, judge)
    if output is not None:
        from geval_local.files import save_text

        save_text(output, complete.to_yaml())
        place = f"the metric with its steps is in {output}"
    _show(complete, as_json=as_json)
    note(place)


def _check_output(output: Path) -> None:
    if output.suffix not in (".yaml", ".yml"):
        raise OutputError(f"cannot write {output}: a metric file ends in .yaml or .yml")
    if output.exists():
        raise OutputError(f"{output} exists already", hint="Choose another name.")
    if not output.parent.is_dir():
        raise OutputError(f"cannot write {output}: there is no directory {output.parent}")


def _pin(given: Metric, options: JudgeOptions, force: bool) -> tuple[Metric, str]:
    """Write and pin a preset's steps, unless this judge already has pinned ones."""
    from geval_local.files import save_text
    from geval_local.judge.steps import pinned_path, pinned_steps, read_pinned, write_steps

    judge = load_shown(options)
    bare = given.with_steps(None)
    path = pinned_path(bare, judge.fingerprint)
    old = read_pinned(bare, judge.fingerprint)
    if old is None:
        with show_progress() as progress:
            complete, written = pinned_steps(judge, bare, on_steps=progress.show_steps)
        return complete, "not pinned" if written is None else f"pinned in {written}"
    if not force:
        return old, f"pinned in {path} already; --force rewrites them"
    with show_progress() as progress:
        complete = write_steps(judge, bare, on_steps=progress.show_steps)
    _show_difference(old, complete)
    save_text(path, complete.to_yaml())
    return complete, f"pinned in {path}"


def _write_into(file: Path | None, given: Metric, options: JudgeOptions) -> tuple[Metric, str]:
    """Write the steps of a metric file, into the file itself if one is given."""
    from geval_local.files import save_text
    from geval_local.judge.steps import write_steps

    judge = load_shown(options)
    with show_progress() as progress:
        complete = write_steps(judge, given, on_steps=progress.show_steps)
    _show_difference(given, complete)
    if file is not None:
        text = file.read_bytes().decode("utf-8")
        save_text(file, with_steps_in_text(text, complete, str(file)))
    return complete, f"written into {file}"


def _show_difference(old: Metric, new: Metric) -> None:
    """Print the changes between two lists of steps as a unified diff on stderr."""
    import difflib

    if not old.steps:
        return
    lines = list(difflib.unified_diff(_numbered(old), _numbered(new), "old steps", "new steps", lineterm=""))
    note("\n".join(lines) if lines else "the new steps are the same as the old ones")


def _numbered(metric: Metric) -> list[str]:
    return [f"{number}. {step}" for number, step in enumerate(metric.steps or (), start=1)]


def _show(metric: Metric, *, as_json: bool) -> None:
    if not as_json:
        lines = _numbered(metric) or ["(the metric is to be used without steps)"]
        show_text("\n".join(lines))
        return
    provenance = metric.steps_provenance
    print_json(
        {
            "metric": metric.name,
            "steps": list(metric.steps or ()),
            "provenance": None if provenance is None else provenance.model_dump(),
        }
    )


_KEYS = {"steps", "steps_provenance"}


def with_steps_in_text(text: str, metric: Metric, origin: str) -> str:
    """Put a metric's steps and their provenance into the YAML text that it was read from; comments are kept."""
    try:
        result = edit_yaml(text, metric.model_dump(mode="json", include=_KEYS, exclude_none=True))
        same = Metric.from_yaml(result) == metric
    except (MetricError, YAMLError):
        same = False
    if not same:
        raise MetricError(
            f"{origin}: steps cannot be put into this file without touching the rest of it",
            hint="Write the metric with its steps into another file: -o FILE.yaml",
        )
    return result
