"""Tiny GGUF files, written as llama.cpp's converter writes them, and the one real GGUF model that a package carries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from tiny import byte_tokenizer

from geval_local.models.gguf.blocks import BLOCK_TYPES, BlockType

__all__ = ["random_blocks", "write_any_gguf", "write_gguf", "write_gpt_oss"]

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(
    file: Path,
    model: Any,
    *,
    template: str | None = None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    extra: dict[str, Any] | None = None,
    keys: dict[str, Any] | None = None,
    architecture: str = "llama",
    part_tensors: int = 0,
) -> Path:
    """Write a tiny Llama with the byte tokenizer as a GGUF file; matrices of `kind`, `extra` tensors and `keys`.

    With `part_tensors` it is split into parts of so many tensors; the first of them is returned.
    """
    config = model.config
    writer = GGUFWriter(None, architecture, split_max_tensors=part_tensors)
    writer.add_type("model")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _add_tokenizer(writer)
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (keys or {}).items():
        key = key.replace("ARCH", architecture)
        writer.kv_data[0].pop(key, None)
        _add(writer, key, value)
    for name, array in {**_tensors(model), **(extra or {})}.items():
        if array.ndim == 1:
            writer.add_tensor(name, array.astype(np.float32))
        else:
            writer.add_tensor(name, _packed(array.astype(np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file(file)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file if not part_tensors else sorted(file.parent.glob(f"{file.stem}-00001-of-*.gguf"))[0]


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if type(value) is int and value < 0:
        writer.add_int32(key, value)
        return
    add: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32}
    add |= {float: writer.add_float32, str: writer.add_string}
    add[type(value)](key, value)


def _add_tokenizer(writer: GGUFWriter) -> None:
    tokenizer = byte_tokenizer(merges=[("1", "0"), ("1", "2")])
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    special = set(tokenizer.all_special_tokens) | set(tokenizer.get_added_vocab())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_types([3 if word in special else 1 for word in words])
    writer.add_token_merges(["1 0", "1 2"])  # older transformers take a list of one for its item
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(True)


def write_any_gguf(
    file: Path,
    model: Any,
    architecture: str,
    kind: GGMLQuantizationType,
    other: Mapping[str, GGMLQuantizationType] = MappingProxyType({}),
    keys: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write a tiny model of any architecture that transformers reads, under the names and keys that it looks for.

    Matrices are of `kind`, those with a part of their name in `other` of another one.
    """
    writer = GGUFWriter(None, architecture)
    writer.add_type("model")
    _add_tokenizer(writer)
    for key, value in {**_keys(model.config, architecture), **keys}.items():
        if isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        else:
            _add(writer, f"{architecture}.{key}", value)
    for name, array in _named(model, architecture).items():
        array = np.ascontiguousarray(array, dtype=np.float32)
        if array.ndim == 1 or array.shape[-1] % 32 or "_inp" in name:  # routers, convolutions
            writer.add_tensor(name, array)
        else:
            own = next((one for part, one in other.items() if part in name), kind)
            writer.add_tensor(name, _packed(array, own), raw_dtype=own)
    writer.write_header_to_file(file)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _keys(config: Any, architecture: str) -> dict[str, Any]:
    """The keys from which transformers makes a configuration of an architecture."""
    from transformers.integrations import GGUF_CONFIG_MAPPING

    theta = (config.rope_parameters or {}).get("rope_theta") if hasattr(config, "rope_parameters") else None
    widths = {
        "expert_feed_forward_length": getattr(config, "moe_intermediate_size", None),
        "expert_shared_feed_forward_length": getattr(config, "shared_expert_intermediate_size", None),
    }
    if architecture == "lfm2":
        heads = [config.num_key_value_heads if kind == "full_attention" else 0 for kind in config.layer_types]
        own = {"attention.head_count_kv": heads, "shortconv.l_cache": config.conv_L_cache}
        own |= {"attention.layer_norm_rms_epsilon": config.norm_eps}
    elif architecture.startswith("qwen35"):
        own = {
            "attention.head_count_kv": config.num_key_value_heads,
            "attention.key_length": config.head_dim,
            "full_attention_interval": 2,
            "ssm.time_step_rank": config.linear_num_value_heads,
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.group_count": config.linear_num_key_heads,
            "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
            "rope.dimension_sections": [*config.rope_parameters["mrope_section"], 0],
            "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        }
        if architecture == "qwen35moe":
            own |= {
                "expert_count": config.num_experts,
                "expert_used_count": config.num_experts_per_tok,
            }
    else:
        spelling = architecture.replace("-", "_").replace("moe", "_moe")
        wanted = {key: name for key, name in GGUF_CONFIG_MAPPING[spelling].items() if name is not None}
        own = {key: getattr(config, name, None) for key, name in wanted.items() if name != "rope_theta"}
        own = {key: value for key, value in (own | widths).items() if value is not None}
        return own | ({"rope.freq_base": float(theta)} if theta is not None else {})
    usual = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "rope.freq_base": float(theta),
    }
    width = getattr(config, "intermediate_size", None)
    own |= {key: value for key, value in widths.items() if value is not None}
    return usual | own | ({"feed_forward_length": width} if width is not None else {})


def _named(model: Any, architecture: str) -> dict[str, np.ndarray]:
    """The tensors of a model by the names of llama.cpp and in its shapes; their rows in any order."""
    own = model.state_dict()
    if model.config.tie_word_embeddings:
        own.pop("lm_head.weight", None)
    found: dict[str, np.ndarray] = {}
    for name, hf_name in _names(model, architecture, list(own)).items():
        if hf_name not in own:
            continue
        array = own[hf_name].float().numpy()
        half = array.shape[1] // 2 if array.ndim == 3 else 0
        if "ffn_gate_exps" in name:
            array = array[:, :half]
        elif "ffn_up_exps" in name:
            array = array[:, half:]
        elif "ssm_conv1d.weight" in name or "shortconv.conv.weight" in name:
            array = array.squeeze(1)
        elif "ffn_gate_inp_shexp" in name:
            array = array[0]
        elif name.endswith("ssm_a"):
            array = -np.exp(array)
        elif architecture == "gpt2" and array.ndim == 2 and "blk." in name:
            array = array.T
        found[f"{name}.weight" if name.endswith("_exps") else name] = array
    return found


def _names(model: Any, architecture: str, own: list[str]) -> dict[str, str]:
    """Names of llama.cpp -> names of transformers."""
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    try:
        from transformers.integrations.gguf import get_gguf_conversion_mapping, is_gguf_arch_supported
    except ImportError:
        is_gguf_arch_supported = bool
    if architecture not in ("lfm2", "qwen35", "qwen35moe") or not is_gguf_arch_supported(architecture):
        processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
        return get_gguf_hf_weights_map(model, processor)
    found = {}
    for hf_name in own:
        names = [hf_name]
        for entry in get_gguf_conversion_mapping(architecture, model.config):
            (target,) = entry._original_target_patterns
            sources = [source.replace("\\", "") for source in entry._original_source_patterns]
            is_start = sources[0].startswith("^")
            if sources != [target] and (hf_name.startswith(target) if is_start else target in hf_name):
                names = [name.replace(target, source.lstrip("^")) for name in names for source in sources]
        found.update(dict.fromkeys(names, hf_name))
    return found


def _packed(array: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    try:
        return quantize(array, kind)
    except NotImplementedError:  # the package cannot write it: blocks of the right scale, and of chance
        block = BLOCK_TYPES[int(kind)]
        rng = np.random.default_rng(array.size)
        return random_blocks(block, (*array.shape[:-1], array.shape[-1] // block.elements), rng, 0.002)


def random_blocks(kind: BlockType, shape: tuple[int, ...], rng: np.random.Generator, scale: float) -> np.ndarray:
    """Make blocks of random bytes whose scales are about `scale`, rows of `shape` of them."""
    data = rng.integers(0, 256, (*shape, kind.size), dtype=np.uint8)
    for place in kind.halves:
        scales = (scale * rng.normal(size=(*shape, 1))).astype(np.float16)
        data[..., place : place + 2] = scales.view(np.uint8)
    if not kind.halves:  # a power of two
        data[..., :1] = np.clip(128 + np.round(np.log2(scale)) + rng.integers(-3, 3, (*shape, 1)), 0, 252)
    return data.reshape(*shape[:-1], -1)


def write_gpt_oss(file: Path, model: Any, kind: GGMLQuantizationType, keys: Mapping[str, Any]) -> tuple[Path, Any]:
    """Write a tiny gpt-oss as llama.cpp does, its experts of `kind`; and the tensors that it holds, dequantized."""
    config = model.config
    writer = GGUFWriter(None, "gpt-oss")
    writer.add_type("model")
    _add_tokenizer(writer)
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "expert_feed_forward_length": config.intermediate_size,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    for key, value in {**own, **keys}.items():
        _add(writer, f"gpt-oss.{key}", value)
    read = {}
    for name, tensor in model.state_dict().items():
        array = tensor.float().numpy()
        layer = f"blk.{name.split('.')[2]}." if ".layers." in name else ""
        if "experts" in name:
            is_bias, part = name.endswith("_bias"), "down" if "down" in name else "gate_up"
            names = ["down"] if part == "down" else ["gate", "up"]
            packs = []
            for number, one in enumerate(names):
                piece = array[..., number :: len(names)]
                if is_bias:
                    writer.add_tensor(f"{layer}ffn_{one}_exps.bias", np.ascontiguousarray(piece))
                    packs.append(piece)
                    continue
                packed = quantize(np.ascontiguousarray(piece.swapaxes(1, 2)), kind)
                writer.add_tensor(f"{layer}ffn_{one}_exps.weight", packed, raw_dtype=kind)
                packs.append(dequantize(packed, kind).swapaxes(1, 2))
            read[name] = np.stack(packs, axis=-1).reshape(array.shape)
            continue
        target = _GPT_OSS.get(name) or layer + next(new for old, new in _GPT_OSS_PARTS.items() if old in name)
        if target.endswith("."):
            target += name.rsplit(".", 1)[1]
        writer.add_tensor(target, array)
        read[name] = array
    writer.write_header_to_file(file)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file, read


_GPT_OSS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_GPT_OSS_PARTS = {
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.q_proj": "attn_q.",
    "self_attn.k_proj": "attn_k.",
    "self_attn.v_proj": "attn_v.",
    "self_attn.o_proj": "attn_output.",
    "mlp.router": "ffn_gate_inp.",
    "input_layernorm": "attn_norm.",
    "post_attention_layernorm": "post_attention_norm.",
}


def _tensors(model: Any) -> dict[str, np.ndarray]:
    """Tensors under llama.cpp's names, queries and keys in its order of rotary pairs."""
    found = {}
    config = model.config
    for name, parameter in model.state_dict().items():
        array = parameter.float().numpy()
        if name == "model.embed_tokens.weight":
            found["token_embd.weight"] = array
        elif name == "model.norm.weight":
            found["output_norm.weight"] = array
        elif name == "lm_head.weight":
            found["output.weight"] = array
        else:
            _, _, layer, *rest = name.split(".")
            part = ".".join(rest[:-1])
            heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
            if part in heads:
                count = heads[part]
                shape = (count, 2, array.shape[0] // count // 2, array.shape[1])
                array = array.reshape(shape).swapaxes(1, 2).reshape(array.shape)
            found[f"blk.{layer}.{_NAMES[part]}.{rest[-1]}"] = array
    return found
