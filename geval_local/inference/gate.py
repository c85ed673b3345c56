"""Which engine may serve a model: the prefix-sharing one where a probe shows it exact, else right-padded batches.

No list of architectures. A first sieve asks what the model says of itself; then probe prompts go through the trie in
small packs and one by one, and three things must hold: every layer called the attention function, every layer asked for
the sliding window that the configuration gives it, and the label log-probabilities agree.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from geval_local.errors import ConfigurationError, UnsupportedModelError
from geval_local.inference.budget import trie_budget
from geval_local.inference.engine import Engine, Request
from geval_local.inference.labels import LabelTrie, SurfaceForm
from geval_local.inference.padded import PaddedEngine
from geval_local.inference.readout import Head
from geval_local.inference.trie import TrieEngine
from geval_local.inference.wide import widened

__all__ = ["EngineChoice", "EngineReport", "choose_engine"]

logger = logging.getLogger("geval_local")

EngineChoice = Literal["auto", "trie", "padded"]

_HALF = (torch.bfloat16, torch.float16)
#: Largest difference of a label's log-probability (nats) that is rounding and nothing else: of any label in float64
#: (parts of some models are computed in float32 there) and float32, of a typical prompt's mean in half precision.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.bfloat16: 0.25, torch.float16: 0.1}
#: A probe may cost this many floating-point operations, so that loading stays a matter of seconds.
_PROBE_OPERATIONS = {"cpu": 4e11}
_PROBE_OPERATIONS_ELSEWHERE = 4e14
_SHORT_PROBE = 48
_PROBE_LABELS = 12


@dataclass(frozen=True)
class EngineReport:
    """Which engine serves a model, and why.

    Attributes
    ----------
    engine : str
        ``trie`` or ``padded``.
    reason : str or None
        Why it is not the prefix-sharing one; None if it is.
    difference : float or None
        How far label log-probabilities (nats) from the trie and from one prompt at a time are apart, see `TOLERANCE`;
        in float32 where a half-precision model fits into memory so. None if there was no probe.
    tolerance : float or None
        What was allowed.
    probe_tokens : int
        Length of the longest probe prompt.
    window : int or None
        The model's smallest sliding window, if the probe was too short to reach it.
    """

    engine: str
    reason: str | None = None
    difference: float | None = None
    tolerance: float | None = None
    probe_tokens: int = 0
    window: int | None = None

    @property
    def text(self) -> str:
        """One line for people."""
        if self.reason is not None:
            return f"{self.engine} (no prefix sharing: {self.reason})"
        if self.difference is None:
            return self.engine
        probed = f"differs by {self.difference:.1e} nats from one at a time on {self.probe_tokens} tokens"
        return f"{self.engine} ({probed}{'' if self.window is None else f', window {self.window} not reached'})"


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
    choice : {"auto", "trie", "padded"}
        ``auto`` steps down to right-padded batches where the probe fails; ``trie`` raises there; ``padded`` does not
        probe.
    batch_tokens : int, optional
        Most tokens per forward pass; found from the device and its free memory when absent.

    Raises
    ------
    ConfigurationError
        If there is no such choice.
    UnsupportedModelError
        If `choice` is ``trie`` and the model's prefixes cannot be shared exactly.
    """
    if choice not in get_args(EngineChoice):
        raise ConfigurationError(f"engine {choice!r} is not one of {', '.join(get_args(EngineChoice))}")
    padded = PaddedEngine(model, head, batch_tokens=batch_tokens or (32_768 if model.device.type == "cuda" else 4_096))
    if choice == "padded":
        return padded, EngineReport("padded")
    reason = _refusal(model)
    report, fused = (EngineReport("padded", reason), False) if reason is not None else _probe(model, head)
    if report.reason is None:
        budget = batch_tokens or trie_budget(model, head, padded)
        return TrieEngine(model, head, batch_tokens=budget, padded=padded, fused=fused), report
    if choice == "trie":
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot share prefixes exactly: {report.reason}",
            hint="Leave the engine out, or take `padded`.",
        )
    logger.info("%s: %s", type(model).__name__, report.text)
    return padded, report


def _refusal(model: PreTrainedModel) -> str | None:
    """Say why a model need not be probed: what it states of itself."""
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


def _probe(model: PreTrainedModel, head: Head) -> tuple[EngineReport, bool]:
    """Probe a model as it is and, if that is in half precision, in float32 too; with the fused GPU kernel if it serves.

    Returns
    -------
    report : EngineReport
    fused : bool
        Whether the prefix-sharing engine may use that kernel.
    """
    config: Any = model.config.get_text_config()
    expected = _expected_windows(config)
    window = min((size for size in expected if size is not None), default=None)
    length = _probe_length(model, window)
    requests = _probe_requests(length, int(config.vocab_size))
    missed = window if window is not None and window >= length else None
    for fused in (True, False) if model.device.type == "cuda" else (False,):
        try:
            report = _compare(model, head, requests, expected, fused=fused)
            if report.reason is None and model.dtype in _HALF:
                with widened(model) as wide:
                    report = _compare(model, head, requests, expected, fused=False) if wide else report
        except UnsupportedModelError as error:
            report = EngineReport("padded", error.message)
        except Exception as error:  # any failure of foreign code under a foreign attention function is an answer
            report = EngineReport("padded", f"{type(error).__name__}: {str(error)[:120]}")
        report = replace(report, probe_tokens=length, window=missed)
        if report.reason is None:
            break
    return report, fused


def _compare(
    model: PreTrainedModel, head: Head, requests: Sequence[Request], expected: list[int | None], *, fused: bool
) -> EngineReport:
    """Compare the trie, cut into small packs, with one prompt at a time."""
    alone = PaddedEngine(model, head, batch_tokens=1)
    trie = TrieEngine(model, head, batch_tokens=max(1, len(requests[0].ids) // 3), padded=alone, fused=fused)
    differences = np.abs(_label_logprobs(trie, requests) - _label_logprobs(alone, requests))
    tolerance = TOLERANCE[model.dtype]
    # In half precision a single prompt may differ by much: rounding sends a token to another expert, say.
    difference = float(np.median(differences.mean(axis=1)) if model.dtype in _HALF else differences.max())
    reason = None
    if len(trie.windows) != len(expected):
        reason = f"{len(trie.windows)} of its {len(expected)} layers call the attention function"
    elif list(trie.windows) != expected:
        reason = "its layers do not ask for the sliding windows of its configuration"
    elif not difference <= tolerance:
        reason = f"label log-probabilities differ by {difference:.2g} nats from one at a time"
    return EngineReport("trie" if reason is None else "padded", reason, difference, tolerance)


def _probe_length(model: PreTrainedModel, window: int | None) -> int:
    """Length of the longest probe prompt: beyond the sliding window where that is affordable."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    if window is None:
        return min(_SHORT_PROBE, limit - 2)
    operations = _PROBE_OPERATIONS.get(model.device.type, _PROBE_OPERATIONS_ELSEWHERE)
    # Every prompt alone and all in the trie: about five times the longest prompt.
    affordable = int(operations / (5 * 2 * max(model.num_parameters(), 1)))
    wanted = window + window // 2 + _SHORT_PROBE
    return min(wanted if wanted <= affordable else _SHORT_PROBE, limit - 2)


def _probe_requests(length: int, vocabulary: int) -> list[Request]:
    """Prompts that share prefixes in every way: branches, a prompt that is a prefix of another, label tries."""
    generator = np.random.default_rng(0)
    # The upper half of a vocabulary is where stand-ins for images and the like are found.
    high = max(2, vocabulary // 2)
    ids: NDArray[np.int32] = generator.integers(0, high, size=2 * length, dtype=np.int32)
    stem, other = ids[:length], ids[length:]
    prompts = [
        stem,
        stem[: length // 2],
        np.concatenate([stem[: length // 2], other[: length // 3]]),
        np.concatenate([stem[: length // 2], other[: length // 6], stem[: length // 6]]),
    ]
    labels = generator.permutation(high)[: min(_PROBE_LABELS, high)].tolist()
    forms = [SurfaceForm(number, str(token), (token,)) for number, token in enumerate(labels)]
    forms.append(SurfaceForm(len(labels), "longer", (labels[0], labels[1])))
    trie = LabelTrie(forms, len(forms))
    return [Request(prompt.astype(np.int32), trie) for prompt in prompts]


def _label_logprobs(engine: Engine, requests: Sequence[Request]) -> NDArray[np.float64]:
    found: dict[int, NDArray[np.float64]] = {}
    for pack, readouts in engine.execute(requests, engine.plan(requests)):
        for index, readout in zip(pack.requests, readouts, strict=True):
            if readout.label_logprobs is None:
                raise UnsupportedModelError(readout.error or "a probe prompt could not be read")
            # Labels without any probability are the same everywhere.
            found[index] = np.maximum(readout.label_logprobs, -1e3)
    return np.stack([found[index] for index in range(len(requests))])
