"""Rotary embeddings that change with the length of the longest prompt in a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["length_groups"]


def length_groups(config: Any) -> Callable[[int], int]:
    """Say which prompts may share a forward pass.

    Long-RoPE models (Phi-3) use one set of factors up to a switch and another beyond it, chosen by the longest prompt
    of the batch; dynamic NTK scaling changes with every length beyond the switch. A score must not depend on what else
    is in the batch, so only prompts of one group may go together.

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
