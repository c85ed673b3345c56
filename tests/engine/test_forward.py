"""The host does not wait for the device between packs: the order of calls, and that no figure is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from prompts import VOCAB, distinct_tokens, documents, largest_difference, logprobs, logprobs_in_turns, readouts
from tiny import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from geval_local.engine import pending
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.models import head as readout
from geval_local.models.head import Head


def engines(model, batch_tokens=20, look_ahead=1):
    head = Head(model)
    alone = PaddedEngine(model, head, batch_tokens=1)
    return alone, PrefixSharingEngine(model, head, batch_tokens=batch_tokens, padded=alone, look_ahead=look_ahead)


@pytest.fixture
def calls(monkeypatch):
    """Names of what happens, in order: a pack is launched, its figures are waited for, they are given out."""
    happened = []

    def watch(owner, name, word):
        original = getattr(owner, name)

        def watched(self, *given, **options):
            happened.append(word)
            return original(self, *given, **options)

        monkeypatch.setattr(owner, name, watched)

    from geval_local.engine.prefix_sharing.engine import Launcher

    watch(Launcher, "launch", "launch")
    watch(pending.PendingPositions, "wait", "wait")
    return happened


def run_through(trie, requests, calls):
    for _ in trie.execute(requests, trie.plan(requests)):
        calls.append("given out")


@pytest.mark.parametrize("look_ahead", [1, 2, 4])
def test_the_next_packs_are_launched_before_anything_is_waited_for(calls, look_ahead):
    trie = engines(tiny_model("llama", VOCAB), look_ahead=look_ahead)[1]
    requests = documents(seed=1)
    packs = len(trie.plan(requests))
    run_through(trie, requests, calls)
    assert calls.count("launch") == packs
    launched = 0
    for call in calls:
        launched += call == "launch"
        if call == "wait":
            waited = calls[: calls.index(call) + 1].count("wait")
            assert launched >= min(packs, waited + look_ahead)


def test_without_looking_ahead_every_pack_is_given_out_before_the_next_is_computed(calls):
    trie = engines(tiny_model("llama", VOCAB), look_ahead=0)[1]
    requests = documents(seed=1)
    run_through(trie, requests, calls)
    for number, call in enumerate(calls):
        if call == "wait":
            assert calls[number - 1] == "launch"
            assert calls[number + 1] == "given out"


@pytest.mark.sweep("20-llama")
@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("batch_tokens", [1, 20, 10_000])
def test_running_ahead_changes_no_bit_and_computes_nothing_twice(kind, batch_tokens):
    model = tiny_model(kind, VOCAB, torch.float32)
    requests = documents(seed=2)
    plain = engines(model, batch_tokens, look_ahead=0)[1]
    ahead = engines(model, batch_tokens)[1]
    expected, found = logprobs(plain, requests), logprobs(ahead, requests)
    assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))
    assert ahead.computed_tokens == plain.computed_tokens == distinct_tokens(requests)


def test_memory_that_runs_out_while_figures_are_awaited_halves_what_follows(monkeypatch):
    model = tiny_model("llama", VOCAB, torch.float32)
    requests = documents(seed=4, documents=12, candidates=8)
    alone, trie = engines(model, 200)
    expected = logprobs(alone, requests)
    forward, sizes = type(model.model).forward, []

    def limited(input_ids, **options):
        sizes.append(input_ids.shape[1])
        if len(sizes) > 2 and input_ids.shape[1] > 110:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return forward(model.model, input_ids=input_ids, **options)

    monkeypatch.setattr(model.model, "forward", limited)
    assert largest_difference(logprobs(trie, requests), expected) < 1e-4
    assert max(sizes[3:]) <= 110
    assert trie.limit <= 110
    assert trie.computed_tokens == distinct_tokens(requests)


def test_two_runs_in_turns_take_nothing_that_was_launched_for_the_other():
    model = tiny_model("llama", VOCAB)
    alone, trie = engines(model, 13)
    first, second = documents(seed=8), documents(seed=9)
    for requests, results in zip((first, second), logprobs_in_turns(trie, first, second), strict=True):
        assert largest_difference(results, logprobs(alone, requests)) < 1e-10


def test_what_was_launched_ahead_and_never_asked_for_changes_no_bit():
    model = tiny_model("llama", VOCAB, torch.float32)
    trie = engines(model)[1]
    requests = documents(seed=5)
    fresh = logprobs(trie, requests)
    packs = trie.plan(requests)
    broken_off = trie.execute(requests, packs)
    next(broken_off)
    broken_off.close()
    assert all(np.array_equal(one, other) for one, other in zip(fresh, logprobs(trie, requests), strict=True))


class Looks(TorchDispatchMode):
    """Counts the operations that make a host wait for a device: reading a number, or finding out a size."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "item", "equal", "is_nonzero")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name.startswith(self.WAITING):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gemma3", "mistral", "gpt2"])
def test_a_launch_looks_at_no_figure_and_copies_once(kind, monkeypatch):
    trie = engines(tiny_model(kind, VOCAB, torch.float32))[1]
    requests = documents(seed=6)
    copies = []
    arriving = readout.Arriving

    def counted(tensor):
        copies.append(tuple(tensor.shape))
        return arriving(tensor)

    monkeypatch.setattr(readout, "Arriving", counted)
    with Looks() as looks:
        readouts(trie, requests)
    assert looks.seen == []
    packs = [range(pack.start, pack.stop) for pack in trie.plan(requests)]
    places = trie.plan(requests)[0].work.places.tolist()
    assert len(copies) == sum(any(place in pack for place in places) for pack in packs)
