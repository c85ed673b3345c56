"""Shows where the heads look on a sequence that comes twice: `python -m training.heads` (at the start: `--name ""`).

Random tokens, others, the same tokens again. For every head the mean share of attention, from the second occurrence, on
the token before, on the same token in the first occurrence, and on the one behind it; last, how often the most likely
next token is the one that came next.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

from training import corpus, embedding, initial, tokenizer
from training.model import Nano, Shape, rope
from training.recipes import RECIPES


def attention(net: Nano, ids: Tensor) -> tuple[list[Tensor], Tensor]:
    """Compute every layer's attention weights, [heads, tokens, tokens], and the final hidden state."""
    count = len(ids)
    cos, sin = rope(torch.arange(count), net.shape.head_size, net.shape.theta, torch.float32)
    future = torch.ones(count, count, dtype=torch.bool).triu(1)
    x = F.embedding(ids, net.embed_tokens.weight)
    found = []
    for layer in net.layers:
        q, k, v = layer.heads(layer.input_layernorm(x), cos[:, None], sin[:, None])
        scores = torch.einsum("qhd,khd->hqk", q, k) / net.shape.head_size**0.5
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        found.append(weights)
        x = layer.after(x, torch.einsum("hqk,khd->qhd", weights, v))
    return found, net.norm(x)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.heads", description=__doc__)
    parser.add_argument("--name", default="nano", help="folder under training/runs; empty: a new network")
    parser.add_argument("--length", type=int, default=100, help="tokens that come twice")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.name:
        net = RECIPES["nano"].load(options.name).eval()
    else:
        net = Nano(Shape())
        initial.prepare(net, embedding.start(corpus.load("train"), tokenizer.load(), net.shape.hidden))
    with torch.no_grad():
        twice = torch.randint(300, 6000, (options.length,))
        ids = torch.cat((twice, torch.randint(300, 6000, (150,)), twice))
        shift = options.length + 150
        rows = torch.arange(shift + 5, shift + options.length - 1)
        weights, hidden = attention(net, ids)
        print("layer  head  before  same  behind")
        for number, layer in enumerate(weights):
            for head, one in enumerate(layer):
                shares = (one[rows, rows - 1], one[rows, rows - shift], one[rows, rows - shift + 1])
                print(f"{number:5} {head:5}" + "".join(f"  {float(s.mean()):6.2f}" for s in shares))
        right = net.logits(hidden[rows]).argmax(-1) == ids[rows + 1]
        print(f"copied: {float(right.float().mean()):.1%}")


if __name__ == "__main__":
    main()
