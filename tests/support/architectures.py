"""Architectures with unusual layers, most of which the prefix-sharing engine cannot serve, in sizes for tests."""

from __future__ import annotations

import pytest
import torch
import transformers
from prompts import VOCAB

SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.4,
}
#: Linear and recurrent layers: class of the configuration, and sizes.
STRANGE = {
    "qwen3_next": (
        "Qwen3NextConfig",
        SMALL
        | {
            "num_hidden_layers": 4,
            "head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
    ),
    "qwen3_5": (
        "Qwen3_5TextConfig",
        SMALL
        | {
            "num_hidden_layers": 4,
            "head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "jamba": (
        "JambaConfig",
        SMALL
        | {
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
    ),
    "falcon_mamba": (
        "FalconMambaConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "initializer_range": 0.4},
    ),
    "recurrent_gemma": (
        "RecurrentGemmaConfig",
        SMALL | {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16, "head_dim": 8},
    ),
    "rwkv": (
        "RwkvConfig",
        {"vocab_size": VOCAB, "hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2},
    ),
}
#: Its layers take a view of what the attention function returns. Served by the trie.
AFMOE = (
    "AfmoeConfig",
    SMALL
    | {
        "num_hidden_layers": 2,
        "head_dim": 8,
        "moe_intermediate_size": 16,
        "num_dense_layers": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"],
    },
)


def unusual(kind, **settings):
    """Build one of `STRANGE` or ``afmoe``; skip the test where this transformers does not know it."""
    name, sizes = STRANGE.get(kind, AFMOE)
    config_class = getattr(transformers, name, None)
    if config_class is None:
        pytest.skip(f"this transformers has no {name}")
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    torch.manual_seed(0)
    config = config_class(**{**special, **sizes, **settings})
    return transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def llama4(layers=4, chunk=16):
    config = transformers.Llama4TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        intermediate_size_mlp=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        attention_chunk_size=chunk,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
