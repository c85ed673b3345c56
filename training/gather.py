"""A head start for the adapter: one head that gathers, behind a candidate, what was noticed at its words.

Some hundred trees teach a pretrained trunk what is wrong at a word, and nothing of how to sum it up where the label
stands: no head looks there. So one head of layer `MARKS` starts as the gatherer. Directions are found by ridge
regression on what the frozen trunk computes for a few trees: which tokens are the candidate's, and which carry each
mark. The head looks at the candidate's tokens, reads their marks and writes the shares into the residual stream, along
directions of their own and a little along the one from low labels to high ones. All of it is an ordinary setting of the
low-rank maps.
"""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from training import packing
from training.damage import CENTRAL, FLAGS
from training.smol import MARKS, Adapted, Smol
from training.tasks import Maker

SHARP = 14.0  # by how much the score of a candidate's token lies above that of another
CHANNEL = 31  # of a head: its slowest rotary pair, which does not feel the distance
PAIRS = "5 1, 4 2, 3 1, 9 3, 8 0, Yes No, Good Bad, high low"  # labels, the better one first


def ridge(x: Tensor, y: Tensor, weight: Tensor, strength: float = 0.01) -> Tensor:
    """Solve for the directions that tell y from x."""
    left = x.T @ (x * weight[:, None])
    left += strength * left.diagonal().mean() * torch.eye(len(left))
    return torch.linalg.solve(left, x.T @ (y * weight[:, None]))


def observe(net: Smol, maker: Maker, code: Tokenizer, count: int) -> dict[str, Tensor]:
    """Collect the normed residual stream in front of layer `MARKS`: at marked words, and at every token."""
    rng = random.Random(5)
    found: dict[str, list[Tensor]] = {name: [] for name in ("words", "marks", "tokens", "own", "norm")}
    layer = net.layers[MARKS]
    seen: list[Tensor] = []
    handle = layer.input_layernorm.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    while len(found["own"]) < count:
        alone = len(found["own"]) % 4 == 3
        tree = maker.tree("fluency" if alone else ("coherence", "consistency", "relevance")[len(found["own"]) % 4])
        packed = packing.pack(tree, code, rng, 0.0) if tree and tree.leaves else None
        if packed is None or len(packed.trunk) + sum(map(len, packed.leaves)) > 1000:
            continue
        data = packing.collate([packed], rng)
        seen.clear()
        with torch.no_grad():
            net(data.batch)
        x = F.rms_norm(seen[0], seen[0].shape[-1:])
        place = torch.full((len(data.batch.ids()),), -1)
        real = data.batch.real()
        place[real] = torch.arange(len(real))
        own = torch.zeros(len(real))
        own[place[data.flag_at]] = 1.0
        if not alone:
            found["words"].append(x[place[data.flag_at]])
            found["marks"].append(data.flag_target)
        found["tokens"].append(x)
        found["own"].append(own)
        found["norm"].append(seen[0][place[data.label_at]].norm(dim=-1))
    handle.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def change(module: Adapted, rank: int, row: Tensor, column: Tensor, shift: float = 1.0) -> None:
    """Add the product of a column and a row to a weight, as one rank of its maps; `shift` goes from column to row."""
    module.lora_A.data[rank] = row * shift
    module.lora_B.data[:, rank] = column / module.scale / shift


def scale_direction(net: Smol, code: Tokenizer) -> tuple[Tensor, float]:
    """Find the direction from low labels to high ones, and how far "5" rises above "1" for a step along it."""
    head = net.embed_tokens.weight * net.norm.weight

    def of(label: str) -> Tensor:  # a space and a digit are two tokens, a space and a word are one
        return head[code.encode(" " + label, add_special_tokens=False).ids[-1]]

    pairs = [pair.split() for pair in PAIRS.split(", ")]
    total = torch.stack([of(high) - of(low) for high, low in pairs]).sum(0)
    unit = total / total.norm()
    return unit, float((of("5") - of("1")) @ unit)


def prepare(net: Smol, maker: Maker, code: Tokenizer, count: int = 36) -> dict[str, float]:
    """Set up the head; give how well the directions tell what they are to tell."""
    seen = observe(net, maker, code, count)
    layer, size, shared = net.layers[MARKS], net.shape.head_size, net.shape.shared
    weight = layer.input_layernorm.weight
    marks = ridge(seen["words"], seen["marks"] - seen["marks"].mean(0), torch.ones(len(seen["words"])))
    tokens = seen["tokens"]
    own = ridge(tokens, (seen["own"] - 0.5)[:, None], torch.ones(len(tokens)))[:, 0]
    same = ridge(tokens, torch.ones(len(tokens), 1), torch.ones(len(tokens)))[:, 0]
    with torch.no_grad():
        net.flags.weight.copy_(6 * marks.T)
        net.flags.bias.copy_(seen["marks"].mean(0).clamp(0.01, 0.99).logit())
    # the head whose output weighs least is given up for this
    output = layer.o_proj.weight.view(net.shape.hidden, net.shape.heads, size)
    head = int(output.pow(2).sum((0, 2)).argmin())
    group = head // shared
    at_q, at_k = head * size + CHANNEL, group * size + CHANNEL
    strength = (SHARP * size**0.5) ** 0.5
    unit = torch.eye(net.shape.hidden)
    narrow = torch.eye(net.shape.hidden // shared)
    change(layer.q_proj, 0, strength * same / weight - layer.q_proj.weight[at_q], unit[at_q])
    change(layer.k_proj, 0, strength * own / weight - layer.k_proj.weight[at_k], narrow[at_k])
    norm = float(seen["norm"].median())
    low_to_high, rise = scale_direction(net, code)
    worth = 5.0 / (rise * net.shape.hidden**0.5 / norm)  # a share of .3 in two marks moves "5" against "1" by 3
    ways = torch.linalg.qr(torch.randn(net.shape.hidden, FLAGS, generator=torch.Generator().manual_seed(5)))[0]
    for flag in range(FLAGS):
        channel = group * size + flag
        change(layer.v_proj, flag, marks[:, flag] / weight - layer.v_proj.weight[channel], narrow[channel])
        sign = 0.5 if 1 << flag == CENTRAL else -1.0
        write = 0.6 * norm * ways[:, flag] + sign * worth * low_to_high - layer.o_proj.weight[:, head * size + flag]
        change(
            layer.o_proj, flag, unit[head * size + flag], write, 20.0
        )  # so that the optimizer's steps suit both maps
    told = tokens @ own
    return {
        "head": head,
        "norm": norm,
        "worth": worth,
        "own": float(torch.corrcoef(torch.stack((told, seen["own"])))[0, 1]),
        **{
            f"mark {n}": float(torch.corrcoef(torch.stack((seen["words"] @ marks[:, n], seen["marks"][:, n])))[0, 1])
            for n in range(FLAGS)
        },
    }
