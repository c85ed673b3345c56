"""The kernel of attention against attention's definition in float64, on a pack of a document with candidates."""

from __future__ import annotations

import numpy as np
import torch

from geval_local.engine.prefix_sharing.flex import FlexKernel, Intervals, Kind
from geval_local.engine.prefix_sharing.packs import lay_requests_out
from geval_local.engine.prefix_sharing.prompt_trie import lay_out
from geval_local.engine.probe import synthetic_requests


def kernel_error(
    kernel: FlexKernel,
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    span: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    heads: int = 8,
    key_heads: int = 2,
) -> float | None:
    """Largest error as a share of the largest value; None if the kernel refuses this kind of layer."""
    requests = synthetic_requests(500, prefix=90, document=170, candidate=40, documents=1, candidates=6)
    stream = lay_requests_out(range(len(requests)), requests).stream
    layout = lay_out(stream, 200, len(stream))
    intervals = Intervals.of(layout, sinks=sinks)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(count, length, size, generator=generator).to(dtype).to(device)
        for count, length in ((heads, intervals.queries), (key_heads, intervals.keys), (key_heads, intervals.keys))
    )
    strength = torch.randn(heads, generator=generator).to(dtype).to(device) if sinks else None
    if sinks:
        value[:, -1] = 0
    scale = size**-0.5
    mask = kernel.mask(intervals, span, device)
    kind = Kind(size, size, dtype, span is not None)
    with torch.inference_mode():
        found = kernel(query, key, value, mask, scale=scale, softcap=softcap, sinks=strength, kind=kind)
    if found is None:
        return None
    rows = np.arange(intervals.queries)[:, None]
    sees = (intervals.starts <= rows) & (rows < intervals.ends)
    if span is not None:
        sees &= intervals.query_positions[:, None] - intervals.key_positions < span
    wide = [part.cpu().double() for part in (query, key, value)]
    scores = wide[0] @ wide[1].repeat_interleave(heads // key_heads, 0).mT * scale
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    if strength is not None:
        scores[:, :, -1] = strength.cpu().double()[:, None]
    weights = scores.masked_fill(~torch.from_numpy(sees), -torch.inf)[:, : intervals.tokens].softmax(-1)
    expected = weights @ wide[2].repeat_interleave(heads // key_heads, 0)
    error = (found[:, : intervals.tokens].cpu().double() - expected).abs().max() / wide[2].abs().max()
    return float(error)
