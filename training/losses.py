"""The losses of a packed batch: label, rank, flags, likelihoods and language model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from training.damage import FLAGS
from training.model import Nano
from training.packing import Tensors
from training.smol import Smol

MOST_STEPS = 60  # tokens of a list of steps that one tree teaches an adapter
SHIFT, WIDTH = -3.0, 2.5  # mean and deviation of a token's log-probability, about


@dataclass(frozen=True)
class Weights:
    """How much each loss counts."""

    label: float = 1.5
    rank: float = 2.0
    flags: float = 4.0
    counts: float = 2.0
    language: float = 1.0
    steps: float = 1.0
    told: float = 0.0


def squared(found: Tensor, wanted: Tensor) -> Tensor:
    """Mean squared error where the truth is known."""
    known = ~wanted.isnan()
    return F.mse_loss(found[known], wanted[known].clamp(-4.0, 4.0))


def losses(
    net: Nano | Smol, data: Tensors, weights: Weights, dtype: torch.dtype, most_lm: float = 0.12
) -> tuple[Tensor, dict[str, float]]:
    """Compute the sum to minimise and the value of each part.

    The language model sees at most `most_lm` of the positions, because its head is the dearest layer.
    """
    hidden = net(data.batch, dtype)
    most = MOST_STEPS * len(data.batch.trunk)
    if isinstance(net, Smol) and len(data.steps_at) > most:  # its head is six times as dear as nano's
        some = torch.randperm(len(data.steps_at), device=data.steps_at.device)[:most]
        data.steps_at, data.steps_target = data.steps_at[some], data.steps_target[some]
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
    label = (label - entropy) @ data.label_share
    own = (data.label_target > 0).float()
    mass = log_probability.exp() * own
    expected = (mass * data.label_values).sum(-1) / mass.sum(-1).clamp_min(1e-6)
    if len(data.pair):
        difference = expected[data.pair[:, 0]] - expected[data.pair[:, 1]]
        rank = F.softplus(-difference * 6.0) @ data.pair_share
        right = (difference > 0).float().mean().item()
    else:
        rank, right = label.new_zeros(()), 0.5
    marks = F.linear(hidden[data.flag_at].float(), net.flags.weight, net.flags.bias)
    flags = F.binary_cross_entropy_with_logits(marks[:, :FLAGS], data.flag_target, data.flag_weight)
    gathered = F.linear(hidden[data.count_at].float(), net.counts.weight, net.counts.bias)
    counts = F.binary_cross_entropy_with_logits(gathered[:, :FLAGS], data.count_target, data.count_weight)
    share = data.count_target.clamp(1e-6, 1 - 1e-6)
    entropy = -(share * share.log() + (1 - share) * (1 - share).log())
    counts = counts - (data.count_weight * entropy).mean()  # 0 is learnt
    told = label.new_zeros(())
    if isinstance(net, Smol) and not data.told.isnan().all():  # a mean over words differs less than words do
        told = squared(marks[:, FLAGS], (data.told - SHIFT) / WIDTH)
        told = told + squared(gathered[:, FLAGS], (data.worth - SHIFT) / WIDTH * 2)
    language = F.cross_entropy(lm_logits, target) if len(target) else label.new_zeros(())
    total = (
        weights.label * label
        + weights.rank * rank
        + weights.flags * flags
        + weights.counts * counts
        + weights.language * language
        + weights.steps * steps
        + weights.told * told
    )
    parts = {
        "label": label.item(),
        "rank": rank.item(),
        "right": right,
        "flags": flags.item(),
        "counts": counts.item(),
        "told": told.item(),
        "lm": language.item(),
        "steps_lm": steps.item(),
        "mass": mass.sum(-1).mean().item(),
    }
    return total, parts
