"""Texts that are drawn: the same alone and in company, and those of plain passes without any cache."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tiny import KINDS, byte_tokenizer, save_judge, tiny_model

from geval_local.engine.backend import Draw, Sampling
from geval_local.judge.judge import Judge
from geval_local.models.generate import drawn_token, end_tokens, generate_paragraphs
from geval_local.models.load import own_sampling

TOKENS = 6


def draws():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(8, 250, size=size).astype(np.int32) for size in (20, 31, 20)]
    return [Draw(prompts[place], seed) for seed, place in enumerate((0, 1, 0, 2, 1, 0))]


def upto(new, ends):
    """Cut a text behind its first end token."""
    last = next((place for place, token in enumerate(new) if token in ends), len(new))
    return new[: last + 1]


def by_plain_passes(model, draw, ends, temperature, top_p):
    """Draw token by token; every pass computes the whole text."""
    numbers, ids = np.random.Generator(np.random.Philox(key=draw.seed)), draw.ids.tolist()
    for _ in range(TOKENS):
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1].double().numpy()
        ids.append(drawn_token(logits, numbers.random(), temperature, top_p))
        if ids[-1] in ends:
            break
    return ids[len(draw.ids) :]


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_is_what_plain_passes_draw(tmp_path, kind):
    tokenizer = byte_tokenizer()
    model = tiny_model(kind, len(tokenizer))
    judge = Judge.load(save_judge(tmp_path, model, tokenizer), style="completion", dtype="float64", engine="padded")
    ends, asked = end_tokens(tokenizer), draws()
    sampling = Sampling(0.8, 0.95, TOKENS, lambda text, tokens: False)
    found = dict(one for batch in judge.backend.sample(asked, sampling) for one in batch)

    for place, draw in enumerate(asked):
        expected = by_plain_passes(judge.backend.loaded.model, draw, ends, 0.8, 0.95)
        assert found[place][: len(expected)] == expected


def test_batches_that_do_not_fit_are_halved_and_stay_the_same(tmp_path, monkeypatch):
    tokenizer = byte_tokenizer()
    directory = save_judge(tmp_path, tiny_model("llama", len(tokenizer)), tokenizer)
    judge = Judge.load(directory, style="completion", dtype="float64", engine="padded")
    sampling = Sampling(1.0, 1.0, TOKENS, lambda text, tokens: False)
    whole = dict(one for batch in judge.backend.sample(draws(), sampling) for one in batch)
    from geval_local.engine import transformers_backend

    generate, sizes = transformers_backend.generate_samples, []

    def limited(model, tokenizer, prompts, *given, **named):
        sizes.append(len(prompts))
        if len(prompts) > 2:
            raise MemoryError("out of memory")
        return generate(model, tokenizer, prompts, *given, **named)

    monkeypatch.setattr(transformers_backend, "generate_samples", limited)
    parts = dict(one for batch in judge.backend.sample(draws(), sampling) for one in batch)
    assert sizes == [6, 3, 1, 1, 1, 1, 1, 1]
    ends = end_tokens(tokenizer)
    assert {place: upto(new, ends) for place, new in parts.items()} == {
        place: upto(new, ends) for place, new in whole.items()
    }


def test_reasons_of_a_model_with_plain_attention_are_those_of_single_prompts():
    """BLOOM computes NaN for a prompt that is padded on the left, and wrote nothing for it."""
    tokenizer, model = byte_tokenizer(), tiny_model("bloom", 263)
    prompts = [draw.ids for draw in draws()[:2]]
    alone = [generate_paragraphs(model, tokenizer, [ids], max_new_tokens=6)[0] for ids in prompts]
    assert generate_paragraphs(model, tokenizer, prompts, max_new_tokens=6) == alone
    assert all(one.text for one in alone)


def test_temperature_and_top_p_are_those_of_the_models_own_file(tmp_path):
    assert own_sampling(None) == own_sampling(tmp_path) == (1.0, 1.0)
    file = tmp_path / "generation_config.json"
    for content, expected in (
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, (0.6, 0.95)),
        ({"temperature": 0.0, "top_p": 2}, (1.0, 1.0)),
        ({"temperature": "hot"}, (1.0, 1.0)),
        ([1], (1.0, 1.0)),
    ):
        file.write_text(json.dumps(content))
        assert own_sampling(tmp_path) == expected
    file.write_text("{")
    assert own_sampling(tmp_path) == (1.0, 1.0)
