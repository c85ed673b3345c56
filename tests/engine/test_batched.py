"""The padded engine: every request once, the budget kept, memory problems handled, and no row affected by another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from prompts import by_plain_passes
from tiny import tiny_model

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.interface import Position, ReadoutTable
from geval_local.models.head import OTHER_TOKENS, Head, length_groups
from geval_local.models.memory import is_out_of_memory
from geval_local.tokens.label_trie import LabelTrie, SurfaceForm
from geval_local.tokens.requests import Request

VOCABULARY = 60
#: "1", "2", "10" in a digit tokenizer, with and without a space: reading paths of two lengths.
FORMS = [(0, (11,)), (1, (12,)), (2, (11, 10)), (0, (9, 11)), (1, (9, 12)), (2, (9, 11, 10))]
DIGITS = LabelTrie([SurfaceForm(label, str(ids), ids) for label, ids in FORMS], 3)
SINGLE = LabelTrie([SurfaceForm(label, str(label), (20 + label,)) for label in range(4)], 4)
MODEL = tiny_model("llama", VOCABULARY)


def an_engine(model=MODEL, **options) -> PaddedEngine:
    return PaddedEngine(model, Head(model), **options)


def some_requests(lengths, tries=(DIGITS, SINGLE), seed=0) -> list[Request]:
    generator = np.random.default_rng(seed)
    return [
        Request(generator.integers(30, VOCABULARY, length).astype(np.int32), tries[number % len(tries)])
        for number, length in enumerate(lengths)
    ]


def run(engine, requests):
    result = [None] * len(requests)
    for pack, readouts in engine.execute(requests, engine.plan(requests)):
        for index, readout in zip(pack.requests, readouts, strict=True):
            assert result[index] is None
            result[index] = readout
    assert None not in result
    return result


def run_out_of_memory(monkeypatch, *, above, error=torch.OutOfMemoryError, model=MODEL):
    """Let the trunk fail above a number of tokens, padding included; returns the sizes that it was asked for."""
    sizes = []
    forward = type(model.model).forward

    def limited(*arguments, **options):
        sizes.append(options["input_ids"].numel())
        if sizes[-1] > above:
            raise error("out of memory: can't allocate memory")
        return forward(model.model, *arguments, **options)

    monkeypatch.setattr(model.model, "forward", limited)
    return sizes


# --- the plan ---------------------------------------------------------------------------------------------------------


@settings(max_examples=example_count(150))
@given(lengths=st.lists(st.integers(1, 60), max_size=30), budget=st.integers(1, 400))
def test_the_plan_covers_each_request_once_within_the_budget(lengths, budget):
    requests = some_requests(lengths)
    engine = an_engine(batch_tokens=budget)
    packs = engine.plan(requests)
    order = [index for pack in packs for index in pack.requests]
    assert sorted(order) == list(range(len(requests)))
    sizes = [len(requests[index].ids) + requests[index].trie.depth for index in order]
    assert sizes == sorted(sizes, reverse=True)
    for pack in packs:
        rows = sum(len(requests[index].trie.reading_paths) for index in pack.requests)
        width = max(len(requests[index].ids) + requests[index].trie.depth for index in pack.requests)
        assert pack.tokens == rows * width
        assert pack.tokens <= budget or len(pack.requests) == 1
    assert engine.plan(requests) == packs == an_engine(batch_tokens=budget).plan(requests)


def test_packs_are_filled():
    """A plan of one request each would keep every promise above, and be slow."""
    requests = some_requests([20] * 12, tries=(SINGLE,))
    assert [len(pack.requests) for pack in an_engine(batch_tokens=100).plan(requests)] == [5, 5, 2]


# --- the figures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 100, 10_000])
def test_figures_equal_one_forward_pass_per_node(budget):
    requests = some_requests([3, 40, 17, 17, 1, 28])
    for request, readout in zip(requests, run(an_engine(batch_tokens=budget), requests), strict=True):
        assert readout.error is None
        np.testing.assert_allclose(readout.label_logprobs, by_plain_passes(MODEL, request), rtol=0, atol=1e-10)


@pytest.mark.parametrize("budget", [1, 150])
def test_no_batch_exceeds_the_budget_unless_it_is_one_row(budget, monkeypatch):
    requests = some_requests([3, 40, 17, 17, 1, 28])
    sizes = run_out_of_memory(monkeypatch, above=10**9)
    run(an_engine(batch_tokens=budget), requests)
    assert max(sizes) <= max(budget, 40 + DIGITS.depth)


def next_probabilities(ids):
    with torch.no_grad():
        logits = MODEL(torch.tensor(np.asarray(ids, dtype=np.int64)[None])).logits
    return torch.softmax(logits[0, -1], dim=-1).double().numpy()


def leaving(request):
    """Every token sequence that leaves the label trie, with its probability, by asking the model after each path."""
    found = {}
    for node in request.trie.inner_nodes:
        if node.path and any(form.token_ids == node.path for form in request.trie.forms):
            continue  # a label may end there
        reached = 1.0
        for place, token in enumerate(node.path):
            reached *= next_probabilities([*request.ids, *node.path[:place]])[token]
        for token, p in enumerate(next_probabilities([*request.ids, *node.path])):
            if token not in node.tokens:
                found[(*node.path, token)] = reached * p
    return found


def test_other_tokens_are_the_likeliest_that_leave_the_labels():
    for request, readout in zip(requests := some_requests([12, 12]), run(an_engine(), requests), strict=True):
        expected = leaving(request)
        likeliest = sorted(expected.values(), reverse=True)
        # Of the tokens that are looked at, those that do lead to labels are at most four.
        assert OTHER_TOKENS - 4 <= len(readout.other_tokens) <= OTHER_TOKENS
        for rank, (tokens, p) in enumerate(readout.other_tokens):
            np.testing.assert_allclose(p, expected[tokens], rtol=1e-6)
            if rank < OTHER_TOKENS - 4:
                np.testing.assert_allclose(p, likeliest[rank], rtol=1e-6)


def test_no_requests_are_no_packs():
    assert an_engine().plan([]) == []
    assert list(an_engine().execute([], [])) == []


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError, MemoryError])
def test_out_of_memory_halves_the_budget_goes_on_and_changes_no_score(monkeypatch, error):
    requests = some_requests([10, 30, 20, 25, 5, 30, 18, 9])
    expected = run(an_engine(), requests)
    engine = an_engine(batch_tokens=10_000)
    sizes = run_out_of_memory(monkeypatch, above=90, error=error)
    found = run(engine, requests)
    assert sizes[0] > 90  # the longest first: trouble shows at once
    assert engine.limit <= 90
    assert engine.batch_tokens == 10_000  # the plan of what follows stays as it was
    assert len([size for size in sizes if size > 90]) < 6  # remembered, not found out again for every batch
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.label_logprobs, other.label_logprobs, rtol=0, atol=1e-10)
    assert run(engine, requests)[0].error is None


def test_out_of_memory_in_the_head_is_survived_as_well(monkeypatch):
    requests = some_requests([10, 30, 20, 25])
    expected = run(an_engine(), requests)
    engine = an_engine(batch_tokens=10_000)
    logits = Head.logits

    def limited(self, hidden):
        if len(hidden) > 3:
            raise torch.OutOfMemoryError("logits")
        return logits(self, hidden)

    monkeypatch.setattr(Head, "logits", limited)
    for one, other in zip(run(engine, requests), expected, strict=True):
        np.testing.assert_allclose(one.label_logprobs, other.label_logprobs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("trie", [DIGITS, SINGLE])
def test_a_prompt_that_does_not_fit_even_alone_is_unscored_and_the_others_are_scored(monkeypatch, trie):
    requests = some_requests([10, 50, 20], tries=(trie,))
    expected = run(an_engine(), requests)
    run_out_of_memory(monkeypatch, above=40)
    found = run(an_engine(batch_tokens=10_000), requests)
    assert found[1].label_logprobs is None
    assert "out of memory: a prompt of 50 tokens" in found[1].error
    for place in (0, 2):
        np.testing.assert_allclose(found[place].label_logprobs, expected[place].label_logprobs, atol=1e-10)


def test_one_failure_of_a_lone_prompt_costs_no_row(monkeypatch):
    requests = some_requests([10, 50, 20])
    expected = run(an_engine(), requests)
    forward, calls = type(MODEL.model).forward, []

    def limited(*arguments, **options):
        calls.append(options["input_ids"].shape)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return forward(MODEL.model, *arguments, **options)

    monkeypatch.setattr(MODEL.model, "forward", limited)

    found = run(an_engine(batch_tokens=1), requests)

    assert calls[0] == calls[1]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.label_logprobs, other.label_logprobs, rtol=0, atol=1e-10)


def test_another_error_is_not_taken_for_memory(monkeypatch):
    run_out_of_memory(monkeypatch, above=0, error=ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        run(an_engine(), some_requests([5]))
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"))


def test_a_real_failed_allocation_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8).fill_(1)
    assert is_out_of_memory(caught.value)


# --- bad numbers ------------------------------------------------------------------------------------------------------


def test_nan_is_the_error_of_its_own_row_only():
    model = tiny_model("llama", VOCABULARY)
    requests = some_requests([10, 12, 14])
    expected = run(an_engine(model), requests)
    poisoned = np.array(requests[1].ids)
    poisoned[4] = 25
    requests[1] = Request(poisoned, requests[1].trie)
    model.model.embed_tokens.weight.data[25] = torch.nan
    found = run(an_engine(model), requests)
    assert found[1].label_logprobs is None
    assert "NaN" in found[1].error
    for place in (0, 2):
        np.testing.assert_allclose(found[place].label_logprobs, expected[place].label_logprobs, atol=1e-10)


def test_a_read_out_without_any_probability_is_an_error():
    requests = some_requests([4], tries=(SINGLE,))
    table = ReadoutTable(requests)
    table.add(Position(0, 0), np.full(SINGLE.edges, -np.inf), ())
    readout = table.take(0)
    assert readout.label_logprobs is None
    assert "no label" in readout.error


def test_an_unread_position_is_never_a_number():
    requests = some_requests([4])
    table = ReadoutTable(requests)
    table.add(Position(0, 0), np.zeros(3), ())
    with pytest.raises(AssertionError, match="lacks"):
        table.take(0)


# --- rotary switches --------------------------------------------------------------------------------------------------

SWITCH = 32


def long_rope_model(vocabulary=VOCABULARY):
    return tiny_model(
        "phi3",
        vocabulary,
        original_max_position_embeddings=SWITCH,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "short_factor": [1.0] * 4,
            "long_factor": [16.0] * 4,
            "original_max_position_embeddings": SWITCH,
        },
    )


def test_both_sides_of_a_long_rope_switch_in_one_run_equal_one_at_a_time():
    model = long_rope_model()
    requests = some_requests([10, SWITCH - 12, SWITCH + 5, SWITCH + 30, 20, SWITCH - 3, SWITCH + 1])
    found = run(an_engine(model, batch_tokens=10_000), requests)
    for request, readout in zip(requests, found, strict=True):
        np.testing.assert_allclose(readout.label_logprobs, by_plain_passes(model, request), rtol=0, atol=1e-6)


def test_the_switch_would_show():
    """Batched with a long prompt, a short one would be read with the long factors."""
    model = long_rope_model()
    short = some_requests([10])[0]
    padded = torch.zeros((1, SWITCH + 5), dtype=torch.long)
    padded[0, :10] = torch.from_numpy(short.ids.astype(np.int64))
    with torch.no_grad():
        alone, beside = model(padded[:, :10]).logits[0, 9], model(padded).logits[0, 9]
    assert (alone - beside).abs().max() > 1e-3


@pytest.mark.parametrize("length", range(SWITCH - 4, SWITCH + 3))
def test_a_request_at_the_switch_has_one_score_however_it_is_batched(length):
    model = long_rope_model()
    requests = some_requests([length, SWITCH + 20, 5], tries=(DIGITS,))
    together = run(an_engine(model, batch_tokens=10_000), requests)[0]
    row_by_row = run(an_engine(model, batch_tokens=1), requests[:1])[0]
    np.testing.assert_allclose(together.label_logprobs, row_by_row.label_logprobs, rtol=0, atol=1e-9)
    np.testing.assert_allclose(together.label_logprobs, by_plain_passes(model, requests[0]), rtol=0, atol=1e-6)


def test_length_groups():
    long_rope = length_groups(long_rope_model().config)
    assert [long_rope(length) for length in (1, SWITCH, SWITCH + 1, 4000)] == [0, 0, 1, 1]
    plain = length_groups(MODEL.config)
    assert plain(1) == plain(100_000)
    dynamic = tiny_model(
        "llama",
        VOCABULARY,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
    )
    group = length_groups(dynamic.config)
    assert group(10) == group(64) == 0
    assert len({group(length) for length in (64, 65, 66)}) == 3
    parts = {
        "full_attention": {"rope_type": "longrope", "original_max_position_embeddings": 100},
        "sliding_attention": {"rope_type": "longrope", "original_max_position_embeddings": 50},
        "other": None,
    }
    nested = length_groups(tiny_model("llama", VOCABULARY).config.__class__(rope_parameters=parts))
    assert [nested(length) for length in (1, 50, 51, 100, 101, 4000)] == [0, 0, 1, 1, 2, 2]
