"""What the auxiliary head sees: the ROC area of every kind of flag on held-out trees, `python -m training.probe`."""

from __future__ import annotations

import argparse
import random

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr

from training import packing
from training.recipes import RECIPES

NAMES = (
    *("error", "unsupported", "foreign", "order", "repeated", "minor"),
    *("new word", "new pair", "said", "central"),
)


def area(score: np.ndarray, truth: np.ndarray) -> float:
    """Probability that a flagged token scores above one that is not."""
    order = score.argsort()
    ranks = np.empty(len(score))
    ranks[order] = np.arange(1, len(score) + 1)
    positive = truth.sum()
    negative = len(truth) - positive
    return float((ranks[truth > 0].sum() - positive * (positive + 1) / 2) / max(1.0, positive * negative))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.probe", description=__doc__)
    parser.add_argument("--name", default="nano", help="folder under training/runs")
    parser.add_argument("--trees", type=int, default=60)
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    recipe = RECIPES["nano"]
    net, code = recipe.load(options.name), recipe.tokenizer()
    maker = recipe.maker("held_out", rng)
    maker.words = (60, 250)
    scores, truths, gathered, shares = [], [], [], []
    ranks: dict[str, list[float]] = {}
    for number in range(options.trees):
        tree = maker.tree(
            ("coherence", "consistency", "fluency", "relevance", "dialogue_coherence", "groundedness")[number % 6]
        )
        if tree is None or not tree.leaves:
            continue
        data = packing.collate([p for p in [packing.pack(tree, code, rng, 0.0)] if p], rng)
        with torch.no_grad():
            hidden = net(data.batch, recipe.dtype)
            scores.append(net.flags(hidden[data.flag_at].float()).numpy())
            truths.append(data.flag_target.numpy())
            gathered.append(F.linear(hidden[data.count_at].float(), net.counts.weight, net.counts.bias).numpy())
            shares.append(data.count_target.numpy())
            chances = net.logits(hidden[data.label_at].float()).softmax(-1).gather(1, data.label_ids) * (
                data.label_target > 0
            )
            expected = (chances * data.label_values).sum(-1) / chances.sum(-1)
        for better, worse in data.pair.tolist():
            ranks.setdefault(tree.concept, []).append(float(expected[better] > expected[worse]))
    score, truth = np.concatenate(scores), np.concatenate(truths)
    behind, share = np.concatenate(gathered), np.concatenate(shares)
    for n, name in enumerate(NAMES):
        print(
            f"{name:<12} share {truth[:, n].mean():.3f}  area {area(score[:, n], truth[:, n]):.3f}"
            f"  behind the candidate: Spearman {spearmanr(behind[:, n], share[:, n]).statistic:.3f}"
        )
    for concept, values in ranks.items():
        print(f"{concept:<20} pairs {len(values):5d}  right {np.mean(values):.3f}")


if __name__ == "__main__":
    main()
