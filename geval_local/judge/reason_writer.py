"""Reasons: a second pass, after the score, in which a judge writes why a text got its most likely label.

The score comes first and from the form's read-out alone; a reason is conditioned on its label and never changes it
(G-EVAL asks for scores ONLY, Liu et al., 2023, section 2). A reason is the judge's text about the score, not its cause.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geval_local.errors import Cause, ErrorCode, UnscorableError
from geval_local.io.samples import Sample
from geval_local.judge.audit import example_samples
from geval_local.metric import Metric
from geval_local.prompt import REASON_REQUEST, Prompt, render_reason_prompt

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge
    from geval_local.tokens.requests import Ids

#: Most tokens of a reason.
REASON_TOKENS = 160
#: Most tokens of the reason by which `check_writing` judges; enough for a sentence with a citation.
CHECK_TOKENS = 48
#: Reasons that are written together.
ROWS_AT_ONCE = 8
#: A passage of this many words that stands in the text counts as cited, in quotation marks or not.
CITED_WORDS = 4
_QUOTED = re.compile(r"[\"\u201c\u00ab]([^\"\u201c\u201d\u00ab\u00bb]{2,}?)[\"\u201d\u00bb]")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Reason:
    """Why a text got its label, in the judge's words."""

    #: One paragraph; empty if there is none.
    text: str
    #: The label that it was asked about.
    label: str
    #: Hash of the prompt's text, 64 hex digits; empty if there was no prompt.
    prompt_sha256: str = ""
    #: Whether the judge ended it, rather than the limit of tokens or a repetition.
    is_complete: bool = False
    #: Whether it holds words of the text, see `cited`. A reason that cites nothing would fit any text.
    cites: bool = False
    #: Why there is none.
    error: Cause | None = None
    #: Whether the judge began to repeat itself; `text` ends before that.
    repeats: bool = False

    @property
    def fault(self) -> str | None:
        """Why this reason is of no use; None if it is."""
        if self.error is not None:
            return self.error
        if self.repeats:
            return "it repeats itself"
        return None if self.cites else "it cites nothing of the text"


@dataclass(frozen=True)
class WritingCheck:
    """Whether a judge can write reasons, by one that it wrote about a built-in sample."""

    #: Whether the reason is of use; None if it was not tried.
    can_write: bool | None
    #: Why, or why not.
    because: str
    #: What it wrote; empty if it wrote nothing.
    reason: str


def cited(reason: str, texts: Sequence[str]) -> bool:
    """Whether a reason cites one of the texts: in quotation marks, or by four words in their order."""
    held = [f" {_words(text)} " for text in texts]
    passages = [_words(match[1]) for match in _QUOTED.finditer(reason)]
    words = _words(reason).split()
    passages += [" ".join(words[start : start + CITED_WORDS]) for start in range(len(words) - CITED_WORDS + 1)]
    return any(passage and f" {passage} " in text for passage in passages for text in held)


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def reason_batches(
    judge: Judge,
    metric: Metric,
    samples: Sequence[Sample],
    labels: Sequence[str],
    *,
    max_new_tokens: int = REASON_TOKENS,
    request: str = REASON_REQUEST,
    on_token: Callable[[int], object] = lambda count: None,
) -> Iterator[list[tuple[int, Reason]]]:
    """Let a judge write the reasons of scored samples, in batches of like length; `on_token` takes a batch's tokens.

    Without the samples of the first batches, the others stay as they are.
    """
    waiting: list[tuple[int, Prompt, Ids, list[str]]] = []
    for place, (sample, label) in enumerate(zip(samples, labels, strict=True)):
        try:
            texts = sample.texts(metric.fields)
        except UnscorableError as error:
            yield [(place, Reason("", label, error=error.cause))]
            continue
        prompt = render_reason_prompt(metric, texts, label, request)
        ids = judge.encoder.encode([prompt])[0]
        if len(ids) + max_new_tokens > judge.context:
            needed = f"{len(ids)} tokens and the reason up to {max_new_tokens}"
            problem = Cause(f"the prompt has {needed}, the judge reads {judge.context}", ErrorCode.TOO_LONG)
            yield [(place, Reason("", label, error=problem))]
            continue
        waiting.append((place, prompt, ids, list(texts.values())))
    waiting.sort(key=lambda one: len(one[2]))
    at_once = ROWS_AT_ONCE
    while waiting:
        batch = waiting[:at_once]
        try:
            written = judge.backend.write_paragraphs(
                [ids for _, _, ids, _ in batch], max_new_tokens=max_new_tokens, on_token=on_token
            )
        except MemoryError:
            if len(batch) == 1:
                raise
            at_once = len(batch) // 2
            continue
        judge.check_files()
        del waiting[: len(batch)]
        found = []
        for (place, prompt, _, held), own in zip(batch, written, strict=True):
            digest = hashlib.sha256(prompt.text.encode("utf-8", "surrogatepass")).hexdigest()
            nothing = None if own.text else Cause(own.error or "the judge wrote nothing", ErrorCode.NOT_WRITTEN)
            cites = cited(own.text, held)
            found.append((place, Reason(own.text, labels[place], digest, own.is_ended, cites, nothing, own.repeats)))
        yield found


def check_writing(
    judge: Judge, metric: Metric, label: str, *, on_token: Callable[[int], object] = lambda count: None
) -> WritingCheck:
    """Let a judge write one short reason about a built-in sample, and say whether it is of use."""
    sample = example_samples(metric)[:1]
    batches = reason_batches(judge, metric, sample, [label], max_new_tokens=CHECK_TOKENS, on_token=on_token)
    (((_, reason),),) = batches
    if reason.fault is not None:
        return WritingCheck(False, reason.fault, reason.text)
    ended = "" if reason.is_complete else f", in the first {CHECK_TOKENS} tokens"
    return WritingCheck(True, f"it cites the text of the example{ended}", reason.text)
