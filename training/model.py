"""The judge as a training network: a Llama whose forward pass takes a trunk and its leaves apart.

A leaf attends to its trunk and to itself, never to its siblings. Computing these two blocks directly skips the empty
part of a tree mask, which on a CPU is more than half of the attention. Parameter names follow transformers' Llama, so
that the export is a rename.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.damage import FLAGS

torch.backends.cuda.enable_cudnn_sdp(False)  # it compiles a plan for every new shape, and each batch is one


@dataclass(frozen=True)
class Shape:
    """The sizes of the network."""

    vocabulary: int = 8192
    hidden: int = 192
    layers: int = 4
    heads: int = 4
    intermediate: int = 512
    theta: float = 1000000.0
    epsilon: float = 1e-5
    shared: int = 1  # query heads that share one head of keys and values

    @property
    def head_size(self) -> int:
        """Width of one head."""
        return self.hidden // self.heads

    def dictionary(self) -> dict[str, float]:
        """Give the sizes as they are kept in a checkpoint."""
        return asdict(self)


class Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output for all tokens, trunks first."""
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.epsilon)


class Linear(nn.Linear):
    """Float32 master weight, cast to the activations' type at every use: the optimizer never sees rounded weights."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output for all tokens, trunks first."""
        return F.linear(x, self.weight.to(x.dtype))


def rope(positions: Tensor, size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    inverse = 1.0 / theta ** (torch.arange(0, size, 2, device=positions.device).float() / size)
    angle = positions[:, None].float() * inverse
    both = torch.cat((angle, angle), -1)
    return both.cos().to(dtype), both.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat((-two, one), -1) * sin


class Layer(nn.Module):
    """One Llama layer, its attention left to `attend`."""

    def __init__(self, shape: Shape, linear: Callable[[int, int], nn.Module] = Linear) -> None:
        super().__init__()
        self.shape = shape
        h, i, kv = shape.hidden, shape.intermediate, shape.hidden // shape.shared
        self.input_layernorm = Norm(h, shape.epsilon)
        self.post_attention_layernorm = Norm(h, shape.epsilon)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = linear(h, h), linear(h, kv), linear(h, kv), linear(h, h)
        self.gate_proj, self.up_proj, self.down_proj = linear(h, i), linear(h, i), linear(i, h)

    def heads(
        self, y: Tensor, cos: Tensor, sin: Tensor, at: Tensor | slice = slice(None)
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Projections and rotation: queries of the tokens `at`, keys and values of all."""
        n, heads, size = y.shape[0], self.shape.heads, self.shape.head_size
        q = rotate(self.q_proj(y[at]).view(-1, heads, size), cos[at], sin[at])
        k = rotate(self.k_proj(y).view(n, -1, size), cos, sin)
        return q, k, self.v_proj(y).view(n, -1, size)

    def after(self, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection and feed-forward block."""
        x = x + self.o_proj(attended.reshape(x.shape[0], -1))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, batch: Batch) -> Tensor:
        """Compute the output for all tokens, trunks first."""
        return self.after(x, attend(*self.heads(self.input_layernorm(x), cos, sin), batch))


@dataclass
class Batch:
    """`trunk` [B, T] and `leaves` [B, K, L], padded on the right; lengths say what is real."""

    trunk: Tensor
    leaves: Tensor
    trunk_length: Tensor
    leaf_length: Tensor | None = None
    states: Tensor | None = None  # what frozen layers made of the tokens that are no padding
    places: Tensor | None = None  # of those tokens, once they were asked for

    def real(self) -> Tensor:
        """Give the places of the tokens that are no padding."""
        if self.places is None:
            assert self.leaf_length is not None
            trunk = torch.arange(self.trunk.shape[1]) < self.trunk_length[:, None]
            leaf = torch.arange(self.leaves.shape[2]) < self.leaf_length[..., None]
            self.places = torch.cat((trunk.reshape(-1), leaf.reshape(-1))).nonzero()[:, 0]
        return self.places

    def to(self, device: torch.device) -> Batch:
        """Move to a device; the places are found before, as a device would have to be waited for."""
        moved = Batch(self.trunk.to(device), self.leaves.to(device), self.trunk_length.to(device))
        if self.leaf_length is not None:
            moved.places = self.real().to(device)
        if self.states is not None:
            moved.states = self.states.to(device)
        return moved

    def positions(self) -> Tensor:
        """Give every token its depth: a leaf goes on where its trunk ends."""
        b, t = self.trunk.shape
        _, k, length = self.leaves.shape
        own = torch.arange(t, device=self.trunk.device).expand(b, t)
        leaf = self.trunk_length[:, None, None] + torch.arange(length, device=self.trunk.device).expand(b, k, length)
        return torch.cat((own.reshape(-1), leaf.reshape(-1)))

    def ids(self) -> Tensor:
        """List all tokens, trunks first."""
        return torch.cat((self.trunk.reshape(-1), self.leaves.reshape(-1)))


def attend(q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> Tensor:
    """Let every token of some trees see its trunk and its own leaf up to itself; padding has rows too."""
    b, t = batch.trunk.shape
    _, leaves, length = batch.leaves.shape
    cut, size, shared = b * t, q.shape[2], k.shape[1]
    each = q.shape[1] // shared

    def trunk(x: Tensor) -> Tensor:
        return x[:cut].view(b, t, -1, size).transpose(1, 2)

    def leaf(x: Tensor) -> Tensor:
        return x[cut:].view(b * leaves, length, -1, size).transpose(1, 2)

    def both(x: Tensor) -> Tensor:
        return torch.cat((trunk(x).repeat_interleave(leaves, 0), leaf(x)), 2)

    first = F.scaled_dot_product_attention(trunk(q), trunk(k), trunk(v), is_causal=True, enable_gqa=True)
    seen = torch.ones(length, t + length, dtype=torch.bool, device=q.device).tril(t).expand(b * leaves, 1, -1, -1)
    if b > 1:  # a tree alone has no padding in its trunk
        own = torch.arange(t + length, device=q.device)
        real = (own < batch.trunk_length[:, None]) | (own >= t)
        seen = seen & real.repeat_interleave(leaves, 0)[:, None, None, :]
    # Heads that share keys become rows of one head: with a mask no fast kernel lets them share.
    asked = leaf(q).reshape(b * leaves, shared, each * length, size)
    second = F.scaled_dot_product_attention(asked, both(k), both(v), attn_mask=seen.repeat(1, 1, each, 1))
    second = second.reshape(b * leaves, -1, length, size)
    return torch.cat([x.transpose(1, 2).reshape(-1, q.shape[1], size) for x in (first, second)])


class Nano(nn.Module):
    """Returns the final hidden state of every token; heads are applied by the loss at the positions it needs."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden, shape.epsilon)
        self.lm_head = Linear(
            shape.hidden, shape.vocabulary
        )  # not tied: it costs no time and leaves the embeddings large
        self.flags = nn.Linear(shape.hidden, FLAGS)  # the auxiliary heads, not exported: at the words of a candidate
        self.counts = nn.Linear(shape.hidden, FLAGS)  # and behind it, where the evidence has to be gathered
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = (
                    0.03 / (2 * shape.layers) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.05
                )
                nn.init.normal_(parameter, std=scale)

    def forward(self, batch: Batch, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Compute the output for all tokens, trunks first."""
        x = F.embedding(batch.ids(), self.embed_tokens.weight).to(dtype)
        cos, sin = rope(batch.positions(), self.shape.head_size, self.shape.theta, dtype)
        cos, sin = cos[:, None], sin[:, None]
        for layer in self.layers:
            x = layer(x, cos, sin, batch)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Apply the head, result in float32."""
        return self.lm_head(hidden).float()
