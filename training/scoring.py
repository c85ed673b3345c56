"""Scores forms with the training network: one trunk, many leaves, one pass. The package's engine is the reference."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from training.forms import Scale
from training.model import Batch, Nano
from training.smol import Smol
from training.tokenizer import BEGIN


def _alike(rows: Sequence[Sequence[int]]) -> int:
    """Count the tokens that all rows open with."""
    return next((i for i, column in enumerate(zip(*rows, strict=False)) if len(set(column)) > 1), min(map(len, rows)))


def _chains(paths: Sequence[Sequence[int]]) -> list[list[int]]:
    """Find the longest ways through the labels' tokens behind which a label's token is still to come."""
    inner = {tuple(path[:depth]) for path in paths for depth in range(len(path))}
    return [list(one) for one in inner if not any(one != two and one == two[: len(one)] for two in inner)]


def score(
    net: Nano | Smol, code: Tokenizer, forms: Sequence[str], scale: Scale, dtype: torch.dtype = torch.float32
) -> list[tuple[float, float]]:
    """Compute the expected value and label mass of each form. What the forms share is computed once."""
    begin = code.token_to_id(BEGIN)
    rows = [([] if begin is None else [begin]) + code.encode(form, add_special_tokens=False).ids for form in forms]
    shared = min(_alike(rows), min(map(len, rows)) - 1)
    paths = [code.encode(" " + label, add_special_tokens=False).ids for label in scale.labels]
    chains = _chains(paths)
    tails = [row[shared:] + chain for row in rows for chain in chains]
    length = max(map(len, tails))
    leaves = torch.zeros(1, len(tails), length, dtype=torch.long)
    for i, tail in enumerate(tails):
        leaves[0, i, : len(tail)] = torch.tensor(tail)
    lengths = torch.tensor([[len(tail) for tail in tails]])
    batch = Batch(torch.tensor([rows[0][:shared]]), leaves, torch.tensor([shared]), lengths)
    found = []
    with torch.no_grad():
        hidden = net(batch, dtype)
        for number, row in enumerate(rows):
            chances: dict[tuple[int, ...], torch.Tensor] = {}
            for place, chain in enumerate(chains, number * len(chains)):
                at = shared + place * length + len(row) - shared - 1
                for depth, one in enumerate(net.logits(hidden[at : at + len(chain) + 1]).softmax(-1)):
                    chances[tuple(chain[:depth])] = one
            mass = []
            for path in paths:
                here = 1.0
                for depth, token in enumerate(path):
                    here *= float(chances[tuple(path[:depth])][token])
                more = {other[len(path)] for other in paths if len(other) > len(path) and other[: len(path)] == path}
                mass.append(here * (1 - sum(float(chances[tuple(path)][token]) for token in more)))
            total = sum(mass)
            found.append((sum(m * v for m, v in zip(mass, scale.values, strict=True)) / total, total))
    return found
