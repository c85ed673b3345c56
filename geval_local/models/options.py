"""Calls of transformers: turn options into keyword arguments, and silence progress bars and warnings."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import constants

from geval_local.errors import ConfigurationError, first_line
from geval_local.models.config_checks import stored_quantization
from geval_local.models.fingerprint import read_json
from geval_local.models.memory import default_device
from geval_local.models.precision import AUTO, automatic_dtype, place_of
from geval_local.options import JudgeOptions


def loading_arguments(options: JudgeOptions, default_dtype: str, directory: Path | None = None) -> dict[str, Any]:
    """Turn options into keyword arguments of ``from_pretrained``."""
    name = options.dtype or default_dtype
    placement = _placement(options)
    dtype = automatic_dtype(directory, placement) if name == AUTO else getattr(torch, name)
    computed_in = dtype if isinstance(dtype, torch.dtype) else torch.bfloat16  # quantized weights are not probed
    # Passed even if it is None: else transformers uses the one that config.json names, with code from the hub.
    attention = {"attn_implementation": options.attention}
    return {
        "dtype": dtype,
        **attention,
        **placement,
        **_quantization(options, computed_in, directory, place_of(placement)),
    }


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


#: Formats whose products need a kernel from the hub: the name of their class in transformers, and of the kernel.
_HUB_KERNELS = {
    "fp8": ("FineGrainedFP8Config", "finegrained-fp8"),
    "mxfp4": ("Mxfp4Config", "gpt-oss-triton-kernels"),
}


def _quantization(
    options: JudgeOptions, dtype: torch.dtype, directory: Path | None, device: torch.device
) -> dict[str, Any]:
    stored = _stored_format(directory)
    if options.quantization == "dequantize":
        if stored not in _HUB_KERNELS:
            raise ConfigurationError(
                "only weights in FP8 or MXFP4 can be dequantized while loading, and this judge's are not",
                hint="Leave `quantization` out.",
            )
        return {"quantization_config": getattr(transformers, _HUB_KERNELS[stored][0])(dequantize=True)}
    if stored in _HUB_KERNELS and options.quantization is None and device.type != "cpu":  # there it is dequantized
        _check_hub_kernel(stored, _HUB_KERNELS[stored][1])
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


def _stored_format(directory: Path | None) -> str | None:
    """Read the method of a quantized checkpoint from its configuration."""
    config = None if directory is None else read_json(directory / "config.json")
    method = (stored_quantization(config or {}) or {}).get("quant_method")
    return None if method is None else str(method)


def _check_hub_kernel(stored: str, kernel: str) -> None:
    """Check that the kernel for a stored format is on this machine; the network is never used for it."""
    folders = (Path(constants.HF_HUB_CACHE) / f"{kind}--kernels-community--{kernel}" for kind in ("models", "kernels"))
    if importlib.util.find_spec("kernels") is not None and any(folder.is_dir() for folder in folders):
        return
    raise ConfigurationError(
        f"the judge's weights are stored as {stored.upper()}, which needs the package kernels and, from the hub, its "
        f"kernel kernels-community/{kernel}; both must be on this machine",
        hint="Take `quantization=dequantize`, which widens the weights while loading, or: pip install kernels, and "
        f"python -c \"import kernels; kernels.get_kernel('kernels-community/{kernel}')\".",
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence progress bars and warnings of transformers and peft; problems that matter are raised as errors."""
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
