"""What a judge runs on, for people who look for an error: devices, versions, and how its engine was chosen."""

from __future__ import annotations

import importlib.metadata
import platform
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from geval_local.engine.choose import EngineReport
from geval_local.engine.interface import Engine
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.engine.prefix_sharing.flex import why_no_kernel
from geval_local.models.head import gpus_of, input_device
from geval_local.models.memory import free_memory
from geval_local.models.precision import dtype_name

__all__ = ["describe_device"]


def describe_device(model: PreTrainedModel, engine: Engine, report: EngineReport) -> dict[str, Any]:
    """Describe what computes, and how.

    Parameters
    ----------
    model : PreTrainedModel
        A causal LM.
    engine : Engine
        The one that scores with it.
    report : EngineReport
        Why it is that one.

    Returns
    -------
    dict
        Plain JSON values: devices, attention, engine, budget, dtype, what the probe at loading did, versions.
    """
    device = input_device(model)
    devices = [_device_record(one) for one in gpus_of(model)] or [_device_record(device)]
    kernel = getattr(engine, "kernel", None)
    if kernel is not None:
        attention = "FlexAttention, one kernel"
    elif isinstance(engine, PrefixSharingEngine):
        missing = why_no_kernel(device) or (report.note if device.type == "cuda" else None)
        attention = "in pieces" + (f": {missing}" if missing else "")
    else:
        attention = "the model's own"
    return {
        "devices": devices,
        "attention": attention,
        "engine": report.text,
        "batch_tokens": engine.batch_tokens,
        "look_ahead": getattr(engine, "look_ahead", 0),
        "dtype": dtype_name(model.dtype),
        "probe": None
        if report.difference is None
        else {
            "difference": report.difference,
            "tolerance": report.tolerance,
            "tokens": report.probe_tokens,
            "window_not_reached": report.window,
            "left_out": report.note,
        },
        "float32_products": torch.get_float32_matmul_precision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "triton": _triton_version(),
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }


def _device_record(device: torch.device) -> dict[str, Any]:
    """Describe one device."""
    if device.type != "cuda":
        return {"device": str(device), "name": platform.processor() or platform.machine()}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": str(device),
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "free_bytes": free_memory(device),
    }


def _triton_version() -> str | None:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None
