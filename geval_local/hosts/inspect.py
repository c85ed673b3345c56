"""A scorer for Inspect: ``geval`` scores samples on a local judge, live or from a log.

Registered under the entry point ``inspect_ai``, so that ``inspect score LOG --scorer geval_local/geval`` finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState

from geval_local.hosts.bound import BoundMetric, JudgeLike, MetricLike
from geval_local.score import Score as LocalScore


@scorer(metrics=[mean(), stderr()])  # type: ignore[untyped-decorator]
def geval(
    metric: MetricLike,
    judge: JudgeLike = None,
    fields: Mapping[str, str] | None = None,
    threshold: float | None = None,
    normalized: bool = False,
) -> Scorer:
    """Score samples by the exact expectation over a local judge's label probabilities.

    The columns of a sample are ``input`` (which a metric's ``source`` or ``question`` is read from), ``output``,
    ``target`` (its ``reference``), ``choices`` and ``metadata``; a dotted path leads into the last.
    """
    bound = BoundMetric.bind(metric, judge, fields=fields, threshold=threshold)

    async def score(state: TaskState, target: Target) -> Score:
        columns = {
            "input": state.input_text,
            "output": state.output.completion,
            "target": target.text or None,
            "choices": [choice.value for choice in state.choices] if state.choices else None,
            "metadata": state.metadata or None,
        }
        row = {name: value for name, value in columns.items() if value is not None}
        found = (await asyncio.wrap_future(bound.submit(row)))[0]
        return _written(bound, found, state.output.completion, normalized)

    return score


def _written(bound: BoundMetric, found: LocalScore, answer: str, normalized: bool) -> Score:
    record = bound.record(found)
    if not found.is_scored:
        return Score.unscored(reason=found.error, answer=answer, metadata=record)
    return Score(
        value=found.normalized if normalized else found.value,
        answer=answer,
        explanation=bound.words(found),
        metadata=record,
    )
