"""Weights and tokenizer from local files: safetensors or GGUF, no random initialisation, no network access."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from geval_local.errors import ConfigurationError, GevalError, JudgeError, TokenizerError, WeightsError, first_line
from geval_local.models.adapter import check_adapter, merge_adapter, without_adapter
from geval_local.models.chat_template import chat_frame
from geval_local.models.checks import (
    check_architecture,
    check_finite,
    check_gaps,
    check_placement,
    check_surplus,
    check_weight_files,
    stored_names,
)
from geval_local.models.fingerprint import fingerprint, tokenizer_hash, weight_files
from geval_local.models.gguf_file import gguf_files, joined
from geval_local.models.gguf_model import (
    check_gguf,
    check_gguf_complete,
    gguf_arguments,
    gguf_tokenizer,
    quick_reader,
    scale_rotary,
)
from geval_local.models.multimodal import drop_other_senses, loader_for, senses_of
from geval_local.models.options import LoadOptions, loading_arguments, quiet
from geval_local.models.precision import AUTO, Precision, settle
from geval_local.models.registry import JudgeEntry, fetch_directory, local_directory

__all__ = [
    "LoadOptions",
    "LoadedModel",
    "check_judge",
    "check_style",
    "load_model",
    "load_tokenizer",
    "resolve_directory",
]


logger = logging.getLogger("geval_local")

#: Arguments of every `from_pretrained` call.
_ALWAYS: Mapping[str, Any] = {
    "local_files_only": True,
    "output_loading_info": True,
    "ignore_mismatched_sizes": True,  # reported, then raised as an error with the parameters' names
}


@dataclass
class LoadedModel:
    """A model ready to score, with its identity.

    Attributes
    ----------
    model : PreTrainedModel
        The model, in evaluation mode, without gradients.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer, with a fast backend.
    entry : JudgeEntry
        The entry it was loaded from.
    directory : Path
        Directory of its files, or the GGUF file.
    fingerprint : str
        Content hash of weights, configuration and adapter, see `fingerprint.fingerprint`.
    tokenizer_hash : str
        Content hash of tokenizer and template.
    dtype : torch.dtype
        Dtype of the computation.
    precision : Precision
        Reason for the dtype, and its effect on a score.
    attention : str
        Attention implementation in use.
    parameters : int
        Number of weights, tied ones counted once.
    memory_bytes : int
        Memory of weights and buffers, bytes.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    entry: JudgeEntry
    directory: Path
    fingerprint: str
    tokenizer_hash: str
    dtype: torch.dtype
    precision: Precision
    attention: str
    parameters: int
    memory_bytes: int


def resolve_directory(entry: JudgeEntry) -> Path:
    """Find the directory of a judge's files on this machine.

    Raises
    ------
    WeightsError
        If they are not on this machine; the message explains how to fetch and copy them.
    """
    directory = local_directory(entry)
    if directory is not None:
        return directory
    if entry.path is not None:
        raise WeightsError(
            f"judge {entry.name!r}: {entry.path} holds no config.json and no GGUF model, so there is no model there",
            hint="Correct the path in the models file, or put the model's directory or GGUF file there.",
        )
    raise WeightsError(
        f"the weights of judge {entry.name!r} ({entry.hub}) are not on this machine", hint=_fetch_hint(entry)
    )


def load_tokenizer(entry: JudgeEntry, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load a judge's tokenizer alone, without its weights.

    Raises
    ------
    WeightsError
        If the judge is not on this machine.
    TokenizerError
        If there is no tokenizer, none with a fast backend, or no chat template although the style needs one.
    """
    directory = resolve_directory(entry)
    is_one_file = directory.is_file()
    with quiet():
        try:
            tokenizer = (
                gguf_tokenizer(directory)
                if is_one_file
                else AutoTokenizer.from_pretrained(
                    str(directory), local_files_only=True, trust_remote_code=trust_remote_code
                )
            )
        except Exception as error:  # transformers raises OSError, ValueError, KeyError, ... for the same problem
            raise TokenizerError(
                f"judge {entry.name!r}: no tokenizer can be loaded from {directory}: {first_line(error)}",
                hint="Give the model's safetensors directory, with its tokenizer.json, instead of the GGUF file."
                if is_one_file
                else "The directory needs tokenizer.json and tokenizer_config.json; fetch them with the weights.",
            ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise TokenizerError(
            f"judge {entry.name!r}: its tokenizer ({type(tokenizer).__name__}) has no fast backend, so the characters "
            "of each token are unknown",
            hint="Add a tokenizer.json to its directory; transformers' convert_slow_tokenizer writes one.",
        )
    if len(tokenizer.get_vocab()) == 0:
        raise TokenizerError(f"judge {entry.name!r}: the tokenizer in {directory} has an empty vocabulary")
    try:
        tokenizer("x")
    except Exception as error:  # settings of the wrong type only show up in use
        raise TokenizerError(
            f"judge {entry.name!r}: the tokenizer in {directory} cannot be used: {first_line(error)}",
            hint="Restore its tokenizer_config.json; fetch it with the weights.",
        ) from error
    check_style(entry, tokenizer)
    return tokenizer


def check_style(entry: JudgeEntry, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that the tokenizer supports the entry's prompt style.

    Raises
    ------
    TokenizerError
        If a chat style is set and there is no chat template, or none that can end at the start of the answer.
    """
    if entry.style == "completion":
        return
    if not tokenizer.chat_template:
        raise TokenizerError(
            f"judge {entry.name!r}: style {entry.style!r} needs a chat template, and its tokenizer has none",
            hint="Set `style: completion` for it in a models file of your own, or add chat_template.jinja to its "
            "directory.",
        )
    try:
        warning = chat_frame(tokenizer).warning
    except TokenizerError as error:
        raise TokenizerError(f"judge {entry.name!r}: {error.message}", hint=error.hint) from error
    if warning is not None:
        logger.warning("judge %s: %s", entry.name, warning)


def check_judge(entry: JudgeEntry, options: LoadOptions) -> tuple[Path, PreTrainedTokenizerBase, dict[str, Any]]:
    """Check that a judge can be loaded, without reading its weights.

    Returns
    -------
    directory : Path
        Directory of its files.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    arguments : dict of str to Any
        Arguments for loading its weights.

    Raises
    ------
    GevalError
        As for `load_model`.
    """
    directory = resolve_directory(entry)
    if directory.is_file():
        check_gguf(entry, directory, quantized=options.quantization is not None)
    else:
        check_architecture(entry, directory, trust_remote_code=options.trust_remote_code)
        check_weight_files(entry, directory, hint=_fetch_hint(entry))
    check_adapter(entry, quantized=options.quantization is not None)
    tokenizer = load_tokenizer(entry, trust_remote_code=options.trust_remote_code)
    return directory, tokenizer, loading_arguments(options, entry.dtype, directory)


def load_model(entry: JudgeEntry, options: LoadOptions | None = None) -> LoadedModel:
    """Load a judge from local files.

    Parameters
    ----------
    entry : JudgeEntry
        From `registry.find_judge`.
    options : LoadOptions, optional
        Device, dtype, attention and so on.

    Raises
    ------
    WeightsError
        If weights are missing, incomplete, damaged, not safetensors, not finite, or do not match the model exactly.
    UnsupportedModelError
        If the model is not a decoder with a next-token distribution, or needs its own code without permission.
    TokenizerError
        See `load_tokenizer`.
    JudgeError
        If the model does not fit, a device map finds memory for no part of it, its adapter cannot be merged, or its
        logits are not finite.
    ConfigurationError
        If an option cannot be met on this machine.
    """
    options = options or LoadOptions()
    directory, tokenizer, arguments = check_judge(entry, options)
    if directory.is_file():
        model, report = _load_gguf(entry, directory, arguments)
    else:
        model, report = _load_weights(entry, directory, options, arguments)
    if directory.is_dir():
        _keep_the_text(entry, directory, model)
    check_gaps(entry, directory, report)
    check_surplus(entry, directory, model, report)
    check_placement(entry, model)
    _keep_soft_capping(entry, model, options)
    if entry.adapter is not None:
        model = merge_adapter(entry, model)
    model.eval()
    model.requires_grad_(False)
    asked_for = next((name for name in (options.dtype or entry.dtype,) if name != AUTO), None)
    precision = settle(entry, model, tokenizer, asked_for=asked_for)
    if model.dtype is torch.float64:
        model.set_experts_implementation("eager")  # the grouped product of mixture models does not support float64
    check_finite(entry, model)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        entry=entry,
        directory=directory,
        fingerprint=fingerprint(directory, entry.adapter),
        tokenizer_hash=tokenizer_hash(tokenizer, directory),
        dtype=model.dtype,
        precision=precision,
        attention=str(getattr(model.config, "_attn_implementation", None) or "none"),
        parameters=model.num_parameters(),
        memory_bytes=model.get_memory_footprint(),
    )


def _load_weights(entry: JudgeEntry, directory: Path, options: LoadOptions, arguments: dict[str, Any]) -> Any:
    """Load a model from its safetensors directory, with the loading report of transformers."""
    with without_adapter(directory) as plain, _loading_errors(entry, directory), quiet():
        return loader_for(_read_type(directory)).from_pretrained(
            str(plain),
            use_safetensors=True,
            trust_remote_code=options.trust_remote_code,
            **_ALWAYS,
            **arguments,
        )


def _load_gguf(entry: JudgeEntry, file: Path, arguments: dict[str, Any]) -> Any:
    """Load a model from its GGUF file, with the loading report of transformers."""
    with joined(gguf_files(file)) as whole, _loading_errors(entry, file), quiet(), quick_reader():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(whole.parent), **gguf_arguments(whole), **_ALWAYS, **arguments
        )
        model, report = loaded
        check_gguf_complete(entry, whole, model)
        scale_rotary(model, whole)
        return model, report


def _read_type(directory: Path) -> str | None:
    """Read a model's type from its configuration, which passed `check_architecture`."""
    kind = json.loads((directory / "config.json").read_text(encoding="utf-8")).get("model_type")
    return kind if isinstance(kind, str) else None


def _keep_the_text(entry: JudgeEntry, directory: Path, model: Any) -> None:
    """Remove the parts of a model for images or sound, and log this once."""
    left_out = senses_of(name for file in weight_files(directory) for name in stored_names(file))
    if left_out:
        drop_other_senses(model)
        logger.info("judge %s reads text only; these of its weights are left out: %s", entry.name, ", ".join(left_out))


@contextmanager
def _loading_errors(entry: JudgeEntry, place: Path) -> Iterator[None]:
    """Convert any exception of transformers and torch into a judge error."""
    try:
        yield
    except GevalError:
        raise
    except SafetensorError as error:
        raise WeightsError(
            f"judge {entry.name!r}: a safetensors file in {place} is damaged or cut short: {error}",
            hint=_fetch_hint(entry),
        ) from error
    except torch.cuda.OutOfMemoryError as error:
        raise JudgeError(
            f"judge {entry.name!r} does not fit into the memory of the device: {first_line(error)}",
            hint="Use --device-map auto, --quantization 4bit, a smaller dtype or a smaller judge.",
        ) from error
    except Exception as error:
        raise JudgeError(f"judge {entry.name!r} cannot be loaded from {place}: {first_line(error)}") from error


def _keep_soft_capping(entry: JudgeEntry, model: Any, options: LoadOptions) -> None:
    """Switch away from sdpa if attention scores are soft-capped (Gemma 2): transformers 5.17 drops the cap in sdpa."""
    config = model.config.get_text_config()
    if getattr(config, "attn_logit_softcapping", None) is None or config._attn_implementation != "sdpa":
        return
    if options.attention is not None:
        raise ConfigurationError(
            f"judge {entry.name!r} caps its attention scores, which the attention implementation 'sdpa' cannot",
            hint="Leave the attention implementation out, or take `eager`.",
        )
    model.set_attn_implementation("eager")


def _fetch_hint(entry: JudgeEntry) -> str:
    if entry.hub is None:
        return f"Copy the model to {entry.path} again, completely."
    return (
        f"Fetch them with `geval-local judges fetch {entry.name}`. For a machine without a network, run that on "
        f"another, carry the directory it writes, and put it at {fetch_directory(entry)} or give it as --judge DIR."
    )
