"""Positions whose figures a device still computes, and asynchronous packs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from geval_local.engine.interface import Pack, Position, PositionReadout, Readout
from geval_local.models.head import Head
from geval_local.tokens.requests import Request


class PendingPositions:
    """The label tokens' probabilities at a batch of positions, still being computed."""

    def __init__(
        self, head: Head, hidden: torch.Tensor, positions: Sequence[Position], requests: Sequence[Request]
    ) -> None:
        self._positions = positions
        self._wanted = [requests[position.request].trie.inner_nodes[position.node].tokens for position in positions]
        tokens = np.zeros((len(positions), max(map(len, self._wanted))), dtype=np.int64)
        for row, row_tokens in enumerate(self._wanted):
            tokens[row, : len(row_tokens)] = row_tokens
        self._read = head.edge_logprobs(hidden, tokens)

    def wait(self) -> list[PositionReadout]:
        """Wait for the device; return one read-out per position."""
        read = self._read.wait()
        found: list[PositionReadout] = []
        # Convert to plain numbers: indexing arrays one by one is slower.
        likeliest = zip(read.top_tokens.tolist(), read.top_probs.tolist(), strict=True)
        for row, (position, wanted, top) in enumerate(zip(self._positions, self._wanted, likeliest, strict=True)):
            other = tuple((token, prob) for token, prob in zip(*top, strict=True) if token not in wanted)
            found.append((position, read.logprobs[row, : len(wanted)], other))
        return found


def computed_ahead(
    packs: Sequence[Pack],
    launch: Callable[[Pack], list[PendingPositions] | None],
    read_out: Callable[[Pack, list[PendingPositions]], list[Readout]],
    look_ahead: int,
    padded: Callable[[Sequence[Pack]], Iterator[tuple[Pack, list[Readout]]]],
) -> Iterator[tuple[Pack, list[Readout]]]:
    """Launch packs before waiting for earlier ones; packs that `launch` refuses are computed as padded batches."""
    launched: deque[tuple[Pack, list[PendingPositions]]] = deque()

    def oldest() -> tuple[Pack, list[Readout]]:
        pack, reads = launched.popleft()
        return pack, read_out(pack, reads)

    for pack in packs:
        reads = launch(pack)
        if reads is not None:
            launched.append((pack, reads))
        while len(launched) > (0 if reads is None else look_ahead):
            yield oldest()
        if reads is None:
            yield from padded([pack])
    while launched:
        yield oldest()
