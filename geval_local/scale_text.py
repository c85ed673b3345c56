"""Scales as people write them: ranges, two words, mappings and lists, read into labels and values. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TypeAlias

from geval_local.errors import ScaleError

__all__ = ["MAX_LABELS", "label_text", "plain", "read_scale"]

MAX_LABELS = 1001
_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_RANGE = re.compile(rf"^\s*({_NUMBER})\s*(?:-|–|\.\.|to)\s*({_NUMBER})(?:\s*,?\s*step\s+({_NUMBER}))?\s*$")
_FORMS = 'Write a range ("1-5", "0-1 step 0.25"), two words ("Yes/No"), or a mapping of labels to values.'

#: Labels, and one value for each.
LabelsAndValues: TypeAlias = tuple[tuple[str, ...], tuple[float, ...]]


def read_scale(spec: str | Mapping[object, object] | Sequence[object]) -> LabelsAndValues:
    """Read the written form of a scale; whether its labels and values make one, `Scale` checks.

    Parameters
    ----------
    spec : str, mapping or sequence
        See `Scale.parse`.

    Returns
    -------
    labels : tuple of str
    values : tuple of float

    Raises
    ------
    ScaleError
        If the specification cannot be read, with the forms that can.
    """
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
    """Refuse a list of two numbers that are the ends of a range: as labels they would be a scale without a middle."""
    if len(values) == 2 and abs(values[1] - values[0]) > 1:
        low, high = (f"{value:g}" for value in sorted(values))
        raise ScaleError(
            f"the list [{values[0]:g}, {values[1]:g}] would be a scale of two labels with nothing between them",
            hint=f'Write "{low}-{high}" for all numbers from {low} to {high}; if just these two labels are meant, '
            f"{{{low}: {low}, {high}: {high}}}.",
        )


def _read_text(spec: str) -> LabelsAndValues:
    match = _RANGE.match(spec)
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
    return tuple(plain(point) for point in points), tuple(float(point) for point in points)


def label_text(label: object) -> str:
    """Write a label that YAML or Python read as a number the way people write it.

    Raises
    ------
    ScaleError
        If it was read as a boolean or as null.
    """
    if isinstance(label, bool):
        raise ScaleError(f"the label {label} was read as a boolean", hint="Quote it in the YAML file.")
    if label is None:
        raise ScaleError("a label of the scale is empty or null", hint="Quote it in the YAML file if it is a word.")
    if isinstance(label, float):
        return plain(Decimal(repr(label)))
    return str(label)


def plain(number: Decimal) -> str:
    """Write a decimal as people do: no exponent, no trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ScaleError(f"the value of {where} is not a number: {value!r}", hint=_FORMS)
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ScaleError(f"the value of {where} is not a number: {_short(value)}", hint=_FORMS) from None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:40]}... ({len(text)} characters)"
