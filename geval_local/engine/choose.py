"""Which engine may serve a model: the prefix-sharing one, else a shared prefix cache, else right-padded batches.

No list of architectures. A first sieve asks what the model says of itself; then probe prompts go through an engine in
small packs and one by one. For the trie three things must hold: every layer called the attention function, every layer
asked for the sliding window that the configuration gives it, and the label log-probabilities agree. For the shared
cache the last is all that can be asked, and it must have been used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

from transformers import PreTrainedModel

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.budget import trie_budget
from geval_local.engine.engine_report import EngineReport
from geval_local.engine.interface import Engine
from geval_local.engine.prefix_cache import CachePack, PrefixCacheEngine
from geval_local.engine.prefix_sharing.engine import TrieEngine
from geval_local.engine.probe import HALF, distance_from_alone, probe_length, probe_requests
from geval_local.engine.wide import widened
from geval_local.errors import ConfigurationError, UnsupportedModelError
from geval_local.models.head import Head
from geval_local.tokens.requests import Request

__all__ = ["EngineChoice", "EngineReport", "choose_engine"]

logger = logging.getLogger("geval_local")

EngineChoice = Literal["auto", "trie", "cache", "padded"]


def choose_engine(
    model: PreTrainedModel, head: Head, choice: EngineChoice = "auto", *, batch_tokens: int | None = None
) -> tuple[Engine, EngineReport]:
    """Choose the engine for a model.

    Parameters
    ----------
    model : PreTrainedModel
        A causal LM in evaluation mode.
    head : Head
        Its read-out head.
    choice : {"auto", "trie", "cache", "padded"}
        ``auto`` steps down from the trie to a shared prefix cache and on to right-padded batches where a probe fails;
        ``trie`` and ``cache`` raise there; ``padded`` does not probe.
    batch_tokens : int, optional
        Most tokens per forward pass; found from the device and its free memory when absent.

    Raises
    ------
    ConfigurationError
        If there is no such choice.
    UnsupportedModelError
        If `choice` is ``trie`` or ``cache`` and that is not exact for the model.
    """
    if choice not in get_args(EngineChoice):
        raise ConfigurationError(f"engine {choice!r} is not one of {', '.join(get_args(EngineChoice))}")
    padded = PaddedEngine(model, head, batch_tokens=batch_tokens or (32_768 if model.device.type == "cuda" else 4_096))
    if choice == "padded":
        return padded, EngineReport("padded")
    reasons: list[str] = []
    if choice != "cache":
        refusal = _refusal(model)
        report, ways = (EngineReport("padded", refusal), {}) if refusal is not None else _probe_trie(model, head)
        if report.reason is None:
            budget = batch_tokens or trie_budget(model, head, padded)
            return TrieEngine(model, head, batch_tokens=budget, padded=padded, **ways), report
        if choice == "trie":
            raise _unsupported(model, report)
        reasons.append(report.reason)
    report = _probe_cache(model, head)
    if report.reason is not None:
        if choice == "cache":
            raise _unsupported(model, report)
        reasons.append(f"a shared cache does not help: {report.reason}")
    report = replace(report, reason="; ".join(reasons) or None)
    logger.info("%s: %s", type(model).__name__, report.text)
    if report.engine == "padded":
        return padded, report
    return PrefixCacheEngine(model, head, batch_tokens=padded.batch_tokens, padded=padded), report


def _unsupported(model: PreTrainedModel, report: EngineReport) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{type(model).__name__} cannot share prefixes exactly: {report.reason}",
        hint="Leave the engine out, or take `padded`.",
    )


def _refusal(model: PreTrainedModel) -> str | None:
    """Say why a model's trie need not be probed: what it states of itself."""
    config: Any = model.config.get_text_config()
    if not getattr(model, "_supports_attention_backend", False):
        return "its layers take no attention function from outside"
    strange = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    return f"it has layers of the kinds {sorted(strange)}" if strange else None


def _expected_windows(config: Any) -> list[int | None]:
    """Sliding window of every layer, as the configuration has it."""
    layers = int(config.num_hidden_layers)
    window = getattr(config, "sliding_window", None)
    if not getattr(config, "use_sliding_window", True):
        window = None
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _probe_trie(model: PreTrainedModel, head: Head) -> tuple[EngineReport, dict[str, bool]]:
    """Probe the trie, with the fused GPU kernel if that serves.

    Returns
    -------
    report : EngineReport
    ways : dict
        Options of `TrieEngine`: which of these it may use.
    """
    config: Any = model.config.get_text_config()
    expected = _expected_windows(config)
    window = min((size for size in expected if size is not None), default=None)

    for fused in (True, False) if model.device.type == "cuda" else (False,):
        ways = {"fused": fused}
        report = _probe(model, partial(_compare_trie, model, head, expected, ways), window)
        if report.reason is None:
            break
    return report, ways


def _compare_trie(
    model: PreTrainedModel, head: Head, expected: list[int | None], ways: dict[str, bool], requests: Sequence[Request]
) -> EngineReport:
    """Compare the trie, cut into small packs, with one prompt at a time."""
    alone = PaddedEngine(model, head, batch_tokens=1)
    budget = max(1, len(requests[0].ids) // 3)
    # The kernel takes half precision only, so a widened model goes without it.
    ways = ways | {"fused": ways["fused"] and model.dtype in HALF}
    trie = TrieEngine(model, head, batch_tokens=budget, padded=alone, **ways)
    difference, tolerance = distance_from_alone(trie, model, head, requests)
    reason = None
    if len(trie.windows) != len(expected):
        reason = f"{len(trie.windows)} of its {len(expected)} layers call the attention function"
    elif list(trie.windows) != expected:
        reason = "its layers do not ask for the sliding windows of its configuration"
    elif not difference <= tolerance:
        reason = f"label log-probabilities differ by {difference:.2g} nats from one at a time"
    return EngineReport("trie", reason, difference, tolerance)


def _probe_cache(model: PreTrainedModel, head: Head) -> EngineReport:
    """Probe the shared prefix cache."""
    config: Any = model.config.get_text_config()
    # Chunks are to recurrent layers what windows are to attention: what goes wrong behind them does not show before.
    names = ("sliding_window", "attention_chunk_size", "chunk_size", "mamba_chunk_size")
    spans = [span for span in (getattr(config, name, None) for name in names) if isinstance(span, int)]
    report = _probe(model, partial(_compare_cache, model, head), max(spans, default=None))
    chunked = "chunked_attention" in (getattr(config, "layer_types", None) or ())
    if chunked and report.reason is None and report.window is not None:
        return replace(report, engine="padded", reason="attention in chunks is beyond what a probe may cost")
    return report


def _compare_cache(model: PreTrainedModel, head: Head, requests: Sequence[Request]) -> EngineReport:
    """Compare a shared prefix cache, in small batches, with one prompt at a time."""
    alone = PaddedEngine(model, head, batch_tokens=1)
    engine = PrefixCacheEngine(model, head, batch_tokens=max(1, len(requests[0].ids) // 3), padded=alone)
    if not any(isinstance(pack, CachePack) and pack.cuts for pack in engine.plan(requests)):
        raise UnsupportedModelError("its prompts are too short to share a prefix")
    difference, tolerance = distance_from_alone(engine, model, head, requests)
    wrong = f"label log-probabilities differ by {difference:.2g} nats from one at a time"
    return EngineReport("cache", None if difference <= tolerance else wrong, difference, tolerance)


def _probe(
    model: PreTrainedModel, compare: Callable[[Sequence[Request]], EngineReport], span: int | None
) -> EngineReport:
    """Probe a model as it is and, if that is in half precision, in float32 too."""
    length = probe_length(model, span)
    requests = probe_requests(length, int(model.config.get_text_config().vocab_size))
    try:
        report = compare(requests)
        if report.reason is None and model.dtype in HALF:
            with widened(model) as wide:
                report = compare(requests) if wide else report
    except UnsupportedModelError as error:
        report = EngineReport("padded", error.message)
    except Exception as error:  # any failure of foreign code in a use it was not written for is an answer
        report = EngineReport("padded", f"{type(error).__name__}: {str(error)[:120]}")
    missed = span if span is not None and span >= length else None
    engine = report.engine if report.reason is None else "padded"
    return replace(report, engine=engine, probe_tokens=length, window=missed)
