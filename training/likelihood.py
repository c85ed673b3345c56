"""What a pretrained trunk tells of a text without a person: how likely its words are, with the source and alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from training.model import Batch
from training.smol import Smol

START = 0  # <|endoftext|>, which stands between documents in pretraining
BETWEEN = "\n\nSummary:"


@dataclass(frozen=True)
class Likelihood:
    """Log-probabilities of a text's tokens after its source and alone; `ends` tells where in the text each one ends."""

    given: np.ndarray
    alone: np.ndarray
    ends: np.ndarray


def _logs(net: Smol, trunk: list[int], leaves: list[list[int]]) -> list[np.ndarray]:
    length = max(map(len, leaves))
    rows = torch.zeros(1, len(leaves), length, dtype=torch.long)
    for row, leaf in zip(rows[0], leaves, strict=True):
        row[: len(leaf)] = torch.tensor(leaf)
    with torch.no_grad():
        lengths = torch.tensor([[len(leaf) for leaf in leaves]])
        hidden = net(Batch(torch.tensor([trunk]), rows, torch.tensor([len(trunk)]), lengths), torch.float32)
        found = []
        for n, leaf in enumerate(leaves):
            at = len(trunk) + n * length
            before = torch.cat((hidden[len(trunk) - 1 : len(trunk)], hidden[at : at + len(leaf) - 1]))
            chances = net.logits(before).log_softmax(-1)
            found.append(chances.gather(1, torch.tensor(leaf)[:, None])[:, 0].numpy())
    return found


def likelihoods(net: Smol, code: PreTrainedTokenizerBase, source: str, texts: Sequence[str]) -> list[Likelihood]:
    """Compute both for every text of one source: the source once, the texts beside one another."""
    encoded = code([" " + text for text in texts], add_special_tokens=False, return_offsets_mapping=True)
    leaves = encoded["input_ids"]
    given = _logs(net, [START, *code(source + BETWEEN, add_special_tokens=False)["input_ids"]], leaves)
    alone = _logs(net, [START], leaves)
    found = []
    for n in range(len(texts)):
        ends = np.array([stop - 1 for _, stop in encoded["offset_mapping"][n]], dtype=np.int16)
        found.append(Likelihood(given[n].astype(np.float16), alone[n].astype(np.float16), ends))
    return found


def worst(values: np.ndarray, share: float = 0.1) -> float:
    """Mean of the lowest tenth."""
    count = max(1, round(share * len(values)))
    return float(np.sort(values)[:count].mean())


def features(found: Likelihood) -> dict[str, float]:
    """Sum up the tokens; the first one carries no evidence about the text."""
    given, alone = found.given.astype(float), found.alone.astype(float)
    return {
        "given": float(given.mean()),
        "alone": float(alone.mean()),
        "gain": float((given - alone).mean()),
        "worst_given": worst(given),
        "worst_alone": worst(alone),
        "worst_gain": worst(given - alone),
    }
