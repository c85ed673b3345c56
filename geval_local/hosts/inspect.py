"""A scorer for Inspect: ``geval`` scores samples on a local judge, live or from a log.

Registered under the entry point ``inspect_ai``, so that ``inspect score LOG --scorer geval_local/geval`` finds it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, mean, metric, scorer, stderr
from inspect_ai.solver import TaskState

from geval_local.direction import Direction
from geval_local.hosts.bound import BoundMetric, JudgeLike, MetricLike
from geval_local.score import Score as LocalScore
from geval_local.score import silence

#: In the metadata: the threshold in the units of the value, which may be normalized.
PASSES_FROM = "passes_from"
#: In the metadata of a metric whose low scores are good: says so.
BETTER = "better"


@metric  # type: ignore[untyped-decorator]
def pass_rate() -> Metric:
    """Give the share of scores that reach the threshold, of those that have one.

    The value of several epochs is what Inspect has reduced them to. Their metadata are those of the first epoch.
    """

    def rate(scores: list[SampleScore]) -> float:
        known = [
            Direction(one.score.metadata.get(BETTER, "high")).passes(one.score.as_float(), limit)
            and not silence(one.score.metadata["label_mass"])
            for one in scores
            if one.score.metadata and (limit := one.score.metadata.get(PASSES_FROM)) is not None
        ]
        return sum(known) / len(known) if known else math.nan

    return rate


def geval(
    metric: MetricLike,
    judge: JudgeLike = None,
    fields: Mapping[str, str] | None = None,
    threshold: float | None = None,
    normalized: bool = False,
) -> Scorer:
    """Score samples by the exact expectation over a local judge's label probabilities; the scorer is named after it.

    The columns of a sample are ``input`` (which a metric's ``source`` or ``question`` is read from), ``output``,
    ``target`` (its ``reference``), ``choices`` and ``metadata``; a dotted path leads into the last. Where there is a
    threshold, the share of samples that reach it stands among the metrics.
    """
    bound = BoundMetric.bind(metric, judge, fields=fields, threshold=threshold)
    metrics = [mean(), stderr(), *([] if bound.threshold is None else [pass_rate()])]

    def named(metric: str, judge: str, fields: Mapping[str, str], threshold: float | None) -> Scorer:
        return _scorer(bound, normalized)

    made: Scorer = scorer(metrics=metrics, name=bound.metric.name)(named)(
        bound.metric.name, bound.judge.name, dict(bound.fields), bound.threshold
    )
    return made


@scorer(metrics=[mean(), stderr(), pass_rate()], name="geval")  # type: ignore[untyped-decorator]
def _registered(
    metric: str,
    judge: str | None = None,
    fields: Mapping[str, str] | None = None,
    threshold: float | None = None,
    normalized: bool = False,
) -> Scorer:
    """Score samples as `geval` does, where only a name is given: Inspect gives its own to what it finds by name."""
    return _scorer(BoundMetric.bind(metric, judge, fields=fields, threshold=threshold), normalized)


def _scorer(bound: BoundMetric, normalized: bool) -> Scorer:
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
    if found.threshold is not None:
        record[PASSES_FROM] = bound.metric.scale.normalize(found.threshold) if normalized else found.threshold
        if found.direction is not Direction.HIGH:
            record[BETTER] = found.direction.value
    return Score(
        value=found.normalized if normalized else found.value,
        answer=answer,
        explanation=bound.words(found),
        metadata=record,
    )
