"""The dialect of llama.cpp's llama-server: prompts go as token ids to ``/completion``, which lists likeliest tokens.

A bias lifts the tokens asked for into the list, and `geval_local.engine.lifted` takes it out again: exact figures of
what the server computes.

What it computes depends on its prompt cache: fewer than `BLOCK` tokens at once go through other kernels, which moves
figures of quantized weights by tenths of a nat. So the last `BLOCK` tokens of a prompt are computed together, where a
probe finds that this makes figures the same whatever was in the cache.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from pydantic import Field, RootModel

from geval_local.engine.asked import DRAWN, MOST_SUM, Answer, Question
from geval_local.engine.backend import Draw, EngineReport, Sampling
from geval_local.engine.dialect import ServedModel, ServerAnswer, Text, TokenId, Tokens, chosen_model
from geval_local.engine.lifted import lifted_logprobs, restored
from geval_local.engine.served_client import Server, ServerRefusal, UnreadableAnswer, why_no_answer
from geval_local.errors import JudgeError
from geval_local.models.fingerprint import weights_digest
from geval_local.models.gguf.file import is_gguf
from geval_local.score import OTHER_TOKENS
from geval_local.tokens.requests import Ids, common_prefix

#: Fewer tokens at once go through other kernels of llama.cpp; and most tokens that it computes at once, if it was
#: started without `-ub`.
BLOCK = 64
_MOST_AT_ONCE = 512
#: Tokens of a list besides those that are lifted into it.
_LISTED = 256
#: Difference (nats) that a probe allows between what should be equal.
_TOLERANCE = 1e-4
_REMEDY = "`-fa off -ctk f32 -ctv f32`"
#: Tries with another seed, where the token that the server drew was half of a character: it lists nothing then.
_SEEDS = 32
#: Likeliest tokens that a probe compares.
_COMPARED = 50
#: What figures by the cache are compared with.
_FRESH = "the same prompt without the server's cache"
_PROBE = "The library reopened on Monday after eight months of repairs, and 200 people came. It was full by noon. " * 8
_PROBE_TOKENS = 160
_NEEDS = (
    "A llama-server of 2025 or later can (llama.cpp). Else name the GGUF file itself as the judge: `judge=FILE.gguf`."
)
#: Everything that a server may have been started with, and that changes figures or texts; no sampler, no bias.
_PLAIN: Mapping[str, Any] = {
    "temperature": 1.0,
    "samplers": [],
    "mirostat": 0,
    "grammar": "",
    "logit_bias": [],
    "ignore_eos": False,
    "n_keep": 0,
    "n_cache_reuse": 0,
    "backend_sampling": False,
    "cache_prompt": True,
    "stream": False,
}


class _Build(ServerAnswer):
    build_info: str


class _Slot(ServerAnswer):
    n_ctx: int = Field(gt=1)


class _Props(_Build):
    model_path: str
    model_alias: str = ""
    model_ftype: str = ""
    total_slots: int = Field(1, ge=1, le=4096)
    default_generation_settings: _Slot
    is_sleeping: bool = False


class _Meta(ServerAnswer):
    n_params: int = 0
    n_vocab: int = 0
    size: int = 0


class _Listed(ServerAnswer):
    id: str = Field(min_length=1)
    meta: _Meta | None = None


class _Models(ServerAnswer):
    data: list[_Listed]


class _Adapter(ServerAnswer):
    id: int
    path: str
    scale: float


class _Adapters(RootModel[list[_Adapter]]):
    """The adapters that a server was started with."""


class _Share(ServerAnswer):
    id: TokenId
    prob: float | None = Field(None, ge=0)
    logprob: float = Field(0.0, le=0)


class _Place(ServerAnswer):
    top_probs: list[_Share] | None = None
    top_logprobs: list[_Share] | None = None


class _Completion(ServerAnswer):
    tokens: list[TokenId] = Field(default_factory=list)
    stop_type: str = "none"
    tokens_evaluated: int
    truncated: bool = False
    model: str | None = None
    computed: int = Field(0, alias="timings/prompt_n")
    completion_probabilities: list[_Place] | None = None


_FIELDS = [field.alias or name for name, field in _Completion.model_fields.items()]


def find_llama(server: Server, wanted: str | None) -> LlamaDialect | None:
    """Find the model to ask on a llama-server; None if the server is of another kind.

    Raises
    ------
    ConfigurationError
        If the server has several models, or not the one that is wanted.
    JudgeError
        If it sleeps, or says nothing of its model.
    """
    try:
        server.get("/props", _Build)
        listed = {one.id: one for one in server.get("/v1/models", _Models).data}
    except ServerRefusal:
        return None
    name = chosen_model(server, listed, wanted)
    try:
        return LlamaDialect(server, name, _what_is_served(server, name), listed[name].meta or _Meta())
    except ServerRefusal as error:
        raise JudgeError(
            f"the llama-server at {server.address} does not describe its model: {error}", hint=_NEEDS
        ) from error


def _what_is_served(server: Server, name: str) -> tuple[_Props, list[_Adapter]]:
    """Ask what a server computes with: its build, file, slots and adapters."""
    props = server.get(f"/props?model={quote(name, safe='')}", _Props)
    return props, server.get("/lora-adapters", _Adapters).root


class LlamaDialect:
    """A llama-server, see `geval_local.engine.dialect.Dialect`.

    Parameters
    ----------
    server : Server
        What is asked.
    name : str
        Which of its models.
    served : tuple
        What it says of itself, and of its adapters.
    meta : _Meta
        What it says of the model's size.
    """

    needs = _NEEDS

    def __init__(self, server: Server, name: str, served: tuple[_Props, list[_Adapter]], meta: _Meta) -> None:
        props, adapters = served
        if props.is_sleeping:
            raise JudgeError(
                f"the llama-server at {server.address} sleeps: it may read another file when it wakes",
                hint="Start it without `--sleep-idle-seconds`, or send it a request first.",
            )
        self.server = server
        self._name, self._served, self._vocabulary = name, served, meta.n_vocab
        path = Path(props.model_path)
        self._digest = weights_digest(path) if _is_here(server) and path.is_absolute() and is_gguf(path) else None
        self._told = [props.build_info, self._digest or props.model_path, props.model_ftype]
        self._told += [str(meta.n_params), str(meta.size), *(f"{one.path}={one.scale}" for one in adapters)]
        verified = "not verified" if self._digest is None else f"named by the server, sha256 {self._digest[:16]}"
        self.model = ServedModel(
            name=Path(name).name,
            root=props.model_path,
            context=props.default_generation_settings.n_ctx,
            program=f"llama.cpp {props.build_info}",
            setup={"weights": verified} | ({"adapters": "the server's"} if adapters else {}),
            file=None if self._digest is None else path,
            requests_at_once=props.total_slots,
            in_order=True,
        )
        self.report = EngineReport("served")
        self.computed = 0
        self._lock = threading.Lock()
        #: Whether the last tokens of a prompt are computed together.
        self._in_blocks = False
        self._lora = [{"id": one.id, "scale": one.scale} for one in adapters]
        self._free: queue.LifoQueue[int] = queue.LifoQueue()
        for slot in reversed(range(props.total_slots)):
            self._free.put(slot)
        #: What every slot has read last.
        self._last: dict[int, Ids] = {}

    @property
    def identity(self) -> str:
        """Build, file, numbers of its weights, and adapters."""
        return "|".join(self._told)

    def check(self) -> None:
        """Probe one prompt: lists are of the full softmax, a bias is taken out again, and what the cache does."""
        most = min(_PROBE_TOKENS, self.model.context - 1)
        ids = np.array((self.tokens_of(_PROBE) * 4)[:most], dtype=np.int32)
        try:
            with self._slot() as slot:
                self._probe(ids, slot)
        except (ServerRefusal, ValueError) as error:
            raise JudgeError(
                f"the llama-server at {self.server.address} gives no probabilities that can be read here: {error}",
                hint=_NEEDS,
            ) from error

    def _probe(self, ids: Ids, slot: int) -> None:
        fresh = self._logs(ids, slot, cache_prompt=False)
        again = self._logs(ids, slot)
        raw = self._logs(ids, slot, post_sampling_probs=False)
        shifts = [raw[token] - value for token, value in again.items() if token in raw]
        if len(shifts) < min(20, len(again)) or max(shifts) - min(shifts) > _TOLERANCE:
            raise UnreadableAnswer("a sampler of its own changes them, whatever a request says")
        some = sorted(again, key=again.__getitem__, reverse=True)[:64:13]
        found = lifted_logprobs(lambda tokens, bias: self._list(ids, slot, tokens, bias), some)
        if (error := _difference(found, {token: again[token] for token in some})) > _TOLERANCE:
            raise UnreadableAnswer(f"a bias of a request changes them by {error:.1e} nats more than it should")
        effect, cache, note = _difference(fresh, again), "exact", None
        if effect > _TOLERANCE:
            self._in_blocks = True
            left = _difference(fresh, self._logs(ids, slot))
            self._in_blocks = left <= _TOLERANCE
            if self._in_blocks:
                cache = f"exact from {BLOCK} tokens on"
                note = f"by {effect:.2g} where it computes fewer than {BLOCK}, so it computes the last {BLOCK} together"
                effect = left
            else:
                cache, note = "moves figures", "figures depend on what is in the server's cache"
            note += f"; a server that is started with {_REMEDY} differs less"
        self.model = replace(self.model, setup={**self.model.setup, "cache": cache})
        self.report = replace(
            self.report, difference=effect, tolerance=_TOLERANCE, probe_tokens=len(ids), against=_FRESH, note=note
        )

    def tokens_of(self, text: str) -> list[int]:
        """See `geval_local.engine.dialect.Dialect.tokens_of`."""
        body = {"model": self._name, "content": text, "add_special": False, "parse_special": True}
        return self.server.post("/tokenize", body, Tokens).tokens

    def answer(self, questions: Sequence[Question], *, drawn: bool = False, alone: bool = False) -> list[Answer]:
        """Answer questions one after the other in one slot, whose cache holds the prompt before."""
        self._check_origin()
        more: dict[str, Any] = {**DRAWN} if drawn else {}
        if alone:
            more["cache_prompt"] = False
        with self._slot() as slot:
            return [self._answer(question, slot, more) for question in questions]

    def _answer(self, question: Question, slot: int, more: Mapping[str, Any]) -> Answer:
        ids, tokens = question.ids, question.tokens
        try:
            if not tokens:
                return self._logs(ids, slot, n_probs=OTHER_TOKENS, **more)
            return lifted_logprobs(lambda named, bias: self._list(ids, slot, named, bias, **more), tokens)
        except ValueError as error:
            return f"the server's answer cannot be read: {error}"
        except ServerRefusal as error:
            return why_no_answer(error)

    def _check_origin(self) -> None:
        """Check that build, file, slots and adapters are still those of the start."""
        now = _what_is_served(self.server, self._name)
        if now != self._served:
            was, found = _told(self._served), _told(now)
            name = next(name for name in was if was[name] != found[name])
            raise self.server.is_another(name, was[name], found[name])

    @contextmanager
    def _slot(self) -> Iterator[int]:
        """Take a slot of the server's: prompts that follow each other are computed where the one before is kept."""
        slot = self._free.get()
        try:
            yield slot
        finally:
            self._free.put(slot)

    def _logs(self, ids: Ids, slot: int, **more: Any) -> dict[int, float]:
        return restored(self._list(ids, slot, (), 0.0, **more), (), 0.0)

    def _list(self, ids: Ids, slot: int, tokens: Sequence[int], bias: float, **more: Any) -> dict[int, float]:
        """Ask for the likeliest next tokens, some of them biased: their probabilities by token."""
        asked: dict[str, Any] = {"n_predict": 1, "n_probs": _LISTED + len(tokens), "post_sampling_probs": True}
        asked |= {"logit_bias": [[token, bias] for token in tokens], **more}
        for seed in range(_SEEDS):
            found = self._computed(ids, slot, asked | {"seed": seed})
            if found.completion_probabilities:
                place = found.completion_probabilities[0]
                wanted = min(asked["n_probs"], self._vocabulary or asked["n_probs"])
                return _shares(place.top_probs if asked["post_sampling_probs"] else place.top_logprobs, wanted)
        raise UnreadableAnswer(f"the server lists no probabilities: half of a character came {_SEEDS} times")

    def _computed(self, ids: Ids, slot: int, asked: Mapping[str, Any]) -> _Completion:
        """Send a prompt; where its last tokens have to be computed together, with the cache cut before them."""
        if not self._in_blocks:
            return self._send(ids, slot, asked)
        if len(ids) <= BLOCK:  # all of it together
            return self._send(ids, slot, {**asked, "cache_prompt": False})
        last = self._last.get(slot, ids[:0]) if asked.get("cache_prompt", True) else ids[:0]
        is_cut = _is_few(max(len(ids) - common_prefix(last, ids), 1))
        found = self._send(ids, slot, self._cut(ids, slot, asked) if is_cut else asked)
        # Another client may have used the slot.
        return self._send(ids, slot, self._cut(ids, slot, asked)) if _is_few(found.computed) and not is_cut else found

    def _cut(self, ids: Ids, slot: int, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Let the cache of a slot end before the last tokens of a prompt: there stands another token."""
        kept = ids[:-BLOCK]
        body = {"n_predict": 0, **{name: value for name, value in asked.items() if name == "cache_prompt"}}
        self._send(np.append(kept, 0 if ids[-BLOCK] else 1).astype(np.int32), slot, body)
        return {**asked, "cache_prompt": True}

    def _send(self, ids: Ids, slot: int, asked: Mapping[str, Any]) -> _Completion:
        body = {"model": self._name, "prompt": ids.tolist(), "id_slot": slot, **_PLAIN, **asked}
        body |= {"response_fields": _FIELDS} | ({"lora": self._lora} if self._lora else {})
        found = self.server.post("/completion", body, _Completion)
        self._last[slot] = ids
        with self._lock:
            self.computed += found.computed
        if found.truncated or found.tokens_evaluated != len(ids):
            raise UnreadableAnswer(f"the server read {found.tokens_evaluated} tokens of a prompt of {len(ids)}")
        return found

    def write(self, prompts: Sequence[Ids], size: int) -> list[Text]:
        """See `geval_local.engine.dialect.Dialect.write`."""
        return [self._text(ids, size, {"samplers": ["top_k"], "top_k": 1}) for ids in prompts]

    def draw(self, draw: Draw, size: int, sampling: Sampling) -> Text:
        """See `geval_local.engine.dialect.Dialect.draw`."""
        one = sampling.drawing
        drawing = {"temperature": one.temperature, "top_k": one.top_k, "top_p": one.top_p, "min_p": one.min_p}
        stop = [sampling.mark] if sampling.mark else []
        # The largest seed stands for one of chance.
        seed = draw.seed % (2**32 - 1)
        return self._text(draw.ids, size, {"samplers": [*drawing], **drawing, "seed": seed, "stop": stop})

    def _text(self, ids: Ids, size: int, asked: Mapping[str, Any]) -> Text:
        with self._slot() as slot:
            found = self._send(ids, slot, {"n_predict": size, "return_tokens": True, **asked})
        if len(found.tokens) > size:
            raise UnreadableAnswer(f"the server wrote {len(found.tokens)} tokens where {size} were asked for")
        return Text(found.tokens, len(found.tokens) < size and found.stop_type not in ("eos", "word"))


def _is_here(server: Server) -> bool:
    """Whether a server is on this machine: a path that another one names may hold something else here."""
    host = str(urlsplit(server.address).hostname)
    return host in ("localhost", "::1") or host.startswith("127.")


def _is_few(count: int) -> bool:
    """Whether the last of the passes that compute so many tokens has too few of them."""
    return 0 < count % _MOST_AT_ONCE < BLOCK


def _shares(listed: Sequence[_Share] | None, wanted: int) -> dict[int, float]:
    """Read a list of so many probabilities."""
    if listed is None:
        raise UnreadableAnswer("the server does not know `post_sampling_probs`")
    found = {one.id: math.exp(one.logprob) if one.prob is None else one.prob for one in listed}
    if len(found) < wanted:
        raise UnreadableAnswer(f"the server lists {len(found)} different tokens where {wanted} were asked for")
    if not (total := math.fsum(found.values())) <= MOST_SUM:
        raise UnreadableAnswer(f"the server's probabilities sum up to {total:.3g}")
    return found


def _difference(first: Mapping[int, float], second: Mapping[int, float]) -> float:
    """Return the largest difference of log-probabilities of the likeliest tokens that both hold."""
    both = sorted((value, token) for token, value in first.items() if token in second)[-_COMPARED:]
    return max((abs(value - second[token]) for value, token in both), default=math.inf)


def _told(served: tuple[_Props, list[_Adapter]]) -> dict[str, Any]:
    props, adapters = served
    return {**props.model_dump(exclude={"default_generation_settings"}), "adapters": [one.path for one in adapters]} | {
        "n_ctx": props.default_generation_settings.n_ctx,
        "scales": [one.scale for one in adapters],
    }
