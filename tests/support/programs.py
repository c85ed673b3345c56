"""Programs that serve a tiny model, as vLLM would: a module ``vllm`` without vLLM, and a server on this machine."""

from __future__ import annotations

import json
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from geval_local.engine.asked import MOST_TOKENS, Answers, Question
from geval_local.score import OTHER_TOKENS

#: What a model said to a prompt: a judge asks the same at every start.
_KNOWN: WeakKeyDictionary[Any, dict[tuple[int, ...], np.ndarray]] = WeakKeyDictionary()


class Program:
    """Computes next tokens by one plain pass of a model for each prompt."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.asked: list[Question] = []
        self.calls: list[int] = []
        #: Temperature, top-p and seed of every text that was to be drawn; the likeliest tokens are written for it.
        self.drawn: list[tuple[float, float, int]] = []
        #: Why a prompt has no answer, by its tokens.
        self.refuse: Callable[[Sequence[int]], str | None] = lambda ids: None
        #: Parameters of what a module's engine was asked for, in order.
        self.queued: list[Any] = []
        #: Tokens of every prompt that are said to have been there.
        self.cached = 0
        self.known = _KNOWN.setdefault(model, {})

    def logprobs(self, ids: Sequence[int]) -> np.ndarray:
        key = tuple(map(int, ids))
        if key not in self.known:
            with torch.inference_mode():
                logits = self.model(torch.tensor([key]), use_cache=False).logits[0, -1]
            self.known[key] = torch.log_softmax(logits.double(), dim=-1).numpy()
        return self.known[key].copy()

    def figures(self, ids: Sequence[int], tokens: Sequence[int], most: int) -> dict[int, float]:
        """Give the tokens asked for, or the likeliest, and the one that would be sampled."""
        assert len(tokens) <= MOST_TOKENS
        found = self.logprobs(ids)
        named = list(tokens) or np.argsort(-found)[:most].tolist()
        return {int(token): float(found[token]) for token in dict.fromkeys([int(found.argmax()), *named])}

    def ask(self, questions: Sequence[Question]) -> Answers:
        """Answer as `geval_local.engine.asked.AskedEngine` wants it."""
        self.asked += questions
        self.calls.append(len(questions))
        return Answers(
            [self.refuse(one.ids.tolist()) or self.figures(one.ids, one.tokens, OTHER_TOKENS) for one in questions],
            sum(len(one.ids) for one in questions),
        )

    def greedy(self, ids: Sequence[int], count: int, ends: Sequence[int] = ()) -> list[int]:
        written: list[int] = []
        while len(written) < count and not (written and written[-1] in ends):
            written.append(int(self.logprobs([*ids, *written]).argmax()))
        return written


class FakeAttention:
    @staticmethod
    def get_name() -> str:
        return "FAKE_ATTN"


@dataclass
class SamplingParams:
    max_tokens: int
    temperature: float = 1.0
    detokenize: bool = True
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    top_k: int = 0
    min_p: float = 0.0
    stop: list[str] = field(default_factory=list)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True


class VLLMClientError(Exception):
    """What vLLM's errors about a request are."""


def fake_vllm(program: Program, made: list[dict[str, Any]]) -> types.ModuleType:
    """Make a module that looks like vLLM; `made` gets the arguments of every `LLM`."""

    class LLM:
        def __init__(self, **arguments: Any) -> None:
            made.append(arguments)
            config = program.model.config
            self.resets = 0
            self.queue: list[Any] = []
            self.llm_engine = SimpleNamespace(
                vllm_config=SimpleNamespace(
                    model_config=SimpleNamespace(
                        dtype=torch.float32,
                        head_dtype=torch.float32,
                        quantization=None,
                        max_model_len=arguments.get("max_model_len", config.max_position_embeddings),
                    ),
                    cache_config=SimpleNamespace(block_size=16, num_gpu_blocks=64),
                    parallel_config=SimpleNamespace(tensor_parallel_size=arguments["tensor_parallel_size"]),
                    attention_config=SimpleNamespace(backend=None),
                    compilation_config=SimpleNamespace(
                        static_forward_context={"layer": SimpleNamespace(get_attn_backend=lambda: FakeAttention)}
                    ),
                ),
                engine_core=SimpleNamespace(shutdown=lambda: made.append({"closed": True})),
                step=lambda: self.step(),
                abort_request=lambda names: self.queue.clear(),
            )
            self.most = self.llm_engine.vllm_config.model_config.max_model_len

        def reset_prefix_cache(self) -> None:
            self.resets += 1

        def enqueue(self, prompt: Any, parameters: Any, **_: Any) -> list[str]:
            ids = prompt["prompt_token_ids"]
            if len(ids) >= self.most:
                raise VLLMClientError(f"The decoder prompt (length {len(ids)}) plus 1 is longer than {self.most}")
            name = str(len(program.queued))
            program.queued.append(parameters)
            self.queue.append((name, ids, parameters))
            return [f"{name}-inner"]

        def step(self) -> list[Any]:
            """Compute the first prompt that waits."""
            name, ids, parameters = self.queue.pop(0)
            return [self._one(name, ids, parameters)]

        def _one(self, name: str, ids: list[int], asked: SamplingParams) -> Any:
            if asked.seed is not None:
                program.drawn.append((asked.temperature, asked.top_p, asked.seed))
            new = program.greedy(ids, asked.max_tokens, asked.stop_token_ids)
            figures = program.figures(ids, asked.logprob_token_ids or (), asked.logprobs or 1)
            named = {token: SimpleNamespace(logprob=value) for token, value in figures.items()}
            return SimpleNamespace(
                request_id=name,
                finished=True,
                prompt_token_ids=ids,
                num_cached_tokens=min(program.cached, len(ids) - 1),
                outputs=[SimpleNamespace(token_ids=new, logprobs=[named], finish_reason="length")],
            )

    module: Any = types.ModuleType("vllm")
    module.__spec__ = SimpleNamespace(name="vllm")
    module.LLM, module.SamplingParams = LLM, SamplingParams
    module.envs = SimpleNamespace(VLLM_BATCH_INVARIANT=False)
    module.distributed = types.ModuleType("vllm.distributed")
    module.distributed.cleanup_dist_env_and_memory = lambda: None
    return module


def install_vllm(monkeypatch: Any, program: Program, made: list[dict[str, Any]]) -> types.ModuleType:
    """Let the module be found as if vLLM were installed."""
    module: Any = fake_vllm(program, made)
    for name, one in {"vllm": module, "vllm.distributed": module.distributed}.items():
        monkeypatch.setitem(sys.modules, name, one)
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"vllm": ["numpy"]})
    return module


class Served:
    """A server that answers as vLLM's does; its attributes plant faults."""

    def __init__(self, program: Program, tokenizer: Any, root: str) -> None:
        self.program, self.tokenizer, self.root = program, tokenizer, root
        self.names = ["tiny"]
        self.fingerprint = "vllm-0.32.0-tp1-abc"
        #: Statuses to answer with first, before anything else.
        self.statuses: list[int] = []
        self.knows_ids = True
        #: Whether figures are taken after temperature and top-k, as by `--logprobs-mode processed_logprobs`.
        self.processed = False
        #: Takes the ids of a prompt and its log-probabilities, and returns what is sent in their place.
        self.garble: Callable[[list[int], Any], Any] = lambda ids, found: found
        self.requests: list[tuple[str, Any]] = []
        self.keys: list[str | None] = []

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """Answer one request."""
        self.requests.append((path, body))
        if self.statuses:
            status = self.statuses.pop(0)
            return status, {"error": {"message": f"planted {status}"}}
        if path == "/v1/models":
            listed = [{"id": name, "root": self.root, "max_model_len": 4096} for name in self.names]
            return 200, {"data": listed}
        if path == "/version":
            return 200, {"version": "0.32.0"}
        if path == "/tokenize":
            return 200, {"tokens": self.tokenizer.encode(body["prompt"], add_special_tokens=False)}
        if path == "/v1/completions":
            if any((why := self.program.refuse(ids)) is not None for ids in body["prompt"]):
                return 400, {"error": {"message": why}}
            choices = [self._choice(index, ids, body) for index, ids in enumerate(body["prompt"])]
            usage = {"prompt_tokens": sum(map(len, body["prompt"]))}
            return 200, {"choices": choices[::-1], "system_fingerprint": self.fingerprint, "usage": usage}
        return 404, {"error": {"message": "Not Found"}}

    def _choice(self, index: int, ids: list[int], body: Any) -> Any:
        named = body.get("logprob_token_ids", ()) if self.knows_ids else ()
        figures = self.program.figures(ids, named, body.get("logprobs", 1))
        if self.processed and body["top_k"]:
            least = sorted(self.program.logprobs(ids))[-body["top_k"]]
            figures = {token: value if value >= least else -9999.0 for token, value in figures.items()}
        top = {f"token_id:{token}": value for token, value in figures.items()}
        if "seed" in body:
            self.program.drawn.append((body["temperature"], body["top_p"], body["seed"]))
        new = self.program.greedy(ids, body["max_tokens"])
        is_stopped = any(one in self.tokenizer.decode(new) for one in body.get("stop", ()))
        return {
            "index": index,
            "text": "",
            "logprobs": self.garble(ids, {"top_logprobs": [top]}),
            "token_ids": new,
            "finish_reason": "stop" if is_stopped else "length",
        }

    @contextmanager
    def running(self) -> Iterator[str]:
        """Run on a free port; give the address."""
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._reply(None)

            def do_POST(self) -> None:
                self._reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _reply(self, body: Any) -> None:
                served.keys.append(self.headers.get("Authorization"))
                status, found = served.answer(self.path, body)
                text = getattr(found, "text", None)
                text = json.dumps(found) if text is None else text
                text = text if isinstance(text, bytes) else text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # How often it looks whether it is to end: each test waits for that.
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            server.server_close()
