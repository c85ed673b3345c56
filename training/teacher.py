"""The teacher of summaries: what the rules measure, and what a pretrained model tells without a person.

Three parts, none fitted to a rating: the rules (candidates.py); the mean log-probability of a candidate's tokens in the
very form that the judge reads, by the trunk without its adapter; and its likeness to the source (similarity.py). Within
a tree each part is brought to mean 0 and deviation 1; the weighted sum spreads the labels around the tree's mean by the
rules, so that labels of good and of bad trees differ too. Traps keep the value that they were given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from training import similarity
from training.packing import Packed, collate_tree
from training.smol import Smol
from training.tasks import Tree

#: Of each dimension: the weights of the rules, the log-probability and the likeness (LOG.md tells what was tried).
WEIGHTS = {
    "coherence": (1.0, 0.7, 0.0),
    "consistency": (1.0, 1.0, 0.0),
    "fluency": (1.0, 0.5, 0.0),  # its form shows no source
    "relevance": (1.0, 0.6, 0.7),
}
ASKS = {"factual": "consistency", "faithfulness": "consistency"}
SPREAD = 0.27  # deviation of the values within a tree


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


def values(dimension: str, rules: Sequence[float], likely: Sequence[float], alike: Sequence[float]) -> np.ndarray:
    """Put the parts together, for the candidates of one source."""
    parts = (rules, likely, alike)
    total = sum(w * standard(part) for w, part in zip(WEIGHTS[dimension], parts, strict=True) if w)
    return np.clip(np.mean(rules) + SPREAD * standard(total), 0.0, 1.0)


def read(net: Smol, packed: Packed, dtype: torch.dtype = torch.bfloat16) -> None:
    """Keep in a packed tree what the trunk tells: states below the adapter, the candidates' log-probabilities."""
    packed.states = net.below(collate_tree(packed), dtype)
    packed.told = [
        [value if flag >= 0 else float("nan") for value, flag in zip(row, flags, strict=True)]
        for row, flags in zip(log_probabilities(net, packed, dtype), packed.leaf_flags, strict=True)
    ]


def grade(tree: Tree, packed: Packed) -> Tree:
    """Give the leaves of a tree of summaries the teacher's values; traps keep theirs."""
    dimension = ASKS.get(tree.concept, tree.concept)
    rest = [n for n, leaf in enumerate(tree.leaves) if not leaf.fixed and leaf.body.strip()]
    if dimension not in WEIGHTS or len(rest) < 3 or packed.told is None:
        return tree
    likely = [float(np.nanmean(packed.told[n])) for n in rest]
    texts = [tree.leaves[n].body for n in rest]
    alike = similarity.likeness(tree.source, texts) if WEIGHTS[dimension][2] else [0.0] * len(rest)
    found = values(dimension, [tree.leaves[n].quality for n in rest], likely, alike)
    leaves = list(tree.leaves)
    for n, value in zip(rest, found.tolist(), strict=True):
        leaves[n] = replace(leaves[n], quality=value, target=tree.scale.target(value))
    return replace(tree, leaves=leaves)
