"""Words of a metric that name another scale than its own: "out of 10", "0.0 to 1.0", "as a percentage".

A judge that reads them puts its probability on other labels, or uses the labels in another sense. Few false alarms
matter more than finding every wording: a criterion may mention years, prices, percentages and counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from geval_local.scale import Scale, number_in

if TYPE_CHECKING:
    from geval_local.metric import Metric

_N = r"(-?\d+(?:\.\d+)?)"
_TO = r"\s*(?:to|and|through|-|\u2013)\s*"
_RANGE = rf"{_N}{_TO}{_N}"
#: End of a mention of a scale. With any other word the numbers count something: "1 to 5 sentences", "3 out of 10
#: customers".
_END = (
    r"(?!\d|\.\d|\s*%)(?=\s*(?:$|[^\w\s]|(?:where|with|based|according|depending|for|on|in|by|to|as|and|or|points?|stars?|"
    r"scale|being|if|when|whether|indicating|how|using)\b))"
)
_NOUN = r"(?:scores?|ratings?|grades?|marks?|values?|numbers?|integers?|floats?)"
_GIVE = r"(?:assign|return|output|give|provide|choose|pick|select|award|report)"
#: Changes of a score, which say nothing about its scale. A look-behind has a fixed width, so each is a separate one.
_CHANGED = "".join(
    rf"(?<!{verb} {article} )" for verb in ("lower", "reduce", "raise", "higher") for article in ("the", "a", "its")
)
#: An order to rate.
_RATE = (
    rf"(?:\b{_CHANGED}(?:scor(?:e|es|ing)|rat(?:e|es|ing|ings)|grad(?:e|ing))\b"
    rf"|\b{_GIVE}\s+(?:an?|the|one)\s+(?:\w+\s+)?{_NOUN}\b)"
)
#: Gap within one clause: words after a condition are about the text.
_GAP = r"(?:(?!\b(?:if|when|unless|whether|that|which|has|have|with|was|were|(?:is|are) between)\b)[^.!?;\n\d]){0,60}?"

#: A whole scale, from one end to the other.
_WHOLE = (
    re.compile(rf"\bscale\s*(?:of|from|between|:|is|=)?\s*\(?(?:from\s+|between\s+)?{_RANGE}{_END}", re.IGNORECASE),
    re.compile(rf"\b{_RANGE}\s+(?:\w+\s+)?scale\b", re.IGNORECASE),
    re.compile(rf"{_RATE}{_GAP}\b(?:from|between)\s+{_RANGE}{_END}", re.IGNORECASE),
    re.compile(rf"\brate\b{_GAP}\s\(?{_RANGE}{_END}", re.IGNORECASE),
)
#: Some labels of a scale.
_BAND = re.compile(rf"{_RATE}(?:\s+(?:of|it|the|is))*\s*:?\s*\(?{_RANGE}{_END}", re.IGNORECASE)
#: Any range in a sentence about rating; for steps that a judge writes, which are checked strictly.
_ANY = re.compile(rf"(?:scale|score|rate|rating|from|between)\D{{0,40}}?{_RANGE}", re.IGNORECASE)
_OUT_OF = re.compile(rf"{_RATE}{_GAP}(?:{_N}\s*)?(?:\bout of\s+|/)(\d+){_END}", re.IGNORECASE)
_POINTS = re.compile(r"\b(\d+)-point\s+(?:\w+\s+)?scale\b", re.IGNORECASE)
_SINGLE = re.compile(
    r"(?:\b(?:assign|award|give)(?:\s+(?:it|them|an?|the|output|text|answer|response))*|\b(?:score|rating|grade) of)"
    rf"\s+(?:(?:an?\s+)?{_NOUN}\s+of\s+)?{_N}{_END}",
    re.IGNORECASE,
)
_PERCENT = re.compile(
    rf"{_RATE}{_GAP}\b(?:as|in)\s+(?:an?\s+)?(?:percentage|percent\b|per cent|%)"
    rf"|\b{_GIVE}\s+(?:an?|the)\s+percentage(?!\w|\s+(?:of|for|in)\b)"
    rf"|\b(?:(?:score|rating|grade)\s+of|(?:assign|award|give)(?:\s+(?:it|them|an?))?)\s+\d+(?:\.\d+)?\s*%"
    rf"|{_RATE}{_GAP}\b(?:from|between)\s+\d+\s*%{_TO}\d+\s*%",
    re.IGNORECASE,
)
_YES_NO = re.compile(
    r"(?:^|[.;:!?]\s+|\n\W*|please\s+)(?:answer|reply|respond|say|output|return|write)(?:\s+(?:with|only|either|just))*"
    r"\s+[\"']?yes[\"']?(?:\s+or\s+|/)[\"']?no\b",
    re.IGNORECASE,
)
#: Numbers from here on are years, populations and prices.
_LARGE = 1000


def other_scale(text: str, scale: Scale, *, strictly: bool = False) -> str | None:
    """Return the piece of a text that names another scale; None if there is none.

    Parameters
    ----------
    text : str
        Criteria, a step, or a description of a label.
    scale : Scale
        The metric's.
    strictly : bool
        Whether any range near a word about rating counts; for steps that a judge writes.
    """
    return next(_mentions(text, scale, strictly=strictly), None)


def _mentions(text: str, scale: Scale, *, strictly: bool) -> Iterator[str]:
    numeric = all(number_in(label) is not None for label in scale.labels)
    ends = {scale.low, scale.high}

    def is_foreign(low: str, high: str, *, whole: bool) -> bool:
        found = {float(low), float(high)}
        if min(found) >= _LARGE > scale.high:
            return False
        if not numeric:
            return True
        return found != ends if whole else not scale.low <= min(found) <= max(found) <= scale.high

    for pattern in (*_WHOLE, *((_ANY,) if strictly else ())):
        yield from (match[0] for match in pattern.finditer(text) if is_foreign(match[1], match[2], whole=True))
    yield from (match[0] for match in _BAND.finditer(text) if is_foreign(match[1], match[2], whole=False))
    for match in _OUT_OF.finditer(text):
        if not numeric or float(match[2]) != scale.high:
            yield match[0]
    for match in _POINTS.finditer(text):
        if float(match[1]) not in (len(scale.labels), scale.high):
            yield match[0]
    for match in _SINGLE.finditer(text):
        if float(match[1]) not in scale.values:
            yield match[0]
    if not (numeric and scale.high == 100):
        yield from (match[0] for match in _PERCENT.finditer(text) if not any("%" in label for label in scale.labels))
    if not {"yes", "no"} <= {label.casefold() for label in scale.labels}:
        yield from (match[0].lstrip(".;:!? \n") for match in _YES_NO.finditer(text))


def scale_doubts(metric: Metric) -> list[str]:
    """Name the parts of a metric that mention another scale than its own, one sentence each."""
    parts: list[tuple[str, str]] = [("introduction", metric.introduction), ("criteria", metric.criteria)]
    parts += [(f"step {number}", step) for number, step in enumerate(metric.steps or (), start=1)]
    # A description explains its label, so a number at its start belongs to a scale.
    parts += [(f"rubric {label}", f"score {text}") for label, text in (metric.rubric or {}).items()]
    if metric.template is not None:
        parts = [("template", metric.template)]
    return [
        f"{metric.name}: {part} names another scale than {metric.scale.text}: {' '.join(found.split())!r}"
        for part, text in parts
        if (found := other_scale(text, metric.scale)) is not None
    ]
