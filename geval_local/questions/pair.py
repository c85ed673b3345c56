"""The question about a pair: which of two outputs is better on a metric, A, B, or neither. Pure.

The metric that asks it is made from the one that rates a single output: its task introduction, criteria and steps, its
other fields first, then the two outputs, so that all pairs of a document share the source and the first output. Both
orders are looks of one form (see `geval_local.questions.looks`); the score is the preference for the first output, the
probability that it is better plus half the probability of a tie.
"""

from __future__ import annotations

from geval_local.errors import MetricError
from geval_local.metric import Metric
from geval_local.scale import Scale

__all__ = ["FIRST", "PAIR_SCALE", "SECOND", "compared_field", "pair_metric"]

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
        looks=metric.looks,
        pair=(FIRST, SECOND),
    )
