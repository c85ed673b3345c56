"""Trains the last layer of an adapter alone: `python -m training.last_layer ADAPTER --to FOLDER`.

It has two aims. A judge on a pretrained trunk thinks less of a text the more phrases were left out of its sentences,
whatever it is asked: what is copied is likely. People's coherence and relevance do not follow this. How much was left
out (new neighbours of words) can be read in the judge's own states, linearly, so its last layer can give back what the
layers before it take off. And a judge that knows the labels of common scales by heart has to read all others in the
form; short forms, most with a scale made of words, teach this. The labels are the adapter's own answers, those for
coherence and relevance moved, or the tree's where it cannot read the scale. All other answers are to stay as they are.
Only the rows of labels pass through the last layer, on states that are computed once (looks 49 to 55 in LOG.md).
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from training import corpus, export, measure, packing
from training.model import rope
from training.packing import MAX_LABELS, Packed
from training.recipes import FEW, Adapting
from training.smol import Adapter, Smol
from training.tasks import DIMENSIONS, Maker, Tree
from training.teacher import FREED

AMOUNT = 2.0  # what a text gains whose words are all new neighbours, in shares of the scale
VERSIONS = 0.6  # share of summaries' trees with undamaged texts that say the same with more or less left out
#: How often each kind of tree is drawn: those that ask for nothing new hold the rest where it is.
WEIGHTS = {name: weight / 3 for name, weight in FEW.items()} | {"coherence": 20, "relevance": 20, "consistency": 8}
READ = 0.5  # mass of the labels below which the adapter cannot read a scale, and says nothing worth keeping
HELD = 2.5  # weight of rows that are to stay, so that criteria part
#: Forms that teach to read a scale: short ones, as only their labels count. One tree in four is long.
SHORT = dict.fromkeys(FEW, 1.0) | {"coherence": 5.0, "relevance": 3.0, "consistency": 2.0, "fluency": 6, "unseen": 6}
WORDED = 0.92  # share of these whose scale is made of words
LONGEST_SHORT, TEXTS = 450, 2  # their tokens and candidates at most
EXPECTED = 200.0  # weight of the squared error of the mean, against the chances
MASS = 2.0  # weight of the labels' mass, against the same
TREES = 18  # a step
WORKERS = 2
AVERAGE = 0.985  # of the weights, from step to step
UNSET = torch.empty(0)  # until the adapter has answered


@dataclass
class Rows:
    """The rows of one tree where labels are read, and what is wanted there. Padded on the right to the most labels."""

    states: Tensor  # [tokens, hidden] in front of the last layer, float16
    positions: Tensor  # [tokens]
    at: Tensor  # [rows] which of the tokens
    seen: Tensor  # [rows, tokens] what a row's token attends to
    labels: Tensor  # [rows, labels] token ids
    real: Tensor  # the same: no padding
    values: Tensor  # the same: from 0 to 1
    valued: Tensor  # [rows] whether the row tells a scale's values
    wanted: Tensor = UNSET  # [rows, labels] chances
    expected: Tensor = UNSET  # [rows] their mean value
    weight: Tensor = UNSET  # [rows] how much it counts
    reading: bool = False  # whether the mass of its labels counts


def shares(values: list[float]) -> list[float]:
    """Bring a scale's values to 0 and 1."""
    low, span = min(values), max(values) - min(values)
    return [(value - low) / (span or 1.0) for value in values]


def moved(chances: Tensor, values: Tensor, expected: Tensor) -> Tensor:
    """Move chances to an expectation by an exponential factor: the nearest distribution that has it."""
    low, high = torch.full_like(expected, -40.0), torch.full_like(expected, 40.0)
    for _ in range(40):
        middle = (low + high) / 2
        found = chances * (middle[:, None] * (values - 0.5)).exp()
        found = found / found.sum(-1, keepdim=True)
        below = (found * values).sum(-1) < expected
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return found


def gains(tree: Tree, amount: float = AMOUNT) -> list[float]:
    """Give what every question of every leaf is to gain: among a tree's texts that is nothing on average."""
    asked = [tree.concept, *(question.dimension for question in tree.leaves[0].more)]
    amounts = [amount * (dimension in FREED) for dimension in asked]
    if tree.concept not in DIMENSIONS or not tree.sourced or not any(amounts):
        return [0.0] * (len(tree.leaves) * len(asked))
    source = measure.Source(corpus.sentences(tree.source))
    new = [None if leaf.fixed else source.new_neighbours(corpus.sentences(leaf.body)) for leaf in tree.leaves]
    free = [share for share in new if share is not None]
    mean = sum(free) / max(1, len(free))
    return [0.0 if share is None else own * (share - mean) for share in new for own in amounts]


def rows(
    tree: Tree, packed: Packed, net: Smol, dtype: torch.dtype, amount: float = AMOUNT, reading: bool = False
) -> Rows:
    """Read a tree up to the last layer, and say what is wanted of it."""
    batch = packing.collate_tree(packed)
    real, trunk, length = batch.real(), len(packed.trunk), batch.leaves.shape[2]
    inside = torch.full((len(batch.ids()),), -1).index_copy(0, real, torch.arange(len(real)))
    at = inside[[trunk + leaf * length + place for leaf, place, _, _ in packed.labels]]
    leaf, depth = (real - trunk).div(length, rounding_mode="floor"), (real - trunk) % length
    seen = (real < trunk) | (leaf == leaf[at, None]) & (depth <= depth[at, None])
    labels = torch.zeros(len(at), MAX_LABELS, dtype=torch.long)
    known, values, targets = labels.bool(), labels.float(), labels.float()
    for row, (own, (_, _, ids, target)) in enumerate(zip(packed.values, packed.labels, strict=True)):
        labels[row, : len(ids)], known[row, : len(ids)] = torch.tensor(ids), True
        values[row, : len(ids)], targets[row, : len(ids)] = torch.tensor(shares(own)), torch.tensor(target)
    ranked = torch.tensor(packed.ranks)
    valued = torch.zeros(len(at), dtype=torch.bool).index_fill(0, ranked, True)
    with torch.no_grad():
        states = net.before_last(batch, dtype).half()
        found = Rows(states, batch.positions()[real], at, seen, labels, known, values, valued)
        chances = net.logits(final(net, found)).softmax(-1).gather(1, labels) * known
    if chances[ranked].sum(-1).mean() < READ:  # what it says of such a scale is no expectation to keep
        found.wanted, found.weight, found.reading = targets, torch.ones(len(at)), True
        found.valued, found.expected = torch.zeros_like(valued), torch.zeros(len(at))
        return found
    chances = chances / chances.sum(-1, keepdim=True)
    gain = torch.zeros(len(at)).index_copy(0, ranked, torch.tensor(gains(tree, amount)))
    asked = ((chances * values).sum(-1) + gain).clamp(0.01, 0.99)
    found.weight, found.reading = torch.where(gain == 0.0, HELD, 1.0), reading
    found.wanted = torch.where(gain[:, None] == 0.0, chances, moved(chances, values, asked))
    found.expected = (found.wanted * values).sum(-1)
    return found


def final(net: Smol, tree: Rows) -> Tensor:
    """Compute the last layer where labels are read, in float32: [rows, hidden]."""
    layer, x = net.layers[-1], tree.states.float()
    cos, sin = (part[:, None] for part in rope(tree.positions, net.shape.head_size, net.shape.theta, x.dtype))
    query, key, value = layer.heads(layer.input_layernorm(x), cos, sin)
    query = query[tree.at].unflatten(1, (key.shape[1], -1)) * net.shape.head_size**-0.5
    scores = torch.einsum("rghd,ngd->ghrn", query, key).masked_fill(~tree.seen, -math.inf)
    return net.norm(layer.after(x[tree.at], torch.einsum("ghrn,ngd->rghd", scores.softmax(-1), value)))


def loss(net: Smol, trees: list[Rows]) -> Tensor:
    """Compare what the last layer says with what is wanted: chances, their mean, and the mass of labels.

    All tokens are dear, so mass is taken of the first tree and of those that teach to read a scale.
    """
    total, count, lost = torch.zeros(()), sum(len(tree.at) for tree in trees), []
    for number, tree in enumerate(trees):
        hidden = final(net, tree)
        scores = torch.einsum("rd,rld->rl", hidden, net.embed_tokens.weight[tree.labels])
        scores = scores.masked_fill(~tree.real, -math.inf)
        if number == 0 or tree.reading:
            lost.append((net.logits(hidden).logsumexp(-1) - scores.logsumexp(-1)).mean())
        likely = scores.log_softmax(-1).masked_fill(~tree.real, 0.0)
        total = total - (tree.wanted * likely).sum(-1) @ tree.weight
        off = (likely.exp() * tree.values).sum(-1) - tree.expected
        total = total + EXPECTED * (off.square() * tree.valued) @ tree.weight
    return total / count + MASS * torch.stack(lost).mean()


def load(folder: Path) -> Smol:
    """Load an adapter, of which nothing learns yet."""
    return Smol(Adapter.of(folder)).load_trunk().load_adapter(folder).requires_grad_(False)


def short(recipe: Adapting, maker: Maker) -> tuple[Tree, Packed] | None:
    """Draw a short form with few candidates; None where it does not fit."""
    tree = maker.tree()
    if not tree or not tree.leaves:
        return None
    tree.leaves = maker.rng.sample(tree.leaves, min(TEXTS, len(tree.leaves)))
    return packing.fit(tree, recipe.tokenizer(), maker.rng, LONGEST_SHORT, len(tree.leaves))


def read(folder: Path, minutes: float, amount: float, kept: Path, seed: int) -> Path:
    """Draw trees for so many minutes, two at least, read them up to the last layer, and keep them in a file."""
    torch.set_num_threads(1)
    recipe, net, rng = Adapting(), load(folder), random.Random(seed)
    found: list[Rows] = []
    long, brief = recipe.maker("train", rng), recipe.maker("train", rng)
    long.weights, long.versions, long.writing = WEIGHTS, VERSIONS, 0.0
    brief.weights, brief.words, brief.count = SHORT, (25, 60), 3
    brief.writing, brief.several, brief.worded = 0.0, 0.0, WORDED
    ends = time.monotonic() + 60 * minutes
    while len(found) < 2 or time.monotonic() < ends:
        reading = len(found) % 4 > 0
        drawn = short(recipe, brief) if reading else recipe.fresh(long)
        if drawn and drawn[1].leaves:
            found.append(rows(*drawn, net, recipe.dtype, amount, reading))
    file = kept / f"{seed}.pt"
    torch.save(found, file)
    return file


def fit(net: Smol, trees: list[Rows], steps: int, rate: float, rng: random.Random) -> dict[str, Tensor]:
    """Train the maps of the last layer; give the running mean of what they are from step to step."""
    maps = {name: p.requires_grad_() for name, p in net.layers[-1].named_parameters() if "lora_" in name}
    means = {name: p.detach().clone() for name, p in maps.items()}
    optimizer = torch.optim.AdamW(maps.values(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    begun, waiting = time.monotonic(), iter(list[Rows]())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 50, (steps - step) / (0.6 * steps))
        batch = list(itertools.islice(waiting, TREES))
        if len(batch) < TREES:
            waiting = iter(rng.sample(trees, len(trees)))
            batch += itertools.islice(waiting, TREES - len(batch))
        off = loss(net, batch)
        optimizer.zero_grad()
        off.backward()
        nn.utils.clip_grad_norm_(maps.values(), 1.0)
        optimizer.step()
        for name, p in maps.items():
            means[name].lerp_(p.detach(), 1.0 - AVERAGE if step > 60 else 1.0)
        if step % 50 == 0:
            print(f"step {step}, {time.monotonic() - begun:.0f} s, loss {off.item():.3f}", flush=True)
    return means


def learn(folder: Path, files: list[Path], steps: int, rate: float, seed: int) -> dict[str, Tensor]:
    """Train on the kept trees, in an order of this seed."""
    torch.set_num_threads(1)
    trees = [tree for file in files for tree in torch.load(file, weights_only=False)]
    return fit(load(folder), trees, steps, rate, random.Random(seed))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.last_layer", description=__doc__)
    parser.add_argument("adapter", type=Path, metavar="ADAPTER")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=25.0, help="of reading trees")
    parser.add_argument(
        "--amount",
        type=float,
        default=AMOUNT,
        help="what a text gains for new neighbours; 0: learn to read scales alone",
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.to.exists():
        parser.error(f"{options.to} exists; name a new folder")
    net, seeds = load(options.adapter), [options.seed * WORKERS + n for n in range(WORKERS)]
    with (
        TemporaryDirectory(dir=corpus.CACHE_DIR) as kept,
        ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        files = list(pool.map(partial(read, options.adapter, options.minutes, options.amount, Path(kept)), seeds))
        found = list(pool.map(partial(learn, options.adapter, files, options.steps, options.lr), seeds))
    # the same trees in two orders: the mean has less of either order in it
    means = {name: torch.stack([own[name] for own in found]).mean(0) for name in found[0]}
    net.layers[-1].load_state_dict(means, strict=False)
    export.write_adapter(net, options.to)


if __name__ == "__main__":
    main()
