"""The four losses of a packed batch: label, rank, flags and language model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.model import Nano
from training.packing import Tensors
from training.smol import Smol

MOST_STEPS = 16  # tokens of a list of steps that one tree teaches


@dataclass(frozen=True)
class Weights:
    """How much each loss counts."""

    label: float = 1.5
    rank: float = 2.0
    flags: float = 4.0
    counts: float = 2.0
    language: float = 1.0
    steps: float = 1.0


def losses(
    net: Nano | Smol, data: Tensors, weights: Weights, dtype: torch.dtype, most_lm: float = 0.12
) -> tuple[Tensor, dict[str, float]]:
    """Compute the sum to minimise and the value of each part.

    The language model sees at most `most_lm` of the positions, because its head is the dearest layer.
    """
    if isinstance(net, Nano):
        hidden = net(data.batch, dtype)
    else:  # the last layer is computed where a loss looks
        some = torch.randperm(len(data.steps_at))[:MOST_STEPS]
        data.steps_at, data.steps_target = data.steps_at[some], data.steps_target[some]
        hidden = net(data.batch, dtype, torch.cat((data.label_at, data.steps_at)).unique())
    steps = hidden.new_zeros(())
    if len(data.steps_at):
        steps = F.cross_entropy(net.logits(hidden[data.steps_at]), data.steps_target)
    if not len(data.label_at):  # a tree without leaves
        return weights.steps * steps, {"steps_lm": steps.item()}
    limit = int(most_lm * data.tokens)
    at, target = data.lm_at, data.lm_target
    if len(at) > limit:
        keep = torch.randperm(len(at))[:limit].to(at.device)
        at, target = at[keep], target[keep]
    lm_logits = net.logits(hidden[at])
    # labels in float32: in bf16 siblings' logits tie, and the rank loss lives on their differences
    label_logits = net.logits(hidden[data.label_at].float())
    log_probability = label_logits.log_softmax(-1).gather(1, data.label_ids)
    label = -(data.label_target * log_probability).sum(-1)
    # the entropy of the soft target is taken off, so that 0 means learnt
    entropy = -(data.label_target * data.label_target.clamp_min(1e-9).log()).sum(-1)
    label = (label - entropy).mean()
    own = (data.label_target > 0).float()
    mass = log_probability.exp() * own
    expected = (mass * data.label_values).sum(-1) / mass.sum(-1).clamp_min(1e-6)
    if len(data.pair):
        difference = expected[data.pair[:, 0]] - expected[data.pair[:, 1]]
        rank = F.softplus(-difference * 6.0).mean()
        right = (difference > 0).float().mean().item()
    else:
        rank, right = label.new_zeros(()), 0.5
    flags = counts = label.new_zeros(())
    if isinstance(net, Nano):
        flag_logits = net.marks(hidden, data.flag_at)
        flags = F.binary_cross_entropy_with_logits(flag_logits, data.flag_target, data.flag_weight)
        count_logits = F.linear(hidden[data.count_at].float(), net.counts.weight, net.counts.bias)
        counts = F.binary_cross_entropy_with_logits(count_logits, data.count_target, data.count_weight)
        share = data.count_target.clamp(1e-6, 1 - 1e-6)
        entropy = -(share * share.log() + (1 - share) * (1 - share).log())
        counts = counts - (data.count_weight * entropy).mean()  # 0 is learnt
    language = F.cross_entropy(lm_logits, target) if len(target) else label.new_zeros(())
    total = (
        weights.label * label
        + weights.rank * rank
        + weights.flags * flags
        + weights.counts * counts
        + weights.language * language
        + weights.steps * steps
    )
    parts = {
        "label": label.item(),
        "rank": rank.item(),
        "right": right,
        "flags": flags.item(),
        "counts": counts.item(),
        "lm": language.item(),
        "steps_lm": steps.item(),
        "mass": mass.sum(-1).mean().item(),
    }
    return total, parts
