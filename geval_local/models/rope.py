"""Rotary embeddings that change with the length of the longest prompt in a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

__all__ = ["length_groups", "rope_reset"]


def length_groups(config: Any) -> Callable[[int], int]:
    """Return a function that groups prompt lengths which may share a forward pass.

    Long-RoPE models (Phi-3) use one set of factors up to a switch and another beyond it, chosen by the longest prompt
    of the batch; dynamic NTK scaling changes with every length beyond the switch. A score must not depend on what else
    is in the batch, so only prompts of one group may share a batch.

    Parameters
    ----------
    config : PreTrainedConfig
        The model's configuration.

    Returns
    -------
    callable
        Length in tokens -> group number; prompts may share a batch if theirs are equal.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else "default"
    original = getattr(text, "original_max_position_embeddings", None)
    if isinstance(rope, dict):
        original = rope.get("original_max_position_embeddings", original)
    switch = int(original or getattr(text, "max_position_embeddings", 0) or 0)
    if kind == "longrope":
        return lambda length: int(length > switch)
    if kind == "dynamic":
        return lambda length: max(length - switch, 0)
    return lambda length: 0


def rope_reset(trunk: nn.Module) -> Callable[[], None]:
    """Return a function that resets dynamic NTK scaling to its initial state.

    Transformers keeps the frequencies of the longest prompt so far; without a reset before every forward
    pass a prompt beyond the switch would change the scores of later prompts.

    Parameters
    ----------
    trunk : Module
        The model, or the part of it that computes hidden states.
    """
    growing: list[tuple[Any, str]] = []
    for module in trunk.modules():
        kind = getattr(module, "rope_type", None)
        # If layer types have separate embeddings, one module contains them all.
        kinds = {f"{layer}_": part for layer, part in kind.items()} if isinstance(kind, dict) else {"": kind}
        growing += [(module, prefix) for prefix, part in kinds.items() if isinstance(part, str) and "dynamic" in part]

    def reset() -> None:
        for module, prefix in growing:
            frequencies = getattr(module, f"{prefix}inv_freq")
            setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq").to(frequencies.device))
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)

    return reset
