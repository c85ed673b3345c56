"""The metrics that a command names, and limits that are meant on their scales."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from geval_local.errors import ConfigurationError
from geval_local.metric import Metric
from geval_local.prompt import metric_from_prompt_file


def chosen_metrics(names: Sequence[str], prompt_file: Path | None, scale: str | None, no_steps: bool) -> list[Metric]:
    """Load the metrics that are named, or read the prompt that is one."""
    if prompt_file is None:
        if scale is not None:
            raise ConfigurationError("--scale belongs to --prompt-file; a metric brings its own scale")
        if not names:
            raise ConfigurationError(
                "no metric is named", hint="Add --metric NAME; `geval-local metrics list` shows the names."
            )
        metrics = [Metric.load(name) for name in names]
    elif names or scale is None or no_steps:
        raise ConfigurationError(
            "--prompt-file is a metric by itself: it goes with --scale, and with neither --metric nor --no-steps",
            hint=f"geval-local score FILE --prompt-file {prompt_file} --scale 1-5",
        )
    else:
        metrics = [metric_from_prompt_file(prompt_file, scale)]
    doubled = sorted({metric.name for metric in metrics if [other.name for other in metrics].count(metric.name) > 1})
    if doubled:
        raise ConfigurationError(
            f"two metrics have the same name: {', '.join(doubled)}", hint="Change the name in one of the YAML files."
        )
    return [metric.with_steps(()) for metric in metrics] if no_steps else metrics


def check_on_scales(option: str, value: float | None, metrics: Sequence[Metric]) -> None:
    """Reject a limit that every score of the metric reaches, or none can: it was meant for another scale."""
    for metric in metrics:
        if value is not None and not metric.scale.low <= value <= metric.scale.high:
            raise ConfigurationError(
                f"{option} {value:g} is outside the scale {metric.scale.text} of {metric.name}",
                hint="It is meant on the metric's own scale; metrics with different scales need runs of their own.",
            )
