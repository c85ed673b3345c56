"""The oracle of the exactness tests: every label string enumerated, every joint probability multiplied out.

Shares no code with the engines or the label trie: texts are tokenized by the tokenizer itself, each prefix goes through
the whole model alone, and probabilities (not log-probabilities) are added up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase


def brute_force_labels(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    form: str,
    spellings: Sequence[Sequence[str]],
    *,
    rendered: bool = False,
) -> np.ndarray:
    """Compute P(l | form) for every label from its spellings after the form.

    A form that a chat template `rendered` has its special tokens already.
    """

    def encode(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=not rendered).input_ids)

    prefix = encode(form)
    strings: dict[tuple[int, ...], int] = {}
    for label, texts in enumerate(spellings):
        for text in texts:
            ids = encode(form + text)
            if ids[: len(prefix)] == prefix and len(ids) > len(prefix):
                strings[tuple(ids[len(prefix) :])] = label
    seen: dict[tuple[int, ...], torch.Tensor] = {}

    def next_token(path: tuple[int, ...]) -> torch.Tensor:
        if path not in seen:
            with torch.no_grad():
                logits = model(torch.tensor([[*prefix, *path]]), use_cache=False).logits[0, -1]
            seen[path] = torch.softmax(logits.double(), dim=-1)
        return seen[path]

    total = np.zeros(len(spellings))
    for path, label in strings.items():
        joint = 1.0
        for depth, token in enumerate(path):
            joint *= float(next_token(path[:depth])[token])
        longer = {other[len(path)] for other in strings if len(other) > len(path) and other[: len(path)] == path}
        stay = 1.0 - sum(float(next_token(path)[token]) for token in longer) if longer else 1.0
        total[label] += joint * stay
    return total
