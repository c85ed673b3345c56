"""The judge of a verb, with its loading options as one object."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from geval_local.cli import options
from geval_local.errors import ConfigurationError
from geval_local.runs.judge_choice import JudgeChoice

__all__ = ["Loading", "own_options", "split_judge", "takes_loading"]


@dataclass(frozen=True)
class Loading:
    """Loading options of a judge: one field per option of the panel, in order, named as in `Judge.load`."""

    adapter: options.Adapter = None
    style: options.Style = None
    device: options.Device = None
    device_map: options.DeviceMap = None
    dtype: options.Dtype = None
    attention: options.Attention = None
    quantization: options.Quantization = None
    batch_tokens: options.BatchTokens = None
    engine: options.Engine = "auto"
    trust_remote_code: options.TrustRemoteCode = False

    def of(self, name: str | None, models_file: Path | None) -> JudgeChoice:
        """Return the choice of a judge with these options; its own options may follow the name, after commas.

        Raises
        ------
        ConfigurationError
            If an option or its value is unknown.
        """
        bare, own = split_judge(name, models_file) if name is not None else (None, {})
        return JudgeChoice(**(asdict(self) | own_options(str(name), own)), name=bare, models_file=models_file)

    def all_of(self, names: Sequence[str] | None, models_file: Path | None) -> list[JudgeChoice]:
        """Return the choices of all named judges; the default judge if none is named."""
        return [self.of(name, models_file) for name in names or (None,)]


def split_judge(text: str, models_file: Path | None) -> tuple[str, dict[str, str]]:
    """Split ``NAME,KEY=VALUE,...`` into the name and its options.

    Names and values may contain commas themselves: the name is the longest beginning that is a directory or a known
    judge; failing that, it ends before the first ``,KEY=``. A part without ``=`` belongs to the value before it.

    Returns
    -------
    name : str
        The judge.
    options : dict of str to str
        Option -> value, as given.

    Raises
    ------
    ConfigurationError
        If the text after a known name is not an option, or an option is given twice.
    """
    if "," not in text:
        return text, {}
    parts = text.split(",")
    known = next((place for place in range(len(parts), 0, -1) if _is_judge(",".join(parts[:place]), models_file)), None)
    if known is None:
        known = next((place for place, part in enumerate(parts) if place and "=" in part), len(parts))
    name = ",".join(parts[:known])
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
    return name, options


def _is_judge(name: str, models_file: Path | None) -> bool:
    from geval_local.models.registry import find_judge

    try:
        find_judge(name, models_file)
    except ConfigurationError:
        return Path(name).is_dir()
    return True


def own_options(judge: str, given: Mapping[str, str]) -> dict[str, Any]:
    """Parse the options of one judge, with the names and values of the long options.

    Parameters
    ----------
    judge : str
        As given, for messages.
    given : mapping of str to str
        Name -> value.

    Raises
    ------
    ConfigurationError
        If an option or its value is unknown; the message suggests the nearest one.
    """
    if not given:
        return {}
    from pydantic import Field, TypeAdapter, ValidationError

    hints = get_type_hints(Loading, include_extras=True)
    names = {field.name.replace("_", "-"): field.name for field in fields(Loading)}
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.4)
            raise ConfigurationError(
                f"--judge {judge!r}: there is no option {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                hint=f"Options of one judge: {', '.join(names)}.",
            )
        hint = hints[names[key]]
        kind, option = get_args(hint)[0], get_args(hint)[1]
        try:
            adapter = TypeAdapter(Annotated[kind, Field(ge=option.min)] if option.min is not None else kind)
            found[names[key]] = adapter.validate_python(value)
        except ValidationError as error:
            choices = _choices(kind)
            near = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
            raise ConfigurationError(
                f"--judge {judge!r}: {key} cannot be {value!r}" + (f"; did you mean {near[0]!r}?" if near else ""),
                hint=f"One of {', '.join(choices)}." if choices else error.errors()[0]["msg"] + ".",
            ) from error
    return found


def _choices(kind: Any) -> list[str]:
    """List the values of a literal type; empty for other types."""
    if get_origin(kind) is Literal:
        return list(map(str, get_args(kind)))
    return [word for part in get_args(kind) for word in _choices(part)]


def takes_loading(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `Loading` to a verb in place of its last parameter, ``loading``.

    Parameters
    ----------
    without : tuple of str
        Fields of `Loading` that do not apply to the verb.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(Loading, include_extras=True)
        taken = {field.name: field.default for field in fields(Loading) if field.name not in without}
        *own, last = inspect.signature(verb, eval_str=True).parameters.values()
        if last.name != "loading":
            raise TypeError(f"the last parameter of {verb.__name__} is not called loading, but {last.name}")
        keyword = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(name, keyword, default=default, annotation=hints[name]) for name, default in taken.items()
        ]

        @functools.wraps(verb)
        def wrapped(*given: Any, **named: Any) -> None:
            loading = Loading(**{name: named.pop(name) for name in taken if name in named})
            verb(*given, **named, loading=loading)

        # typer builds the command line from these two.
        wrapped.__signature__ = inspect.Signature([*own, *added], return_annotation=None)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        return wrapped

    return decorate
