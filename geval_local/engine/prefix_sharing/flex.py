"""Attention of a whole pack in one kernel, on a GPU: PyTorch's FlexAttention.

A token sees a key if the key is at or before it and the key's subtree has not ended: an interval of the pack
for every key, including those on the root path::

    starts[key] <= query < ends[key]        and, in a sliding window,   position[query] - position[key] < span

No key is gathered: path and pack are concatenated, and only those 128 by 128 tiles are computed in which a
token sees a key. They are found from the intervals on the host. Sinks are one more key of value zero, whose
score is set. Shapes are rounded up to a ladder of sizes, so that few are compiled.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from geval_local.engine.prefix_sharing.layout import Layout
from geval_local.models.head import to_device

#: Queries and keys per tile.
TILE = 128
#: Position of a key that is in every sliding window.
_ALWAYS = 1 << 30


@dataclass(frozen=True)
class Intervals:
    """Attention visibility within a pack, by key: keys of the path, of the pack, unused ones, the sink."""

    #: Number of tokens in the pack.
    tokens: int
    #: Numbers of queries and keys, rounded up.
    queries: int
    keys: int
    #: Interval of the pack's tokens that see a key; 0 to 0 for none.
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    #: Positions in the prompt.
    query_positions: NDArray[np.int32]
    key_positions: NDArray[np.int32]

    @classmethod
    def of(cls, layout: Layout, *, sinks: bool) -> Intervals:
        """Derive the intervals from a layout; with `sinks` the last key is visible to all."""
        tokens = layout.stop - layout.start
        used = layout.path + tokens
        queries, keys = ladder(tokens), ladder(used + 1)
        starts = np.zeros(keys, dtype=np.int32)
        ends = np.zeros(keys, dtype=np.int32)
        starts[layout.path : used] = np.arange(tokens)
        ends[:used] = layout.ends
        positions = np.full(keys, _ALWAYS, dtype=np.int32)
        positions[: layout.path] = np.arange(layout.path)
        positions[layout.path : used] = layout.positions
        own = np.zeros(queries, dtype=np.int32)
        own[:tokens] = layout.positions
        if sinks:
            ends[-1] = tokens
        return cls(tokens, queries, keys, starts, ends, own, positions)

    def tiles(self, span: int | None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Find the tiles in which some token sees some key, and those in which all tokens see all keys."""
        across, down = self.keys // TILE, self.queries // TILE
        used = np.flatnonzero(self.ends > self.starts)
        tile, starts, ends = used // TILE, self.starts[used], self.ends[used]
        some = _covered(tile, starts // TILE, (ends - 1) // TILE + 1, across, down) > 0
        # Rows after the last token are ignored; tiles with only such rows are not computed.
        last = np.where(ends >= self.tokens, -(-self.tokens // TILE), ends // TILE)
        whole = _covered(tile, -(-starts // TILE), last, across, down) == TILE
        if span is not None:
            rows = self.query_positions.copy()
            rows[self.tokens :] = rows[self.tokens - 1]
            rows = rows.reshape(down, TILE)
            nearest = np.full(across, -1, dtype=np.int64)
            farthest = np.full(across, _ALWAYS, dtype=np.int64)
            np.maximum.at(nearest, tile, self.key_positions[used])
            np.minimum.at(farthest, tile, self.key_positions[used])
            some &= rows.min(1)[:, None] - nearest[None] < span
            whole &= rows.max(1)[:, None] - farthest[None] < span
        return some & ~whole, whole


def _covered(tile: NDArray[Any], first: NDArray[Any], stop: NDArray[Any], across: int, down: int) -> NDArray[np.int64]:
    """Count, for every tile of queries and of keys, the keys whose interval ``first`` to ``stop`` contains it."""
    steps = np.zeros((down + 1, across), dtype=np.int64)
    stop = np.maximum(first, stop)
    np.add.at(steps, (first, tile), 1)
    np.add.at(steps, (stop, tile), -1)
    counts: NDArray[np.int64] = steps.cumsum(0)[:down]
    return counts


def ladder(length: int) -> int:
    """Round a length up to one tile, or to 2 or 3 times a power of two of tiles (at most 50 % more)."""
    size = TILE
    while size < length:
        if size * 3 // 2 >= length and size > TILE:
            return size * 3 // 2
        size *= 2
    return size


class FlexKernel:
    """FlexAttention over packs."""

    def __init__(self, *, compiled: bool = True) -> None:
        self._module: Any = importlib.import_module("torch.nn.attention.flex_attention")
        attend: Callable[..., torch.Tensor] = self._module.flex_attention
        self._attend = torch.compile(attend) if compiled else attend
        # Needed for gradients only, and missing in some releases.
        known = inspect.signature(self._module.BlockMask.from_kv_blocks).parameters
        self._options = {"compute_q_blocks": False} if "compute_q_blocks" in known else {}

    def mask(self, intervals: Intervals, span: int | None, device: torch.device) -> Any:
        """Build the mask of a pack for layers with one sliding window or none; the tiles come from the host."""
        some, whole = intervals.tiles(span)
        arrays = (intervals.starts, intervals.ends, intervals.query_positions, intervals.key_positions)
        starts, ends, queries, keys = (to_device(array, device) for array in arrays)
        reach = span or 0

        def sees(_: Any, __: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (starts[key] <= query) & (query < ends[key])

        def sees_within(_: Any, __: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (starts[key] <= query) & (query < ends[key]) & (queries[query] - keys[key] < reach)

        listed = [to_device(part, device)[None, None] for tiles in (some, whole) for part in _listed(tiles)]
        return self._module.BlockMask.from_kv_blocks(
            *listed,
            BLOCK_SIZE=TILE,
            mask_mod=sees if span is None else sees_within,
            seq_lengths=(intervals.queries, intervals.keys),
            **self._options,
        )

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Any,
        *,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Compute attention for a pack."""
        last = key.shape[1] - 1

        def capped(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            return score if softcap is None else softcap * torch.tanh(score / softcap)

        def sunk(
            score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor
        ) -> torch.Tensor:
            assert sinks is not None
            return torch.where(column == last, sinks[head].to(score.dtype), capped(score))

        change = sunk if sinks is not None else capped if softcap is not None else None
        return self._attend(
            query[None],
            key[None],
            value[None],
            score_mod=change,
            block_mask=mask,
            scale=scale,
            enable_gqa=query.shape[0] != key.shape[0],
        )[0]


def _listed(tiles: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Count the marked tiles of every row, and list tile indices with the marked ones first."""
    return tiles.sum(1, dtype=np.int32), np.argsort(~tiles, axis=1, kind="stable").astype(np.int32)


def why_no_kernel(device: torch.device) -> str | None:
    """Return the reason why a device has no compiled FlexAttention; None if it has it or does not need it."""
    if device.type != "cuda":
        return None
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    return None if importlib.util.find_spec("torch.nn.attention.flex_attention") else "PyTorch has no FlexAttention"


def find_kernel(device: torch.device) -> FlexKernel | None:
    """Return the kernel for a device; None if attention is computed in pieces."""
    return _kernel() if device.type == "cuda" and why_no_kernel(device) is None else None


@lru_cache(maxsize=1)
def _kernel() -> FlexKernel:
    return FlexKernel()
