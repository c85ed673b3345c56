"""The question about a pair: which of two outputs is better on a metric, A, B, or neither. Pure.

The metric that asks it is made from the one that rates a single output: its task introduction, criteria and steps, its
other fields first, then the two outputs, so that all pairs of a document share the source and the first output. Both
orders are asked for, and share all text up to the first output; the score is the preference for the first output, the
probability that it is better plus half the probability of a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from geval_local.direction import Direction
from geval_local.errors import MetricError
from geval_local.metric import Metric
from geval_local.prompt import Prompt, form_filler
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, Outcome, Score, mean_other_tokens

#: Fields of the two outputs.
FIRST, SECOND = "output_a", "output_b"
#: Values are the preference for the first output.
PAIR_SCALE = Scale(("A", "B", "tie"), (1.0, 0.0, 0.5))
REQUEST = (
    "Here two texts are given in the place of one, {a} and {b}. Do not rate them: decide which of the two is better by "
    "the criteria below. Answer A if {a} is better, B if {b} is better, and tie if neither of them is better."
)


def compared_field(metric: Metric) -> str:
    """Name the field whose texts are compared: ``output``, or the last one of a metric that has none."""
    return "output" if "output" in metric.fields else list(metric.fields)[-1]


def pair_metric(metric: Metric) -> Metric:
    """Make the metric that compares two outputs."""
    if metric.pair is not None:
        return metric
    if metric.template is not None:
        raise MetricError(
            f"{metric.name} is a prompt used to the letter, and asks about one text",
            hint="Pairs need a metric with criteria; `geval-local metrics list` shows the presets.",
        )
    if metric.examples:
        raise MetricError(
            f"{metric.name} has examples of single texts, which say nothing about pairs",
            hint="Name a copy of the metric without the key `examples`.",
        )
    if metric.direction is Direction.LOW:
        raise MetricError(
            f"low scores of {metric.name} are good, and a pair asks which text is better",
            hint="Write a metric whose criteria say what a good text is.",
        )
    compared = compared_field(metric)
    taken = {FIRST, SECOND} & set(metric.fields)
    if taken:
        raise MetricError(f"{metric.name} has a field {taken.pop()!r} of its own", hint="Rename the field.")
    heading = metric.fields[compared]
    others = {name: text for name, text in metric.fields.items() if name != compared}
    criteria = metric.criteria
    if metric.rubric:
        criteria += "".join(f"\n- {label}: {text}" for label, text in metric.rubric.items())
    return Metric(
        name=f"{metric.name}/pairs",
        title=metric.title,
        introduction=f"{metric.introduction}\n\n{REQUEST.format(a=f'{heading} A', b=f'{heading} B')}".strip(),
        criteria=criteria,
        steps=metric.steps,
        steps_provenance=metric.steps_provenance,
        fields={**others, FIRST: f"{heading} A", SECOND: f"{heading} B"},
        scale=PAIR_SCALE,
        shorten=metric.shorten if metric.shorten in others else None,
        case_variants=metric.case_variants,
        pair=(FIRST, SECOND),
    )


@dataclass(frozen=True)
class Order:
    """One of the forms that a sample fills."""

    #: Fills it from the text of every field.
    fill: Callable[[Mapping[str, str]], Prompt]
    #: Says how the labels are written behind this form, in the order of what they mean: for a pair in its other order
    #: the second label says that the first text is better, and stands first.
    metric: Metric


def orders_of(metric: Metric) -> tuple[Order, ...]:
    """List the forms of a metric: one, and of a pair one in the given order and one in the other."""
    given = Order(form_filler(metric), metric)
    if metric.pair is None:
        return (given,)
    return given, Order(partial(_fill_exchanged, given.fill, metric.pair), _exchanged(metric))


def _fill_exchanged(
    fill: Callable[[Mapping[str, str]], Prompt], pair: tuple[str, str], fields: Mapping[str, str]
) -> Prompt:
    first, second = pair
    return fill({**fields, first: fields[second], second: fields[first]})


def _exchanged(metric: Metric) -> Metric:
    """Let the first two labels change places, and no value."""
    first, second, *others = metric.scale.labels
    return metric.model_copy(update={"scale": Scale((second, first, *others), metric.scale.values)})


def scores_of(
    metric: Metric, outcomes: Sequence[Outcome], estimator: Estimator | None = None, threshold: float | None = None
) -> list[Score]:
    """Score samples, given the outcomes of all their forms, side by side; the metric's own threshold when absent."""
    estimator = estimator or Estimator()
    limit = metric.threshold if threshold is None else threshold
    return [one.score(metric, estimator=estimator, threshold=limit) for one in mean_outcomes(metric, outcomes)]


def mean_outcomes(metric: Metric, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Bring the outcomes of all forms, those of a sample side by side, to one per sample."""
    if metric.forms == 1:
        return list(outcomes)
    starts = range(0, len(outcomes), metric.forms)
    return [mean_outcome(metric.scale, outcomes[start : start + metric.forms]) for start in starts]


def mean_outcome(scale: Scale, outcomes: Sequence[Outcome]) -> Outcome:
    """Take the mean over both orders of a pair."""
    tokens = sum(one.prompt_tokens for one in outcomes)
    orders: list[Distribution] = []
    for one in outcomes:
        if one.label_logprobs is None:
            return Outcome(error=one.error, prompt_tokens=tokens)
        orders.append(Distribution(scale, one.label_logprobs))
    p = np.mean([order.p for order in orders], axis=0)
    mass = float(np.mean([order.label_mass for order in orders]))
    with np.errstate(divide="ignore"):
        logprobs = np.log(p) + np.log(mass)
    return replace(
        outcomes[0],
        label_logprobs=logprobs,
        orders=tuple(order.label_logprobs for order in orders),
        other_tokens=mean_other_tokens(outcomes),
        prompt_tokens=tokens,
        dropped_tokens=max(one.dropped_tokens for one in outcomes),
        thoughts=tuple(form for one in outcomes for form in one.thoughts),
    )
