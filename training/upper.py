"""Teaches an adapter to read scales, in its upper layers alone: `python -m training.upper ADAPTER --to FOLDER`.

A judge that knows the labels of common scales by heart has to read all others in the form. Trees of few texts, most
with a scale made of words, teach this. The labels are the adapter's own answers, or the tree's where it cannot read the
scale and for traps; long trees hold all other answers where they are, and lists of steps are written as they are
taught. The states before the first of these layers are computed once, and only rows of labels pass through the last.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import multiprocessing
import random
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from safetensors.torch import load_file
from torch import Tensor, distributed, nn

from geval_local.models.fingerprint import ADAPTER_WEIGHTS
from training import corpus, export, packing, wordings
from training.model import Batch, rope
from training.packing import MAX_LABELS, Packed
from training.recipes import FEW, Adapting
from training.smol import SHAPE, Adapter, Smol
from training.tasks import Maker, Tree

VERSIONS = 0.6  # share of the long trees of summaries with undamaged texts, as systems' own differ little
#: How often each kind of long tree is drawn.
WEIGHTS = {name: weight / 3 for name, weight in FEW.items()} | {"coherence": 20, "relevance": 20, "consistency": 12}
READ = 0.5  # mass of the labels below which the adapter cannot read a scale, and says nothing worth keeping
HELD = 2.5  # weight of rows that are to stay
#: Forms that teach to read a scale: short trees, of few texts, as only their labels count. The others are long.
SHORT = dict.fromkeys(FEW, 1.0) | {"coherence": 10.0, "relevance": 7.0, "consistency": 7.0, "fluency": 5, "unseen": 2}
WORDED = 0.92  # share of these whose scale is made of words
LONGEST_SHORT, TEXTS = 1200, 3  # their tokens and candidates at most
WORDS = ((25, 140), (25, 140), (150, 430))  # of their sources, drawn alike: far from its scale a label is read worse
DRAWS = 100  # forms of one concept at most until one fits
EXPECTED = 200.0  # weight of the squared error of the mean, against the chances
MASS = 3.0  # weight of the labels' mass, against the same
LISTS = 0.06  # share of short forms with steps that ask for them; with a criterion that no preset has, all do
SUPPOSED = 0.8  # the mass of a scale that was not read yet, counted like one reading
LEAST = 0.1  # how often a tree is drawn whose labels have all of the mass; with a third of it, it is 1.1
TREES = 8  # of a process in a step
TOLD = 50  # steps between two lines that tell how far it is
WORKERS = 2
MOST_STEPS = 20  # tokens of a list of steps that are taught, about: all tokens are dear
AVERAGE = 0.985  # of the weights, from step to step
UNSET = torch.empty(0)  # until the adapter has answered


@dataclass
class Rows:
    """The rows of one tree where labels are read, and what is wanted there. Padded on the right to the most labels."""

    batch: Batch
    states: Tensor  # [tokens, hidden] in front of the first layer that learns, float16
    at: Tensor  # [rows] which of the tokens
    seen: Tensor  # [rows, tokens] what a row's token attends to
    labels: Tensor  # [rows, labels] token ids
    real: Tensor  # the same: no padding
    values: Tensor  # the same: from 0 to 1
    valued: Tensor  # [rows] whether the row tells a scale's values
    questions: int  # labels that are asked for; one of several tokens has several rows
    wanted: Tensor = UNSET  # [rows, labels] chances
    expected: Tensor = UNSET  # [rows] their mean value
    weight: Tensor = UNSET  # [rows] how much it counts
    reading: bool = False  # whether the mass of its labels counts
    lost: float = 0.0  # what of that mass a question lost when it was last read, as a log-probability


def shares(values: list[float]) -> list[float]:
    """Bring a scale's values to 0 and 1."""
    low, span = min(values), max(values) - min(values)
    return [(value - low) / (span or 1.0) for value in values]


def rows(
    tree: Tree,
    packed: Packed,
    net: Smol,
    dtype: torch.dtype,
    reading: bool = False,
    first: int = -1,
) -> Rows:
    """Read a tree up to the first layer that learns, and say what is wanted of it."""
    batch = packing.collate_trees([packed])
    real, trunk, length = batch.real(), len(packed.trunk), batch.leaves.shape[2]
    listed = [place for place, wanted in enumerate(packed.trunk_lm) if wanted == packing.STEPS and not packed.leaves]
    listed = listed[: -1 : 1 + len(listed) // MOST_STEPS] + listed[-1:]  # a list has to end, whatever else is left out
    # what follows in a list of steps is a label that has no others beside it
    labelled = [(place, [packed.trunk[place + 1]], [1.0], [0.0]) for place in listed]
    for (leaf, place, ids, target), own in zip(packed.labels, packed.values, strict=True):
        labelled.append((trunk + leaf * length + place, ids, target, shares(own)))
    order = torch.full((len(batch.ids()),), -1).index_copy(0, real, torch.arange(len(real)))
    at = order[[place for place, _, _, _ in labelled]]
    leaf_of = (real - trunk).div(length, rounding_mode="floor")
    seen = (torch.arange(len(real)) <= at[:, None]) & ((real < trunk) | (leaf_of == leaf_of[at, None]))
    labels = torch.zeros(len(at), MAX_LABELS, dtype=torch.long)
    known, values, targets = labels.bool(), labels.float(), labels.float()
    for row, (_, ids, target, own) in enumerate(labelled):
        labels[row, : len(ids)], known[row, : len(ids)] = torch.tensor(ids), True
        values[row, : len(ids)], targets[row, : len(ids)] = torch.tensor(own), torch.tensor(target)
    ranked = torch.tensor(packed.ranks, dtype=torch.long)
    valued = torch.zeros(len(at), dtype=torch.bool).index_fill(0, ranked, True)
    with torch.no_grad():
        questions = len(ranked) or len(at)  # of a list every row is one
        before = net.before(first, batch, dtype).half()
        found = Rows(batch, before, at, seen, labels, known, values, valued, questions)
        chances = net.logits(final(net, found, dtype, first)).softmax(-1).gather(1, labels) * known
        found.lost = -chances.sum(-1).clamp_min(1e-9).log().sum().item() / questions
    if not packed.leaves or chances[ranked].sum(-1).mean() < READ:  # what it says of such a scale is not to be kept
        found.wanted, found.reading = targets, True
        found.weight = torch.full((len(at),), float(bool(packed.leaves)))  # of a list only the mass counts
        found.valued, found.expected = torch.zeros_like(valued), torch.zeros(len(at))
        return found
    found.weight, found.reading = torch.full((len(at),), HELD), reading
    trap = torch.tensor([tree.leaves[leaf].fixed for leaf, _, _, _ in packed.labels])[:, None]
    found.wanted = torch.where(trap, targets, chances / chances.sum(-1, keepdim=True))
    found.expected = (found.wanted * values).sum(-1)
    return found


def final(net: Smol, tree: Rows, dtype: torch.dtype, first: int = -1) -> Tensor:
    """Compute the layers that learn, the last one where labels are read and in float32: [rows, hidden]."""
    x = net.between(tree.states.float(), first, tree.batch, dtype)
    layer, positions = net.layers[-1], tree.batch.positions()[tree.batch.real()]
    cos, sin = (part[:, None] for part in rope(positions, net.shape.head_size, net.shape.theta, x.dtype))
    query, key, value = layer.heads(layer.input_layernorm(x), cos, sin, tree.at)
    query = query.unflatten(1, (key.shape[1], -1)) * net.shape.head_size**-0.5
    scores = torch.einsum("rghd,ngd->ghrn", query, key).masked_fill(~tree.seen, -math.inf)
    return net.norm(layer.after(x[tree.at], torch.einsum("ghrn,ngd->rghd", scores.softmax(-1), value)))


def loss(net: Smol, trees: list[Rows], dtype: torch.dtype, first: int = -1) -> Tensor:
    """Compare what the layers say with what is wanted: chances, their mean, and the mass of labels.

    All tokens are dear, so mass is taken of the first tree and of those that teach to read a scale.
    """
    total, count = torch.zeros(()), max(1, sum(int((tree.weight > 0.0).sum()) for tree in trees))
    read: list[tuple[Rows, Tensor]] = []
    for number, tree in enumerate(trees):
        hidden = final(net, tree, dtype, first)
        scores = torch.einsum("rd,rld->rl", hidden, net.embed_tokens.weight[tree.labels])
        scores = scores.masked_fill(~tree.real, -math.inf)
        if number == 0 or tree.reading:
            read.append((tree, hidden))
        likely = scores.log_softmax(-1).masked_fill(~tree.real, 0.0)
        total = total - (tree.wanted * likely).sum(-1) @ tree.weight
        off = (likely.exp() * tree.values).sum(-1) - tree.expected
        total = total + EXPECTED * (off.square() * tree.valued) @ tree.weight
    # the head is the dearest matrix, so it is read once for all trees
    logits = net.logits(torch.cat([hidden for _, hidden in read]).to(dtype))
    lost = []
    for (tree, _), tokens in zip(read, logits.split([len(hidden) for _, hidden in read]), strict=True):
        # labels rounded like all tokens: of sums rounded in two ways a fit makes the labels' the larger one
        labels = tokens.gather(1, tree.labels).masked_fill(~tree.real, -math.inf)
        # within a label hardly anything is lost, so a mean of all rows would hide what labels of several tokens lose
        lost.append((tokens.logsumexp(-1) - labels.logsumexp(-1)).sum() / tree.questions)
        tree.lost = lost[-1].item()
    return total / count + MASS * torch.stack(lost).mean()


def load(folder: Path) -> Smol:
    """Load an adapter, of which nothing learns yet."""
    return Smol(Adapter.of(folder)).load_trunk().load_adapter(folder).requires_grad_(False)


def layer(name: str) -> int:
    """Tell which layer a map lies in."""
    return int(name.split("layers.")[1].split(".")[0])


def below(folder: Path, first: int) -> str:
    """Name what makes the states before a layer: trees that were read with it serve every adapter that has it."""
    maps = load_file(folder / ADAPTER_WEIGHTS)
    found = hashlib.sha256(f"{first}".encode())
    for name in sorted(name for name in maps if layer(name) < first):
        found.update(name.encode() + maps[name].numpy().tobytes())
    return found.hexdigest()[:16]


def short(recipe: Adapting, maker: Maker) -> tuple[Tree, Packed] | None:
    """Draw a short form with few candidates, or a list of steps; None where none fits.

    Its concept is drawn first, and forms of it until one fits: three in five of a summary with a short source do, every
    one of a tone.
    """
    name = maker.rng.choices(list(maker.weights), list(maker.weights.values()))[0]
    for _ in range(DRAWS):
        tree = maker.tree(name)
        if not tree:
            continue
        # the best text first: the label that a judge knows by heart, and takes for another scale's, is mostly the best
        leaves = sorted(tree.leaves, key=lambda leaf: (leaf.fixed, -leaf.quality))
        best, rest = leaves[:1], leaves[1:]  # a list of steps has no texts
        maker.rng.shuffle(rest)
        rest.sort(key=lambda leaf: not leaf.fixed)  # then the trap: in long trees, of long sources, it is seldom a copy
        tree.leaves = [*best, *rest][:TEXTS]
        fitted = packing.fit(tree, recipe.tokenizer(), maker.rng, LONGEST_SHORT, len(tree.leaves))
        if fitted:
            return fitted
    return None


def read(folder: Path, minutes: float, long: float, first: int, kept: Path, seed: int) -> Path:
    """Draw trees for so many minutes, two at least, read them up to the layers that learn, and keep them in a file.

    What lies there of this seed is not read again.
    """
    file = kept / f"{seed}.pt"
    if file.exists():
        print(f"{file} was read before, with that run's options; another --seed reads more", flush=True)
        return file
    torch.set_num_threads(1)
    recipe, net, rng = Adapting(), load(folder), random.Random(seed)
    found: list[Rows] = []
    full, brief = recipe.maker("train", rng), recipe.maker("train", rng)
    full.weights, full.versions, full.writing = WEIGHTS, VERSIONS, 0.0
    brief.weights, brief.count = SHORT, 3
    brief.writing, brief.several, brief.worded = LISTS, 0.0, WORDED
    listed = [[word.lower() for word in words] for words in wordings.USUAL]
    masses, brief.usual = [[SUPPOSED] for _ in listed], [(1.0 - SUPPOSED) ** 2] * len(listed)
    ends = time.monotonic() + 60 * minutes
    while len(found) < 2 or time.monotonic() < ends:
        reading, brief.words = rng.random() >= long, rng.choice(WORDS)
        drawn = short(recipe, brief) if reading else recipe.fresh(full)
        if drawn and (reading or drawn[1].leaves):
            found.append(rows(*drawn, net, recipe.dtype, reading, first))
            words = [label.lower() for label in drawn[0].scale.labels]
            if reading and drawn[1].leaves and words in listed:  # the less of a scale is read, the more it is drawn
                place = listed.index(words)
                masses[place].append(math.exp(-found[-1].lost))
                brief.usual[place] = (1.0 - statistics.mean(masses[place])) ** 2
    torch.save(found, file.with_suffix(".part"))
    return file.with_suffix(".part").rename(file)


def batch(trees: list[Rows], long: float, rng: random.Random) -> list[Rows]:
    """Draw the trees of a step: of those that teach to read mostly the ones that are neither known nor hopeless."""
    taught, held = [tree for tree in trees if tree.reading], [tree for tree in trees if not tree.reading]
    count = sum(rng.random() < long for _ in range(TREES)) if taught else TREES
    some = rng.sample(held, min(len(held), count))
    chances = [LEAST + tree.lost * math.exp(1.0 - tree.lost) for tree in taught]
    return some + (rng.choices(taught, chances, k=TREES - count) if taught else [])


def fit(
    net: Smol,
    trees: list[Rows],
    long: float,
    steps: int,
    rate: float,
    rng: random.Random,
    dtype: torch.dtype,
    first: int = -1,
) -> Iterator[dict[str, Tensor]]:
    """Train the maps of the upper layers, with the other processes if there are any.

    After every step give the running mean of what they are from step to step.
    """
    learning = range(len(net.layers))[first:]
    maps = {name: p for name, p in net.named_parameters() if ".lora_" in name and layer(name) in learning}
    means = {name: p.requires_grad_().detach().clone() for name, p in maps.items()}
    optimizer = torch.optim.AdamW(maps.values(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 50, (steps - step) / (0.6 * steps))
        optimizer.zero_grad()
        loss(net, batch(trees, long, rng), dtype, first).backward()
        if distributed.is_initialized():
            for p in maps.values():
                distributed.all_reduce(p.grad)
                p.grad /= distributed.get_world_size()
        nn.utils.clip_grad_norm_(maps.values(), 1.0)
        optimizer.step()
        for name, p in maps.items():
            means[name].lerp_(p.detach(), 1.0 - AVERAGE if step > 60 else 1.0)
        yield means


def learn(
    rank: int,
    folder: Path,
    to: Path,
    kept: Path,
    meeting: Path,
    long: float,
    steps: int,
    rate: float,
    first: int,
    seed: int,
) -> None:
    """Train on the kept trees, as one of the processes; the first writes the adapter, and it so far now and then."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=WORKERS)
    trees = [tree for file in sorted(kept.glob("*.pt")) for tree in torch.load(file, weights_only=False)]
    net, begun = load(folder), time.monotonic()
    for step, means in enumerate(
        fit(net, trees, long, steps, rate, random.Random(seed + rank), Adapting.dtype, first), 1
    ):
        if rank == 0 and step in {steps, *range(TOLD, steps, TOLD)}:
            mass = math.exp(-statistics.mean(tree.lost for tree in trees))
            print(f"step {step}, {time.monotonic() - begun:.0f} s, mass {mass:.3f}", flush=True)
            found = load(folder)
            found.load_state_dict(means, strict=False)
            export.write_adapter(found, to)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.upper", description=__doc__)
    parser.add_argument("adapter", type=Path, metavar="ADAPTER")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--first", type=int, default=28, help="the first layer that learns; 29: the last one alone")
    parser.add_argument("--minutes", type=float, default=9.0, help="of reading trees")
    parser.add_argument(
        "--trees",
        type=Path,
        metavar="FOLDER",
        help="keep what is read there: runs with the same layers below learn from it too, other answers held as then",
    )
    parser.add_argument("--long", type=float, default=0.35, help="share of long trees, which hold what is said")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not 0.0 <= options.long <= 1.0:
        parser.error(f"--long {options.long}: a share from 0 to 1")
    changed = range(Adapter.of(options.adapter).first, SHAPE.layers)
    if options.first not in changed:
        parser.error(f"--first {options.first}: the adapter changes layers {changed[0]} to {changed[-1]}")
    try:
        options.to.mkdir(parents=True)  # now, so that nothing is there when it is written to
    except FileExistsError:
        parser.error(f"{options.to} exists; name a new folder")
    seeds = [options.seed * WORKERS + n for n in range(WORKERS)]
    with TemporaryDirectory(dir=corpus.CACHE_DIR) as own:
        kept, meeting = (options.trees or Path(own)) / below(options.adapter, options.first), Path(own) / "meeting"
        kept.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
            one = partial(read, options.adapter, options.minutes, options.long, options.first, kept)
            list(pool.map(one, seeds))
        sizes = (options.long, options.steps, options.lr, options.first, options.seed)
        torch.multiprocessing.spawn(learn, (options.adapter, options.to, kept, meeting, *sizes), WORKERS)


if __name__ == "__main__":
    main()
