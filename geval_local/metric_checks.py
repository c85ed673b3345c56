"""What does not fit together in a metric whose parts are each well-formed: bands, limits, names, placeholders."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from geval_local.fields import is_unicode, nearest
from geval_local.placeholders import PLACEHOLDER, placeholder_field, split_cue
from geval_local.scale import Scale

__all__ = ["Problem", "find_problems"]

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*")
#: Longer names make no file names.
MAX_NAME = 200
_ANY_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][\w .\[\]-]*?)\s*\}\}")
_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_BAND = re.compile(rf"\s*({_NUMBER})\s*(?:-|–|\.\.|to)\s*({_NUMBER})\s*")


class Problem(NamedTuple):
    """One thing that does not fit.

    Attributes
    ----------
    path : tuple of (str or int)
        Where: the key, and the key or index inside it.
    text : str
        What is wrong.
    quote : str
        What it says there, if that is part of a longer text.
    """

    path: tuple[str | int, ...]
    text: str
    quote: str = ""

    @property
    def message(self) -> str:
        """The problem with its key."""
        return f"{self.path[0]}: {self.text}"


def find_problems(parts: Mapping[str, Any], known: Collection[str]) -> list[Problem]:
    """Find everything that does not fit together, as far as the parts are known.

    Parameters
    ----------
    parts : mapping
        The attributes of a `Metric`.
    known : collection of str
        Which of them were given and are well-formed; a rule that needs another one is left out.
    """
    found: list[Problem] = []
    for key in known:
        if not is_unicode(_plain(parts[key])):
            found.append(Problem((key,), "holds half a surrogate pair, which is no text"))
    if "name" in known and not _NAME.fullmatch(parts["name"]):
        shown = parts["name"] if len(parts["name"]) < 80 else parts["name"][:77] + "..."
        found.append(
            Problem(("name",), f"name {shown!r} may hold letters, digits, '_', '-', '.' and '/' between parts")
        )
    elif "name" in known and len(parts["name"]) > MAX_NAME:
        found.append(Problem(("name",), f"has {len(parts['name'])} characters, at most {MAX_NAME} are possible"))
    if "criteria" in known and "template" in known and parts["template"] is None and not parts["criteria"]:
        found.append(Problem(("criteria",), "must not be empty"))
    if "steps" in known:
        found += [
            Problem(("steps", place), "a step is empty") for place, step in enumerate(parts["steps"] or ()) if not step
        ]
    if "fields" in known:
        found += _field_problems(parts, known)
    if "scale" in known:
        found += _scale_problems(parts, known)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Scale):
        return value.labels
    return value.model_dump() if hasattr(value, "model_dump") else value


def _field_problems(parts: Mapping[str, Any], known: Collection[str]) -> list[Problem]:
    fields: Sequence[str] = list(parts["fields"])
    if not fields:
        return [Problem(("fields",), "a metric needs at least one field")]
    found = []
    shorten = parts["shorten"] if "shorten" in known else None
    if shorten is not None and shorten not in fields:
        found.append(
            Problem(("shorten",), f"{shorten!r} is not one of the fields {', '.join(fields)}{nearest(shorten, fields)}")
        )
    template = parts["template"] if "template" in known else None
    if template is not None:
        found += [Problem(("template",), text, quote) for text, quote in _template_problems(template, fields)]
    return found


def _template_problems(template: str, fields: Sequence[str]) -> list[tuple[str, str]]:
    if not template.strip():
        return [("is empty", "")]
    found = []
    body, cue = split_cue(template)
    used = {placeholder_field(match[1], fields) for match in PLACEHOLDER.finditer(body)}
    for text, name in dict.fromkeys((match[0], match[1]) for match in _ANY_PLACEHOLDER.finditer(template)):
        field = placeholder_field(name, fields)
        if field not in fields or PLACEHOLDER.fullmatch(text) is None:
            told = f"the placeholder {text} names none of the fields {', '.join(fields)}{nearest(name, fields)}"
            found.append((told, text))
    if not used & set(fields):
        found.append((f"holds no placeholder of a field, such as {{{{{fields[0]}}}}}: every row would score alike", ""))
    if PLACEHOLDER.search(cue):
        found.append(("its last line is the form's cue, such as '- Coherence:', and holds a placeholder", cue.strip()))
    return found


def _scale_problems(parts: Mapping[str, Any], known: Collection[str]) -> list[Problem]:
    scale: Scale = parts["scale"]
    found = []
    threshold = parts["threshold"] if "threshold" in known else None
    if threshold is not None and not scale.low <= threshold <= scale.high:
        found.append(Problem(("threshold",), f"{threshold:g} is outside the scale {_shown(scale)}"))
    for band in (parts["rubric"] or {}) if "rubric" in known else ():
        if not _is_band(band, scale):
            found.append(
                Problem(
                    ("rubric", band),
                    f"{band!r} is no label of the scale {_shown(scale)}, nor a band of its labels such as "
                    f"{scale.labels[0]}-{scale.labels[-1]}{nearest(band, scale.labels)}",
                )
            )
    return found


def _shown(scale: Scale) -> str:
    return scale.text if len(scale.text) <= 80 else f"{scale.labels[0]} to {scale.labels[-1]}"


def _is_band(text: str, scale: Scale) -> bool:
    """Whether a key of a rubric is a label, a value, or labels from one to another or side by side."""
    labels = {label.casefold() for label in scale.labels}
    text = text.strip()
    if text.casefold() in labels or _number(text) in scale.values:
        return True
    if match := _BAND.fullmatch(text):
        low, high = float(match[1]), float(match[2])
        return scale.low <= low <= high <= scale.high and any(low <= value <= high for value in scale.values)
    listed = [part.strip() for part in re.split(r",|/| or | and ", text)]
    if len(listed) > 1:
        return all(part and _is_band(part, scale) for part in listed)
    # Labels may hold the sign that stands between the ends of a band.
    cuts = [(text[: match.start()], text[match.end() :]) for match in re.finditer(r"\s*(?:-|–|\.\.| to )\s*", text)]
    return any(low.casefold() in labels and high.casefold() in labels for low, high in cuts)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
