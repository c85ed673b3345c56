"""The loop over units and packs, the outcomes made from its read-outs, and the sizes of windows.

Scoring from Python, durable runs and their workers all go through `execute`.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from geval_local.score import LOW_LABEL_MASS, UNEXPLAINED, Outcome

if TYPE_CHECKING:  # runs cut their rows into windows before PyTorch is loaded
    from geval_local.engine.interface import Engine, Pack, Readout
    from geval_local.tokens.encoder import PromptEncoder
    from geval_local.tokens.requests import Prepared, Request

logger = logging.getLogger("geval_local")


@dataclass(frozen=True)
class Unit:
    """Packs that depend on each other but on no other unit: whole documents, as many as fit into a pack."""

    #: In order, at least one.
    packs: tuple[Pack, ...]

    @property
    def requests(self) -> tuple[int, ...]:
        """Indices of the requests that the unit completes."""
        return tuple(index for pack in self.packs for index in pack.requests)

    @property
    def tokens(self) -> int:
        """Number of tokens that it computes."""
        return sum(pack.tokens for pack in self.packs)


def plan_units(engine: Engine, requests: Sequence[Request]) -> list[Unit]:
    """Plan the work: a pure function of the requests and the engine's token budget."""
    return [Unit(tuple(packs)) for _, packs in itertools.groupby(engine.plan(requests), lambda pack: pack.unit)]


def regrow(engine: Engine) -> None:
    """Let passes that memory made smaller grow again, where a run begins: what else took the memory may be gone.

    By as much as they shrink when it is not; within a run what was learnt holds.
    """
    for part in engine.parts:
        part.limit = min(part.batch_tokens, 2 * part.limit)


def execute(
    engine: Engine,
    requests: Sequence[Request],
    units: Sequence[Unit] | None = None,
    *,
    checkpoint: Callable[[], object] = lambda: None,
) -> Iterator[tuple[Unit, list[Readout]]]:
    """Execute units one by one, each in one turn of the engine's, so that other threads have theirs between two units.

    A unit's figures are bit-identical whichever other units are executed, unless memory runs out: then
    passes get smaller and figures differ by rounding. A unit is yielded with the tokens that it computed.
    """
    chosen = plan_units(engine, requests) if units is None else units
    parts = engine.parts
    before = [part.limit for part in parts]
    with closing(_results(engine, requests, [pack for unit in chosen for pack in unit.packs])) as results:
        for unit in chosen:
            done: list[tuple[Pack, list[Readout]]] = []
            with engine.turn:
                for _ in unit.packs[:-1]:
                    done.append(next(results))
                    checkpoint()
                done.append(next(results))
            for part, limit in zip(parts, before, strict=True):
                if part.limit < limit:
                    logger.warning(
                        "memory ran out: passes of at most %d tokens instead of %d for now, which rounds otherwise",
                        part.limit,
                        part.batch_tokens,
                    )
            before = [part.limit for part in parts]
            yield Unit(tuple(pack for pack, _ in done)), [one for _, readouts in done for one in readouts]
            checkpoint()


def _results(
    engine: Engine, requests: Sequence[Request], packs: Sequence[Pack]
) -> Generator[tuple[Pack, list[Readout]], None, None]:
    yield from engine.execute(requests, packs)


def read_units(engine: Engine, prepared: Sequence[Prepared]) -> Iterator[dict[int, Readout]]:
    """Run an engine over the scorable samples of a window, and yield the read-outs of each unit by sample, from 0."""
    places = [place for place, entry in enumerate(prepared) if entry.request is not None]
    requests = [entry.request for entry in prepared if entry.request is not None]
    for unit, readouts in execute(engine, requests):
        yield {places[index]: readout for index, readout in zip(unit.requests, readouts, strict=True)}


def read_window(engine: Engine, prepared: Sequence[Prepared], advance: Callable[[int], object]) -> list[Readout | None]:
    """Run an engine over the scorable samples of a window."""
    found: list[Readout | None] = [None] * len(prepared)
    advance(sum(entry.request is None for entry in prepared))
    for readouts in read_units(engine, prepared):
        for place, readout in readouts.items():
            found[place] = readout
        advance(len(readouts))
    return found


def make_outcome(entry: Prepared, readout: Readout | None, encoder: PromptEncoder) -> Outcome:
    """Combine a prepared sample and its read-out into its outcome."""
    if entry.request is None or readout is None or readout.label_logprobs is None:
        reason = entry.error if readout is None else readout.error
        return Outcome(error=reason or UNEXPLAINED, prompt_tokens=entry.prompt_tokens)
    other: tuple[tuple[str, float], ...] = ()
    if np.exp(readout.label_logprobs).sum() < LOW_LABEL_MASS:
        other = tuple((encoder.decode(tokens), p) for tokens, p in readout.other_tokens)
    # So that seeded draws depend on the sample and not on its row.
    key = int.from_bytes(hashlib.blake2b(entry.request.ids.tobytes(), digest_size=8).digest(), "little")
    return Outcome(readout.label_logprobs, other, entry.prompt_tokens, entry.dropped_tokens, key)


# A model computes one window while the next is read and tokenized. The first windows are smaller, so that it does not
# wait for thousands of rows before its first pack. Two runs over one file give bit-identical figures because they cut
# it into the same windows.

#: Rows that are prepared and planned together; documents that a border cuts are computed twice.
WINDOW = 4096
#: Thoughts that are drawn before their labels are read; a run has windows of as many.
THOUGHTS_AT_ONCE = 256
#: The first windows have these shares of a window: with 4096 rows, 256, 512, 1024 and 2048.
_SHARES = (16, 8, 4, 2)
#: Smaller windows are prepared in no time.
_LEAST = 2048


def window_piece(rows: int) -> int:
    """Return the number of rows of which all windows but the last are multiples, given the rows of a full window."""
    return rows // _SHARES[0] if rows >= _LEAST and rows % _SHARES[0] == 0 else rows


def window_sizes(rows: int) -> Iterator[int]:
    """Yield the sizes of windows, without end, given the rows of a full window."""
    if window_piece(rows) != rows:
        yield from (rows // share for share in _SHARES)
    while True:
        yield rows
