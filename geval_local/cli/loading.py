"""The judge that a verb is asked for: its loading options, taken and handed on as one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from geval_local.cli import options
from geval_local.errors import JudgeError

if TYPE_CHECKING:
    from geval_local.judge import Judge
    from geval_local.models.entry import JudgeEntry

__all__ = ["JudgeChoice", "Loading", "takes_loading"]


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
        """Name the judge that is to be loaded like this."""
        return JudgeChoice(**asdict(self), name=name, models_file=models_file)


@dataclass(frozen=True)
class JudgeChoice(Loading):
    """Which judge was asked for, and how it is to be loaded."""

    name: str | None = None
    models_file: Path | None = None

    def load(self) -> Judge:
        """Load the judge."""
        from geval_local.judge import Judge

        return Judge.load(**asdict(self))

    def label(self) -> str:
        """Name the judge as results do; one that is not here, as it was asked for."""
        from geval_local.models.registry import load_registry

        try:
            return self.entry().label
        except JudgeError:
            return self.name or load_registry(self.models_file).default

    def entry(self) -> JudgeEntry:
        """Find its entry, without weights."""
        from geval_local.models.registry import find_judge

        entry = find_judge(self.name, self.models_file, adapter=self.adapter)
        return entry if self.style is None else entry.model_copy(update={"style": self.style})


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
