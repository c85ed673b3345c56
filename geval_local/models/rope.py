"""A model's trunk, run so that a pass depends on its own tokens only, even if rotary embeddings follow the length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from geval_local.models.head import input_device, trunk_of


class Trunk:
    """The part of a causal LM that computes final hidden states; every pass of this package goes through one."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.module = trunk_of(model)
        self.device = input_device(model)
        self.group = length_groups(model.config)
        self.reset = rope_reset(self.module)

    def __call__(self, ids: torch.Tensor, **options: Any) -> Any:
        """Compute rows of token ids; `options` are those of the base model, and so is the output."""
        self.reset()
        return self.module(input_ids=ids.to(self.device), **options)


def length_groups(config: Any) -> Callable[[int], int]:
    """Return a function that groups prompt lengths which may share a forward pass.

    Long-RoPE models (Phi-3) use one set of factors up to a switch and another beyond it, chosen by the longest prompt
    of the batch; dynamic NTK scaling changes with every length beyond the switch. A score must not depend on what else
    is in the batch, so only prompts of one group may share a batch.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None)
    rope = rope if isinstance(rope, dict) else {}
    # Layer types may have embeddings of their own.
    parts = [part for part in rope.values() if isinstance(part, dict)] or [rope]
    longest = int(getattr(text, "max_position_embeddings", None) or 0)
    growing, switching = [], []
    for part in parts:
        kind = part.get("rope_type", part.get("type"))
        original = part.get("original_max_position_embeddings", getattr(text, "original_max_position_embeddings", None))
        switch = int(original or longest)
        if kind == "dynamic":
            growing.append(min(switch, longest or switch))
        elif kind == "longrope":
            switching.append(switch)
    if not growing and not switching:
        return lambda length: 0
    # No term falls with the length, so that two sums are equal only if all terms are.
    return lambda length: sum(max(length - switch, 0) for switch in growing) + sum(length > one for one in switching)


def rope_reset(trunk: nn.Module) -> Callable[[], None]:
    """Return a function that resets dynamic NTK scaling to its initial state.

    Transformers keeps the frequencies of the longest prompt so far; without a reset before every forward
    pass a prompt beyond the switch would change the scores of later prompts.
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
