"""Signature: all settings that a score depends on, on one line, in the manner of sacreBLEU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

__all__ = ["LIBRARIES", "Signature", "judge_name", "signature_differences", "signature_parts", "told_differences"]

#: Keys that name versions of libraries: scores may move with them by rounding, not by meaning.
LIBRARIES = ("transformers", "torch", "version")


@dataclass(frozen=True)
class Signature:
    """All that must be equal before two scores may be compared.

    Attributes
    ----------
    judge : str
        Name, with that of an adapter, and content fingerprint of the weights, adapter included.
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
        """List the differences from another signature: ``{key: (own, other)}``."""
        pairs = {field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def signature_parts(text: str) -> dict[str, str]:
    """Take a written signature apart, ``key:value|key:value``, also one by another version with other keys."""
    parts = (part.partition(":") for part in re.split(r"\|(?=\w+:)", text))
    return {key: value for key, _, value in parts}


def signature_differences(first: str, second: str, *, missing: str = "-") -> dict[str, tuple[str, str]]:
    """List the differences of two written signatures: ``{key: (first, second)}``; `missing` for a key that one lacks.

    A judge is its content: the same weights under another name or path are no difference.
    """
    one, other = signature_parts(first), signature_parts(second)
    pairs = {key: (one.get(key, missing), other.get(key, missing)) for key in [*one, *other]}
    return {key: pair for key, pair in pairs.items() if _content(key, pair[0]) != _content(key, pair[1])}


def told_differences(differ: Mapping[str, tuple[str, str]], pair: str = "{} there, {} here") -> str:
    """Tell differences of signatures in a message, each as `pair` puts its two values."""
    return "; ".join(f"{key}: {pair.format(*values)}" for key, values in differ.items())


def judge_name(name: str) -> str:
    """Shorten the name of a judge for display: of a directory or a hub id, its last part."""
    return name.rstrip("/").rpartition("/")[2] or name


def _content(key: str, value: str) -> str:
    return value.rpartition("@")[2] if key == "judge" else value
