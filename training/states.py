"""Trees that the frozen layers have read once: what they hand to the adapter is kept, and training starts there.

A tree is a file: its tokens and targets, and the state of every token in front of the adapter's first layer, float16.
A CPU core reads some 300 tokens a second through the trunk; the layer above it learns from thousands.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor

from training import packing
from training.corpus import CACHE_DIR
from training.model import Batch
from training.packing import Packed, Tensors
from training.smol import Smol, tokenizer
from training.tasks import Maker

FOLDER = CACHE_DIR / "trees"
MARKS = 2  # what the trunk tells of a token: its log-probability behind its source, and alone
LONG = 900  # tokens of a tree; a longer one costs twice as much and has no more labels


@dataclass
class Tree:
    """A packed tree and the states of its tokens, the trunk's first, then each leaf's."""

    packed: Packed
    states: Tensor
    told: Tensor | None = None  # by token: log-probability in the form and alone; NaN outside summaries of a source


def draw(maker: Maker, rng: random.Random) -> Packed:
    """Draw a tree of a fit length."""
    code = tokenizer().backend_tokenizer
    while True:
        tree = maker.tree()
        packed = packing.pack(tree, code, rng, 0.0) if tree else None
        if packed is None or len(packed.trunk) >= LONG:
            continue
        if len(packed.trunk) + sum(map(len, packed.leaves)) < LONG or rng.random() < 0.25:
            return packed


def told(net: Smol, packed: Packed, states: Tensor) -> Tensor:
    """Read how likely every token of a candidate is behind its source, which the form shows, and alone."""
    code = net.embed_tokens.weight
    start = len(packed.trunk)
    found = torch.full((len(states), MARKS), float("nan"))
    if not (packed.measured and packed.sourced and packed.leaves):
        return found
    batch = packing.collate([packed], random.Random(0)).batch
    ids, at, rows = batch.ids()[batch.real()], [], []
    for leaf, flags in zip(packed.leaves, packed.leaf_flags, strict=True):
        own = [start + n for n, flag in enumerate(flags) if flag >= 0]
        at += own
        rows.append(ids[own])
        start += len(leaf)
    places = torch.tensor(at)
    opens = len(packed.trunk) + torch.tensor([0, *map(len, packed.leaves)]).cumsum(0)
    before = torch.where(torch.isin(places, opens), len(packed.trunk), places) - 1
    with torch.no_grad():
        batch.states = states
        hidden = net.frozen(batch)[before]
        found[places, 0] = F.linear(hidden, code).log_softmax(-1).gather(1, ids[places, None])[:, 0]
        longest = max(map(len, rows))
        leaves = torch.zeros(1, len(rows), longest, dtype=torch.long)
        for row, tokens in zip(leaves[0], rows, strict=True):
            row[: len(tokens)] = tokens
        alone = Batch(torch.zeros(1, 1, dtype=torch.long), leaves, torch.tensor([1]), torch.tensor([[*map(len, rows)]]))
        alone.states = net.below(alone)
        hidden = net.frozen(alone)
        starts = list(itertools.accumulate(map(len, rows), initial=1))
        before = torch.tensor([n for a, b in itertools.pairwise(starts) for n in [0, *range(a, b - 1)][: b - a]])
        found[places, 1] = F.linear(hidden[before], code).log_softmax(-1).gather(1, ids[places, None])[:, 0]
    return found


def fill(maker: Maker, net: Smol, folder: Path, numbers: Iterable[int]) -> None:
    """Write the trees of these numbers; `net` is the frozen trunk, of which the adapter's first layer is known."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        path = folder / f"{number:05}.pt"
        if path.exists():
            continue
        maker.rng.seed(f"{folder.name}/{number}")
        maker.turn = number  # every source once before any comes again
        packed = draw(maker, maker.rng)
        with torch.no_grad():
            states = net.below(packing.collate([packed], maker.rng).batch)
        new = path.with_suffix(f".{os.getpid()}")
        torch.save({"packed": packed, "states": states.half(), "told": told(net, packed, states)}, new)
        new.replace(path)
        if number % 20 == 0:
            print(f"{path.name}: read", flush=True)


def load(folder: Path, known: int = 0) -> list[Tree]:
    """Read the trees from number `known` on."""
    found = []
    for path in sorted(folder.glob("*.pt"))[known:]:
        kept = torch.load(path, weights_only=False)  # our own file, written above
        found.append(Tree(kept["packed"], kept["states"], kept["told"]))
    return found


def stream(folder: Path, rng: random.Random) -> Iterator[Tensors]:
    """Give trees in random order, all once before any comes again; new files are taken in between."""
    trees: list[Tree] = []
    while True:
        trees += load(folder, len(trees))
        if not trees:
            raise SystemExit("No tree has been read: python -m training.prepare smol")
        for tree in rng.sample(trees, len(trees)):
            yield collate(tree, rng)


def agreement(net: Smol, trees: Sequence[Tree]) -> dict[str, tuple[float, float, int]]:
    """Give, by concept: Spearman of the labels' and the teacher's values within trees, label mass, number of trees."""
    rng, found = random.Random(1), defaultdict[str, list[tuple[float, float]]](list)
    for tree in trees:
        if len(set(tree.packed.quality)) < 3:
            continue
        data = collate(tree, rng)
        with torch.no_grad():
            hidden = net(data.batch, wanted=data.label_at.unique())[data.label_at]
            chances = net.logits(hidden).softmax(-1).gather(1, data.label_ids)
        own = chances * (data.label_target > 0)
        expected = ((own * data.label_values).sum(1) / own.sum(1))[tree.packed.ranks]
        rank = float(spearmanr(expected, tree.packed.quality).statistic)
        found[tree.packed.concept].append((rank, float(own.sum(1).mean())))
    return {name: (*map(mean, zip(*rows, strict=True)), len(rows)) for name, rows in sorted(found.items())}


def collate(tree: Tree, rng: random.Random) -> Tensors:
    """Make a tree ready for the network."""
    data = packing.collate([tree.packed], rng)
    data.batch.states = tree.states
    return data
