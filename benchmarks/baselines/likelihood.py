"""Likelihood: a model's log-probability of a text after its context, token by token; for GPTScore.

Right-padded batches without a mask, as in `engine.batched`, because all positions of the text are read, not only
its end. The head runs in float32, over the full vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from geval_local.models.head import Head, Trunk
from geval_local.models.memory import is_out_of_memory

__all__ = ["Continuation", "mean_logprobs"]


@dataclass(frozen=True)
class Continuation:
    """A text after its context, tokenized together."""

    #: Context and text.
    ids: NDArray[np.int32]
    #: Index of the text's first token; at least 1 and less than the length.
    start: int


def mean_logprobs(
    model: PreTrainedModel,
    head: Head,
    continuations: Sequence[Continuation],
    *,
    batch_tokens: int,
    advance: Callable[[int], object] = lambda count: None,
) -> list[float]:
    """Average the log-probabilities of each text's tokens, given everything before them."""
    trunk = Trunk(model)
    result = [math.nan] * len(continuations)
    # Longest first, so that memory problems show up at once.
    waiting = sorted(range(len(continuations)), key=lambda index: (-len(continuations[index].ids), index))
    while waiting:
        width = len(continuations[waiting[0]].ids)
        count = max(1, batch_tokens // width)
        batch = [i for i in waiting[:count] if trunk.group(len(continuations[i].ids)) == trunk.group(width)]
        read = _read(trunk, head, [continuations[index] for index in batch])
        # The retry starts outside the except block: the traceback would pin the activations.
        if read is None and len(batch) > 1:
            batch_tokens = max(width, len(batch) * width // 2)
            continue
        for index, value in zip(batch, read or [math.nan], strict=True):
            result[index] = value
        waiting = waiting[len(batch) :]
        advance(len(batch))
    return result


@torch.inference_mode()
def _read(trunk: Trunk, head: Head, batch: Sequence[Continuation]) -> list[float] | None:
    """Compute one batch; None if memory ran out."""
    tokens = np.zeros((len(batch), max(len(one.ids) for one in batch)), dtype=np.int64)
    for row, one in enumerate(batch):
        tokens[row, : len(one.ids)] = one.ids
    # A token is predicted at the position before it.
    rows = np.concatenate([np.full(len(one.ids) - one.start, row) for row, one in enumerate(batch)])
    places = np.concatenate([np.arange(one.start - 1, len(one.ids) - 1) for one in batch])
    try:
        hidden = trunk(torch.from_numpy(tokens), use_cache=False)[0]
        chosen = hidden[torch.from_numpy(rows).to(hidden.device), torch.from_numpy(places).to(hidden.device)]
        logprobs = head.edge_logprobs(chosen, tokens[rows, places + 1][:, None]).wait().logprobs[:, 0]
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    sums = np.bincount(rows, weights=logprobs, minlength=len(batch))
    return [float(value) for value in sums / np.bincount(rows, minlength=len(batch))]
