"""Scores forms with the training network: one trunk, many leaves, one pass. The package's engine is the reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from training.forms import Scale
from training.model import Batch, Nano
from training.tokenizer import BEGIN


def _alike(rows: Sequence[Sequence[int]]) -> int:
    """Count the tokens that all rows open with."""
    return next((i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), min(map(len, rows)))


def score(net: Nano, code: Tokenizer, forms: Sequence[str], scale: Scale) -> list[tuple[float, float]]:
    """Compute the expected value and label mass of each form. What the forms share is computed once."""
    rows = [[code.token_to_id(BEGIN), *code.encode(form, add_special_tokens=False).ids] for form in forms]
    shared = min(_alike(rows), min(map(len, rows)) - 1)
    labels = {label: code.encode(" " + label, add_special_tokens=False).ids for label in scale.labels}
    one = next((ids[0] for ids in labels.values() if len(ids) == 2), None)
    tails = [row[shared:] + ([one] if one is not None else []) for row in rows]
    length = max(map(len, tails))
    leaves = torch.zeros(1, len(rows), length, dtype=torch.long)
    for i, tail in enumerate(tails):
        leaves[0, i, : len(tail)] = torch.tensor(tail)
    batch = Batch(torch.tensor([rows[0][:shared]]), leaves, torch.tensor([shared]))
    with torch.no_grad():
        hidden = net(batch, torch.float32)
        found = []
        for i, tail in enumerate(tails):
            at = shared + i * length + len(tail) - 1 - (one is not None)
            first = net.logits(hidden[at : at + 2]).softmax(-1)
            mass = {label: float(first[0, ids[0]]) for label, ids in labels.items()}
            for label, ids in labels.items():
                if len(ids) == 2:  # " 10": " 1" and then "0"
                    more = float(first[1, ids[1]])
                    both = float(first[0, ids[0]])
                    mass[label], mass["1"] = both * more, both * (1 - more)
            total = sum(mass.values())
            value = sum(mass[label] * v for label, v in zip(scale.labels, scale.values, strict=True)) / total
            found.append((value, total))
    return found
