"""Judges from GGUF files: configuration, tokenizer and weights, which stay in their blocks.

Transformers reads the configuration, names the tensors, and knows how llama.cpp's converter arranged them. It cannot
read split files or scaling of rotary embeddings, and skips unknown tensors; this module fixes these cases or raises an
error. Transformers' own loading widens all weights. Here rows of blocks are rearranged without widening; a matrix that
needs more than that (such as a transposed one) is widened, arranged and kept in float32.
"""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers.processors import TemplateProcessing
from transformers import AutoConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from geval_local.errors import ConfigurationError, UnsupportedModelError, WeightsError
from geval_local.models.config_checks import MOST_COUNTED
from geval_local.models.gguf.blocks import BLOCK_TYPES
from geval_local.models.gguf.file import PLAIN_DTYPES, GGUFHeader, GGUFTensor, gguf_files, read_header
from geval_local.models.gguf.keys import set_keys
from geval_local.models.gguf.rope import check_rotary, scaling_type, set_rotary
from geval_local.models.reading import read_files
from geval_local.models.registry import JudgeEntry
from geval_local.models.stored import Stored, kept_narrow, rows_in_turn, turned, wide

#: Factors of rotary frequencies, one for each pair of dimensions: Llama 3.1 and later.
_ROPE_FACTORS = "rope_freqs.weight"
#: Tensors that are tables of factors, not weights of the model.
_TABLES = {_ROPE_FACTORS, "rope_factors_long.weight", "rope_factors_short.weight"}
#: Architectures whose configuration in transformers has these factors built in.
_BUILT_IN_FACTORS = {"gemma4"}
#: Dtypes of plain numbers, by the code of their type.
PLAIN: Mapping[int, torch.dtype] = {kind: getattr(torch, name) for kind, name in PLAIN_DTYPES.items()}
#: Experts of a layer, stacked; transformers joins the gate and up layers.
_EXPERTS = re.compile(r"(.*\.ffn_(gate|down|up)_exps)\.weight")
#: Two tensors that become one, so their blocks must have one type.
_GATES = re.compile(r"(?<=\.ffn_)(gate|up)(?=_exps\.)")
_LAYER = re.compile(r"blk\.(\d+)\.")
#: Keys that count or measure parts of a model, and its context.
_SIZE = re.compile(r"^context_length$|^(?!.*(context|temperature)).*_(length|count)$")
#: No context is longer.
_LONGEST = 1 << 40
_TOKENS = "tokenizer.ggml.tokens"
#: Widths of experts, which transformers does not read for older architectures: keys, names in configurations.
_WIDTHS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
#: Other keys that transformers does not read, by architecture.
_UNREAD: Mapping[str, Mapping[str, str]] = {
    "gpt-oss": {"attention.key_length": "head_dim", "attention.sliding_window": "sliding_window"},
    "phi3": {"attention.sliding_window": "sliding_window"},
}
#: Matrices that are transposed, or whose columns move, so that their blocks cannot stay; by architecture.
_MOVED: Mapping[str, re.Pattern[str]] = {
    "bloom": re.compile(r"attn_qkv\.weight"),
    "gpt2": re.compile(r"(attn_qkv|attn_output|ffn_up|ffn_down|^output)\.weight"),
    "qwen35": re.compile(r"ssm_out\.weight"),
    "qwen35moe": re.compile(r"ssm_out\.weight"),
}
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
            hint="Leave `quantization` out.",
        )
    files = gguf_files(file)
    missing = [part.name for part in files if not part.is_file()]
    if missing:
        raise WeightsError(
            f"judge {entry.name!r}: {len(missing)} of its {len(files)} GGUF files are missing in {file.parent}: "
            f"{', '.join(missing[:3])}",
            hint="Copy or download all parts into one directory.",
        )
    headers = read_headers(file)
    _check_architecture(entry, headers[0])
    _check_numbers(entry, headers)
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
    scaling = scaling_type(header)
    unread = "rope_factors_long.weight" in names or scaling not in ("none", "linear", "yarn")
    if unread or (_ROPE_FACTORS in names and name not in {"llama", *_BUILT_IN_FACTORS}):
        raise UnsupportedModelError(
            f"judge {entry.name!r}: {header.path} scales its rotary embeddings in a way that transformers does not "
            f"read from GGUF files ({scaling if scaling != 'none' else 'factors'})",
            hint=_CONVERT,
        )
    check_rotary(header)


def _check_numbers(entry: JudgeEntry, headers: Sequence[GGUFHeader]) -> None:
    """Reject counts and sizes that the tensors contradict, before a model of such sizes is built."""
    header, tensors = headers[0], [tensor for one in headers for tensor in one.tensors]
    layers = {found[1] for tensor in tensors if (found := _LAYER.match(tensor.name))}
    most = max([MOST_COUNTED, *(size for tensor in tensors for size in tensor.shape)])
    later = header.own("nextn_predict_layers")  # their tensors are left out of some files
    most_layers = len(layers) + (later if type(later) is int and 0 < later <= len(layers) else 0)

    bounds = {"context_length": (2, _LONGEST), "block_count": (1, most_layers)}
    for key, value in header.metadata.items():
        own = key.removeprefix(f"{header.architecture}.")
        least, largest = bounds.get(own, (0, most))
        if own != key and _SIZE.search(own) and not (type(value) is int and least <= value <= largest):
            raise WeightsError(
                f"judge {entry.name!r}: {header.path} says {own}: {value!r}, where its tensors allow "
                f"{least} to {largest}",
                hint="Copy or download the file again, completely, or convert the model again.",
            )


def _spellings(name: str) -> set[str]:
    """List possible transformers spellings of an architecture: qwen2_moe for qwen2moe, gpt_oss for gpt-oss."""
    return {name, name.replace("-", "_"), name.replace("moe", "_moe")}


def _readable() -> set[str]:
    """Return the architectures that transformers can read; it has no public list of them."""
    from transformers.integrations.gguf.gguf_config_mapping import GGUF_CONFIG_ARCHS
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    return {*GGUF_SUPPORTED_ARCHITECTURES, *GGUF_CONFIG_ARCHS} - {"general", "tokenizer", "t5", "umt5"}


def _read_keys(architecture: str) -> set[str]:
    """Return the keys of an architecture that transformers reads."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    known: Mapping[str, Mapping[str, Any]] = GGUF_CONFIG_MAPPING  # type: ignore[assignment]
    names = _spellings(architecture) & known.keys()
    return {key for name in names for key, target in known[name].items() if target is not None}


def _check_tensors(entry: JudgeEntry, header: GGUFHeader) -> None:
    """Check the types of tensors, and their offsets against the file's size."""
    for tensor in header.tensors:
        if tensor.kind not in PLAIN and tensor.kind not in BLOCK_TYPES:
            raise UnsupportedModelError(
                f"judge {entry.name!r}: the tensor {tensor.name!r} of {header.path} is of the type "
                f"{_type_name(tensor.kind)}, which is not read",
                hint="Take another quantization of the model: "
                f"{', '.join(['F16', 'BF16', *(kind.name for kind in BLOCK_TYPES.values())])}.",
            )
        end = header.data_start + tensor.offset + tensor_size(tensor)
        if end > header.size:
            raise WeightsError(
                f"{header.path} is cut short: it ends at byte {header.size:,}, and the tensor {tensor.name!r} at byte "
                f"{end:,}",
                hint="Copy or download the file again, completely.",
            )


def _type_name(code: int) -> str:
    from gguf import GGMLQuantizationType

    return next((kind.name for kind in GGMLQuantizationType if int(kind) == code), str(code))


def tensor_size(tensor: GGUFTensor) -> int:
    """Return the bytes of a tensor's data."""
    kind = BLOCK_TYPES.get(tensor.kind)
    if kind is None:
        return tensor.elements * PLAIN[tensor.kind].itemsize
    return tensor.elements // kind.elements * kind.size


def kept_tensors(headers: Sequence[GGUFHeader]) -> set[str]:
    """Name the tensors that stay in memory as they are in the file."""
    moved = _MOVED.get(headers[0].architecture)
    tensors = [tensor for header in headers for tensor in header.tensors]
    kinds: dict[str, set[int]] = {}
    for tensor in tensors:
        kinds.setdefault(_GATES.sub("", tensor.name), set()).add(tensor.kind)
    return {
        one.name
        for one in tensors
        if len(one.shape) > 1
        and one.kind != 0
        and len(kinds[_GATES.sub("", one.name)]) == 1
        and (moved is None or not moved.search(one.name))
    }


def read_headers(file: Path) -> list[GGUFHeader]:
    """Read the headers of all parts of a model."""
    headers = [read_header(part) for part in gguf_files(file)]
    tensors = sum(len(header.tensors) for header in headers)
    first = headers[0].metadata
    numbers = [header.metadata.get("split.no") for header in headers]
    is_one = numbers == list(range(len(headers))) and first.get("split.tensors.count", tensors) == tensors
    if len(headers) > 1 and not is_one:
        raise WeightsError(
            f"{file.name} and the {len(headers) - 1} files after it are not the parts of one model",
            hint="Copy or download all parts again.",
        )
    return headers


def gguf_config(file: Path) -> Any:
    """Read the configuration in a GGUF file that passed `check_gguf`."""
    headers = read_headers(file)
    header = headers[0]
    with _quick_reader(headers):
        config = AutoConfig.from_pretrained(str(file.parent), gguf_file=str(file), local_files_only=True)
    if any(tensor.name == "output.weight" for one in headers[1:] for tensor in one.tensors):
        config.tie_word_embeddings = False  # transformers looks into the first file only
    unread = {**_WIDTHS, **_UNREAD.get(header.architecture, {})}
    for key, name in unread.items():
        if (width := header.own(key)) is not None and hasattr(config, name):
            setattr(config, name, int(width) or None)  # a window of 0 is none
    if later := header.own("nextn_predict_layers"):
        config.num_nextn_predict_layers = int(later)
    set_keys(config, header, _read_keys(header.architecture) | unread.keys())
    set_rotary(config, header)
    return config


@contextmanager
def _quick_reader(headers: Sequence[GGUFHeader]) -> Iterator[None]:
    """Replace the package gguf's reader, which takes 15 s for 49,000 tokens, by these headers.

    Of long arrays transformers gets only the number of tokens: the tokenizer is built separately, see `gguf_tokenizer`.
    """
    import gguf

    header, fields = headers[0], {}
    for key, types in header.types.items():
        if key.startswith(f"{header.architecture}.rope.scaling."):
            continue  # `set_rotary` reads these keys; for gpt-oss transformers would misread them
        value = [header.metadata[key]] if key in header.metadata else header.arrays[key][1]
        # The layout that transformers expects: the bytes of a text, else a sequence with one number.
        parts = [one.encode() if isinstance(one, str) else [one] for one in value]
        fields[key] = SimpleNamespace(parts=parts, data=range(len(parts)), types=list(types))
        if key == _TOKENS and key in header.arrays:
            counted = [0] * header.arrays[key][0]
            fields[key] = SimpleNamespace(parts=[[0]], data=counted, types=[types[0], gguf.GGUFValueType.UINT8])
    tensors = [SimpleNamespace(name=tensor.name) for header in headers for tensor in header.tensors]
    original = gguf.GGUFReader
    gguf.GGUFReader = lambda *_: SimpleNamespace(fields=fields, tensors=tensors)  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        gguf.GGUFReader = original  # type: ignore[misc]


def read_gguf(
    files: Sequence[Path], model: Any, *, hashed: Callable[[Path], bool] = lambda file: True
) -> tuple[dict[str, torch.Tensor], dict[Path, str]]:
    """Read the weights of a GGUF model for a model without weights: by the names of its parameters, and digests."""
    headers = {header.path: header for header in read_headers(files[0])}
    contents, digests = read_files(
        {
            path: {one.name: (header.data_start + one.offset, tensor_size(one)) for one in header.tensors}
            for path, header in headers.items()
        },
        hashed=hashed,
    )
    stored = {
        tensor.name: _typed(contents[path].pop(tensor.name), tensor)
        for path, header in headers.items()
        for tensor in header.tensors
        if tensor.name not in _TABLES
    }
    architecture = headers[files[0]].architecture
    return (_renamed(stored, architecture, model) or _arranged(stored, architecture, model)), digests


def _typed(data: torch.Tensor, tensor: GGUFTensor) -> torch.Tensor:
    shape = tensor.shape[::-1]
    kind = BLOCK_TYPES.get(tensor.kind)
    if kind is None:
        return kept_narrow(data.view(PLAIN[tensor.kind]).reshape(shape), torch.float32)
    return Stored(data.reshape(*shape[:-1], -1), kind)


def _renamed(stored: dict[str, torch.Tensor], architecture: str, model: Any) -> dict[str, torch.Tensor] | None:
    """Convert tensors by the operations that newer transformers list for an architecture; None if there are none."""
    try:
        from transformers.core_model_loading import WeightConverter, rename_source_key
        from transformers.integrations.gguf.utils import get_gguf_conversion_mapping, is_gguf_arch_supported
    except ImportError:
        return None
    if not is_gguf_arch_supported(architecture):
        return None
    mapping: Any = get_gguf_conversion_mapping(architecture, model.config)
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    renamings = [entry for entry in mapping if not isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    found: dict[str, torch.Tensor] = {}
    several: dict[str, tuple[Any, dict[str, Any]]] = {}
    for name in list(stored):
        target, pattern = rename_source_key(name, renamings, converters)
        if pattern is None:
            found[target] = stored.pop(name)
        else:
            several.setdefault(target, (by_pattern[pattern], {}))[1].setdefault(pattern, []).append(stored.pop(name))
    for target, (converter, tensors) in several.items():
        for operation in converter.operations:
            tensors = operation.convert(
                tensors,
                source_patterns=converter.source_patterns,
                target_patterns=converter.target_patterns,
                full_layer_name=target,
                model=model,
                config=model.config,
            )
        (tensor,) = tensors.values()
        found[target] = tensor[0] if isinstance(tensor, list) else tensor
    return found


def _arranged(stored: dict[str, torch.Tensor], architecture: str, model: Any) -> dict[str, torch.Tensor]:
    """Arrange tensors by transformers' rules for an architecture, which are functions of numpy arrays.

    A column of row numbers shows what a function does to a matrix. If it only reorders rows, the rows of blocks are
    reordered. Any other function is applied to the widened weights.
    """
    import gguf
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    made: Any = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    processor: Any = made(config=model.config.to_dict())
    original = gguf.get_tensor_name_map
    gguf.get_tensor_name_map = lru_cache(original)  # else built again for each of some hundred modules: 10 s
    try:
        names = get_gguf_hf_weights_map(model, processor)
    finally:
        gguf.get_tensor_name_map = original
    found = _gpt_oss(stored) if architecture == "gpt-oss" else {}
    gates: dict[str, dict[str, torch.Tensor]] = {}

    def processed(name: str, array: Any) -> tuple[str | None, Any, dict[str, torch.Tensor]]:
        apart: dict[str, torch.Tensor] = {}
        result = processor.process(
            weights=array, name=name, tensor_key_mapping=names, parsed_parameters={"tensors": apart}
        )
        return result.name, result.weights, apart

    for name in list(stored):
        tensor = stored.pop(name)
        expert = _EXPERTS.fullmatch(name) if hasattr(processor, "_set_moe_expert_tensor") else None
        if expert is not None and expert[1] in names:
            gates.setdefault(names[expert[1]], {})[expert[2]] = tensor
            continue
        rows = np.arange(tensor.shape[0])[:, None]
        if tensor.dim() == 2:
            try:
                target, order, apart = processed(name, rows)
            except ValueError:  # a rule that counts the columns too (Bloom)
                target, order, apart = None, rows[:0], {}
            if not apart and order.shape == rows.shape and np.array_equal(np.sort(order, axis=0), rows):
                is_same = np.array_equal(order, rows)
                # What has no place keeps its name, and is reported as surplus.
                place = names.get(target, name)
                found[place] = tensor if is_same else tensor[torch.from_numpy(order[:, 0].copy())]
                continue
        target, array, apart = processed(name, wide(tensor).numpy())
        found.update(apart)
        if target in names or not apart:
            found[names.get(target, name)] = torch.from_numpy(np.ascontiguousarray(array))
    for target, parts in gates.items():  # an incomplete pair is reported as missing later
        if parts.keys() == {"gate", "up"}:
            found[target] = torch.cat([parts["gate"], parts["up"]], dim=1)
        elif parts.keys() == {"down"}:
            found[target] = parts["down"]
    return found


def _gpt_oss(stored: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert the tensors of gpt-oss that transformers' rules, which expect other names, would skip.

    In transformers its experts multiply from the left, and rows of gate and up alternate. llama.cpp stores gate and up
    separately and transposed.
    """
    found: dict[str, torch.Tensor] = {}
    for layer in sorted({match[1] for name in stored if (match := _LAYER.match(name))}):
        own = f"blk.{layer}."
        parts = {name: f"{own}ffn_{name}_exps" for name in ("gate", "up", "down")}
        experts = f"model.layers.{layer}.mlp.experts."
        if {f"{parts['gate']}.weight", f"{parts['up']}.weight"} <= stored.keys():
            pair = (stored.pop(f"{parts[name]}.weight") for name in ("gate", "up"))
            found[f"{experts}gate_up_proj"] = turned(rows_in_turn(*pair))
        if {f"{parts['gate']}.bias", f"{parts['up']}.bias"} <= stored.keys():
            biases = [wide(stored.pop(f"{parts[name]}.bias")) for name in ("gate", "up")]
            found[f"{experts}gate_up_proj_bias"] = torch.stack(biases, dim=-1).flatten(1)
        if f"{parts['down']}.weight" in stored:
            found[f"{experts}down_proj"] = turned(stored.pop(f"{parts['down']}.weight"))
        for name, target in {
            f"{parts['down']}.bias": f"{experts}down_proj_bias",
            f"{own}attn_sinks.weight": f"model.layers.{layer}.self_attn.sinks",
        }.items():
            if name in stored:
                found[target] = wide(stored.pop(name))
    return found


def scale_rotary(model: Any, file: Path) -> None:
    """Divide a model's rotary frequencies by the factors in its GGUF file, if any."""
    for header in read_headers(file):
        found = [tensor for tensor in header.tensors if tensor.name == _ROPE_FACTORS]
        if not found or header.architecture in _BUILT_IN_FACTORS:
            continue
        with header.path.open("rb") as stream:
            stream.seek(header.data_start + found[0].offset)
            factors = torch.frombuffer(bytearray(stream.read(4 * found[0].elements)), dtype=torch.float32)
        for module in model.modules():
            for name in ("inv_freq", "original_inv_freq"):
                frequencies = getattr(module, name, None)
                if isinstance(frequencies, torch.Tensor) and frequencies.shape == factors.shape:
                    setattr(module, name, frequencies / factors.to(frequencies.device))


def gguf_tokenizer(file: Path) -> PreTrainedTokenizerBase:
    """Build the tokenizer that a GGUF file describes, with its chat template.

    Transformers would prefer files next to it, which may belong to another model; so it is linked into an empty
    directory.
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
