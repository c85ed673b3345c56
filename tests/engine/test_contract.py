"""What every engine keeps, whatever computes: one plan, the order, and figures of plain passes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from programs import Program
from prompts import DEEP, FLAT, VOCAB, documents, label_trie, largest_difference, logprobs, readouts, request
from tiny import tiny_model

from geval_local.engine.asked import MOST_TOKENS, AskedEngine
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.interface import read_all
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.engine.shared_cache import SharedCacheEngine
from geval_local.engine.window import execute, plan_units
from geval_local.models.head import Head

EXACT = 1e-10


def engine_of(name, model, batch_tokens=60):
    head = Head(model)
    padded = PaddedEngine(model, head, batch_tokens=batch_tokens)
    return {
        "padded": padded,
        "plain": PaddedEngine(model, head, batch_tokens=1, plain=True),
        "trie": PrefixSharingEngine(model, head, batch_tokens=batch_tokens, padded=padded),
        "cache": SharedCacheEngine(model, head, batch_tokens=batch_tokens, padded=padded),
        "asked": AskedEngine("asked", Program(model).ask, batch_tokens=batch_tokens, block=4),
    }[name]


NAMES = ("padded", "plain", "trie", "cache", "asked")
pytestmark = pytest.mark.parametrize("name", NAMES)
MODEL = tiny_model("llama", VOCAB)


def expected(requests):
    """Label log-probabilities by one plain pass a node."""
    program = Program(MODEL)
    found = []
    for one in requests:
        edges = [program.logprobs([*one.ids.tolist(), *node.path])[list(node.tokens)] for node in one.trie.inner_nodes]
        found.append(one.trie.label_logprobs(np.concatenate(edges)))
    return found


def test_prompts_of_every_kind_have_the_figures_of_plain_passes_in_their_order(name):
    """One token, duplicates, a prompt that is another's prefix; label tries of one and of three levels."""
    requests = documents(seed=3)
    assert largest_difference(logprobs(engine_of(name, MODEL), requests), expected(requests)) < EXACT


def test_a_plan_is_a_pure_function_and_has_every_request_once(name):
    engine, requests = engine_of(name, MODEL), documents(seed=4)
    plan = engine.plan(requests)

    assert engine.plan(requests) == plan == engine_of(name, MODEL).plan(requests)
    assert sorted(index for pack in plan for index in pack.requests) == list(range(len(requests)))
    units = [pack.unit for pack in plan]
    assert units == sorted(units)


def test_units_may_be_executed_apart_and_in_any_number(name):
    requests = documents(seed=5)
    whole = read_all(engine_of(name, MODEL), requests)
    engine = engine_of(name, MODEL)
    for unit in plan_units(engine, requests)[::-1]:
        ((_, found),) = execute(engine, requests, [unit])
        for index, readout in zip(unit.requests, found, strict=True):
            assert np.abs(readout.label_logprobs - whole[index].label_logprobs).max() < EXACT


def test_nothing_to_read_is_no_plan(name):
    engine = engine_of(name, MODEL)
    assert engine.plan([]) == []
    assert read_all(engine, []) == []


def test_other_tokens_are_those_of_plain_passes(name):
    """Labels of little mass: what took the rest is listed, likeliest first."""
    requests = [request([3, 1, 4, 1, 5], DEEP), request([9, 2, 6], FLAT)]
    (first, second) = (readouts(engine_of(which, MODEL), requests) for which in (name, "plain"))
    for one, other in zip(first, second, strict=True):
        assert np.exp(one.label_logprobs).sum() < 0.9
        found, wanted = one.other_tokens[:4], other.other_tokens[:4]
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in wanted]
        assert [p for _, p in found] == pytest.approx([p for _, p in wanted], abs=1e-9)


def test_figures_that_are_no_numbers_cost_the_row(name):
    model = tiny_model("llama", VOCAB)
    with torch.no_grad():
        model.model.embed_tokens.weight[7] = float("nan")
    good, bad = request([1, 2, 3]), request([1, 7, 3])
    found = readouts(engine_of(name, model), [good, bad, good])
    assert found[1].label_logprobs is None
    assert "NaN" in found[1].error
    assert found[0].error is None


def test_many_labels(name):
    """More children than a program takes in one question."""
    model = tiny_model("llama", 300)
    wide = label_trie(*((token,) for token in range(MOST_TOKENS * 2 + 3)))
    requests = [request([5, 6], wide), request([5, 6, 7], wide)]
    found = logprobs(engine_of(name, model), requests)
    program = Program(model)
    for one, figures in zip(requests, found, strict=True):
        assert np.abs(figures - program.logprobs(one.ids)[: wide.labels]).max() < EXACT


def test_a_lack_of_memory_or_an_answer_costs_its_row_alone(name, monkeypatch):
    model = tiny_model("llama", VOCAB)
    requests = [request([1, 2, 3]), request(range(50)), request([1, 2, 4], DEEP)]
    engine = engine_of(name, model)
    if name == "asked":
        program = Program(model)
        program.refuse = lambda ids: "out of memory: it is too long" if len(ids) >= 50 else None
        engine = AskedEngine("asked", program.ask, batch_tokens=60)
    else:
        forward = type(model.model).forward.__get__(model.model)

        def limited(*given, **named):
            ids = named.get("input_ids", given[0] if given else None)
            positions = named.get("position_ids")
            last = ids.shape[1] if positions is None else int(positions.max()) + 1
            if last >= 50:
                raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
            return forward(*given, **named)

        monkeypatch.setattr(model.model, "forward", limited)
    found = readouts(engine, requests)
    assert "out of memory" in found[1].error
    assert [found[0].error, found[2].error] == [None, None]
