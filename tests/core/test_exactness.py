"""The exactness claim: the engine's label probabilities equal the enumeration of every label string."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from brute_force import brute_force_labels
from tiny import byte_tokenizer, shared_tokenizer, tiny_model

from geval_local.engine.batched import PaddedEngine
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.models.head import Head
from geval_local.prompt import render_form
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.label_forms import label_variants
from geval_local.tokens.requests import RequestMaker

SCALES = {
    "1-5": "1-5",
    "1-3": "1-3",
    "0-10": "0-10",
    "0-100": "0-100",
    "yes-no": {"Yes": 1, "No": 0},
    "words": {"poor": 1, "fair": 2, "very good": 3},
}
#: Architectures on which every scale is enumerated; "0-100" on four of them, since it only repeats the same trie.
ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3", "gpt2", "gpt_neox", "opt", "falcon"]
ARCHITECTURES += ["bloom", "mixtral"]
LONG_SCALE_ARCHITECTURES = ["llama", "gemma2", "bloom", "opt"]
#: Architectures tested with prefix labels on a digit tokenizer.
MORE_ARCHITECTURES = ["granite", "cohere", "cohere2", "olmo2", "gpt_oss", "deepseek_v3", "qwen3_moe", "gptj", "mpt"]
MORE_ARCHITECTURES += ["phi", "mamba", "falcon_h1"]
CASES = [
    *((kind, scale) for kind in ARCHITECTURES for scale in SCALES if scale != "0-100"),
    *((kind, "0-100") for kind in LONG_SCALE_ARCHITECTURES),
    *((kind, "0-10") for kind in MORE_ARCHITECTURES),
]
#: MPT's softmax and the product of tokens with DeepSeek's router are float32 for any dtype of the model, and their sums
#: are ordered by the shape of a pass: ten float32 roundings. What else is float32 rounds alike in every pass.
FLOAT64_TOLERANCE = {"mpt": 1e-6, "deepseek_v3": 1e-6}
SAMPLES = [
    {"output": "A short one."},
    {"output": "A much longer text, which says 10 and 1 and nothing else, so that the batch is padded."},
]


def a_metric(scale: str) -> Metric:
    return Metric(
        name="x/quality",
        introduction="Rate it.",
        criteria="Is it good?",
        scale=SCALES[scale],
        steps=(),
        case_variants=scale == "yes-no",
    )


def engine_probabilities(model, tokenizer, metric, batch_tokens=10_000):
    """P(l | form) of all SAMPLES from the engine, in one batch."""
    maker = RequestMaker(PromptEncoder(tokenizer), metric, context=4096)
    requests = [entry.request for entry in maker.prepare([Sample(fields) for fields in SAMPLES])]
    engine = PaddedEngine(model, Head(model), batch_tokens=batch_tokens)
    result = {}
    for pack, readouts in engine.execute(requests, engine.plan(requests)):
        for index, readout in zip(pack.requests, readouts, strict=True):
            assert readout.error is None
            result[index] = np.exp(readout.label_logprobs)
    return [result[index] for index in range(len(SAMPLES))]


def oracle(model, tokenizer, metric):
    spellings = [
        [lead + variant for variant in label_variants(label, case_variants=metric.case_variants) for lead in ("", " ")]
        for label in metric.scale.labels
    ]
    return [brute_force_labels(model, tokenizer, render_form(metric, fields).text, spellings) for fields in SAMPLES]


@pytest.mark.sweep("llama-1-5", "gemma2-words", "bloom-0-10")
@pytest.mark.parametrize(("kind", "scale"), CASES)
def test_every_architecture_equals_brute_force(kind, scale):
    tokenizer = byte_tokenizer()
    metric = a_metric(scale)
    model = tiny_model(kind, len(tokenizer))
    expected = oracle(model, tokenizer, metric)
    for found, wanted in zip(engine_probabilities(model, tokenizer, metric), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=FLOAT64_TOLERANCE.get(kind, 1e-10))
    narrow = engine_probabilities(model.float(), tokenizer, metric)
    for found, wanted in zip(narrow, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["gpt2", "pythia", "olmo2", "mistral", "qwen"])
def test_every_real_tokenizer_equals_brute_force(name, scale):
    tokenizer = shared_tokenizer(name)
    metric = a_metric(scale)
    model = tiny_model("llama", len(tokenizer), hidden_size=16, num_hidden_layers=1)
    for found, wanted in zip(
        engine_probabilities(model, tokenizer, metric), oracle(model, tokenizer, metric), strict=True
    ):
        assert wanted.max() > 0
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-10)


def test_a_small_budget_changes_nothing():
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", len(tokenizer))
    metric = a_metric("0-100")
    for found, wanted in zip(
        engine_probabilities(model, tokenizer, metric, batch_tokens=1),
        engine_probabilities(model, tokenizer, metric),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_the_prefix_rule_matters():
    """Without the rule "1" would include "10": the results differ on this model, so the test above can fail."""
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", len(tokenizer))
    metric = a_metric("0-10")
    maker = RequestMaker(PromptEncoder(tokenizer), metric, context=4096)
    request = maker.prepare([Sample(SAMPLES[0])])[0].request
    root = (
        Head(model)
        .edge_logprobs(
            model.model(torch.tensor(request.ids[None].astype(np.int64)))[0][:, -1],
            np.array([tokenizer.convert_tokens_to_ids(["1"])]),
        )
        .wait()
    )
    one = engine_probabilities(model, tokenizer, metric)[0][1]
    assert np.exp(root.logprobs[0, 0]) > 0
    assert maker.reader.trie.collisions() == [(1, 10)]
    assert one != pytest.approx(float(np.exp(root.logprobs[0, 0])), rel=1e-5)
