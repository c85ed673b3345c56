"""The teacher: what the rules measure, and what a pretrained model tells without a person.

Three parts, none fitted to a rating: the rules (candidates.py); the log-probability of a candidate's least likely
tokens by the trunk without its adapter, in the very form that the judge reads, or, where this shows no source, after
the source; and its likeness to the source or the last turn (similarity.py), or for fluency how it reads by itself.
Within a tree each part is brought to mean 0 and deviation 1; the weighted sum, from which what goes with new
words is taken for coherence and relevance, spreads the labels around the tree's mean by the rules, so that labels of
good and of bad trees differ too. Traps keep the value that they were given.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import torch
from tokenizers import Tokenizer

from training import corpus, measure, packing, similarity
from training.damage import NEW_PAIR
from training.packing import Packed
from training.smol import Smol
from training.tasks import SUMMARIES, Tree

#: Of each dimension: the weights of the rules, the log-probability and the likeness, or for fluency how a text reads by
#: itself (LOG.md tells what was tried).
#: A student learns by itself what the trunk knows, and gives it in answer to every question: little of it is taught.
WEIGHTS = {
    "coherence": (1.5, 0.8, 0.0),
    "consistency": (1.5, 0.6, 0.0),
    "fluency": (1.5, 0.5, 0.8),
    "relevance": (1.5, 0.25, 0.9),
    "factual": (1.0, 1.0, 0.0),
    "dialogue_coherence": (1.5, 0.0, 0.7),  # its likeness is to the last turn
}
#: New words are consistency's matter, and what was left out is no fault: what goes with either is taken out of these.
FREED = {"coherence", "relevance"}
NEAR = 0.35  # share of new pairs of words up to which a text is one about its source, and no other text
ASKS = {"factual": "factual", "faithfulness": "consistency"}
SAME = 0.9  # a text this alike repeats what it answers or sums up, and its likeness counts as none
SPREAD = 0.27  # deviation of the values within a tree
ROWS = 4096  # tokens whose logits are computed together
#: Share of a text's tokens, the least likely ones, whose mean log-probability counts.
WORST = {"coherence": 0.2, "consistency": 0.5, "fluency": 0.2, "relevance": 0.2}


@dataclass
class Wanted:
    """What the teacher wants to know of a tree's candidates: trees for the frozen trunk, texts to be told how alike."""

    form: Packed | None = None  # as the judge reads them
    behind: Packed | None = None  # after the source, where the form does not show it
    alone: Packed | None = None  # by themselves
    texts: list[str] = field(default_factory=list)  # the source or the last turn, and every candidate
    alike: list[float] = field(default_factory=list)  # of every candidate, when it was told

    @property
    def trees(self) -> list[Packed]:
        """List what is to be read; each is told in its own `told`."""
        return [tree for tree in (self.form, self.behind, self.alone) if tree]

    def answers(self) -> tuple[list[list[list[float]] | None], list[float]]:
        """Give what was told, for the process that asked."""
        return [tree.told for tree in self.trees], self.alike

    def take(self, answers: tuple[list[list[list[float]] | None], list[float]]) -> None:
        """Take what another process was told."""
        for tree, told in zip(self.trees, answers[0], strict=True):
            tree.told = told
        self.alike = answers[1]


def wanted(tree: Tree, packed: Packed, code: Tokenizer) -> Wanted:
    """Say what is to be known of a tree."""
    asked = {ASKS.get(tree.concept, tree.concept), *(question.dimension for question in tree.leaves[0].more)}
    found = Wanted()
    if any(WEIGHTS[dimension][2] for dimension in asked & set(WEIGHTS) - {"fluency"}):
        found.texts = [tree.source, *(leaf.body for leaf in tree.leaves)]
    if tree.concept in SUMMARIES:
        found.form = packed
        found.behind = None if tree.sourced else behind(tree, code)
        found.alone = alone([leaf.body for leaf in tree.leaves], code) if "fluency" in asked else None
    return found


def tell(net: Smol, asked: Sequence[Wanted], dtype: torch.dtype = torch.bfloat16, budget: int = 0) -> None:
    """Read what is wanted: log-probabilities, NaN at every token that is no candidate's, and likenesses.

    Trees are read together up to a budget of padded tokens, or one at a time.
    """
    trees = [tree for own in asked for tree in own.trees]
    for group in packing.batches(trees, budget, random.Random(0)):
        for tree, rows in zip(group, log_probabilities(net, group, dtype), strict=True):
            tree.told = [
                [value if flag >= 0 else math.nan for value, flag in zip(row, flags, strict=True)]
                for row, flags in zip(rows, tree.leaf_flags, strict=True)
            ]
    compared = [own for own in asked if own.texts]
    told = similarity.likeness([own.texts for own in compared], net.embed_tokens.weight.device)
    for own, alike in zip(compared, told, strict=True):
        own.alike = alike


@torch.no_grad()
def log_probabilities(net: Smol, trees: Sequence[Packed], dtype: torch.dtype) -> list[list[list[float]]]:
    """Compute the log-probability of every token of every leaf by the frozen trunk, given all before it."""
    batch = packing.collate_trees(trees)
    batch.states = trees[0].states if len(trees) == 1 else None
    device = net.embed_tokens.weight.device
    hidden = net.frozen(batch.to(device), dtype)
    before: list[int] = []
    own: list[int] = []
    end, start = -1, sum(len(tree.trunk) for tree in trees)
    for tree in trees:
        end += len(tree.trunk)
        for leaf in tree.leaves:
            before += [end, *range(start, start + len(leaf))][: len(leaf)]
            own += leaf
            start += len(leaf)
    found: list[float] = []
    for rows, ids in zip(torch.tensor(before).split(ROWS), torch.tensor(own).split(ROWS), strict=True):
        logits = net.logits(hidden[rows.to(device)].to(dtype))
        found += (logits.gather(1, ids.to(device)[:, None])[:, 0] - logits.logsumexp(-1)).tolist()
    values = iter(found)
    return [[[next(values) for _ in leaf] for leaf in tree.leaves] for tree in trees]


def standard(values: Sequence[float]) -> np.ndarray:
    """Bring to mean 0 and deviation 1, and outliers to 2.5."""
    own = np.asarray(values, float)
    return np.clip((own - own.mean()) / (own.std() + 1e-6), -2.5, 2.5)


def freed(values: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Take out of values their regression on a share of pairs of words, fitted to the texts that are near."""
    new = np.minimum(new, NEAR)
    near = new < NEAR
    if near.sum() < 3 or np.ptp(new[near]) < 0.02:
        return values
    return values - np.polyfit(new[near], values[near], 1)[0] * new


def values(
    dimension: str,
    rules: Sequence[float],
    likely: Sequence[float],
    alike: Sequence[float],
    new: Sequence[Sequence[float]],
) -> np.ndarray:
    """Put the parts together, for the candidates of one source; `new` are their shares of new pairs and neighbours."""
    parts = (rules, likely, alike)
    total = sum(w * standard(part) for w, part in zip(WEIGHTS[dimension], parts, strict=True) if w)
    whole = np.std(total)
    for share in new if dimension in FREED else ():
        total = freed(np.asarray(total), np.asarray(share))
    spread = SPREAD * min(1.0, np.std(total) / (whole + 1e-6))  # what is taken out leaves the texts nearer together
    return np.clip(np.mean(rules) + spread * standard(total), 0.0, 1.0)


def texts_after(trunk: list[int], leaves: list[list[int]], flags: list[list[int]]) -> Packed:
    """Pack texts to be read after others, without a form."""
    return Packed(trunk, [0] * len(trunk), leaves, flags, [[0] * len(leaf) for leaf in leaves], [], [], [])


def behind(tree: Tree, code: Tokenizer) -> Packed:
    """Pack candidates whose form shows no source, behind that source."""
    heading = "\n\nSummary:\n\n"
    rows = code.encode_batch([tree.source, *[heading + leaf.body for leaf in tree.leaves]], add_special_tokens=False)
    flags = [[0 if start >= len(heading) - 1 else -1 for start, _ in row.offsets] for row in rows[1:]]
    return texts_after(rows[0].ids, [row.ids for row in rows[1:]], flags)


@cache
def rarity(code: Tokenizer) -> np.ndarray:
    """Compute the log-frequency of every token in a part of the corpus, with half a count for those not seen."""
    counts = np.full(code.get_vocab_size(), 0.5)
    texts = [" ".join(document.sentences) for document in corpus.load("train").prose[::4]]
    for row in code.encode_batch(texts, add_special_tokens=False):
        np.add.at(counts, row.ids, 1)
    return np.log(counts / counts.sum())


def alone(texts: Sequence[str], code: Tokenizer) -> Packed:
    """Pack texts to be read by themselves; a system's lower case and loose punctuation are no fault of its language."""
    mended = [
        " ".join(s[:1].upper() + s[1:] for s in corpus.sentences(corpus.detokenise(text))) if text else ""
        for text in texts
    ]
    trunk, *leaves = (row.ids for row in code.encode_batch(["\n\nSummary:\n\n", *mended], add_special_tokens=False))
    return texts_after(trunk, leaves, [[0] * len(leaf) for leaf in leaves])


def by_itself(packed: Packed | None, code: Tokenizer) -> list[float]:
    """Say how texts read by themselves: log-probability against that of their words, and how they end; empty ones 0.

    The first is SLOR (Pauls and Klein, 2012): the mean log-probability of the tokens less that of their frequencies, so
    that rare names do not count. Both are brought to mean 0 and deviation 1.
    """
    if packed is None or packed.told is None:
        return []
    found = [n for n, leaf in enumerate(packed.leaves) if leaf]
    told, common = [packed.told[n] for n in found], rarity(code)
    plain = [np.mean(own) - common[packed.leaves[n]].mean() for n, own in zip(found, told, strict=True)]
    sums = np.zeros(len(packed.leaves))
    sums[found] = standard(plain) + standard([own[-1] for own in told])
    return list(sums.tolist())


def worst(told: Sequence[float], share: float) -> float:
    """Average the lowest of a text's log-probabilities."""
    own = np.sort([value for value in told if value == value])
    return float(own[: max(1, round(share * len(own)))].mean())


def doubt(told: Sequence[float]) -> float:
    """Add up what is unlikely: the question whether all of a text is true has more to stumble over in a longer one."""
    return float(sum(min(value + 1.0, 0.0) for value in told if value == value))


def grade(tree: Tree, told: Wanted, code: Tokenizer) -> Tree:
    """Give the leaves of a tree the teacher's values for all that it grades; traps keep theirs.

    For replies no likelihoods are told, because theirs go against what people say.
    """
    likelihoods = (told.behind or told.form or Packed([], [], [], [], [], [], [], [])).told
    reads = by_itself(told.alone, code)
    rest = [n for n, leaf in enumerate(tree.leaves) if not leaf.fixed and leaf.body.strip()]
    main = ASKS.get(tree.concept, tree.concept)
    if main not in WEIGHTS or len(rest) < 3:
        return tree
    marked = [tree.leaves[n].flags for n in rest]
    source = measure.Source(corpus.sentences(tree.source))
    new = (
        [sum(bool(flag & NEW_PAIR) for flag in flags) / len(flags) for flags in marked],
        [source.new_neighbours(corpus.sentences(tree.leaves[n].body)) for n in rest],
    )

    def graded(dimension: str, rules: Sequence[float]) -> list[float]:
        whole = dimension == "factual"  # asks whether everything is supported; the others, how much
        likely = alike = [0.0] * len(rest)
        if WEIGHTS[dimension][1]:
            assert likelihoods is not None
            likely = [doubt(likelihoods[n]) if whole else worst(likelihoods[n], WORST[dimension]) for n in rest]
        if dimension == "fluency":
            alike = [reads[n] for n in rest]
        elif WEIGHTS[dimension][2]:
            alike = [told.alike[n] if told.alike[n] < SAME else 0.0 for n in rest]
        found: list[float] = values(dimension, rules, likely, alike, new).tolist()
        return found

    leaves = list(tree.leaves)
    for n, value in zip(rest, graded(main, [tree.leaves[n].quality for n in rest]), strict=True):
        leaves[n] = replace(leaves[n], quality=value, target=tree.scale.target(value), more=list(leaves[n].more))
    for place, question in enumerate(tree.leaves[rest[0]].more):
        rules = [tree.leaves[n].more[place].quality for n in rest]
        for n, value in zip(rest, graded(question.dimension, rules), strict=True):
            own = tree.leaves[n].more[place]
            leaves[n].more[place] = replace(own, quality=value, target=tree.scale.target(value))
    return replace(tree, leaves=leaves)
