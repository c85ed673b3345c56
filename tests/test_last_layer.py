"""The last layer at the read-out positions only: the same figures for less work, or not at all."""

from __future__ import annotations

import pytest
import torch
from test_trie_engine import SERVED, VOCAB, documents, largest_difference, logprobs
from tiny import tiny_model

from geval_local.inference import gate, trie
from geval_local.inference.last_layer import token_wise_parts
from geval_local.inference.padded import PaddedEngine
from geval_local.inference.readout import Head, trunk_of
from geval_local.inference.trie import TrieEngine


def engine(model, prune, batch_tokens=40):
    head = Head(model)
    padded = PaddedEngine(model, head, batch_tokens=1)
    return TrieEngine(model, head, batch_tokens=batch_tokens, padded=padded, prune=prune)


@pytest.mark.parametrize("kind", SERVED)
def test_figures_are_the_same_and_fewer_rows_are_computed(kind):
    model = tiny_model(kind, VOCAB)
    parts = token_wise_parts(trunk_of(model))
    assert parts
    requests = documents()
    counts = {}
    found = {}
    for prune in (True, False):
        rows = []
        hooks = [
            module.register_forward_hook(lambda _, given, __, rows=rows: rows.append(given[0].numel()))
            for part in parts
            for module in part.modules()
            if isinstance(module, torch.nn.Linear)
        ]
        found[prune] = logprobs(engine(model, prune), requests)
        counts[prune] = sum(rows)
        for hook in hooks:
            hook.remove()
    assert largest_difference(found[True], found[False]) < 1e-10
    # The matrices of some are no Linear: those of GPT-2 and of experts.
    assert counts[True] < counts[False] / 2 or counts[False] == 0


def test_a_model_is_left_as_it_was():
    model = tiny_model("llama", VOCAB)
    logprobs(engine(model, True), documents())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_pruning_is_dropped_where_it_does_not_serve(monkeypatch):
    model = tiny_model("llama", VOCAB)
    # Behind the first layer others look at every token.
    monkeypatch.setattr(trie, "token_wise_parts", lambda trunk: [trunk.layers[0].mlp])
    report, ways = gate._probe_trie(model, Head(model))
    assert report.reason is None
    assert ways == {"fused": False, "prune": False}
