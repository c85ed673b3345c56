"""Attention within one pack, in three ways of computing the same softmax.

cascade
    Each run attends to itself, causally; each stretch of keys that many tokens share is attended to once by all of
    them; the parts are merged by their log-sum-exp. No key is copied. For full attention on the CPU.
gather
    Each run attends to its own keys, gathered. For sliding windows.
varlen
    All runs with their gathered keys in one call of a GPU kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from geval_local.inference.kernels import attend, attend_to_oneself, merge
from geval_local.inference.path_store import PathStore
from geval_local.inference.plan import Layout
from geval_local.inference.varlen import Packed, find_varlen

__all__ = ["PackAttention"]


class PackAttention:
    """The state of one pack's forward pass, shared by all layers.

    Parameters
    ----------
    layout : Layout
        Who sees whom.
    store : PathStore
        Holds the first ``layout.path`` positions; the pack's own keys and values are staged there.
    fused : bool
        Whether a fused GPU kernel may be used.

    Attributes
    ----------
    windows : list of (int or None)
        For every layer that called so far, the sliding window that it asked for.
    """

    def __init__(self, layout: Layout, store: PathStore, *, fused: bool) -> None:
        self.layout = layout
        self.windows: list[int | None] = []
        self._store = store
        self._fused = fused
        self._masked: dict[tuple[torch.device, int | None], list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._packed: dict[tuple[torch.device, int | None], tuple[torch.Tensor, Packed]] = {}
        self._keep: dict[torch.device, torch.Tensor] = {}
        self._longest = max(run.position + run.stop - run.start for run in layout.runs)

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attend in the next layer.

        Parameters
        ----------
        query, key, value : Tensor, shape (heads, tokens, size)
            Of the pack.
        scale : float
            Factor on the scores.
        window : int, optional
            Keys that a token sees at most, itself included.
        softcap : float, optional
            Soft cap of the scores.
        sinks : Tensor, shape (heads,), optional
            Scores that take part in the softmax without a value.

        Returns
        -------
        Tensor, shape (tokens, heads, value size)
        """
        layer = len(self.windows)
        self.windows.append(window)
        if window is not None and window >= self._longest:
            window = None
        keys, values = key.transpose(0, 1), value.transpose(0, 1)
        path_keys, path_values = (
            self._store.read(layer, self.layout.path) if self.layout.path else (keys[:0], values[:0])
        )
        varlen = find_varlen(query, softcap=softcap is not None) if self._fused else None
        if varlen is not None:
            index, packed = self._index(query.device, window)
            out, lse = varlen(
                query.transpose(0, 1),
                torch.cat([path_keys, keys])[index],
                torch.cat([path_values, values])[index],
                packed,
                scale=scale,
                window=window,
                softcap=softcap,
            )
        else:
            compute = self._cascade if window is None else self._gather
            out, lse = compute(
                query,
                (path_keys.transpose(0, 1), path_values.transpose(0, 1)),
                (key, value),
                {"scale": scale, "softcap": softcap},
                window,
            )
            out, lse = out.transpose(0, 1), lse.transpose(0, 1)
        if sinks is not None:
            out = out * torch.sigmoid(lse - sinks.to(lse.dtype))[..., None].to(out.dtype)
        keep = self._kept(query.device)
        self._store.stage(keys[keep], values[keep])
        return out

    def _cascade(
        self,
        query: torch.Tensor,
        path: tuple[torch.Tensor, torch.Tensor],
        own: tuple[torch.Tensor, torch.Tensor],
        options: dict[str, Any],
        _: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.empty((*query.shape[:2], own[1].shape[-1]), dtype=query.dtype, device=query.device)
        lse = torch.empty(query.shape[:2], dtype=torch.promote_types(query.dtype, torch.float32), device=query.device)
        lone = [run.start for run in self.layout.runs if run.stop - run.start == 1]
        if lone:
            # The inner nodes of label tries are single tokens, many of them: one call for all.
            out[:, lone], lse[:, lone] = attend_to_oneself(*(part[:, lone] for part in (query, *own)), **options)
        for run in self.layout.runs:
            here = slice(run.start, run.stop)
            if run.stop - run.start > 1:
                out[:, here], lse[:, here] = attend(*(part[:, here] for part in (query, *own)), causal=True, **options)
        for block in self.layout.blocks:
            source = path if block.on_path else own
            keys, values = (part[:, block.key_start : block.key_stop] for part in source)
            seeing = slice(block.start, block.stop)
            merge(out[:, seeing], lse[:, seeing], *attend(query[:, seeing], keys, values, **options))
        return out, lse

    def _gather(
        self,
        query: torch.Tensor,
        path: tuple[torch.Tensor, torch.Tensor],
        own: tuple[torch.Tensor, torch.Tensor],
        options: dict[str, Any],
        window: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (torch.cat(pair, dim=1) for pair in zip(path, own, strict=True))
        parts = [
            attend(query[:, run.start : run.stop], keys[:, index], values[:, index], mask=mask, **options)
            for run, (index, mask) in zip(self.layout.runs, self._masks(query.device, window), strict=True)
        ]
        out, lse = (torch.cat(column, dim=1) for column in zip(*parts, strict=True))
        return out, lse

    def _masks(self, device: torch.device, window: int | None) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """For every run the index of its keys, and which query sees which; made once per device and window."""
        if (device, window) not in self._masked:
            masks = []
            for run, seen in zip(self.layout.runs, self._seen(window), strict=True):
                length = run.stop - run.start
                # The last query sees the last key; a key lies `behind` places before its query.
                places = np.arange(length)[:, None] + len(seen) - length
                behind = places - np.arange(len(seen))
                mask = (behind >= 0) & (behind < (window or self._longest))
                masks.append((torch.from_numpy(seen).to(device), torch.from_numpy(mask).to(device)))
            self._masked[device, window] = masks
        return self._masked[device, window]

    def _seen(self, window: int | None) -> list[NDArray[np.int64]]:
        """For every run the keys that any of its tokens sees, as places in path and pack laid end to end."""
        return [
            keys[0 if window is None else max(0, run.position - window + 1) :]
            for run, keys in zip(self.layout.runs, self.layout.keys_by_run, strict=True)
        ]

    def _index(self, device: torch.device, window: int | None) -> tuple[torch.Tensor, Packed]:
        """Index of the gathered keys of all runs, and where they end; made once per device and window."""
        if (device, window) not in self._packed:
            seen = self._seen(window)
            lengths = [(run.stop - run.start, len(keys)) for run, keys in zip(self.layout.runs, seen, strict=True)]
            ends = np.zeros((2, len(seen) + 1), dtype=np.int32)
            np.cumsum(np.array(lengths).T, axis=1, out=ends[:, 1:])
            query_ends, key_ends = torch.from_numpy(ends).to(device)
            most_queries, most_keys = np.array(lengths).max(axis=0).tolist()
            index = torch.from_numpy(np.concatenate(seen)).to(device)
            self._packed[device, window] = (index, Packed(query_ends, key_ends, most_queries, most_keys))
        return self._packed[device, window]

    def _kept(self, device: torch.device) -> torch.Tensor:
        if device not in self._keep:
            self._keep[device] = torch.from_numpy(self.layout.keep).to(device)
        return self._keep[device]
