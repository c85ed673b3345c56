"""What the machine can do: its measured matmul rate at a model's own shapes, and what it is."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from geval_local import __version__
from geval_local.inference.engine import Request
from geval_local.inference.packs import lay_requests_out
from geval_local.inference.readout import trunk_of


def synchronize(device: torch.device) -> None:
    """Wait for a GPU to finish; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine() -> dict[str, Any]:
    """Describe the machine and the versions, for a results file."""
    cuda = torch.cuda.is_available()
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "lm_eval": version_of("lm_eval"),
        "geval_local": __version__,
    }


def version_of(package: str) -> str | None:
    """Version of a package that need not be there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


@torch.inference_mode()
def matmul_rate(model: PreTrainedModel, tokens: int, seconds: float = 2.0) -> float:
    """Measure the FLOP/s of the trunk's own linear layers, one after the other, on `tokens` tokens at a time.

    The median over passes through the distinct shapes, each as often as it occurs in the model.
    """
    layers = linear_layers(model)
    weights = [layer.weight for layer in layers]
    device = weights[0].device
    inputs = {
        weight.shape[1]: torch.randn(tokens, weight.shape[1], dtype=weight.dtype, device=device) for weight in weights
    }
    operations = sum(2 * tokens * weight.numel() for weight in weights)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        for weight in weights:
            nn.functional.linear(inputs[weight.shape[1]], weight)
        synchronize(device)
        times.append(time.perf_counter() - start)
    return operations / statistics.median(times)


def linear_layers(model: PreTrainedModel) -> list[nn.Linear]:
    """Linear layers of the trunk, without the head."""
    return [module for module in trunk_of(model).modules() if isinstance(module, nn.Linear)]


def operations(model: PreTrainedModel, requests: Sequence[Request]) -> float:
    """Floating-point operations that the trie of `requests` needs: linear layers, and attention to what is visible."""
    config = model.config.get_text_config()
    stream = lay_requests_out(range(len(requests)), requests).stream
    linear = sum(2 * layer.weight.numel() for layer in linear_layers(model)) * len(stream)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    seen = int((stream.positions + 1).sum())
    return float(linear + 4 * seen * config.num_attention_heads * size * config.num_hidden_layers)
