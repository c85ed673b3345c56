"""A head start for the network: heads that look at like tokens, at the token before and at the neighbourhood.

A small model on a CPU does not live long enough to grow these by itself, and judging needs them: a claim is checked by
finding its words in the source. Every head below is an ordinary weight setting that training is free to change.

A rotary head can only prefer a distance if its input has a constant part, so one dimension of the embeddings starts as
a constant. Fast rotary pairs then carry distance, slow ones carry content.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from training.model import Nano, Shape

CONSTANT = 3.0  # of the constant dimension, in standard deviations of the others
MATCH = 1.7
LOCAL = 0.9
BEFORE = 1.8
WRITE = 0.35
WRITE_BEFORE = 0.8  # the token before is half of a pair: like pairs, not only like words, are what is supported

# By layer: what its heads start as; the rest start at random.
PLAN = (("before", "match", "local"), ("match", "match", "local", "induct"), ("match", "local", "induct"), ("match",))


@torch.no_grad()
def prepare(net: Nano, embedding: Tensor) -> None:
    """Set embeddings and heads. `embedding` has unit spread."""
    shape = net.shape
    net.embed_tokens.weight.copy_(embedding * 0.5)
    net.embed_tokens.weight[:, 0] = 0.5 * CONSTANT
    nn.init.normal_(net.lm_head.weight, std=0.02)
    before: tuple[Tensor, Tensor] | None = None
    for layer, kinds in zip(net.layers, PLAN, strict=False):
        for head, kind in enumerate(kinds):
            rows = slice(head * shape.head_size, (head + 1) * shape.head_size)
            query, key, value, output = _head(kind, shape, before)
            if kind == "before":
                before = value, output
            layer.q_proj.weight[rows] = query
            layer.k_proj.weight[rows] = key
            layer.v_proj.weight[rows] = value
            layer.o_proj.weight[:, rows] = output


def _basis(shape: Shape) -> Tensor:
    """Draw orthonormal rows that do not read the constant."""
    full = torch.zeros(shape.head_size, shape.hidden)
    full[:, 1:] = nn.init.orthogonal_(torch.empty(shape.head_size, shape.hidden - 1))
    return full


def _head(kind: str, shape: Shape, before: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    half, fast = shape.head_size // 2, shape.head_size // 4
    frequency = shape.theta ** (-torch.arange(half).float() / half)
    query = torch.zeros(shape.head_size, shape.hidden)
    key = torch.zeros(shape.head_size, shape.hidden)
    value = _basis(shape)
    output = _basis(shape).T * WRITE
    if kind == "match":
        slow = _basis(shape) * MATCH
        slow[:fast] = 0.0
        slow[half : half + fast] = 0.0
        query += slow
        key += slow
        # itself and its neighbours are pushed away: they are always alike and prove nothing
        query[:fast, 0] = LOCAL
        key[:fast, 0] = -LOCAL
        output = -value.T * WRITE  # what was found is taken off: what is left was not in the source
    elif kind == "local":
        query[:fast, 0] = LOCAL
        key[:fast, 0] = LOCAL
    elif kind == "before":
        for pair in range(fast):
            angle = float(frequency[pair])
            query[pair, 0] = BEFORE
            key[pair, 0] = BEFORE * math.cos(angle)
            key[pair + half, 0] = BEFORE * math.sin(angle)
        output = _basis(shape).T * WRITE_BEFORE
    elif kind == "induct" and before is not None:
        # looks for the place behind an earlier occurrence of this token: what came next there is what is copied
        query = before[0] * MATCH
        key = before[1].T / WRITE_BEFORE * MATCH
        for rows in (query, key):
            rows[:fast] = 0.0
            rows[half : half + fast] = 0.0
        output = value.T * WRITE
    return query, key, value, output
