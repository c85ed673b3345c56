"""A head start for the adapter: heads that gather, behind a candidate, what the trunk noticed at its words.

Some hundred trees teach a pretrained trunk what is wrong at a word, and nothing of how to sum it up where the label
stands: no head looks there. So three heads of layer `MARKS` start as gatherers. Directions are found by ridge
regression on what the frozen trunk computes for some trees: which tokens are the candidate's, which carry each mark,
and what, on average over a candidate, tells the teacher's values. The heads look at the candidate's tokens, read these
and write them into the residual stream: each along a direction of its own, and the values also along the one from low
labels to high ones. All of it is an ordinary setting of the low-rank maps, which training is free to change.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from training import packing
from training.damage import FLAGS, ORDER
from training.model import Batch
from training.smol import MARKS, Adapted, Smol
from training.tasks import Maker

SHARP = 14.0  # by how much the score of a candidate's token lies above that of another
CHANNEL = 31  # of a head: its slowest rotary pair, which does not feel the distance
RISE = 12.0  # by how much "5" gains on "1" from a value of 1 against a value of 0
PAIRS = "5 1, 4 2, 3 1, 9 3, 8 0, Yes No, Good Bad, high low"  # labels, the better one first
#: Values and the forms that ask for them; a fluency form has no source.
VALUES = {
    "coherence": ("coherence",),
    "consistency": ("consistency",),
    "relevance": ("relevance",),
    "fluency": ("fluency",),
    "reply": ("naturalness", "dialogue_coherence", "engagingness", "groundedness", "understandability"),
}
TOLD = [flag for flag in range(FLAGS) if 1 << flag != ORDER]  # the trunk alone hardly sees a broken order


@dataclass
class Seen:
    """What the trunk computes in front of layer `MARKS`: of every token, of words, and on average of candidates."""

    tokens: list[Tensor] = field(default_factory=list)
    own: list[Tensor] = field(default_factory=list)
    words: list[Tensor] = field(default_factory=list)
    marks: list[Tensor] = field(default_factory=list)
    means: list[Tensor] = field(default_factory=list)
    values: list[tuple[str, Tensor]] = field(default_factory=list)


def ridge(x: Tensor, y: Tensor, strength: float = 0.03) -> Tensor:
    """Solve for the directions that tell y from x."""
    left = x.T @ x
    left += strength * left.diagonal().mean() * torch.eye(len(left))
    return torch.linalg.solve(left, x.T @ y)


def observe(net: Smol, maker: Maker, code: Tokenizer, count: int) -> Seen:
    """Let the trunk read some trees, as far as layer `MARKS`."""
    rng, found, given = random.Random(5), Seen(), []
    handle = net.layers[MARKS].input_layernorm.register_forward_hook(lambda module, x, result: given.append(x[0]))
    layers, net.layers = net.layers, nn.ModuleList(net.layers[: MARKS + 1])
    while len(found.means) < count:
        value = list(VALUES)[len(found.means) % len(VALUES)]
        tree = maker.tree(rng.choice(VALUES[value]))
        packed = packing.pack(tree, code, rng, 0.0) if tree and tree.leaves else None
        if packed is None or len(packed.trunk) + sum(map(len, packed.leaves)) > 1100:
            continue
        data = packing.collate([packed], rng)
        given.clear()
        with torch.no_grad():
            net(data.batch)
        x = F.rms_norm(given[0], given[0].shape[-1:])
        real = data.batch.real()
        place = torch.full((len(data.batch.ids()),), -1)
        place[real] = torch.arange(len(real))
        words = place[data.flag_at]
        own = torch.full((len(real), 1), -0.5)
        own[words] = 0.5
        found.tokens.append(x)
        found.own.append(own)
        if packed.read:
            found.words.append(x[words])
            found.marks.append(data.flag_target)
        sizes = [sum(flag >= 0 for flag in flags) for flags in packed.leaf_flags]
        kept = [n for n, size in enumerate(sizes) if size]
        parts = x[words].split([size for size in sizes if size])
        found.means.append(torch.stack([part.mean(0) for part in parts]))
        found.values.append((value, torch.tensor([packed.quality[n] for n in kept])))
    net.layers = layers
    handle.remove()
    return found


def value_directions(seen: Seen, strength: float = 1.0) -> Tensor:
    """Find what tells the teacher's values within a tree; in forms that ask for another value it should be silent."""
    means = torch.cat([m - m.mean(0) for m in seen.means])
    middle = torch.cat(seen.means).mean(0)
    found = []
    for name in VALUES:
        kind = name in {"fluency", "reply"}
        target, weight = [], []
        for other, value in seen.values:
            alike = other == name or not (kind or other in {"fluency", "reply"})
            target.append((value - value.mean()) * alike)
            weight.append(torch.full((len(value),), 1.0 if other == name else 0.6 if alike else 0.4))
        root = torch.cat(weight).sqrt()[:, None]
        # the last row: the average text has the value 0
        x = torch.cat((means * root, 100 * middle[None]))
        found.append(ridge(x, torch.cat((torch.cat(target)[:, None] * root, torch.zeros(1, 1))), strength)[:, 0])
    return torch.stack(found, 1)


def change(module: Adapted, rank: int, row: Tensor, column: Tensor, shift: float = 1.0) -> None:
    """Add the product of a column and a row to a weight, as one rank of its maps; `shift` goes from column to row."""
    module.lora_A.data[rank] = row * shift
    module.lora_B.data[:, rank] = column / module.scale / shift


def low_to_high(net: Smol, code: Tokenizer) -> Tensor:
    """Find the direction from low labels to high ones, as long as it takes for "5" to gain 1 on "1"."""
    head = net.embed_tokens.weight * net.norm.weight

    def of(label: str) -> Tensor:  # a space and a digit are two tokens, a space and a word are one
        return head[code.encode(" " + label, add_special_tokens=False).ids[-1]]

    pairs = [pair.split() for pair in PAIRS.split(", ")]
    total = torch.stack([of(high) - of(low) for high, low in pairs]).sum(0)
    ids = torch.randint(0, net.shape.vocabulary, (40,), generator=torch.Generator().manual_seed(5))
    norms: list[Tensor] = []
    handle = net.norm.register_forward_hook(lambda module, x, result: norms.append(x[0][1:].norm(dim=-1)))
    tree = Batch(ids[None, :30], ids[None, None, 30:], torch.tensor([30]), torch.tensor([[10]]))
    with torch.no_grad():
        net(tree)
    handle.remove()
    length = float(norms[0].median()) / net.shape.hidden**0.5
    return total * length / float((of("5") - of("1")) @ total)


def prepare(net: Smol, maker: Maker, code: Tokenizer, count: int = 120) -> dict[str, float]:
    """Set up the heads; give how well the directions tell what they are to tell."""
    seen = observe(net, maker, code, count)
    layer, size, shared = net.layers[MARKS], net.shape.head_size, net.shape.shared
    weight = layer.input_layernorm.weight
    tokens, own_of = torch.cat(seen.tokens), torch.cat(seen.own)
    own, same = ridge(tokens, own_of)[:, 0], ridge(tokens, torch.ones_like(own_of))[:, 0]
    words, marks_of = torch.cat(seen.words), torch.cat(seen.marks)
    marks = ridge(words, marks_of - marks_of.mean(0))
    values = value_directions(seen)
    with torch.no_grad():
        net.flags.weight.copy_(6 * marks.T)
        net.flags.bias.copy_(marks_of.mean(0).clamp(0.01, 0.99).logit())
    # the heads whose output weighs least are given up for this
    output = layer.o_proj.weight.view(net.shape.hidden, -1, shared, size)
    group = int(output.pow(2).sum((0, 2, 3)).argmin())
    heads = torch.zeros(net.shape.heads, size)
    narrow = torch.eye(net.shape.hidden // shared)
    strength = (SHARP * size**0.5) ** 0.5
    places = heads.clone()
    places[group * shared : (group + 1) * shared, CHANNEL] = 1.0
    at_k = group * size + CHANNEL
    change(layer.q_proj, 0, strength * same / weight, places.flatten())
    change(layer.k_proj, 0, strength * own / weight - layer.k_proj.weight[at_k], narrow[at_k])
    up = low_to_high(net, code) * RISE / len(VALUES)
    ways = torch.linalg.qr(torch.randn(net.shape.hidden, 16, generator=torch.Generator().manual_seed(5)))[0]
    for rank, direction in enumerate([*marks.T[TOLD], *values.T]):
        channel = group * size + rank
        change(layer.v_proj, rank, direction / weight - layer.v_proj.weight[channel], narrow[channel])
        write = up.norm() * len(VALUES) * ways[:, rank] + (up * len(VALUES) if rank >= len(TOLD) else 0.0)
        read = heads.clone()
        read[group * shared : (group + 1) * shared, rank] = 1.0 / shared
        change(layer.o_proj, rank, read.flatten(), write, 20.0)  # the optimizer's steps now suit both maps

    def agreement(told: Tensor, truth: Tensor) -> float:
        return round(float(torch.corrcoef(torch.stack((told, truth)))[0, 1]), 3)

    found = {"group": float(group), "own": agreement(tokens @ own, own_of[:, 0])}
    found |= {f"mark {flag}": agreement(words @ marks[:, flag], marks_of[:, flag]) for flag in TOLD}
    for number, name in enumerate(VALUES):
        rows = [(m - m.mean(0), v - v.mean()) for m, (n, v) in zip(seen.means, seen.values, strict=True) if n == name]
        found[name] = agreement(torch.cat([m for m, _ in rows]) @ values[:, number], torch.cat([v for _, v in rows]))
    return found
