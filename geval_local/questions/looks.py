"""Looks: the forms that one sample fills on one metric, and the one outcome that is the mean over them. Pure.

A metric asks once unless it says otherwise. With more looks the same text is rated at the end of several forms, which
differ in how the answer is asked for and in the order in which the labels are listed; a pair of texts is shown in both
orders too. Forms share everything up to their endings, so that a look costs its ending and no more. Every look is
exact; the sample's distribution is the mean of theirs, and how far they differ is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from geval_local.metric import Metric
from geval_local.prompt import Prompt, form_filler
from geval_local.scale import Scale
from geval_local.score import Distribution, Outcome

__all__ = ["Look", "looks_of", "mean_outcome", "mean_outcomes"]


@dataclass(frozen=True)
class Look:
    """One of the forms that a sample fills."""

    #: Fills it from the text of every field.
    fill: Callable[[Mapping[str, str]], Prompt]
    #: Says how the labels are written behind this form, in the order of what they mean: for a pair in its other order
    #: the second label says that the first text is better, and stands first.
    metric: Metric


def looks_of(metric: Metric) -> tuple[Look, ...]:
    """List the forms of a metric, `Metric.forms` of them; of a pair each look in the given order, then in the other."""
    looks: list[Look] = []
    for number in range(metric.looks):
        fill = form_filler(metric, number)
        looks.append(Look(fill, metric))
        if metric.pair is not None:
            looks.append(Look(partial(_fill_exchanged, fill, metric.pair), _exchanged(metric)))
    return tuple(looks)


def _fill_exchanged(
    fill: Callable[[Mapping[str, str]], Prompt], pair: tuple[str, str], fields: Mapping[str, str]
) -> Prompt:
    first, second = pair
    return fill({**fields, first: fields[second], second: fields[first]})


def _exchanged(metric: Metric) -> Metric:
    """Let the first two labels change places, and no value."""
    first, second, *others = metric.scale.labels
    return metric.model_copy(update={"scale": Scale((second, first, *others), metric.scale.values)})


def mean_outcomes(metric: Metric, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Bring the outcomes of all forms, those of a sample side by side, to one per sample."""
    if metric.forms == 1:
        return list(outcomes)
    starts = range(0, len(outcomes), metric.forms)
    return [mean_outcome(metric.scale, outcomes[start : start + metric.forms]) for start in starts]


def mean_outcome(scale: Scale, outcomes: Sequence[Outcome]) -> Outcome:
    """Take the mean of the looks at one sample."""
    tokens = sum(one.prompt_tokens for one in outcomes)
    looks: list[Distribution] = []
    for one in outcomes:
        if one.label_logprobs is None:
            return Outcome(error=one.error, prompt_tokens=tokens)
        looks.append(Distribution(scale, one.label_logprobs))
    p = np.mean([look.p for look in looks], axis=0)
    mass = float(np.mean([look.label_mass for look in looks]))
    other: dict[str, float] = {}
    for one in outcomes:
        for token, share in one.other_tokens:
            other[token] = other.get(token, 0.0) + share / len(outcomes)
    with np.errstate(divide="ignore"):
        logprobs = np.log(p) + np.log(mass)
    return replace(
        outcomes[0],
        label_logprobs=logprobs,
        looks=tuple(look.label_logprobs for look in looks),
        other_tokens=tuple(sorted(other.items(), key=lambda pair: -pair[1])[: len(outcomes[0].other_tokens) or 5]),
        prompt_tokens=tokens,
        dropped_tokens=max(one.dropped_tokens for one in outcomes),
    )
