"""Attention of a whole pack in one kernel, on a GPU: PyTorch's FlexAttention.

A token sees a key if the key is at or before it and the key's subtree has not ended: an interval of the pack
for every key, including those on the root path::

    starts[key] <= query < ends[key]        and, in a sliding window,   position[query] - position[key] < span

No key is gathered: path and pack are concatenated, and only those 128 by 128 tiles are computed in which a
token sees a key. They are found from the intervals on the host. Sinks are one more key of value zero, whose
score is set. Shapes are rounded up to a ladder of sizes, and one graph serves them all.

Dynamo counts the graphs of FlexAttention for the whole process. Beyond its limit it computes all scores unfused,
without a message. So this module raises the limit and avoids further graphs: lengths are dynamic from the first call
and at least two tiles, a window's length is part of the data, tensors have one layout.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from geval_local.engine.prefix_sharing.prompt_trie import Layout
from geval_local.errors import first_line
from geval_local.files import home_folder
from geval_local.models.head import to_device
from geval_local.models.memory import is_out_of_memory

logger = logging.getLogger("geval_local")

#: Queries and keys per tile.
TILE = 128
#: Position of a key that is in every sliding window.
_ALWAYS = 1 << 30
#: Graphs of one process: kinds of layer x dtypes x devices x judges. Dynamo's own limit is 8.
_GRAPHS = 1 << 12
#: Settings of the kernel: PyTorch's own choice first, then settings that need less and less shared memory. Heads of 512
#: need one stage and small blocks on any card, heads of 192 on cards with 100 KB.
LADDER: tuple[dict[str, Any], ...] = (
    {},
    {"BLOCK_M": 64, "BLOCK_N": 32, "num_stages": 1, "num_warps": 4},
    {"BLOCK_M": 32, "BLOCK_N": 32, "num_stages": 1, "num_warps": 4},
    {"BLOCK_M": 16, "BLOCK_N": 16, "num_stages": 1, "num_warps": 4},
)
#: Largest head, in values, that PyTorch's own choice is made for.
_LARGEST_HEAD = 256


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
    """Round a length up to 2 or 3 times a power of two of tiles (at most 50 % more)."""
    size = 2 * TILE  # a dimension of one tile would be compiled apart
    while size < length:
        if size * 3 // 2 >= length:
            return size * 3 // 2
        size *= 2
    return size


@dataclass(frozen=True)
class Kind:
    """What a layer asks of the kernel: layers of one kind share a graph."""

    #: Values per head, of keys and of values.
    key_size: int
    value_size: int
    dtype: torch.dtype
    #: Whether it has a sliding window.
    windowed: bool

    @property
    def key(self) -> str:
        """The kind as a plain value, for records."""
        return f"{self.key_size}, {self.value_size}, {self.dtype}, {'sliding' if self.windowed else 'full'}"

    @property
    def text(self) -> str:
        """The kind in words."""
        return f"{'sliding' if self.windowed else 'full'} layers with heads of {self.key_size}"


def keep_compilations() -> None:
    """Let Inductor and Triton keep what they compile in the user's own directory, not in one that a restart empties."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ and (folder := home_folder("compiled")) is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)


@lru_cache(maxsize=1)
def compiled(backend: Any) -> Callable[..., torch.Tensor]:
    """Compile FlexAttention: one graph for all lengths."""
    keep_compilations()
    module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    attend: Callable[..., torch.Tensor] = torch.compile(
        module.flex_attention, backend=backend, fullgraph=True, dynamic=True
    )
    dynamo, shapes = (
        importlib.import_module(name) for name in ("torch._dynamo.config", "torch.fx.experimental._config")
    )

    def call(*given: Any, **named: Any) -> torch.Tensor:
        limits: Any = dynamo.patch(recompile_limit=_GRAPHS, accumulated_recompile_limit=_GRAPHS, specialize_float=True)
        # Lengths that are equal by chance in the first call must stay separate symbols.
        with limits, shapes.patch(use_duck_shape=False):
            return attend(*given, **named)

    return call


@dataclass(frozen=True)
class Mask:
    """A pack's mask on a device: FlexAttention's own, and the index of the last key, which is the sink.

    The index is a tensor: a length would be a symbol of the graph, which PyTorch writes wrongly into its kernels.
    """

    blocks: Any
    last: torch.Tensor


class FlexKernel:
    """FlexAttention over packs.

    Parameters
    ----------
    backend : str or callable, optional
        The compiler backend; None for PyTorch's slow reference.

    Attributes
    ----------
    seen : dict of Kind to None
        The kinds of layer that it was called for.
    refused : dict of str to str
        Keys of the kinds that it does not serve, with the reason; their attention is computed in pieces.
    """

    def __init__(self, *, backend: Any = "inductor") -> None:
        self._module: Any = importlib.import_module("torch.nn.attention.flex_attention")
        self.launch = self._module.flex_attention if backend is None else compiled(backend)
        # Needed for gradients only, and missing in some releases.
        known = inspect.signature(self._module.BlockMask.from_kv_blocks).parameters
        self._options = {"compute_q_blocks": False} if "compute_q_blocks" in known else {}
        self._rungs: dict[Kind, int] = {}
        self.seen: dict[Kind, None] = {}
        self.refused: dict[str, str] = {}

    @property
    def settings(self) -> dict[Kind, dict[str, Any]]:
        """The settings of each kind of layer that does not use PyTorch's own."""
        return {kind: LADDER[rung] for kind, rung in self._rungs.items() if rung}

    def mask(self, intervals: Intervals, span: int | None, device: torch.device) -> Mask:
        """Build the mask of a pack for layers with one sliding window or none; the tiles come from the host."""
        some, whole = intervals.tiles(span)
        arrays = (intervals.starts, intervals.ends, intervals.query_positions, intervals.key_positions + (span or 0))
        starts, ends, queries, beyond = (to_device(array, device) for array in arrays)

        def sees(_: Any, __: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (starts[key] <= query) & (query < ends[key])

        def sees_within(_: Any, __: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
            return (starts[key] <= query) & (query < ends[key]) & (queries[query] < beyond[key])

        listed = [to_device(part, device)[None, None] for tiles in (some, whole) for part in _listed(tiles)]
        blocks = self._module.BlockMask.from_kv_blocks(
            *listed,
            BLOCK_SIZE=TILE,
            mask_mod=sees if span is None else sees_within,
            seq_lengths=(intervals.queries, intervals.keys),
            **self._options,
        )
        return Mask(blocks, to_device(np.array([intervals.keys - 1], dtype=np.int32), device)[0])

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Mask,
        *,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
        kind: Kind | None = None,
    ) -> torch.Tensor | None:
        """Compute attention for a pack; None if the kernel does not serve layers of this kind."""
        kind = kind or Kind(query.shape[-1], value.shape[-1], query.dtype, windowed=False)
        self.seen[kind] = None
        if kind.key in self.refused:
            return None
        try:
            return self.compute(query, key, value, mask, scale, softcap, sinks, kind)
        except Exception as error:
            if is_out_of_memory(error) and not _is_too_large(error):
                raise
            self.refused[kind.key] = f"{type(error).__name__}: {first_line(error)[:120]}"
        # After a fault of the device itself nothing works any more; computing in pieces then raises the error.
        logger.warning("attention of %s is computed in pieces: %s", kind.text, self.refused[kind.key])
        return None

    def compute(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: Mask,
        scale: float,
        softcap: float | None,
        sinks: torch.Tensor | None,
        kind: Kind,
    ) -> torch.Tensor:
        """Compute the attention of a layer of this kind."""
        last = mask.last

        def capped(score: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
            return score if softcap is None else softcap * torch.tanh(score / softcap)

        def sunk(
            score: torch.Tensor, batch: torch.Tensor, head: torch.Tensor, row: torch.Tensor, column: torch.Tensor
        ) -> torch.Tensor:
            assert sinks is not None
            return torch.where(column == last, sinks[head].to(score.dtype), capped(score))

        change = sunk if sinks is not None else capped if softcap is not None else None
        rung = self._rungs.setdefault(kind, int(max(kind.key_size, kind.value_size) > _LARGEST_HEAD))
        while True:
            try:
                return self.launch(
                    query[None],
                    key[None],
                    value[None],
                    score_mod=change,
                    block_mask=mask.blocks,
                    scale=scale,
                    enable_gqa=query.shape[0] != key.shape[0],
                    # All lengths are whole tiles, which a graph of dynamic lengths cannot know.
                    kernel_options={"IS_DIVISIBLE": True, **LADDER[rung]},
                )[0]
            except Exception as error:
                if rung + 1 == len(LADDER) or not _is_too_large(error):
                    raise
            rung = self._rungs[kind] = rung + 1


def _is_too_large(error: BaseException) -> bool:
    """Whether a kernel needs more shared memory or registers than the device has: Triton's, CUDA's, ptxas' words."""
    text = str(error).lower()
    return any(words in text for words in ("out of resource:", "too many resources requested", "too much shared data"))


def _listed(tiles: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Count the marked tiles of every row, and list tile indices with the marked ones first."""
    return tiles.sum(1, dtype=np.int32), np.argsort(~tiles, axis=1, kind="stable").astype(np.int32)


def why_no_kernel(device: torch.device) -> str | None:
    """Return the reason why a device has no compiled FlexAttention; None if it has it or does not need it."""
    if device.type != "cuda":
        return None
    if importlib.util.find_spec("triton") is None:
        package = "triton-windows" if sys.platform == "win32" else "triton"
        return f"Triton is not installed (pip install {package})"
    return None if importlib.util.find_spec("torch.nn.attention.flex_attention") else "PyTorch has no FlexAttention"


def find_kernel(device: torch.device) -> FlexKernel | None:
    """Return a kernel for a device; None if attention is computed in pieces."""
    return FlexKernel() if device.type == "cuda" and why_no_kernel(device) is None else None
