"""One stretch of the stream on its way through the model.

To launch is to prepare index tensors and to queue the computation; on a GPU the host is free again long before the
device has finished. Nothing of the engine's state changes until a stretch is accepted, so one that ran out of memory,
or that was launched ahead of its turn and is not wanted any more, is simply dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from geval_local.engine.interface import PendingPositions
from geval_local.engine.prefix_sharing.attention import PackAttention
from geval_local.engine.prefix_sharing.key_value_store import PathStore
from geval_local.engine.prefix_sharing.layout import lay_out
from geval_local.engine.prefix_sharing.model_attention import attending_through
from geval_local.engine.prefix_sharing.packs import Work
from geval_local.models.head import Head, input_device, trunk_of
from geval_local.models.linear import by_convolution, convertible, convolution_is_faster
from geval_local.models.memory import is_out_of_memory
from geval_local.models.rope import rope_reset
from geval_local.models.transfer import to_device
from geval_local.tokens.requests import Request

__all__ = ["Launched", "Launcher"]


@dataclass(frozen=True)
class Launched:
    """A stretch whose computation is done or queued.

    Attributes
    ----------
    work : Work
        What it is a stretch of.
    start, stop : int
        Which stretch.
    ids : ndarray of int32
        Tokens of the root path behind it.
    keep_from : int
        Positions of that path before this one were there before.
    added : list of (Tensor, Tensor)
        For every layer keys and values of the others.
    windows : tuple of (int or None)
        What the layers asked for.
    read : PendingPositions, optional
        What is read in it; None where nothing is.
    """

    work: Work
    start: int
    stop: int
    ids: NDArray[np.int32]
    keep_from: int
    added: list[tuple[torch.Tensor, torch.Tensor]]
    windows: tuple[int | None, ...]
    read: PendingPositions | None


class Launcher:
    """Sends stretches through a model.

    Parameters
    ----------
    model : PreTrainedModel
        A causal LM in evaluation mode.
    head : Head
        Its read-out head.
    fused : bool
        Whether attention may use a fused kernel for packed sequences, where the device has one.
    """

    def __init__(self, model: PreTrainedModel, head: Head, *, fused: bool) -> None:
        self.trunk = trunk_of(model)
        self.device = input_device(model)
        self._config = model.config
        self._head = head
        self._fused = fused
        self._linear = convertible(self.trunk) if convolution_is_faster() else ()
        self._reset_rope = rope_reset(self.trunk)

    def launch(
        self, work: Work, start: int, stop: int, requests: Sequence[Request], store: PathStore
    ) -> Launched | None:
        """Send the stretch from `start` to `stop` through the model; None if memory ran out."""
        try:
            return self._launch(work, start, stop, requests, store)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # The caller retries: inside the block above the traceback would pin the activations.
        return None

    @torch.inference_mode()
    def _launch(self, work: Work, start: int, stop: int, requests: Sequence[Request], store: PathStore) -> Launched:
        stream = work.stream
        layout = lay_out(stream, start, stop)
        low, high = np.searchsorted(work.places, [start, stop]).tolist()
        attention = PackAttention(layout, store, fused=self._fused)
        tokens = to_device(stream.tokens[start:stop].astype(np.int64), self.device)
        positions = to_device(stream.positions[start:stop], self.device)
        self._reset_rope()
        with (
            attending_through(self._config, attention),
            by_convolution(self._linear),
        ):
            hidden = self.trunk(input_ids=tokens[None], position_ids=positions[None], use_cache=False)[0][0]
        read = None
        if low < high:
            places = to_device(work.places[low:high] - start, hidden.device)
            read = PendingPositions(self._head, hidden[places], work.positions[low:high], requests)
        ids = stream.tokens[stream.root_path(stop)]
        return Launched(work, start, stop, ids, layout.keep_from, attention.added, tuple(attention.windows), read)
