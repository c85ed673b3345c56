"""A scorer for Inspect: ``geval`` scores samples with a local judge, live or from a log.

The entry points ``inspect_ai`` load this module, so that ``inspect score LOG --scorer geval_local/geval`` finds it. A
log names a scorer after its metric. Presets are registered by their names, so that ``inspect score LOG`` finds them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from inspect_ai._util.registry import RegistryInfo, registry_add, set_registry_info
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, mean, metric, scorer, stderr
from inspect_ai.solver import TaskState

from geval_local.direction import Direction
from geval_local.errors import ConfigurationError
from geval_local.hosts.bound import BoundMetric, JudgeLike, MetricLike
from geval_local.metric_file import preset_names
from geval_local.options import JudgeOptions
from geval_local.score import Score as LocalScore
from geval_local.score import silence

#: Key of the metadata: the threshold in the units of the value, which may be normalized.
PASSES_FROM = "passes_from"
#: Key of the metadata that marks a metric whose low scores are good.
BETTER = "better"


@metric  # type: ignore[untyped-decorator]
def pass_rate() -> Metric:
    """Return the share of scores that reach the threshold, among scores that have one.

    With several epochs, the value is the one that Inspect reduced them to; the metadata are those of the first epoch.
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

    The columns of a sample are ``input`` (for a metric's ``source`` or ``question``), ``output``, ``target`` (for
    ``reference``), ``choices`` and ``metadata``; a dotted path reads a key of the last. With a threshold, the metrics
    include the share of samples that reach it.
    """
    return _named(BoundMetric.bind(metric, judge, fields=fields, threshold=threshold), normalized)


def _named(bound: BoundMetric, normalized: bool) -> Scorer:
    """Make a scorer with its metric's name; a log records these arguments as its options."""
    metrics = [mean(), stderr(), *([] if bound.threshold is None else [pass_rate()])]

    def named(
        metric: str,
        judge: str | dict[str, Any],
        fields: Mapping[str, str],
        threshold: float | None,
        normalized: bool,
        metric_hash: str,
    ) -> Scorer:
        return _scorer(bound, normalized)

    options = (bound.metric.name, _judge(bound), dict(bound.fields), bound.threshold, normalized, _hash(bound))
    made: Scorer = scorer(metrics=metrics, name=bound.metric.name)(named)(*options)
    return made


def _judge(bound: BoundMetric) -> str | dict[str, Any]:
    """Return how the judge was loaded: its name alone, or all options that are not defaults."""
    try:
        given = bound.options.record()
    except ConfigurationError:  # loaded elsewhere
        return bound.judge.name
    return str(given["name"]) if given.keys() == {"name"} else given


def _hash(bound: BoundMetric) -> str:
    return f"{bound.metric.hash}/{bound.metric.steps_hash}"


def _from_log(
    metric: str, judge: str | dict[str, Any] | None = None, normalized: bool = False, metric_hash: str = "", **rest: Any
) -> Scorer:
    """Make the scorer of a preset again, from the options in a log."""
    bound = BoundMetric.bind(metric, JudgeOptions(**judge) if isinstance(judge, dict) else judge, **rest)
    if metric_hash not in ("", _hash(bound)):
        raise ConfigurationError(
            f"the log was scored by another {metric} than the preset of this version",
            hint="Name the metric's file: inspect score LOG --scorer geval_local/geval -S metric=FILE.yaml",
        )
    return _named(bound, normalized)


# Names in logs lack the package's prefix.
for _preset in preset_names():
    _again = partial(_from_log)
    registry_add(_again, RegistryInfo(type="scorer", name=_preset))
    set_registry_info(_again, RegistryInfo(type="scorer", name=f"geval_local/{_preset}"))


@scorer(metrics=[mean(), stderr(), pass_rate()], name="geval")  # type: ignore[untyped-decorator]
def _registered(
    metric: str,
    judge: str | None = None,
    fields: Mapping[str, str] | None = None,
    threshold: float | None = None,
    normalized: bool = False,
) -> Scorer:
    """Score samples like `geval`; Inspect renames a scorer that it finds by name."""
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
