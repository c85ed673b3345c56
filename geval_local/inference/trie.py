"""The prefix-sharing engine: every distinct prompt token goes through the model once.

It knows nothing of texts or metrics. The requests' prompts, with the inner nodes of their label tries as further
leaves, become one stream (`plan`); a pack is a stretch of it, bounded in tokens whatever the length of a prompt. Between
packs only the keys and values on the root path of the next token are kept (`path_store`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from geval_local.inference.attention import PackAttention, pack_attention
from geval_local.inference.engine import Pack, Position, Readout, ReadoutTable, Request, read_positions
from geval_local.inference.memory import is_out_of_memory
from geval_local.inference.padded import PaddedEngine
from geval_local.inference.path_store import PathStore
from geval_local.inference.plan import Stream, build_stream, common_prefix, lay_out
from geval_local.inference.readout import Head, input_device, trunk_of
from geval_local.inference.rope import length_groups

__all__ = ["StreamPack", "TrieEngine"]

#: A pack is not halved below this: a prompt of which not even so many tokens fit is given up.
FLOOR = 64


@dataclass(frozen=True)
class _Work:
    """A planned stream and what is to be read in it, in stream order."""

    stream: Stream
    places: NDArray[np.int64]
    positions: tuple[Position, ...]


@dataclass(frozen=True)
class StreamPack(Pack):
    """A stretch of a stream.

    Attributes
    ----------
    start, stop : int
        Which stretch.
    work : _Work
        The stream itself.
    """

    start: int
    stop: int
    work: _Work = field(repr=False, compare=False)


class TrieEngine:
    """Packs that share prefixes.

    Parameters
    ----------
    model : PreTrainedModel
        A causal LM in evaluation mode whose layers take a registered attention function (see `gate`).
    head : Head
        Its read-out head.
    batch_tokens : int
        Most tokens per forward pass.
    padded : PaddedEngine
        Takes prompts that no pack may hold: those beyond the switch of a rotary embedding that changes with length.

    Attributes
    ----------
    computed_tokens : int
        Tokens that went through the model so far.
    windows : tuple of (int or None)
        What the layers asked for in the latest forward pass: their sliding windows, one per call of the attention
        function.
    """

    name = "trie"

    def __init__(self, model: PreTrainedModel, head: Head, *, batch_tokens: int = 2048, padded: PaddedEngine) -> None:
        self._config: Any = model.config
        self._trunk = trunk_of(model)
        self._device = input_device(model)
        self._group = length_groups(model.config)
        self._head = head
        self._padded = padded
        self._store = PathStore()
        self._limit = batch_tokens
        self.batch_tokens = batch_tokens
        self.computed_tokens = 0
        self.windows: tuple[int | None, ...] = ()

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """Lay the requests' trie out and cut it every `batch_tokens` tokens."""
        groups = [self._group(len(request.ids) + request.trie.depth) for request in requests]
        members = [number for number, group in enumerate(groups) if group == 0]
        packs: list[Pack] = list(_cut(_lay_requests_out(members, requests), members, requests, self.batch_tokens))
        apart = [number for number, group in enumerate(groups) if group != 0]
        packs += [
            Pack(tuple(apart[local] for local in pack.requests), pack.tokens)
            for pack in self._padded.plan([requests[number] for number in apart])
        ]
        return packs

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """Compute packs in order; a prompt that does not fit into memory even piecemeal comes back with an error."""
        table = ReadoutTable(requests)
        failed: dict[int, str] = {}
        resume = 0
        for pack in packs:
            if not isinstance(pack, StreamPack):
                yield from self._padded.execute(requests, [pack])
                continue
            resume = self._compute(pack.work, max(pack.start, resume), pack.stop, requests, table, failed)
            yield (
                pack,
                [
                    Readout(None, error=failed[index]) if index in failed else table.take(index)
                    for index in pack.requests
                ],
            )

    def _compute(
        self,
        work: _Work,
        start: int,
        stop: int,
        requests: Sequence[Request],
        table: ReadoutTable,
        failed: dict[int, str],
    ) -> int:
        """Compute the stretch from `start` to `stop`; return where to go on, which is further if a prompt failed."""
        while start < stop:
            start = self._skip_held(work, start, stop)
            limit = self._limit
            path = work.stream.tokens[work.stream.root_path(start)]
            if self._fill_path(path) and (done := self._compute_fitting(work, start, stop, requests, table)):
                start = done
                continue
            # Not even the smallest pack fitted: whatever needs this token is given up, the rest keeps its pace.
            self._limit = limit
            end = work.stream.visible_until(start)
            for number in range(*np.searchsorted(work.places, [start, end])):
                index = work.positions[number].request
                failed[index] = (
                    f"out of memory: a prompt of {len(requests[index].ids)} tokens does not fit even piecemeal"
                )
            start = end
        return start

    def _fill_path(self, path: NDArray[np.int32]) -> bool:
        """Make sure that keys and values of a root path are held; whether they are.

        They are, unless packs were left out or another run came between.
        """
        held = common_prefix(self._store.ids, path)
        if held == len(path):
            return True
        lone = _Work(build_stream([path], [()])[0], np.zeros(0, dtype=np.int64), ())
        while held < len(path):
            done = self._compute_fitting(lone, held, len(path), (), ReadoutTable(()))
            if not done:
                return False
            held = done
        return True

    def _compute_fitting(
        self, work: _Work, start: int, stop: int, requests: Sequence[Request], table: ReadoutTable
    ) -> int:
        """Compute from `start` on as many tokens as fit into memory; return where that ended, 0 if none did."""
        while True:
            end = min(stop, start + self._limit)
            if self._forward(work, start, end, requests, table):
                return end
            if end - start <= FLOOR:
                return 0
            self._limit = max(FLOOR, (end - start) // 2)

    def _skip_held(self, work: _Work, start: int, stop: int) -> int:
        """Go past tokens whose keys and values are held from before, up to the first that is to be read."""
        stream = work.stream
        following = int(np.searchsorted(work.places, start))
        border = min(
            stop - 1, stream.chain_stop(start), int(work.places[following]) if following < len(work.places) else stop
        )
        position = int(stream.positions[start])
        return start + common_prefix(self._store.ids[position:], stream.tokens[start:border])

    @torch.inference_mode()
    def _forward(
        self, work: _Work, start: int, stop: int, requests: Sequence[Request], table: ReadoutTable
    ) -> bool:
        """Send one stretch of the stream through the model; False, with nothing changed, if memory ran out."""
        stream = work.stream
        layout = lay_out(stream, start, stop)
        attention = PackAttention(layout, self._store)
        low, high = np.searchsorted(work.places, [start, stop])
        try:
            tokens = torch.from_numpy(stream.tokens[start:stop].astype(np.int64)).to(self._device)
            positions = torch.from_numpy(stream.positions[start:stop]).to(self._device)
            with pack_attention(self._config, attention):
                hidden = self._trunk(input_ids=tokens[None], position_ids=positions[None], use_cache=False)[0][0]
            self.windows = tuple(attention.windows)
            if low < high:
                places = torch.from_numpy(work.places[low:high] - start).to(hidden.device)
                read = read_positions(self._head, hidden[places], work.positions[low:high], requests)
            else:
                read = []
            self._store.commit(layout.keep_from, stream.tokens[stream.root_path(stop)])
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # The caller retries: inside this block the traceback would pin the activations.
            read = None
        finally:
            self._store.discard()
        if read is None:
            return False
        for result in read:
            table.add(*result)
        self.computed_tokens += stop - start
        return True


def _lay_requests_out(members: Sequence[int], requests: Sequence[Request]) -> _Work:
    """Build the stream of some requests: their prompts, and behind them the paths to their label tries' inner nodes."""
    sequences: list[NDArray[np.int32]] = []
    places: list[list[int]] = []
    reads: list[Position] = []
    for index in members:
        request = requests[index]
        nodes = {node.path: number for number, node in enumerate(request.trie.inner_nodes)}
        for path in request.trie.reading_paths:
            sequences.append(np.concatenate([request.ids, np.array(path, dtype=np.int32)]) if path else request.ids)
            # Every inner node is read once, on the first path that passes through it.
            found = [(depth, nodes.pop(path[:depth], None)) for depth in range(len(path) + 1)]
            places.append([len(request.ids) - 1 + depth for depth, node in found if node is not None])
            reads += [Position(index, node) for _, node in found if node is not None]
    stream, indices = build_stream(sequences, places)
    where = np.array([place for found in indices for place in found], dtype=np.int64)
    order = np.argsort(where, kind="stable")
    return _Work(stream, where[order], tuple(reads[number] for number in order))


def _cut(work: _Work, members: Sequence[int], requests: Sequence[Request], budget: int) -> Iterator[StreamPack]:
    """Cut a stream into packs; a request belongs to the pack that holds its last read-out."""
    last = dict.fromkeys(members, 0)
    for place, position in zip(work.places.tolist(), work.positions, strict=True):
        last[position.request] = place
    finished: dict[int, list[int]] = {}
    for index, place in last.items():
        finished.setdefault(place // budget, []).append(index)
    for number, start in enumerate(range(0, len(work.stream), budget)):
        stop = min(start + budget, len(work.stream))
        yield StreamPack(tuple(finished.get(number, ())), stop - start, start, stop, work)
