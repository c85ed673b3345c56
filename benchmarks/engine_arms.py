"""The ways to compute label probabilities that the engine benchmark compares.

Every arm is a function of a model and requests with single-token labels; it returns the labels' log-probabilities, or
None where it has no way of giving them.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import engine_peers
import numpy as np
import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from geval_local.engine.backend import EngineReport
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import choose_engine
from geval_local.engine.interface import Engine
from geval_local.models.head import Head
from geval_local.tokens.requests import Request

LogProbs = np.ndarray
#: Tokens per page of the continuous batching's cache.
_PAGE = 256
Arm = Callable[["Bench", Sequence[Request]], "LogProbs | None"]


@dataclass
class Bench:
    """A model with what the arms need beside it.

    Attributes
    ----------
    rows : int
        Rows of a batch, for engines that take rows.
    gguf : Path, optional
        The file that the model is from, for a program that reads no other.
    trie : Engine
        This project's, as it chooses it for the model: the shared cache for a hybrid one.
    padded, alone : Engine
        This project's right-padded batches, and one prompt at a time.
    computed : dict
        Tokens that went through the model in the latest call of an arm, where it says so.
    """

    model: PreTrainedModel
    rows: int
    gguf: Path | None = None
    trie: Engine = field(init=False)
    engine_report: EngineReport = field(init=False)
    padded: Engine = field(init=False)
    alone: PaddedEngine = field(init=False)
    computed: dict[str, int] = field(default_factory=dict)
    _harness: Any = None
    _peers: dict[str, Any] = field(default_factory=dict)
    _files: tempfile.TemporaryDirectory[str] | None = None

    def __post_init__(self) -> None:
        head = Head(self.model)
        self.alone = PaddedEngine(self.model, head, batch_tokens=1)
        # As a judge's engine is chosen: with the kernels and the budget that are found to serve on this device.
        self.padded, _ = choose_engine(self.model, head, "padded")
        self.trie, self.engine_report = choose_engine(self.model, head)

    def peer(self, name: str, start: Callable[[], Any]) -> Any:
        """Give another program that serves the model, started when it is first asked for."""
        if name not in self._peers:
            self._peers[name] = start()
        return self._peers[name]

    def files(self) -> Path:
        """Write the model's files where another program can read them."""
        if self._files is None:
            self._files = tempfile.TemporaryDirectory(prefix="geval-local-bench-")
            self._own().save_pretrained(self._files.name)
        return Path(self._files.name)

    def _own(self) -> Any:
        """Give the model with weights of its own; those of a GGUF file stay as stored, and cannot be saved."""
        if self.gguf is None:
            return self.model
        from transformers import AutoModelForCausalLM, GgufConfig

        return AutoModelForCausalLM.from_pretrained(
            str(self.gguf.parent),
            gguf_file=self.gguf.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=self.model.dtype,
        )

    def close(self) -> None:
        """End the other programs, and remove the model's files."""
        for peer in self._peers.values():
            for name in ("shutdown", "close"):
                if hasattr(peer, name):
                    getattr(peer, name)()
                    break
        self._peers.clear()
        if self._files is not None:
            self._files.cleanup()

    @property
    def harness(self) -> Any:
        """An `HFLM` around the model; ImportError where lm-evaluation-harness is not installed."""
        if self._harness is None:
            from lm_eval.models.huggingface import HFLM

            logging.getLogger("lm_eval").setLevel(logging.ERROR)
            self._harness = HFLM(
                pretrained=self.model,
                tokenizer=_tokenizer(self.model.config.vocab_size),
                batch_size=self.rows,
                max_length=self.model.config.max_position_embeddings,
            )
        return self._harness


def _tokenizer(vocabulary: int) -> Any:
    """Build a tokenizer of as many words as the model has tokens: the harness wants one, though ids are given."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(vocabulary)}
    backend = Tokenizer(models.WordLevel(vocab=words, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="w1", pad_token="w1", unk_token="w0")


def run_engine(engine: Engine, requests: Sequence[Request]) -> LogProbs:
    found: dict[int, LogProbs] = {}
    for pack, readouts in engine.execute(requests, engine.plan(requests)):
        for index, readout in zip(pack.requests, readouts, strict=True):
            if readout.label_logprobs is None:
                raise RuntimeError(readout.error)
            found[index] = readout.label_logprobs
    return np.stack([found[index] for index in range(len(requests))])


def trie(bench: Bench, requests: Sequence[Request]) -> LogProbs:
    engine: Any = bench.trie
    before = getattr(engine, "computed_tokens", None)
    result = run_engine(engine, requests)
    planned = sum(pack.tokens for pack in engine.plan(requests))
    # A prefix that is held from the run before is not computed again, and is counted all the same.
    bench.computed["trie"] = planned if before is None else max(planned, engine.computed_tokens - before)
    return result


def padded(bench: Bench, requests: Sequence[Request]) -> LogProbs:
    bench.computed["padded"] = sum(pack.tokens for pack in bench.padded.plan(requests))
    return run_engine(bench.padded, requests)


def one_at_a_time(bench: Bench, requests: Sequence[Request]) -> LogProbs:
    bench.computed["one at a time"] = sum(len(request.ids) for request in requests)
    return run_engine(bench.alone, requests)


@torch.inference_mode()
def left_padded(bench: Bench, requests: Sequence[Request], kept: int = 0) -> LogProbs:
    """Score as most scripts do: left-padded batches, longest first, full logits, softmax of the last position.

    With `kept` the logits are computed at so many last positions instead of at all of them.
    """
    order = sorted(range(len(requests)), key=lambda index: -len(requests[index].ids))
    result = np.empty((len(requests), requests[0].trie.labels))
    device = bench.model.device
    computed = 0
    for start in range(0, len(order), bench.rows):
        members = order[start : start + bench.rows]
        width = len(requests[members[0]].ids)
        tokens = torch.zeros(len(members), width, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, index in enumerate(members):
            ids = torch.from_numpy(requests[index].ids.astype(np.int64))
            tokens[row, -len(ids) :] = ids
            mask[row, -len(ids) :] = 1
        tokens, mask = tokens.to(device), mask.to(device)
        positions = (mask.cumsum(-1) - 1).clamp_min(0)
        logits = bench.model(
            input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=kept
        ).logits
        logprobs = logits[:, -1].float().log_softmax(-1).cpu().numpy()
        computed += tokens.numel()
        for row, index in enumerate(members):
            edges = logprobs[row, list(requests[index].trie.inner_nodes[0].tokens)]
            result[index] = requests[index].trie.label_logprobs(edges)
    bench.computed["last logits" if kept else "left-padded"] = computed
    return result


def last_logits(bench: Bench, requests: Sequence[Request]) -> LogProbs:
    """Score in left-padded batches that compute no other logits than the last position's."""
    return left_padded(bench, requests, kept=1)


def continuous_batching(bench: Bench, requests: Sequence[Request]) -> None:
    """Generate one token per prompt with transformers' continuous batching; it gives no label probabilities."""
    config = GenerationConfig(max_new_tokens=1, do_sample=False, eos_token_id=-1, pad_token_id=0)
    # On a CPU it would size its cache by all free memory and spend the run clearing it.
    pages = sum(-(-len(request.ids) // _PAGE) + 1 for request in requests)
    sizes = (
        {"page_size": _PAGE, "num_blocks": min(pages, 256), "max_batch_tokens": 2048}
        if bench.model.device.type == "cpu"
        else {}
    )
    # It has no option to leave the model's attention unchanged.
    attention = bench.model.config._attn_implementation
    try:
        outputs = bench.model.generate_batch(
            [request.ids.tolist() for request in requests],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(**sizes),
        )
    finally:
        bench.model.set_attn_implementation(attention)
    answered = sum(bool(output.generated_tokens) for output in outputs.values())
    if answered != len(requests):
        raise RuntimeError(f"{answered} of {len(requests)} prompts were answered")
    bench.computed["continuous batching"] = sum(len(request.ids) for request in requests)


def lm_eval(bench: Bench, requests: Sequence[Request]) -> LogProbs:
    """Score with lm-evaluation-harness: one request per label, which it groups by context itself."""
    asked = [
        (("", ""), request.ids.tolist(), [token])
        for request in requests
        for token in request.trie.inner_nodes[0].tokens
    ]
    answers = bench.harness._loglikelihood_tokens(asked, disable_tqdm=True)
    bench.computed["lm-eval"] = sum(len(request.ids) for request in requests)
    edges = np.array([logprob for logprob, _ in answers]).reshape(len(requests), -1)
    return np.stack([request.trie.label_logprobs(row) for request, row in zip(requests, edges, strict=True)])


#: Name in tables and results -> arm. Ratios are against the first.
ARMS: dict[str, Arm] = {
    "trie": trie,
    "padded": padded,
    "one at a time": one_at_a_time,
    "left-padded": left_padded,
    "last logits": last_logits,
    "continuous batching": continuous_batching,
    "lm-eval": lm_eval,
    "vLLM": engine_peers.vllm,
    "vLLM bfloat16": engine_peers.vllm_bfloat16,
    "SGLang": engine_peers.sglang,
    "llama.cpp": engine_peers.llama_cpp,
}
