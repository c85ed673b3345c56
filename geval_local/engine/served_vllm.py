"""The dialect of vLLM's server: prompts go as token ids to ``/v1/completions``, which answers for named tokens."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from geval_local.engine.asked import DRAWN, Answer, Question
from geval_local.engine.backend import Draw, EngineReport, Sampling
from geval_local.engine.dialect import ServedModel, ServerAnswer, Text, TokenId, Tokens, Version, chosen_model
from geval_local.engine.served_client import Server, ServerRefusal, UnreadableAnswer
from geval_local.errors import JudgeError
from geval_local.score import OTHER_TOKENS
from geval_local.tokens.requests import Ids

_NEEDS = (
    "A vLLM server of version 0.32 or later can; this program needs its paths /v1/models, /v1/completions and "
    "/tokenize. For other servers, load the model here: `judge=DIRECTORY` or the GGUF file (an Ollama or LM Studio "
    "model is a file on this machine)."
)
#: No setting that changes what is drawn: a server fills in what a request leaves out from the model's own files.
_PLAIN = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_AS_IDS = {"return_tokens_as_token_ids": True}
_ID = "token_id:"


class _Listed(ServerAnswer):
    id: str = Field(min_length=1)
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = Field(None, gt=0)


class _Models(ServerAnswer):
    data: list[_Listed]


class _Figures(ServerAnswer):
    top_logprobs: Annotated[list[dict[Annotated[str, Field(pattern=rf"^{_ID}\d{{1,9}}$")], float]], Field(min_length=1)]


class _Choice(ServerAnswer):
    index: int
    finish_reason: str | None = None
    token_ids: list[TokenId] | None = None
    logprobs: _Figures | None = None


class _Usage(ServerAnswer):
    prompt_tokens: int


class _Completion(ServerAnswer):
    choices: list[_Choice]
    model: str | None = None
    system_fingerprint: str | None = None
    usage: _Usage | None = None


def find_vllm(server: Server, wanted: str | None) -> VllmDialect:
    """Find the model to ask on a server of vLLM's kind.

    Raises
    ------
    ConfigurationError
        If the server has several models, or not the one that is wanted.
    JudgeError
        If it lists none.
    """
    try:
        listed = {one.id: one for one in server.get("/v1/models", _Models).data}
    except ServerRefusal as error:
        raise JudgeError(f"the server at {server.address} lists no models ({error})", hint=_NEEDS) from error
    name = chosen_model(server, listed, wanted)
    try:
        version = server.get("/version", Version).version
    except ServerRefusal:
        version = "unknown"
    found = listed[name]
    # An adapter is listed without a length: it reads what its parent reads.
    lengths = (one.max_model_len for one in (found, listed.get(found.parent or "")) if one is not None)
    context = next(filter(None, lengths), 0)
    return VllmDialect(server, ServedModel(name, found.root or name, context, f"vLLM {version}"))


class VllmDialect:
    """A server of vLLM's, see `geval_local.engine.dialect.Dialect`."""

    needs = _NEEDS
    report = EngineReport("served")
    #: A server that is asked about several prompts says of the last one only how much of it was in its cache.
    computed = 0

    def __init__(self, server: Server, model: ServedModel) -> None:
        self.server = server
        self.model = model
        self._seen: str | None = None
        self._lock = threading.Lock()

    @property
    def identity(self) -> str:
        """Name, origin, version and fingerprint: the latter hashes settings, never weights."""
        return "|".join([self.model.name, self.model.root, self.model.program.removeprefix("vLLM "), str(self._seen)])

    def check(self) -> None:
        """Check that the server gives log-probabilities of named tokens."""
        tokens = (1, 2, 3)
        try:
            (choice,) = self._complete([[5, 6, 7]], **_naming(tokens))
            if not set(tokens) <= (found := _figures(choice)).keys():
                raise UnreadableAnswer(f"asked for the tokens {list(tokens)}, it answered with {sorted(found)}")
        except ServerRefusal as error:
            raise JudgeError(
                f"the server at {self.server.address} does not give log-probabilities of named tokens "
                f"(`logprob_token_ids`): {error}",
                hint=_NEEDS,
            ) from error

    def _complete(self, prompts: Sequence[Sequence[int]], **more: Any) -> list[_Choice]:
        """Ask for completions of some prompts, in order; an answer by another server than the first is an error."""
        body = {"model": self.model.name, "prompt": prompts, **_PLAIN, **more}
        found = self.server.post("/v1/completions", body, _Completion)
        self._check_origin(found.system_fingerprint or "none")
        if found.model not in (None, self.model.name):
            raise UnreadableAnswer(f"the answer is of the model {found.model!r}")
        sent = sum(map(len, prompts))
        if found.usage is not None and found.usage.prompt_tokens != sent:
            raise UnreadableAnswer(f"the server read {found.usage.prompt_tokens} tokens of a prompt of {sent}")
        if sorted(choice.index for choice in found.choices) != list(range(len(prompts))):
            places = [choice.index for choice in found.choices]
            raise UnreadableAnswer(f"the server's answers to {len(prompts)} prompts have the numbers {places[:20]}")
        return sorted(found.choices, key=lambda choice: choice.index)

    def _check_origin(self, now: str) -> None:
        with self._lock:
            self._seen = self._seen or now
        if now != self._seen:
            raise self.server.is_another("fingerprint", self._seen, now)

    def tokens_of(self, text: str) -> list[int]:
        """See `geval_local.engine.dialect.Dialect.tokens_of`."""
        body = {"model": self.model.name, "prompt": text, "add_special_tokens": False}
        return self.server.post("/tokenize", body, Tokens).tokens

    def answer(self, questions: Sequence[Question], *, drawn: bool = False, alone: bool = False) -> list[Answer]:
        """See `geval_local.engine.dialect.Dialect.answer`."""
        tokens = questions[0].tokens
        naming = _naming(tokens) if tokens else {"max_tokens": 1, "logprobs": OTHER_TOKENS} | _AS_IDS
        drawing = DRAWN if drawn else {}
        choices = self._complete([question.ids.tolist() for question in questions], **naming, **drawing)
        return [_figures(choice) for choice in choices]

    def write(self, prompts: Sequence[Ids], size: int, **asked: Any) -> list[Text]:
        """See `geval_local.engine.dialect.Dialect.write`; `asked` for what else than the likeliest tokens."""
        choices = self._complete([ids.tolist() for ids in prompts], max_tokens=size, return_token_ids=True, **asked)
        return [_text(choice, size) for choice in choices]

    def draw(self, draw: Draw, size: int, sampling: Sampling) -> Text:
        """See `geval_local.engine.dialect.Dialect.draw`."""
        drawing = {name: getattr(sampling.drawing, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        stop = {"stop": [sampling.mark], "include_stop_str_in_output": True, "skip_special_tokens": False}
        return self.write([draw.ids], size, seed=draw.seed, **drawing, **(stop if sampling.mark else {}))[0]


def _naming(tokens: Sequence[int]) -> Mapping[str, Any]:
    return {"max_tokens": 1, "logprobs": 1, "logprob_token_ids": list(tokens)} | _AS_IDS


def _figures(choice: _Choice) -> dict[int, float]:
    """Read the log-probabilities of the next token from one choice: ``token_id:33`` names a token."""
    if choice.logprobs is None or len(choice.logprobs.top_logprobs) != 1:
        raise UnreadableAnswer("the answer cannot be read: it has no log-probabilities of one next token")
    return {int(name.removeprefix(_ID)): value for name, value in choice.logprobs.top_logprobs[0].items()}


def _text(choice: _Choice, size: int) -> Text:
    ids = choice.token_ids
    if ids is None or len(ids) > size:
        raise UnreadableAnswer(
            f"the answer cannot be read: {'no' if ids is None else len(ids)} token ids for {size} tokens"
        )
    return Text(ids, len(ids) < size and choice.finish_reason not in (None, "stop"))
