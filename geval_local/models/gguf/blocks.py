"""The blocks of GGUF: weights in a few bits with shared scales, widened to full numbers.

Every type has the form ``scale * quant + offset``, with small integers for quants and one scale and offset for a group
of them; scales are float16, those of MXFP4 powers of two. Products and sums are computed in the same order as in the
package gguf, so the numbers are the same to the bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from threading import Barrier

import torch

#: Quants (blocks, groups, width), scales (blocks, groups) and offsets of some blocks.
Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]

#: Weights that are widened at once: intermediate results stay in the processor's cache.
CHUNK = 1 << 20
#: Below this number of weights, other threads do not pay off.
WORTH_THREADS = 1 << 22
_IQ4_LEVELS = torch.tensor(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), dtype=torch.int8, device="cpu"
)
_MXFP4_LEVELS = torch.tensor((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), dtype=torch.int8, device="cpu")
#: Exponent of a scale from which the largest level exceeds float32.
_MXFP4_BEYOND = 253
#: The bits of each byte, lowest first, as eight bytes of 16 or 0.
_SIXTEENS = (
    ((torch.arange(256, device="cpu").unsqueeze(1) >> torch.arange(8, device="cpu") & 1) << 4)
    .to(torch.uint8)
    .view(torch.int64)
    .flatten()
)


@dataclass(frozen=True)
class BlockType:
    """One type of blocks."""

    name: str
    #: Weights in a block, and its bytes.
    elements: int
    size: int
    #: Places of the float16 numbers in a block; weights are finite if these are.
    halves: tuple[int, ...]
    #: Takes blocks apart.
    parts: Callable[[torch.Tensor], Parts]
    #: Smallest exponent byte with which a block's weights may be infinite.
    beyond: int = 256

    def widen(self, data: torch.Tensor, out: torch.Tensor) -> None:
        """Write the weights of rows of blocks, shape (..., bytes), into a contiguous tensor of any floating dtype."""
        blocks, flat = data.reshape(-1, self.size), out.view(-1, self.elements)
        threads = torch.get_num_threads() if data.device.type == "cpu" and out.numel() >= WORTH_THREADS else 1
        step = max(1, min(CHUNK, -(-out.numel() // threads)) // self.elements)
        starts = range(0, len(blocks), step)

        def widen(start: int) -> None:
            self._widen(blocks[start : start + step], flat[start : start + step])

        if threads > 1:
            list(widening_pool(threads).map(widen, starts))
        else:
            for start in starts:
                widen(start)

    def _widen(self, blocks: torch.Tensor, out: torch.Tensor) -> None:
        with torch.inference_mode():
            quants, scale, offset = self.parts(blocks)
            wide = out if out.dtype == torch.float32 else torch.empty_like(out, dtype=torch.float32)
            groups = wide.view(len(wide), *scale.shape[1:], -1)
            groups.copy_(quants.reshape(groups.shape))
            groups.mul_(scale.unsqueeze(-1))
            if offset is not None:
                groups.add_(offset.unsqueeze(-1))
            if wide is not out:
                out.copy_(wide)

    def is_finite(self, data: torch.Tensor) -> bool:
        """Whether all weights are finite."""
        blocks = data.reshape(-1, self.size)
        if self.beyond < 256:
            large = blocks[blocks[:, 0] >= self.beyond]
            wide = torch.empty(large.numel() // self.size, self.elements, dtype=torch.float32, device=data.device)
            self.widen(large, wide)
            return bool(torch.isfinite(wide).all())
        return all(bool(torch.isfinite(_half(blocks, place)).all()) for place in self.halves)


@cache
def widening_pool(count: int) -> ThreadPoolExecutor:
    """Start threads that widen a part each.

    PyTorch's own threads wait for each other after each of the dozen short steps. If another process used a core, that
    took twenty times as long.
    """
    ready = Barrier(count + 1)

    def begin() -> None:
        torch.get_num_threads()  # the first call in a thread sets its number of threads, and would undo the next line
        torch.set_num_threads(1)
        ready.wait()

    pool = ThreadPoolExecutor(count, "geval-local-widen", initializer=begin)
    for _ in range(count):
        pool.submit(int)
    ready.wait()
    torch.set_num_threads(count)  # threads that start from now on inherit this
    return pool


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=widening_pool.cache_clear)


def _half(blocks: torch.Tensor, place: int) -> torch.Tensor:
    """Read a float16 number of each block, as (blocks, 1)."""
    return blocks[:, place : place + 2].contiguous().view(torch.float16).float()


def _fields(data: torch.Tensor, width: int, bits: int) -> torch.Tensor:
    """Split bytes into fields of so many bits, lowest first: (blocks, n * width) to (blocks, n, fields, width)."""
    data, mask = data.reshape(len(data), -1, width), (1 << bits) - 1
    # Four bytes at a time where that goes: torch has vector instructions for shifts of 32 bits, none for those of 8.
    if width % 4 == 0:
        data, mask = data.clone(memory_format=torch.contiguous_format).view(torch.int32), mask * 0x01010101
    fields = [data & mask, *((data >> shift).bitwise_and_(mask) for shift in range(bits, 8, bits))]
    return torch.stack(fields, dim=2).view(torch.uint8)


def _raised(fields: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift fields to the left, four at a time; none has bits that would reach the next one."""
    return fields.flatten(1).view(torch.int32).bitwise_left_shift(bits).view(torch.uint8)


def _looked_up(table: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Look numbers up in a table."""
    return table.to(numbers.device).index_select(0, numbers.flatten().int())


def _fifth_bits(blocks: torch.Tensor, place: int) -> torch.Tensor:
    """Read 32 bits of each block, as (blocks, 1, 32) with 16 or 0."""
    return _looked_up(_SIXTEENS, blocks[:, place : place + 4]).view(torch.uint8).view(-1, 1, 32)


def _q4_0(blocks: torch.Tensor) -> Parts:
    quants = _fields(blocks[:, 2:], 16, 4).flatten(1).view(torch.int8) - 8
    return quants, _half(blocks, 0), None


def _q4_1(blocks: torch.Tensor) -> Parts:
    return _fields(blocks[:, 4:], 16, 4), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> Parts:
    quants = _fields(blocks[:, 6:], 16, 4).reshape(-1, 1, 32) | _fifth_bits(blocks, 2)
    return quants.view(torch.int8) - 16, _half(blocks, 0), None


def _q5_1(blocks: torch.Tensor) -> Parts:
    quants = _fields(blocks[:, 8:], 16, 4).reshape(-1, 1, 32) | _fifth_bits(blocks, 4)
    return quants, _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: torch.Tensor) -> Parts:
    return blocks[:, 2:].view(torch.int8), _half(blocks, 0), None


def _q2_k(blocks: torch.Tensor) -> Parts:
    scales = blocks[:, :16]
    offset = -(_half(blocks, 82) * (scales >> 4))
    return _fields(blocks[:, 16:80], 32, 2), _half(blocks, 80) * (scales & 15), offset


def _q3_k(blocks: torch.Tensor) -> Parts:
    low, high = _fields(blocks[:, 96:104], 8, 4).flatten(1), _fields(blocks[:, 104:108], 4, 2).flatten(1)
    scale = _half(blocks, 108) * ((low | high << 4).view(torch.int8) - 32)
    # If the bit of the mask is clear, subtract 4.
    borrow = _raised(_fields(blocks[:, :32], 32, 1) ^ 1, 2)
    quants = _fields(blocks[:, 32:96], 32, 2).flatten(1).view(torch.int8) - borrow.view(torch.int8)
    return quants, scale, None


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Read the scales and offsets of Q4_K and Q5_K, six bits each in twelve bytes."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((low & 63, (high & 15) | low >> 6 << 4), dim=1)
    offsets = torch.cat((middle & 63, high >> 4 | middle >> 6 << 4), dim=1)
    return _half(blocks, 0) * scales, -(_half(blocks, 2) * offsets)


def _q4_k(blocks: torch.Tensor) -> Parts:
    return _fields(blocks[:, 16:], 32, 4), *_k_scales(blocks)


def _q5_k(blocks: torch.Tensor) -> Parts:
    quants = _fields(blocks[:, 48:], 32, 4).flatten(1) | _raised(_fields(blocks[:, 16:48], 32, 1), 4)
    return quants, *_k_scales(blocks)


def _q6_k(blocks: torch.Tensor) -> Parts:
    quants = _fields(blocks[:, :128], 64, 4).flatten(1) | _raised(_fields(blocks[:, 128:192], 32, 2), 4)
    return quants.view(torch.int8) - 32, _half(blocks, 208) * blocks[:, 192:208].view(torch.int8), None


def _iq4_nl(blocks: torch.Tensor) -> Parts:
    return _looked_up(_IQ4_LEVELS, _fields(blocks[:, 2:], 16, 4)), _half(blocks, 0), None


def _iq4_xs(blocks: torch.Tensor) -> Parts:
    low = _fields(blocks[:, 4:8], 1, 4).flatten(1)
    high = _fields(blocks[:, 2:4], 1, 2).flatten(1)
    scale = _half(blocks, 0) * ((low | high << 4).view(torch.int8) - 32)
    return _looked_up(_IQ4_LEVELS, _fields(blocks[:, 8:], 16, 4)), scale, None


def _mxfp4(blocks: torch.Tensor) -> Parts:
    exponent = blocks[:, :1].int()
    # Half of 2 to the power of the exponent, as the levels are doubled; the two smallest are no normal numbers.
    scale = torch.where(exponent < 2, 0x00200000 << exponent, exponent - 1 << 23).view(torch.float32)
    return _looked_up(_MXFP4_LEVELS, _fields(blocks[:, 1:], 16, 4)), scale, None


#: Code in a GGUF file -> type.
BLOCK_TYPES: Mapping[int, BlockType] = {
    2: BlockType("Q4_0", 32, 18, (0,), _q4_0),
    3: BlockType("Q4_1", 32, 20, (0, 2), _q4_1),
    6: BlockType("Q5_0", 32, 22, (0,), _q5_0),
    7: BlockType("Q5_1", 32, 24, (0, 2), _q5_1),
    8: BlockType("Q8_0", 32, 34, (0,), _q8_0),
    10: BlockType("Q2_K", 256, 84, (80, 82), _q2_k),
    11: BlockType("Q3_K", 256, 110, (108,), _q3_k),
    12: BlockType("Q4_K", 256, 144, (0, 2), _q4_k),
    13: BlockType("Q5_K", 256, 176, (0, 2), _q5_k),
    14: BlockType("Q6_K", 256, 210, (208,), _q6_k),
    20: BlockType("IQ4_NL", 32, 18, (0,), _iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, (0,), _iq4_xs),
    39: BlockType("MXFP4", 32, 17, (), _mxfp4, _MXFP4_BEYOND),
}
