"""Generation, for what is written rather than read: evaluation steps, reasons on request, and thoughts.

Steps and reasons are not sampled: the same judge writes the same ones. A plain language model uses beam search, which
is far less likely to get stuck in a clause; a chat model greedy decoding: a third of the time, and the text is no
worse. benchmarks/NOTES.md shows the comparison. Repetitions are stopped and cut off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    Cache,
    GenerationConfig,
    LogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
)

from geval_local.models.guard import guarded
from geval_local.models.head import Trunk
from geval_local.thinking import Drawing

#: Number of beams for a plain language model.
BEAMS = 4
#: A text whose first line is this long is not a list.
_FIRST_LINE_TOKENS = 160
#: Shorter sentences may legitimately occur twice in a list ("Be strict.").
_LEAST_WORDS = 3
_LOOP_CHARACTERS = 600
#: A sentence with its end, without white space and item number.
_SENTENCE = re.compile(r"(?!\s)(?!\**\d+\**[.)])[^.!?\n]+(?:[.!?]+|\n)")
#: Numbers are ignored: "Sentence 2: ..." after "Sentence 1: ..." adds nothing.
_WORD = re.compile(r"[^\W\d]+")
_LOOP = re.compile(r"(.{12,}?)\1\1\Z", re.DOTALL)
_OPEN_ITEM = re.compile(r"\n\s*\**\d+\**[.)]\**\s*\Z|\s+\Z")
#: A blank line followed by something that is neither another item, bold or not, nor an indented line; or two of them.
_END_OF_LIST = re.compile(r"\n[^\S\n]*\n(?:[^\s\d*]|[^\S\n]*\n)")


class _Stop(StoppingCriteria):
    """Stops texts that are over, by their text and number of tokens; `on_token` may raise to end the generation."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        start: int,
        is_over: Callable[[str, int], bool],
        on_token: Callable[[int], object] = lambda count: None,
    ) -> None:
        self._tokenizer, self._start = tokenizer, start
        self._is_over, self._on_token = is_over, on_token

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **_: object) -> torch.BoolTensor:
        new = input_ids[:, self._start :]
        done = [self._is_over(str(self._tokenizer.decode(ids)), new.shape[1]) for ids in new]
        self._on_token(new.shape[1])
        return torch.tensor(done, device=input_ids.device)  # type: ignore[return-value]


def is_list_over(text: str, tokens: int) -> bool:
    """Whether a numbered list has ended.

    A blank line is followed by something else or by nothing, the text repeats itself, or it has become long without a
    second line.
    """
    text = text.lstrip()
    is_long = tokens >= _FIRST_LINE_TOKENS and "\n" not in text.rstrip()
    return is_long or _END_OF_LIST.search(text) is not None or repetition_start(text) is not None


def is_paragraph_over(text: str, tokens: int = 0) -> bool:
    """Whether a text has come to its first blank line, or repeats itself."""
    return "\n\n" in text.lstrip() or repetition_start(text) is not None


def repetition_start(text: str) -> int | None:
    """Find where a text begins to repeat itself."""
    seen = set()
    for sentence in _SENTENCE.finditer(text):
        words = tuple(_WORD.findall(sentence[0].casefold()))
        if len(words) < _LEAST_WORDS:
            continue
        if words in seen:
            return sentence.start()
        seen.add(words)
    loop = _LOOP.search(text, max(0, len(text) - _LOOP_CHARACTERS))
    return None if loop is None else loop.end(1)


def without_repetition(text: str) -> str:
    """Cut a text where it begins to repeat itself, along with the number of the repeating item."""
    start = repetition_start(text)
    return text if start is None else _OPEN_ITEM.sub("", text[:start])


class Paragraph(NamedTuple):
    """What a model wrote."""

    #: Without special tokens, and without what repeats itself.
    text: str
    #: Whether it came to an end of its own, rather than by the limit or a repetition.
    is_ended: bool
    #: Whether it began to repeat itself.
    repeats: bool = False
    #: Why there is none, where another program writes.
    error: str | None = None


@torch.inference_mode()
def generate_list(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    ids: NDArray[np.int32],
    *,
    max_new_tokens: int,
    beams: int = BEAMS,
    on_token: Callable[[int], object] = lambda count: None,
) -> str:
    """Continue a prompt with likely tokens up to the end of a numbered list, the end token or the limit."""
    stop = _Stop(tokenizer, len(ids), is_list_over, on_token)
    output = _generate(model, tokenizer, [ids], stop, max_new_tokens, _beams(model, beams))
    return finished_list(tokenizer, output[0, len(ids) :].tolist(), max_new_tokens)


def up_to_end(tokenizer: PreTrainedTokenizerBase, new: list[int], is_over: Callable[[str, int], bool]) -> list[int]:
    """Cut what a program wrote after the token with which a text is over."""
    ends = end_tokens(tokenizer)
    for count, token in enumerate(new, start=1):
        if token in ends or is_over(str(tokenizer.decode(new[:count])), count):
            return new[:count]
    return new


def finished_list(tokenizer: PreTrainedTokenizerBase, new: list[int], max_new_tokens: int) -> str:
    """Give the text of the tokens that continue a list, without an item that the limit broke off."""
    text = str(tokenizer.decode(new, skip_special_tokens=True))
    is_ended = not new or new[-1] in end_tokens(tokenizer) or is_list_over(str(tokenizer.decode(new)), len(new))
    if len(new) >= max_new_tokens and not is_ended and "\n" in text.strip():
        text = text.rpartition("\n")[0]
    return without_repetition(text)


@torch.inference_mode()
def generate_paragraphs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[NDArray[np.int32]],
    *,
    max_new_tokens: int,
    on_token: Callable[[int], object] = lambda count: None,
) -> list[Paragraph]:
    """Continue several prompts greedily, in one batch, each by one paragraph; `on_token` as in `generate_list`."""
    width = max(len(ids) for ids in prompts)
    if len(prompts) > 1 and not may_share_batch(model, [len(ids) for ids in prompts], max_new_tokens):
        alone = (
            generate_paragraphs(model, tokenizer, [ids], max_new_tokens=max_new_tokens, on_token=on_token)
            for ids in prompts
        )
        return [text for texts in alone for text in texts]
    stop = _Stop(tokenizer, width, is_paragraph_over, on_token)
    output = _generate(model, tokenizer, prompts, stop, max_new_tokens, beams=1)
    return [finished_paragraph(tokenizer, new.tolist()) for new in output[:, width:]]


def finished_paragraph(tokenizer: PreTrainedTokenizerBase, new: list[int]) -> Paragraph:
    """Give the first paragraph of the tokens that were written."""
    text = str(tokenizer.decode(new, skip_special_tokens=True))
    is_ended = is_paragraph_over(text) or not end_tokens(tokenizer).isdisjoint(new)
    first = text.lstrip().split("\n\n")[0]
    repeats = repetition_start(first) is not None
    return Paragraph(without_repetition(first).strip(), is_ended and not repeats, repeats)


class _Draws(LogitsProcessor):
    """Draws the next token of every text, and leaves only that one to the loop, which takes the likeliest.

    Each text has random numbers of its own, one for each token, whatever is drawn next to it: the token whose share of
    the cumulated probability holds the number. Probabilities are computed in float64 on the host.
    """

    def __init__(self, seeds: Sequence[int], drawing: Drawing) -> None:
        self._streams = list(map(random_numbers, seeds))
        self._drawing = drawing

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        logits = scores.float().cpu().numpy().astype(np.float64)
        tokens = [
            drawn_token(row, stream.random(), self._drawing) for row, stream in zip(logits, self._streams, strict=True)
        ]
        left = torch.full_like(scores, -torch.inf)
        left[torch.arange(len(tokens), device=scores.device), torch.tensor(tokens, device=scores.device)] = 0.0
        return left  # type: ignore[return-value]


def random_numbers(seed: int) -> np.random.Generator:
    """Return the random numbers of a text, one for each of its tokens, whatever is drawn next to it."""
    return np.random.Generator(np.random.Philox(key=seed))


def drawn_token(logits: NDArray[np.float64], number: float, drawing: Drawing) -> int:
    """Draw a token by a number of [0, 1), in vLLM's order: temperature, min-p, top-k, then top-p of what is left."""
    weights = np.exp((logits - logits.max()) / drawing.temperature)
    if drawing.min_p > 0:
        weights[weights < drawing.min_p] = 0.0
    if 0 < drawing.top_k < len(weights):
        able = np.flatnonzero(weights >= np.partition(weights, -drawing.top_k)[-drawing.top_k])
        kept = able[np.argsort(-weights[able], kind="stable")][: drawing.top_k]
        weights[np.setdiff1d(np.arange(len(weights)), kept)] = 0.0
    p = weights / weights.sum()
    top_p = drawing.top_p
    if top_p < 1:
        # All that are less likely together have less than what is left out.
        able = np.flatnonzero(p >= (1 - top_p) / len(p))
        able = able[np.argsort(-p[able], kind="stable")]
        able = able[: int(np.searchsorted(np.cumsum(p[able]), top_p)) + 1]
        kept = np.zeros_like(p)
        kept[able] = p[able]
        p = kept
    reached = np.cumsum(p)
    return int(np.searchsorted(reached, number * reached[-1], side="right"))


@torch.inference_mode()
def generate_samples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[NDArray[np.int32]],
    seeds: Sequence[int],
    is_over: Callable[[str, int], bool],
    *,
    max_new_tokens: int,
    drawing: Drawing,
) -> list[list[int]]:
    """Draw one continuation of every prompt in one batch; a prompt that stands there several times is computed once.

    Behind a text that is over before others there may be more tokens, of any kind.
    """
    width = max(map(len, prompts))
    draws = _Draws(seeds, drawing)
    output = _generate(model, tokenizer, prompts, _Stop(tokenizer, width, is_over), max_new_tokens, 1, draws)
    return [new.tolist() for new in output[:, width:]]


def may_share_batch(model: PreTrainedModel, lengths: Sequence[int], max_new_tokens: int) -> bool:
    """Whether prompts of these lengths may be continued in one batch, padded on the left.

    Rotary frequencies follow the longest text, so that none may grow beyond a switch next to another; a state that is
    not kept token by token takes padding in; plain attention gives NaN for padding (BLOOM, MPT, Gemma 2).
    """
    sizes = {Trunk(model).group(length) for length in (*lengths, max(lengths) + max_new_tokens)}
    takes_padding = not getattr(model, "_is_stateful", False) and model.config._attn_implementation != "eager"
    return len(sizes) == 1 and (len(set(lengths)) == 1 or takes_padding)


def takes_positions(trunk: Trunk) -> bool:
    """Whether a model that keeps a cache can be told positions, and counts them from 0, as RoBERTa's kin do not.

    A model that is not told positions counts them by its cache, and MPT does so wrongly.
    """
    if not {"past_key_values", "position_ids"} <= signature(trunk.module.forward).parameters.keys():
        return False
    ids = torch.arange(4, 8, device=trunk.device)[None]
    found, told = (
        trunk(ids, **given).last_hidden_state.float()
        for given in ({}, {"position_ids": torch.arange(4, device=trunk.device)[None]})
    )
    return torch.allclose(found, told, rtol=0, atol=0.01 * float(found.abs().max()))


def _shared_start(trunk: Trunk, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, Cache]:
    """Compute all of the prompts but their last tokens, each once; empty where the model's cache cannot repeat one."""
    _, first, place = np.unique(ids.cpu().numpy(), axis=0, return_index=True, return_inverse=True)
    if len(first) == len(ids) or ids.shape[1] < 2 or not takes_positions(trunk):
        return {}
    seen = mask[first, :-1]
    positions = (seen.cumsum(dim=-1) - 1).clamp(min=0)
    computed = trunk(ids[first, :-1], attention_mask=seen, position_ids=positions, use_cache=True)
    cache = getattr(computed, "past_key_values", None)
    if not isinstance(cache, Cache):
        return {}
    cache.reorder_cache(torch.from_numpy(place.reshape(-1)).to(trunk.device))  # type: ignore[arg-type]
    return {"past_key_values": cache}


@guarded
def _generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[NDArray[np.int32]],
    stop: StoppingCriteria,
    max_new_tokens: int,
    beams: int,
    draws: LogitsProcessor | None = None,
) -> Any:
    """Continue prompts, padded on the left, by the model's own loop; earlier passes have no effect."""
    width = max(map(len, prompts))
    ids = np.zeros((len(prompts), width), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        mask[row, width - len(prompt) :] = 1
    ends = sorted(end_tokens(tokenizer))
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=False,
        num_beams=beams,
        max_new_tokens=max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=tokenizer.eos_token_id if tokenizer.eos_token_id is not None else min(ends, default=0),
        bos_token_id=tokenizer.bos_token_id,
    )
    trunk = Trunk(model)
    trunk.reset()
    given, seen = (torch.from_numpy(array).to(trunk.device) for array in (ids, mask))
    drawn = {} if draws is None else {"logits_processor": [draws], **_shared_start(trunk, given, seen)}
    return model.generate(  # type: ignore[operator]
        given, attention_mask=seen, generation_config=config, stopping_criteria=[stop], **drawn
    )


def end_tokens(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Ids of the tokens that end a text: all special ones, since a turn may end with another than the text's last."""
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return special if tokenizer.eos_token_id is None else {*special, int(tokenizer.eos_token_id)}


def _beams(model: PreTrainedModel, beams: int) -> int:
    """Return the number of beams: a state that is not kept token by token cannot follow several texts."""
    return 1 if getattr(model, "_is_stateful", False) else beams


def generation_text(model: PreTrainedModel, beams: int) -> str:
    """Describe how `generate_list` writes, for the record."""
    number = _beams(model, beams)
    return "greedy" if number == 1 else f"beam search, {number} beams"
