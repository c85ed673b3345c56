"""A real GGUF file in its own blocks: the tensors that the package gguf reads, and the scores of its safetensors."""

from __future__ import annotations

import numpy as np
import pytest

gguf = pytest.importorskip("gguf")

from geval_local import Judge, Metric  # noqa: E402 - needs gguf
from geval_local.engine.transformers_backend import TransformersBackend  # noqa: E402
from geval_local.models.gguf.file import read_header  # noqa: E402
from geval_local.models.load import load_model  # noqa: E402
from geval_local.models.registry import find_judge  # noqa: E402
from geval_local.models.stored import Stored  # noqa: E402

pytestmark = pytest.mark.slow

METRIC = Metric(name="coherence", criteria="How well it hangs together.", scale="1-5", fields={"output": "Text"})
METRIC = METRIC.with_steps(("Read the text.", "Choose a score."))
ROWS = [{"output": text} for text in ("The cat sat on the mat, and then it slept.", "Mat the sat. Cat on. 10!", "x")]


def widened(weight):
    return (weight.widened() if isinstance(weight, Stored) else weight).numpy()


def test_a_real_file_scores_as_its_dequantized_safetensors(smollm2_gguf, smollm2_judge):
    """The safetensors are transformers' own conversion, and the judge that is kept of them."""
    header = read_header(smollm2_gguf)
    assert (header.architecture, len(header.tensors), header.own("context_length")) == ("llama", 272, 8192)
    loaded = load_model(find_judge(smollm2_gguf))
    assert (loaded.parameters, loaded.entry.style, loaded.entry.context) == (134515008, "chat", 8192)
    assert loaded.memory_bytes < 1.01 * smollm2_gguf.stat().st_size
    # Read by the package gguf alone, apart from transformers.
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(smollm2_gguf).tensors}
    model = loaded.model.model
    for name, own in (
        ("token_embd.weight", model.embed_tokens.weight),
        ("blk.7.ffn_down.weight", model.layers[7].mlp.down_proj.weight),
    ):
        tensor = tensors[name]
        np.testing.assert_allclose(gguf.dequantize(tensor.data, tensor.tensor_type), widened(own), atol=1e-7)
    scores = Judge(TransformersBackend(loaded)).score_many(METRIC, ROWS)
    for score, expected in zip(scores, smollm2_judge.score_many(METRIC, ROWS), strict=True):
        assert score.probabilities == expected.probabilities  # to the last bit
        assert score.label_mass == expected.label_mass > 0.3
