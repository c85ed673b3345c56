"""Requests that end where a thought begins: the thought and the rest of the form follow when it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import Cause
from geval_local.metric import Metric
from geval_local.prompt import Prompt
from geval_local.questions.pair import Order, orders_of
from geval_local.thinking import Ending, Thought
from geval_local.tokens.encoder import ThinkingEncoder, TokenIds
from geval_local.tokens.label_forms import find_labels
from geval_local.tokens.label_trie import LabelTrie
from geval_local.tokens.requests import Prepared, Request, RequestMaker


@dataclass(frozen=True)
class Rest:
    """What stands between a thought and the label."""

    #: Its tokens.
    ids: NDArray[np.int32]
    #: The labels after it.
    trie: LabelTrie


@dataclass(frozen=True)
class ThoughtRequest(Request):
    """A filled form up to the place of its thought, tokenized; `trie` is that after a thought closed by force."""

    #: What follows the thought, by how it ended.
    rests: Mapping[Ending, Rest] = field(default_factory=dict)

    def after(self, thought: Thought) -> Request:
        """Return the request for the labels after a thought: the tokens as they were drawn, never encoded again."""
        rest = self.rests[thought.ending]
        ids = np.concatenate([self.ids, np.array(thought.ids, dtype=np.int32), rest.ids])
        return Request(ids, rest.trie, self.prefix)


def _rests(encoder: ThinkingEncoder, order: Order) -> dict[Ending, Rest]:
    """Find what stands between thoughts and labels, for one order of a form: the same after every prompt."""
    prompt = order.fill(dict.fromkeys(order.metric.fields, "x"))
    found: dict[Ending, Rest] = {}
    for ending, (before, text) in encoder.endings(prompt).items():
        start, whole = encoder.encode_texts([before, before + text])
        if not np.array_equal(whole[: len(start)], start):  # merged with what stands before: encoded by itself
            before, start, whole = "", start[: len(encoder.prefix_ids)], encoder.encode_texts([text])[0]
        trie, _ = find_labels(encoder, order.metric, prompt, before + text)
        found[ending] = Rest(whole[len(start) :], trie)
    return found


class ThoughtMaker(RequestMaker):
    """Fills a metric's forms up to the place of a thought, and tokenizes them.

    Parameters
    ----------
    encoder : ThinkingEncoder
        Encodes them.
    metric : Metric
        With its final evaluation steps.
    context : int
        Longest prompt in tokens, including the thought and the label's tokens.
    tokens : int
        Most tokens of a thought.
    """

    def __init__(self, encoder: ThinkingEncoder, metric: Metric, context: int, tokens: int) -> None:
        self.encoder, self.metric, self.context = encoder, metric, context
        self._orders = orders_of(metric)
        self._rests = [_rests(encoder, order) for order in self._orders]
        self.room = tokens + max(len(rest.ids) for one in self._rests for rest in one.values())

    def _trie_for(self, order: int, prompt: Prompt, ids: TokenIds) -> LabelTrie:
        return self._rests[order]["cut"].trie

    def _fit(self, order: int, texts: dict[str, str], prompt: Prompt, ids: TokenIds) -> Prepared:
        entry = super()._fit(order, texts, prompt, ids)
        if entry.request is None:
            return entry
        made = entry.request
        return replace(entry, request=ThoughtRequest(made.ids, made.trie, made.prefix, self._rests[order]))


def after_thoughts(entries: Sequence[Prepared], thoughts: Mapping[int, Thought | Cause], count: int) -> list[Prepared]:
    """Return `count` requests for each entry, side by side; `thoughts` by entry and number, ``entry * count + number``.

    An entry without a request stays what it is, `count` times; one without a thought has the reason for that.
    """
    found = []
    for place, entry in enumerate(entry for entry in entries for _ in range(count)):
        if isinstance(entry.request, ThoughtRequest):
            thought = thoughts[place]
            if isinstance(thought, Thought):
                request = entry.request.after(thought)
                entry = replace(entry, request=request, prompt_tokens=len(request.ids), thought=thought)
            else:
                entry = replace(entry, request=None, error=thought)
        found.append(entry)
    return found
