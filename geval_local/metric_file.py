"""Metric files: lookup, parsing, and all problems of a file with their lines. Pure."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from geval_local.errors import MetricError
from geval_local.fields import PLACEHOLDER, is_unicode, nearest, placeholder_field, split_cue
from geval_local.scale import Scale
from geval_local.yaml_model import parse_file, problem_in_words, read_file
from geval_local.yaml_text import line_of

_Model = TypeVar("_Model", bound=BaseModel)
#: Parts of dots alone would lead elsewhere where a name becomes a path.
_NAME = re.compile(r"(?!\.+(?:/|$))[\w.-]+(?:/(?!\.+(?:/|$))[\w.-]+)*")
#: Longer names do not fit into file names.
MAX_NAME = 200
_ANY_PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][\w.\[\]-]*(?: +[\w.\[\]-]+)*)\s*\}\}")
_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_BAND = re.compile(rf"\s*({_NUMBER})\s*(?:-|–|\.\.|to)\s*({_NUMBER})\s*")


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


class Problem(NamedTuple):
    """One problem of a metric file."""

    #: The key, and the key or index within its value.
    path: tuple[str | int, ...]
    #: The problem in words.
    text: str
    #: The faulty text itself, if it is part of a longer one.
    quote: str = ""

    @property
    def message(self) -> str:
        """The problem with its key."""
        return f"{self.path[0]}: {self.text}"


@dataclass
class Reading:
    """State while a metric file is read."""

    #: Problems between parts, collected instead of raised.
    problems: list[Problem] = field(default_factory=list)
    #: Keys that are missing or malformed, replaced so that the others can be checked.
    stand_ins: set[str] = field(default_factory=set)


#: Valid values of the required keys.
_STAND_INS = {"name": "name", "criteria": "criteria", "scale": "1-5"}


def read_metric(model: type[_Model], text: str, origin: str) -> _Model:
    """Read YAML text into a metric class; arguments and errors as for `Metric.from_yaml`."""
    data, node = parse_file(text, origin, "a metric is a mapping of keys such as name, criteria and scale", MetricError)
    keys = list(model.model_fields)
    try:
        found, problems = _validated(model, data, keys)
    except (RecursionError, OverflowError) as error:
        raise MetricError(f"{origin}: a value is nested too deeply, refers to itself, or is too large") from error
    if found is not None and not problems:
        return found
    lines = text.splitlines()
    placed = []
    for problem in problems:
        line = line_of(node, problem.path)
        if problem.quote:
            line = next((at for at in range(line, len(lines) + 1) if problem.quote in lines[at - 1]), line)
        placed.append((line, problem.text))
    raise MetricError(
        "\n".join(f"{origin}, line {line}: {text}" for line, text in sorted(placed))
        .encode("utf-8", "backslashreplace")
        .decode(),
        hint=f"Known keys: {', '.join(keys)}.",
    )


def _validated(model: type[_Model], data: dict[Any, Any], keys: list[str]) -> tuple[_Model | None, list[Problem]]:
    """Validate a metric's data; every problem has its path and names the key."""
    reading = Reading()
    problems: list[Problem] = []
    found = None
    try:
        found = model.model_validate(data, context=reading)
    except ValidationError as error:
        problems = [Problem(one["loc"], problem_in_words(one, model)[0]) for one in error.errors()]
        failed = {problem.path[0] for problem in problems if problem.path}
        reading.stand_ins = {str(key) for key in failed} | (set(_STAND_INS) - set(data))
        rest = {key: value for key, value in data.items() if key in keys and key not in failed}
        with contextlib.suppress(ValidationError):
            model.model_validate({**_STAND_INS, **rest}, context=reading)
    return found, problems + [Problem(one.path, one.message, one.quote) for one in reading.problems]


# --- consistency ------------------------------------------------------------------------------------------------------


def find_problems(parts: Mapping[str, Any], known: Collection[str]) -> list[Problem]:
    """Find all inconsistencies between the known parts of a metric."""
    found: list[Problem] = []
    for key in known:
        if not is_unicode(_plain(parts[key])):
            found.append(Problem((key,), "holds half a surrogate pair, which is not text"))
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
    if "pair" in known and parts["pair"] is not None:
        found += _pair_problems(parts, known)
    return found


def _pair_problems(parts: Mapping[str, Any], known: Collection[str]) -> list[Problem]:
    first, second = parts["pair"]
    found = []
    if first == second:
        found.append(Problem(("pair",), f"{first!r} cannot be compared with itself"))
    if "fields" in known:
        fields = list(parts["fields"])
        unknown = [name for name in (first, second) if name not in fields]
        found += [
            Problem(("pair",), f"{name!r} is not one of the fields {', '.join(fields)}{nearest(name, fields)}")
            for name in unknown
        ]
    if "scale" in known:
        values = parts["scale"].values
        rest = values[2:]
        if values[0] <= values[1] or any(value != (values[0] + values[1]) / 2 for value in rest):
            found.append(
                Problem(
                    ("scale",), "of a pair: first label above the second, others in the middle: A: 1, B: 0, tie: .5"
                )
            )
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
                    f"{band!r} is not a label of the scale {_shown(scale)}, nor a band of its labels such as "
                    f"{scale.labels[0]}-{scale.labels[-1]}{nearest(band, scale.labels)}",
                )
            )
    return found


def _shown(scale: Scale) -> str:
    return scale.text if len(scale.text) <= 80 else f"{scale.labels[0]} to {scale.labels[-1]}"


def _is_band(text: str, scale: Scale) -> bool:
    """Whether a key of a rubric is a label, a value, a range of labels or a list of labels."""
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
    # Labels may contain the sign that separates the ends of a band.
    cuts = [(text[: match.start()], text[match.end() :]) for match in re.finditer(r"\s*(?:-|–|\.\.| to )\s*", text)]
    return any(low.casefold() in labels and high.casefold() in labels for low, high in cuts)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
