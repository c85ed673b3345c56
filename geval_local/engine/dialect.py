"""Dialect: how one kind of server is asked; `geval_local.engine.served_backend` is the same for all kinds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import BaseModel, ConfigDict, Field

from geval_local.engine.asked import Answer, Question
from geval_local.engine.backend import Draw, EngineReport, Sampling
from geval_local.engine.served_client import Server
from geval_local.errors import ConfigurationError
from geval_local.tokens.requests import Ids

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True)
class ServedModel:
    """What a server says of a model."""

    name: str
    #: Directory or hub id that it was loaded from.
    root: str
    #: Longest prompt in tokens, including one new token; 0 if it does not say.
    context: int
    #: The program with its version: ``vLLM 0.32.0``.
    program: str
    #: Further facts about how it computes, under keys of a signature.
    setup: Mapping[str, str] = field(default_factory=dict)
    #: The file of its weights, if it is on this machine and has been hashed.
    file: Path | None = None
    #: Requests that it computes at the same time, and prompts of one request.
    requests_at_once: int = 8
    prompts_at_once: int = 16
    #: Whether questions are asked in their order, each behind the one before it in a slot that keeps one prompt.
    in_order: bool = False


@dataclass(frozen=True)
class Text:
    """What a server wrote after a prompt."""

    #: New tokens, with the end token or the mark that ended them.
    ids: list[int]
    #: Whether it ended before the number of tokens that was asked for, other than by an end token or a mark.
    is_cut: bool = False


class ServerAnswer(BaseModel):
    """An answer, or a part of one: further keys are of no interest."""

    model_config = ConfigDict(strict=True)


class Version(ServerAnswer):
    """The version of a server."""

    version: str


class Tokens(ServerAnswer):
    """Token ids of a text."""

    tokens: list[TokenId]


def chosen_model(server: Server, names: Collection[str], wanted: str | None) -> str:
    """Choose one of a server's models.

    Raises
    ------
    ConfigurationError
        If it has several, or not the one that is wanted.
    """
    if wanted is None and len(names) != 1:
        raise ConfigurationError(
            f"the server at {server.address} serves {', '.join(names) or 'nothing'}",
            hint="Name one: `served_model=NAME`.",
        )
    name = wanted or next(iter(names))
    if name not in names:
        raise ConfigurationError(
            f"the server at {server.address} has no model {name!r}", hint=f"It serves {', '.join(names)}."
        )
    return name


class Dialect(Protocol):
    """One server, by its kind; safe in threads. Every method may raise `served_client.ServerRefusal`, and `JudgeError`.

    Attributes
    ----------
    server : Server
        What is asked.
    model : ServedModel
        Which of its models.
    needs : str
        What a server has to be, for a hint.
    report : EngineReport
        How it computes, after `check`.
    computed : int
        Tokens that went through the model so far; 0 where the server does not say.
    """

    server: Server
    model: ServedModel
    needs: str
    report: EngineReport
    computed: int

    def check(self) -> None:
        """Check that the server can answer questions, before anything else is asked."""

    @property
    def identity(self) -> str:
        """What the server says of model and settings, after `check`: other servers and settings have another one."""

    def tokens_of(self, text: str) -> list[int]:
        """Tokenize a text without special tokens."""

    def answer(self, questions: Sequence[Question], *, drawn: bool = False, alone: bool = False) -> list[Answer]:
        """Answer questions: in one request about the same tokens, or one by one if the model's are asked in order.

        With `drawn` as `geval_local.engine.asked_backend.AskedBackend` says; with `alone` without a cache of prompts,
        where the server lets choose.
        """

    def write(self, prompts: Sequence[Ids], size: int) -> list[Text]:
        """Continue prompts by their likeliest tokens, in one request."""

    def draw(self, draw: Draw, size: int, sampling: Sampling) -> Text:
        """Draw a continuation of at most so many tokens."""
