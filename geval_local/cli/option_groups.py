"""Groups of options as parameters of verbs, derived from `geval_local.options`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from geval_local.cli.options import complete_judge
from geval_local.errors import ConfigurationError
from geval_local.fields import nearest
from geval_local.options import Flag, JudgeOptions, Options, RunOptions
from geval_local.yaml_model import KEEP_PROBLEMS, problem_in_words

_COMPLETIONS = {"name": complete_judge}


def takes_options(
    *, judge_without: Sequence[str] = (), run_only: Sequence[str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Put the single options of a group in the place of each parameter of a verb that is one.

    A parameter annotated `JudgeOptions` is a judge, ``list[JudgeOptions]`` are judges, each by a ``--judge`` of its own
    whose other options are shared, and `RunOptions` are those of a run. A dataclass, whose fields are options as a verb
    declares them, stands where its parameter does.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(verb)
        own: list[inspect.Parameter] = []
        groups: list[tuple[str, type[Options], list[str], bool]] = []
        gathered: dict[str, Any] = {}
        for parameter in inspect.signature(verb, eval_str=True).parameters.values():
            kind = hints.get(parameter.name)
            if kind in (JudgeOptions, list[JudgeOptions]):
                names = [name for name in JudgeOptions.model_fields if name not in judge_without]
                groups.append((parameter.name, JudgeOptions, names, kind == list[JudgeOptions]))
            elif kind is RunOptions:
                groups.append((parameter.name, RunOptions, list(run_only or RunOptions.model_fields), False))
            elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
                gathered[parameter.name] = kind
                members = inspect.signature(kind, eval_str=True).parameters.values()
                own += [one.replace(kind=parameter.kind) for one in members]
            else:
                own.append(parameter)
        added = [
            _parameter(group, name, many=many and name == "name") for _, group, names, many in groups for name in names
        ]

        @functools.wraps(verb)
        def wrapped(*given: Any, **named: Any) -> None:
            for parameter, group in gathered.items():
                named[parameter] = group(**{one.name: named.pop(one.name) for one in dataclasses.fields(group)})
            for parameter, group, names, many in groups:
                values = {name: named.pop(name) for name in names}
                named[parameter] = _judges(values, many=many) if group is JudgeOptions else _checked(group, values)
            verb(*given, **named)

        # Typer builds the command line from these two.
        wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        return wrapped

    return decorate


def _flag(field: FieldInfo) -> Flag:
    return next((one for one in field.metadata if isinstance(one, Flag)), Flag())


def _option_names(name: str, field: FieldInfo) -> tuple[str, ...]:
    return _flag(field).names or (f"--{name.replace('_', '-')}",)


def _parameter(group: type[Options], name: str, *, many: bool) -> inspect.Parameter:
    """Give one option as a parameter that typer understands."""
    field, flag = group.model_fields[name], _flag(group.model_fields[name])
    kinds = _alternatives(field.annotation)
    kind, default = kinds[0], field.default if get_origin(kinds[0]) is Literal else None
    text = str(field.description)
    if many:
        text = text.replace(" Absent:", " May be repeated, and results are then named metric@judge. Absent:")
    if kind is bool:
        shown: Any = bool
        default = False
    elif many or get_origin(kind) in (list, dict):
        shown = list[str] | None
    else:
        shown = (kind if kind in (int, float, Path) else str) | None
    # Choices are checked with all else, where a close one is proposed; here they are shown and completed.
    choices = [str(one) for one in get_args(kind)] if get_origin(kind) is Literal else []
    option = typer.Option(
        *_option_names(name, field),
        help=text,
        metavar=flag.metavar or (f"[{'|'.join(choices)}]" if choices else None),
        rich_help_panel=flag.panel,
        show_default=False,
        autocompletion=_COMPLETIONS.get(name) or (_completes(choices) if choices else None),
        min=next((one.ge for one in _all_metadata(field) if getattr(one, "ge", None) is not None), None)
        if kind is int
        else None,
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[shown, option])


def _completes(choices: Sequence[str]) -> Callable[[str], list[str]]:
    """Give a function that lists the choices that begin with what was typed."""

    def complete(incomplete: str) -> list[str]:
        return [one for one in choices if one.startswith(incomplete)]

    return complete


def _all_metadata(field: FieldInfo) -> list[Any]:
    """List the constraints of a field, also those of the alternatives of its type."""
    found = list(field.metadata)
    for one in get_args(field.annotation) if get_origin(field.annotation) in (Union, UnionType) else ():
        found += getattr(one, "__metadata__", ())
    return [inner for one in found for inner in (getattr(one, "metadata", None) or [one])]


def _alternatives(annotation: Any) -> list[Any]:
    """List the types of an annotation but None, without their constraints."""
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for one in get_args(annotation) for kind in _alternatives(one)]
    return [] if annotation is type(None) else [annotation]


def _checked(group: type[Options], values: Mapping[str, Any], whose: str | None = None) -> Any:
    """Build a group from what was given; errors name the options as they are written."""
    given = {name: value for name, value in values.items() if value is not None and value is not False and value != []}
    for name in given:
        if name in group.model_fields and _flag(group.model_fields[name]).is_negative:
            given[name] = False
    try:
        return TypeAdapter(group).validate_python(given, context=KEEP_PROBLEMS)
    except ValidationError as error:
        told = []
        for problem in error.errors():
            text, _ = problem_in_words(problem, group)
            name = str(problem["loc"][0]) if problem["loc"] else ""
            text = text.removeprefix(f"{name}: ")
            option = name.replace("_", "-") if whose else _option_names(name, group.model_fields[name])[0]
            told.append(f"--judge {whose!r}: {option}: {text}" if whose else f"{option}: {text}")
        raise ConfigurationError("\n".join(told)) from None


def _judges(values: Mapping[str, Any], *, many: bool) -> Any:
    """Build one judge, or a list of those that are named; the default judge if none is."""
    given = values.get("name")
    named = (given or [None]) if many else [given]
    judges = [_judge(one, values) for one in named]
    return judges if many else judges[0]


def _judge(text: str | None, values: Mapping[str, Any]) -> JudgeOptions:
    """Build a judge from ``NAME,KEY=VALUE,...`` and the options that all judges share."""
    shared: JudgeOptions = _checked(JudgeOptions, {**values, "name": None})
    if text is None:
        return shared
    name, own = split_judge(text, shared.models_file)
    known = {key.replace("_", "-"): key for key in values if key not in ("name", "models_file")}
    for key in own:
        if key not in known:
            raise ConfigurationError(
                f"--judge {text!r}: there is no option {key!r}{nearest(key, known)}",
                hint=f"Options of one judge: {', '.join(known)}.",
            )
    given = {known[key]: value for key, value in own.items()}
    checked = _checked(JudgeOptions, given, whose=text)
    return shared.model_copy(update={"name": name, **{key: getattr(checked, key) for key in given}})


def split_judge(text: str, models_file: Path | None) -> tuple[str, dict[str, str]]:
    """Split ``NAME,KEY=VALUE,...`` into the name and its options.

    Names and values may contain commas themselves: the name is the longest beginning that is a directory or a known
    judge; failing that, it ends before the first ``,KEY=``. A part without ``=`` belongs to the value before it.
    """
    if "," not in text:
        return text, {}
    parts = text.split(",")
    known = next((place for place in range(len(parts), 0, -1) if _is_judge(",".join(parts[:place]), models_file)), None)
    if known is None:
        known = next((place for place, part in enumerate(parts) if place and "=" in part), len(parts))
    options: dict[str, str] = {}
    last = None
    for part in parts[known:]:
        key, equals, value = part.partition("=")
        if not equals and last is None:
            raise ConfigurationError(
                f"--judge {text!r}: {part!r} is not an option", hint="Write options of one judge as NAME,KEY=VALUE."
            )
        if not equals:
            options[str(last)] += f",{part}"
            continue
        last = key.strip()
        if last in options:
            raise ConfigurationError(f"--judge {text!r}: {last} is given twice")
        options[last] = value.strip()
    return ",".join(parts[:known]), options


def _is_judge(name: str, models_file: Path | None) -> bool:
    from geval_local.models.registry import find_judge

    try:
        find_judge(name, models_file)
    except ConfigurationError:
        return Path(name).is_dir()
    return True
