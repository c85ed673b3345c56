"""Attention within one pack: three ways to compute the same softmax.

cascade
    Each strand attends to itself, causally; each stretch of shared keys is attended to once by all of
    its tokens; the parts are merged by their log-sum-exp. No key is copied. For full attention on the CPU.
gather
    Each strand attends to its own keys, gathered. For sliding windows.
flex
    All tokens and keys in one GPU kernel call, which skips invisible blocks. No key is gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from geval_local.engine.prefix_sharing.flex import FlexKernel, Intervals, Kind
from geval_local.engine.prefix_sharing.key_value_store import PathStore
from geval_local.engine.prefix_sharing.prompt_trie import Index, Layout, Strand, VisibleBlock
from geval_local.models.head import to_device

#: Keys and values; or the output of attention and its log-sum-exp.
Pair: TypeAlias = tuple[Tensor, Tensor]

#: Up to so many shared keys join each strand's own keys; from so many queries on, shared keys are a separate part.
FEW_KEYS, MANY_QUERIES = 64, 256
#: Most scores held at once without a fused kernel.
_MAX_SCORES = 1 << 24
#: The CPU's fused kernel of `scaled_dot_product_attention`; only under this name it returns the log-sum-exp.
_FUSED_CPU: Any = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
) -> Pair:
    """Attend to one stretch of keys."""
    if query.device.type == "cpu" and _FUSED_CPU is not None and softcap is None:
        size = value.shape[-1]
        if size < query.shape[-1]:
            value = functional.pad(value, (0, query.shape[-1] - size))
        if value.shape[-1] == query.shape[-1]:
            bias = None
            if mask is not None:
                bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill_(~mask, -torch.inf)
            out, lse = _FUSED_CPU(query[None], key[None], value[None], 0.0, causal, attn_mask=bias, scale=scale)
            return out[0, ..., :size], lse[0]
        value = value[..., :size]
    if causal:
        mask = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool, device=query.device).tril()
    step = max(1, _MAX_SCORES // (query.shape[0] * key.shape[1]))
    parts = [
        _attend_by_matmul(
            query[:, low : low + step], key, value, scale, softcap, None if mask is None else mask[low : low + step]
        )
        for low in range(0, query.shape[1], step)
    ]
    return torch.cat([out for out, _ in parts], dim=1), torch.cat([lse for _, lse in parts], dim=1)


def _attend_by_matmul(
    query: Tensor, key: Tensor, value: Tensor, scale: float, softcap: float | None, mask: Tensor | None
) -> Pair:
    heads, queries, _ = query.shape
    # Heads that share keys are folded into the queries instead of repeating the keys.
    folded = query.reshape(key.shape[0], -1, *query.shape[1:])
    wide = torch.promote_types(query.dtype, torch.float32)
    # Scale before the product: in float16 a product of unscaled vectors may exceed 65,504.
    scores = torch.matmul((folded * scale).to(query.dtype), key[:, None].transpose(-1, -2)).to(wide)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse[..., None]).to(value.dtype)
    out = torch.matmul(weights, value[:, None])
    return out.reshape(heads, queries, -1), lse.reshape(heads, queries)


def attend_to_oneself(query: Tensor, key: Tensor, value: Tensor, *, scale: float, softcap: float | None = None) -> Pair:
    """Attend from every query to the one key at its own position; parameters and results as for `attend`."""
    group = query.shape[0] // key.shape[0]
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) * key.repeat_interleave(group, 0).to(wide)).sum(-1) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return value.repeat_interleave(group, 0), scores


def merge(out: Tensor, lse: Tensor, more_out: Tensor, more_lse: Tensor) -> None:
    """Add the attention to further keys to `out` and `lse`, in place."""
    out.lerp_(more_out, torch.sigmoid(more_lse - lse).to(out.dtype)[..., None])
    lse.copy_(torch.logaddexp(lse, more_lse))


_T = TypeVar("_T")


class PackAttention:
    """The state of one pack's forward pass, shared by all layers."""

    def __init__(
        self,
        layout: Layout,
        store: PathStore,
        *,
        kernel: FlexKernel | None = None,
    ) -> None:
        self.layout = layout
        self.spans: list[int | None] = []
        self.added: list[Pair] = []
        self._store = store
        self._kernel = kernel
        self._made: dict[tuple[Any, ...], Any] = {}
        self._longest = max(strand.position + strand.stop - strand.start for strand in layout.strands)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float,
        span: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attend in the next layer."""
        layer = len(self.spans)
        self.spans.append(span)
        if span is not None and span >= self._longest:
            span = None
        keys, values = key.transpose(0, 1), value.transpose(0, 1)
        held = self._store.read(layer, self.layout.path) if self.layout.path else (keys[:0], values[:0])
        path, own = (held[0].transpose(0, 1), held[1].transpose(0, 1)), (key, value)
        options = {"scale": scale, "softcap": softcap}
        out = self._in_one_kernel(query, path, own, options, span, sinks)
        if out is None:
            compute = self._cascade if span is None else self._gather
            out, lse = (part.transpose(0, 1) for part in compute(query, path, own, options, span))
            if sinks is not None:
                out = out * torch.sigmoid(lse - sinks.to(lse.dtype))[..., None].to(out.dtype)
        self.added.append((self._kept(keys), self._kept(values)))
        # Contiguous, as from transformers' own attention functions: some layers take a view of it.
        return out.contiguous()

    def _kept(self, new: Tensor) -> Tensor:
        """Copy the part of a pack's keys or values that the next root path needs; nothing after a unit's last pack."""
        if not len(self.layout.keep):
            # An empty slice would keep all of them in memory.
            shape = (0, *new.shape[1:])
            return self._once(("none", shape, new.dtype, new.device), lambda: new.new_empty(shape))
        return new[self._array("keep", new.device, self.layout.keep)]

    def _in_one_kernel(
        self, query: Tensor, path: Pair, own: Pair, options: dict[str, Any], span: int | None, sinks: Tensor | None
    ) -> Tensor | None:
        kernel, kind = self._kernel, Kind(query.shape[-1], own[1].shape[-1], query.dtype, span is not None)
        if kernel is None or kind.key in kernel.refused:
            return None
        device, has_sinks = query.device, sinks is not None
        intervals = self._once(("intervals", has_sinks), lambda: Intervals.of(self.layout, sinks=has_sinks))
        mask = self._once(("mask", has_sinks, device, span), lambda: kernel.mask(intervals, span, device))
        key, value = (self.rounded(list(pair), intervals.keys) for pair in zip(path, own, strict=True))
        wide = self.rounded([query], intervals.queries)
        out = kernel(wide, key, value, mask, **options, sinks=sinks, kind=kind)
        return None if out is None else out[:, : query.shape[1]].transpose(0, 1)

    def rounded(self, parts: list[Tensor], length: int) -> Tensor:
        """Concatenate tensors of shape (heads, tokens, size) and pad with zeros to a length, in one memory layout."""
        heads, _, size = parts[0].shape
        missing = length - sum(part.shape[1] for part in parts)
        if missing:
            like = parts[0]
            zeros = self._once(
                ("zeros", heads, missing, size, like.dtype, like.device), lambda: like.new_zeros(heads, missing, size)
            )
            parts = [*parts, zeros]
        return _joined([part for part in parts if part.shape[1]]).contiguous()

    def _cascade(self, query: Tensor, path: Pair, own: Pair, options: dict[str, Any], _: int | None) -> Pair:
        out, lse = self._empty(query, own[1])
        lone = np.array(
            [strand.start for strand in self.layout.strands if strand.stop - strand.start == 1], dtype=np.int64
        )
        if len(lone):
            # The inner nodes of label tries are many single tokens: one call for all.
            here = self._array("lone", query.device, lone)
            parts = (query[:, here], *(part[:, here] for part in own))
            out[:, here], lse[:, here] = attend_to_oneself(*parts, **options)
        beside, shared = self._once(("shared",), lambda: shared_keys(self.layout))
        for strand in self.layout.strands:
            if strand.stop - strand.start > 1:
                stretch, mask = slice(strand.start, strand.stop), None
                seen: Any = stretch
                if strand.start in beside:
                    seen, mask = self._visible(strand, beside[strand.start], None, query.device)
                parts = (query[:, stretch], *(part[:, seen] for part in own))
                out[:, stretch], lse[:, stretch] = attend(*parts, causal=mask is None, mask=mask, **options)
        for start, stop, blocks in shared:
            cuts = [(path if one.on_path else own, slice(one.key_start, one.key_stop)) for one in blocks]
            keys, values = (_joined([source[which][:, cut] for source, cut in cuts]) for which in (0, 1))
            seeing = slice(start, stop)
            merge(out[:, seeing], lse[:, seeing], *attend(query[:, seeing], keys, values, **options))
        return out, lse

    def _gather(self, query: Tensor, path: Pair, own: Pair, options: dict[str, Any], span: int | None) -> Pair:
        keys, values = (torch.cat(pair, dim=1) for pair in zip(path, own, strict=True))
        out, lse = self._empty(query, values)
        for strand, seen in zip(
            self.layout.strands, self._once(("seen", span), lambda: _seen(self.layout, span)), strict=True
        ):
            stretch = slice(strand.start, strand.stop)
            index, mask = self._visible(strand, seen, span, query.device)
            parts = (query[:, stretch], keys[:, index], values[:, index])
            out[:, stretch], lse[:, stretch] = attend(*parts, mask=mask, **options)
        return out, lse

    @staticmethod
    def _empty(query: Tensor, values: Tensor) -> Pair:
        """Allocate a pack's attention output, token by token as the kernels write it, and its log-sum-exp."""
        out = query.new_empty((query.shape[1], query.shape[0], values.shape[-1])).transpose(0, 1)
        wide = torch.promote_types(query.dtype, torch.float32)
        return out, torch.empty(query.shape[:2], dtype=wide, device=query.device)

    def _visible(self, strand: Strand, seen: Index, span: int | None, device: torch.device) -> Pair:
        """Return the indices of the keys in `seen`, which end with the strand's own, and the mask of each query."""

        def make() -> Pair:
            length = strand.stop - strand.start
            # The last query sees the last key; `behind` is the distance of a key before its query.
            behind = np.arange(length)[:, None] + len(seen) - length - np.arange(len(seen))
            mask = (behind >= 0) & (behind < (span or len(seen)))
            return to_device(seen, device), to_device(mask, device)

        return self._once(("visible", device, span, strand.start), make)

    def _array(self, what: Any, device: torch.device, array: NDArray[np.int64]) -> Tensor:
        return self._once((what, device), lambda: to_device(array, device))

    def _once(self, key: tuple[Any, ...], make: Callable[[], _T]) -> _T:
        """Create an object shared by all layers on first use."""
        if key not in self._made:
            self._made[key] = make()
        made: _T = self._made[key]
        return made


def _joined(parts: list[Tensor]) -> Tensor:
    """Concatenate tensors of shape (heads, tokens, size)."""
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def shared_keys(layout: Layout) -> tuple[dict[int, Index], list[tuple[int, int, tuple[VisibleBlock, ...]]]]:
    """Arrange shared keys in two ways: joined to a strand's own keys, by its start, and as parts for stretches.

    Few keys, such as words that two candidates begin with, join a strand's own keys, because merging another part costs
    more. Blocks that the same queries see are one part.
    """
    beside: dict[int, Index] = {}
    parts: dict[str, list[tuple[int, int, tuple[VisibleBlock, ...]]]] = {"few": [], "many": []}
    kinds = {block: _kind(block) for block in layout.blocks}
    coming, seen = sorted(layout.blocks, key=lambda block: block.start)[::-1], list[VisibleBlock]()
    for strand in layout.strands:
        seen = [block for block in seen if block.stop > strand.start]
        while coming and coming[-1].start <= strand.start:
            seen.append(coming.pop())
        of = {kind: tuple(block for block in seen if kinds[block] == kind) for kind in parts}
        if of["few"] and strand.stop - strand.start > 1:
            spans = [*((block.key_start, block.key_stop) for block in of["few"]), (strand.start, strand.stop)]
            beside[strand.start] = np.concatenate([np.arange(*span) for span in spans])
            of["few"] = ()
        for kind, blocks in of.items():
            if parts[kind] and parts[kind][-1][1:] == (strand.start, blocks):
                parts[kind][-1] = (parts[kind][-1][0], strand.stop, blocks)
            elif blocks:
                parts[kind].append((strand.start, strand.stop, blocks))
    alone = [(block.start, block.stop, (block,)) for block, kind in kinds.items() if kind == "alone"]
    return beside, [*parts["few"], *parts["many"], *alone]


def _kind(block: VisibleBlock) -> str:
    """Return how a block is attended to: few keys; many queries, together with their other blocks; or alone."""
    if not block.on_path and block.key_stop - block.key_start <= FEW_KEYS:
        return "few"
    return "many" if block.on_path or block.stop - block.start >= MANY_QUERIES else "alone"


def _seen(layout: Layout, span: int | None) -> list[NDArray[np.int64]]:
    """Return, for every strand, the keys visible to any of its tokens, as indices into path and pack concatenated."""
    return [
        keys[0 if span is None else max(0, strand.position - span + 1) :]
        for strand, keys in zip(layout.strands, layout.keys_by_strand, strict=True)
    ]
