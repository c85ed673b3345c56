"""Prepared samples become outcomes: the engine over a window, and what its read-outs say in texts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from geval_local.engine.interface import Engine, Readout
from geval_local.engine.units import cut_units
from geval_local.score import Outcome
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.requests import Prepared

__all__ = ["LOW_LABEL_MASS", "make_outcome", "read_window"]

#: Below this label mass a score names the tokens that took the rest.
LOW_LABEL_MASS = 0.9


def read_window(engine: Engine, prepared: Sequence[Prepared], advance: Callable[[int], object]) -> list[Readout | None]:
    """Run an engine over what can be scored.

    Parameters
    ----------
    engine : Engine
        The judge's engine.
    prepared : sequence of Prepared
        Samples of one window.
    advance : callable
        Called with the number of samples finished, pack by pack.

    Returns
    -------
    list of (Readout or None)
        In the order of `prepared`; None where there is no request.
    """
    readouts: list[Readout | None] = [None] * len(prepared)
    places = [place for place, entry in enumerate(prepared) if entry.request is not None]
    requests = [entry.request for entry in prepared if entry.request is not None]
    advance(len(prepared) - len(places))
    for unit in cut_units(requests, engine):
        # A window's figures depend on its samples alone, to the last bit: not on what the engine read before or,
        # when runs take turns, in between.
        engine.forget()
        own = unit.requests(requests)
        for pack, results in engine.execute(own, engine.plan(own)):
            for index, readout in zip(pack.requests, results, strict=True):
                readouts[places[unit.members[index]]] = readout
            advance(len(results))
    return readouts


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
