"""What a model's files must be before they are loaded: a causal decoder, in complete safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from geval_local.errors import JudgeError, UnsupportedModelError, WeightsError
from geval_local.models.entry import JudgeEntry
from geval_local.models.fingerprint import weight_files

__all__ = ["check_architecture", "check_weight_files"]

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_OTHER_FORMATS = ("*.gguf", "*.h5", "*.msgpack", "*.onnx", "consolidated*.safetensors")


def check_architecture(entry: JudgeEntry, directory: Path, *, trust_remote_code: bool) -> None:
    """Refuse a model that has no next-token distribution over a growing text.

    Raises
    ------
    UnsupportedModelError
        For an encoder-decoder, an encoder, a model with another head, an architecture that this transformers version
        does not know, and one that only its own code can build when that is not allowed.
    JudgeError
        If config.json cannot be read.
    """
    config = _config(directory)
    kind = config.get("model_type")
    if "AutoModelForCausalLM" in config.get("auto_map", {}) and (trust_remote_code or kind not in CONFIG_MAPPING):
        if trust_remote_code:
            return  # what its own code builds is probed when it is first used
        raise UnsupportedModelError(
            f"judge {entry.name!r}: the model type {kind!r} is built by Python code in its own directory, which is not "
            "run unless asked for",
            hint="Read that code, then allow it with --trust-remote-code.",
        )
    if kind not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"judge {entry.name!r}: the installed transformers does not know the model type {kind!r}",
            hint="A newer transformers may know it: pip install --upgrade transformers.",
        )
    reason = _why_not_causal(config)
    if reason is not None:
        raise UnsupportedModelError(
            f"judge {entry.name!r}: {reason}",
            hint="A judge is a causal (decoder-only) language model: Llama, Qwen, Mistral, Gemma, Phi, GPT-2, ...",
        )


def check_weight_files(entry: JudgeEntry, directory: Path, *, hint: str) -> None:
    """Check that all weights are there, as safetensors.

    Parameters
    ----------
    entry : JudgeEntry
        For the messages.
    directory : Path
        The model's directory.
    hint : str
        How to get what is missing.

    Raises
    ------
    WeightsError
        If there are none, some shards are missing, or there are only formats that may run code when read.
    """
    files = weight_files(directory)
    missing = [file.name for file in files if not file.exists()]  # a dangling link of the hub cache does not exist
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise WeightsError(
            f"judge {entry.name!r}: {len(missing)} of {len(files)} weight files are missing in {directory}: {shown}",
            hint=hint,
        )
    if files:
        return
    pickles = sorted(file.name for pattern in _PICKLES for file in directory.glob(pattern))
    if pickles:
        raise WeightsError(
            f"judge {entry.name!r}: {directory} holds its weights only as pickle ({pickles[0]}), which can run any "
            "code when it is read; only safetensors are loaded",
            hint='Where you trust the file, convert it once: python -c "from transformers import AutoModelForCausalLM; '
            "AutoModelForCausalLM.from_pretrained('DIR', dtype='auto').save_pretrained('NEW_DIR')\", then copy the "
            "tokenizer files beside it.",
        )
    other = sorted(file.name for pattern in _OTHER_FORMATS for file in directory.glob(pattern))
    found = f" (found {other[0]}, a format that is not read)" if other else ""
    raise WeightsError(
        f"judge {entry.name!r}: there are no weights (model.safetensors) in {directory}{found}", hint=hint
    )


def _why_not_causal(config: dict[str, Any]) -> str | None:
    kind = str(config["model_type"])
    if config.get("is_encoder_decoder", CONFIG_MAPPING[kind].is_encoder_decoder):
        return f"{kind!r} is an encoder-decoder model; its prompt and its answer are not one text"
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return f"{kind!r} has no causal language model head in transformers"
    # Encoders such as BERT have a causal class as well, which sees both sides of a token unless it is made a decoder.
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not (config.get("is_decoder") or config.get("causal")):
        return f"{kind!r} is an encoder; it has no next-token distribution"
    declared = config.get("architectures") or []
    usable = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()}
    if declared and not usable.intersection(declared):
        return f"its weights belong to {declared[0]}, which has another head than a language model's"
    return None


def _config(directory: Path) -> dict[str, Any]:
    file = directory / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise JudgeError(f"cannot read {file}: {error}") from error
    if not isinstance(config, dict):
        raise JudgeError(f"{file} is not a model configuration")
    architectures = config.get("architectures")
    problems = {
        "model_type is the name of an architecture": isinstance(config.get("model_type"), str),
        "auto_map maps classes to their code": isinstance(config.get("auto_map", {}), dict),
        "architectures is a list of class names": architectures is None
        or (isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)),
    }
    wrong = [rule for rule, holds in problems.items() if not holds]
    if wrong:
        raise JudgeError(
            f"{file} is not a model configuration: {'; '.join(wrong)}",
            hint="Copy the model's config.json again.",
        )
    return config
