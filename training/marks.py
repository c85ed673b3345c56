"""A second head start: units that tell, at every word of a candidate, what the trunk and the rules know of it.

The teacher's value of a text is nearly a weighted mean of what is known of its words: how likely each is behind the
source, what it loses against its likelihood alone, whether it is new, said before or central. So units of the first
changed layer's feed-forward block learn these, word by word, which gives hundreds of targets to a tree where the labels
give nine, and write them along directions of the residual stream that nothing else uses.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import damage
from training.smol import Smol, change
from training.states import Tree, collate

UNITS = 64
#: The last ones are bits of `damage`, as the words carry them.
MARKS = ("given", "loss", "gain", "error", "unsupported", "repeated", "new_word", "new_pair", "said", "central")
BITS = (
    damage.ERROR,
    damage.UNSUPPORTED | damage.FOREIGN,
    damage.REPEATED,
    damage.NEW_WORD,
    damage.NEW_PAIR,
    damage.SAID,
    damage.CENTRAL,
)
ALONE = ("error", "repeated", "said")  # what can be seen without a source
LOUD = 1.0  # by how much of its root mean square one deviation of a mark moves the stream


def targets(tree: Tree) -> tuple[Tensor, Tensor]:
    """Give the places of the candidates' words and what is known there, NaN where nothing is."""
    packed = tree.packed
    flags = torch.tensor([-1] * len(packed.trunk) + [flag for leaf in packed.leaf_flags for flag in leaf])
    at = (flags >= 0).nonzero()[:, 0]
    found = torch.full((len(at), len(MARKS)), float("nan"))
    if not packed.measured:
        return at, found
    for n, bit in enumerate(BITS, len(MARKS) - len(BITS)):
        if packed.sourced or MARKS[n] in ALONE:
            found[:, n] = (flags[at] & bit > 0).float()
    if tree.told is not None:
        given, alone = tree.told[at].T
        found[:, 0] = given.clamp_min(-12)
        found[:, 1] = (given - alone).clamp(-8, 0)
        found[:, 2] = (given - alone).clamp(-8, 12)
    return at, found


def attended(net: Smol, tree: Tree) -> Tensor:
    """Compute what the first changed layer's feed-forward block reads, for all tokens of a tree."""
    layer: Any = net.layers[net.first]
    found: list[Tensor] = []
    handle = layer.post_attention_layernorm.register_forward_hook(lambda module, x, result: found.append(x[0]))
    above(net, tree)
    handle.remove()
    return found[0]


@torch.no_grad()
def above(net: Smol, tree: Tree) -> Tensor:
    """Compute the states behind the first changed layer."""
    batch = collate(tree, random.Random(0)).batch
    real = batch.real()
    x = tree.states.float()
    cos, sin = net._rotation(batch, real, x.dtype)
    return net.layers[net.first].ragged(x, cos, sin, batch, real)  # type: ignore[operator, no-any-return]


def lifted(net: Smol, trees: Sequence[Tree]) -> list[Tree]:
    """Give the trees as the last layer sees them."""
    return [replace(tree, states=above(net, tree).half()) for tree in trees]


class Units(nn.Module):
    """The units as the feed-forward block has them, with what they tell of each mark."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.randn(UNITS, hidden) * hidden**-0.5)
        self.up = nn.Parameter(torch.randn(UNITS, hidden) * hidden**-0.5)
        self.down = nn.Parameter(torch.randn(UNITS, len(MARKS)) * 0.1)

    def forward(self, x: Tensor, drop: float = 0.0) -> Tensor:
        """Tell the marks, in deviations from their means."""
        inner = F.silu(x @ self.gate.T) * (x @ self.up.T)
        return F.dropout(inner, drop, self.training) @ self.down


def learn(x: Tensor, y: Tensor, epochs: int = 8, least: int = 600, size: int = 256, rate: float = 2e-3) -> Units:
    """Fit the units on words: x as the block reads it, y in deviations, NaN where nothing is known."""
    torch.manual_seed(7)
    units, known = Units(x.shape[1]), ~y.isnan()
    y = y.nan_to_num()
    solver = torch.optim.AdamW(units.parameters(), lr=rate, weight_decay=1.0)
    total, step = max(least, epochs * len(x) // size), 0
    while step < total:
        for rows in torch.randperm(len(x)).split(size):
            for group in solver.param_groups:
                group["lr"] = rate * min(1.0, step / 50) * max(0.0, 1 - step / total)
            wrong = ((units(F.dropout(x[rows], 0.3), 0.3) - y[rows]).square() * known[rows]).sum(1).mean()
            solver.zero_grad()
            wrong.backward()
            solver.step()
            step += 1
    return units.eval()


@dataclass
class Words:
    """The words of the candidates of some trees."""

    x: Tensor  # as the block reads them
    y: Tensor  # what is known, in deviations from the mean
    leaf: Tensor  # numbered through all trees
    count: int
    outside: Tensor  # some tokens of forms and sources, read alike: there nothing may be told

    @classmethod
    def of(cls, net: Smol, trees: Sequence[Tree]) -> Words:
        """Collect them; every tree has leaves."""
        xs, ys, leaves, count, rest = [], [], [], 0, []
        for tree in trees:
            at, y = targets(tree)
            x = F.rms_norm(attended(net, tree), (net.shape.hidden,))
            xs.append(x[at])
            rest.append(x[torch.randperm(len(tree.packed.trunk))[: len(at) // 2]])
            ys.append(y)
            for n, flags in enumerate(tree.packed.leaf_flags):
                leaves += [count + n] * sum(flag >= 0 for flag in flags)
            count += len(tree.packed.leaves)
        y = torch.cat(ys)
        mean = y.nanmean(0)
        deviation = (y - mean).square().nanmean(0).sqrt() + 1e-6
        return cls(torch.cat(xs), (y - mean) / deviation, torch.tensor(leaves), count, torch.cat(rest))

    def learn(self, chosen: Tensor) -> Units:
        """Fit units on some of the words."""
        chosen = chosen & ~self.y.isnan().all(1)
        quiet = torch.zeros(len(self.outside), len(MARKS))
        return learn(torch.cat((self.x[chosen], self.outside)), torch.cat((self.y[chosen], quiet)))

    def crossed(self, folds: int = 2) -> Tensor:
        """Give every leaf's mean marks, told by units that were fitted on other trees."""
        half = self.leaf * folds // self.count
        found = torch.zeros(self.count, len(MARKS))
        for fold in range(folds):
            own = half == fold
            units = self.learn(~own)
            with torch.no_grad():
                found.index_add_(0, self.leaf[own], units(self.x[own]))
        return found / torch.bincount(self.leaf, minlength=self.count).clamp_min(1)[:, None]


def prepare(net: Smol, trees: Sequence[Tree]) -> tuple[Tensor, Tensor]:
    """Set up the units; give the directions of the marks in front of the last layer, and every leaf's marks."""
    layer: Any = net.layers[net.first]
    words = Words.of(net, trees)
    units = words.learn(torch.ones(len(words.leaf), dtype=torch.bool))
    states = torch.cat([above(net, tree)[::7] for tree in trees])
    quiet = torch.linalg.eigh(states.T @ states / len(states))[1][:, : len(MARKS)]
    size = LOUD * float(states.norm(dim=1).median()) / net.shape.hidden**0.5
    behind = layer.post_attention_layernorm.weight
    places = layer.down_proj.weight.norm(dim=0).argsort()[:UNITS]
    inner = torch.eye(net.shape.intermediate)[places]
    down = quiet @ units.down.detach().T * size
    for n, place in enumerate(places.tolist()):
        change(layer.gate_proj, n, units.gate.detach()[n] / behind - layer.gate_proj.weight[place], inner[n])
        change(layer.up_proj, n, units.up.detach()[n] / behind - layer.up_proj.weight[place], inner[n])
        change(layer.down_proj, n, inner[n], down[:, n] - layer.down_proj.weight[:, place], 20.0)
    return quiet, words.crossed()
