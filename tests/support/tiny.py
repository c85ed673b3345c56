"""Tiny random models, a byte tokenizer and saved judges for tests: every architecture, no downloads.

Use as ``from tiny import tiny_model, byte_tokenizer, save_judge, shared_tokenizer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["KINDS", "byte_tokenizer", "save_judge", "shared_tokenizer", "tiny_model"]

SHARED = Path(__file__).resolve().parents[3] / "shared"

_SIZE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.4,
}
_ONE_KEY_PER_HEAD = {key: value for key, value in _SIZE.items() if key != "num_key_value_heads"}
_MOE = {"num_experts_per_tok": 2}

#: Model type -> class name of its configuration, and the sizes. Sliding windows are 16 tokens, so that an ordinary
#: prompt is longer than they are; Gemma 2, Gemma 3, GPT-OSS and Cohere 2 have one full and one sliding layer.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _SIZE),
    "qwen2": ("Qwen2Config", _SIZE),
    "qwen3": ("Qwen3Config", _SIZE | {"head_dim": 16}),
    "qwen3_moe": ("Qwen3MoeConfig", _SIZE | _MOE | {"head_dim": 16, "moe_intermediate_size": 32, "num_experts": 4}),
    "mistral": ("MistralConfig", _SIZE | {"sliding_window": 16, "head_dim": 8}),
    "mixtral": ("MixtralConfig", _SIZE | _MOE | {"num_local_experts": 4, "sliding_window": None, "head_dim": 8}),
    "gemma2": (
        "Gemma2Config",
        _SIZE | {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16, "final_logit_softcapping": 5.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        _SIZE
        | {
            "head_dim": 16,
            "sliding_window": 16,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "phi": ("PhiConfig", _SIZE),
    "phi3": ("Phi3Config", _SIZE | {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 4096, "initializer_range": 0.4}),
    "gptj": (
        "GPTJConfig",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 4096, "rotary_dim": 4, "initializer_range": 0.4},
    ),
    "gpt_neox": ("GPTNeoXConfig", _ONE_KEY_PER_HEAD | {"rotary_pct": 0.5}),
    "opt": (
        "OPTConfig",
        {
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 4096,
            "word_embed_proj_dim": 32,
            "init_std": 0.4,
        },
    ),
    "falcon": (
        "FalconConfig",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
            "new_decoder_architecture": True,
            "initializer_range": 0.4,
        },
    ),
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.4}),
    "mpt": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 4096, "initializer_range": 0.4}),
    "cohere": ("CohereConfig", _SIZE | {"logit_scale": 1.7}),
    "cohere2": (
        "Cohere2Config",
        _SIZE
        | {
            "head_dim": 8,
            "sliding_window": 16,
            "logit_scale": 1.7,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "granite": (
        "GraniteConfig",
        _SIZE | {"logits_scaling": 0.6, "residual_multiplier": 0.7, "embedding_multiplier": 2.0},
    ),
    "olmo2": ("Olmo2Config", _SIZE),
    "gpt_oss": (
        "GptOssConfig",
        _SIZE
        | _MOE
        | {
            "head_dim": 16,
            "num_local_experts": 4,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        _SIZE
        | _MOE
        | {
            "num_key_value_heads": 4,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "falcon_h1": (
        "FalconH1Config",
        _SIZE
        | {
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 16,
            "mamba_chunk_size": 16,
        },
    ),
    "mamba": ("MambaConfig", {"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "initializer_range": 0.4}),
    "mamba2": (
        "Mamba2Config",
        {
            "hidden_size": 32,
            "state_size": 16,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "expand": 2,
            "chunk_size": 16,
            "initializer_range": 0.4,
        },
    ),
}

_CHAT = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>THINK{% endif %}"
)
_CLOSED_THINKING = "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"


def tiny_model(
    kind: str, vocab_size: int, dtype: torch.dtype = torch.float64, seed: int = 0, **settings: Any
) -> PreTrainedModel:
    """Build a random model of `kind`, far from uniform in its predictions; `settings` override its configuration."""
    class_name, sizes = KINDS[kind]
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = getattr(transformers, class_name)(**{**special, **sizes, "vocab_size": vocab_size, **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # The grouped matrix product of the mixture models knows no float64.
        choices = {"experts_implementation": "eager"} if "num_experts_per_tok" in sizes else {}
        if kind == "gemma2":
            choices["attn_implementation"] = "eager"  # transformers 5.17 would take sdpa, which drops its soft-capping
        # Built in float64 and rounded afterwards: one seed gives the same weights in every dtype.
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float64, **choices)
        # Biases and norms at their initial zeros and ones would hide a read-out that leaves them out.
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1 and not name.endswith(("A_log", "dt_bias", ".D")):
                    parameter.add_(0.1 * torch.randn_like(parameter))
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dtype == torch.float64:  # rotary frequencies are float32 and stay so, as when a model is loaded
            tensor.data = tensor.data.to(dtype)
    model.config.dtype = dtype
    return model.eval().requires_grad_(False)


def byte_tokenizer(
    *, bos: bool = True, chat: bool = True, thinking: bool = False, merges: Sequence[tuple[str, str]] = ()
) -> PreTrainedTokenizerFast:
    """Build a byte-level tokenizer of 263 tokens and one more for each merge.

    `merges` are pairs of text, such as ``("1", "0")`` or ``(":", "\\n")``, in the order of their ranks. `bos` puts
    ``<s>`` before every text; `chat` brings a template with ``<|user|>`` and ``<|assistant|>``; with `thinking` that
    template writes an empty ``<think></think>`` when it is asked to close it.
    """
    special = ["<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<think>", "</think>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pairs = [tuple(as_bytes.pre_tokenize_str(part)[0][0] for part in pair) for pair in merges]
    words = [*special, *alphabet, *("".join(pair) for pair in pairs)]
    backend = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=pairs))
    backend.pre_tokenizer = as_bytes
    backend.decoder = decoders.ByteLevel()
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", additional_special_tokens=special[2:]
    )
    if chat:
        tokenizer.chat_template = _CHAT.replace("THINK", _CLOSED_THINKING if thinking else "")
    return tokenizer


def shared_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Load one of the real tokenizers beside the project, or skip the test where they are absent."""
    directory = SHARED / "tokenizers" / name
    if not directory.is_dir():
        pytest.skip(f"needs ../shared/tokenizers/{name}")
    return transformers.AutoTokenizer.from_pretrained(str(directory), local_files_only=True)


def save_judge(
    directory: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, max_shard_size: str = "1GB"
) -> Path:
    """Write a model directory as `save_pretrained` does; `max_shard_size` such as ``20KB`` makes several shards."""
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(str(directory), max_shard_size=max_shard_size)
    tokenizer.save_pretrained(str(directory))
    return directory
