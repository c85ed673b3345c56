"""What the machine can do: its measured matmul rate at a model's own shapes, and what it is."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from torch import nn
from transformers import PreTrainedModel

from geval_local import __version__
from geval_local.engine.prefix_sharing.linear import by_convolution, convolution_is_faster
from geval_local.engine.prefix_sharing.packs import lay_requests_out
from geval_local.models.head import trunk_of
from geval_local.tokens.requests import Request


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
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
        if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
        else None,
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "lm_eval": version_of("lm_eval"),
        "geval_local": __version__,
    }


def processor_time() -> float | None:
    """Processor seconds that all programs together have used so far; None where the system does not say."""
    try:
        with open("/proc/stat", encoding="utf-8") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


def share_of_others(before: float | None, own: float, seconds: float) -> float | None:
    """Processors that other programs kept busy for the last `seconds`, of which this one has used `own`.

    Parameters
    ----------
    before : float, optional
        From `processor_time`, at their beginning.
    own, seconds : float
        Processor time and time.
    """
    now = processor_time()
    if before is None or now is None:
        return None
    return round(max(0.0, now - before - own) / max(seconds, 1e-9), 3)


def busy_share(run: Callable[[], object], device: torch.device) -> float | None:
    """Share of the time of `run` in which a GPU computes or copies anything; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        begin = time.perf_counter()
        run()
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - begin
    on_gpu = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    busy, until = 0.0, 0.0
    for start, end in sorted((event.time_range.start, event.time_range.end) for event in on_gpu):
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy / 1e6 / seconds


def save(console: Console, output: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write results: a JSON object per line, the machine and the command first; the printed tables beside them."""
    output.parent.mkdir(parents=True, exist_ok=True)
    command = shlex.join(["python", os.path.relpath(sys.argv[0], Path(__file__).resolve().parents[1]), *sys.argv[1:]])
    head = {"command": command, "machine": machine()}
    output.write_text("".join(json.dumps(entry) + "\n" for entry in [head, *records]), encoding="utf-8")
    described = ", ".join(f"{name} {value}" for name, value in head["machine"].items() if value is not None)
    text = f"{command}\n{described}\n\n{console.export_text()}"
    output.with_suffix(".txt").write_text(text, encoding="utf-8")
    console.print(f"raw figures: {output}")


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


def matmul_rate(model: PreTrainedModel, tokens: int, seconds: float = 2.0) -> float:
    """Measure the FLOP/s of the trunk's own linear layers, one after the other, on `tokens` tokens at a time.

    The median over passes through all of them; the better of PyTorch's usual product and the one that the engine takes
    on this processor, in turns.
    """
    layers = linear_layers(model)
    device = layers[0].weight.device
    inputs = {
        layer.in_features: torch.randn(1, tokens, layer.in_features, dtype=layer.weight.dtype, device=device)
        for layer in layers
    }
    operations = sum(2 * tokens * layer.weight.numel() for layer in layers)
    products: list[Sequence[nn.Linear]] = [(), layers] if convolution_is_faster() else [()]
    times: list[list[float]] = [[] for _ in products]
    begin = time.perf_counter()
    while len(times[-1]) < 3 or time.perf_counter() - begin < seconds * len(products):
        for exchanged, taken in zip(products, times, strict=True):
            synchronize(device)
            start = time.perf_counter()
            with torch.inference_mode(), by_convolution(exchanged):
                for layer in layers:
                    layer(inputs[layer.in_features])
            synchronize(device)
            taken.append(time.perf_counter() - start)
    return operations / min(statistics.median(taken) for taken in times)


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
