"""``geval-local metrics`` and ``steps``: list, show, validate and start metrics; let a judge write evaluation steps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import complete_metric, takes_options
from geval_local.cli.output.console import DROPPED, WHOLE, note, print_json, print_rows, show_text
from geval_local.cli.progress import load_shown, show_progress
from geval_local.errors import ConfigurationError, MetricError
from geval_local.options import JudgeOptions

if TYPE_CHECKING:
    from geval_local.metric import Metric


def list_metrics(as_json: options.Json = False) -> None:
    """List the preset metrics."""
    from geval_local.metric import Metric
    from geval_local.metric_file import preset_names

    presets = [Metric.load(name) for name in preset_names()]
    if as_json:
        print_json(
            [{"name": metric.name, "scale": metric.scale.text, "fields": list(metric.fields)} for metric in presets]
        )
        return
    rows = [
        (one.name, one.scale.text, ", ".join(one.fields), one.criteria.split(". ")[0].strip(".")) for one in presets
    ]
    columns = [("metric", WHOLE), ("scale", WHOLE), ("fields", WHOLE | {DROPPED: 1}), ("criteria", {DROPPED: 2})]
    print_rows(columns, rows, narrow=False)
    note("next: geval-local metrics show NAME, or geval-local score FILE --metric NAME")


def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A preset or a YAML file.", autocompletion=complete_metric)
    ],
) -> None:
    """Print a metric as YAML; a preset's is a good start for one of your own."""
    from geval_local.metric import Metric

    typer.echo(Metric.load(name).to_yaml(), nl=False)


def validate(files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files.")]) -> None:
    """Check metric files; every problem is named with its line."""
    from geval_local.examples import doubts
    from geval_local.fields import counted
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
            shown = [f"{counted(len(metric.examples), 'example')}"] if metric.examples else []
            scale = f"scale {metric.scale.text} (labels {_labels(metric)})"
            parts = [metric.name, scale, f"fields {', '.join(metric.fields)}", steps, *shown]
            show_text(f"{file}: {', '.join(parts)}")
            for told in doubts(metric.name, metric.examples):
                note(f"warning: {file}: {told}", "yellow")
            options.warn_of_scales([metric])
    if problems:
        raise MetricError("\n".join(problems), hint=hint)


#: Most labels listed for a scale.
_LABELS_SHOWN = 11


def _labels(metric: Metric) -> str:
    """List a metric's labels as the judge may answer them; digits of other scripts may appear as ASCII."""
    labels = metric.scale.labels
    shown = labels if len(labels) <= _LABELS_SHOWN else (*labels[:3], "...", labels[-1])
    return ", ".join(shown)


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as support/clarity.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The YAML file to write.")],
) -> None:
    """Write a commented metric file to start from; an existing file is never overwritten."""
    from geval_local.files import save_text
    from geval_local.metric import Metric
    from geval_local.metric_file import TEMPLATE

    options.check_new_yaml(output, "a metric file")
    text = TEMPLATE.format(name=name)
    try:
        Metric.from_yaml(text)
    except MetricError as error:
        raise ConfigurationError(
            f"{name!r} is not a metric name",
            hint="Use letters, digits, '_', '-' and '.', with '/' between parts, such as support/clarity.",
        ) from error
    save_text(output, text)
    note(f"wrote {output}; edit it, then: geval-local metrics validate {output}")


def examples(
    metric: Annotated[
        str,
        typer.Argument(metavar="METRIC", help="A preset or a metric's YAML file.", autocompletion=complete_metric),
    ],
    rated: Annotated[Path, typer.Option("--from", parser=options.here, metavar="FILE", help="Rows with ratings.")],
    human: Annotated[
        str, typer.Option("--human", metavar="FIELD", help="Field of the human rating, or a dotted path to it.")
    ],
    count: Annotated[int, typer.Option("-n", metavar="N", min=1, max=100, help="How many examples.")] = 6,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    reason: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Field of the reason for a rating. Absent: no reasons.")
    ] = None,
    fields: options.Fields = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the whole metric to a new YAML file; for presets."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --output: the new metric's name. Absent: the file's name.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the examples that the metric has.")] = False,
) -> None:
    """Draw rated rows, spread over the scale, and write them into a metric as examples.

    The judge sees them before every sample. A rating between two labels becomes the nearest label. `meta-eval`,
    `calibrate` and `estimate` leave these rows out.
    """
    from geval_local.analysis.example_draw import draw_examples
    from geval_local.examples import doubts
    from geval_local.fields import read_mapping
    from geval_local.files import save_text
    from geval_local.metric import Metric, written_into

    given = Metric.load(metric)
    file = Path(metric) if Path(metric).suffix in (".yaml", ".yml") else None
    if output is not None:
        options.check_new_yaml(output, "a metric file")
    elif file is None:
        raise ConfigurationError(f"{given.name} is a preset", hint="Write a metric of your own: -o FILE.yaml")
    elif name is not None:
        raise ConfigurationError("--name is for a new file", hint="Add -o FILE.yaml.")
    elif given.examples and not force:
        raise ConfigurationError(
            f"{file} has {len(given.examples)} examples already", hint="--force replaces them, -o writes another file."
        )
    drawn = draw_examples(rated, given, human, count=count, seed=seed, reason=reason, fields=read_mapping(fields or ()))
    named = given.name if output is None else name or output.stem
    changed = given.model_copy(update={"examples": drawn.examples, "name": named})
    complete = Metric.from_yaml(changed.to_yaml(), origin=str(output or file))
    if output is not None:
        save_text(output, complete.to_yaml())
    elif file is not None:
        save_text(file, written_into(file.read_bytes().decode("utf-8"), complete, str(file), "examples"))
    show_text("\n".join(f"{one.id}: {one.label}" for one in complete.examples))
    for why, left in drawn.left_out.items():
        note(f"{left} rows {why}: not drawn from")
    for told in doubts(complete.name, complete.examples):
        note(f"warning: {told}", "yellow")
    before = f", in place of the {len(given.examples)} that it had" if given.examples and output is None else ""
    note(f"wrote {len(complete.examples)} of {drawn.candidates} rated rows into {output or file}{before}")


# --- steps ------------------------------------------------------------------------------------------------------------


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
    as_json: options.Json = False,
    *,
    judge: JudgeOptions,
) -> None:
    """Write the evaluation steps of a metric (auto chain-of-thought) and print them.

    They go into the YAML file itself, with their provenance. Presets already have steps; -o writes a metric of your own
    with the judge's steps. Existing steps are kept unless --force is given.
    """
    from geval_local.metric import Metric

    given = Metric.load(metric)
    if given.template is not None:
        raise ConfigurationError(f"{given.name} is a prompt used verbatim; its steps are part of its text")
    if output is not None:
        options.check_new_yaml(output, "a metric file")
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
    _show_steps(complete, as_json=as_json)
    note(place)


def _write_into(file: Path | None, given: Metric, judge_options: JudgeOptions) -> tuple[Metric, str]:
    """Write the steps of a metric file, into the file itself if one is given."""
    from geval_local.files import save_text
    from geval_local.judge.steps import write_steps
    from geval_local.metric import written_into

    judge = load_shown(judge_options)
    with show_progress() as progress:
        complete = write_steps(judge, given, on_steps=progress.show_steps)
    _show_difference(given, complete)
    if file is not None:
        text = file.read_bytes().decode("utf-8")
        save_text(file, written_into(text, complete, str(file)))
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


def _show_steps(metric: Metric, *, as_json: bool) -> None:
    """Print a metric's steps, numbered, or with their provenance as JSON."""
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
