"""The prefix-sharing engine equals one prompt at a time, on every architecture that it serves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from prompts import (
    DEEP,
    FLAT,
    SERVED,
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

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.prefix_sharing import attention, key_value_store, packs
from geval_local.engine.prefix_sharing.engine import FLOOR, PrefixSharingEngine
from geval_local.engine.prefix_sharing.key_value_store import PathStore
from geval_local.engine.window import plan_units
from geval_local.models.head import Head
from geval_local.tokens.requests import Request

#: One prompt at a time, these compute attention or routing in float32 whatever the dtype of the model.
FLOAT64_TOLERANCE = {"gemma2": 1e-5, "deepseek_v3": 1e-5}


def engines(model, batch_tokens, **options):
    head = Head(model)
    alone = PaddedEngine(model, head, batch_tokens=1)
    return alone, PrefixSharingEngine(model, head, batch_tokens=batch_tokens, padded=alone, **options)


@pytest.mark.sweep("llama", "gemma3")
@pytest.mark.parametrize("kind", SERVED)
def test_float64_equals_one_at_a_time_on_every_architecture(kind):
    model = tiny_model(kind, VOCAB)
    requests = documents()
    expected = logprobs(engines(model, 1)[0], requests)
    for budget in (1, 7, 50, 10_000):
        trie = engines(model, budget)[1]
        assert largest_difference(logprobs(trie, requests), expected) < FLOAT64_TOLERANCE.get(kind, 1e-10)
        assert trie.computed_tokens == distinct_tokens(requests)


@pytest.mark.parametrize(("few", "many"), [(0, 1), (3, 8), (1 << 20, 1)])
def test_it_does_not_matter_where_shared_keys_are_attended_to(monkeypatch, few, many):
    """Real documents have many keys that many queries see; those of this test are too short for that."""
    model = tiny_model("llama", VOCAB)
    requests = documents()
    expected = logprobs(engines(model, 1)[0], requests)
    monkeypatch.setattr(attention, "FEW_KEYS", few)
    monkeypatch.setattr(attention, "MANY_QUERIES", many)
    for budget in (7, 50, 10_000):
        assert largest_difference(logprobs(engines(model, budget)[1], requests), expected) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(FLOAT64_TOLERANCE))
def test_float64_does_not_depend_on_the_packs_where_the_model_itself_is_less_exact(kind):
    model = tiny_model(kind, VOCAB)
    requests = documents()
    results = [logprobs(engines(model, budget)[1], requests) for budget in (1, 20, 10_000)]
    # Gemma 2's eager softmax is float32, ours is not; DeepSeek routes in float32 either way.
    tolerance = 1e-10 if kind == "gemma2" else 1e-5
    assert largest_difference(results[0], results[2]) < tolerance
    assert largest_difference(results[1], results[2]) < tolerance


@pytest.mark.sweep("llama")
@pytest.mark.parametrize("kind", SERVED)
def test_float32_equals_one_at_a_time_on_every_architecture(kind):
    # A wide initialization makes logits of several hundred (Granite), of which float32 holds fewer decimals.
    model = tiny_model(kind, VOCAB, torch.float32, **({"initializer_range": 0.1} if kind != "opt" else {}))
    requests = documents(seed=1)
    expected = logprobs(engines(model, 1)[0], requests)
    for budget in (9, 64):
        assert largest_difference(logprobs(engines(model, budget)[1], requests), expected) < 2e-5


@st.composite
def random_requests(draw):
    prompts = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=24), min_size=1, max_size=8))
    return [request(prompt, draw(st.sampled_from([FLAT, DEEP]))) for prompt in prompts]


@pytest.mark.sweep("llama")
@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt2", "gpt_oss"])
@settings(max_examples=example_count(25))
@given(requests=random_requests(), budget=st.integers(1, 80))
def test_random_tries_and_budgets(kind, requests, budget):
    model = tiny_model(kind, VOCAB)
    alone, trie = engines(model, budget)
    assert largest_difference(logprobs(trie, requests), logprobs(alone, requests)) < 1e-10
    assert trie.computed_tokens == distinct_tokens(requests)


@pytest.mark.sweep("mistral")
@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gemma3", "gpt_oss", "cohere2"])
def test_prompts_many_times_longer_than_the_window(kind):
    model = tiny_model(kind, VOCAB)
    requests = documents(seed=2, stem=70, documents=2)
    expected = logprobs(engines(model, 1)[0], requests)
    without_window = logprobs(engines(tiny_model(kind, VOCAB, sliding_window=4096), 1)[0], requests)
    assert largest_difference(expected, without_window) > 1e-2  # the window is felt at all
    for budget in (11, 40, 10_000):
        found = logprobs(engines(model, budget)[1], requests)
        assert largest_difference(found, expected) < FLOAT64_TOLERANCE.get(kind, 1e-10)


def test_scores_do_not_depend_on_order_company_or_repetition():
    model = tiny_model("qwen2", VOCAB)
    requests = documents(seed=3)
    trie = engines(model, 30)[1]
    together = logprobs(trie, requests)
    backwards = logprobs(trie, requests[::-1])[::-1]
    twice = logprobs(trie, [*requests, *requests])
    halves = logprobs(trie, requests[::2]), logprobs(trie, requests[1::2])
    assert largest_difference(together, backwards) < 1e-10
    assert largest_difference([*together, *together], twice) < 1e-10
    assert largest_difference(together[::2], halves[0]) < 1e-10
    assert largest_difference(together[1::2], halves[1]) < 1e-10


def test_packs_are_bounded_complete_and_a_function_of_the_requests():
    model = tiny_model("llama", VOCAB)
    requests = documents(seed=4)
    trie = engines(model, 17)[1]
    packs = trie.plan(requests)
    assert sum(pack.tokens for pack in packs) == distinct_tokens(requests)
    assert max(pack.tokens for pack in packs) <= 17
    assert sorted(index for pack in packs for index in pack.requests) == list(range(len(requests)))
    assert packs == trie.plan(requests)
    assert trie.plan([]) == []


def test_no_pass_is_larger_than_the_budget_and_none_has_a_mask():
    model = tiny_model("llama", VOCAB)
    trie = engines(model, 17)[1]
    seen = []

    def look(module, args, kwargs):
        seen.append(kwargs["hidden_states"].shape[1])
        assert kwargs["attention_mask"] is None

    model.model.layers[0].self_attn.register_forward_pre_hook(look, with_kwargs=True)
    readouts(trie, [request(np.arange(300) % VOCAB), *documents()])
    assert max(seen) == 17


def test_the_models_own_attention_comes_back():
    model = tiny_model("llama", VOCAB)
    tokens = torch.arange(20)[None]
    before = model(tokens).logits
    trie = engines(model, 17)[1]
    for _ in trie.execute(requests := documents(), trie.plan(requests)):
        assert model.config._attn_implementation == "sdpa"
        assert torch.equal(model(tokens).logits, before)


# --- what is kept from one call to the next


def branching(seed=0, documents=9, candidates=5, stem=20):
    """Documents with candidates of which some begin alike, behind one prefix; no prompt is part of another."""
    random = np.random.default_rng(seed)
    prefix = random.integers(0, VOCAB, stem)
    made = []
    for number in range(documents):
        document = [*prefix, number % 3, *random.integers(0, VOCAB, random.integers(30, 90))]
        for candidate in range(candidates):
            tail = random.integers(0, VOCAB, random.integers(5, 12))
            made.append(request([*document, *tail, 60, 60], DEEP if candidate % 2 else FLAT))
    return [made[index] for index in random.permutation(len(made))]


@pytest.mark.sweep("50-True")
@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("budget", [16, 50, 150, 300, 1000])
def test_units_are_small_independent_to_the_last_bit_and_compute_no_token_twice(budget, owned):
    model = tiny_model("llama", VOCAB, torch.float32)
    requests = branching()
    if owned:
        requests = [Request(entry.ids, entry.trie, entry.ids[:20]) for entry in requests]
    trie = engines(model, budget)[1]
    whole = readouts(trie, requests)
    assert trie.computed_tokens == distinct_tokens(requests)
    units = plan_units(trie, requests)
    # A prompt of 125 tokens is the largest of what cannot be cut; else a unit is a pack behind what it shares.
    if owned:
        assert max(sum(bool(pack.requests) for pack in unit.packs) for unit in units) <= 2
        assert len(units) >= distinct_tokens(requests) / budget / 3
    for unit in reversed(units):
        for engine in (trie, engines(model, budget)[1]):
            for pack, found in engine.execute(requests, unit.packs):
                for index, readout in zip(pack.requests, found, strict=True):
                    assert np.array_equal(readout.label_logprobs, whole[index].label_logprobs)


@pytest.mark.slow
def test_many_turns_of_one_dialogue_stay_together():
    """A pass for every turn would cost more than the tokens themselves."""
    random = np.random.default_rng(0)
    turns = random.integers(0, VOCAB, (20, 50))
    form = random.integers(0, VOCAB, 30)
    requests = [request([*turns[: size + 1].flatten(), *form, 60]) for size in range(20)]
    trie = engines(tiny_model("llama", VOCAB), 1024)[1]
    assert len(trie.plan(requests)) <= 4
    # Many dialogues are many units all the same.
    more = [request([*[number] * 9, *entry.ids.tolist()]) for number in range(30) for entry in requests]
    units = plan_units(trie, more)
    assert len(units) >= 30
    assert sum(len(unit.packs) for unit in units) < 1.5 * distinct_tokens(more) / 1024


@pytest.mark.slow
@settings(max_examples=example_count(60), deadline=None)
@given(requests=st.deferred(lambda: random_requests()), budget=st.integers(1, 40))
def test_a_unit_holds_all_that_is_read_for_its_requests(requests, budget):
    units = plan_units(engines(tiny_model("llama", VOCAB), budget)[1], requests)
    assert sorted(index for unit in units for index in unit.requests) == list(range(len(requests)))
    assert sum(unit.tokens for unit in units) == distinct_tokens(requests)
    for unit in units:
        work, start, stop = unit.packs[0].work, unit.packs[0].start, unit.packs[-1].stop
        low, high = np.searchsorted(work.places, [start, stop])
        assert {position.request for position in work.positions[low:high]} == set(unit.requests)


def with_prefix(requests, length):
    """Requests of a metric that owns the first tokens of every prompt."""
    prefix = (np.arange(length) * 7 % VOCAB).astype(np.int32)
    return [Request(np.concatenate([prefix, entry.ids]), entry.trie, prefix) for entry in requests]


def same_bits(one, other):
    return all(np.array_equal(first, second) for first, second in zip(one, other, strict=True))


@pytest.mark.sweep("50")
@pytest.mark.parametrize("budget", [16, 50, 10_000])
def test_a_metrics_prefix_is_computed_once_and_changes_no_bit(budget):
    model = tiny_model("llama", VOCAB, torch.float32)
    first, second = (with_prefix(documents(seed=seed), 41) for seed in (6, 7))
    alone, used = engines(model, budget)
    logprobs(used, first)
    assert used.computed_tokens == distinct_tokens(first)
    found = logprobs(used, second)
    assert used.computed_tokens == distinct_tokens(first) + distinct_tokens(second) - 41
    assert same_bits(found, logprobs(engines(model, budget)[1], second))
    assert largest_difference(found, logprobs(alone, second)) < 2e-5


def test_a_prompt_that_leaves_its_metrics_prefix_early_harms_nothing_behind_it():
    model = tiny_model("llama", VOCAB)
    good = with_prefix(documents(seed=6), 30)
    torn = good[0].ids.copy()
    torn[20] = (torn[20] + 1) % VOCAB
    requests = [Request(torn, good[0].trie, good[0].prefix), *good]
    alone, trie = engines(model, 16)
    for _ in range(2):
        assert largest_difference(logprobs(trie, requests), logprobs(alone, requests)) < 1e-10


@pytest.mark.slow
def test_prefixes_of_several_metrics_are_held_and_the_oldest_make_room(monkeypatch):
    for module in (key_value_store, packs):
        monkeypatch.setattr(module, "MOST_POSITIONS", 70)
    model = tiny_model("llama", VOCAB)
    alone, trie = engines(model, 16)
    sets = [with_prefix(documents(seed=size), size) for size in (20, 30, 40, 71)]

    def computed(requests):
        before = trie.computed_tokens
        assert largest_difference(logprobs(trie, requests), logprobs(alone, requests)) < 1e-10
        return trie.computed_tokens - before - distinct_tokens(requests)

    assert [computed(entry) for entry in sets] == [0, 0, 0, 0]
    # The third took the place of the first; the fourth is too long to be kept.
    assert [computed(sets[number]) for number in (2, 1, 3, 2)] == [-40, -30, 0, -40]
    assert computed(sets[0]) == 0


def test_a_prefix_that_memory_has_cut_is_not_kept(monkeypatch):
    model = tiny_model("llama", VOCAB)
    alone, trie = engines(model, 400)
    requests = with_prefix([request(np.arange(30) % VOCAB)], 300)
    run_short_of_memory(monkeypatch, model, lambda tokens, _: tokens > 110)
    assert largest_difference(logprobs(trie, requests), logprobs(alone, requests)) < 1e-10
    assert trie.limit == 75
    before = trie.computed_tokens
    logprobs(trie, requests)  # at the new limit it is computed once more, and kept
    assert trie.computed_tokens - before == distinct_tokens(requests)
    logprobs(trie, requests)
    assert trie.computed_tokens - before == 2 * distinct_tokens(requests) - 300


def test_a_prefix_that_does_not_fit_costs_its_prompts_and_no_pace(monkeypatch):
    model = tiny_model("llama", VOCAB)
    trie = engines(model, 400)[1]
    requests = with_prefix([request(range(30))], 300)
    run_short_of_memory(monkeypatch, model, lambda _, position: position > 100)
    (readout,) = readouts(trie, requests)
    assert "does not fit even piecemeal" in readout.error
    assert trie.limit == 400


@pytest.mark.parametrize("copies", [0, 1])
def test_a_prefix_that_memory_has_no_room_to_keep_is_computed_again_to_the_same_bits(monkeypatch, copies):
    model = tiny_model("llama", VOCAB, torch.float32)
    requests = with_prefix(documents(seed=6), 41)
    expected = logprobs(engines(model, 50)[1], requests)
    trie = engines(model, 50)[1]
    made = []
    copy = PathStore.copy

    def limited(path):
        made.append(path)
        if len(made) > copies:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return copy(path)

    monkeypatch.setattr(PathStore, "copy", limited)
    for _ in range(2):
        assert same_bits(logprobs(trie, requests), expected)
    assert len(made) == 2 + (copies == 1)
    assert trie.computed_tokens == 2 * distinct_tokens(requests)


@pytest.mark.slow
def test_two_runs_of_one_engine_may_take_turns():
    model = tiny_model("llama", VOCAB)
    alone, trie = engines(model, 13)
    first, second = documents(seed=8), documents(seed=9)
    found = logprobs_in_turns(trie, first, second)
    for requests, results in zip((first, second), found, strict=True):
        assert largest_difference(results, logprobs(alone, requests)) < 1e-10


# --- memory


def run_short_of_memory(monkeypatch, model, fails):
    """Let the trunk run out of memory whenever `fails(tokens, last position)` says so."""
    forward = type(model.model).forward.__get__(model.model)

    def given(ids, position_ids=None, **_):
        return position_ids is not None and fails(ids.shape[1], int(position_ids.max()))

    limited, sizes = short_of_memory(forward, given)
    monkeypatch.setattr(model.model, "forward", limited)
    return sizes


def test_packs_are_halved_until_they_fit_and_stay_so(monkeypatch):
    model = tiny_model("gemma3", VOCAB)
    requests = [request(np.arange(500) % VOCAB, DEEP), *documents(seed=10)]
    alone, trie = engines(model, 400)
    sizes = run_short_of_memory(monkeypatch, model, lambda tokens, _: tokens > 110)
    found = logprobs(trie, requests)
    assert sizes[:3] == [400, 200, 100]
    assert max(sizes[3:]) == 100
    assert trie.computed_tokens == distinct_tokens(requests)
    assert largest_difference(found, logprobs(alone, requests)) < 1e-10


def test_a_prompt_that_fails_at_the_floor_is_unscored_and_the_rest_is_not(monkeypatch):
    model = tiny_model("llama", VOCAB)
    long = np.arange(600) % VOCAB
    requests = [request(long), request([*long[:300], 7]), request([*long[:30], 3], DEEP), *documents(seed=11)]
    alone, trie = engines(model, 256)
    sizes = run_short_of_memory(monkeypatch, model, lambda _, last: last > 400)
    found = readouts(trie, requests)
    assert found[0].label_logprobs is None
    assert "out of memory" in found[0].error
    assert "600 tokens" in found[0].error
    assert [readout.error for readout in found[1:]] == [None] * (len(requests) - 1)
    assert largest_difference([readout.label_logprobs for readout in found[1:]], logprobs(alone, requests[1:])) < 1e-10
    assert FLOOR in sizes
    # One prompt that does not fit must not slow down others.
    assert max(sizes[sizes.index(FLOOR) + 1 :]) > FLOOR


@pytest.mark.parametrize("batch_tokens", [1, 5, FLOOR])
@pytest.mark.parametrize("failing", range(4))
def test_one_failure_at_a_small_pass_costs_no_row(monkeypatch, batch_tokens, failing):
    model = tiny_model("llama", VOCAB)
    requests = documents(seed=12)
    alone, trie = engines(model, batch_tokens)
    expected = logprobs(alone, requests)
    passes = itertools.count()
    run_short_of_memory(monkeypatch, model, lambda *_: next(passes) == failing)

    found = readouts(trie, requests)

    assert next(passes) > failing
    assert [readout.error for readout in found] == [None] * len(requests)
    assert largest_difference([readout.label_logprobs for readout in found], expected) < 1e-10
    assert trie.limit == batch_tokens


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch):
    model = tiny_model("llama", VOCAB)
    trie = engines(model, 16)[1]
    requests = documents()

    def broken(**_):
        raise RuntimeError("a shape does not fit")

    with monkeypatch.context() as patch:
        patch.setattr(model.model, "forward", broken)
        with pytest.raises(RuntimeError, match="shape"):
            readouts(trie, requests)
    assert largest_difference(logprobs(trie, requests), logprobs(engines(model, 1)[0], requests)) < 1e-10
