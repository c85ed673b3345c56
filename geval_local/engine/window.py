"""The one loop over units and packs, and what becomes of its read-outs.

Scoring from Python, durable runs and the workers of distributed ones all go through `execute`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from geval_local.engine.interface import Engine, Pack, Readout
from geval_local.score import LOW_LABEL_MASS, Outcome
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.requests import Prepared, Request

__all__ = ["Unit", "execute", "make_outcome", "plan_units", "read_window"]


@dataclass(frozen=True)
class Unit:
    """Packs that depend on each other and on no other unit's: whole documents, as many as fit into a pack.

    Attributes
    ----------
    packs : tuple of Pack
        In order, at least one.
    """

    packs: tuple[Pack, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        """Indices of the requests that it completes."""
        return tuple(index for pack in self.packs for index in pack.requests)

    @property
    def tokens(self) -> int:
        """Tokens that go through the model."""
        return sum(pack.tokens for pack in self.packs)


def plan_units(engine: Engine, requests: Sequence[Request]) -> list[Unit]:
    """Plan the work: a pure function of the requests and the engine's token budget.

    Parameters
    ----------
    engine : Engine
        Who will do it.
    requests : sequence of Request
        All that a window asks of one metric.

    Returns
    -------
    list of Unit
        Every request is in one of them.
    """
    return [Unit(tuple(packs)) for _, packs in itertools.groupby(engine.plan(requests), lambda pack: pack.unit)]


def execute(
    engine: Engine,
    requests: Sequence[Request],
    units: Sequence[Unit] | None = None,
    *,
    checkpoint: Callable[[], object] = lambda: None,
) -> Iterator[tuple[Unit, list[Readout]]]:
    """Execute units one after the other.

    Figures of a unit are the same to the last bit whichever units are executed beside it, unless memory runs out: then
    passes become smaller and figures differ by rounding.

    Parameters
    ----------
    engine : Engine
        Who does it.
    requests : sequence of Request
        Those that the units were planned for.
    units : sequence of Unit, optional
        Some of a plan's, in its order; all of them when absent.
    checkpoint : callable
        Called after every pack, that of a finished unit after the unit was given out. What it raises ends the work.

    Yields
    ------
    unit : Unit
        A finished unit.
    readouts : list of Readout
        One for each of its requests, in their order.
    """
    chosen = plan_units(engine, requests) if units is None else units
    with closing(_results(engine, requests, [pack for unit in chosen for pack in unit.packs])) as results:
        for unit in chosen:
            readouts: list[Readout] = []
            for _ in unit.packs[:-1]:
                readouts += next(results)[1]
                checkpoint()
            readouts += next(results)[1]
            yield unit, readouts
            checkpoint()


def _results(
    engine: Engine, requests: Sequence[Request], packs: Sequence[Pack]
) -> Generator[tuple[Pack, list[Readout]], None, None]:
    yield from engine.execute(requests, packs)


def read_window(engine: Engine, prepared: Sequence[Prepared], advance: Callable[[int], object]) -> list[Readout | None]:
    """Run an engine over what can be scored.

    Parameters
    ----------
    engine : Engine
        The judge's engine.
    prepared : sequence of Prepared
        Samples of one window.
    advance : callable
        Called with the number of samples finished, unit by unit.

    Returns
    -------
    list of (Readout or None)
        In the order of `prepared`; None where there is no request.
    """
    found: list[Readout | None] = [None] * len(prepared)
    places = [place for place, entry in enumerate(prepared) if entry.request is not None]
    requests = [entry.request for entry in prepared if entry.request is not None]
    advance(len(prepared) - len(places))
    for unit, readouts in execute(engine, requests):
        for index, readout in zip(unit.requests, readouts, strict=True):
            found[places[index]] = readout
        advance(len(readouts))
    return found


def make_outcome(entry: Prepared, readout: Readout | None, encoder: PromptEncoder) -> Outcome:
    """Put together what is known of a sample once the engine has seen it.

    Parameters
    ----------
    entry : Prepared
        The sample.
    readout : Readout or None
        What the engine gave; None if there was no request.
    encoder : PromptEncoder
        Writes the tokens that took the rest of the mass.
    """
    if entry.request is None or readout is None or readout.label_logprobs is None:
        reason = entry.error if readout is None else readout.error
        return Outcome(error=reason or "unknown reason", prompt_tokens=entry.prompt_tokens)
    other: tuple[tuple[str, float], ...] = ()
    if np.exp(readout.label_logprobs).sum() < LOW_LABEL_MASS:
        other = tuple((encoder.decode_token(token), p) for token, p in readout.other_tokens)
    return Outcome(
        readout.label_logprobs,
        other,
        entry.prompt_tokens,
        entry.dropped_tokens,
        _sample_key(entry.request.ids.tobytes()),
    )


def _sample_key(content: bytes) -> int:
    """Derive a number from a prompt's tokens, so that seeded draws follow the sample and not its row."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
