"""Texts that are drawn: the same alone and in company, and those of plain passes without any cache."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
import torch
from architectures import STRANGE, unusual
from tiny import KINDS, byte_tokenizer, save_judge, tiny_model

from geval_local.engine import transformers_backend
from geval_local.engine.backend import Draw, Sampling
from geval_local.judge.judge import Judge
from geval_local.models.generate import drawn_token, end_tokens, generate_paragraphs
from geval_local.models.load import own_sampling
from geval_local.thinking import Drawing

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
        ids.append(drawn_token(logits, numbers.random(), Drawing(temperature, top_p)))
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
    sampling = Sampling(Drawing(0.8, 0.95), TOKENS, lambda text, tokens: False)
    found = dict(one for batch in judge.backend.sample(asked, sampling) for one in batch)

    for place, draw in enumerate(asked):
        expected = by_plain_passes(judge.backend.loaded.model, draw, ends, 0.8, 0.95)
        assert found[place][: len(expected)] == expected


def busy_draws():
    """Prompts of all lengths with a common beginning, some of them several times, on both sides of sliding windows."""
    rng = np.random.default_rng(1)
    beginning = rng.integers(8, 250, size=6)
    prompts = [
        np.concatenate([beginning, rng.integers(8, 250, size=size)]).astype(np.int32) for size in range(1, 40, 4)
    ]
    return [
        Draw(prompts[place], seed) for seed, place in enumerate((0, 1, 2, 2, 2, 3, 9, 4, 4, 5, 6, 6, 7, 8, 9, 0, 3))
    ]


def ends_anywhere(text, tokens):
    """End a text between its first and its 40th token, by what it begins with."""
    return tokens >= 1 + zlib.crc32(text[:1].encode()) % 40


BUSY = Sampling(Drawing(0.8, 0.95), 60, ends_anywhere)


def finished(text, tokenizer):
    """Cut a text where `ends_anywhere` ends it, if its end token does not."""
    text = upto(text, end_tokens(tokenizer))
    return next(
        (text[:size] for size in range(1, len(text)) if ends_anywhere(tokenizer.decode(text[:size]), size)), text
    )


@pytest.mark.sweep("gemma3", "qwen3_next")
@pytest.mark.parametrize("kind", sorted({*KINDS, *STRANGE} - {"rwkv"}))  # alone, its own loop writes other texts
def test_a_thought_is_the_same_alone_and_in_a_busy_batch(tmp_path, monkeypatch, kind):
    """Others are padded and over earlier; in float64 no token moves."""
    tokenizer = byte_tokenizer()
    model = tiny_model(kind, len(tokenizer)) if kind in KINDS else unusual(kind, vocab_size=len(tokenizer)).double()
    directory = save_judge(tmp_path, model, tokenizer)
    backend = Judge.load(directory, style="completion", dtype="float64", engine="padded").backend
    asked = busy_draws()
    alone = [finished(next(iter(backend.sample([draw], BUSY)))[0][1], tokenizer) for draw in asked]
    monkeypatch.setattr(transformers_backend, "TEXTS_AT_ONCE", 5)
    busy = dict(one for batch in backend.sample(asked, BUSY) for one in batch)

    assert len({len(text) for text in alone}) > 3
    assert [finished(busy[place], tokenizer) for place in range(len(asked))] == alone


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    tokenizer = byte_tokenizer()
    directory = save_judge(tmp_path_factory.mktemp("llama"), tiny_model("llama", len(tokenizer)), tokenizer)
    return Judge.load(directory, style="completion", engine="padded").backend


def test_groups_are_a_function_of_the_draws(llama, monkeypatch):
    """Without the draws of the first groups, those of the others have the same bits, also in float32."""
    monkeypatch.setattr(transformers_backend, "TEXTS_AT_ONCE", 2)
    asked = busy_draws()
    whole = list(llama.sample(asked, BUSY))
    assert [len(batch) for batch in whole] == [2] * 8 + [1]
    places = sorted(place for batch in whole[1:] for place, _ in batch)
    rest = list(llama.sample([asked[place] for place in places], BUSY))
    assert [[(places[place], text) for place, text in batch] for batch in rest] == whole[1:]


def test_a_batch_that_does_not_fit_is_halved_and_texts_stay_the_same(llama, monkeypatch):
    whole = dict(one for batch in llama.sample(draws(), BUSY) for one in batch)
    written, sizes = transformers_backend.generate_samples, []

    def limited(model, tokenizer, prompts, *given, **named):
        sizes.append(len(prompts))
        if len(prompts) > 2:
            raise MemoryError("out of memory")
        return written(model, tokenizer, prompts, *given, **named)

    monkeypatch.setattr(transformers_backend, "generate_samples", limited)
    parts = dict(one for batch in llama.sample(draws(), BUSY) for one in batch)
    assert sizes == [6, 3, 1, 1, 1, 1, 1, 1]
    assert {place: finished(new, llama.tokenizer) for place, new in parts.items()} == {
        place: finished(new, llama.tokenizer) for place, new in whole.items()
    }


def test_reasons_of_a_model_with_plain_attention_are_those_of_single_prompts():
    """BLOOM computes NaN for a prompt that is padded on the left, and wrote nothing for it."""
    tokenizer, model = byte_tokenizer(), tiny_model("bloom", 263)
    prompts = [draw.ids for draw in draws()[:2]]
    alone = [generate_paragraphs(model, tokenizer, [ids], max_new_tokens=6)[0] for ids in prompts]
    assert generate_paragraphs(model, tokenizer, prompts, max_new_tokens=6) == alone
    assert all(one.text for one in alone)


def test_settings_of_draws_are_those_of_the_models_own_file(tmp_path):
    assert own_sampling(None) == own_sampling(tmp_path) == Drawing()
    file = tmp_path / "generation_config.json"
    for content, expected in (
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1}, Drawing(0.6, 0.95, 20, 0.1)),
        ({"temperature": 0.0, "top_p": 2, "top_k": -1, "min_p": 0, "repetition_penalty": 1.0}, Drawing()),
        ({"temperature": "hot", "top_k": True}, Drawing()),
        ({"repetition_penalty": 1.8, "typical_p": 1}, Drawing(ignored=("repetition_penalty",))),
        ([1], Drawing()),
    ):
        file.write_text(json.dumps(content))
        assert own_sampling(tmp_path) == expected
    file.write_text("{")
    assert own_sampling(tmp_path) == Drawing()
