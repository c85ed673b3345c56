"""Units: the stretches of a window whose packs depend on each other, and so on nothing else.

An engine that shares prefixes goes on, in one pack, from the keys of the pack before. A pack that is computed again by
itself would have to build these keys in other batches, and float arithmetic would give other last bits. So work is cut
into units that start from nothing; a pack is repeated with the unit it belongs to. Where packs are independent of each
other the window is one unit and every pack stands alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geval_local.engine.interface import Engine
from geval_local.tokens.requests import Request, common_prefix

__all__ = ["UNIT_PACKS", "Unit", "cut_units"]

#: About how many packs depend on each other: what a stop costs at most, against the shared prefixes computed again at
#: the start of every unit.
UNIT_PACKS = 32


@dataclass(frozen=True)
class Unit:
    """Requests that are planned together.

    Attributes
    ----------
    members : tuple of int
        Indices into the requests of the window.
    """

    members: tuple[int, ...]

    def requests(self, requests: Sequence[Request]) -> list[Request]:
        """Pick the unit's requests out of the window's."""
        return [requests[index] for index in self.members]


def cut_units(requests: Sequence[Request], engine: Engine) -> list[Unit]:
    """Cut a window into units: a pure function of the requests and the engine's token budget.

    Parameters
    ----------
    requests : sequence of Request
        All that a window asks of one metric.
    engine : Engine
        Its `independent_packs` and `batch_tokens` count.

    Returns
    -------
    list of Unit
        Every request is in one of them. They are cut where the fewest tokens are shared, between documents rather
        than inside one.
    """
    if not requests:
        return []
    if engine.independent_packs or sum(len(request.ids) for request in requests) <= UNIT_PACKS * engine.batch_tokens:
        return [Unit(tuple(range(len(requests))))]
    # Big-endian bytes compare as the tokens do.
    keys = [request.ids.astype(">u4").tobytes() for request in requests]
    order = sorted(range(len(requests)), key=keys.__getitem__)
    target = UNIT_PACKS * engine.batch_tokens
    units: list[Unit] = []
    members: list[int] = []
    tokens, least = 0, 1 << 62
    for previous, index in zip([None, *order], order, strict=False):
        shared = 0 if previous is None else common_prefix(requests[previous].ids, requests[index].ids)
        if members and tokens >= target and (shared <= least or tokens >= target + target // 2):
            units.append(Unit(tuple(members)))
            members, tokens, least = [], 0, 1 << 62
        elif members:
            least = min(least, shared)
        tokens += len(requests[index].ids) - (shared if members else 0)
        members.append(index)
    return [*units, Unit(tuple(members))]
