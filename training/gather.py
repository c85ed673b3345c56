"""A head start for the adapter: heads that read, at the label, what the trunk noticed at the candidate's words.

Some hundred trees teach a pretrained trunk no way back from the label to the candidate: no head looks there. So one
group of the last layer's heads is given up and starts anew. Its key tells the candidate's tokens from all others
(logistic regression), and its value is what, gathered so, tells the teacher's values within a tree (ridge regression):
one direction for all criteria, since one for each kind told no more of other texts. It is written along the direction
from low labels to high ones. All of it is an ordinary setting of the low-rank maps, which training is free to change.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from training.model import Batch
from training.smol import Adapted, Smol
from training.states import Tree

SHARP = 1.0  # by how much a candidate's token scores above another: more, and a few words would stand for all
RISE = 8.0  # by how much "5" gains on "1" from a value of 1 against a value of 0
#: How high the labels stand; short scales begin low, so that the steps are longer there.
LEVELS = {"0": -0.4, "1": 0.0, "2": 0.3, "3": 0.55, "4": 0.78, "5": 1.0, "6": 1.15, "7": 1.3, "8": 1.45, "9": 1.6}
PAIRS = ("Yes No", "Good Bad", "high low")  # the better one first: as far apart as "5" and "1"


def ridge(x: Tensor, y: Tensor, strength: float) -> Tensor:
    """Solve for the directions that tell y from x."""
    left = x.T @ x
    left += strength * left.diagonal().mean() * torch.eye(len(left))
    return torch.linalg.solve(left, x.T @ y)


def separate(x: Tensor, y: Tensor, strength: float = 1e-3) -> Tensor:
    """Solve for the direction along which x is positive where y is 1 and negative where it is 0."""
    way = torch.zeros(x.shape[1], requires_grad=True)
    weight = torch.where(y > 0, 0.5 / y.mean(), 0.5 / (1 - y.mean()))
    solver = torch.optim.LBFGS([way], max_iter=60, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        found = F.binary_cross_entropy_with_logits(x @ way, y, weight) + strength * way.square().sum()
        found.backward()
        return found

    solver.step(loss)
    return way.detach()


def change(module: Adapted, rank: int, row: Tensor, column: Tensor, shift: float = 1.0) -> None:
    """Add the product of a column and a row to a weight, as one rank of its maps; `shift` goes from column to row."""
    module.lora_A.data[rank] = row * shift
    module.lora_B.data[:, rank] = column / module.scale / shift


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


def _candidates(tree: Tree) -> Tensor:
    """Tell of every token whether it is a candidate's."""
    leaves = (flag for flags in tree.packed.leaf_flags for flag in flags)
    return torch.tensor([0.0] * len(tree.packed.trunk) + [float(flag >= 0) for flag in leaves])


def own_tokens(tree: Tree) -> list[tuple[Tensor, Tensor, int]]:
    """Give of every leaf: the tokens that its label sees, which of them are the candidate's, and the label's place."""
    start, found = len(tree.packed.trunk), []
    for leaf, flags, row in zip(tree.packed.leaves, tree.packed.leaf_flags, tree.packed.ranks, strict=True):
        label = tree.packed.labels[row][1]
        seen = torch.cat((torch.arange(len(tree.packed.trunk)), torch.arange(start, start + label + 1)))
        own = torch.cat((torch.zeros(len(tree.packed.trunk)), (torch.tensor(flags[: label + 1]) >= 0).float()))
        found.append((seen, own, start + label))
        start += len(leaf)
    return found


def prepare(net: Smol, trees: Sequence[Tree], code: Tokenizer, strength: float = 6.0) -> dict[str, float]:
    """Set up the heads; give the share of the candidate in what they see, and how well this tells the values."""
    if net.first != net.shape.layers - 1:
        raise SystemExit("The heads start in the last layer: nothing stands between them and the label.")
    trees = [tree for tree in trees if tree.packed.leaves]
    inputs = [F.rms_norm(tree.states.float(), tree.states.shape[-1:]) for tree in trees]
    parts = [own_tokens(tree) for tree in trees]
    tokens, own = torch.cat(inputs), torch.cat([_candidates(tree) for tree in trees])
    key = separate(tokens, own)
    key *= SHARP / float((tokens @ key)[own > 0].mean() - (tokens @ key)[own < 1].mean())
    labels = torch.cat([data[[at for *_, at in leaves]] for data, leaves in zip(inputs, parts, strict=True)])
    query = ridge(labels, torch.ones(len(labels)), 0.003)

    shares: list[float] = []
    within, truth, middle = [], [], torch.zeros(net.shape.hidden)
    for tree, data, leaves in zip(trees, inputs, parts, strict=True):
        rows = []
        for seen, mine, _ in leaves:
            looked = (data[seen] @ key).softmax(0)
            shares.append(float(looked @ mine))
            rows.append(looked @ data[seen])
        gathered, quality = torch.stack(rows), torch.tensor(tree.packed.quality)
        within.append(gathered - gathered.mean(0))
        truth.append(quality - quality.mean())
        middle += gathered.mean(0)
    x, y, middle = torch.cat(within), torch.cat(truth), F.normalize(middle, dim=0)
    x = x - (x @ middle)[:, None] * middle  # the average text has the value 0
    value = ridge(x, y, strength)
    told = x @ value
    value *= (told @ y) / (told @ told)  # so strong a ridge gives the way and not the length

    layer, size, shared = net.layers[-1], net.shape.head_size, net.shape.shared
    slowest = size // 2 - 1  # the rotary pair that does not feel the distance
    weight = layer.input_layernorm.weight
    # the heads whose output weighs least are given up for this
    output = layer.o_proj.weight.view(net.shape.hidden, -1, shared, size)
    group = int(output.pow(2).sum((0, 2, 3)).argmin())
    narrow, wide = torch.eye(net.shape.hidden // shared), torch.eye(net.shape.hidden)
    up = low_to_high(net, code) * RISE / shared
    for channel in range(size):
        at = group * size + channel
        wanted = key / weight * size**0.5 if channel == slowest else torch.zeros_like(key)
        change(layer.k_proj, channel, wanted - layer.k_proj.weight[at], narrow[at])
        wanted = value / weight if channel == 0 else torch.zeros_like(key)
        change(layer.v_proj, channel, wanted - layer.v_proj.weight[at], narrow[at])
    for number in range(shared):
        head = (group * shared + number) * size
        change(layer.q_proj, number, query / weight - layer.q_proj.weight[head + slowest], wide[head + slowest])
        change(layer.o_proj, number, wide[head], up - layer.o_proj.weight[:, head], 20.0)
    return {
        "own": round(sum(shares) / len(shares), 3),
        "value": round(float(torch.corrcoef(torch.stack((told, y)))[0, 1]), 3),
    }


__all__ = ["change", "prepare", "ridge", "separate"]
