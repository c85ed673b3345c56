"""The machine: its measured matmul rate at a model's own shapes, and its description."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console

from geval_local import __version__

#: Dense half-precision rates of GPUs by their makers' data sheets, TFLOP/s with sums in float32, the longer name first.
NOMINAL = {
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H200": 989.0,
    "B200": 2_250.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "RTX 4090": 165.0,
    "V100": 125.0,
    "T4": 65.0,
    "MI300X": 1_307.0,
}


def nominal_rate(device: torch.device, dtype: torch.dtype) -> float | None:
    """Nominal FLOP/s of a GPU in half precision; None where it is not known, and for other dtypes and devices."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    name = torch.cuda.get_device_name(device)
    words = name.split()
    known = next((rate for key, rate in NOMINAL.items() if all(word in words for word in key.split())), None)
    if known is None:  # the form factor is part of a word: A100-SXM4-80GB
        known = next((rate for key, rate in NOMINAL.items() if key in name and key not in ("L4", "T4")), None)
    return None if known is None else known * 1e12


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
        "vllm": version_of("vllm"),
        "sglang": version_of("sglang"),
        "llama_cpp_python": version_of("llama_cpp_python"),
        "geval_local": __version__,
    }


def processor_time() -> float | None:
    """Processor seconds that all programs together have used so far; None if the system does not report it."""
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
    """Return the version of an optional package."""
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
