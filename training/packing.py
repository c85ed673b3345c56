"""Trees to tensors: token ids, where each loss applies, and batches of trees of like length."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from tokenizers import Tokenizer
from torch import Tensor

from training.damage import ERROR, FLAGS, FOREIGN, UNSUPPORTED
from training.model import Batch
from training.tasks import END_OF_TURN, Tree
from training.tokenizer import BEGIN, END

MAX_LABELS = 12
# Rare flags count more: one word in thirty is an error, and an error shows only to a model that knows the language.
FLAG_WEIGHT = (4.0, 1.0, 1.0, 2.0, 2.0, 1.0)
READ_WEIGHT = (2.0, 2.0, 1.0, 1.0)
ALONE_WEIGHT = (4.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 1.0, 0.0)  # what can be seen without a source
STEPS = 2  # in `trunk_lm`: a token of the numbered list, whose loss is never thinned out
GATHER = -2  # a token behind the candidate, where the share of every flag is to be known


@dataclass
class Packed:
    """One tree as token ids. `leaf_flags` is -1 where the auxiliary loss does not apply."""

    trunk: list[int]
    trunk_lm: list[int]
    leaves: list[list[int]]
    leaf_flags: list[list[int]]
    leaf_lm: list[list[int]]
    labels: list[tuple[int, int, list[int], list[float]]]  # leaf, position, token ids, probabilities
    values: list[list[float]]
    quality: list[float]  # of each question of each leaf
    ranks: list[int] = field(default_factory=list)  # of the same: which of the labels' rows carries the order
    asked: list[int] = field(default_factory=list)  # of the same: the question's number in its form
    concept: str = ""
    sourced: bool = True
    measured: bool = False
    told: list[list[float]] | None = None  # log-probability of every token of a candidate, by a pretrained trunk
    states: Tensor | None = None  # what frozen layers made of the tokens

    @property
    def flag_weight(self) -> tuple[float, ...]:
        """How much each flag counts in this tree."""
        if not self.sourced:
            return ALONE_WEIGHT
        return FLAG_WEIGHT + (READ_WEIGHT if self.measured else (0.0,) * len(READ_WEIGHT))


@dataclass
class Tensors:
    """A batch with the positions and targets of every loss."""

    batch: Batch
    lm_at: Tensor
    lm_target: Tensor
    steps_at: Tensor
    steps_target: Tensor
    flag_at: Tensor
    flag_target: Tensor
    flag_weight: Tensor
    count_at: Tensor
    count_target: Tensor
    count_weight: Tensor
    label_at: Tensor
    label_ids: Tensor
    label_target: Tensor
    label_share: Tensor  # how much each counts: every tree alike
    pair: Tensor  # [n, 2] rows of the labels: the first is better than the second
    pair_share: Tensor
    label_values: Tensor
    tokens: int
    told: Tensor  # by flag_at: the token's log-probability, NaN where no teacher has read it
    worth: Tensor  # by count_at: the mean of those


def pack(tree: Tree, tokenizer: Tokenizer, rng: random.Random, source_lm: float) -> Packed | None:
    begin = tokenizer.token_to_id(BEGIN)  # None where a tokenizer puts nothing in front
    end = next(i for i in map(tokenizer.token_to_id, (END, END_OF_TURN)) if i is not None)
    encoded = tokenizer.encode_batch(
        [tree.trunk, *[leaf.before + leaf.body + leaf.tail for leaf in tree.leaves]], add_special_tokens=False
    )
    trunk = encoded[0]
    steps_wanted = tree.unseen or not tree.leaves or rng.random() < 0.5
    source_wanted = rng.random() < source_lm
    lm = [0]
    for start, stop in trunk.offsets:
        in_steps = steps_wanted and tree.steps[0] <= start and stop <= tree.steps[1] + 2 and tree.steps[1] > 0
        in_source = source_wanted and tree.source_span[0] <= start and stop <= tree.source_span[1]
        lm.append(STEPS if in_steps else int(in_source))
    paths = {label: tokenizer.encode(" " + label, add_special_tokens=False).ids for label in tree.scale.labels}
    # a label that opens another one ("1" of "10") is told apart by what ends it
    closed = {
        label: [*ids, end] if any(o != ids and o[: len(ids)] == ids for o in paths.values()) else ids
        for label, ids in paths.items()
    }
    packed = Packed(
        trunk.ids if begin is None else [begin, *trunk.ids], [*lm[1 + (begin is None) :], 0], [], [], [], [], [], []
    )
    packed.concept, packed.sourced, packed.measured = tree.concept, tree.sourced, tree.measured
    value_of = dict(zip(tree.scale.labels, tree.scale.values, strict=True))
    for number, (leaf, code) in enumerate(zip(tree.leaves, encoded[1:], strict=True)):
        body = (len(leaf.before), len(leaf.before) + len(leaf.body))
        flags = []
        for start, stop in code.offsets:
            if start >= body[0] and stop <= body[1]:
                bits = 0
                for bit in leaf.flags[start - body[0] : stop - body[0]]:
                    bits |= bit
                flags.append(bits)
            else:
                flags.append(GATHER if start >= body[1] else -1)
        clean = [int(f >= 0 and not f & (ERROR | UNSUPPORTED | FOREIGN)) for f in flags]
        ids = list(code.ids)
        asked = [("", leaf.target, leaf.quality), *((q.cue, q.target, q.quality) for q in leaf.more)]
        for question, (cue, target, quality) in enumerate(asked):
            further = tokenizer.encode(cue, add_special_tokens=False).ids if cue else []
            walked = closed[rng.choices(list(target), list(target.values()))[0]]
            ids += further
            alive = list(closed)
            ranked = False
            for depth, token in enumerate(walked):  # the chances of every token on the way to one label
                children: dict[int, list[str]] = {}
                for label in alive:
                    children.setdefault(closed[label][depth], []).append(label)
                masses = [sum(target[label] for label in labels) for labels in children.values()]
                if len(children) > 1 and not ranked:  # the first token that tells labels apart carries the order
                    ranked = True
                    packed.ranks.append(len(packed.labels))
                    # of labels that begin alike ("Strongly") the one that is meant counts
                    sums = (sum(target[label] * value_of[label] for label in labels) for labels in children.values())
                    means = [total / mass for total, mass in zip(sums, masses, strict=True)]
                else:
                    means = [0.0] * len(children)
                packed.labels.append((number, len(ids) - 1, list(children), [m / sum(masses) for m in masses]))
                packed.values.append(means)
                alive = children[token]
                if depth < len(walked) - 1:
                    ids.append(token)
            packed.quality.append(quality)
            packed.asked.append(question)
        flags += [-1] * (len(ids) - len(flags))
        clean += [0] * (len(ids) - len(clean))
        packed.leaves.append(ids)
        packed.leaf_flags.append(flags)
        packed.leaf_lm.append([*clean[1:], 0])
    return packed


def fit(tree: Tree, tokenizer: Tokenizer, rng: random.Random, longest: int, fewest: int) -> tuple[Tree, Packed] | None:
    """Pack a tree; of one that is too long keep as many candidates as fit, None if these are too few."""
    packed = pack(tree, tokenizer, rng, 0.0)
    if packed is None or not packed.leaves or len(packed.trunk) + sum(map(len, packed.leaves)) <= longest:
        return (tree, packed) if packed else None
    room = (longest - len(packed.trunk)) // max(map(len, packed.leaves))
    if room < fewest:
        return None
    tree = replace(tree, leaves=rng.sample(tree.leaves, min(room, len(tree.leaves))))
    packed = pack(tree, tokenizer, rng, 0.0)
    return (tree, packed) if packed else None


def collate(trees: list[Packed], rng: random.Random) -> Tensors:
    batch = collate_trees(trees)
    (b, t), (_, k, length) = batch.trunk.shape, batch.leaves.shape
    lm_at, lm_target, flag_at, flag_target = [], [], [], []
    steps_at: list[int] = []
    steps_target: list[int] = []
    flag_weight: list[tuple[float, ...]] = []
    count_weight: list[tuple[float, ...]] = []
    count_at: list[int] = []
    count_target: list[list[float]] = []
    told: list[float] = []
    worth: list[float] = []
    label_at, label_ids, label_target, label_values, pairs = [], [], [], [], []
    label_share: list[float] = []
    pair_share: list[float] = []
    for i, tree in enumerate(trees):
        for j, wanted in enumerate(tree.trunk_lm):
            if wanted == STEPS:
                steps_at.append(i * t + j)
                steps_target.append(tree.trunk[j + 1])
            elif wanted:
                lm_at.append(i * t + j)
                lm_target.append(tree.trunk[j + 1])
        row = len(label_at)
        weight = tree.flag_weight
        for n, leaf in enumerate(tree.leaves):
            base = b * t + (i * k + n) * length
            for j, wanted in enumerate(tree.leaf_lm[n]):
                if wanted:
                    lm_at.append(base + j)
                    lm_target.append(leaf[j + 1])
            body = [flags for flags in tree.leaf_flags[n] if flags >= 0]
            shares = [sum(flags >> bit & 1 for flags in body) / max(1, len(body)) for bit in range(FLAGS)]
            likely = tree.told[n] if tree.told else [float("nan")] * len(leaf)
            known = [value for value in likely if value == value]
            mean = sum(known) / len(known) if known else float("nan")
            for j, flags in enumerate(tree.leaf_flags[n]):
                if flags == GATHER:
                    worth.append(mean)
                    count_at.append(base + j)
                    count_weight.append(weight)
                    count_target.append(shares)
                elif flags >= 0:
                    told.append(likely[j])
                    flag_at.append(base + j)
                    flag_weight.append(weight)
                    flag_target.append(flags)
        for (n, j, ids, target), values in zip(tree.labels, tree.values, strict=True):
            label_at.append(b * t + (i * k + n) * length + j)
            pad = [0] * (MAX_LABELS - len(ids))
            label_ids.append(ids + pad)
            label_target.append(target + [0.0] * len(pad))
            span = max(1.0, max(values) - min(values))  # labels that begin alike may have nearly the same mean
            label_values.append([v / span for v in values] + [0.0] * len(pad))
        label_share += [1.0 / (b * max(1, len(tree.labels)))] * len(tree.labels)
        before = len(pairs)
        for x in range(len(tree.quality)):
            for y in range(len(tree.quality)):
                if tree.asked[x] == tree.asked[y] and tree.quality[x] > tree.quality[y] + 0.1:
                    pairs.append((row + tree.ranks[x], row + tree.ranks[y]))
        found = len(pairs) - before
        pair_share += [1.0 / (b * max(1, found))] * found
    bits = torch.tensor(flag_target, dtype=torch.long)
    return Tensors(
        batch,
        torch.tensor(lm_at, dtype=torch.long),
        torch.tensor(lm_target, dtype=torch.long),
        torch.tensor(steps_at, dtype=torch.long),
        torch.tensor(steps_target, dtype=torch.long),
        torch.tensor(flag_at),
        torch.stack([(bits >> n & 1).float() for n in range(FLAGS)], -1),
        torch.tensor(flag_weight),
        torch.tensor(count_at),
        torch.tensor(count_target),
        torch.tensor(count_weight),
        torch.tensor(label_at, dtype=torch.long),
        torch.tensor(label_ids),
        torch.tensor(label_target),
        torch.tensor(label_share),
        torch.tensor(pairs, dtype=torch.long).view(-1, 2),
        torch.tensor(pair_share),
        torch.tensor(label_values),
        sum(len(tree.trunk) + sum(map(len, tree.leaves)) for tree in trees),
        torch.tensor(told),
        torch.tensor(worth),
    )


def collate_trees(trees: Sequence[Packed]) -> Batch:
    """Make some trees' tokens ready for the network."""
    count = max(1, *(len(tree.leaves) for tree in trees))
    length = max((1, *(len(leaf) for tree in trees for leaf in tree.leaves)))
    trunk = torch.zeros(len(trees), max(len(tree.trunk) for tree in trees), dtype=torch.long)
    leaves = torch.zeros(len(trees), count, length, dtype=torch.long)
    for tree, first, rows in zip(trees, trunk, leaves, strict=True):
        first[: len(tree.trunk)] = torch.tensor(tree.trunk)
        for row, leaf in zip(rows, tree.leaves, strict=False):
            row[: len(leaf)] = torch.tensor(leaf)
    lengths = [[*map(len, tree.leaves)] + [0] * (count - len(tree.leaves)) for tree in trees]
    return Batch(
        trunk, leaves, torch.tensor([len(tree.trunk) for tree in trees]), torch.tensor(lengths, dtype=torch.long)
    )


def batches(trees: list[Packed], budget: int, rng: random.Random) -> list[list[Packed]]:
    """Trees of like shape together, at most `budget` padded tokens each, in random order."""
    ordered = sorted(trees, key=lambda tree: (max(map(len, tree.leaves), default=0) // 32, len(tree.trunk)))
    found: list[list[Packed]] = []
    group: list[Packed] = []
    for tree in ordered:
        trial = [*group, tree]
        padded = len(trial) * (
            max(len(x.trunk) for x in trial)
            + max(len(x.leaves) for x in trial) * max((len(y) for x in trial for y in x.leaves), default=0)
        )
        if group and padded > budget:
            found.append(group)
            group = [tree]
        else:
            group = trial
    if group:
        found.append(group)
    rng.shuffle(found)
    return found


def to(data: Tensors, device: torch.device) -> Tensors:
    for name, value in vars(data).items():
        if isinstance(value, (Tensor, Batch)):
            setattr(data, name, value.to(device))
    return data
