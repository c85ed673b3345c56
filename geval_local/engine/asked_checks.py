"""Checks of a program that computes, before its first row: are its figures log-probabilities, of what model.

Figures of the full softmax sum up to 1 over the vocabulary, and do not depend on how a next token would be drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from geval_local.engine.asked import MOST_SUM, MOST_TOKENS, Answer, Question
from geval_local.errors import JudgeError
from geval_local.score import OTHER_TOKENS
from geval_local.tokens.requests import Ids

#: Texts on which tokenizers differ: digits, blanks, case, scripts, marks of chats.
TEXTS = (
    "Rate the summary from 1 to 5. - Coherence: 10",
    "  two  spaces,\ttabs\n\n- and lines\r\n",
    "It's 3.14159 and 1,000,000; naïve café, Straße, ÅNGSTRÖM.",
    "中文，日本語、한국어, русский, العربية, हिन्दी 🙂👩‍👩‍👧",
    "def f(x):\n    return x**2  # <|im_end|> [INST] </s>",
)
#: A text whose words a trained model knows before they come.
_KNOWN = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12. One, two, three, four, five. One, two, three, four, five, six, seven."
_PLACES = 8
#: Share of the probability that the likeliest tokens hold after one of the prompts, or the whole vocabulary is asked.
_ENOUGH = 0.5
#: Least sum over the vocabulary: ids beyond the tokenizer's may hold some.
_LEAST_SUM = 0.9
#: Stands for the logarithm of 0.
_NONE = -100.0
#: Answers questions; with True as if the next token were to be drawn by strong settings, which changes no right figure.
Ask = Callable[[Sequence[Question], bool], Sequence[Answer]]


def canary_questions(tokenizer: PreTrainedTokenizerBase) -> list[tuple[Question, int]]:
    """Ask for tokens of fixed texts after what stands before them: the same ones for all, with the one that comes."""
    ids = np.array(tokenizer.encode(f"{TEXTS[0]}\n{TEXTS[2]}\n{_KNOWN}", add_special_tokens=False), dtype=np.int32)
    places = np.linspace(len(ids) // 4, len(ids) - 1, _PLACES).astype(int)
    named = tuple(dict.fromkeys(int(ids[place]) for place in places))
    return [(Question(ids[:place], named), int(ids[place])) for place in places]


def canary_figures(ask: Ask, canary: Sequence[tuple[Question, int]]) -> tuple[float, ...]:
    """Read the log-probability of the token that follows each prompt of a canary."""
    answers = ask([question for question, _ in canary], False)
    return tuple(_figures(answer)[token] for answer, (_, token) in zip(answers, canary, strict=True))


def check_figures(ask: Ask, prompts: Sequence[Ids], vocabulary: int, tolerance: float) -> None:
    """Check that figures are log-probabilities of the full softmax.

    Parameters
    ----------
    ask : callable
        Answers questions, checked one by one.
    prompts : sequence of arrays
        Token ids, some of a text that a trained model knows.
    vocabulary : int
        Number of tokens that the tokenizer knows.
    tolerance : float
        Mean difference (nats) of what is asked twice.

    Raises
    ------
    JudgeError
        If they are not, with the likely cause.
    """
    likeliest = [_figures(one) for one in ask([Question(ids, ()) for ids in prompts], False)]
    sums = [float(np.exp(list(one.values())).sum()) for one in likeliest]
    for found, total in zip(likeliest, sums, strict=True):
        if (known := sum(value > -math.inf for value in found.values())) < min(OTHER_TOKENS, vocabulary):
            raise _wrong(f"only {known} of {OTHER_TOKENS} likeliest tokens have a probability", "a top-k of its own")
        # No other token is likelier than the last of them; a model may have more rows than its tokenizer has tokens.
        if total + 2 * vocabulary * math.exp(min(found.values())) < _LEAST_SUM:
            raise _wrong(f"the likeliest tokens hold {total:.3g} of the probability, and no other one is near", _SCALED)
    if max(sums) < _ENOUGH:
        _check_sum(ask, prompts[0], vocabulary)
    named = tuple(dict.fromkeys(token for one in likeliest for token in one))[:MOST_TOKENS]
    drawn = [_figures(one) for one in ask([Question(ids, named) for ids in prompts], True)]
    pairs = [
        (value, other[token])
        for one, other in zip(likeliest, drawn, strict=True)
        for token, value in one.items()
        if token in other
    ]
    before, after = np.maximum(np.array(pairs).T, _NONE)
    if (difference := float(np.abs(before - after).mean())) > tolerance:
        raise _wrong(f"they change by {difference:.2g} nats with the temperature and top-k of a request", _LATE)


def _check_sum(ask: Ask, ids: Ids, vocabulary: int) -> None:
    """Check that all tokens sum up to 1: a model that is sure of nothing has no few tokens that do."""
    parts = [tuple(range(at, min(at + MOST_TOKENS, vocabulary))) for at in range(0, vocabulary, MOST_TOKENS)]
    whole: dict[int, float] = {}
    for answer in ask([Question(ids, part) for part in parts], False):
        whole.update({} if isinstance(answer, str) else answer)  # a tokenizer may have more tokens than the model
    total = float(np.exp(list(whole.values())).sum())
    if not _LEAST_SUM <= total <= MOST_SUM:
        raise _wrong(f"the probabilities of all {vocabulary} tokens sum up to {total:.3g}", _SCALED)


_SCALED = "logits that are not normalised, or a temperature of its own"
_NAN = "Its weights or its precision are not right: look at its log."
_LATE = "vLLM's `--logprobs-mode processed_logprobs`, which takes them after these settings"


def _wrong(what: str, cause: str) -> JudgeError:
    return JudgeError(
        f"the program's figures are no log-probabilities of the next token: {what}",
        hint=f"Likely cause: {cause}. Start it without that; vLLM's default, `--logprobs-mode raw_logprobs`, is right.",
    )


def _figures(answer: Answer) -> Mapping[int, float]:
    """Return figures, or raise the reason why there are none."""
    if isinstance(answer, str):
        raise JudgeError(
            f"the program that computes the judge gives no usable figures: {answer}",
            hint=f"vLLM 0.32 or later does with its default settings; `--max-logprobs` is {OTHER_TOKENS} or more.",
        )
    if any(map(math.isnan, answer.values())):
        raise JudgeError("the program that computes the judge gives figures that are not numbers (NaN)", hint=_NAN)
    return answer
