"""Read files and options into pydantic models; report every problem at once, with its line and the nearest name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import Node

from geval_local.errors import ConfigurationError, DataError, GevalError
from geval_local.fields import nearest
from geval_local.files import check_is_file
from geval_local.yaml_text import load_yaml

Place = tuple[int | str, ...]

#: Context of a validation whose caller collects all problems; see `geval_local.options.Options`.
KEEP_PROBLEMS = "keep problems"
#: Most reported problems of a file: each one costs a search for its line and for near names.
MOST_PROBLEMS = 50
#: Replacements for pydantic's messages on tuples and lists, which a file does not have.
_COUNTS = {
    "too_short": "at least {min_length} are needed, not {actual_length}",
    "too_long": "at most {max_length} are allowed",
}


def read_file(path: str | PathLike[str], what: str, error: type[GevalError] = ConfigurationError) -> str:
    """Read a text file in UTF-8; `what` names it in an error."""
    try:
        check_is_file(Path(path))
        return Path(path).read_bytes().decode("utf-8-sig")
    except DataError as problem:
        raise error(f"cannot read {what} {path}: {problem.message}", hint=problem.hint) from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"cannot read {what} {path}: {problem}", hint="It is a text in UTF-8.") from problem


def parse_file(
    text: str, origin: str, what: str, error: type[GevalError] = ConfigurationError, hint: str | None = None
) -> tuple[dict[Any, Any], Node | None]:
    """Parse YAML that must be a mapping; `what` says so, such as "a metric is a mapping of keys such as name"."""
    try:
        data, node = load_yaml(text)
    except YAMLError as problem:
        raise error(
            f"{origin}: not valid YAML: {problem}".encode("utf-8", "backslashreplace").decode(),
            hint="A value that begins with a sign, such as >= 3, is written in quotes.",
        ) from problem
    if not isinstance(data, dict):
        raise error(f"{origin}: {what}", hint=hint)
    return data, node


def validate(
    model: Any,
    data: object,
    where: Callable[[Place], str],
    error: type[GevalError] = ConfigurationError,
    hint: str | None = None,
) -> Any:
    """Validate plain values; `where` names the place of a problem."""
    try:
        return TypeAdapter(model).validate_python(data, context=KEEP_PROBLEMS)
    except ValidationError as problem:
        found = problem.errors()
        told = [(where(_place(one, model)), *problem_in_words(one, model)) for one in found[:MOST_PROBLEMS]]
        lines = dict.fromkeys(f"{place}: {text}" for place, text, _ in sorted(told, key=lambda one: _by_line(one[0])))
        hints = dict.fromkeys(remedy for *_, remedy in told if remedy) or dict.fromkeys([hint] if hint else [])
        if len(found) > MOST_PROBLEMS:
            lines[f"and {len(found) - MOST_PROBLEMS:,} more problems"] = None
        message = "\n".join(lines).encode("utf-8", "backslashreplace").decode()
        raise error(message, hint="\n".join(hints) or None) from problem
    except (RecursionError, OverflowError) as problem:
        raise error(f"{where(())}: a value is nested too deeply, refers to itself, or is too large") from problem


def _by_line(place: str) -> tuple[int, str]:
    number = place.rpartition(" ")[2]
    return (int(number) if number.isdecimal() else 0, place)


def _place(problem: Mapping[str, Any], model: Any) -> Place:
    """Return the place of a problem in the data, without the alternatives of a union, which pydantic also names."""
    place: list[int | str] = []
    kind = model
    last = len(problem["loc"]) - 1
    for number, part in enumerate(problem["loc"]):
        models = _models(kind)
        is_key = any(str(part) in one.model_fields for one in models) or len(models) == 1
        is_key |= number == last and problem["type"] == "extra_forbidden"
        if part != "[key]" and (is_key or _items(kind)):
            place.append(part)
            kind = _inner(kind, part)
    return tuple(place)


def problem_in_words(problem: Mapping[str, Any], model: Any) -> tuple[str, str | None]:
    """Write a problem of pydantic's as a sentence, with the nearest known name."""
    place = _place(problem, model)
    where = ".".join(map(str, place))
    if problem["type"] == "extra_forbidden":
        kind = model
        for part in place[:-1]:
            kind = _inner(kind, part)
        keys = list(dict.fromkeys(name for one in _models(kind) for name in one.model_fields))
        inside = f" of {'.'.join(map(str, place[:-1]))}" if len(place) > 1 else ""
        return f"unknown key {where!r}{nearest(str(place[-1]), keys)}", f"Known keys{inside}: {', '.join(keys)}."
    if problem["type"] == "missing":
        return f"the key {where!r} is missing", None
    message = str(problem["msg"]).removeprefix("Value error, ")
    message = message.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")
    if problem["type"] in ("literal_error", "union_tag_invalid"):
        expected = str(problem["ctx"].get("expected") or problem["ctx"]["expected_tags"])
        given = problem["input"] if problem["type"] == "literal_error" else problem["ctx"]["tag"]
        message = f"{given!r} is none of {expected}{nearest(str(given), expected.split(chr(39))[1::2])}"
    if problem["type"] in _COUNTS:
        message = _COUNTS[problem["type"]].format(**problem["ctx"])
    return (f"{where}: {message}" if where else message), None


def problems_in_words(error: ValidationError, model: Any) -> tuple[list[str], str | None]:
    """Write all problems as sentences, with a remedy if there is one."""
    told = [problem_in_words(one, model) for one in error.errors()]
    return [text for text, _ in told], "\n".join(dict.fromkeys(hint for _, hint in told if hint)) or None


def _inner(kind: Any, part: int | str) -> Any:
    found = [one.model_fields[str(part)].annotation for one in _models(kind) if str(part) in one.model_fields]
    found += _items(kind)
    return found[0] if found else None


def _items(kind: Any) -> list[Any]:
    """List the types of the items of a list or a mapping."""
    found = [get_args(one) for one in alternatives(kind) if get_origin(one) in (dict, list, tuple, Mapping)]
    return [next(arg for arg in reversed(args) if arg is not Ellipsis) for args in found if args]


def _models(kind: Any) -> list[type[BaseModel]]:
    return [one for one in alternatives(kind) if isinstance(one, type) and issubclass(one, BaseModel)]


def alternatives(kind: Any) -> list[Any]:
    """List the types that an annotation allows, without their constraints."""
    if get_origin(kind) is Annotated:
        return alternatives(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return [one for part in get_args(kind) for one in alternatives(part)]
    return [kind]
