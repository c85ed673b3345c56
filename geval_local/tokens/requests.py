"""Samples become requests (filled form, tokens, label trie) or errors with reasons. Needs no weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import Cause, ErrorCode, UnscorableError
from geval_local.examples import doubts
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.prompt import Prompt, examples_text
from geval_local.questions.pair import orders_of
from geval_local.thinking import Thought
from geval_local.tokens.encoder import PromptEncoder, TokenIds
from geval_local.tokens.label_forms import LabelReader
from geval_local.tokens.label_trie import LabelTrie

Ids = NDArray[np.int32]
logger = logging.getLogger("geval_local")


@dataclass(frozen=True)
class Request:
    """One filled form, tokenized."""

    #: The prompt's tokens, at least one.
    ids: NDArray[np.int32]
    #: The labels' token paths after it.
    trie: LabelTrie
    #: Estimated common start of all prompts of the metric, for the engine to keep for later prompts. Prompts that do
    #: not start with it are computed without it.
    prefix: NDArray[np.int32] | None = None


@dataclass(frozen=True)
class Prepared:
    """One sample prepared for the model."""

    #: Input for the engine; None if the sample cannot be scored.
    request: Request | None
    #: Length of the filled form; 0 if it could not be filled.
    prompt_tokens: int = 0
    #: Tokens removed from the field that may be shortened.
    dropped_tokens: int = 0
    #: Why there is no request.
    error: Cause | None = None
    #: The thought that the request ends with, before the form's last line.
    thought: Thought | None = None


class RequestMaker:
    """Fills a metric's forms, one for each order, and tokenizes them."""

    #: Tokens that the judge reads after a prompt and before its labels.
    room = 0

    def __init__(self, encoder: PromptEncoder, metric: Metric, context: int) -> None:
        self.encoder = encoder
        self.metric = metric
        self.context = context
        self._orders = orders_of(metric)
        self._readers = [LabelReader(encoder, order.metric, order.fill) for order in self._orders]
        #: Of the first order.
        self.reader = self._readers[0]
        if metric.examples:
            tokens = len(encoder.encode_texts([examples_text(metric)])[0]) - len(encoder.prefix_ids)
            for told in doubts(metric.name, metric.examples, tokens, context):
                logger.warning(told)

    @cached_property
    def prefix(self) -> TokenIds:
        """The tokens that forms start with whatever the sample: what two that have no text in common share."""
        forms = [self._orders[0].fill(dict.fromkeys(self.metric.fields, text)) for text in ("A", "7")]
        first, second = self.encoder.encode(forms)
        return first[: common_prefix(first, second)]

    def prepare(self, samples: Sequence[Sample]) -> list[Prepared]:
        """Turn samples into requests, in order, the forms of a sample side by side; bad ones carry their reason."""
        filled: list[tuple[int, dict[str, str], Prompt] | Cause] = []
        for sample in samples:
            try:
                texts = sample.texts(self.metric.fields)
                filled += [(number, texts, order.fill(texts)) for number, order in enumerate(self._orders)]
            except UnscorableError as error:
                filled += [error.cause] * len(self._orders)
        encoded = iter(self._encoded([entry[2] for entry in filled if not isinstance(entry, Cause)]))
        return [
            Prepared(None, error=entry) if isinstance(entry, Cause) else self._prepared(*entry, next(encoded))
            for entry in filled
        ]

    def _prepared(self, order: int, texts: dict[str, str], prompt: Prompt, ids: TokenIds | Cause) -> Prepared:
        """Make a request of a filled form and its tokens, or of the reason why it has none."""
        try:
            return Prepared(None, error=ids) if isinstance(ids, Cause) else self._fit(order, texts, prompt, ids)
        except UnscorableError as error:
            return Prepared(None, error=error.cause)

    def _encoded(self, prompts: Sequence[Prompt]) -> list[TokenIds | Cause]:
        """Encode prompts together; where that fails, find those that cannot be encoded, and give their reasons."""
        try:
            return list(self.encoder.encode(prompts))
        except UnscorableError as error:
            if len(prompts) == 1:
                return [error.cause]
            half = len(prompts) // 2
            return [*self._encoded(prompts[:half]), *self._encoded(prompts[half:])]

    def _trie_for(self, order: int, prompt: Prompt, ids: TokenIds) -> LabelTrie:
        return self._readers[order].trie_for(prompt, ids)

    def _fit(self, order: int, texts: dict[str, str], prompt: Prompt, ids: TokenIds) -> Prepared:
        """Shorten the one field that may be shortened until the prompt fits, or give the reason why it does not."""
        fill = self._orders[order].fill
        trie = self._trie_for(order, prompt, ids)
        full_length = len(ids)
        name = self.metric.shorten
        while (excess := len(ids) + self.room + trie.depth - self.context) > 0 and name is not None and texts[name]:
            texts = {**texts, name: self.encoder.drop_tokens(texts[name], excess)}
            prompt = fill(texts)
            ids = self.encoder.encode([prompt])[0]
            trie = self._trie_for(order, prompt, ids)
        if excess > 0 or (name is not None and not texts[name]):
            remedy = (
                f"the field {name!r} cannot be shortened far enough"
                if name is not None
                else "name a field to be cut (shorten: source in the metric), or take a judge that reads more"
            )
            rest = f"a thought of {self.room} tokens and the label" if self.room else "the label"
            told = f"the prompt has {full_length} tokens, the judge reads {self.context} with {rest}; {remedy}"
            return Prepared(None, full_length, error=Cause(told, ErrorCode.TOO_LONG))
        # Count the removed tokens by the remainder: a cut inside a character or a merge removes more than requested.
        return Prepared(Request(ids, trie, self.prefix), len(ids), full_length - len(ids))


def common_prefix(first: Ids | NDArray[np.int64], second: Ids | NDArray[np.int64]) -> int:
    """Return the length of the longest common prefix of two sequences of tokens, or of other numbers."""
    length = min(len(first), len(second))
    if not length:
        return 0
    different = first[:length] != second[:length]
    place = int(different.argmax())
    return place if different[place] else length
