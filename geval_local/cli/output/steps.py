"""Evaluation steps, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geval_local.cli.output.console import note, print_json, show_text

if TYPE_CHECKING:
    from geval_local.metric import Metric


def show_difference(old: Metric, new: Metric) -> None:
    """Print the changes between two lists of steps as a unified diff on stderr."""
    import difflib

    if not old.steps:
        return
    lines = list(difflib.unified_diff(_numbered(old), _numbered(new), "old steps", "new steps", lineterm=""))
    note("\n".join(lines) if lines else "the new steps are the same as the old ones")


def _numbered(metric: Metric) -> list[str]:
    return [f"{number}. {step}" for number, step in enumerate(metric.steps or (), start=1)]


def show_steps(metric: Metric, *, as_json: bool) -> None:
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
