"""Servers that list the likeliest tokens only, and how their models become judges: Ollama and LM Studio."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pydantic import RootModel

from geval_local.engine.dialect import ServerAnswer, Version
from geval_local.engine.served_client import Server, ServerRefusal
from geval_local.errors import JudgeError

_FROM = re.compile(r"^FROM (\S.*)$", re.MULTILINE)


class _Tag(ServerAnswer):
    name: str


class _Tags(ServerAnswer):
    models: list[_Tag]


class _Shown(ServerAnswer):
    modelfile: str


class _Anything(RootModel[dict[str, Any]]):
    """Any JSON object."""


def refuse_others(server: Server, wanted: str | None) -> None:
    """Refuse Ollama and LM Studio with the way that there is; a server of another kind passes.

    Raises
    ------
    JudgeError
        If the server is one of them.
    """
    tags = _answer(server.get, "/api/tags", _Tags) if _answer(server.get, "/api/version", Version) else None
    if tags is not None:
        name = wanted or (tags.models[0].name if len(tags.models) == 1 else None)
        shown = name and _answer(server.post, "/api/show", {"model": name}, _Shown)
        file = _FROM.search(shown.modelfile) if shown else None
        place = file[1] if file else "FILE"
        raise JudgeError(
            f"Ollama at {server.address} lists at most 20 likeliest tokens, so probabilities of labels are missing; "
            "its model is a GGUF file, which can be the judge itself",
            hint=f"Name the file: -j {place}\nor serve it: llama-server -m {place}"
            + ("" if file else f"\nThe file stands after FROM in: ollama show {name or 'MODEL'} --modelfile"),
        )
    if _answer(server.get, "/api/v0/models", _Anything) is not None:
        raise JudgeError(
            f"LM Studio at {server.address} gives no log-probabilities of label tokens; its model is a GGUF file, "
            "which can be the judge itself",
            hint="Name the file, below ~/.lmstudio/models: -j FILE.gguf\nor serve it: llama-server -m FILE.gguf",
        )


def _answer(ask: Callable[..., Any], *what: Any) -> Any:
    """Return an answer; None if the server has none."""
    try:
        return ask(*what)
    except ServerRefusal:
        return None
