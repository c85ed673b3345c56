"""Evaluation steps written into a metric's YAML text, with everything else unchanged."""

from __future__ import annotations

from geval_local.errors import MetricError
from geval_local.metric import Metric
from geval_local.yaml_text import YAMLError, edit_yaml

__all__ = ["with_steps_in_text"]

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
