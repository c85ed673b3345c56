"""A server that answers as llama.cpp's llama-server does; its attributes plant faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from programs import Program, Served

BUILD = "b6000-abcdef"
#: What every request has to state: a server may have been started with another default.
STATED = ("samplers", "temperature", "mirostat", "grammar", "logit_bias", "n_cache_reuse", "ignore_eos")


class LlamaServed(Served):
    """A llama-server with one model.

    Slots keep the prompt before. Fewer than 64 tokens computed at once move logits by `cache_effect`, and with
    `moves_always` any number of them does.
    """

    def __init__(self, program: Program, tokenizer: Any, root: str) -> None:
        super().__init__(program, tokenizer, root)
        self.build, self.context, self.slots, self.is_sleeping = BUILD, 4096, 2, False
        self.adapters: list[dict[str, Any]] = []
        self.cache_effect, self.moves_always = 0.0, False
        self.knows_post = True
        #: Takes an answer to ``/completion`` and changes it.
        self.lie: Callable[[dict[str, Any]], Any] = lambda found: found
        #: Whether the token that is drawn is half of a character, by the seed: then nothing is listed.
        self.is_half: Callable[[int], bool] = lambda seed: False
        #: Moves every logit before the softmax, as a server that was started with a sampler of its own.
        self.sampler: Callable[[np.ndarray], np.ndarray] = lambda logits: logits
        self.kept: dict[int, list[int]] = {}

    def props(self) -> dict[str, Any]:
        return {
            "build_info": self.build,
            "model_path": self.root,
            "model_alias": self.names[0],
            "model_ftype": "all F32",
            "total_slots": self.slots,
            "default_generation_settings": {"n_ctx": self.context},
            "is_sleeping": self.is_sleeping,
        }

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.requests.append((path, body))
        if self.statuses:
            status = self.statuses.pop(0)
            return status, {"error": {"message": f"planted {status}"}}
        size = self.program.model.config.vocab_size
        path = path.partition("?")[0]
        if path == "/props":
            return 200, self.props()
        if path == "/v1/models":
            meta = {"n_vocab": size, "n_params": 1000, "size": 4000}
            return 200, {"data": [{"id": name, "meta": meta} for name in self.names]}
        if path == "/lora-adapters":
            return 200, self.adapters
        if path == "/tokenize":
            return 200, {"tokens": self.tokenizer.encode(body["content"], add_special_tokens=False)}
        if path == "/completion":
            return self._complete(body)
        return 404, {"error": {"message": "File Not Found"}}

    def _complete(self, body: Any) -> tuple[int, Any]:
        ids = body["prompt"]
        assert all(name in body for name in STATED), body
        if len(ids) >= self.context:
            return 400, {"error": {"message": f"request ({len(ids)} tokens) exceeds the available context size"}}
        if (why := self.program.refuse(ids)) is not None:
            return 400, {"error": {"message": why}}
        computed = self._computed(ids, body)
        found: dict[str, Any] = {
            "tokens_evaluated": len(ids),
            "truncated": False,
            "stop_type": "limit",
            "model": self.names[0],
            "timings/prompt_n": computed,
            "tokens": [],
        }
        if body.get("return_tokens"):
            found["tokens"] = self._write(ids, body)
            if len(found["tokens"]) < body["n_predict"]:
                found["stop_type"] = "eos"
        elif body["n_predict"] and body.get("n_probs") and not self.is_half(body["seed"]):
            found["completion_probabilities"] = [self._list(ids, body, computed)]
        return 200, self.lie(found)

    def _computed(self, ids: Sequence[int], body: Any) -> int:
        """Count the tokens that are not in the slot, of which the last one always goes through the model."""
        before = self.kept.get(body["id_slot"], []) if body["cache_prompt"] else []
        shared = next((at for at, pair in enumerate(zip(ids, before, strict=False)) if pair[0] != pair[1]), None)
        shared = min(len(ids), len(before)) if shared is None else shared
        self.kept[body["id_slot"]] = list(ids)
        return len(ids) - min(shared, len(ids) - 1)

    def _list(self, ids: Sequence[int], body: Any, computed: int) -> Any:
        logits = self.program.logprobs(ids)
        if 0 < computed % 512 < 64 or (self.moves_always and computed < len(ids)):
            logits = logits + self.cache_effect * np.sin(np.arange(len(logits)) + computed)
        logits = self.sampler(logits)
        if body["post_sampling_probs"] and self.knows_post:
            for token, bias in body["logit_bias"]:
                logits[token] += bias
        shares = np.exp(logits - logits.max())
        shares = (shares / shares.sum()).astype(np.float32)
        order = np.argsort(-shares, kind="stable")[: body["n_probs"]]
        if body["post_sampling_probs"] and self.knows_post:
            return {"top_probs": [{"id": int(one), "prob": float(shares[one])} for one in order]}
        return {"top_logprobs": [{"id": int(one), "logprob": float(np.log(shares[one]))} for one in order]}

    def _write(self, ids: Sequence[int], body: Any) -> list[int]:
        if "seed" in body:
            self.program.drawn.append((body["temperature"], body["top_p"], body["seed"]))
        return self.program.greedy(ids, body["n_predict"], (self.tokenizer.eos_token_id,))
