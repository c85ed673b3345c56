"""The figures of a score and of an answer: their names, kinds and places, declared once.

Writing, reading, the columns of CSV and Parquet, data frames and the tables of the documents derive from these two
tables: a new figure is one line here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: What the values of a figure are.
Kind = Literal["number", "numbers", "count", "flag", "text", "texts", "distribution", "tokens", "value", "outcomes"]


@dataclass(frozen=True)
class Figure:
    """A figure of a score, or of an answer."""

    name: str
    kind: Kind
    #: What it is, for the documents.
    told: str
    #: Whether a CSV file has a column of it unless others are asked for: always, where a row has it, or never.
    csv: Literal["always", "present", "asked"] = "asked"
    #: Reads it from a score or an answer, None if that has none; by default the attribute of its name.
    of: Callable[[Any], Any] | None = None
    #: The types of questions that have it; all if empty.
    types: tuple[str, ...] = ()
    #: Whether a row without a score or an answer has it.
    unscored: bool = False

    def value(self, subject: Any) -> Any:
        """Return it as a plain JSON value; None if there is none."""
        return getattr(subject, self.name) if self.of is None else self.of(subject)


def _listed(name: str) -> Callable[[Any], Any]:
    return lambda one: [getattr(order, name) for order in one.orders] or None


def _of_thoughts(name: str) -> Callable[[Any], Any]:
    return lambda one: None if one.thoughts is None else getattr(one.thoughts, name)


_THOUGHTS = (
    Figure(
        "thought_count", "count", "of a judge that [thinks](thinking.md): thoughts per form", of=_of_thoughts("count")
    ),
    Figure(
        "thought_error",
        "number",
        "Monte Carlo standard error that the thoughts leave in the score, or in an answer's probability or score",
        "present",
        _of_thoughts("error"),
    ),
    Figure(
        "thought_bias",
        "number",
        "estimated bias of the plain mean of few thoughts; it is taken off from three on",
        of=_of_thoughts("bias"),
    ),
    Figure("thought_spread", "number", "standard deviation after single thoughts", of=_of_thoughts("spread")),
    Figure("cut_thoughts", "count", "thoughts that were closed at the limit", of=_of_thoughts("cut")),
    Figure(
        "thoughts",
        "texts",
        "their texts, if they are kept",
        "present",
        lambda one: None if one.thoughts is None else list(one.thoughts.texts) or None,
    ),
)
_ERRORS = (
    Figure(
        "error",
        "text",
        "why there is no score or answer; the other figures are then absent",
        "always",
        lambda one: None if one.error is None else str(one.error),
        unscored=True,
    ),
    Figure("error_code", "text", "the reason as a [code](data.md#results)", "always", unscored=True),
)


def _named(*figures: Figure) -> dict[str, Figure]:
    return {one.name: one for one in figures}


#: Those of a score, in the order of the columns.
FIGURES: dict[str, Figure] = _named(
    Figure("score", "number", "the expectation, on the metric's scale", "always", lambda one: one.value),
    Figure("calibrated", "number", "with a calibration: the score on the scale of human ratings", "present"),
    Figure("normalized", "number", "the score on 0 to 1"),
    Figure("probabilities", "distribution", "of each label, together 1"),
    Figure(
        "label_mass",
        "number",
        "the probability of all labels together, before it is divided out, 0 to 1",
        "always",
    ),
    Figure(
        "std",
        "number",
        "standard deviation of this row's label distribution, in units of the scale; not the `std` of a run's table, "
        "which is the spread between rows",
    ),
    Figure("entropy", "number", "entropy of this row's label distribution, in nats"),
    Figure("mode", "text", "the most likely label"),
    Figure("margin", "number", "its lead over the second"),
    Figure("threshold", "number", "the threshold, if there is one"),
    Figure("threshold_probability", "number", "the probability of reaching it"),
    Figure("passed", "flag", "whether the score reaches it"),
    Figure("order_scores", "numbers", "of a pair: the score of each order", of=_listed("score")),
    Figure("order_masses", "numbers", "of a pair: the label mass of each order", of=_listed("label_mass")),
    *_THOUGHTS,
    Figure(
        "other_tokens",
        "tokens",
        "the likeliest next tokens outside the labels, if the label mass is low",
        of=lambda one: [list(pair) for pair in one.other_tokens] or None,
    ),
    Figure(
        "prompt_tokens",
        "count",
        "length of the prompt, of both orders of a pair together",
        unscored=True,
    ),
    Figure(
        "dropped_tokens",
        "count",
        "tokens cut off a field that may be shortened",
        of=lambda one: one.dropped_tokens or None,
    ),
    *_ERRORS,
)

#: Those of an answer to a question, in the order of the columns.
ANSWERS: dict[str, Figure] = _named(
    Figure("type", "text", "predicate, choice or score", of=lambda one: one.question.type, unscored=True),
    Figure("probability", "number", "of a predicate: that the statement holds", "always", types=("predicate",)),
    Figure(
        "choice",
        "value",
        "the likeliest option; CSV and Parquet write the booleans as texts",
        "always",
        types=("choice",),
    ),
    Figure("score", "number", "the expected level, from 0", "always", types=("score",)),
    Figure(
        "confidence",
        "number",
        "0 to 1; of a choice: how far the likeliest option lies above equal probabilities; of a score: how "
        "concentrated the probabilities are at the likeliest level",
        "always",
        types=("choice", "score"),
    ),
    Figure(
        "probabilities",
        "outcomes",
        "of every option or level, together 1",
        of=lambda one: one.outcomes(),
        types=("choice", "score"),
    ),
    Figure(
        "label_mass",
        "number",
        "the probability of all answers together, before it is divided out, 0 to 1",
        "always",
    ),
    Figure(
        "orders",
        "count",
        "with rotations: in how many orders the options were shown",
        of=lambda one: None if one.spread is None else one.orders,
    ),
    Figure("spread", "number", "the largest difference that the order made"),
    Figure(
        "spread_error",
        "number",
        "of a judge that [thinks](thinking.md): standard error that the thoughts leave in `spread`, since each "
        "order has its own",
    ),
    *_THOUGHTS,
    Figure("prompt_tokens", "count", "length of the prompts, the evidence counted in each", unscored=True),
    *_ERRORS,
)


def as_dict(figures: Mapping[str, Figure], subject: Any, *, kind: str = "") -> dict[str, Any]:
    """Return the figures of a score or an answer as plain JSON values; an undefined one (NaN) is None.

    `kind` is the type of a question. A figure that the subject does not have is absent.
    """
    found: dict[str, Any] = {}
    for name, one in figures.items():
        if (subject.error is None or one.unscored) and (not one.types or kind in one.types):
            value = one.value(subject)
            if value is not None:
                found[name] = None if isinstance(value, float) and math.isnan(value) else value
    return found
