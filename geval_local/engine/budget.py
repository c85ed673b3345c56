"""How many tokens a forward pass of the prefix-sharing engine may hold."""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.prefix_sharing.engine import TrieEngine
from geval_local.models.head import Head
from geval_local.tokens.label_trie import LabelTrie, SurfaceForm
from geval_local.tokens.requests import Request

__all__ = ["trie_budget"]

#: On a CPU larger packs gain nothing: the matrices are long enough, and the caches are small. What a wide feed-forward
#: layer makes of twice as many tokens is beyond what the C library keeps, and fetching fresh memory for it in every
#: layer took a tenth of a pass.
CPU_TOKENS = 1_024
_LEAST, _MOST = 1_024, 16_384
#: Share of the free memory that activations may take; the rest is for the root path and for fragmentation.
_SHARE = 0.5


def trie_budget(model: PreTrainedModel, head: Head, padded: PaddedEngine) -> int:
    """Find the token budget from free memory and a measured cost per token.

    Parameters
    ----------
    model : PreTrainedModel
        A causal LM that the prefix-sharing engine may serve.
    head : Head
        Its read-out head.
    padded : PaddedEngine
        See `TrieEngine`.

    Returns
    -------
    int
        A power of two, so that a little more or less free memory does not change the packs.
    """
    devices = sorted({parameter.device.index or 0 for parameter in model.parameters() if parameter.is_cuda})
    if not devices:
        return CPU_TOKENS
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    before = [torch.cuda.memory_allocated(device) for device in devices]
    trie = LabelTrie([SurfaceForm(0, "0", (0,)), SurfaceForm(1, "1", (1,))], 2)
    engine = TrieEngine(model, head, batch_tokens=_LEAST, padded=padded)
    limit = int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or _LEAST + 2)
    request = Request(np.zeros(min(_LEAST, limit - 2), dtype=np.int32), trie)
    for _ in engine.execute([request], engine.plan([request])):
        pass
    fitting = []
    for device, allocated in zip(devices, before, strict=True):
        cost = (torch.cuda.max_memory_allocated(device) - allocated) / len(request.ids)
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + unused
        fitting.append(_SHARE * free / max(cost, 1.0))
    budget = 1 << int(np.log2(max(min(fitting), 1.0)))
    return int(np.clip(budget, _LEAST, _MOST))
