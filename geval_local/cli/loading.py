"""The judge that a verb is asked for: its loading options, taken and handed on as one."""

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
    """How a judge is to be loaded: one field per option of the panel, in its order; the names of `Judge.load`."""

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
        """Name the judge that is to be loaded like this; options of its own may follow the name, after commas.

        Raises
        ------
        ConfigurationError
            If there is no such option, or it has no such value.
        """
        bare, own = split_judge(name, models_file) if name is not None else (None, {})
        return JudgeChoice(**(asdict(self) | own_options(str(name), own)), name=bare, models_file=models_file)

    def all_of(self, names: Sequence[str] | None, models_file: Path | None) -> list[JudgeChoice]:
        """Name all judges that are to be loaded; the default one where none is named."""
        return [self.of(name, models_file) for name in names or (None,)]


def split_judge(text: str, models_file: Path | None) -> tuple[str, dict[str, str]]:
    """Split ``NAME,KEY=VALUE,...`` into the name and its options.

    A name may hold commas itself, and so may a value: the name is the longest beginning that is a directory or a known
    judge; failing that, it ends before the first ``,KEY=``. A part without ``=`` belongs to the value before it.

    Returns
    -------
    name : str
        The judge.
    options : dict of str to str
        As given.

    Raises
    ------
    ConfigurationError
        If what follows a known name is no option, or an option is given twice.
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
                f"--judge {text!r}: {part!r} is no option", hint="Options of one judge are NAME,KEY=VALUE,KEY=VALUE."
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
    """Read the options of one judge: named as the long options are, with the values that those take.

    Parameters
    ----------
    judge : str
        As given, for messages.
    given : mapping of str to str
        Name -> value.

    Raises
    ------
    ConfigurationError
        If there is no such option, or it has no such value; the message offers the nearest one.
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
    """List the words that a type allows, where it is made of words."""
    if get_origin(kind) is Literal:
        return list(map(str, get_args(kind)))
    return [word for part in get_args(kind) for word in _choices(part)]


def takes_loading(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of `Loading` in the place of its last parameter, ``loading``.

    Parameters
    ----------
    without : tuple of str
        Fields of `Loading` that mean nothing to the verb, and are no options of it.
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

        # The command line is made from these two.
        wrapped.__signature__ = inspect.Signature([*own, *added], return_annotation=None)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
        return wrapped

    return decorate
