"""The last layer, computed at the read-out positions only as far as what it gives is looked at.

Of what comes out of the last layer only the read-out positions are read, and behind its keys and values nothing looks
from one token to another. So there the other tokens do not attend (`Layout.only`), and the token-wise parts, the matrix
that gives queries and nothing else, the output projection and the feed-forward part, are given the read-out rows alone;
their output is laid back into its place, zeros elsewhere. Whether a part is token-wise is guessed from its place, and
what gives queries from its name; the gate's probe shows whether it is so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

__all__ = ["LastLayer", "last_layer_of", "reading_only"]

#: What transformers calls matrices whose output is queries alone; through a low rank there are two of them.
_QUERIES = {"q_proj", "q_a_proj", "q_b_proj", "query"}


@dataclass(frozen=True)
class LastLayer:
    """What there is to leave out in the last layer.

    Attributes
    ----------
    number : int
        Which layer it is, counted from 0.
    parts : tuple of Module
        Its token-wise parts that are worth it: those with a matrix of weights, except for the attention.
    projections : tuple of Module
        Matrices inside of the attention. Those that are called behind the attention function are token-wise.
    queries : tuple of Module
        Those of them that give queries.
    """

    number: int
    parts: tuple[nn.Module, ...]
    projections: tuple[nn.Module, ...]
    queries: tuple[nn.Module, ...] = ()


def last_layer_of(trunk: nn.Module) -> LastLayer | None:
    """Find the last layer of a model; None if it has no list of layers."""
    stacks = [module for module in trunk.modules() if isinstance(module, nn.ModuleList)]
    if not stacks:
        return None
    # Experts are lists too, but inside of layers: the list of layers comes first.
    layers = list(stacks[0].children())
    parts: list[nn.Module] = []
    projections: list[nn.Module] = []
    queries: list[nn.Module] = []
    for name, child in layers[-1].named_children():
        if "att" in name:
            inner = [(path.rpartition(".")[2], part) for path, part in child.named_modules() if _is_matrix(part)]
            projections += [part for _, part in inner]
            queries += [part for own_name, part in inner if own_name in _QUERIES]
        elif any(parameter.dim() > 1 for parameter in child.parameters()):
            parts.append(child)
    return LastLayer(len(layers) - 1, tuple(parts), tuple(projections), tuple(queries))


def _is_matrix(module: nn.Module) -> bool:
    """Whether a module is one matrix, as linear layers of all kinds are, and no more."""
    return not list(module.children()) and any(parameter.dim() == 2 for parameter in module.parameters())


@contextmanager
def reading_only(
    layer: LastLayer | None, rows: torch.Tensor, tokens: int, attended: Callable[[], bool]
) -> Iterator[None]:
    """Give the parts of the last layer only some rows of what they are given; their output has all rows again.

    Parameters
    ----------
    layer : LastLayer, optional
        Nothing is left out without it.
    rows : Tensor of int64, shape (positions,)
        Which tokens; at least one.
    tokens : int
        How many tokens go through the model.
    attended : callable
        Whether the last layer has called the attention function.
    """
    if layer is None:
        yield
        return
    behind = set(layer.projections) - set(layer.queries)
    selected: dict[nn.Module, tuple[int, torch.Tensor]] = {}

    def select(part: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        hidden = given[0] if given else None
        if not isinstance(hidden, torch.Tensor) or hidden.dim() not in (2, 3) or hidden.shape[-2] != tokens:
            return None
        if part in behind and not attended():
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

    with _hooked([*layer.parts, *layer.projections], select, spread):
        yield


@contextmanager
def _hooked(parts: Sequence[nn.Module], before: Callable[..., Any], after: Callable[..., Any]) -> Iterator[None]:
    """Call a function before and one after the forward of some modules."""
    handles = [part.register_forward_pre_hook(before) for part in parts]
    handles += [part.register_forward_hook(after) for part in parts]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
