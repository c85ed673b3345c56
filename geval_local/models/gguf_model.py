"""Judges from GGUF files: loading through transformers, and the parts that transformers would silently drop.

Transformers unpacks the blocks of weights into the judge's dtype. It can keep them packed for a few architectures
only, with kernels downloaded from the hub, so that is not done here. It cannot read split files or scaling of rotary
embeddings, and skips unknown tensors; this module fixes these cases or raises an error.
"""

from __future__ import annotations

import importlib.util
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from geval_local.errors import ConfigurationError, UnsupportedModelError, WeightsError
from geval_local.models.gguf_file import GGUFHeader, array_size, gguf_files, read_header
from geval_local.models.registry import JudgeEntry

#: Factors of rotary frequencies, one for each pair of dimensions: Llama 3.1 and later.
_ROPE_FACTORS = "rope_freqs.weight"
#: Tensors that are tables of factors, not weights of the model.
_TABLES = {_ROPE_FACTORS, "rope_factors_long.weight", "rope_factors_short.weight"}
#: Architectures whose configuration in transformers has these factors built in.
_BUILT_IN_FACTORS = {"gemma4"}
#: Of arrays with more values than this only the length is read; arrays with one value per layer are shorter.
_LONG = 4096
#: Bytes before the first value of an array: its type and its length.
_ARRAY_HEAD = 12
_CONVERT = "Give the model's safetensors directory instead: `geval-local judges fetch` brings it from the hub."


def check_gguf(entry: JudgeEntry, file: Path, *, quantized: bool) -> None:
    """Check by its header that a GGUF file can be loaded."""
    if importlib.util.find_spec("gguf") is None:
        raise ConfigurationError(
            f"judge {entry.name!r} is a GGUF file, which needs the package gguf",
            hint="Install it: pip install 'geval-local[gguf]'.",
        )
    if quantized:
        raise ConfigurationError(
            f"judge {entry.name!r} is a GGUF file, whose weights are quantized already",
            hint="Leave --quantization out.",
        )
    files = gguf_files(file)
    missing = [part.name for part in files if not part.is_file()]
    if missing:
        raise WeightsError(
            f"judge {entry.name!r}: {len(missing)} of its {len(files)} GGUF files are missing in {file.parent}: "
            f"{', '.join(missing[:3])}",
            hint="Copy or download all parts into one directory.",
        )
    headers = [read_header(part) for part in files]
    _check_architecture(entry, headers[0])
    for header in headers:
        _check_tensors(entry, header)


def _check_architecture(entry: JudgeEntry, header: GGUFHeader) -> None:
    name = header.architecture
    if not header.is_model:
        raise UnsupportedModelError(
            f"judge {entry.name!r}: {header.path} holds no language model, but "
            f"{header.metadata.get('general.type') or name or 'an unnamed architecture'!r}",
            hint="Name the file of the language model; files called mmproj hold what reads images.",
        )
    if name in ("t5", "t5encoder") or not _spellings(name) & _readable():
        raise UnsupportedModelError(
            f"judge {entry.name!r}: the installed transformers {transformers.__version__} cannot read GGUF files of "
            f"the architecture {name!r}",
            hint=f"{_CONVERT} It reads {', '.join(sorted(_readable()))}.",
        )
    names = {tensor.name for tensor in header.tensors}
    scaling = header.own("rope.scaling.type")
    unread = "rope_factors_long.weight" in names or scaling not in (None, "none", "linear", "yarn")
    if unread or (_ROPE_FACTORS in names and name not in {"llama", *_BUILT_IN_FACTORS}):
        raise UnsupportedModelError(
            f"judge {entry.name!r}: {header.path} scales its rotary embeddings in a way that transformers does not "
            f"read from GGUF files ({scaling or 'factors'})",
            hint=_CONVERT,
        )


def _spellings(name: str) -> set[str]:
    """List possible transformers spellings of an architecture: qwen2_moe for qwen2moe, gpt_oss for gpt-oss."""
    return {name, name.replace("-", "_"), name.replace("moe", "_moe")}


def _readable() -> set[str]:
    """Return the architectures that transformers can read; it has no public list of them."""
    from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    return {*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_CONFIG_ARCHS} - {"general", "tokenizer", "t5", "umt5"}


def _check_tensors(entry: JudgeEntry, header: GGUFHeader) -> None:
    """Check the types of tensors, and their offsets against the file's size."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    known = {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
    for tensor in header.tensors:
        if tensor.kind not in known:
            raise UnsupportedModelError(
                f"judge {entry.name!r}: the tensor {tensor.name!r} of {header.path} is of the type {tensor.kind}, "
                "which the installed package gguf does not know",
                hint="pip install --upgrade gguf, or take another quantization of the model.",
            )
        per_block, size = known[tensor.kind]
        end = header.data_start + tensor.offset + tensor.elements // per_block * size
        if end > header.size:
            raise WeightsError(
                f"{header.path} is cut short: it ends at byte {header.size:,}, and the tensor {tensor.name!r} at byte "
                f"{end:,}",
                hint="Copy or download the file again, completely.",
            )
        if tensor.kind in (GGMLQuantizationType.Q8_1, GGMLQuantizationType.Q8_K):
            raise UnsupportedModelError(
                f"judge {entry.name!r}: {header.path} holds weights of a type for intermediate results only",
                hint="Take another quantization of the model.",
            )


def gguf_arguments(file: Path) -> dict[str, Any]:
    """Return the arguments with which ``from_pretrained`` reads a GGUF file that passed `check_gguf`."""
    header = read_header(file)
    with quick_reader():
        config = AutoConfig.from_pretrained(str(file.parent), gguf_file=str(file), local_files_only=True)
    scaling = header.own("rope.scaling.type")
    if scaling in ("linear", "yarn") and header.architecture != "gpt-oss":
        _set_scaling(config, header, str(scaling))
    dequantized: Any = transformers.GgufConfig
    return {"gguf_file": str(file), "config": config, "quantization_config": dequantized(dequantize=True)}


def _set_scaling(config: Any, header: GGUFHeader, kind: str) -> None:
    """Set the scaling of rotary embeddings in a configuration; transformers omits it."""
    scaling = {"rope_type": kind, "factor": float(header.own("rope.scaling.factor") or 1.0)}
    original = header.own("rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = int(original)
    rope = config.rope_parameters
    # If full-attention and sliding-window layers differ, only the former are scaled (Gemma 3).
    rope.get("full_attention", rope).update(scaling)


@contextmanager
def quick_reader() -> Iterator[None]:
    """Let transformers read only the length of long arrays in a GGUF file while a model is built and filled.

    The package gguf makes an array for every string: 15 s for a vocabulary of 49,000 tokens, which transformers
    reads twice, to count them. The tokenizer, which needs them, is built separately, see `gguf_tokenizer`.
    """
    import gguf
    from transformers import modeling_gguf_pytorch_utils as module

    legacy: Any = module
    original: Any = gguf.GGUFReader

    class Reader(original):  # type: ignore[misc]
        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
            if raw_type != gguf.GGUFValueType.ARRAY:
                return super()._get_field_parts(orig_offs, raw_type)  # type: ignore[no-any-return]
            kind, count = struct.unpack_from("<IQ", self.data, orig_offs)
            if count <= _LONG:
                return super()._get_field_parts(orig_offs, raw_type)  # type: ignore[no-any-return]
            size = array_size(self.data, orig_offs)
            _, parts, places, kinds = super()._get_field_parts(orig_offs + _ARRAY_HEAD, kind)
            # Transformers counts the tokens and otherwise ignores these arrays.
            listed = places * count if kind == gguf.GGUFValueType.STRING else places
            return size, [np.asarray(part) for part in parts], listed, [gguf.GGUFValueType.ARRAY, *kinds]

    bar = legacy.tqdm
    gguf.GGUFReader = Reader  # type: ignore[misc]
    legacy.tqdm = lambda tensors, **_: tensors  # this progress bar ignores transformers' switch
    try:
        yield
    finally:
        gguf.GGUFReader, legacy.tqdm = original, bar  # type: ignore[misc]


def scale_rotary(model: Any, file: Path) -> None:
    """Divide a model's rotary frequencies by the factors in its GGUF file, if any."""
    header = read_header(file)
    found = [tensor for tensor in header.tensors if tensor.name == _ROPE_FACTORS]
    if not found or header.architecture in _BUILT_IN_FACTORS:
        return
    with file.open("rb") as stream:
        stream.seek(header.data_start + found[0].offset)
        factors = torch.frombuffer(bytearray(stream.read(4 * found[0].elements)), dtype=torch.float32)
    for module in model.modules():
        for name in ("inv_freq", "original_inv_freq"):
            frequencies = getattr(module, name, None)
            if isinstance(frequencies, torch.Tensor) and frequencies.shape == factors.shape:
                setattr(module, name, frequencies / factors.to(frequencies.device))


def check_gguf_complete(entry: JudgeEntry, file: Path, model: Any) -> None:
    """Check that every weight of a GGUF file was loaded: transformers skips unknown ones."""
    header = read_header(file)
    layers = int(model.config.get_text_config().num_hidden_layers)
    extra = tuple(f"blk.{number}." for number in range(layers, layers + int(header.own("nextn_predict_layers") or 0)))
    stored = [tensor for tensor in header.tensors if tensor.name not in _TABLES and not tensor.name.startswith(extra)]
    places = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}  # tied ones once
    held = sum(tensor.numel() for tensor in places.values())
    surplus = sum(tensor.elements for tensor in stored) - held
    if surplus > 0:
        raise WeightsError(
            f"judge {entry.name!r}: {file} holds {surplus:,} weights more than transformers has places for in its "
            f"architecture {header.architecture!r}",
            hint=f"Without them it is not the model that was trained. {_CONVERT}",
        )


def gguf_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """Build the tokenizer that a GGUF file describes, with its chat template.

    Transformers would prefer files beside it, which may be another model's; so it is linked into an empty directory.
    """
    with tempfile.TemporaryDirectory() as empty:
        tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(
            empty, gguf_file=str(file.resolve()), local_files_only=True
        )
    tokenizer.name_or_path = str(file)
    # Older transformers omit the BOS token that the file requests. Gemma 4's template writes it instead.
    metadata, bos = read_header(file).metadata, tokenizer.bos_token
    wanted = metadata.get("tokenizer.ggml.add_bos_token") and metadata.get("tokenizer.ggml.model") != "gemma4"
    if wanted and bos is not None and tokenizer("x").input_ids[:1] != [tokenizer.bos_token_id]:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, tokenizer.bos_token_id)]
        )
    checked: PreTrainedTokenizerBase = tokenizer
    return checked
