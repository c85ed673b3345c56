"""Outcomes as database rows and back, bit for bit."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geval_local.score import Outcome

__all__ = ["COLUMNS", "checked_outcome", "from_columns", "to_columns"]

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
    """Read an outcome back.

    Raises
    ------
    ValueError
        If the columns are none of `to_columns`; the message says why.
    """
    logprobs, other, prompt_tokens, dropped_tokens, key, error = columns
    if logprobs is not None and (not isinstance(logprobs, bytes) or len(logprobs) % 8):
        raise ValueError("its log-probabilities are cut off")
    if not all(isinstance(number, int) for number in (prompt_tokens, dropped_tokens, key)):
        raise ValueError("a count of it is no whole number")
    return checked_outcome(
        None if logprobs is None else np.frombuffer(logprobs, dtype="<f8"),
        other,
        prompt_tokens,
        dropped_tokens,
        key % (1 << 64),
        error,
    )


def checked_outcome(
    logprobs: NDArray[np.float64] | None, other: Any, prompt_tokens: int, dropped_tokens: int, key: int, error: Any
) -> Outcome:
    """Make an outcome of what a file says, the other tokens as JSON.

    Raises
    ------
    ValueError
        If no judge can have said so.
    """
    if (logprobs is None) == (error is None) or not isinstance(error, str | None):
        raise ValueError("it has both figures and a reason for having none, or neither")
    # The largest value is NaN if any is; there is no score without one finite value either.
    if logprobs is not None and not (logprobs.size and -math.inf < logprobs.max() < math.inf):
        raise ValueError("its log-probabilities are no numbers")
    tokens: tuple[tuple[str, float], ...] = ()
    if other is not None:
        try:
            tokens = tuple((str(token), float(p)) for token, p in json.loads(other))
        except (TypeError, ValueError, RecursionError) as problem:
            raise ValueError("its other tokens are no JSON") from problem
    return Outcome(logprobs, tokens, prompt_tokens, dropped_tokens, key, error)
