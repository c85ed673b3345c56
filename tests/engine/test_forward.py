"""The host does not wait for the device between packs: who is called when, and that nothing looks at a figure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from prompts import VOCAB, distinct_tokens, documents, largest_difference, logprobs, logprobs_in_turns, readouts
from tiny import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

from geval_local.engine import interface as engine
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.prefix_sharing.engine import TrieEngine
from geval_local.models import head as readout
from geval_local.models.head import Head


def engines(model, batch_tokens=20, runs_ahead=True):
    head = Head(model)
    alone = PaddedEngine(model, head, batch_tokens=1)
    trie = TrieEngine(model, head, batch_tokens=batch_tokens, padded=alone)
    trie._runs_ahead = runs_ahead
    return alone, trie


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

    from geval_local.engine.prefix_sharing.forward import Launcher

    watch(Launcher, "launch", "launch")
    watch(engine.PendingPositions, "wait", "wait")
    return happened


def run_through(trie, requests, calls):
    for _ in trie.execute(requests, trie.plan(requests)):
        calls.append("given out")


def test_the_next_pack_is_launched_before_anything_is_waited_for(calls):
    trie = engines(tiny_model("llama", VOCAB))[1]
    requests = documents(seed=1)
    packs = len(trie.plan(requests))
    run_through(trie, requests, calls)
    assert calls.count("launch") == packs
    launched = 0
    for call in calls:
        launched += call == "launch"
        if call == "wait":
            waited = calls[: calls.index(call) + 1].count("wait")
            assert launched >= min(packs, waited + 1)


def test_on_a_cpu_every_pack_is_given_out_before_the_next_is_computed(calls):
    trie = engines(tiny_model("llama", VOCAB), runs_ahead=False)[1]
    requests = documents(seed=1)
    run_through(trie, requests, calls)
    for number, call in enumerate(calls):
        if call == "wait":
            assert calls[number - 1] == "launch"
            assert calls[number + 1] == "given out"


@pytest.mark.parametrize("kind", ["llama", "gemma3", "gpt_oss"])
@pytest.mark.parametrize("batch_tokens", [1, 20, 10_000])
def test_running_ahead_changes_no_bit_and_computes_nothing_twice(kind, batch_tokens):
    model = tiny_model(kind, VOCAB, torch.float32)
    requests = documents(seed=2)
    plain = engines(model, batch_tokens, runs_ahead=False)[1]
    ahead = engines(model, batch_tokens)[1]
    expected, found = logprobs(plain, requests), logprobs(ahead, requests)
    assert all(np.array_equal(one, other) for one, other in zip(expected, found, strict=True))
    assert ahead.computed_tokens == plain.computed_tokens == distinct_tokens(requests)


def test_a_smaller_limit_set_in_between_holds_for_the_next_pack():
    """As a resumed run does: before each pack it sets the limit that the pack had the first time."""
    model = tiny_model("llama", VOCAB, torch.float32)
    requests = documents(seed=3)
    found = []
    for runs_ahead in (False, True):
        trie = engines(model, 40, runs_ahead)[1]
        results = {}
        for number, (pack, readings) in enumerate(trie.execute(requests, trie.plan(requests))):
            results.update(zip(pack.requests, readings, strict=True))
            trie.limit = 7 if number == 1 else 40
        found.append([results[index].label_logprobs for index in range(len(requests))])
        assert trie.computed_tokens == distinct_tokens(requests)
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def test_memory_that_runs_out_ahead_of_its_turn_is_met_again_in_its_turn():
    model = tiny_model("llama", VOCAB, torch.float32)
    requests = documents(seed=4, documents=12, candidates=8)
    alone, trie = engines(model, 200)
    trunk, sizes, limits, results = trie._launcher.trunk, [], [], {}

    def limited(input_ids, **options):
        sizes.append(input_ids.shape[1])
        if len(sizes) > 2 and input_ids.shape[1] > 110:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return trunk(input_ids=input_ids, **options)

    trie._launcher.trunk = limited
    for pack, readings in trie.execute(requests, trie.plan(requests)):
        limits.append(trie.limit)
        results.update(zip(pack.requests, readings, strict=True))
    # The third pack fails while the second is given out, which must not be put down to the second: a resumed run sets
    # the limit that every pack had. In its own turn it fails again, and the limit is halved.
    assert sizes[:6] == [200, 200, 200, 200, 100, 100]
    assert limits[:3] == [200, 200, 100]
    assert trie.computed_tokens == distinct_tokens(requests)
    assert largest_difference([results[i].label_logprobs for i in sorted(results)], logprobs(alone, requests)) < 1e-4


def test_two_runs_in_turns_take_nothing_that_was_launched_for_the_other():
    model = tiny_model("llama", VOCAB)
    alone, trie = engines(model, 13)
    first, second = documents(seed=8), documents(seed=9)
    for requests, results in zip((first, second), logprobs_in_turns(trie, first, second), strict=True):
        assert largest_difference(results, logprobs(alone, requests)) < 1e-10


def test_what_was_launched_ahead_is_forgotten_with_the_rest():
    model = tiny_model("llama", VOCAB, torch.float32)
    trie = engines(model)[1]
    requests = documents(seed=5)
    fresh = logprobs(trie, requests)
    trie.forget()
    broken_off = trie.execute(requests, trie.plan(requests))
    next(broken_off)
    assert trie._ahead is not None
    trie.forget()
    assert trie._ahead is None
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
