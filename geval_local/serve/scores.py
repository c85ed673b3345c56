"""The project's own route ``POST /v1/score``: rows and a metric in, result objects as on the command line out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from geval_local.errors import GevalError
from geval_local.io.samples import Sample
from geval_local.io.text_formats import plain
from geval_local.metric import Metric, preset_names
from geval_local.score import Score
from geval_local.serve.refusals import Refused
from geval_local.yaml_model import problem_in_words

__all__ = ["read_request", "write_answer"]

MAX_ROWS = 4096
_FIELDS = ("model", "metric", "rows", "threshold")


def read_request(body: Mapping[str, Any]) -> tuple[Metric, list[Sample], float | None]:
    """Parse the request.

    Returns
    -------
    metric : Metric
    samples : list of Sample
    threshold : float or None

    Raises
    ------
    Refused
        If the metric is neither a preset nor a definition, or the rows are not a list of objects.
    """
    for field in body:
        if field not in _FIELDS:
            raise Refused(
                f"unknown field {field[:40]!r}; known are {', '.join(_FIELDS)}",
                param=field[:40],
                code="unknown_parameter",
            )
    rows = body.get("rows")
    if not isinstance(rows, list) or not 1 <= len(rows) <= MAX_ROWS:
        raise Refused(f"rows is a list of 1 to {MAX_ROWS} objects", param="rows")
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise Refused("a row is an object of texts", param=f"rows[{place}]")
    metric = _metric(body.get("metric"))
    threshold = body.get("threshold")
    if threshold is not None and (
        type(threshold) not in (int, float) or not metric.scale.low <= threshold <= metric.scale.high
    ):
        raise Refused(f"threshold is a number on the metric's scale {metric.scale.text}", param="threshold")
    return metric, [Sample(row, number) for number, row in enumerate(rows, start=1)], threshold


def write_answer(
    metric: Metric, samples: Sequence[Sample], scores: Sequence[Score], model: str, signature: str
) -> dict[str, Any]:
    """Build the response: rows as written by the command line, each with its columns and ``geval``."""
    rows = [
        {**plain(dict(sample.fields)), "geval": {metric.name: score.to_dict()}}
        for sample, score in zip(samples, scores, strict=True)
    ]
    return {"model": model, "metric": metric.name, "signature": signature, "rows": rows}


def _metric(given: Any) -> Metric:
    # Names of presets only: a path would let a client read this machine's files.
    if isinstance(given, str):
        if given not in preset_names():
            raise Refused("there is no preset metric of this name", 404, param="metric", code="metric_not_found")
        return Metric.load(given)
    if not isinstance(given, dict):
        raise Refused("metric is the name of a preset, or a definition as in a metric's YAML file", param="metric")
    try:
        return Metric.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(["metric", *map(str, problem["loc"])])
        raise Refused(problem_in_words(problem, Metric)[0], param=where) from None
    except GevalError as error:
        raise Refused(error.message, param="metric") from None
