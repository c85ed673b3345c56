"""What a judge is, apart from its weights: all that its signatures depend on, and how it was set up.

On a CPU the facts are kept for the next start, so that rows that are all in the cache need no weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from geval_local import __version__
from geval_local.engine.choose import EngineReport
from geval_local.metric import Metric
from geval_local.models.load import CheckedJudge, LoadedModel
from geval_local.models.precision import dtype_name
from geval_local.models.verdicts import Verdict, verdict_on_cpu
from geval_local.prompt import CHAT_FORM
from geval_local.score import Estimator
from geval_local.signature import Signature
from geval_local.tokens.encoder import PromptEncoder

DEFAULT_CONTEXT = 1 << 20
_KEPT = "facts"


@dataclass(frozen=True)
class JudgeFacts:
    """What a judge is, apart from its weights."""

    #: Its name, with an adapter's, and the content hash of its weights.
    label: str
    fingerprint: str
    #: The settings that it runs with, under the keys of a signature.
    setup: Mapping[str, str]
    #: Longest prompt in tokens, including the label's tokens.
    context: int
    #: The dtype that it runs in, the reason, and its measured effect on a score.
    precision: str
    #: Its engine, and the tokens of the engine's packs.
    report: EngineReport
    batch_tokens: int

    def identity(self, engine: str) -> str:
        """Identify everything a read-out depends on besides the prompt's tokens and the labels.

        Metric, steps and style are in the tokens, and the estimator is applied afterwards. Names do not count.
        """
        parts = {"judge": self.fingerprint, **self.setup, "engine": engine}
        return "|".join(f"{name}:{value}" for name, value in parts.items())

    def signature(self, encoder: PromptEncoder, metric: Metric, estimator: Estimator | None) -> Signature:
        """Return the signature of the judge's scores of a metric."""
        return Signature(
            judge=f"{self.label}@{self.fingerprint}",
            metric=f"{metric.name}@{metric.hash}",
            steps=metric.steps_hash,
            scale=metric.scale.text,
            style=_style(encoder),
            estimator=(estimator or Estimator()).text,
            **self.setup,
        )


def facts_of(loaded: LoadedModel, report: EngineReport, batch_tokens: int) -> JudgeFacts:
    """State the facts of a loaded judge."""
    config: Any = loaded.model.config.get_text_config()
    limits = [loaded.entry.context, getattr(config, "max_position_embeddings", None)]
    return JudgeFacts(
        label=loaded.entry.label,
        fingerprint=loaded.fingerprint,
        setup={
            "tokenizer": loaded.tokenizer_hash,
            "dtype": dtype_name(loaded.dtype) + _quantization(loaded.model),
            "attention": loaded.attention,
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "version": __version__,
        },
        context=min((int(limit) for limit in limits if limit), default=DEFAULT_CONTEXT),
        precision=loaded.precision.text(dtype_name(loaded.dtype)),
        report=report,
        batch_tokens=batch_tokens,
    )


def keep_facts(facts: JudgeFacts, checked: CheckedJudge) -> None:
    """Keep the facts of a judge on the CPU for its next start."""
    verdict = _verdict(checked, facts.fingerprint)
    if verdict is not None and verdict.read(_KEPT) is None:
        verdict.keep(_KEPT, dataclasses.asdict(facts))


def kept_facts(checked: CheckedJudge) -> JudgeFacts | None:
    """Return what an earlier start with the same options found a judge to be; None if it is not known."""
    if not checked.is_on_cpu or (content := checked.known_fingerprint()) is None:
        return None
    verdict = _verdict(checked, content)
    kept = None if verdict is None else verdict.read(_KEPT)
    if checked.files.moved_or_new():  # reading the weights tells which file
        return None
    return None if kept is None else JudgeFacts(**kept | {"report": EngineReport(**kept["report"])})


def _verdict(checked: CheckedJudge, content: str) -> Verdict | None:
    if not checked.is_on_cpu:
        return None
    asked = {"entry": checked.entry.model_dump(mode="json"), "options": checked.options.model_dump(mode="json")}
    return verdict_on_cpu({"fingerprint": content, "tokenizer": checked.tokenizer_hash, **asked})


def _style(encoder: PromptEncoder) -> str:
    """Name the prompt style, with the form's edition where a chat prompt contains more than the paper's form."""
    edition = f"+form{CHAT_FORM}" if encoder.style.startswith("chat") else ""
    return encoder.style + edition + ("+closed-thinking" if encoder.closes_thinking else "")


def _quantization(model: Any) -> str:
    """Return the quantization applied while loading, which the weights' fingerprint does not include."""
    return next((f"+{bits}bit" for bits in (4, 8) if getattr(model, f"is_loaded_in_{bits}bit", False)), "")
