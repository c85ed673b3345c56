"""The project's own route ``POST /v1/score``: rows and a metric in, result objects as on the command line out.

A metric is scored with the steps that it holds, or without any: for clients no steps are written and none are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag, WithJsonSchema
from typing_extensions import TypedDict

from geval_local.io.samples import Sample
from geval_local.io.text_formats import plain
from geval_local.metric import Metric, preset_names
from geval_local.score import Score
from geval_local.serve.refusals import Refused, Strict

__all__ = ["ScoreAnswer", "ScoreRequest", "write_answer"]

MAX_ROWS = 4096


class ScoreRequest(Strict):
    """Rows to be scored on a metric: the name of a preset, or a definition as in a metric's YAML file."""

    model: str | None = None
    metric: Annotated[
        Annotated[str, Tag("preset")]
        | Annotated[Metric, Tag("definition"), WithJsonSchema({"type": "object", "required": ["name", "criteria"]})],
        Discriminator(
            lambda given: {str: "preset", dict: "definition"}.get(type(given)),
            custom_error_type="preset_or_definition",
            custom_error_message="the name of a preset, or a definition as in a metric's YAML file, is needed",
        ),
    ]
    rows: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)]
    threshold: float | None = None

    def asked(self) -> tuple[Metric, list[Sample]]:
        """Return the metric, with its steps or none, and the rows."""
        metric = self.metric
        if isinstance(metric, str):
            # Names of presets only: a path would let a client read this machine's files.
            if metric not in preset_names():
                raise Refused("there is no preset metric of this name", 404, param="metric", code="metric_not_found")
            metric = Metric.load(metric)
        if self.threshold is not None and not metric.scale.low <= self.threshold <= metric.scale.high:
            raise Refused(f"threshold is a number on the metric's scale {metric.scale.text}", param="threshold")
        if metric.needs_steps:
            metric = metric.with_steps(())
        return metric, [Sample(row, number) for number, row in enumerate(self.rows, start=1)]


class ScoreAnswer(TypedDict):
    """The rows, each with its columns and ``geval``, as the command line writes them."""

    model: str
    metric: str
    signature: str
    rows: list[dict[str, Any]]


def write_answer(
    metric: Metric, samples: Sequence[Sample], scores: Sequence[Score], model: str, signature: str
) -> dict[str, Any]:
    """Build the response."""
    rows = [
        {**plain(dict(sample.fields)), "geval": {metric.name: score.to_dict()}}
        for sample, score in zip(samples, scores, strict=True)
    ]
    return {"model": model, "metric": metric.name, "signature": signature, "rows": rows}
