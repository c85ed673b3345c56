"""The baseline engine: right-padded batches without a mask, longest first, under a token budget.

In a causal decoder no token attends to later ones, so padding after a prompt cannot affect it: neither a mask nor
position ids are needed, and recurrent layers are exact too. This engine serves every architecture; it is the fallback
and the reference for the prefix-sharing engine.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from transformers import PreTrainedModel

from geval_local.engine.interface import Engine, Pack, Position, PositionReadout, Readout, ReadoutTable
from geval_local.engine.pending import PendingPositions
from geval_local.models.guard import GuardedLock
from geval_local.models.head import Head, Trunk
from geval_local.models.memory import unless_memory_runs_out
from geval_local.tokens.requests import Request

_T = TypeVar("_T")


@dataclass(frozen=True)
class BatchRow:
    """A prompt followed by one reading path."""

    #: Tokens of the prompt and the path.
    tokens: tuple[int, ...]
    #: Indices into the tokens, each with the position to read there.
    reads: tuple[tuple[int, Position], ...]

    @property
    def requests(self) -> set[int]:
        """Return the requests with read-outs in this row."""
        return {position.request for _, position in self.reads}


class PaddedEngine(Engine):
    """Right-padded batches."""

    name = "padded"

    def __init__(
        self,
        model: PreTrainedModel,
        head: Head,
        *,
        batch_tokens: int = 4096,
        plain: bool = False,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self._trunk = Trunk(model)
        self._group: Callable[[int], int] = int if plain else self._trunk.group
        self._head = head
        self.batch_tokens = self.limit = batch_tokens
        self.turn = turn if turn is not None else GuardedLock()

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """Group requests of similar length, longest first, so that memory problems show up at once."""
        sizes = [(len(request.ids) + request.trie.depth, len(request.trie.reading_paths)) for request in requests]
        order = sorted(range(len(requests)), key=lambda index: (-sizes[index][0], index))
        packs: list[Pack] = []
        members: list[int] = []
        rows = width = 0
        before: int | None = None
        for index in order:
            length, paths = sizes[index]
            group: int | None = self._group(length)
            if group != self._group(len(requests[index].ids)):
                # Passes of several lengths read its positions.
                group, paths = None, len(rows_of(index, requests[index], self._group))
            if members and ((rows + paths) * width > self.batch_tokens or group is None or group != before):
                packs.append(Pack(tuple(members), rows * width, len(packs)))
                members, rows = [], 0
            if not members:
                width = length
            members.append(index)
            rows += paths
            before = group
        if members:
            packs.append(Pack(tuple(members), rows * width, len(packs)))
        return packs

    def plan_apart(self, requests: Sequence[Request], groups: Sequence[int], unit: int) -> list[Pack]:
        """Plan the requests whose length group is not 0, as units from `unit` on."""
        apart = [index for index, group in enumerate(groups) if group != 0]
        return [
            Pack(tuple(apart[local] for local in pack.requests), pack.tokens, unit + pack.unit)
            for pack in self.plan([requests[index] for index in apart])
        ]

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """Compute packs in order; a prompt that does not fit into memory even alone gets an error."""
        for pack in packs:
            table = ReadoutTable(requests)
            rows = [row for index in pack.requests for row in rows_of(index, requests[index], self._group)]
            self._compute(rows, requests, table)
            yield pack, [table.take(index) for index in pack.requests]

    def _compute(self, rows: list[BatchRow], requests: Sequence[Request], table: ReadoutTable) -> None:
        def group(row: BatchRow) -> int:
            return self._group(len(row.tokens))

        for _, batch in itertools.groupby(sorted(rows, key=group, reverse=True), key=group):
            read = partial(self._read, requests=requests)
            for part, results in in_halves(self, list(batch), 0, read, again=True):
                if results is None:
                    table.fail(part[0].reads[0][1].request, "alone")
                else:
                    table.collect(results)

    def _read(self, rows: Sequence[BatchRow], requests: Sequence[Request]) -> list[PositionReadout]:
        """Read the rows' positions."""
        positions = [position for row in rows for _, position in row.reads]
        return PendingPositions(self._head, self._hidden_states(rows), positions, requests).wait()

    @torch.inference_mode()
    def _hidden_states(self, rows: Sequence[BatchRow]) -> torch.Tensor:
        """Compute the final hidden states at the rows' read-out positions, in order."""
        tokens = np.zeros((len(rows), max(len(row.tokens) for row in rows)), dtype=np.int64)
        for number, row in enumerate(rows):
            tokens[number, : len(row.tokens)] = row.tokens
        where = [(number, place) for number, row in enumerate(rows) for place, _ in row.reads]
        hidden = self._trunk(torch.from_numpy(tokens), use_cache=False)[0]
        index = torch.tensor(where, device=hidden.device)
        return hidden[index[:, 0], index[:, 1]]  # type: ignore[no-any-return]


def in_halves(
    engine: Engine, rows: list[BatchRow], start: int, read: Callable[[list[BatchRow]], _T], *, again: bool
) -> Iterator[tuple[list[BatchRow], _T | None]]:
    """Read rows from position `start` on together, or in halves as memory allows; None where one does not fit alone."""
    todo = [rows]
    while todo:
        batch = todo.pop()
        found, tokens = None, len(batch) * (max(len(row.tokens) for row in batch) - start)
        if len(batch) == 1 or tokens <= engine.limit:
            found = unless_memory_runs_out(partial(read, batch), again=again and len(batch) == 1)
            if found is None and len(batch) > 1:
                engine.limit = max(1, tokens // 2)
        if found is None and len(batch) > 1:
            half = (len(batch) + 1) // 2
            todo += [batch[half:], batch[:half]]
        else:
            yield batch, found


def rows_of(index: int, request: Request, group: Callable[[int], int]) -> list[BatchRow]:
    """Make rows that read every inner node of a request's label trie once.

    A row reads only positions of its own length group: a position needs the rotary frequencies of a plain pass over
    the tokens up to it.
    """
    ids = tuple(request.ids.tolist())
    rows: list[BatchRow] = []
    for path, reads in request.trie.reads:
        for _, same in itertools.groupby(reads, key=lambda read: group(len(ids) + read[0])):
            places = tuple((len(ids) - 1 + depth, Position(index, node)) for depth, node in same)
            rows.append(BatchRow((*ids, *path[: places[-1][0] - len(ids) + 1]), places))
    return rows
