"""Keys of GGUF files about a model: each is read, set, known to change no figure, or refused by name.

Transformers skips what it does not know. A file that caps its logits, scales its embeddings or looks forward would then
be loaded as another model. Rotary embeddings have a module of their own, `geval_local.models.gguf.rope`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from geval_local.errors import UnsupportedModelError
from geval_local.models.gguf.file import GGUFHeader

#: Keys whose numbers the shapes of the tensors contradict if the configuration has others, and keys that compute
#: nothing.
_HARMLESS = {
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("expert_count", "expert_feed_forward_length", "expert_shared_feed_forward_length", "nextn_predict_layers"),
    *(f"attention.{name}" for name in ("head_count", "head_count_kv")),
    *(f"attention.{name}_length{layers}" for name in ("key", "value") for layers in ("", "_swa")),
    *("tensor_data_layout", "pooling_type"),
}
#: Keys that transformers reads by functions of its own, or from the tensors, by architecture.
_LINEAR = {"full_attention_interval", *(f"ssm.{name}" for name in ("conv_kernel", "group_count", "inner_size"))}
_LINEAR |= {"ssm.state_size", "ssm.time_step_rank"}
_ALSO_READ: Mapping[str, set[str]] = {
    "lfm2": {"shortconv.l_cache"},
    "qwen35": _LINEAR,
    "qwen35moe": _LINEAR | {"expert_used_count"},
    "stablelm": {"use_parallel_residual"},
}
_EPSILONS = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps", "rms_norm_eps")
#: Keys that transformers does not read for every architecture -> names in configurations, the first that is there.
_SETTINGS: Mapping[str, Sequence[str]] = {
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "attention.layer_norm_epsilon": _EPSILONS,
    "attention.layer_norm_rms_epsilon": _EPSILONS,
    "attention.shared_kv_layers": ("num_kv_shared_layers",),
    "embedding_length_per_layer_input": ("hidden_size_per_layer_input",),
    "expert_weights_norm": ("norm_topk_prob",),
}
#: Other keys -> values that change nothing; llama.cpp takes 0 for a scale or a bound that is not set.
_NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale"), (0.0,)),
    **dict.fromkeys(("attention.temperature_length", "attention.temperature_scale"), (0.0,)),
    **dict.fromkeys(("attention.shared_kv_layers", "attention.sliding_window"), (0,)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "router_logit_softcapping"), (0.0,)),
    **dict.fromkeys(("logit_scale", "residual_scale", "embedding_scale", "attention.output_scale"), (0.0, 1.0)),
    **dict.fromkeys(("expert_group_count", "expert_group_used_count", "expert_weights_scale"), (0, 1)),
    **dict.fromkeys(("expert_shared_count", "expert_used_count", "leading_dense_block_count"), (0,)),
    **dict.fromkeys(("embedding_length_per_layer_input", "rescale_every_n_layers", "ssm.dt_b_c_rms"), (0,)),
    "expert_gating_func": (0, 1),  # a softmax
}
_PATTERN = "attention.sliding_window_pattern"


def set_keys(config: Any, header: GGUFHeader, read: set[str]) -> None:
    """Set what transformers left out in a configuration; refuse keys that have no place there.

    `read` are the keys that have been read so far.
    """
    start = f"{header.architecture}."
    known = read | _HARMLESS | _ALSO_READ.get(header.architecture, set())
    for key, value in {**header.metadata, **{key: list(found) for key, (_, found) in header.arrays.items()}}.items():
        own = key.removeprefix(start)
        if own == key or own in known or own.startswith("rope."):
            continue
        name = next((one for one in _SETTINGS.get(own, ()) if hasattr(config, one)), None)
        is_number = isinstance(value, bool | int | float)
        if own == _PATTERN:
            _set_pattern(config, header, value)
        elif name is not None and is_number and not (value == 0 and own in _NEUTRAL and not getattr(config, name)):
            # A cap of zero is none.
            setattr(config, name, value or None if "softcapping" in name else value)
        elif not is_number or value not in _NEUTRAL.get(own, ()):
            refuse_key(header, own)


def _set_pattern(config: Any, header: GGUFHeader, value: Any) -> None:
    """Set which layers have a sliding window: a flag for every layer, or every how many layers one has none."""
    if not isinstance(value, list | int):
        refuse_key(header, _PATTERN)
    kinds = list(getattr(config, "layer_types", None) or ())
    places = range(int(config.num_hidden_layers))
    flags = value if isinstance(value, list) else [bool(value) and (place + 1) % value != 0 for place in places]
    wanted = ["sliding_attention" if flag else "full_attention" for flag in flags]
    if wanted == kinds or (not kinds and "sliding_attention" not in wanted):
        return
    if len(wanted) != len(places) or "sliding_attention" not in kinds:
        refuse_key(header, _PATTERN)
    config.layer_types = wanted


def refuse_key(header: GGUFHeader, name: str, beside: str = "") -> NoReturn:
    """Refuse a key of a file's architecture by its name."""
    key = f"{header.architecture}.{name}"
    value = header.metadata.get(key, header.arrays.get(key, (0, ()))[1])
    raise UnsupportedModelError(
        f"{header.path} says {key}: {value!r}, {beside}which transformers has no place for in this architecture",
        hint="Give the model's safetensors directory instead: `geval-local judges fetch` brings it from the hub.",
    )
