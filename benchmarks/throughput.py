"""How fast a model could be, and how much there is to do: the measure that an engine's speed is held against."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from geval_local.engine.prefix_sharing.packs import lay_requests_out
from geval_local.models.head import trunk_of
from geval_local.tokens.requests import Request

__all__ = ["linear_share", "matmul_rate", "operations", "synchronize"]


def synchronize(device: torch.device) -> None:
    """Wait for a GPU to finish; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul_rate(model: PreTrainedModel, tokens: int, seconds: float = 2.0) -> float:
    """Measure the FLOP/s of the trunk's own linear layers, one after the other, on `tokens` tokens at a time.

    The median over passes through all of them.

    Parameters
    ----------
    model : PreTrainedModel
        Its linear layers must be plain ones, in memory.
    tokens : int
        Rows of every product.
    seconds : float
        How long to measure at least; three passes are made in any case.
    """
    layers = _linear_layers(model)
    device = layers[0].weight.device
    inputs = {
        (layer.in_features, layer.weight.device): torch.randn(
            1, tokens, layer.in_features, dtype=layer.weight.dtype, device=layer.weight.device
        )
        for layer in layers
    }
    operations = sum(2 * tokens * layer.weight.numel() for layer in layers)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        synchronize(device)
        start = time.perf_counter()
        with torch.inference_mode():
            for layer in layers:
                layer(inputs[layer.in_features, layer.weight.device])
        synchronize(device)
        times.append(time.perf_counter() - start)
    return operations / statistics.median(times)


def operations(model: PreTrainedModel, requests: Sequence[Request]) -> float:
    """Count what the trie of `requests` needs: linear layers, and attention to what is visible, in FLOP."""
    config = model.config.get_text_config()
    stream = lay_requests_out(range(len(requests)), requests).stream
    linear = sum(2 * layer.weight.numel() for layer in _linear_layers(model)) * len(stream)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    seen = int((stream.positions + 1).sum())
    return float(linear + 4 * seen * config.num_attention_heads * size * config.num_hidden_layers)


def linear_share(model: PreTrainedModel) -> float:
    """Share of the trunk's weights, embeddings aside, that are plain linear layers in floating point.

    Experts, recurrent layers and quantized weights are none: where they are many, `operations` counts too few.
    """
    trunk = trunk_of(model)
    tables = {id(module.weight) for module in trunk.modules() if isinstance(module, nn.Embedding)}
    sizes = {
        id(parameter): parameter.numel()
        for parameter in trunk.parameters()
        if parameter.dim() > 1 and id(parameter) not in tables
    }
    linear = {id(layer.weight) for layer in _linear_layers(model) if layer.weight.is_floating_point()}
    total = sum(sizes.values())
    return sum(size for key, size in sizes.items() if key in linear) / total if total else math.nan


def _linear_layers(model: PreTrainedModel) -> list[nn.Linear]:
    """List the linear layers of the trunk, without the head."""
    return [module for module in trunk_of(model).modules() if isinstance(module, nn.Linear)]
