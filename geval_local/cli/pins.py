"""Pinned evaluation steps, found without a judge's weights in memory."""

from __future__ import annotations

from pathlib import Path

from geval_local.metric import Metric
from geval_local.paths import home_directory

__all__ = ["find_pinned", "with_pinned"]


def find_pinned(metric: Metric, fingerprint: str) -> Path | None:
    """Find the file in which `steps.pinned_steps` has pinned the steps of this metric by this judge.

    Parameters
    ----------
    metric : Metric
        Its hash, which covers its name, is part of the file's name.
    fingerprint : str
        Content fingerprint of the judge.
    """
    return next(iter((home_directory() / "steps").glob(f"*-{metric.hash}-{fingerprint}.yaml")), None)


def with_pinned(metric: Metric, fingerprint: str) -> Metric:
    """Give a metric the steps that this judge has pinned for it, if there are any and it needs them."""
    path = find_pinned(metric, fingerprint) if metric.needs_steps else None
    if path is None:
        return metric
    pinned = Metric.load(path)
    return metric.with_steps(pinned.steps, pinned.steps_provenance)
