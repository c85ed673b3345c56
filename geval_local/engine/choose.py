"""Choice of a model's engine: prefix sharing, else a shared prefix cache, else right-padded batches.

There is no list of architectures. First the model's own declarations are checked; then probe prompts run in
small packs and one by one. For prefix sharing three things must hold: every layer called the attention function, every
layer requested the sliding window of its configuration, and the label log-probabilities agree. For the
shared cache only the last can be checked, and the cache must have been used; for padded batches only the last. If even
padding changes a figure, every position gets a pass of its own, provided that no token sees later ones.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from geval_local.engine.backend import EngineReport
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.interface import Engine
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.engine.prefix_sharing.flex import FlexKernel, find_kernel, why_no_kernel
from geval_local.engine.probe import (
    HALF,
    SHORT_PROBE,
    TOLERANCE,
    PlainPasses,
    distance,
    effect_of_later_tokens,
    label_logprobs,
    probe_length,
    probe_requests,
    synthetic_requests,
    widened,
)
from geval_local.engine.shared_cache import CachePack, SharedCacheEngine
from geval_local.errors import JudgeError, UnsupportedModelError
from geval_local.models.head import Head, gpus_of, input_device, trunk_of
from geval_local.models.memory import free_memory, is_out_of_memory
from geval_local.models.precision import dtype_name
from geval_local.models.stored import are_few
from geval_local.models.verdicts import Verdict, version_of
from geval_local.options import EngineName
from geval_local.tokens.requests import Request

logger = logging.getLogger("geval_local")

#: Names of such a length in configurations.
_SPAN = re.compile(r"(window|chunk|block)(_size|_len|_length)?$|^local_attention$|^index_topk$")
#: The chunk of gated delta rules, which only transformers' code contains.
_DELTA_CHUNK = 64


def choose_engine(
    model: PreTrainedModel,
    head: Head,
    choice: EngineName = "auto",
    *,
    batch_tokens: int | None = None,
    verdict: Verdict | None = None,
) -> tuple[Engine, EngineReport]:
    """Choose the engine for a model.

    Parameters
    ----------
    model, head : PreTrainedModel, Head
        The model and its read-out.
    choice : EngineName
        The engine, ``auto`` for the one that shares most.
    batch_tokens : int, optional
        The token budget; by free memory if absent.
    verdict : Verdict, optional
        Keeps the result of the probe for the next start.
    """
    plain, verdict = PlainPasses(model, head), verdict or Verdict()
    padded = PaddedEngine(model, head, batch_tokens=batch_tokens or (32_768 if model.device.type == "cuda" else 4_096))
    if _mixes_rows(model):
        report = EngineReport("padded", "8-bit weights pick outliers over all rows of a pass, so prompts go one by one")
        if choice not in ("auto", "padded"):
            raise _unsupported(model, report)
        logger.warning("%s: %s", type(model).__name__, report.text)
        return PaddedEngine(model, head, batch_tokens=1, plain=True), report
    if choice == "padded":
        return _choose_padded(plain, padded, None)
    reasons: list[str] = []
    if choice != "cache":
        report, kernel = _find_sharing(plain, verdict, is_asked_for=choice == "trie")
        if report.reason is None:
            sharing = PrefixSharingEngine(model, head, batch_tokens=batch_tokens or LEAST, padded=padded, kernel=kernel)
            if batch_tokens is None:
                sharing.batch_tokens = sharing.limit = find_budget(model, sharing)
            return sharing, report
        if choice != "auto":
            raise _unsupported(model, report)
        reasons.append(report.reason)
    span = longest_span(model.config.get_text_config())
    report = _known(verdict, "cache", model, span, partial(_probe_cache, plain))
    if report.reason is not None:
        if choice == "cache":
            raise _unsupported(model, report)
        reasons.append(f"a shared cache does not help: {report.reason}")
    reason = "; ".join(reasons) or None
    if report.engine == "cache":
        engine: Engine = SharedCacheEngine(model, head, batch_tokens=padded.batch_tokens, padded=padded)
        report = replace(report, reason=reason)
    else:
        engine, report = _choose_padded(plain, padded, reason)
    if (note := missing_packages(model)) is not None:
        report = replace(report, note="; ".join(filter(None, (report.note, note))))
        logger.warning("%s: %s", type(model).__name__, note)
    logger.info("%s: %s", type(model).__name__, report.text)
    return engine, report


#: Transformers' mark on a function that a package's kernel replaces, with the package.
_REPLACED = re.compile(r'@use_kernel_func_from_hub_with_fallback\(\s*"\w+",\s*"(\w+)"')
_INSTALLED_AS = {"fla": "flash-linear-attention"}


def missing_packages(model: PreTrainedModel) -> str | None:
    """Describe which packages a model with recurrent layers lacks on a GPU, and the cost; None if none is missing."""
    if input_device(model).type != "cuda":
        return None
    try:
        source = inspect.getsource(sys.modules[type(trunk_of(model)).__module__])
    except (OSError, TypeError, KeyError):
        return None
    packages = {_INSTALLED_AS.get(name, name.replace("_", "-")) for name in _REPLACED.findall(source)}
    missing = sorted((name for name in packages if version_of(name) is None), reverse=True)
    if not missing:
        return None
    return (
        "its recurrent layers are computed in hundreds of small operations each, which keep a GPU waiting: "
        f"pip install {' '.join(missing)}"
    )


def _choose_padded(plain: PlainPasses, padded: PaddedEngine, reason: str | None) -> tuple[Engine, EngineReport]:
    """Choose padded batches if a probe finds them exact, else one prompt at a time; refuse a model that is not causal.

    `reason` is why no better engine is used.
    """
    model = plain.model
    span = longest_span(model.config.get_text_config())
    report = _probe(model, partial(_compare_padded, plain), span)
    if report.reason is None:
        return padded, replace(report, reason=reason)
    reasons = [*filter(None, [reason]), f"one prompt at a time, because batches are not exact: {report.reason}"]
    report = _probe(model, partial(_compare_one_by_one, plain), span)
    if report.reason is not None:
        raise UnsupportedModelError(
            f"{type(model).__name__} has no next-token distribution: {report.reason}",
            hint="A judge is a causal (decoder-only) language model: Llama, Qwen, Mistral, Gemma, Phi, GPT-2, ...",
        )
    return PaddedEngine(model, plain.head, batch_tokens=1, plain=True), replace(report, reason="; ".join(reasons))


def _mixes_rows(model: PreTrainedModel) -> bool:
    """Whether a prompt's results depend on the other prompts of a pass, as with LLM.int8."""
    quantization = getattr(model.config, "quantization_config", None)
    settings = quantization if isinstance(quantization, dict) else vars(quantization or object)
    in_8bit = bool(
        getattr(model, "is_loaded_in_8bit", False) or settings.get("_load_in_8bit", settings.get("load_in_8bit"))
    )
    return in_8bit and float(settings.get("llm_int8_threshold", 6.0)) > 0


def _unsupported(model: PreTrainedModel, report: EngineReport) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(model).__name__} cannot share prefixes exactly: {report.reason}",
        hint="Leave the engine out, or take `padded`.",
    )


def stated_refusal(model: PreTrainedModel) -> str | None:
    """Return the reason why prefix sharing is ruled out by the model's own declarations; None if it is not."""
    config: Any = model.config.get_text_config()
    if not getattr(model, "_supports_attention_backend", False):
        return "its layers take no attention function from outside"
    strange = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    return f"it has layers of the kinds {sorted(strange)}" if strange else None


def expected_spans(config: Any) -> list[int | None]:
    """Return the sliding window of every layer in the configuration."""
    layers = int(config.num_hidden_layers)
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def longest_span(config: Any) -> int | None:
    """Return the largest length at which layers change how they compute, by the configuration; None if there is none.

    Such as a sliding window, a chunk of recurrent layers or of attention, or the number of keys that sparse attention
    keeps.
    """
    # Errors show only beyond these lengths. `to_dict` leaves out properties, which only repeat stored values.
    found = {name: value for name, value in config.to_dict().items() if _SPAN.search(name)}
    spans = [value for value in found.values() if isinstance(value, int) and not isinstance(value, bool) and value > 1]
    spans.append(found.get("index_block_size", 0) * getattr(config, "index_topk_blocks", 1))
    if "linear_attention" in (getattr(config, "layer_types", None) or ()):
        spans.append(_DELTA_CHUNK)
    return max(spans) or None


def _known(
    verdict: Verdict, name: str, model: PreTrainedModel, span: int | None, probe: Callable[[], EngineReport]
) -> EngineReport:
    """Probe, unless an earlier start did.

    A result is kept only if it is complete and without problems: memory or a missing package may have limited others.
    """
    if (kept := verdict.read(name, EngineReport)) is not None:
        return kept
    report = probe()
    is_whole = report.reason is None and not report.is_cut_short and report.probe_tokens == probe_length(model, span)
    if is_whole:
        verdict.keep(name, report)
    return report


def _find_sharing(
    plain: PlainPasses, verdict: Verdict, *, is_asked_for: bool
) -> tuple[EngineReport, FlexKernel | None]:
    """Find out whether prefixes can be shared, with the GPU's kernel unless it serves no layer."""
    model = plain.model
    device = input_device(model)
    # Without a kernel every stretch of keys is a separate launch, and the GPU waits.
    refusal = stated_refusal(model) or (None if is_asked_for else why_no_kernel(device))
    if refusal is not None:
        return EngineReport("padded", refusal), None
    kernel = find_kernel(device)
    expected = expected_spans(model.config.get_text_config())
    span = min((one for one in expected if one is not None), default=None)
    probe = partial(probe_sharing, plain, expected, span, kernel)
    report = _known(verdict, f"sharing, kernel {kernel is not None}", model, span, probe)
    if kernel is not None:
        kernel.refused.update(report.refused)
    return report, kernel if report.has_kernel else None


def probe_sharing(
    plain: PlainPasses, expected: list[int | None], span: int | None, kernel: FlexKernel | None
) -> EngineReport:
    """Probe prefix sharing, with the GPU's kernel for the layers that it serves; the report names the other layers."""
    model = plain.model
    report = _probe(model, partial(_compare_sharing, plain, expected, kernel), span)
    missing = why_no_kernel(input_device(model))
    notes = [report.note] if report.note is not None else []
    is_cut_short, has_kernel = report.is_cut_short or missing is not None, kernel is not None
    if kernel is not None:
        used = [kind for kind in kernel.seen if kind.dtype == model.dtype]
        refused = {kind: kernel.refused[kind.key] for kind in used if kind.key in kernel.refused}
        if refused and len(refused) == len(used):
            missing, has_kernel = next(iter(refused.values())), False
        else:
            notes += [f"{kind.text} in pieces: {reason}" for kind, reason in refused.items()]
            if any(kind.key in kernel.refused for kind in kernel.seen if kind.dtype != model.dtype):
                notes.append(f"its kernel was probed in {dtype_name(model.dtype)} only")
    if missing is not None and report.reason is None:
        notes.append(f"attention in pieces, many times slower than a kernel: {missing}")
        logger.warning("%s: %s", type(model).__name__, notes[-1])
    return replace(
        report,
        note="; ".join(notes) or None,
        is_cut_short=is_cut_short,
        has_kernel=has_kernel,
        refused={} if kernel is None else dict(kernel.refused),
    )


def _compare_sharing(
    plain: PlainPasses,
    expected: list[int | None],
    kernel: FlexKernel | None,
    requests: Sequence[Request],
) -> EngineReport:
    """Compare prefix sharing, cut into packs of which some continue others, with prompts in rows of their own.

    A row and a pack cannot share an error: a row contains only its prompt, with the model's own mask. If they differ,
    compare with every prompt alone. If sharing is inexact, compute the layers of one kind in pieces, then of the next
    kind, then all: the kernel keeps the kinds that it computes exactly. A failure in one dtype does not exclude
    another.
    """
    model, budget = plain.model, len(requests[0].ids)

    def compare() -> EngineReport:
        alone = PaddedEngine(model, plain.head, batch_tokens=1)
        engine = PrefixSharingEngine(model, plain.head, batch_tokens=budget, padded=alone, kernel=kernel)
        found = label_logprobs(engine, requests)
        report = _agreement(engine.name, model, found, plain.by_row(requests))
        if report.reason is not None:
            report = _agreement(engine.name, model, found, plain.one_by_one(requests))
        if len(engine.spans) != len(expected):
            reason = f"{len(engine.spans)} of its {len(expected)} layers call the attention function"
            return replace(report, reason=reason)
        if list(engine.spans) != expected:
            return replace(report, reason="its layers do not ask for the sliding windows of its configuration")
        return report

    report = compare()
    if report.reason is None or kernel is None:
        return report
    served = [kind.key for kind in kernel.seen if kind.dtype == model.dtype and kind.key not in kernel.refused]
    for keys in [*([key] for key in served if len(served) > 1), served]:
        kernel.refused.update(dict.fromkeys(keys, report.reason))
        again = compare()
        if again.reason is None:
            return again
        for key in keys:
            del kernel.refused[key]
    return report


def _agreement(
    engine: str, model: PreTrainedModel, found: Sequence[NDArray[np.float64]], expected: Sequence[NDArray[np.float64]]
) -> EngineReport:
    """Report how far an engine's label log-probabilities are from those of plain passes, and whether that is exact."""
    difference, tolerance = distance(found, expected, model.dtype), TOLERANCE[model.dtype]
    wrong = f"label log-probabilities differ by {difference:.2g} nats from one at a time"
    return EngineReport(engine, None if difference <= tolerance else wrong, difference, tolerance)


def _probe_cache(plain: PlainPasses) -> EngineReport:
    """Probe the shared prefix cache."""
    config: Any = plain.model.config.get_text_config()
    report = _probe(plain.model, partial(compare_cache, plain), longest_span(config))
    # A cache may drop tokens beyond a window that the layers do not have, or that is of another kind.
    windowed = "chunked_attention" in (getattr(config, "layer_types", None) or ()) or getattr(
        config, "sliding_window", None
    )
    if windowed and report.reason is None and report.window is not None:
        return replace(report, engine="padded", reason="a probe beyond its window would cost too much")
    return report


def compare_cache(plain: PlainPasses, requests: Sequence[Request]) -> EngineReport:
    """Compare a shared prefix cache, in small batches, with one prompt at a time."""
    alone = PaddedEngine(plain.model, plain.head, batch_tokens=1)
    budget = max(1, len(requests[0].ids) // 3)
    engine = SharedCacheEngine(plain.model, plain.head, batch_tokens=budget, padded=alone)
    if not any(isinstance(pack, CachePack) and pack.cuts for pack in engine.plan(requests)):
        raise UnsupportedModelError("its prompts are too short to share a prefix")
    found = label_logprobs(engine, requests)
    return _agreement("cache", plain.model, found, plain.one_by_one(requests))


def _compare_padded(plain: PlainPasses, requests: Sequence[Request]) -> EngineReport:
    """Compare one batch of prompts of different lengths, some followed by label tokens, with plain passes."""
    chosen = [*requests[:2], *requests[-2:]]
    together = PaddedEngine(plain.model, plain.head, batch_tokens=len(chosen) * 2 * len(requests[0].ids))
    found = label_logprobs(together, chosen)
    return _agreement("padded", plain.model, found, plain.one_by_one(chosen))


def _compare_one_by_one(plain: PlainPasses, requests: Sequence[Request]) -> EngineReport:
    """Compare plain passes with themselves in another order, and a prompt's figures before two different endings."""
    model, head = plain.model, plain.head
    seen = effect_of_later_tokens(model, head, requests[0].ids)
    if not seen <= TOLERANCE[model.dtype]:
        return EngineReport("padded", f"its figures for a token change by {seen:.2g} nats with the tokens after it")
    alone = PaddedEngine(model, head, batch_tokens=1, plain=True)
    backwards = [requests[-1], *requests[:2][::-1]]
    found = label_logprobs(alone, backwards[::-1]), label_logprobs(alone, backwards)[::-1]
    report = _agreement("padded", model, *found)
    wrong = f"its figures for a prompt change by {report.difference:.2g} nats with what it computed before"
    return report if report.reason is None else replace(report, reason=wrong)


def _probe(
    model: PreTrainedModel, compare: Callable[[Sequence[Request]], EngineReport], span: int | None
) -> EngineReport:
    """Probe a model as loaded and, if it is in half precision, in float32 too."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    wanted = probe_length(model, span)
    for length in dict.fromkeys((wanted, min(wanted, SHORT_PROBE))):
        requests = probe_requests(length, vocabulary)
        report = _attempt(compare, requests)
        if report is not None and report.reason is None and model.dtype in HALF:
            half = report
            with widened(model) as wide:
                report = _attempt(compare, requests) if wide else None
            if report is None or (report.reason is not None and report.difference is None):
                # If float32 cannot run here at all, that does not exclude the dtype that will be used.
                why = "no memory for a probe in float32" if report is None else f"not in float32: {report.reason}"
                report = replace(half, note=f"{why}: probed in {model.dtype} only", is_cut_short=True)
        if report is not None:
            missed = span if span is not None and span >= length else None
            engine = report.engine if report.reason is None else "padded"
            return replace(report, engine=engine, probe_tokens=length, window=missed)
    raise JudgeError(
        f"{type(model).__name__} leaves no memory for a forward pass of {length} tokens",
        hint="Close what else uses the device, or take `device_map=auto`, `quantization=4bit` or a smaller judge.",
    )


def _attempt(compare: Callable[[Sequence[Request]], EngineReport], requests: Sequence[Request]) -> EngineReport | None:
    """Compare once; None if memory ran out, which does not reflect on the engine."""
    try:
        return compare(requests)
    except UnsupportedModelError as error:
        return EngineReport("padded", error.message)
    except Exception as error:  # any failure of foreign code in an unintended use counts as a result
        if not is_out_of_memory(error):
            return EngineReport("padded", f"{type(error).__name__}: {str(error)[:120]}")
    return None


#: On a CPU larger packs gain nothing: the matrices are long enough, and the caches are small. But narrow weights are
#: widened for every pass, so larger models take three times as many tokens: most documents with all their candidates
#: are one pass then. This holds for wide weights too, so that figures do not depend on the form of storage.
CPU_TOKENS = 1_024
LEAST, MOST = 1_024, 16_384
#: Share of the free memory for activations; the rest is for the root path and for fragmentation.
MEMORY_SHARE = 0.5


def find_budget(model: PreTrainedModel, engine: PrefixSharingEngine) -> int:
    """Determine the token budget from free memory and a measured cost per token."""
    costs = bytes_per_token(model, engine)
    if not costs:
        return CPU_TOKENS if are_few(sum(one.numel() for one in model.parameters())) else 3 * CPU_TOKENS
    fitting = [MEMORY_SHARE * free_memory(device) / max(cost, 1.0) for device, cost in costs.items()]
    budget = 1 << int(np.log2(max(min(fitting), 1.0)))
    return int(np.clip(budget, LEAST, MOST))


def bytes_per_token(model: PreTrainedModel, engine: PrefixSharingEngine) -> dict[torch.device, float]:
    """Measure the bytes per token of a pack on every GPU that has a part of a model; parameters as `find_budget`."""
    devices = gpus_of(model)
    if not devices:
        return {}
    requests = branching_requests(model)
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    before = {device: torch.cuda.memory_allocated(device) for device in devices}
    tokens = max(pack.tokens for pack, _ in engine.execute(requests, engine.plan(requests)))
    return {device: (torch.cuda.max_memory_allocated(device) - before[device]) / tokens for device in devices}


def branching_requests(model: PreTrainedModel) -> list[Request]:
    """Build requests for a document of one and a half packs of `LEAST` tokens, with candidates, some on digits.

    So the first pack keeps all its keys and values, as a long document's do, and the second one attends to them.
    """
    config: Any = model.config.get_text_config()
    limit = int(getattr(config, "max_position_embeddings", None) or 2 * LEAST)
    candidates, stem = 8, min(LEAST * 3 // 2, limit // 2)
    tail = max(1, min((2 * LEAST - stem) // candidates - 4, limit - stem - 2))
    return synthetic_requests(
        int(config.vocab_size), prefix=0, document=stem, candidate=tail, documents=1, candidates=candidates
    )
