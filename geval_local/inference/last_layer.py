"""The last layer's feed-forward part, computed at the read-out positions only.

Behind the last attention nothing looks from one token to another, and of what comes out only the read-out positions are
looked at. So the token-wise parts of the last layer are given those rows alone; their output is laid back into its
place, zeros elsewhere. Whether a part is token-wise is guessed from its place; the gate's probe shows whether it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

__all__ = ["reading_only", "token_wise_parts"]


def token_wise_parts(trunk: nn.Module) -> tuple[nn.Module, ...]:
    """Find the parts of the last layer that are worth it: those with a matrix of weights, except for the attention."""
    stacks = [module for module in trunk.modules() if isinstance(module, nn.ModuleList)]
    if not stacks:
        return ()
    # Experts are lists too, but inside of layers: the list of layers comes first.
    last = list(stacks[0].children())[-1]
    return tuple(
        child
        for name, child in last.named_children()
        if "att" not in name and any(parameter.dim() > 1 for parameter in child.parameters())
    )


@contextmanager
def reading_only(parts: Sequence[nn.Module], rows: torch.Tensor, tokens: int) -> Iterator[None]:
    """Give the parts only some rows of what they are given; their output has all rows again.

    Parameters
    ----------
    parts : sequence of Module
        See `token_wise_parts`.
    rows : Tensor of int64, shape (positions,)
        Which tokens; at least one.
    tokens : int
        How many tokens go through the model.
    """
    selected: dict[nn.Module, tuple[int, torch.Tensor]] = {}

    def select(part: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        hidden = given[0] if given else None
        if not isinstance(hidden, torch.Tensor) or hidden.dim() not in (2, 3) or hidden.shape[-2] != tokens:
            return None
        index = rows.to(hidden.device)
        selected[part] = (hidden.dim() - 2, index)
        return (hidden.index_select(hidden.dim() - 2, index), *given[1:])

    def spread(part: nn.Module, _: tuple[Any, ...], output: Any) -> Any:
        if part not in selected:
            return output
        place, index = selected.pop(part)
        # Mixtures of experts may return their routing beside it.
        found = output[0] if isinstance(output, tuple) else output
        shape = list(found.shape)
        shape[place] = tokens
        whole = found.new_zeros(shape).index_copy_(place, index, found)
        return (whole, *output[1:]) if isinstance(output, tuple) else whole

    handles = [part.register_forward_pre_hook(select) for part in parts]
    handles += [part.register_forward_hook(spread) for part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
