"""A shared prefix cache is exact, or the probe detects that it is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from architectures import STRANGE, llama4, unusual
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from prompts import (
    DEEP,
    FLAT,
    VOCAB,
    distinct_tokens,
    documents,
    largest_difference,
    logprobs,
    logprobs_in_turns,
    readouts,
    request,
    short_of_memory,
)
from tiny import tiny_model

from geval_local.engine import choose as gate
from geval_local.engine import probe
from geval_local.engine.batched import PaddedEngine, rows_of
from geval_local.engine.choose import choose_engine
from geval_local.engine.shared_cache import PASS_TOKENS, PASS_TOKENS_ELSEWHERE, SharedCacheEngine, batches
from geval_local.engine.window import plan_units
from geval_local.errors import UnsupportedModelError
from geval_local.models.head import Head

#: Parts of most of them are computed in float32 whatever the dtype of the model: scans, rotations, biases.
TOLERANCE = {"falcon": 1e-10, "llama": 1e-10, "gemma3": 1e-10}
EXACT = ["falcon_h1", "falcon", "bloom", "gptj", "mpt", "llama", "gemma3"]
#: Their recurrent state is not handed to a continuation of more than one token, in some versions of transformers.
DOUBTFUL = ["mamba", "mamba2"]


def engines(model, batch_tokens=4096):
    head = Head(model)
    alone = PaddedEngine(model, head, batch_tokens=1)
    return alone, SharedCacheEngine(model, head, batch_tokens=batch_tokens, padded=alone)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", EXACT)
def test_float64_equals_one_at_a_time(kind):
    model = tiny_model(kind, VOCAB)
    requests = documents()
    expected = logprobs(engines(model)[0], requests)
    for budget in (1, 7, 50, 10_000):
        engine = engines(model, budget)[1]
        assert largest_difference(logprobs(engine, requests), expected) < TOLERANCE.get(kind, 1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", EXACT)
def test_float32_equals_one_at_a_time(kind):
    model = tiny_model(kind, VOCAB, torch.float32)
    requests = documents(seed=1)
    expected = logprobs(engines(model)[0], requests)
    for budget in (9, 4096):
        assert largest_difference(logprobs(engines(model, budget)[1], requests), expected) < 5e-5


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", EXACT)
def test_the_gate_lets_it_serve_what_it_is_exact_for(kind, dtype):
    model = tiny_model(kind, VOCAB, dtype)
    engine, report = choose_engine(model, Head(model), "cache")
    assert (engine.name, report.engine, report.reason) == ("cache", "cache", None)
    assert report.difference <= report.tolerance
    if kind in ("llama", "gemma3"):
        return
    engine, report = choose_engine(model, Head(model))
    assert (engine.name, report.engine) == ("cache", "cache")
    assert "no trie: its layers take no attention function" in report.text


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", DOUBTFUL)
def test_exact_or_noticed(kind, dtype):
    model = tiny_model(kind, VOCAB, dtype)
    if dtype == torch.bfloat16:
        exact = choose_engine(model.float(), Head(model), "auto")[1].engine == "cache"
        model = tiny_model(kind, VOCAB, dtype)
    else:
        alone, engine = engines(model)
        exact = largest_difference(logprobs(engine, documents()), logprobs(alone, documents())) < 1e-3
    chosen, report = choose_engine(model, Head(model))
    assert chosen.name == report.engine == ("cache" if exact else "padded")
    if not exact:
        assert "a shared cache does not help: label log-probabilities differ" in report.reason
        with pytest.raises(UnsupportedModelError, match="cannot share prefixes exactly"):
            choose_engine(model, Head(model), "cache")


@pytest.mark.sweep("jamba")
@pytest.mark.parametrize("kind", STRANGE)
def test_whatever_is_chosen_for_the_strange_is_exact(kind):
    model = unusual(kind, initializer_range=0.1)
    requests = documents(seed=2)
    expected = logprobs(alone := PaddedEngine(model, Head(model), batch_tokens=1), requests)
    engine, _ = choose_engine(model, Head(model))
    assert largest_difference(logprobs(engine, requests), expected) < 1e-4
    # A probe also leaves no state in a model that keeps its state internally.
    assert largest_difference(logprobs(alone, requests), expected) == 0


def test_a_state_that_is_lost_is_noticed(monkeypatch):
    model = tiny_model("falcon_h1", VOCAB)
    update = transformers.cache_utils.LinearAttentionLayer.update_recurrent_state

    def losing(self, recurrent_states, *args, **options):
        return update(self, torch.zeros_like(recurrent_states), *args, **options)

    monkeypatch.setattr(transformers.cache_utils.LinearAttentionLayer, "update_recurrent_state", losing)
    report = choose_engine(model, Head(model))[1]
    assert report.engine == "padded"
    assert "a shared cache does not help" in report.reason


def test_a_prefix_too_short_to_be_shared_is_no_proof():
    model = tiny_model("bloom", VOCAB, seq_length=4096)
    model.config.max_position_embeddings = 10
    report = choose_engine(model, Head(model))[1]
    assert report.engine == "padded"
    assert "too short to share a prefix" in report.reason


def test_chunks_that_no_probe_reaches_are_said_or_refused(monkeypatch):
    monkeypatch.setitem(probe.PROBE_OPERATIONS, "cpu", 0.0)
    model = tiny_model("falcon_h1", VOCAB, mamba_chunk_size=256)
    report = choose_engine(model, Head(model))[1]
    assert (report.engine, report.window) == ("cache", 256)
    assert "window 256 not reached" in report.text
    monkeypatch.setattr(gate, "stated_refusal", lambda model: "for this test")
    model = tiny_model("llama", VOCAB)
    model.config.attention_chunk_size, model.config.layer_types = 256, ["chunked_attention"] * 2
    assert choose_engine(model, Head(model))[1].engine == "padded"


@st.composite
def random_requests(draw):
    """Prompts of a few long blocks, so that they share long prefixes."""
    blocks = [np.random.default_rng(seed).integers(0, VOCAB, 17 + seed) for seed in range(3)]
    made = []
    for _ in range(draw(st.integers(1, 8))):
        chosen = draw(st.lists(st.sampled_from(blocks), max_size=3))
        tail = draw(st.lists(st.integers(0, 2), min_size=0 if chosen else 1, max_size=4))
        made.append(request(np.concatenate([*chosen, tail]), draw(st.sampled_from([FLAT, DEEP]))))
    return made


@pytest.mark.slow
@settings(max_examples=example_count(40))
@given(requests=random_requests(), budget=st.integers(1, 80))
def test_random_tries_and_budgets(requests, budget):
    model = tiny_model("llama", VOCAB)
    alone, engine = engines(model, budget)
    packs = engine.plan(requests)
    assert sorted(index for pack in packs for index in pack.requests) == list(range(len(requests)))
    assert largest_difference(logprobs(engine, requests), logprobs(alone, requests)) < 1e-10
    assert engine.computed_tokens == sum(pack.tokens for pack in packs)


def test_what_is_shared_is_computed_once():
    random = np.random.default_rng(0)
    prefix, sources = random.integers(0, VOCAB, 200), random.integers(0, VOCAB, (4, 300))
    tails = random.integers(0, VOCAB, (8, 20))
    requests = [request(np.concatenate([prefix, source, tail])) for source in sources for tail in tails]
    engine = engines(tiny_model("falcon_h1", VOCAB, torch.float32))[1]
    readouts(engine, requests)
    assert engine.computed_tokens == 200 + 4 * 300 + 4 * 8 * 20
    # Another plan cuts its prefixes elsewhere; what was computed in other pieces has other last bits.
    readouts(engine, requests[-8:])
    assert engine.computed_tokens == 200 + 4 * 300 + 4 * 8 * 20 + 500 + 8 * 20
    readouts(engine, requests[-8:])
    assert engine.computed_tokens == 200 + 4 * 300 + 4 * 8 * 20 + 500 + 2 * 8 * 20


def summaries(documents=4, candidates=16):
    """Lengths as in SummEval: candidates of 30 to 130 tokens, some of which begin alike."""
    random = np.random.default_rng(3)
    prefix = random.integers(0, VOCAB, 210)
    made = []
    for _ in range(documents):
        source = random.integers(0, VOCAB, random.integers(350, 590))
        openings = [random.integers(0, VOCAB, size) for size in (0, 0, 9, 15, 40)]
        for number in range(candidates):
            candidate = [*openings[number % 5], *random.integers(0, VOCAB, random.integers(30, 90))]
            made.append(request([*prefix, *source, *candidate, 1, 2, 3]))
    return made


def test_a_processor_computes_few_tokens_twice_or_for_nothing():
    """Within a twentieth of the distinct ones, padding included."""
    requests = summaries()
    engine = engines(tiny_model("falcon_h1", VOCAB, torch.float32))[1]
    assert sum(pack.tokens for pack in engine.plan(requests)) <= 1.05 * distinct_tokens(requests)


def test_where_a_pass_is_dear_there_are_fewer_of_them():
    made = [rows_of(number, one, lambda length: 0)[0] for number, one in enumerate(summaries())]
    rows = sorted(made, key=lambda row: row.tokens)
    cheap, dear = (list(batches(rows, 4096, cost)) for cost in (PASS_TOKENS["cpu"], PASS_TOKENS_ELSEWHERE))
    assert len(cheap) > 2 * len(dear)
    for found in (cheap, dear):
        assert sorted(row.tokens for _, batch in found for row in batch) == [row.tokens for row in rows]
        for cuts, batch in found:
            assert len({row.tokens[: cuts[-1] if cuts else 0] for row in batch}) == 1


@pytest.mark.sweep("40-falcon_h1")
@pytest.mark.parametrize("kind", ["llama", "falcon_h1", "bloom"])
@pytest.mark.parametrize("budget", [40, 300])
def test_a_unit_gives_the_same_bits_whatever_was_executed_before(kind, budget):
    model = tiny_model(kind, VOCAB, torch.float32)
    requests = documents(seed=4, stem=40, documents=5)
    used = engines(model, budget)[1]
    whole = readouts(used, requests)
    for unit in reversed(plan_units(used, requests)):
        for engine in (used, engines(model, budget)[1]):
            for pack, found in engine.execute(requests, unit.packs):
                for index, readout in zip(pack.requests, found, strict=True):
                    assert np.array_equal(readout.label_logprobs, whole[index].label_logprobs)


@pytest.mark.slow
def test_two_runs_of_one_engine_may_take_turns():
    model = tiny_model("falcon_h1", VOCAB)
    alone, engine = engines(model, 20)
    first, second = documents(seed=8), documents(seed=9)
    found = logprobs_in_turns(engine, first, second)
    for requests, results in zip((first, second), found, strict=True):
        assert largest_difference(results, logprobs(alone, requests)) < 1e-5


def test_batches_are_halved_until_they_fit_and_what_never_fits_goes_without_a_cache(monkeypatch):
    model = tiny_model("llama", VOCAB)
    alone, engine = engines(model, 400)
    stem = np.random.default_rng(0).integers(0, VOCAB, 60)
    requests = [request([*stem, number, *stem[:20]]) for number in range(12)]
    requests.append(request([*stem, *stem, *stem]))
    limited, sizes = short_of_memory(
        model.model.forward, lambda ids, **options: ids.numel() > 110 and "past_key_values" in options
    )
    monkeypatch.setattr(model.model, "forward", limited)
    found = logprobs(engine, requests)
    assert max(sizes) > 110
    assert engine.limit < 400
    assert largest_difference(found, logprobs(alone, requests)) < 1e-10


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch):
    model = tiny_model("llama", VOCAB)
    engine = engines(model)[1]

    def broken(**_):
        raise RuntimeError("a shape does not fit")

    monkeypatch.setattr(model.model, "forward", broken)
    with pytest.raises(RuntimeError, match="shape"):
        readouts(engine, documents())


def test_whatever_is_chosen_for_attention_in_chunks_is_exact():
    model = llama4()
    requests = documents(seed=3)
    engine, report = choose_engine(model, Head(model))
    assert report.engine != "trie"
    alone = PaddedEngine(model, Head(model), batch_tokens=1)
    assert largest_difference(logprobs(engine, requests), logprobs(alone, requests)) < 1e-4
