"""Rotary embeddings that change with length: every figure is that of a plain pass on a fresh model."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from prompts import DEEP, FLAT, VOCAB, by_plain_passes, largest_difference, logprobs, request
from tiny import byte_tokenizer, tiny_model

from benchmarks.baselines.likelihood import Continuation, mean_logprobs
from geval_local.engine.choose import choose_engine
from geval_local.models.generate import generate_list, generate_paragraphs
from geval_local.models.head import Head, rope_reset

#: Beyond the probe prompts, which would all be read by padded batches otherwise.
SWITCH = 64
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
PLAIN = {"rope_type": "default", "rope_theta": 10_000.0}


def long_rope(size):
    long = {"rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": SWITCH}
    return long | {"short_factor": [1.0] * size, "long_factor": [16.0] * size}


#: Model type and its settings. By layer type, Gemma 3 keeps two embeddings.
ROPES = {
    "dynamic": ("llama", {"max_position_embeddings": SWITCH, "rope_parameters": DYNAMIC}),
    "long": ("phi3", {"original_max_position_embeddings": SWITCH, "rope_parameters": long_rope(4)}),
    "dynamic by layer": (
        "gemma3",
        {
            "max_position_embeddings": SWITCH,
            "rope_parameters": {"full_attention": DYNAMIC, "sliding_attention": PLAIN},
        },
    ),
    "long by layer": ("gemma3", {"rope_parameters": {"full_attention": long_rope(8), "sliding_attention": PLAIN}}),
    "both by layer": (
        "gemma3",
        {
            "max_position_embeddings": SWITCH + 8,
            "rope_parameters": {"full_attention": DYNAMIC, "sliding_attention": long_rope(8)},
        },
    ),
}


def rope_model(kind, vocabulary=VOCAB):
    name, settings = ROPES[kind]
    return tiny_model(name, vocabulary, **copy.deepcopy(settings))


def prompts(*lengths, trie=FLAT):
    return [request(np.random.default_rng(length).integers(0, VOCAB, length), trie) for length in lengths]


class Fresh:
    """A model that forgets after every pass."""

    def __init__(self, model):
        self.model = model

    def __call__(self, *given, **options):
        return copy.deepcopy(self.model)(*given, **options)


@pytest.mark.parametrize("kind", ROPES)
def test_the_switch_is_felt(kind):
    model = Fresh(rope_model(kind))
    (short,) = prompts(SWITCH)
    ids = torch.from_numpy(short.ids.astype(np.int64))[None]
    with torch.no_grad():
        alone = model(ids).logits[0, -1]
        beside = model(torch.cat([ids, torch.zeros((1, 28), dtype=torch.long)], dim=1)).logits[0, SWITCH - 1]
    assert (alone - beside).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ROPES)
def test_prompts_on_both_sides_of_the_switch_are_read_as_plain_passes_do(kind):
    model = rope_model(kind)
    requests = prompts(SWITCH + 28, *[SWITCH + 18] * 2, SWITCH + 1, SWITCH, SWITCH - 1, SWITCH - 2, 20)
    requests += prompts(SWITCH + 29, SWITCH + 9, SWITCH + 7, SWITCH, SWITCH - 1, SWITCH - 2, 9, trie=DEEP)
    expected = [by_plain_passes(Fresh(model), one) for one in requests]
    for choice in ("trie", "cache", "padded"):
        engine, report = choose_engine(model, Head(model), choice)
        assert report.engine == choice
        for order in (slice(None), slice(None, None, -1), slice(None)):
            assert largest_difference(logprobs(engine, requests[order]), expected[order]) < 1e-6, choice
        # One after the other, too.
        found = [logprobs(engine, [prompt])[0] for prompt in requests]
        assert largest_difference(found, expected) < 1e-6, choice


@pytest.mark.parametrize("kind", ROPES)
def test_the_likelihood_of_a_text_is_that_of_a_plain_pass(kind):
    model = rope_model(kind)
    given = prompts(SWITCH + 40, SWITCH + 30, SWITCH + 1, SWITCH, 20)
    texts = [Continuation(one.ids, len(one.ids) // 2) for one in given]
    expected = []
    for text in texts:
        ids = torch.from_numpy(text.ids.astype(np.int64))
        with torch.no_grad():
            logs = torch.log_softmax(Fresh(model)(ids[None]).logits[0].double(), dim=-1)
        expected.append(float(logs[text.start - 1 : -1].gather(1, ids[text.start :, None]).mean()))
    for budget in (1, 10_000):
        found = mean_logprobs(model, Head(model), texts, batch_tokens=budget)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ROPES)
def test_what_is_written_depends_neither_on_company_nor_on_earlier_passes(kind):
    tokenizer = byte_tokenizer()
    model = rope_model(kind, len(tokenizer))
    given = [one.ids for one in prompts(SWITCH - 12, SWITCH + 18, SWITCH - 4, 9)]
    with warnings.catch_warnings():
        alone = [
            generate_paragraphs(copy.deepcopy(model), tokenizer, [ids], max_new_tokens=10)[0].text for ids in given
        ]
        listed = generate_list(copy.deepcopy(model), tokenizer, given[0], max_new_tokens=6)
        together = generate_paragraphs(model, tokenizer, given, max_new_tokens=10)
        model(torch.arange(SWITCH + 28)[None])
        assert generate_list(model, tokenizer, given[0], max_new_tokens=6) == listed
    assert [one.text for one in together] == alone


def test_embeddings_that_do_not_grow_are_left_alone():
    model = tiny_model("llama", VOCAB)
    before = model.model.rotary_emb.inv_freq
    rope_reset(model)()
    assert model.model.rotary_emb.inv_freq is before
