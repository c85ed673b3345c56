"""A head start for the adapter: heads that read, at the label, what the trunk noticed at the candidate's words.

Some hundred trees teach a pretrained trunk no way back from the label to the candidate: no head looks there. So one
group of the last layer's heads is given up and starts anew.

- Its keys tell the candidate's tokens from all others, evenly: what a token is and how far it lies in front of the
  label (rotary pairs that turn slowly enough), fitted so that the attention comes close to the candidate's mean.
- Its values are directions that tell the teacher's values within a tree, one for every kind of criterion.
- Some units of the feed-forward block pass on the value that the form asks for: the gate reads the criterion at the
  label, the other factor the value, and the product goes along the direction from low labels to high ones.

All of it is an ordinary setting of the low-rank maps, which training is free to change.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from training import marks
from training.model import Batch, Shape
from training.packing import Packed
from training.smol import SHAPE, Smol, change
from training.states import Tree, collate

KINDS = ("coherence", "consistency", "relevance", "fluency", "other")
MARKED = KINDS[:4]  # of these the words' marks tell the value
GRADED = KINDS[:3]  # of a summary with its source each is known, whatever the form asks for
LIKE = {"factual": "consistency", "faithfulness": "consistency"}
TURNING = (12, 14, 16, 18)  # of 64ths of a head's channels: rotary pairs that turn once in 140 to 4,000 tokens
RISE = 8.0  # by how much "5" gains on "1" from a value of 1 against a value of 0
TOLD = 2.0  # the value's factor in front of the feed-forward block
GATE = 4.0
GENERAL = 0.4  # what the mean of all kinds counts, whatever the form asks for: a new criterion has this at least
SPREAD = 0.25  # deviation of the values within a tree
#: How high the labels stand; short scales begin low, so that the steps are longer there.
LEVELS = {"0": -0.4, "1": 0.0, "2": 0.3, "3": 0.55, "4": 0.78, "5": 1.0, "6": 1.15, "7": 1.3, "8": 1.45, "9": 1.6}
PAIRS = ("Yes No", "Good Bad", "high low")  # the better one first: as far apart as "5" and "1"


def kind(packed: Packed) -> str:
    """Give the kind of criterion that a tree's form asks for."""
    name = LIKE.get(packed.concept, packed.concept)
    return name if name in KINDS else KINDS[-1]


def ridge(x: Tensor, y: Tensor, strength: float) -> Tensor:
    """Solve for the directions that tell y from x."""
    left = x.T @ x
    left += strength * left.diagonal().mean() * torch.eye(len(left))
    return torch.linalg.solve(left, x.T @ y)


def low_to_high(net: Smol, code: Tokenizer) -> Tensor:
    """Find the direction from low labels to high ones, as long as it takes for "5" to gain 1 on "1"."""
    head = net.embed_tokens.weight * net.norm.weight

    def of(label: str) -> Tensor:  # a space and a digit are two tokens, a space and a word are one
        return head[code.encode(" " + label, add_special_tokens=False).ids[-1]]

    pairs = [pair.split() for pair in PAIRS]
    rows = [of(label) - of("1") for label in LEVELS] + [of(high) - of(low) for high, low in pairs]
    levels = torch.tensor([*LEVELS.values(), *(1.0 for _ in pairs)])
    way = torch.linalg.lstsq(torch.stack(rows), levels[:, None], driver="gelsd").solution[:, 0]  # the shortest such way
    ids = torch.randint(0, net.shape.vocabulary, (40,), generator=torch.Generator().manual_seed(5))
    norms: list[Tensor] = []
    handle = net.norm.register_forward_hook(lambda module, x, result: norms.append(x[0][1:].norm(dim=-1)))
    tree = Batch(ids[None, :30], ids[None, None, 30:], torch.tensor([30]), torch.tensor([[10]]))
    with torch.no_grad():
        net(tree)
    handle.remove()
    return way * float(norms[0].median()) / net.shape.hidden**0.5


def own_tokens(packed: Packed) -> list[tuple[Tensor, Tensor, int]]:
    """Give of every leaf: the tokens that its label sees, which of them are the candidate's, and the label's place."""
    start, found = len(packed.trunk), []
    for leaf, flags, row in zip(packed.leaves, packed.leaf_flags, packed.ranks, strict=True):
        label = packed.labels[row][1]
        seen = torch.cat((torch.arange(len(packed.trunk)), torch.arange(start, start + label + 1)))
        own = torch.cat((torch.zeros(len(packed.trunk)), (torch.tensor(flags[: label + 1]) >= 0).float()))
        found.append((seen, own, start + label))
        start += len(leaf)
    return found


@dataclass
class Rows:
    """The labels of some trees, padded to the longest: what each sees, how far it is, what is the candidate's."""

    tokens: Tensor
    seen: Tensor
    distance: Tensor
    own: Tensor
    real: Tensor
    tree: Tensor
    labels: Tensor
    truth: Tensor  # by kind, NaN where it is not known

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> Rows:
        """Collect them."""
        parts = [(n, *part) for n, tree in enumerate(trees) for part in own_tokens(tree.packed)]
        starts = torch.tensor([0, *(len(tree.states) for tree in trees)]).cumsum(0)
        longest = max(len(seen) for _, seen, _, _ in parts)
        seen = torch.zeros(len(parts), longest, dtype=torch.long)
        distance, own = torch.zeros(len(parts), longest), torch.zeros(len(parts), longest)
        real = torch.zeros(len(parts), longest, dtype=torch.bool)
        for i, (n, at, mine, _) in enumerate(parts):
            seen[i, : len(at)], own[i, : len(at)], real[i, : len(at)] = at + starts[n], mine, True
            distance[i, : len(at)] = torch.arange(len(at) - 1, -1, -1).float()
        return cls(
            torch.cat([F.rms_norm(tree.states.float(), tree.states.shape[-1:]) for tree in trees]),
            seen,
            distance,
            own,
            real,
            torch.tensor([n for n, *_ in parts]),
            torch.tensor([int(starts[n]) + at for n, _, _, at in parts]),
            torch.cat([values(tree.packed) for tree in trees]),
        )


def values(packed: Packed) -> Tensor:
    """Give the teacher's values of every leaf, by kind; NaN where one is not known."""
    asked, found = kind(packed), torch.full((len(packed.leaves), len(KINDS)), float("nan"))
    for n, (quality, graded) in enumerate(zip(packed.quality, packed.graded, strict=True)):
        found[n, KINDS.index(asked)] = graded.get(asked, quality)
        if packed.measured and packed.sourced:
            for name in GRADED:
                found[n, KINDS.index(name)] = graded.get(name, float("nan"))
    return found


class Gathering(torch.nn.Module):
    """What is fitted: the keys, and values by kind. The heads of the group begin alike."""

    def __init__(self, shape: Shape = SHAPE) -> None:
        super().__init__()
        self.pairs = [shape.head_size * part // 64 for part in TURNING]
        self.turns = [shape.theta ** (-2 * pair / shape.head_size) for pair in self.pairs]
        self.key = torch.nn.Parameter(torch.zeros(shape.hidden, 1 + 2 * len(TURNING)))
        self.value = torch.nn.Parameter(torch.zeros(shape.hidden, len(KINDS)))

    def scores(self, rows: Rows) -> Tensor:
        """Compute the score of every token that a label sees."""
        common = rows.tokens @ self.key
        score = common[:, 0][rows.seen]
        for n, speed in enumerate(self.turns):
            turn = speed * rows.distance
            score = score + turn.cos() * common[:, 1 + 2 * n][rows.seen] + turn.sin() * common[:, 2 + 2 * n][rows.seen]
        return score.masked_fill(~rows.real, float("-inf"))

    def forward(self, rows: Rows) -> Tensor:
        """Compute the values at the labels, by kind."""
        return torch.einsum("lt,ltk->lk", self.scores(rows).softmax(1), (rows.tokens @ self.value)[rows.seen])


def centred(x: Tensor, tree: Tensor) -> Tensor:
    """Take the mean of its tree off every row; what is not known stays NaN."""
    known = ~x.isnan()
    zero = x.new_zeros(int(tree.max()) + 1, x.shape[1])
    count = zero.index_add(0, tree, known.float()).clamp_min(1)
    return x - (zero.index_add(0, tree, x.nan_to_num()) / count)[tree]


def look(net: Gathering, groups: Sequence[Rows], strength: float = 1e-3) -> float:
    """Fit the keys, so that the attention comes close to the candidate's mean; give its share of it."""
    solver = torch.optim.LBFGS([net.key], max_iter=40, history_size=10, line_search_fn="strong_wolfe")
    count = sum(len(rows.seen) for rows in groups)

    def loss() -> Tensor:
        solver.zero_grad()
        total = strength * net.key.square().sum()
        total.backward()
        for rows in groups:
            wanted = rows.own / rows.own.sum(1, keepdim=True).clamp_min(1)
            logs = net.scores(rows).log_softmax(1).masked_fill(~rows.real, 0.0)
            found = -(wanted * logs).sum() / count
            found.backward()
            total = total.detach() + found.detach()
        return total

    solver.step(loss)
    with torch.no_grad():
        return sum(float((net.scores(rows).softmax(1) * rows.own).sum()) for rows in groups) / count


def error(net: Gathering, rows: Rows) -> Tensor:
    """Compute the squared error within trees, by kind, as a share of what the truth varies within most trees."""
    truth = centred(rows.truth, rows.tree)
    told = net(rows).where(~truth.isnan(), torch.full((), float("nan")))
    off = (centred(told, rows.tree) - truth).nan_to_num()
    return off.square().sum(0) / SPREAD**2 / len(rows.seen)


def begin(net: Gathering, groups: Sequence[Rows], strength: float, ways: Tensor, crossed: Tensor) -> None:
    """Set the values: along the marks what a regression finds of them, of other kinds' trees what it finds of all."""
    gathered: list[Tensor] = []
    truth: list[Tensor] = []
    trees: list[Tensor] = []
    with torch.no_grad():
        for rows in groups:
            looked = net.scores(rows).softmax(1)
            gathered.append(torch.stack([w @ rows.tokens[at] for w, at in zip(looked, rows.seen, strict=True)]))
            truth.append(rows.truth)
            trees.append(rows.tree + (int(trees[-1].max()) + 1 if trees else 0))
        mean, y, tree = torch.cat(gathered), torch.cat(truth), torch.cat(trees)
        y = centred(y, tree)
        for n, name in enumerate(KINDS):
            known = ~y[:, n].isnan()
            if not known.any():  # no tree asks for it
                continue
            if name in MARKED:
                value = ways @ ridge(centred(crossed[known], tree[known]), y[known, n], 0.03)
            else:
                value = ridge(centred(mean[known], tree[known]), y[known, n], strength)
            told = centred(mean[known], tree[known]) @ value  # so strong a ridge gives the way and not the length
            net.value[:, n] = value * (told @ y[known, n]) / (told @ told)


def fit(
    shape: Shape, trees: Sequence[Tree], ways: Tensor, crossed: Tensor, strength: float = 6.0
) -> tuple[Gathering, list[Rows]]:
    """Fit keys, then values."""
    groups = [Rows.of(trees[n : n + 12]) for n in range(0, len(trees), 12)]
    net = Gathering(shape)
    look(net, groups)
    begin(net, groups, strength, ways, crossed)
    return net, groups


def kinds_of(trees: Sequence[Tree]) -> Tensor:
    """Tell of every label which kind its form asks for, by number."""
    return torch.tensor([KINDS.index(kind(tree.packed)) for tree in trees for _ in tree.packed.leaves])


def separate(x: Tensor, asked: Tensor, strength: float = 1e-3) -> Tensor:
    """Solve for the directions along which x lies above GATE where a kind is asked for and below its negative else.

    Every kind counts alike, and so do the forms that ask for it and those that do not; squared hinge.
    """
    truth = F.one_hot(asked, len(KINDS)).float()
    weight = torch.where(truth > 0, 0.5 / truth.sum(0).clamp_min(1), 0.5 / (1 - truth).sum(0))
    way = torch.zeros(x.shape[1], len(KINDS), requires_grad=True)
    solver = torch.optim.LBFGS([way], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        short = F.relu(1 - (2 * truth - 1) * (x @ way))
        found = (weight * short.square()).sum() + strength * way.square().sum()
        found.backward()
        return found

    solver.step(loss)
    return way.detach() * GATE


def at_labels(net: Smol, trees: Sequence[Tree]) -> Tensor:
    """Collect what stands at the labels in front of the last feed-forward block."""
    found: list[Tensor] = []
    last: Any = net.layers[-1]
    handle = last.post_attention_layernorm.register_forward_hook(lambda module, x, result: found.append(x[0]))
    with torch.no_grad():
        for tree in trees:
            places = torch.tensor([place for *_, place in own_tokens(tree.packed)])
            batch = collate(tree, random.Random(0)).batch
            net(batch, wanted=batch.real()[places])  # their places in the padded batch
    handle.remove()
    return torch.cat(found)


def prepare(net: Smol, trees: Sequence[Tree], code: Tokenizer) -> dict[str, float]:
    """Set up the heads and the units; give the share of the candidate in what the heads see, and the error by kind."""
    if net.first != net.shape.layers - 2:
        raise SystemExit("Words are marked in the last layer but one; the heads start in the last.")
    trees = [tree for tree in trees if tree.packed.leaves]
    ways, crossed = marks.prepare(net, trees)
    found, groups = fit(net.shape, marks.lifted(net, trees), ways, crossed)
    layer: Any = net.layers[-1]
    shared, size = net.shape.shared, net.shape.head_size
    content = size // 2 - 1  # the pair that does not feel the distance
    narrow, wide = torch.eye(net.shape.hidden // shared), torch.eye(net.shape.hidden)
    # the heads whose output weighs least are given up for this
    output = layer.o_proj.weight.view(net.shape.hidden, -1, shared, size)
    group = int(output.pow(2).sum((0, 2, 3)).argmin())
    before, behind = layer.input_layernorm.weight, layer.post_attention_layernorm.weight

    labels = torch.cat([rows.tokens[rows.labels] for rows in groups])
    query = ridge(labels, torch.ones(len(labels)), 0.003)
    keys = torch.zeros(size, net.shape.hidden)
    keys[[content, *(channel for pair in found.pairs for channel in (pair, pair + size // 2))]] = found.key.detach().T
    asking = [content, *found.pairs]
    silent = [channel + size // 2 for channel in asking]
    for head in range(shared):
        for n, channel in enumerate((*asking, *silent)):
            row = (group * shared + head) * size + channel
            wanted = (query if channel in asking else torch.zeros_like(query)) / before
            change(layer.q_proj, 2 * len(asking) * head + n, wanted - layer.q_proj.weight[row], wide[row])
    told = torch.zeros(size, net.shape.hidden)
    told[: len(KINDS)] = found.value.detach().T
    for channel in range(size):
        at = group * size + channel
        change(layer.k_proj, channel, keys[channel] / before * size**0.5 - layer.k_proj.weight[at], narrow[at])
        change(layer.v_proj, channel, -layer.v_proj.weight[at], narrow[at])

    plain = at_labels(net, trees)  # the heads say nothing yet
    length = float(plain.norm(dim=1).median()) / net.shape.hidden**0.5
    normed = F.rms_norm(plain, plain.shape[-1:])
    quiet = torch.linalg.eigh(normed.T @ normed / len(normed))[1][:, : len(KINDS)]  # nothing else is said that way
    gate = separate(normed, kinds_of(trees))
    constant = ridge(normed, torch.ones(len(normed)), 0.003)
    with torch.no_grad():
        offset = torch.cat([found(rows) for rows in groups]).mean(0)
    for channel in range(size):
        at = group * size + channel
        change(layer.v_proj, channel, told[channel] / before - layer.v_proj.weight[at], narrow[at])
    for head in range(shared):
        for n in range(len(KINDS)):
            at = (group * shared + head) * size + n
            column = quiet[:, n] * TOLD * length / shared - layer.o_proj.weight[:, at]
            change(layer.o_proj, len(KINDS) * head + n, wide[at], column, 20.0)
    units = layer.down_proj.weight.norm(dim=0).argsort()[: len(KINDS) + 1]
    reads = quiet - TOLD * offset * constant[:, None]
    gate = torch.cat((gate, GATE * constant[:, None]), 1)
    reads = torch.cat((reads, GENERAL * reads.mean(1, keepdim=True)), 1)
    inner = torch.eye(net.shape.intermediate)[units]
    up = low_to_high(net, code) * RISE / TOLD / float(F.silu(torch.tensor(GATE)))
    for n, unit in enumerate(units.tolist()):
        change(layer.gate_proj, n, gate[:, n] / behind - layer.gate_proj.weight[unit], inner[n])
        change(layer.up_proj, n, reads[:, n] / behind - layer.up_proj.weight[unit], inner[n])
        change(layer.down_proj, n, inner[n], up - layer.down_proj.weight[:, unit], 20.0)
    with torch.no_grad():
        errors = torch.stack([error(found, rows) for rows in groups]).mean(0)
    return dict(zip(KINDS, [round(float(e), 3) for e in errors], strict=True))


__all__ = ["Gathering", "Rows", "change", "error", "fit", "look", "prepare", "ridge"]
