"""Outcomes as database rows and back, bit for bit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from geval_local.score import Outcome

__all__ = ["COLUMNS", "from_columns", "to_columns"]

#: The columns that hold an outcome, in the order of `to_columns`.
COLUMNS = "logprobs, other, prompt_tokens, dropped_tokens, sample_key, error"


def to_columns(outcome: Outcome) -> tuple[Any, ...]:
    """Write an outcome: log-probabilities as little-endian float64, other tokens as JSON, the key as signed 64 bits."""
    key = outcome.sample_key
    return (
        None if outcome.label_logprobs is None else outcome.label_logprobs.astype("<f8", copy=False).tobytes(),
        json.dumps(outcome.other_tokens, ensure_ascii=True) if outcome.other_tokens else None,
        outcome.prompt_tokens,
        outcome.dropped_tokens,
        key - (1 << 64) if key >= 1 << 63 else key,
        None if outcome.error is None else outcome.error.encode("utf-8", "backslashreplace").decode(),
    )


def from_columns(columns: tuple[Any, ...]) -> Outcome:
    """Read an outcome back."""
    logprobs, other, prompt_tokens, dropped_tokens, key, error = columns
    return Outcome(
        None if logprobs is None else np.frombuffer(logprobs, dtype="<f8"),
        () if other is None else tuple((token, p) for token, p in json.loads(other)),
        prompt_tokens,
        dropped_tokens,
        key % (1 << 64),
        error,
    )
