"""Generation, for the one thing that is written rather than read: evaluation steps.

By beam search, which is as repeatable as greedy decoding and far less likely to run into a clause that it cannot end
well: a small judge's steps are read, and scored with, long after they were written.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteria

from geval_local.models.head import input_device

__all__ = ["generate_list"]

#: Continuations that are followed at a time.
_BEAMS = 4
#: A blank line and behind it something that is neither another item, bold or not, nor an indented line; or two of them.
_END_OF_LIST = re.compile(r"\n[^\S\n]*\n(?:[^\s\d*]|[^\S\n]*\n)")


class _EndOfList(StoppingCriteria):
    """Stop a text that goes on, behind a blank line, with something else or with nothing: the numbered list is over."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, start: int) -> None:
        self._tokenizer = tokenizer
        self._start = start

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.BoolTensor:
        texts = [str(self._tokenizer.decode(ids)) for ids in input_ids[:, self._start :]]
        done = [_END_OF_LIST.search(text.lstrip()) is not None for text in texts]
        return torch.tensor(done, device=input_ids.device)  # type: ignore[return-value]


class _Counter(StoppingCriteria):
    """Stop nothing, and tell how many tokens there are: what is told may raise, and so end the writing."""

    def __init__(self, on_token: Callable[[int], object], start: int) -> None:
        self._on_token = on_token
        self._start = start

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.BoolTensor:
        self._on_token(input_ids.shape[1] - self._start)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)  # type: ignore[return-value]


@torch.inference_mode()
def generate_list(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: NDArray[np.int32],
    *,
    max_new_tokens: int,
    on_token: Callable[[int], object] = lambda count: None,
) -> str:
    """Continue a prompt with likely tokens until a numbered list is over, the end token or the limit.

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
    on_token : callable
        Called after every token with the number of new ones; what it raises ends the writing.

    Returns
    -------
    str
        The new text, without special tokens. What the limit has cut off goes up to the last whole line.
    """
    prompt = torch.from_numpy(ids.astype(np.int64))[None].to(input_device(model))
    ends = model.generation_config.eos_token_id if model.generation_config is not None else None
    ends = tokenizer.eos_token_id if ends is None else ends
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        # A state that is not kept token by token cannot follow several texts.
        num_beams=1 if getattr(model, "_is_stateful", False) else _BEAMS,
        max_new_tokens=max_new_tokens,
        eos_token_id=ends,
        pad_token_id=ends[0] if isinstance(ends, list) else ends,
        bos_token_id=tokenizer.bos_token_id,
    )
    over = _EndOfList(tokenizer, prompt.shape[1])
    output = model.generate(  # type: ignore[operator]
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=config,
        stopping_criteria=[over, _Counter(on_token, prompt.shape[1])],
    )
    new = output[0, prompt.shape[1] :]
    text = str(tokenizer.decode(new, skip_special_tokens=True))
    stops = [ends] if isinstance(ends, int) else list(ends or ())
    is_cut_off = len(new) >= max_new_tokens and int(new[-1]) not in stops and not bool(over(output[:1], output)[0])
    return text.rpartition("\n")[0] if is_cut_off and "\n" in text.strip() else text
