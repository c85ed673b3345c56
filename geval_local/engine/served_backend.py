"""The served backend: a vLLM server that already runs computes, and is asked over HTTP.

Prompts go as token ids to ``/v1/completions``, which answers with log-probabilities of named tokens
(``logprob_token_ids``). The tokenizer is read here, and compared with the server's at the start. Weights are not
verified: the facts say what the server says of itself.
"""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import itertools
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import transformers
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from geval_local import __version__
from geval_local.backends import BACKENDS
from geval_local.engine.asked import Answer, Answers, AskedEngine, Question
from geval_local.engine.asked_backend import AskedBackend
from geval_local.engine.backend import BackendFacts, Description, Draw, EngineReport, Sampling
from geval_local.errors import ConfigurationError, GevalError, JudgeError, TokenizerError, first_line
from geval_local.models.fingerprint import tokenizer_hash
from geval_local.models.load import check_style, load_tokenizer, own_sampling
from geval_local.models.precision import Precision
from geval_local.models.registry import JudgeEntry, entry_of, has_chat_template, local_directory
from geval_local.options import JudgeOptions

#: Names of its judges begin so.
_PREFIX = BACKENDS["served"].prefix
#: The variable that vLLM's own server reads its key from.
KEY_VARIABLE = "VLLM_API_KEY"
REQUESTS_AT_ONCE = 8
#: Prompts of one request: the server computes them together.
PROMPTS_AT_ONCE = 16
#: Distinct tokens of a window; each is stored when it is answered.
WINDOW_TOKENS = 16_384
#: Seconds that a request may take, and those before each new try.
TIMEOUT = 600.0
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
#: Answers after which the same request may succeed.
_BUSY = (408, 429, 500, 502, 503, 504)
#: Texts on which tokenizers differ: digits, blanks, case, scripts, marks of chats.
TEXTS = (
    "Rate the summary from 1 to 5. - Coherence: 10",
    "  two  spaces,\ttabs\n\n- and lines\r\n",
    "It's 3.14159 and 1,000,000; naïve café, Straße, ÅNGSTRÖM.",
    "中文，日本語、한국어, русский, العربية, हिन्दी 🙂👩‍👩‍👧",
    "def f(x):\n    return x**2  # <|im_end|> [INST] </s>",
)
_WHAT_IT_NEEDS = (
    "A vLLM server of version 0.32 or later can. For other servers, load the model here: `judge=DIRECTORY` or the "
    "GGUF file (an Ollama or LM Studio model is a file on this machine)."
)
_T = TypeVar("_T")
_R = TypeVar("_R")


class _Refused(Exception):
    """The server refused a request; another try is of no use."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An answer that names another address is an error: texts go where the user said."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


class Server:
    """A server, as far as it is asked here; safe in threads.

    Parameters
    ----------
    address : str
        Such as ``http://127.0.0.1:8000/v1``.
    sleep : callable
        Waits some seconds before a new try.
    """

    def __init__(self, address: str, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self.address = address.rstrip("/")
        self.root = self.address.removesuffix("/v1")
        self._sleep = sleep
        #: Whether it has answered before. One that was never there is not waited for.
        self._is_there = False
        # No proxy: what the environment names may lie outside of this network.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
        key = os.environ.get(KEY_VARIABLE)
        self._headers = {"Content-Type": "application/json"} | ({} if not key else {"Authorization": f"Bearer {key}"})

    def get(self, path: str) -> Any:
        """Get a path of the server, as JSON."""
        return self._send(f"{self.root}{path}", None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post JSON to a path; tried again where the server is busy or the connection breaks.

        Raises
        ------
        _Refused
            If the server refuses the request.
        JudgeError
            If it does not answer.
        """
        return self._send(f"{self.root}{path}", json.dumps(body).encode())

    def _send(self, url: str, body: bytes | None) -> Any:
        problem = ""
        for pause in (*PAUSES, None):
            try:
                request = urllib.request.Request(url, body, self._headers)
                with self._opener.open(request, timeout=TIMEOUT) as answer:
                    found = json.loads(answer.read())
                self._is_there = True
                return found
            except urllib.error.HTTPError as error:
                problem = f"{error.code}: {_message(error)}"
                if error.code in (401, 403):
                    raise JudgeError(
                        f"the server at {self.address} refuses the key ({problem})",
                        hint=f"Set the environment variable {KEY_VARIABLE} to the server's key.",
                    ) from error
                if error.code not in _BUSY:
                    raise _Refused(problem) from error
                wait = _seconds(error.headers.get("Retry-After"))
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = getattr(error, "reason", None)
                if isinstance(reason, ConnectionRefusedError) and not self._is_there:
                    raise self._nobody() from error
                problem, wait = str(reason or first_line(error)), None
            if pause is not None:
                self._sleep(pause if wait is None else min(wait, 60.0))
        raise JudgeError(
            f"the server at {self.address} does not answer: {problem}",
            hint="Start it, and run the same command again: what was stored is kept.",
        )

    def _nobody(self) -> JudgeError:
        port = urllib.parse.urlsplit(self.address).port or 80
        return JudgeError(
            f"nothing listens at {self.address}",
            hint=f"Start a server:\n  vllm serve MODEL --port {port} --max-logprobs 128 "
            '--hf-overrides \'{"head_dtype": "float32"}\'',
        )


def in_threads(work: Callable[[_T], _R], items: Sequence[_T], at_once: int) -> list[_R]:
    """Do some work for every item, in threads that a program does not wait for when it ends; results in order.

    Python waits for the threads of a `ThreadPoolExecutor`, and a request may take ten minutes.
    """
    found: dict[int, _R] = {}
    errors: list[BaseException] = []
    places = iter(range(len(items)))
    lock = threading.Lock()

    def run() -> None:
        while not errors:
            with lock:
                place = next(places, None)
            if place is None:
                return
            try:
                found[place] = work(items[place])
            except BaseException as error:
                errors.append(error)

    threads = [threading.Thread(target=run, name="geval-local served", daemon=True) for _ in items[:at_once]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[place] for place in range(len(items))]


def _message(error: urllib.error.HTTPError) -> str:
    """Read what a server says of an error."""
    try:
        found = json.loads(error.read())
        told = found.get("error", found) if isinstance(found, dict) else found
        text = str(told.get("message", told) if isinstance(told, dict) else told)
    except (OSError, ValueError):
        text = str(error.reason)
    return text.splitlines()[0][:200] if text else str(error.reason)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:  # a date
        return None


def check_address(options: JudgeOptions) -> None:
    """Refuse an address outside of this machine and of private networks, unless it is asked for.

    Raises
    ------
    ConfigurationError
        If the address is public, or is none.
    """
    parts = urllib.parse.urlsplit(str(options.name))
    if not parts.hostname:
        raise ConfigurationError(f"{options.name!r} is no address", hint="Such as http://127.0.0.1:8000/v1.")
    if options.allow_remote:
        return
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(
            f"the host {parts.hostname!r} is not known: {first_line(error)}", hint="Correct the address."
        ) from error
    for address in {str(one[4][0]).partition("%")[0] for one in found}:
        known = ipaddress.ip_address(address)
        if not (known.is_loopback or known.is_private or known.is_link_local):
            raise ConfigurationError(
                f"{parts.hostname} ({address}) is neither this machine nor in a private network, and every text of the "
                "input would be sent there",
                hint="If that is meant, add `allow_remote`.",
            )


@dataclass(frozen=True)
class _Model:
    """What a server says of a model."""

    name: str
    root: str
    context: int
    version: str


def read(options: JudgeOptions) -> ServedBackend:
    """Ask a server what it serves, and check that it can answer here; errors as for `Judge.load`."""
    server = Server(str(options.name))
    model = _model(server, options.served_model)
    entry = _entry(options, model)
    tokenizer = load_tokenizer(entry)
    backend = ServedBackend(options, server, model, entry, tokenizer)
    backend.check_tokens()
    return backend


def check(options: JudgeOptions) -> JudgeOptions:
    """Check what can be checked without the server."""
    options.check_backend()
    for name in ("adapter", "device", "device_map", "dtype", "attention", "quantization"):
        if getattr(options, name) is not None:
            raise ConfigurationError(
                f"`{name}` is decided by the server, which loaded the judge", hint=f"Leave `{name}` out."
            )
    if options.engine != "auto":
        raise ConfigurationError("a server has its own engine", hint="Leave `engine` out.")
    check_address(options)
    return options


def _model(server: Server, wanted: str | None) -> _Model:
    """Find the model to ask."""
    try:
        listed = {str(one["id"]): one for one in server.get("/v1/models")["data"]}
    except (_Refused, KeyError, TypeError) as error:
        raise JudgeError(
            f"the server at {server.address} lists no models ({first_line(error)})", hint=_WHAT_IT_NEEDS
        ) from error
    if wanted is None and len(listed) != 1:
        raise ConfigurationError(
            f"the server at {server.address} serves {', '.join(listed) or 'nothing'}",
            hint="Name one: `served_model=NAME`.",
        )
    name = wanted or next(iter(listed))
    if name not in listed:
        raise ConfigurationError(
            f"the server at {server.address} has no model {name!r}", hint=f"It serves {', '.join(listed)}."
        )
    try:
        version = str(server.get("/version")["version"])
    except (_Refused, KeyError, TypeError):
        version = "unknown"
    found = listed[name]
    return _Model(name, str(found.get("root") or name), int(found.get("max_model_len") or 0), version)


def _entry(options: JudgeOptions, model: _Model) -> JudgeEntry:
    """Find the files of a served model's tokenizer."""
    root = options.tokenizer
    if root is None and Path(model.root).is_dir():
        root = Path(model.root)
    if root is not None:
        style = options.style or ("chat" if has_chat_template(root) else "completion")
        return JudgeEntry(name=f"{_PREFIX}{model.name}", path=root, context=model.context or None, style=style)
    try:
        found = entry_of(JudgeOptions(name=model.root, style=options.style, models_file=options.models_file))
    except GevalError as error:
        raise TokenizerError(
            f"the server serves {model.root}, whose tokenizer is not on this machine",
            hint="Name the directory of its tokenizer.json: `tokenizer=DIR`.",
        ) from error
    return found.model_copy(update={"name": f"{_PREFIX}{model.name}", "adapter": None})


class ServedBackend(AskedBackend):
    """A model that a server computes.

    Parameters
    ----------
    options : JudgeOptions
        As given.
    server : Server
        What is asked.
    model : _Model
        What it says of the model.
    entry : JudgeEntry
        Where its tokenizer is.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    """

    def __init__(
        self,
        options: JudgeOptions,
        server: Server,
        model: _Model,
        entry: JudgeEntry,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self.entry = entry
        self.tokenizer = tokenizer
        self._server = server
        self._model = model
        self._at_once = options.requests_at_once or REQUESTS_AT_ONCE
        self._seen: str | None = None
        self.engine = AskedEngine("served", self._ask, batch_tokens=options.batch_tokens or WINDOW_TOKENS)
        self._check_ability()
        frame = None if entry.style == "completion" else check_style(entry, tokenizer)
        told = "|".join([model.name, model.root, model.version, str(self._seen)])
        limits = [entry.context, model.context]
        self.facts = BackendFacts(
            label=entry.name,
            fingerprint=hashlib.sha256(told.encode()).hexdigest()[:16],
            setup={
                "tokenizer": tokenizer_hash(tokenizer, frame),
                "dtype": "the server's",
                "attention": "the server's",
                "backend": f"served by vLLM {model.version}",
                "weights": "not verified",
                "transformers": transformers.__version__,
                "torch": "none",
                "version": __version__,
            },
            context=min((limit for limit in limits if limit), default=1 << 20),
            precision="the server's; its weights are not verified",
            report=EngineReport("served"),
            batch_tokens=self.engine.batch_tokens,
            is_reproducible=False,
            is_here=False,
            sampling=own_sampling(local_directory(entry)),
        )

    def _complete(self, prompts: Sequence[Sequence[int]], **more: Any) -> Mapping[str, Any]:
        """Ask for completions of some prompts; an answer by another server than the first is an error."""
        body = {"model": self._model.name, "prompt": [list(ids) for ids in prompts], "temperature": 0.0, **more}
        found: Mapping[str, Any] = self._server.post("/v1/completions", body)
        now = str(found.get("system_fingerprint") or "none")
        if self._seen is None:
            self._seen = now
        elif now != self._seen:
            raise JudgeError(
                f"the server at {self._server.address} is another one now: its fingerprint was {self._seen}, is {now}",
                hint="What was stored came from the first. Put it back and run the same command again, or score into "
                "another file.",
            )
        return found

    def _check_ability(self) -> None:
        """Check that the server gives log-probabilities of named tokens."""
        tokens = [1, 2, 3]
        try:
            answer = self._complete([[5, 6, 7]], **_naming(tokens))
            figures = _figures(answer["choices"][0])
        except (_Refused, KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise self._unable(first_line(error)) from error
        if not set(tokens) <= figures.keys():
            raise self._unable(f"asked for the tokens {tokens}, it answered with {sorted(figures)}")

    def _unable(self, why: str) -> JudgeError:
        return JudgeError(
            f"the server at {self._server.address} does not give log-probabilities of named tokens "
            f"(`logprob_token_ids`): {why}",
            hint=_WHAT_IT_NEEDS,
        )

    def check_tokens(self) -> None:
        """Compare the tokenizer with the server's, on texts that tell tokenizers apart.

        Raises
        ------
        TokenizerError
            If they differ.
        JudgeError
            If the server does not tokenize.
        """
        for text in TEXTS:
            try:
                body = {"model": self._model.name, "prompt": text, "add_special_tokens": False}
                theirs = list(self._server.post("/tokenize", body)["tokens"])
            except (_Refused, KeyError, TypeError) as error:
                raise self._unable(f"it does not tokenize: {first_line(error)}") from error
            ours = self.tokenizer.encode(text, add_special_tokens=False)
            if list(ours) != theirs:
                raise TokenizerError(
                    f"the tokenizer in {self.entry.path or self.entry.hub} is not that of the served model "
                    f"{self._model.name}: {text[:20]!r}... is {ours[:6]} here and {theirs[:6]} there",
                    hint="Name the directory of the served model's own tokenizer: `tokenizer=DIR`.",
                )

    def _ask(self, questions: Sequence[Question]) -> Answers:
        """Answer questions: those about the same tokens go in one request, several requests at once."""
        groups: list[list[int]] = []
        order = sorted(range(len(questions)), key=lambda number: questions[number].tokens)
        for _, same in itertools.groupby(order, key=lambda number: questions[number].tokens):
            members = list(same)
            groups += [members[at : at + PROMPTS_AT_ONCE] for at in range(0, len(members), PROMPTS_AT_ONCE)]
        found: dict[int, Answer] = {}
        for group, answers in zip(groups, self._together(partial(self._of, questions), groups), strict=True):
            found.update(zip(group, answers, strict=True))
        # A server that is asked about several prompts says of the last one only how much of it was in its cache.
        return Answers([found[number] for number in range(len(questions))], 0)

    def _together(self, work: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
        """Do some work for every item, several at once."""
        return in_threads(work, items, self._at_once)

    def _of(self, questions: Sequence[Question], numbers: Sequence[int]) -> list[Answer]:
        return self._group([questions[number] for number in numbers])

    def _group(self, questions: Sequence[Question]) -> list[Answer]:
        """Ask about the same tokens after some prompts; where the server refuses, one by one."""
        tokens = questions[0].tokens
        naming = _naming(tokens) if tokens else {"max_tokens": 1, "logprobs": questions[0].most} | _AS_IDS
        try:
            answer = self._complete([question.ids.tolist() for question in questions], **naming)
        except _Refused as error:
            if len(questions) == 1:
                return [f"the server refuses the prompt: {error}"]
            return [one for question in questions for one in self._group([question])]
        choices = _choices(answer)
        if len(choices) != len(questions):
            return [f"the server gave {len(choices)} answers to {len(questions)} prompts"] * len(questions)
        return [_read(choice) for choice in choices]

    def generation(self, *, is_chat: bool) -> str:
        """See `geval_local.engine.backend.Backend.generation`."""
        return "greedy, by the server"

    def _proceed(self, prompts: Sequence[NDArray[np.int32]], size: int) -> list[list[int]]:
        """Continue prompts by some tokens: several in one request, several requests at once."""
        groups = [prompts[at : at + PROMPTS_AT_ONCE] for at in range(0, len(prompts), PROMPTS_AT_ONCE)]
        write = partial(self._write, max_tokens=size)
        return [new for found in self._together(write, groups) for new in found]

    def _sample(self, draws: Sequence[Draw], sampling: Sampling) -> list[list[int]]:
        """Draw continuations, each in a request with its own seed."""
        drawing = {"temperature": sampling.temperature, "top_p": sampling.top_p}

        def write(draw: Draw) -> list[int]:
            return self._write([draw.ids], max_tokens=sampling.max_new_tokens, seed=draw.seed, **drawing)[0]

        return list(self._together(write, draws))

    def _write(self, prompts: Sequence[NDArray[np.int32]], **asked: Any) -> list[list[int]]:
        """Continue prompts in one request; give the new tokens of each."""
        try:
            answer = self._complete([ids.tolist() for ids in prompts], return_token_ids=True, **asked)
            found = [[int(token) for token in choice["token_ids"]] for choice in _choices(answer)]
            if len(found) != len(prompts):
                raise ValueError(f"{len(found)} answers to {len(prompts)} prompts")
        except (_Refused, KeyError, TypeError, ValueError) as error:
            raise JudgeError(
                f"the server at {self._server.address} does not write: {first_line(error)}", hint=_WHAT_IT_NEEDS
            ) from error
        return found

    def describe(self, *, measure: bool = False) -> Description:
        """See `geval_local.engine.backend.Backend.describe`."""
        return Description(
            place=f"{self._model.name}, served",
            parameters=None,
            memory_bytes=None,
            dtype=self.facts.setup["dtype"],
            attention=self.facts.setup["attention"],
            precision=Precision("weights not verified", is_measurable=False),
            is_on_cpu=False,
        )

    def check_files(self) -> None:
        """See `geval_local.engine.backend.Backend.check_files`: every answer has the server's fingerprint."""

    def close(self) -> None:
        """See `geval_local.engine.backend.Backend.close`: nothing is open between two requests."""


_AS_IDS = {"return_tokens_as_token_ids": True}


def _naming(tokens: Sequence[int]) -> dict[str, Any]:
    return {"max_tokens": 1, "logprobs": 1, "logprob_token_ids": list(tokens)} | _AS_IDS


def _choices(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the choices of an answer in the order of its prompts."""
    return sorted(answer.get("choices", ()), key=lambda one: int(one.get("index", 0)))


def _read(choice: Mapping[str, Any]) -> Answer:
    """Give the figures of one choice, or why there are none."""
    try:
        return _figures(choice)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"the server's answer cannot be read: {type(error).__name__}: {first_line(error)}"


def _figures(choice: Mapping[str, Any]) -> dict[int, float]:
    """Read the log-probabilities of the next token from one choice: ``token_id:33`` names a token."""
    (figures,) = choice["logprobs"]["top_logprobs"]
    return {int(name.removeprefix("token_id:")): float(value) for name, value in figures.items()}
