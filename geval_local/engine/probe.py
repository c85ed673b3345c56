"""Probe prompts that test whether an engine is exact, and the tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.interface import Engine, read_all
from geval_local.errors import ErrorCode, UnsupportedModelError
from geval_local.models.head import Head, Trunk
from geval_local.models.memory import free_memory
from geval_local.tokens.label_trie import LabelTrie, SurfaceForm
from geval_local.tokens.requests import Request

HALF = (torch.bfloat16, torch.float16)
#: Largest difference of a label's log-probability (nats) that counts as rounding: of any label in float64
#: (parts of some models are computed in float32 there) and float32, of a typical prompt's mean in half precision.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.bfloat16: 0.25, torch.float16: 0.1}
#: A probe may cost this many floating-point operations, so that loading stays a matter of seconds.
PROBE_OPERATIONS = {"cpu": 4e11}
PROBE_OPERATIONS_ELSEWHERE = 4e15
SHORT_PROBE = 48
#: Tokens of a pass with many rows: all short prompts share one pass, each long prompt has its own.
_ROWS_TOKENS = 1_024
_PROBE_LABELS = 12
#: Floor of log-probabilities.
_NO_PROBABILITY = -1e3


def probe_length(model: PreTrainedModel, span: int | None) -> int:
    """Return the length of the longest probe prompt: beyond a span, such as a sliding window, if affordable."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    if span is None:
        return min(SHORT_PROBE, limit - 2)
    operations = PROBE_OPERATIONS.get(model.device.type, PROBE_OPERATIONS_ELSEWHERE)
    # All prompts, separately and together, cost about five times the longest prompt.
    affordable = int(operations / (5 * 2 * max(model.num_parameters(), 1)))
    wanted = span + span // 2 + SHORT_PROBE
    return min(wanted if wanted <= affordable else SHORT_PROBE, limit - 2)


def probe_requests(length: int, vocabulary: int) -> list[Request]:
    """Make prompts that share prefixes in every way.

    Branches, a prompt that is a prefix of another, label tries, and short prompts that differ only in the last token.
    """
    generator = np.random.default_rng(0)
    # The upper half of a vocabulary contains placeholders for images and the like.
    high = max(2, vocabulary // 2)
    ids: NDArray[np.int32] = generator.integers(0, high, size=2 * length, dtype=np.int32)
    stem, other = ids[:length], ids[length:]
    prompts = [
        stem,
        stem[: length // 2],
        np.concatenate([stem[: length // 2], other[: length // 3]]),
        np.concatenate([stem[: length // 2], other[: length // 6], stem[: length // 6]]),
    ]
    lone = ids[-min(SHORT_PROBE // 2, length) :]
    labels = generator.permutation(high)[: min(_PROBE_LABELS, high)].tolist()
    forms = [SurfaceForm(number, str(token), (token,)) for number, token in enumerate(labels)]
    flat = LabelTrie(forms, len(forms))
    forms.append(SurfaceForm(len(labels), "longer", (labels[0], labels[1])))
    trie = LabelTrie(forms, len(forms))
    return [
        # Few inner nodes: each one costs a plain pass, and the user waits for it at a first start.
        *(Request(prompt.astype(np.int32), trie if number == 1 else flat) for number, prompt in enumerate(prompts)),
        *(Request(np.append(lone[:-1], token).astype(np.int32), flat) for token in labels[:2]),
    ]


class PlainPasses:
    """Log-probabilities of probe prompts by plain passes, computed once for all engines that are compared.

    Every pass reads all weights, and widens those that are stored narrower: for a judge of 8 B on a CPU each one takes
    10 to 20 seconds at a first start.
    """

    def __init__(self, model: PreTrainedModel, head: Head) -> None:
        self.model, self.head = model, head
        self._known: dict[tuple[Any, ...], NDArray[np.float64]] = {}

    def by_row(self, requests: Sequence[Request]) -> list[NDArray[np.float64]]:
        """Read each prompt as a row, many in a pass: the reference for engines that put prompts into one row."""
        engine = PaddedEngine(self.model, self.head, batch_tokens=_ROWS_TOKENS)
        return self._read(engine, requests, "by row")

    def one_by_one(self, requests: Sequence[Request]) -> list[NDArray[np.float64]]:
        """Read every position in a separate pass: the reference for engines that put prompts into rows of a batch."""
        engine = PaddedEngine(self.model, self.head, batch_tokens=1, plain=True)
        return self._read(engine, requests, "one by one")

    def _read(self, engine: Engine, requests: Sequence[Request], how: str) -> list[NDArray[np.float64]]:
        keys = [(how, self.model.dtype, request.ids.tobytes(), request.trie.forms) for request in requests]
        new = [place for place, key in enumerate(keys) if key not in self._known]
        found = label_logprobs(engine, [requests[place] for place in new])
        self._known.update(zip((keys[place] for place in new), found, strict=True))
        return [self._known[key] for key in keys]


def effect_of_later_tokens(model: PreTrainedModel, head: Head, ids: NDArray[np.int32]) -> float:
    """Return how much, in nats, a prompt's figures change with the tokens after it: 0 in a causal model.

    The prompt is read in two rows of one length that differ after the prompt.
    """
    vocabulary = int(model.config.get_text_config().vocab_size)
    behind = np.random.default_rng(0).permutation(max(2, vocabulary // 2))[:2]
    trunk, found = Trunk(model), []
    for tail in (behind, behind[::-1]):
        row = torch.from_numpy(np.append(ids, tail).astype(np.int64))[None]
        with torch.inference_mode():
            logits = head.logits(trunk(row, use_cache=False)[0][:, len(ids) - 1])[0]
        # Tokens without any probability are equal in both.
        found.append(torch.log_softmax(logits.cpu().double(), dim=-1).clamp(min=_NO_PROBABILITY).numpy())
    return distance(found[:1], found[1:], model.dtype)


def distance(
    found: Sequence[NDArray[np.float64]], expected: Sequence[NDArray[np.float64]], dtype: torch.dtype
) -> float:
    """Return the distance of two engines' label log-probabilities in nats, by the measure of `TOLERANCE`."""
    differences = [np.abs(one - other) for one, other in zip(found, expected, strict=True)]
    if dtype in HALF:
        # A single prompt may differ a lot, for example if rounding sends a token to another expert.
        return float(np.median([difference.mean() for difference in differences]))
    return float(np.max([difference.max() for difference in differences]))


def label_logprobs(engine: Engine, requests: Sequence[Request]) -> list[NDArray[np.float64]]:
    """Plan and execute requests; return their label log-probabilities in order."""
    found = []
    for readout in read_all(engine, requests):
        if readout.error is not None and readout.error.code is ErrorCode.MEMORY:
            raise MemoryError(readout.error)
        if readout.label_logprobs is None:
            raise UnsupportedModelError(readout.error or "a probe prompt could not be read")
        # Labels without any probability are equal in both.
        found.append(np.maximum(readout.label_logprobs, _NO_PROBABILITY))
    return found


@contextmanager
def widened(model: PreTrainedModel) -> Iterator[bool]:
    """Temporarily convert a half-precision model to float32; its original tensors are restored afterwards."""
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.dtype in HALF]
    if not tensors or getattr(model, "is_quantized", False) or not _fits(tensors):
        yield False
        return
    narrow = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.float()
        yield True
    finally:
        for tensor, data in zip(tensors, narrow, strict=True):
            tensor.data = data


def _fits(tensors: list[Any]) -> bool:
    """Whether float32 copies take at most half of the free memory of every device."""
    needed: dict[torch.device, int] = {}
    for tensor in tensors:
        needed[tensor.device] = needed.get(tensor.device, 0) + 4 * tensor.numel()
    return all(2 * size <= free_memory(device) for device, size in needed.items())


def synthetic_requests(
    vocabulary: int,
    *,
    prefix: int,
    document: int,
    candidate: int,
    documents: int = 3,
    candidates: int = 4,
    seed: int = 1,
) -> list[Request]:
    """Make prompts like those of an evaluation: a metric's prefix, a document, a candidate."""
    generator = np.random.default_rng(seed)
    high = max(16, vocabulary // 2)

    def text(length: int) -> NDArray[np.int32]:
        return generator.integers(0, high, length, dtype=np.int32)

    tokens = generator.permutation(high)[:15].tolist()
    digits, labels = tokens[:10], tokens[10:]
    flat = LabelTrie([SurfaceForm(number, str(number), (token,)) for number, token in enumerate(labels)], len(labels))
    spelled = LabelTrie(
        [SurfaceForm(value, str(value), tuple(digits[int(digit)] for digit in str(value))) for value in range(101)], 101
    )
    head = text(prefix)
    made = []
    for _ in range(documents):
        source = text(document)
        made += [
            Request(np.concatenate([head, source, text(candidate)]), spelled if number % 4 == 3 else flat, head)
            for number in range(candidates)
        ]
    return made
