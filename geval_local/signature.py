"""Signature: every hidden setting that a score depends on, on one line, in the manner of sacreBLEU."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Signature"]


@dataclass(frozen=True)
class Signature:
    """All that must be equal before two scores may be compared.

    Attributes
    ----------
    judge : str
        Name and content fingerprint of the weights.
    tokenizer : str
        Hash of tokenizer and chat template.
    metric : str
        Name and hash of the metric.
    steps : str
        Hash of the evaluation steps, or ``none``.
    scale : str
        The scale's text.
    style : str
        Prompt style, and whether thinking was closed.
    dtype, attention : str
        How the model was run; the dtype with its quantization, if it was quantized while loading.
    estimator : str
        See `Estimator.text`.
    transformers, torch, version : str
        Versions of transformers, torch and geval-local.
    """

    judge: str
    tokenizer: str
    metric: str
    steps: str
    scale: str
    style: str
    dtype: str
    attention: str
    estimator: str
    transformers: str
    torch: str
    version: str

    def __str__(self) -> str:
        return "|".join(f"{field.name}:{getattr(self, field.name)}" for field in fields(self))

    def differences(self, other: Signature) -> dict[str, tuple[str, str]]:
        """List what differs from another signature: ``{key: (own, other)}``."""
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
