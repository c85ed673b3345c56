"""The interface of engines: requests in, label log-probabilities out, pack by pack.

Engines are independent of metrics, texts and tokenizers. A plan is a pure function of the requests. Packs of a unit
may continue one another; a unit continues only prefixes that are computed separately. So a unit gives
the same bits whenever it is executed, whatever the engine did before, and an interrupted run that plans again continues
with the missing units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import Cause, ErrorCode
from geval_local.score import OTHER_TOKENS

if TYPE_CHECKING:
    from geval_local.tokens.label_trie import LabelTrie
    from geval_local.tokens.requests import Request

#: Of a label's first tokens that are less likely, nobody needs to know how they would have gone on.
LEAST_REACHED = 1e-4
#: Most positions of prompts' prefixes that an engine keeps between plans: a metric's has some hundreds, and a run
#: alternates between its metrics.
MOST_POSITIONS = 4_096


@dataclass(frozen=True)
class Readout:
    """The model's result for one form."""

    #: ``log P(l | form)``, float64, shape (labels,); None if the form could not be computed.
    label_logprobs: NDArray[np.float64] | None
    #: The likeliest token sequences that leave the labels with their last token, with their probabilities, likeliest
    #: first: single tokens, and those after a label's first tokens (" " and then "7" on a scale of 1 to 5).
    other_tokens: tuple[tuple[tuple[int, ...], float], ...] = ()
    #: Why there are no log-probabilities.
    error: Cause | None = None


@dataclass(frozen=True)
class Position:
    """One read-out position: an inner node of one request's label trie."""

    request: int
    node: int


#: A position, the log-probabilities of its children's tokens, and the likeliest other tokens.
PositionReadout: TypeAlias = tuple[Position, NDArray[np.float64], tuple[tuple[int, float], ...]]


@dataclass(frozen=True)
class Pack:
    """One planned forward pass."""

    #: Indices into the planned requests that it completes.
    requests: tuple[int, ...]
    #: Tokens that go through the model, padding included. 0 in a plan where only the program that computes knows them;
    #: the executed pack has them.
    tokens: int
    #: Number of its unit in the plan, ascending. A unit contains all read-outs of the requests that it completes.
    unit: int


class Engine(Protocol):
    """A way to compute label log-probabilities with a model.

    Attributes
    ----------
    name : str
        Name in reports.
    batch_tokens : int
        The token budget that packs are planned with.
    limit : int
        Most tokens per forward pass at present: `batch_tokens`, or less after memory ran out.
    turn : context manager
        Held while the model computes, by whoever makes it compute; the same thread may take it again. All engines of
        one model share one, and so does what writes with it: the state between packs is theirs.
    """

    name: str
    batch_tokens: int
    limit: int
    turn: AbstractContextManager[object]

    @property
    def parts(self) -> Sequence[Engine]:
        """The engine itself, and those that serve what it leaves: each runs out of memory by itself."""
        return [self]

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """Cut the work into packs: a pure function of the requests and the engine's token budget."""

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """Compute whole units of a plan in order; each pack is yielded with one read-out per request that it names.

        Its tokens are then those that went through the model.
        """


def read_all(
    engine: Engine, requests: Sequence[Request], computed: Callable[[int], object] = lambda tokens: None
) -> list[Readout]:
    """Plan and execute requests; their read-outs in order. `computed` takes the tokens of every pack."""
    found: dict[int, Readout] = {}
    with engine.turn:
        for pack, readouts in engine.execute(requests, engine.plan(requests)):
            found.update(zip(pack.requests, readouts, strict=True))
            computed(pack.tokens)
    return [found[index] for index in range(len(requests))]


@dataclass
class _Partial:
    edges: NDArray[np.float64]
    missing: int
    #: By inner node, tokens that lead to none of its children.
    other: dict[int, tuple[tuple[int, float], ...]] = field(default_factory=dict)


class ReadoutTable:
    """Collects positions into read-outs, also if a request's positions are in different packs."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._partial: dict[int, _Partial] = {}
        #: Why requests have no read-out, where memory ran out for them or no usable answer came.
        self.failed: dict[int, Cause] = {}

    def fail(self, request: int, how: str) -> None:
        """Give a request up for lack of memory."""
        size = len(self._requests[request].ids)
        told = f"out of memory: a prompt of {size} tokens does not fit even {how}"
        self.failed[request] = Cause(told, ErrorCode.MEMORY)

    def add(self, position: Position, logprobs: NDArray[np.float64], other: tuple[tuple[int, float], ...]) -> None:
        """Add the children's log-probabilities of one position."""
        trie = self._requests[position.request].trie
        partial = self._partial.get(position.request)
        if partial is None:
            partial = _Partial(np.empty(trie.edges), len(trie.inner_nodes))
            self._partial[position.request] = partial
        partial.edges[trie.edge_slices[position.node]] = logprobs
        partial.missing -= 1
        partial.other[position.node] = other

    def collect(self, found: Iterable[PositionReadout]) -> None:
        """Add positions."""
        for result in found:
            self.add(*result)

    def take(self, request: int) -> Readout:
        """Return the finished read-out of a request, or why there is none."""
        if request in self.failed:
            return Readout(None, error=self.failed[request])
        partial = self._partial.pop(request)
        if partial.missing:
            raise AssertionError(f"request {request} lacks {partial.missing} read-out positions")
        if np.isnan(partial.edges).any():
            told = "the model's logits are not numbers (NaN) for this prompt"
            return Readout(None, error=Cause(told, ErrorCode.NOT_FINITE))
        trie = self._requests[request].trie
        logprobs = trie.label_logprobs(partial.edges)
        if np.isneginf(logprobs).all():
            told = "the model gives no label of the scale any probability"
            return Readout(None, error=Cause(told, ErrorCode.NO_LABEL))
        return Readout(logprobs, _other_tokens(trie, partial))


def _other_tokens(trie: LabelTrie, partial: _Partial) -> tuple[tuple[tuple[int, ...], float], ...]:
    """List what leaves the label trie, likeliest first; what follows a whole label ends it, and is not listed."""
    found = [
        ((*node.path, token), reached * prob)
        for number, (node, reached) in enumerate(zip(trie.inner_nodes, trie.reach(partial.edges), strict=True))
        if reached > LEAST_REACHED and not node.is_label
        for token, prob in partial.other[number]
    ]
    return tuple(sorted(found, key=lambda one: -one[1])[:OTHER_TOKENS])
