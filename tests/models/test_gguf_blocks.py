"""Blocks of GGUF: the numbers of the package gguf, to the bit, for any bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from geval_local.models.gguf.blocks import BLOCK_TYPES, widening_pool

gguf = pytest.importorskip("gguf")
from gguf_kit import random_blocks  # noqa: E402 - needs gguf

ROWS, BLOCKS = 7, 5


def some_blocks(kind, seed=0):
    """Random bytes in all fields, with scales that are finite numbers of any size."""
    return random_blocks(kind, (ROWS, BLOCKS), np.random.default_rng(seed), 10.0 ** (seed % 11 - 7))


@pytest.mark.parametrize(("code", "kind"), BLOCK_TYPES.items(), ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("chunk", [1, 600, 1 << 19])
def test_every_block_is_what_the_package_reads(monkeypatch, code, kind, chunk):
    monkeypatch.setattr("geval_local.models.gguf.blocks.CHUNK", chunk)
    official = gguf.GGMLQuantizationType(code)
    assert (kind.name, (kind.elements, kind.size)) == (official.name, gguf.GGML_QUANT_SIZES[official])
    for seed in range(20):
        data = some_blocks(kind, seed)
        expected = gguf.quants.dequantize(data, official)
        found = torch.full(expected.shape, np.nan)
        kind.widen(torch.from_numpy(data), found)
        np.testing.assert_array_equal(found.numpy().view(np.uint32), expected.view(np.uint32))


def test_threads_change_no_number_and_no_other_thread(monkeypatch):
    kind = BLOCK_TYPES[12]
    data = torch.from_numpy(some_blocks(kind))
    alone, together = (torch.full((ROWS, BLOCKS * kind.elements), np.nan) for _ in range(2))
    kind.widen(data, alone)
    monkeypatch.setattr("geval_local.models.gguf.blocks.WORTH_THREADS", 1)
    monkeypatch.setattr("geval_local.models.gguf.blocks.CHUNK", 600)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with torch.inference_mode():
            kind.widen(data, together)
        with ThreadPoolExecutor(1) as later:
            assert (torch.get_num_threads(), later.submit(torch.get_num_threads).result()) == (3, 3)
        assert set(widening_pool(3).map(lambda _: torch.get_num_threads(), range(9))) == {1}
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)


@pytest.mark.parametrize("kind", BLOCK_TYPES.values(), ids=lambda value: value.name)
def test_half_precision_is_the_rounded_number(kind):
    data = torch.from_numpy(some_blocks(kind))
    wide = torch.empty(ROWS, BLOCKS * kind.elements)
    kind.widen(data, wide)
    for dtype in (torch.bfloat16, torch.float16):
        narrow = torch.empty_like(wide, dtype=dtype)
        kind.widen(data, narrow)
        assert torch.equal(narrow, wide.to(dtype))


@pytest.mark.parametrize("kind", BLOCK_TYPES.values(), ids=lambda value: value.name)
def test_a_number_that_is_not_finite_is_seen_in_the_scales(kind):
    for place in kind.halves:
        for bad in (np.inf, np.nan):
            data = some_blocks(kind)
            assert kind.is_finite(torch.from_numpy(data))
            data[3, kind.size + place : kind.size + place + 2] = np.array([bad], dtype=np.float16).view(np.uint8)
            assert not kind.is_finite(torch.from_numpy(data))


def test_every_scale_and_level_of_mxfp4_is_what_the_package_reads():
    """All 256 exponents, of which the smallest two are no normal numbers and the largest leave float32."""
    official, kind = gguf.GGMLQuantizationType.MXFP4, BLOCK_TYPES[39]
    data = np.zeros((256, 17), dtype=np.uint8)
    data[:, 0] = np.arange(256)
    data[:, 1:] = np.arange(16) | (15 - np.arange(16)) << 4
    with np.errstate(over="ignore"):
        expected = gguf.quants.dequantize(data, official)
    found = torch.full(expected.shape, np.nan)
    kind.widen(torch.from_numpy(data), found)
    np.testing.assert_array_equal(found.numpy().view(np.uint32), expected.view(np.uint32))
    for row in range(256):
        assert kind.is_finite(torch.from_numpy(data[row : row + 1])) == bool(np.isfinite(expected[row]).all())
    data[255, 1:] = 0
    assert kind.is_finite(torch.from_numpy(data[255:]))
