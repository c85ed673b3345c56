"""Scales: ordered labels with values, and their written forms. Pure.

The definitions are those of G-Eval (Liu et al., 2023, section 2): the score is the probability-weighted sum of the
label values, ``score = sum_l p(l) * value(l)``, here with exact probabilities instead of sampled frequencies.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import ScaleError

MAX_LABELS = 1001
_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_RANGE = re.compile(rf"^\s*({_NUMBER})\s*(?:-|–|\.\.|to)\s*({_NUMBER})(?:\s*,?\s*step\s+({_NUMBER}))?\s*$")
_FORMS = 'Write a range ("1-5", "0-1 step 0.25"), two words ("Yes/No"), or a mapping of labels to values.'

#: Labels, and one value for each.
LabelsAndValues: TypeAlias = tuple[tuple[str, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Scale:
    """An ordered set of labels with values.

    Parameters
    ----------
    labels : tuple of str
        The labels as the model should write them, distinct after stripping white space, at least two.
    values : tuple of float
        One finite value per label; not all equal. They need not be integers, nor sorted.

    Raises
    ------
    ScaleError
        If the labels or the values break one of these rules.
    """

    labels: tuple[str, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(label.strip() for label in self.labels))
        object.__setattr__(self, "values", tuple(float(value) for value in self.values))
        if len(self.labels) != len(self.values):
            raise ScaleError(f"a scale needs one value per label: {len(self.labels)} labels, {len(self.values)} values")
        if len(self.labels) < 2:
            raise ScaleError("a scale needs at least two labels")
        if len(self.labels) > MAX_LABELS:
            raise ScaleError(f"a scale has at most {MAX_LABELS} labels, this one has {len(self.labels)}")
        if any(not label for label in self.labels):
            raise ScaleError("a label of the scale is empty")
        doubled = sorted({label for label in self.labels if self.labels.count(label) > 1})
        if doubled:
            raise ScaleError(f"labels of a scale must be distinct; more than once: {', '.join(doubled)}")
        for label, value in zip(self.labels, self.values, strict=True):
            if not math.isfinite(value):
                raise ScaleError(f"the value of label {label!r} is not finite: {value}")
        if min(self.values) == max(self.values):
            raise ScaleError(f"all labels of the scale have the same value {self.values[0]:g}")

    def __repr__(self) -> str:
        return f"Scale({reprlib.repr(self.spec)})"

    @classmethod
    def parse(cls, spec: Scale | str | Mapping[object, object] | Sequence[object]) -> Scale:
        """Read a scale from its written form.

        Parameters
        ----------
        spec : Scale, str, mapping or sequence
            ``"1-5"``, ``"0-1 step 0.25"``, ``"Yes/No"`` (first label 1, last 0), a mapping ``{label: value}``, or a
            sequence of numeric labels such as ``[1, 2, 4, 8]``.

        Returns
        -------
        Scale

        Raises
        ------
        ScaleError
            If the specification cannot be read; the message lists the accepted forms.
        """
        return spec if isinstance(spec, Scale) else cls(*_read(spec))

    @cached_property
    def array(self) -> NDArray[np.float64]:
        """The values as a read-only float64 array of shape ``(labels,)``."""
        array = np.asarray(self.values, dtype=np.float64)
        array.setflags(write=False)
        return array

    @property
    def low(self) -> float:
        """The smallest value."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest value."""
        return max(self.values)

    @property
    def is_numeric(self) -> bool:
        """Whether every label is written as its own value."""
        return all(number_in(label) == value for label, value in zip(self.labels, self.values, strict=True))

    @property
    def text(self) -> str:
        """The scale in short: ``1-5``, ``-2 to 2``, ``0-1 in steps of 0.25``, ``1/2/4/8``, ``Yes/No``."""
        return self._span or "/".join(self.labels)

    @property
    def shown(self) -> str:
        """The scale between a form's parentheses: ``1-5`` as in `text`, and a list as `listed_labels` writes it."""
        return self._span or listed_labels(self.labels)

    @property
    def _span(self) -> str:
        """Write equally spaced numbers by the first and the last; empty if only a list can name the labels."""
        step = self._step
        if step is None:
            return ""
        ordered = sorted(zip(self.values, self.labels, strict=True))
        span = f"{ordered[0][1]}{'-' if self.low >= 0 else ' to '}{ordered[-1][1]}"
        return span if step == 1 else f"{span} in steps of {_plain(step)}"

    @property
    def spec(self) -> str | dict[str, float]:
        """The shortest written form that `parse` reads back to this scale."""
        first, last, step = self.labels[0], self.labels[-1], self._step
        if step is None:
            text = f"{first}/{last}"
        else:
            text = f"{first}-{last}" if step == 1 else f"{first}-{last} step {_plain(step)}"
        try:
            if Scale.parse(text) == self:
                return text
        except ScaleError:
            pass
        return dict(zip(self.labels, self.values, strict=True))

    @property
    def _step(self) -> Decimal | None:
        """The distance between neighbouring labels of a numeric scale; None if it varies or the labels are words."""
        if not self.is_numeric:
            return None
        points = sorted(Decimal(label) for label in self.labels)
        steps = {upper - lower for lower, upper in pairwise(points)}
        return steps.pop() if len(steps) == 1 else None

    def normalize(self, value: float) -> float:
        """Map a value of the scale linearly onto 0 (lowest) to 1 (highest); NaN stays NaN."""
        return (value - self.low) / (self.high - self.low)


def number_in(value: Any) -> float | None:
    """Return the number that a value is, or that a text says; None if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


# --- written forms ---------------------------------------------------------------------------------------------------


def _read(spec: str | Mapping[object, object] | Sequence[object]) -> LabelsAndValues:
    """Parse the written form of a scale; `Scale` checks its labels and values."""
    if isinstance(spec, str):
        return _read_text(spec)
    if isinstance(spec, Mapping):
        pairs = [(label_text(label), _number(value, f"label {label!r}")) for label, value in spec.items()]
    elif isinstance(spec, Sequence) and not isinstance(spec, bytes):
        pairs = [(label_text(label), _number(label, "a label of a list scale")) for label in spec]
        _refuse_ends([value for _, value in pairs])
    else:
        raise ScaleError(f"a scale cannot be read from {type(spec).__name__}", hint=_FORMS)
    return tuple(label for label, _ in pairs), tuple(value for _, value in pairs)


def _refuse_ends(values: Sequence[float]) -> None:
    """Reject a list of two numbers that looks like a range: as labels they would have nothing between them."""
    if len(values) == 2 and abs(values[1] - values[0]) > 1:
        low, high = (f"{value:g}" for value in sorted(values))
        raise ScaleError(
            f"the list [{values[0]:g}, {values[1]:g}] would be a scale of two labels with nothing between them",
            hint=f'Write "{low}-{high}" for all numbers from {low} to {high}; if just these two labels are meant, '
            f"{{{low}: {low}, {high}: {high}}}.",
        )


def _read_text(spec: str) -> LabelsAndValues:
    match = _RANGE.match(spec)
    if spec.startswith("{") and spec.endswith("}"):  # a mapping on a command line
        pairs = [part.rpartition(":") for part in spec[1:-1].split(",")]
        with suppress(ValueError):
            return _read({label.strip(" '\""): float(value) for label, _, value in pairs})
    if match is None:
        words = [word.strip() for word in spec.split("/")]
        if len(words) == 2 and all(words):
            return (words[0], words[1]), (1.0, 0.0)
        raise ScaleError(f"cannot read the scale {spec!r}", hint=_FORMS)
    low, high, step = Decimal(match[1]), Decimal(match[2]), Decimal(match[3] or "1")
    if step <= 0 or high <= low:
        raise ScaleError(f"the scale {spec!r} is empty: it needs low < high and a step above 0", hint=_FORMS)
    count = (high - low) / step
    if count != count.to_integral_value():
        raise ScaleError(f"the scale {spec!r} does not reach {high} in steps of {step}", hint=_FORMS)
    if count >= MAX_LABELS:
        raise ScaleError(f"the scale {spec!r} has {int(count) + 1} labels; at most {MAX_LABELS} are supported")
    points = [low + step * index for index in range(int(count) + 1)]
    return tuple(_plain(point) for point in points), tuple(float(point) for point in points)


def shown_labels(labels: Sequence[str]) -> str:
    """List labels as a form shows them: ``Yes / No``.

    A judge copies its answer from the form. After a space a label has the same tokens as in an answer; after a slash
    most words have other tokens.
    """
    return " / ".join(labels)


def listed_labels(labels: Sequence[str]) -> str:
    """List labels between a form's parentheses: ``Yes / No``, ``labels: poor / fair / good``, ``1 / 2 / 4``.

    Next to a parenthesis the first label has other tokens than in an answer, so a word separates them. Judges read
    numbers, and pairs of labels, better without that word: nano knows (Yes / No) by heart.
    """
    words = len(labels) > 2 and any(label[0].isalpha() for label in labels)
    return f"labels: {shown_labels(labels)}" if words else shown_labels(labels)


def label_text(label: object) -> str:
    """Write a label in its usual form, even if YAML or Python read it as a number."""
    if isinstance(label, bool):
        raise ScaleError(f"the label {label} was read as a boolean", hint="Quote it in the YAML file.")
    if label is None:
        raise ScaleError("a label of the scale is empty or null", hint="Quote it in the YAML file if it is a word.")
    if isinstance(label, float):
        return _plain(Decimal(repr(label)))
    return str(label)


def _plain(number: Decimal) -> str:
    """Write a decimal in plain notation: no exponent, no trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ScaleError(f"the value of {where} is not a number: {reprlib.repr(value)}", hint=_FORMS)
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ScaleError(f"the value of {where} is not a number: {reprlib.repr(value)}", hint=_FORMS) from None
