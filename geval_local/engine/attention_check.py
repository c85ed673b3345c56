"""A layer's attention in a real pack against its definition, in float64 on the CPU.

A token sees the tokens on its root path in the prompt trie and itself, in a sliding window the last of them. Nothing
else is taken from the engine but the queries, keys and values that the model gave it, so that whatever goes wrong
after them shows: the layout, the root path that is kept, gathering, merging, a kernel's tiles and its masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from geval_local.engine.choose import expected_spans
from geval_local.engine.prefix_sharing.attention import PackAttention
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.engine.prefix_sharing.forward import Launcher
from geval_local.engine.prefix_sharing.key_value_store import PathStore
from geval_local.engine.prefix_sharing.layout import Layout
from geval_local.engine.prefix_sharing.packs import lay_requests_out
from geval_local.engine.prefix_sharing.prompt_trie import Stream
from geval_local.models.head import Head
from geval_local.tokens.requests import Request

__all__ = ["attention_errors"]

#: Queries of a stretch that are compared, from its first to its last.
_QUERIES = 48


class _Watched(PackAttention):
    """Attention whose results are compared on the way."""

    def __init__(self, compare: Callable[..., None], layout: Layout, store: PathStore, **options: Any) -> None:
        super().__init__(layout, store, **options)
        self._compare = compare

    def __call__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        layer = len(self.spans)
        out = super().__call__(query, key, value, **options)
        self._compare(self.layout, layer, self._store, query, key, value, out, **options)
        return out


def attention_errors(
    model: PreTrainedModel, engine: PrefixSharingEngine, requests: Sequence[Request]
) -> dict[int | None, float]:
    """Send the requests' trie through a model in at least two stretches, and compare its layers' attention."""
    work = lay_requests_out(range(len(requests)), requests)
    stream = work.stream
    spans = expected_spans(model.config.get_text_config())
    # Every layer would cost products in float64 on the host.
    chosen = {spans.index(span) for span in spans} | {len(spans) - 1 - spans[::-1].index(span) for span in spans}
    errors: dict[int | None, float] = {}

    def compare(layout: Layout, layer: int, store: PathStore, *tensors: torch.Tensor, **options: Any) -> None:
        if layer in chosen:
            found = _error(stream, layout, layer, store, *tensors, **options)
            errors[options["span"]] = float(np.max([found, errors.get(options["span"], 0.0)]))  # a NaN stays one

    watched = partial(_Watched, compare)
    launcher = Launcher(model, Head(model), kernel=engine.kernel, attention=watched, compiled=engine.compiled)
    store = PathStore()
    size = max(1, min(engine.batch_tokens, -(-len(stream) // 2)))
    for start in range(0, len(stream), size):
        stop = min(len(stream), start + size)
        launched = launcher.launch(work, start, stop, stream.root_path(stop), (), store)
        if launched is None:
            raise MemoryError(f"no memory for a pass of {stop - start} tokens")
        with torch.inference_mode():
            store.commit(launched.keep_from, launched.path, launched.added)
    return errors


def _error(
    stream: Stream,
    layout: Layout,
    layer: int,
    store: PathStore,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    span: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> float:
    """Compare some tokens of a stretch; shapes as in `PackAttention`."""
    path = store.read(layer, layout.path) if layout.path else (key[:, :0].transpose(0, 1), value[:, :0].transpose(0, 1))
    keys, values = (
        torch.cat([held.transpose(0, 1), own], dim=1).cpu().double()
        for held, own in zip(path, (key, value), strict=True)
    )
    tokens = layout.stop - layout.start
    worst = 0.0
    for row in np.unique(np.linspace(0, tokens - 1, _QUERIES).round().astype(int)).tolist():
        token = layout.start + row
        seen = np.append(stream.root_path(token), token)[-(span or len(stream)) :]
        places = np.where(seen < layout.start, stream.positions[seen], layout.path + seen - layout.start)
        # Heads that share keys lie one after the other.
        asked = query[:, row].cpu().double().view(len(keys), -1, query.shape[-1])
        scores = asked @ keys[:, places].mT * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        if sinks is not None:
            scores = torch.cat([scores, sinks.cpu().double().view(len(keys), -1, 1)], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., : len(seen)]
        expected = (weights @ values[:, places]).flatten(0, 1)
        largest = float(values[:, places].abs().max())
        worst = float(np.max([worst, float((out[row].cpu().double() - expected).abs().max()) / max(largest, 1e-30)]))
    return worst
