"""Signature: all settings that a score depends on, on one line, in the manner of sacreBLEU."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields

#: Keys that name versions of libraries: a change may shift scores by rounding only.
LIBRARIES = ("transformers", "torch", "version")


def short_signature(signature: str) -> str:
    """Name a signature by the first eight digits of its hash."""
    return hashlib.sha256(signature.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Signature:
    """Everything that must be equal for two scores to be comparable.

    Attributes
    ----------
    judge : str
        Name (with an adapter's name) and content fingerprint of the weights, including the adapter.
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
        Settings that the model ran with; the dtype includes the quantization, if it was quantized while loading.
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


def signature_parts(text: str) -> dict[str, str]:
    """Split a written signature, ``key:value|key:value``; other versions may have other keys."""
    parts = (part.partition(":") for part in re.split(r"\|(?=\w+:)", text))
    return {key: value for key, _, value in parts}


def signature_differences(first: str, second: str, *, missing: str = "-") -> dict[str, tuple[str, str]]:
    """List the differences of two written signatures: ``{key: (first, second)}``; `missing` for a key that one lacks.

    Judges are compared by content: the same weights under another name or path are not a difference.
    """
    one, other = signature_parts(first), signature_parts(second)
    pairs = {key: (one.get(key, missing), other.get(key, missing)) for key in [*one, *other]}
    return {key: pair for key, pair in pairs.items() if _content(key, pair[0]) != _content(key, pair[1])}


def told_differences(differ: Mapping[str, tuple[str, str]], pair: str = "{} there, {} here") -> str:
    """Format differences of signatures for a message; `pair` formats the two values."""
    return "; ".join(f"{key}: {pair.format(*values)}" for key, values in differ.items())


def judge_name(name: str) -> str:
    """Shorten a judge's name for display: the last part of a directory or hub id."""
    return name.rstrip("/").rpartition("/")[2] or name


def _content(key: str, value: str) -> str:
    return value.rpartition("@")[2] if key == "judge" else value
