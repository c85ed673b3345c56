"""Metric files: lookup, parsing, and all problems of a file with their lines. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from pydantic import BaseModel

from geval_local.errors import MetricError
from geval_local.examples import HEADING, ONE, REASON, SAMPLE_HEADING, find_example_problems
from geval_local.fields import PLACEHOLDER, is_unicode, nearest, placeholder_field, split_cue
from geval_local.scale import Scale, number_in
from geval_local.yaml_model import parse_file, read_file, validate
from geval_local.yaml_text import line_of

_Model = TypeVar("_Model", bound=BaseModel)
#: A part that is only dots could leave the directory when the name becomes a path.
_NAME = re.compile(r"(?!\.+(?:/|$))[\w.-]+(?:/(?!\.+(?:/|$))[\w.-]+)*")
#: Longer names do not fit into file names.
MAX_NAME = 200
_ANY_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][\w.\[\]-]*(?: +[\w.\[\]-]+)*)\s*\}\}")
_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_BAND = re.compile(rf"\s*({_NUMBER})\s*(?:-|–|\.\.|to)\s*({_NUMBER})\s*")

#: A metric to start from, with every key explained; format it with the metric's name.
TEMPLATE = """\
# A metric for geval-local. Everything after a # is a comment; lines that begin with one are optional.
name: {name}

# Opens the prompt. Absent: a neutral sentence.
# introduction: >-
#   You will be given a question and an answer to it. Your task is to rate the answer on one metric.

# What is rated, and what separates good from bad. Replace this text by your own.
criteria: >-
  How easy the text is to understand for a reader who is new to its subject. A clear text explains its terms, keeps its
  sentences short and says things in the order in which they are needed. Lower the score for unexplained terms and for
  sentences that have to be read twice.

# Columns of your data -> headings in the form, in the form's order.
fields:
  output: Text
# source: Source Text

# 1-5, 0-10, 0-1 step 0.25, Yes/No, or labels with values:  {{poor: 1, fair: 2, good: 3}}
scale: 1-5

# What single labels, or bands of them, mean; printed under the criteria.
# rubric:
#   1: hard to understand throughout
#   5: clear throughout

# Evaluation steps. Absent: the judge writes them once (`geval-local steps FILE`).
# steps:
#   - Read the text.
#   - Note every place that a newcomer would stumble over.
#   - Choose the score that fits the criteria.

# A score from which a text passes, on the scale above.
# threshold: 4

# Rated rows that the judge sees before each sample; `geval-local metrics examples FILE` draws them from rated rows.
# examples:
#   - output: Ferries leave at six and at nine.
#     label: 5
#     reason: short, and every word is known
# Which scores are good: high, or low for what should not be there, such as toxicity. A text then passes at the
# threshold or below it.
# better: low

# Other words for the prompt's own headings, for instance in the language of the criteria.
# frame: {{criteria: "Kriterien:", steps: "Schritte:", form: "Bewertungsbogen (nur Zahlen):"}}

# The one field that may lose its end when a prompt is too long for the judge.
# shorten: source
"""


#: The words of a prompt that are not the metric's own, by the keys of `Metric.frame`.
FRAME = {
    "criteria": "Evaluation Criteria:",
    "steps": "Evaluation Steps:",
    "form": "Evaluation Form (scores ONLY):",
    "pair_form": "Evaluation Form ({labels} ONLY):",
    "pair_cue": ", the better one",
    "answer": "Which of these lines fits? Copy it as your answer, and write nothing else:",
    "examples": HEADING,
    "example": ONE,
    "reason": REASON,
    "sample": SAMPLE_HEADING,
    "write_steps": (
        "How would a careful reader rate this by these criteria? Write instructions for this reader: a short numbered "
        "list of steps, one per line, from reading to giving the score. Do not rate anything yourself, and give no "
        "examples."
    ),
}


# --- lookup -----------------------------------------------------------------------------------------------------------


def find_metric(name: str | Path) -> tuple[str, str]:
    """Find the text of a metric."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return read_file(path, "the metric file", MetricError), str(path)
    resource = resources.files("geval_local") / "metrics" / f"{name}.yaml"
    if not resource.is_file():
        near = difflib.get_close_matches(str(name), preset_names(), n=3, cutoff=0.4)
        raise MetricError(
            f"there is no preset metric {str(name)!r}" + (f"; did you mean {', '.join(near)}?" if near else ""),
            hint="List the presets with `geval-local metrics list`, or give the path of a .yaml file.",
        )
    return resource.read_text(encoding="utf-8"), f"preset {name}"


def preset_names() -> list[str]:
    """Names of the metrics that ship with the package, sorted."""
    root = resources.files("geval_local") / "metrics"
    return sorted(
        f"{group.name}/{entry.name.removesuffix('.yaml')}"
        for group in root.iterdir()
        if group.is_dir()
        for entry in group.iterdir()
        if entry.name.endswith(".yaml")
    )


# --- reading ----------------------------------------------------------------------------------------------------------


def read_metric(model: type[_Model], text: str, origin: str) -> _Model:
    """Read YAML text into a metric class; arguments and errors as for `Metric.from_yaml`."""
    data, node = parse_file(text, origin, "a metric is a mapping of keys such as name, criteria and scale", MetricError)
    hint = f"Known keys: {', '.join(model.model_fields)}."
    return validate(model, data, lambda place: f"{origin}, line {line_of(node, place)}", MetricError, hint)  # type: ignore[no-any-return]


# --- consistency ------------------------------------------------------------------------------------------------------


#: One inconsistency: the key, and the key or index within its value; and the problem in words.
Problem: TypeAlias = tuple[tuple[str | int, ...], str]


def find_problems(parts: Mapping[str, Any]) -> Iterator[Problem]:
    """Find all inconsistencies between the parts of a metric."""
    for key, value in parts.items():
        if not is_unicode(_plain(value)):
            yield (key,), "holds half a surrogate pair, which is not text"
    name, fields = parts["name"], list(parts["fields"])
    if not _NAME.fullmatch(name):
        shown = name if len(name) < 80 else name[:77] + "..."
        yield ("name",), f"name {shown!r} may hold letters, digits, '_', '-', '.' and '/' between parts"
    elif len(name) > MAX_NAME:
        yield ("name",), f"has {len(name)} characters, at most {MAX_NAME} are possible"
    if parts["template"] is None and not parts["criteria"]:
        yield ("criteria",), "must not be empty"
    for key in parts["frame"]:
        if key not in FRAME:
            yield ("frame", key), f"unknown key {key!r}{nearest(key, FRAME)}; known: {', '.join(FRAME)}"
    if parts["frame"] and parts["template"] is not None:
        yield ("frame",), "a template has no frame: it is used verbatim"
    for place, step in enumerate(parts["steps"] or ()):
        if not step:
            yield ("steps", place), "a step is empty"
    yield from _field_problems(fields, parts["shorten"], parts["template"])
    yield from _scale_problems(parts["scale"], parts["threshold"], parts["rubric"] or ())
    yield from find_example_problems(parts)
    if parts["pair"] is not None:
        yield from _pair_problems(parts["pair"], fields, parts["scale"])


def _plain(value: Any) -> Any:
    if isinstance(value, Scale):
        return value.labels
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.model_dump() if hasattr(value, "model_dump") else value


def _pair_problems(pair: tuple[str, str], fields: Sequence[str], scale: Scale) -> Iterator[Problem]:
    first, second = pair
    if first == second:
        yield ("pair",), f"{first!r} cannot be compared with itself"
    for name in (first, second):
        if name not in fields:
            yield ("pair",), f"{name!r} is not one of the fields {', '.join(fields)}{nearest(name, fields)}"
    high, low, *rest = scale.values
    if high <= low or any(value != (high + low) / 2 for value in rest):
        told = "of a pair: first label above the second, others in the middle: A: 1, B: 0, tie: .5"
        yield ("scale",), told


def _field_problems(fields: Sequence[str], shorten: str | None, template: str | None) -> Iterator[Problem]:
    if not fields:
        yield ("fields",), "a metric needs at least one field"
        return
    if shorten is not None and shorten not in fields:
        told = f"{shorten!r} is not one of the fields {', '.join(fields)}{nearest(shorten, fields)}"
        yield ("shorten",), told
    if template is None:
        return
    if not template.strip():
        yield ("template",), "is empty"
        return
    body, cue = split_cue(template)
    for text, name in dict.fromkeys((match[0], match[1]) for match in _ANY_PLACEHOLDER.finditer(template)):
        if placeholder_field(name, fields) not in fields or PLACEHOLDER.fullmatch(text) is None:
            told = f"the placeholder {text} names none of the fields {', '.join(fields)}{nearest(name, fields)}"
            yield ("template",), told
    if not {placeholder_field(match[1], fields) for match in PLACEHOLDER.finditer(body)} & set(fields):
        told = f"holds no placeholder of a field, such as {{{{{fields[0]}}}}}: every row would score alike"
        yield ("template",), told
    if PLACEHOLDER.search(cue):
        told = "its last line is the form's cue, such as '- Coherence:', and holds a placeholder"
        yield ("template",), told


def _scale_problems(scale: Scale, threshold: float | None, rubric: Iterable[str]) -> Iterator[Problem]:
    if threshold is not None and not scale.low <= threshold <= scale.high:
        yield ("threshold",), f"{threshold:g} is outside the scale {_shown(scale)}"
    for band in rubric:
        if not _is_band(band, scale):
            told = f"is not a label of the scale {_shown(scale)}, nor a band of its labels such as "
            told += f"{scale.labels[0]}-{scale.labels[-1]}{nearest(band, scale.labels)}"
            yield ("rubric", band), told


def _shown(scale: Scale) -> str:
    return scale.text if len(scale.text) <= 80 else f"{scale.labels[0]} to {scale.labels[-1]}"


def _is_band(text: str, scale: Scale) -> bool:
    """Whether a key of a rubric is a label, a value, a range of labels or a list of labels."""
    labels = {label.casefold() for label in scale.labels}
    text = text.strip()
    if text.casefold() in labels or number_in(text) in scale.values:
        return True
    if match := _BAND.fullmatch(text):
        low, high = float(match[1]), float(match[2])
        return scale.low <= low <= high <= scale.high and any(low <= value <= high for value in scale.values)
    listed = [part.strip() for part in re.split(r",|/| or | and ", text)]
    if len(listed) > 1:
        return all(part and _is_band(part, scale) for part in listed)
    # Labels may contain the sign that separates the ends of a band.
    cuts = [(text[: match.start()], text[match.end() :]) for match in re.finditer(r"\s*(?:-|–|\.\.| to )\s*", text)]
    return any(low.casefold() in labels and high.casefold() in labels for low, high in cuts)
