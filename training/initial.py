"""A head start for the network: heads that look at like tokens, at the token before, at like pairs, and behind.

A small model on a CPU does not live long enough to grow these by itself, and judging needs them: a claim is checked by
finding its words in the source, and a step is written by copying the criterion. Every head below is an ordinary weight
setting that training is free to change. `python -m training.heads` shows where they look.

A rotary head can only prefer a distance if its input has a constant part, so one dimension of the embeddings starts as
a constant, and all embeddings have one length, or else the norm in front of the head would spoil it. Fast rotary pairs
then carry distance, slow ones carry content. The last dimensions start empty: the token before is written there, so
that a later head reads both halves of a pair, or looks for the place behind an earlier occurrence, without noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from training.model import Nano, Shape

CONSTANT = 3.0  # of the constant dimension, in standard deviations of the others
MATCH = 2.2
LOCAL = 0.9
BEFORE = 2.4
WRITE = 0.35
COPY = 1.0  # what an inductor found is what comes next
DECODE = 0.05  # of the language model's head along the embeddings

# By layer: what its heads start as; the rest start at random.
PLAN = (
    ("before", "match", "local"),
    ("match", "pair", "local", "induct"),
    ("match", "pair", "induct"),
    ("match",),
)


@torch.no_grad()
def prepare(net: Nano, embedding: Tensor) -> None:
    """Set embeddings and heads. `embedding` has unit spread."""
    shape = net.shape
    channel = slice(shape.hidden - shape.head_size, shape.hidden)
    content = embedding.clone()
    content[:, 0] = 0.0
    content[:, channel] = 0.0
    content *= (shape.hidden - shape.head_size) ** 0.5 / content.norm(dim=1, keepdim=True)
    content[:, 0] = CONSTANT
    net.embed_tokens.weight.copy_(content * 0.5)
    content[:, 0] = 0.0
    nn.init.normal_(net.lm_head.weight, std=0.02)
    net.lm_head.weight.add_(content * DECODE)
    before = _basis(shape)
    for layer, kinds in zip(net.layers, PLAN, strict=False):
        for head, kind in enumerate(kinds):
            rows = slice(head * shape.head_size, (head + 1) * shape.head_size)
            query, key, value, output = _head(kind, shape, before)
            layer.q_proj.weight[rows] = query
            layer.k_proj.weight[rows] = key
            layer.v_proj.weight[rows] = value
            layer.o_proj.weight[:, rows] = output


def _basis(shape: Shape) -> Tensor:
    """Draw orthonormal rows that read content: neither the constant nor the channel of the token before."""
    width = shape.hidden - shape.head_size - 1
    full = torch.zeros(shape.head_size, shape.hidden)
    full[:, 1 : 1 + width] = nn.init.orthogonal_(torch.empty(shape.head_size, width))
    return full


def _channel(shape: Shape) -> Tensor:
    """Rows that read the channel of the token before."""
    full = torch.zeros(shape.head_size, shape.hidden)
    full[:, shape.hidden - shape.head_size :] = torch.eye(shape.head_size)
    return full


def _head(kind: str, shape: Shape, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    half = shape.head_size // 2
    fast = shape.head_size // 5
    frequency = shape.theta ** (-torch.arange(half).float() / half)
    query = torch.zeros(shape.head_size, shape.hidden)
    key = torch.zeros(shape.head_size, shape.hidden)
    value = _basis(shape)
    output = _basis(shape).T * WRITE
    slow = torch.ones(shape.head_size, 1)
    slow[:fast] = slow[half : half + fast] = 0.0
    if kind in {"match", "pair"}:
        read = _basis(shape)
        if kind == "pair":  # every other row reads the token before
            read[::2] = _channel(shape)[::2]
        query += read * slow * MATCH
        key += read * slow * MATCH
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
        value, output = before, _channel(shape).T
    elif kind == "induct":
        # looks for the place behind an earlier occurrence of this token: what came next there is what is copied
        query = before * slow * MATCH
        key = _channel(shape) * slow * MATCH
        output = value.T * COPY
    return query, key, value, output
