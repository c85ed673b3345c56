"""Rotary embeddings that change with length: earlier prompts have no effect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from prompts import VOCAB, largest_difference, logprobs, request
from tiny import tiny_model

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import choose_engine
from geval_local.models.head import Head
from geval_local.models.rope import rope_reset

SWITCH = 32


def dynamic_model(kind="llama"):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    return tiny_model(kind, VOCAB, max_position_embeddings=SWITCH, rope_parameters=rope)


def prompts(*lengths):
    return [request(np.random.default_rng(length).integers(0, VOCAB, length)) for length in lengths]


def alone(prompt):
    """On a fresh model."""
    model = dynamic_model()
    return logprobs(PaddedEngine(model, Head(model), batch_tokens=1), [prompt])[0]


def test_the_switch_is_felt():
    model = dynamic_model()
    model(torch.arange(60)[None] % VOCAB)
    short = prompts(SWITCH)[0]
    head = Head(model)
    with torch.inference_mode():
        grown = head.edge_logprobs(
            model.model(torch.from_numpy(short.ids.astype(np.int64))[None])[0][0, -1:], np.array([[1, 2, 3]])
        )
    assert np.abs(grown.logprobs[0] - alone(short)).max() > 1e-6


@pytest.mark.parametrize("choice", ["trie", "cache", "padded"])
def test_a_prompt_beyond_the_switch_does_not_change_later_ones(choice):
    model = dynamic_model()
    engine, _ = choose_engine(model, Head(model), choice)
    requests = prompts(60, 50, SWITCH + 1, SWITCH, SWITCH - 1, 20)
    expected = [alone(prompt) for prompt in requests]
    for order in (slice(None), slice(None, None, -1), slice(None)):
        assert largest_difference(logprobs(engine, requests[order]), expected[order]) < 1e-6
    # One after the other, too.
    found = [logprobs(engine, [prompt])[0] for prompt in requests]
    assert largest_difference(found, expected) < 1e-6


def test_embeddings_that_do_not_grow_are_left_alone():
    model = tiny_model("llama", VOCAB)
    before = model.model.rotary_emb.inv_freq
    rope_reset(model)()
    assert model.model.rotary_emb.inv_freq is before
