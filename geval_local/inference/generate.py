"""Greedy generation, for the one thing that is written rather than read: evaluation steps."""

from __future__ import annotations

import re

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria

from geval_local.inference.readout import input_device

__all__ = ["generate_greedily"]


#: A blank line and behind it something that is neither another item, bold or not, nor an indented line.
_END_OF_LIST = re.compile(r"\n[^\S\n]*\n[\n]*[^\s\d*]")


class _EndOfList(StoppingCriteria):
    """Stop when the text goes on, behind a blank line, with something else: the numbered list is over."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, start: int) -> None:
        self._tokenizer = tokenizer
        self._start = start

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.BoolTensor:
        text = str(self._tokenizer.decode(input_ids[0, self._start :]))
        done = _END_OF_LIST.search(text.lstrip()) is not None
        return torch.tensor([done], device=input_ids.device)  # type: ignore[return-value]


@torch.inference_mode()
def generate_greedily(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, ids: NDArray[np.int32], *, max_new_tokens: int
) -> str:
    """Continue a prompt with the most likely tokens until a numbered list is over, the end token or the limit.

    Parameters
    ----------
    model : PreTrainedModel
        A causal LM.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    ids : ndarray of int32, shape (tokens,)
        The prompt.
    max_new_tokens : int
        Most tokens to write.

    Returns
    -------
    str
        The new text, without special tokens.
    """
    prompt = torch.from_numpy(ids.astype(np.int64))[None].to(input_device(model))
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = tokenizer.eos_token_id if ends is None else ends
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=ends,
        pad_token_id=ends[0] if isinstance(ends, list) else ends,
        bos_token_id=tokenizer.bos_token_id,
    )
    output = model.generate(  # type: ignore[operator]
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=config,
        stopping_criteria=[_EndOfList(tokenizer, prompt.shape[1])],
    )
    return str(tokenizer.decode(output[0, prompt.shape[1] :], skip_special_tokens=True))
