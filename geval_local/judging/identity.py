"""Identity of a judge's results: the signature of its scores, and the key of its read-outs."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from geval_local import __version__
from geval_local.metric import Metric
from geval_local.models.load import LoadedModel
from geval_local.prompt import CHAT_FORM
from geval_local.score import Estimator
from geval_local.signature import Signature
from geval_local.tokens.encoder import PromptEncoder

__all__ = ["judge_signature", "readout_identity"]


def judge_signature(
    loaded: LoadedModel, encoder: PromptEncoder, metric: Metric, estimator: Estimator | None = None
) -> Signature:
    """Return the signature of a judge's scores of a metric: everything that they depend on."""
    return Signature(
        judge=f"{loaded.entry.label}@{loaded.fingerprint}",
        metric=f"{metric.name}@{metric.hash}",
        steps=metric.steps_hash,
        scale=metric.scale.text,
        style=_style(encoder),
        estimator=(estimator or Estimator()).text,
        **_setup(loaded),
    )


def _style(encoder: PromptEncoder) -> str:
    """Name the prompt style, with the form's edition where a chat prompt contains more than the paper's form."""
    edition = f"+form{CHAT_FORM}" if encoder.style.startswith("chat") else ""
    return encoder.style + edition + ("+closed-thinking" if encoder.closes_thinking else "")


def readout_identity(loaded: LoadedModel, engine: str) -> str:
    """Return an identifier of everything a read-out depends on besides the prompt's tokens and the labels.

    Metric, steps and style are in the tokens, and the estimator is applied afterwards. Names do not count.
    """
    parts = {"judge": loaded.fingerprint, **_setup(loaded), "engine": engine}
    return "|".join(f"{name}:{value}" for name, value in parts.items())


def _setup(loaded: LoadedModel) -> dict[str, str]:
    """Return the model's run settings under the keys of the signature."""
    return {
        "tokenizer": loaded.tokenizer_hash,
        "dtype": str(loaded.dtype).removeprefix("torch.") + _quantization(loaded.model),
        "attention": loaded.attention,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "version": __version__,
    }


def _quantization(model: Any) -> str:
    """Return the quantization applied while loading, which the weights' fingerprint does not include."""
    return next((f"+{bits}bit" for bits in (4, 8) if getattr(model, f"is_loaded_in_{bits}bit", False)), "")
