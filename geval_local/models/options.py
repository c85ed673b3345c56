"""Calls of transformers: options as keyword arguments, and silenced progress bars and warnings."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from geval_local.errors import ConfigurationError, first_line
from geval_local.models.memory import default_device
from geval_local.models.precision import AUTO, automatic_dtype
from geval_local.options import JudgeOptions

#: The dtypes that a judge may run in.
DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def loading_arguments(options: JudgeOptions, default_dtype: str, directory: Path | None = None) -> dict[str, Any]:
    """Turn options into keyword arguments of ``from_pretrained``."""
    name = options.dtype or default_dtype
    placement = _placement(options)
    dtype = automatic_dtype(directory, placement) if name == AUTO else DTYPES[name]
    computed_in = dtype if isinstance(dtype, torch.dtype) else torch.bfloat16  # quantized weights are not probed
    # Named even if it is None: transformers would take what config.json names, and get its code from the hub.
    attention = {"attn_implementation": options.attention}
    return {"dtype": dtype, **attention, **placement, **_quantization(options, computed_in)}


def _placement(options: JudgeOptions) -> dict[str, Any]:
    if options.device_map is not None:
        return {"device_map": options.device_map}
    try:
        device = torch.device(options.device) if options.device is not None else default_device()
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigurationError(
            f"the device {options.device!r} cannot be used here: {first_line(error)}",
            hint="Leave the device out to use a GPU where there is one and the CPU otherwise.",
        ) from error
    return {"device_map": {"": device}}


def _quantization(options: JudgeOptions, dtype: torch.dtype) -> dict[str, Any]:
    if options.quantization is None:
        return {}
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigurationError(
            f"{options.quantization} quantization needs the package bitsandbytes, which is not installed",
            hint="Install it with `pip install bitsandbytes`, or load the judge without quantization.",
        )
    config: Any = transformers.BitsAndBytesConfig
    if options.quantization == "8bit":
        return {"quantization_config": config(load_in_8bit=True)}
    settings = config(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    return {"quantization_config": settings}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars and warnings of transformers and peft: problems that matter are raised as errors."""
    logging: Any = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
