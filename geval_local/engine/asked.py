"""The engine for programs that serve a model themselves: they are asked for log-probabilities of named next tokens.

Each inner node of a prompt's label trie is one question: the prompt with the node's path behind it, and the node's
children. The program shares prefixes in a cache of its own, so questions come in the order of the prompt trie, the
nodes of a prompt right after it, and window by window, so that what is shared is still in that cache. Every answer is
checked here before anything uses it: a program may give figures that are no log-probabilities.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from geval_local.engine.interface import LEAST_REACHED, Engine, Pack, Position, Readout, ReadoutTable
from geval_local.errors import Cause, ErrorCode
from geval_local.score import LOW_LABEL_MASS
from geval_local.tokens.requests import Ids, Request, common_prefix

#: Most tokens that one question may name, as vLLM 0.32 has it.
MOST_TOKENS = 128
#: Most that probabilities of different next tokens sum up to: 1, and the rounding of a sum in float32.
MOST_SUM = 1.001
#: As if the next token were to be drawn: settings that change no figure that is right.
DRAWN: Mapping[str, float] = {"temperature": 2.0, "top_k": 2}
_CAUSE = "so these are no log-probabilities; does the program give raw logits (vLLM: `--logprobs-mode raw_logprobs`)?"


@dataclass(frozen=True)
class Question:
    """A prompt, and the next tokens whose log-probabilities are asked for; the `OTHER_TOKENS` likeliest if none is."""

    #: Token ids, at least one.
    ids: NDArray[np.int32]
    #: At most `MOST_TOKENS`.
    tokens: tuple[int, ...]


#: Log-probabilities by token, over the full vocabulary, of at least the tokens asked for; or why there are none.
Answer: TypeAlias = Mapping[int, float] | str


@dataclass(frozen=True)
class Answers:
    """What a program answered to questions, in their order."""

    answers: Sequence[Answer]
    #: Tokens that went through the model, as far as the program says.
    computed: int


class AskedEngine(Engine):
    """Engine that asks a program.

    Parameters
    ----------
    name : str
        Name in reports.
    ask : callable
        Answers questions, all of which may be computed together.
    batch_tokens : int
        Most distinct tokens of a window: what the program's prefix cache has room for.
    block : int
        Tokens of a block of that cache; a prompt shares whole blocks only.
    turn : context manager, optional
        See `geval_local.engine.interface.Engine`.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[Sequence[Question]], Answers],
        *,
        batch_tokens: int,
        block: int = 1,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self.name = name
        self.batch_tokens = self.limit = batch_tokens
        self.turn = threading.RLock() if turn is None else turn
        #: Tokens that went through the model so far.
        self.computed_tokens = 0
        self._ask = ask
        self._block = block

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """Cut the requests, in the order of the prompt trie, into windows; each is a unit of its own.

        The program knows what it computes, this engine only estimates it: planned packs have no tokens.
        """
        keys = [request.ids.astype(">u4").tobytes() for request in requests]
        packs: list[Pack] = []
        members: list[int] = []
        tokens, before = 0, np.zeros(0, dtype=np.int32)
        for index in sorted(range(len(requests)), key=keys.__getitem__):
            cost = self._cost(requests[index], before)
            if members and tokens + cost > self.batch_tokens:
                packs.append(Pack(tuple(members), 0, len(packs)))
                members, tokens, cost = [], 0, self._cost(requests[index], before[:0])
            members.append(index)
            tokens, before = tokens + cost, requests[index].ids
        return [*packs, Pack(tuple(members), 0, len(packs))] if members else packs

    def _cost(self, request: Request, before: Ids) -> int:
        """Estimate the tokens that a request computes after a neighbour: what fills no shared block is computed."""
        size, block = len(request.ids), self._block
        # The last token of a prompt is always computed.
        shared = min(common_prefix(before, request.ids), size - 1) // block * block
        deeper = [len(node.path) for node in request.trie.inner_nodes if node.path]
        return size - shared + sum(size + depth - (size + depth - 1) // block * block for depth in deeper)

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """Ask window by window; a request without an answer has its reason."""
        for pack in packs:
            before = self.computed_tokens
            readouts = self._read([requests[index] for index in pack.requests])
            yield replace(pack, tokens=self.computed_tokens - before), readouts

    def _read(self, requests: Sequence[Request]) -> list[Readout]:
        """Ask for the nodes of some requests; where the labels have little mass, also for what has it."""
        table = ReadoutTable(requests)
        edges = [np.full(request.trie.edges, np.nan) for request in requests]
        self.fill(requests, edges, table.failed)
        other = self._other(requests, edges, table.failed)
        for index, request in enumerate(requests):
            for node, part in enumerate(request.trie.edge_slices):
                position = Position(index, node)
                table.add(position, edges[index][part], other.get(position, ()))
        return [table.take(index) for index in range(len(requests))]

    def fill(self, requests: Sequence[Request], edges: Sequence[NDArray[np.float64]], failed: dict[int, Cause]) -> None:
        """Ask for the edges of some requests' label tries, in one call; `failed` gets reasons by request."""
        wanted = [
            (Position(index, node), start)
            for index, request in enumerate(requests)
            for node, inner in enumerate(request.trie.inner_nodes)
            for start in range(0, len(inner.tokens), MOST_TOKENS)
        ]
        questions = [_question(requests, position, start) for position, start in wanted]
        for (position, start), question, answer in zip(wanted, questions, self._answers(questions), strict=True):
            if isinstance(answer, str):
                failed.setdefault(position.request, Cause(answer, ErrorCode.BACKEND))
                continue
            part = requests[position.request].trie.edge_slices[position.node]
            first = part.start + start
            edges[position.request][first : first + len(question.tokens)] = [answer[one] for one in question.tokens]
            if why := _excess(edges[position.request][part]):
                failed.setdefault(position.request, Cause(why, ErrorCode.BACKEND))

    def _other(
        self, requests: Sequence[Request], edges: Sequence[NDArray[np.float64]], failed: Mapping[int, Cause]
    ) -> dict[Position, tuple[tuple[int, float], ...]]:
        """Ask what took the rest of the mass, where the labels have little of it: likeliest tokens by position."""
        places = [
            Position(index, node)
            for index, request in enumerate(requests)
            if index not in failed
            and not np.isnan(edges[index]).any()
            and np.exp(request.trie.label_logprobs(edges[index])).sum() < LOW_LABEL_MASS
            for node, reached in enumerate(request.trie.reach(edges[index]))
            if reached > LEAST_REACHED
        ]
        questions = [Question(_question(requests, place, 0).ids, ()) for place in places]
        found: dict[Position, tuple[tuple[int, float], ...]] = {}
        for place, answer in zip(places, self._answers(questions), strict=True):
            if not isinstance(answer, str):
                own = set(requests[place.request].trie.inner_nodes[place.node].tokens)
                found[place] = tuple((token, float(np.exp(one))) for token, one in answer.items() if token not in own)
        return found

    def _answers(self, questions: Sequence[Question]) -> list[Answer]:
        """Ask, and check every answer."""
        if not questions:
            return []
        found = self._ask(questions)
        self.computed_tokens += found.computed
        return checked_answers(questions, found.answers)


def checked_answers(questions: Sequence[Question], answers: Sequence[Answer]) -> list[Answer]:
    """Give reasons instead of answers without a figure for every token, or whose figures are no log-probabilities."""
    return [_checked(*pair) for pair in zip(questions, answers, strict=True)]


def _question(requests: Sequence[Request], position: Position, start: int) -> Question:
    """Put the question of one inner node, from the child number `start` on."""
    request = requests[position.request]
    node = request.trie.inner_nodes[position.node]
    ids = np.concatenate([request.ids, np.array(node.path, dtype=np.int32)]) if node.path else request.ids
    return Question(ids, node.tokens[start : start + MOST_TOKENS])


def _checked(question: Question, answer: Answer) -> Answer:
    """Give a reason instead of an answer that lacks a token, or has figures that are no log-probabilities."""
    if isinstance(answer, str):
        return answer
    lacking = [token for token in question.tokens if token not in answer]
    if lacking:
        return f"there is no figure for the token {lacking[0]}"
    for token, value in answer.items():
        if isinstance(value, bool) or not isinstance(value, float | int):
            return f"the figure for the token {token} is no number"
        if value > math.log(MOST_SUM):
            return f"the figure for the token {token} is {value:.4g}, above 0, {_CAUSE}"
    return _excess(np.array(list(answer.values()), dtype=np.float64)) or answer


def _excess(figures: NDArray[np.float64]) -> str | None:
    """Tell that the probabilities of different tokens sum up to more than 1; those that are not known yet are NaN."""
    total = float(np.exp(np.minimum(figures[~np.isnan(figures)], 1.0)).sum())
    return f"the probabilities of the tokens sum up to {total:.4g}, {_CAUSE}" if total > MOST_SUM else None
