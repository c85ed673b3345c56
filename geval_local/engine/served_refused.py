"""Servers that list the likeliest tokens only, and how their models become judges: Ollama and LM Studio."""

from __future__ import annotations

import re
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
    if _answers(server, "/api/version", Version) and _answers(server, "/api/tags", _Tags):
        name, file = _blob(server, wanted)
        raise JudgeError(
            f"Ollama at {server.address} lists at most 20 likeliest tokens, so probabilities of labels are missing; "
            "its model is a GGUF file, which can be the judge itself",
            hint=f"Name the file: -j {file or 'FILE'}\nor serve it: llama-server -m {file or 'FILE'}"
            + ("" if file else f"\nThe file stands after FROM in: ollama show {name} --modelfile"),
        )
    if _answers(server, "/api/v0/models", _Anything):
        raise JudgeError(
            f"LM Studio at {server.address} gives no log-probabilities of label tokens; its model is a GGUF file, "
            "which can be the judge itself",
            hint="Name the file, below ~/.lmstudio/models: -j FILE.gguf\nor serve it: llama-server -m FILE.gguf",
        )


def _answers(server: Server, path: str, kind: Any) -> bool:
    try:
        server.get(path, kind)
    except ServerRefusal:
        return False
    return True


def _blob(server: Server, wanted: str | None) -> tuple[str, str | None]:
    """Find a model of Ollama's, and its file as it names it."""
    try:
        names = [one.name for one in server.get("/api/tags", _Tags).models]
        name = wanted or (names[0] if len(names) == 1 else "MODEL")
        found = _FROM.search(server.post("/api/show", {"model": name}, _Shown).modelfile) if name != "MODEL" else None
    except ServerRefusal:
        return wanted or "MODEL", None
    return name, None if found is None else found[1]
