"""Other programs that serve language models, asked for label log-probabilities: vLLM, SGLang and llama.cpp.

Each shares prefixes in its own way and starts every run with an empty cache. One that is not installed, or cannot run
the model, is an arm that raises; the benchmark prints why.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from geval_local.engine.asked import MOST_TOKENS, Answers, AskedEngine, Question
from geval_local.tokens.requests import Request, common_prefix

if TYPE_CHECKING:
    from engine_arms import Bench

#: Share of a GPU that a peer may take for its weights and its cache, beside the model that is measured.
_SHARE = 0.45
_VLLM_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
#: Longest prompt that llama.cpp is given room for.
_CONTEXT = 8_192


def vllm(bench: Bench, requests: Sequence[Request]) -> np.ndarray:
    """Score with vLLM as its backend here does: every node of the label trie, prefix caching on, a float32 head."""
    return _by_vllm(bench, requests, "vLLM", str(bench.model.dtype).removeprefix("torch."))


def vllm_bfloat16(bench: Bench, requests: Sequence[Request]) -> np.ndarray:
    """Score with vLLM in bfloat16, which is what people run."""
    if bench.model.dtype == torch.bfloat16:
        raise RuntimeError("the model is in bfloat16 already: see vLLM")
    return _by_vllm(bench, requests, "vLLM bfloat16", "bfloat16")


def _by_vllm(bench: Bench, requests: Sequence[Request], name: str, dtype: str) -> np.ndarray:
    _need("vllm", "vllm")
    # In this process, so that its processor time is counted; on a CPU with little room for its cache.
    for variable, value in _VLLM_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    from vllm import LLM, SamplingParams

    def start() -> Any:
        return LLM(
            model=str(bench.files()),
            skip_tokenizer_init=True,
            enable_prefix_caching=True,
            dtype=dtype,
            # On a CPU its compiled kernels take minutes to make.
            enforce_eager=not torch.cuda.is_available(),
            gpu_memory_utilization=_SHARE,
            max_logprobs=MOST_TOKENS,
            hf_overrides={"head_dtype": "float32"},
        )

    peer = bench.peer(name, start)
    peer.reset_prefix_cache()

    def ask(questions: Sequence[Question]) -> Answers:
        asked = [
            SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, logprob_token_ids=list(one.tokens))
            for one in questions
        ]
        prompts = [{"prompt_token_ids": one.ids.tolist()} for one in questions]
        outputs = peer.generate(prompts, asked, use_tqdm=False)
        found = [{token: one.logprob for token, one in output.outputs[0].logprobs[0].items()} for output in outputs]
        return Answers(found, sum(len(output.prompt_token_ids) - (output.num_cached_tokens or 0) for output in outputs))

    engine = AskedEngine("vllm", ask, batch_tokens=1 << 30)
    edges = [np.empty(request.trie.edges) for request in requests]
    engine.fill(requests, edges, {})
    bench.computed[name] = engine.computed_tokens
    return np.stack([request.trie.label_logprobs(own) for request, own in zip(requests, edges, strict=True)])


def sglang(bench: Bench, requests: Sequence[Request]) -> np.ndarray:
    """Score with SGLang: its radix cache on, one token, log-probabilities of the labels' tokens."""
    _need("sglang", "sglang")
    import sglang as package

    def start() -> Any:
        return package.Engine(
            model_path=str(bench.files()),
            skip_tokenizer_init=True,
            dtype=str(bench.model.dtype).removeprefix("torch."),
            mem_fraction_static=_SHARE,
        )

    peer = bench.peer("SGLang", start)
    peer.flush_cache()
    answers = peer.generate(
        input_ids=[request.ids.tolist() for request in requests],
        sampling_params={"max_new_tokens": 1, "temperature": 0.0},
        return_logprob=True,
        token_ids_logprob=[list(_tokens(request)) for request in requests],
    )
    found = []
    for request, answer in zip(requests, answers, strict=True):
        read = {entry[1]: entry[0] for entry in answer["meta_info"]["output_token_ids_logprobs"][0]}
        found.append(_labels(request, [read[token] for token in _tokens(request)]))
    return np.stack(found)


def llama_cpp(bench: Bench, requests: Sequence[Request]) -> np.ndarray:
    """Score with llama.cpp, a prompt at a time after what it shares with the one before, in the order that helps most.

    Its own cache in memory holds one prompt; sorted prompts make the most of it.
    """
    if bench.gguf is None:
        raise RuntimeError("llama.cpp reads GGUF files: --models smollm2")
    _need("llama_cpp", "llama-cpp-python")
    import llama_cpp as package

    def start() -> Any:
        threads = torch.get_num_threads()
        return package.Llama(
            str(bench.gguf),
            n_ctx=min(_CONTEXT, bench.model.config.max_position_embeddings),
            n_batch=2048,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=0 if bench.model.device.type == "cpu" else -1,
            verbose=False,
        )

    peer = bench.peer("llama.cpp", start)
    peer.reset()
    held = np.zeros(0, dtype=np.int32)
    found: dict[int, np.ndarray] = {}
    computed = 0
    for index in sorted(range(len(requests)), key=lambda number: requests[number].ids.astype(">u4").tobytes()):
        ids = requests[index].ids
        shared = min(common_prefix(held, ids), len(ids) - 1)
        # What lies after this place in its cache is dropped by `eval`.
        peer.n_tokens = shared
        peer.eval(ids[shared:].tolist())
        held, computed = ids, computed + len(ids) - shared
        logits = np.ctypeslib.as_array(package.llama_get_logits_ith(peer.ctx, -1), shape=(peer.n_vocab(),))
        wide = logits.astype(np.float64)
        wide -= np.logaddexp.reduce(wide)
        found[index] = _labels(requests[index], wide[list(_tokens(requests[index]))].tolist())
    bench.computed["llama.cpp"] = computed
    return np.stack([found[index] for index in range(len(requests))])


def _need(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ImportError(f"{package} is not installed")


def _tokens(request: Request) -> Sequence[int]:
    return request.trie.inner_nodes[0].tokens


def _labels(request: Request, logprobs: Sequence[float]) -> np.ndarray:
    return request.trie.label_logprobs(np.array(logprobs, dtype=np.float64))
