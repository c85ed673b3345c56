"""DeepEval's own terms become a metric: criteria, evaluation steps, parameters and rubric, as its GEval has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from deepeval.metrics.g_eval.utils import (
    G_EVAL_PARAMS,
    Rubric,
    get_score_range,
    validate_and_sort_rubrics,
    validate_criteria_and_evaluation_steps,
)
from deepeval.test_case import SingleTurnParams

from geval_local.errors import MetricError
from geval_local.metric import Metric
from geval_local.scale import Scale

__all__ = ["metric_from_terms"]

#: What stands for the criteria where only steps are given.
BY_STEPS = "How well the text fares by the evaluation steps below."


def metric_from_terms(
    name: str,
    *,
    criteria: str | None = None,
    evaluation_steps: Sequence[str] | None = None,
    evaluation_params: Sequence[SingleTurnParams] | None = None,
    rubric: Sequence[Rubric] | None = None,
) -> Metric:
    """Make a metric from the arguments of DeepEval's `GEval`."""
    if not evaluation_params:
        raise MetricError(
            f"{name}: evaluation_params are missing",
            hint="Name the fields of the test case that are rated, such as [SingleTurnParams.ACTUAL_OUTPUT].",
        )
    steps = None if evaluation_steps is None else tuple(evaluation_steps)
    try:
        validate_criteria_and_evaluation_steps(criteria, None if steps is None else list(steps))
        bands = validate_and_sort_rubrics(None if rubric is None else list(rubric))
        low, high = get_score_range(bands)
        return Metric(
            name=re.sub(r"[^\w.-]+", "_", name.strip()) or "metric",
            title=name,
            criteria=criteria or BY_STEPS,
            steps=steps,
            fields={param.value: _heading(param) for param in evaluation_params},
            scale=Scale.parse(f"{low}-{high}"),
            rubric=None if bands is None else {_band(*band.score_range): band.expected_outcome for band in bands},
        )
    except ValueError as error:  # pydantic's are of this kind too
        raise MetricError(f"{name}: {error}") from error


def _heading(param: SingleTurnParams) -> Any:
    if param not in G_EVAL_PARAMS:
        raise ValueError(f"{param} is no text of a test case that GEval reads")
    return G_EVAL_PARAMS[param]


def _band(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"
