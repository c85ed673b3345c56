"""The teacher: what the rules measure, and what a pretrained model tells without a person.

Three parts, none fitted to a rating: the rules (candidates.py); the log-probability of a candidate's least likely
tokens by the trunk without its adapter, in the very form that the judge reads, or, where this shows no source, after
the source; and its likeness to the source or the last turn (similarity.py), or for fluency how it reads by itself.
Within a tree each part is brought to mean 0 and deviation 1; the weighted sum, from which what goes with new
words is taken for coherence and relevance, spreads the labels around the tree's mean by the rules, so that labels of
good and of bad trees differ too. Traps keep the value that they were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from tokenizers import Tokenizer

from training import corpus, similarity
from training.damage import NEW_PAIR
from training.packing import Packed, collate_tree
from training.smol import Smol
from training.tasks import Tree

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
#: New words are consistency's matter: what goes with them is taken out of these.
FREED = {"coherence", "relevance"}
NEAR = 0.35  # share of new pairs of words up to which a text is one about its source, and no other text
ASKS = {"factual": "factual", "faithfulness": "consistency"}
SAME = 0.9  # a text this alike repeats what it answers or sums up, and its likeness counts as none
SPREAD = 0.27  # deviation of the values within a tree
#: Share of a text's tokens, the least likely ones, whose mean log-probability counts.
WORST = {"coherence": 0.2, "consistency": 0.5, "fluency": 0.2, "relevance": 0.2}


def log_probabilities(net: Smol, packed: Packed, dtype: torch.dtype) -> list[list[float]]:
    """Compute the log-probability of every token of every leaf by the frozen trunk, given all before it."""
    batch = collate_tree(packed)
    batch.states = packed.states
    hidden = net.frozen(batch, dtype)
    found, start = [], len(packed.trunk)
    for leaf in packed.leaves:
        before = torch.cat((hidden[len(packed.trunk) - 1][None], hidden[start : start + len(leaf) - 1]))
        logits = net.logits(before.to(dtype))
        own = logits.gather(1, torch.tensor(leaf)[:, None])[:, 0]
        found.append((own - logits.logsumexp(-1)).tolist())
        start += len(leaf)
    return found


def standard(values: Sequence[float]) -> np.ndarray:
    """Bring to mean 0 and deviation 1, and outliers to 2.5."""
    own = np.asarray(values, float)
    return np.clip((own - own.mean()) / (own.std() + 1e-6), -2.5, 2.5)


def freed(values: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Take out of values their regression on new pairs of words, fitted to the texts that are near."""
    new = np.minimum(new, NEAR)
    near = new < NEAR
    if near.sum() < 3 or np.ptp(new[near]) < 0.02:
        return values
    return values - np.polyfit(new[near], values[near], 1)[0] * new


def values(
    dimension: str, rules: Sequence[float], likely: Sequence[float], alike: Sequence[float], new: Sequence[float]
) -> np.ndarray:
    """Put the parts together, for the candidates of one source; `new` is their share of new pairs of words."""
    parts = (rules, likely, alike)
    total = sum(w * standard(part) for w, part in zip(WEIGHTS[dimension], parts, strict=True) if w)
    if dimension in FREED:
        total = freed(np.asarray(total), np.asarray(new))
    return np.clip(np.mean(rules) + SPREAD * standard(total), 0.0, 1.0)


def read(net: Smol, packed: Packed, dtype: torch.dtype = torch.bfloat16) -> list[list[float]]:
    """Compute the log-probabilities of a packed tree's candidates in their forms; NaN at every other token."""
    return [
        [value if flag >= 0 else float("nan") for value, flag in zip(row, flags, strict=True)]
        for row, flags in zip(log_probabilities(net, packed, dtype), packed.leaf_flags, strict=True)
    ]


def with_source(net: Smol, tree: Tree, code: Tokenizer, dtype: torch.dtype = torch.bfloat16) -> list[list[float]]:
    """Compute the log-probabilities of candidates whose form shows no source, behind that source."""
    heading = "\n\nSummary:\n\n"
    rows = code.encode_batch([tree.source, *[heading + leaf.body for leaf in tree.leaves]], add_special_tokens=False)
    leaves = [row.ids for row in rows[1:]]
    told = log_probabilities(net, Packed(rows[0].ids, [], leaves, [], [], [], [], []), dtype)
    return [
        [value for value, (start, _) in zip(found, row.offsets, strict=True) if start >= len(heading) - 1]
        for found, row in zip(told, rows[1:], strict=True)
    ]


@cache
def rarity(code: Tokenizer) -> np.ndarray:
    """Compute the log-frequency of every token in a part of the corpus, with half a count for those not seen."""
    counts = np.full(code.get_vocab_size(), 0.5)
    texts = [" ".join(document.sentences) for document in corpus.load("train").prose[::4]]
    for row in code.encode_batch(texts, add_special_tokens=False):
        np.add.at(counts, row.ids, 1)
    return np.log(counts / counts.sum())


def alone(net: Smol, texts: Sequence[str], code: Tokenizer, dtype: torch.dtype = torch.bfloat16) -> list[float]:
    """Say how texts read by themselves: log-probability against that of their words, and how they end; empty ones 0.

    The first is SLOR (Pauls and Klein, 2012): the mean log-probability of the tokens less that of their frequencies, so
    that rare names do not count. Both are brought to mean 0 and deviation 1. A system's lower case and loose
    punctuation are mended before, as no fault of its language.
    """
    rows = []
    for text in texts:
        whole = " ".join(s[:1].upper() + s[1:] for s in corpus.sentences(corpus.detokenise(text)))
        rows.append(code.encode(whole, add_special_tokens=False).ids)
    trunk = code.encode("\n\nSummary:\n\n", add_special_tokens=False).ids
    found = [n for n, row in enumerate(rows) if row]
    told = log_probabilities(net, Packed(trunk, [], [rows[n] for n in found], [], [], [], [], []), dtype)
    common = rarity(code)
    plain = standard([np.mean(values) - common[rows[n]].mean() for n, values in zip(found, told, strict=True)])
    ends = standard([values[-1] for values in told])
    sums = np.zeros(len(rows))
    sums[found] = plain + ends
    return list(sums.tolist())


def worst(told: Sequence[float], share: float) -> float:
    """Average the lowest of a text's log-probabilities."""
    own = np.sort([value for value in told if value == value])
    return float(own[: max(1, round(share * len(own)))].mean())


def doubt(told: Sequence[float]) -> float:
    """Add up what is unlikely: the question whether all of a text is true has more to stumble over in a longer one."""
    return float(sum(min(value + 1.0, 0.0) for value in told if value == value))


def grade(tree: Tree, told: list[list[float]], by_itself: Sequence[float] = ()) -> Tree:
    """Give the leaves of a tree the teacher's values for all that it grades; traps keep theirs.

    `told` holds the candidates' log-probabilities; for replies it is empty, because theirs go against what people say.
    `by_itself` says how each reads alone; it is empty where the form does not ask for fluency.
    """
    rest = [n for n, leaf in enumerate(tree.leaves) if not leaf.fixed and leaf.body.strip()]
    main = ASKS.get(tree.concept, tree.concept)
    if main not in WEIGHTS or len(rest) < 3:
        return tree
    texts = [tree.leaves[n].body for n in rest]
    marked = [tree.leaves[n].flags for n in rest]
    new = [sum(bool(flag & NEW_PAIR) for flag in flags) / len(flags) for flags in marked]

    def graded(dimension: str, rules: Sequence[float]) -> list[float]:
        whole = dimension == "factual"  # asks whether everything is supported; the others, how much
        likely = alike = [0.0] * len(rest)
        if WEIGHTS[dimension][1]:
            likely = [doubt(told[n]) if whole else worst(told[n], WORST[dimension]) for n in rest]
        if dimension == "fluency":
            alike = [by_itself[n] for n in rest]
        elif WEIGHTS[dimension][2]:
            alike = [value if value < SAME else 0.0 for value in similarity.likeness(tree.source, texts)]
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
