"""The last layer at the read-out positions only: the same figures for less work, or not at all."""

from __future__ import annotations

import pytest
import torch
from prompts import SERVED, VOCAB, documents, largest_difference, logprobs
from tiny import tiny_model

from geval_local.engine import choose as gate
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.prefix_sharing import forward as launch
from geval_local.engine.prefix_sharing.engine import TrieEngine
from geval_local.engine.prefix_sharing.last_layer import LastLayer, last_layer_of
from geval_local.models.head import Head, trunk_of


def engine(model, prune, batch_tokens=40):
    head = Head(model)
    padded = PaddedEngine(model, head, batch_tokens=1)
    return TrieEngine(model, head, batch_tokens=batch_tokens, padded=padded, prune=prune)


def linear_layers(parts):
    return [module for part in parts for module in part.modules() if isinstance(module, torch.nn.Linear)]


@pytest.mark.parametrize("kind", SERVED)
def test_figures_are_the_same_and_fewer_rows_are_computed(kind):
    model = tiny_model(kind, VOCAB)
    layer = last_layer_of(trunk_of(model))
    assert layer.parts
    assert layer.projections
    requests = documents()
    counts = {}
    found = {}
    for prune in (True, False):
        rows = {"parts": [], "projections": []}
        hooks = [
            module.register_forward_hook(lambda _, given, __, rows=rows[name]: rows.append(given[0].numel()))
            for name in rows
            for module in linear_layers(getattr(layer, name))
        ]
        found[prune] = logprobs(engine(model, prune), requests)
        counts[prune] = {name: sum(numbers) for name, numbers in rows.items()}
        for hook in hooks:
            hook.remove()
    assert largest_difference(found[True], found[False]) < 1e-10
    # The matrices of some are no Linear: those of GPT-2 and of experts.
    assert counts[True]["parts"] < counts[False]["parts"] / 2 or counts[False]["parts"] == 0
    # Of the attention's matrices those of keys and values are given everything.
    projected = counts[True]["projections"] / max(1, counts[False]["projections"])
    assert (0.4 < projected < 0.8 if layer.queries else 0.5 < projected < 0.95) or kind == "gpt2"
    names = {name for name, _ in trunk_of(model).named_modules()}
    assert bool(layer.queries) is any(name.endswith(("q_proj", "q_b_proj")) for name in names)


@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma2", "gemma3", "gpt_oss", "deepseek_v3"])
def test_only_read_out_positions_attend_there(kind, monkeypatch):
    model = tiny_model(kind, VOCAB)
    queries = []
    call = launch.PackAttention.__call__

    def watched(self, query, *given, **options):
        layer = len(self.windows)
        out = call(self, query, *given, **options)
        rows = out.flatten(1).abs().sum(1).nonzero().flatten().tolist()
        queries.append((layer, query.shape[1], rows, self._parts.asking.tolist()))
        return out

    monkeypatch.setattr(launch.PackAttention, "__call__", watched)
    logprobs(engine(model, True), documents())
    assert {layer for layer, *_ in queries} == {0, 1}
    assert all(len(rows) == tokens for layer, tokens, rows, _ in queries if layer == 0)
    assert all(rows == asking for layer, _, rows, asking in queries if layer == 1)
    assert (
        sum(len(asking) for layer, _, _, asking in queries if layer)
        < sum(tokens for layer, tokens, *_ in queries if layer) / 2
    )


def test_a_model_is_left_as_it_was():
    model = tiny_model("llama", VOCAB, torch.float32)
    logprobs(engine(model, True), documents())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("place", ["parts", "projections", "number", "queries"])
def test_pruning_is_dropped_where_it_does_not_serve(place, monkeypatch):
    model = tiny_model("llama", VOCAB)
    last = last_layer_of(model.model)
    # Behind the first layer others look at every token, and its key matrix is no output projection.
    wrong = {
        "parts": LastLayer(1, (model.model.layers[0].mlp,), ()),
        "projections": LastLayer(0, (), (model.model.layers[1].self_attn.k_proj,)),
        "queries": LastLayer(1, (), *[(model.model.layers[1].self_attn.k_proj,)] * 2),
        "number": LastLayer(0, last.parts, last.projections),
    }[place]
    monkeypatch.setattr(launch, "last_layer_of", lambda trunk: wrong)
    report, ways = gate._probe_trie(model, Head(model))
    assert report.reason is None
    assert ways == {"fused": False, "prune": False}
