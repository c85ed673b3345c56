"""The read-out: the model's own head with all its scaling, in float32, and the model unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from architectures import llama4
from tiny import KINDS, tiny_model

from geval_local.errors import UnsupportedModelError
from geval_local.models import head as readout
from geval_local.models.head import Head, input_device, trunk_of

VOCABULARY = 61
TOKENS = torch.arange(20).remainder(13).unsqueeze(0) + 30


def hidden_states(model, tokens=TOKENS):
    with torch.inference_mode():
        return trunk_of(model)(input_ids=tokens, use_cache=False)[0][0]


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_are_the_models_own(kind, dtype):
    """Gemma 2 caps, Cohere and Granite scale, OPT projects, Phi and GPT-J add a bias."""
    model = tiny_model(kind, VOCABULARY, dtype=dtype)
    with torch.inference_mode():
        expected = model(TOKENS, use_cache=False).logits[0]
    found = Head(model).logits(hidden_states(model))
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected.to(dtype), rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("kind", ["gemma2", "cohere", "granite"])
def test_the_bare_head_would_not_be_enough(kind):
    model = tiny_model(kind, VOCABULARY, dtype=torch.float32)
    hidden = hidden_states(model)
    bare = hidden @ model.get_output_embeddings().weight.T
    assert (Head(model).logits(hidden) - bare).abs().max() > 0.01


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_a_narrow_model_is_read_in_float32(narrow):
    model = tiny_model("llama", VOCABULARY, dtype=narrow)
    hidden = hidden_states(model)
    assert hidden.dtype == narrow
    found = Head(model).logits(hidden)
    exact = hidden.float() @ model.lm_head.weight.float().T
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-6)
    assert (found - model.lm_head(hidden).float()).abs().max() > 1e-3


@pytest.fixture
def narrow_products():
    """Let this CPU multiply narrow numbers into float32, as a GPU does; returns how many times it did, and how."""
    done = []

    def mm(first, second, out_dtype):
        done.append(first.dtype)
        return (first.to(out_dtype) @ second.to(out_dtype)).to(mm.kept).to(out_dtype)

    mm.kept = torch.float32
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("mm.dtype", mm, "CPU")
        yield done, mm


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "cohere"])
def test_where_the_device_can_no_weight_of_the_head_is_widened(narrow_products, monkeypatch, kind, narrow):
    model = tiny_model(kind, VOCABULARY, dtype=narrow)
    hidden = hidden_states(model)
    reader = Head(model)
    first = reader.logits(hidden)
    monkeypatch.setattr(readout, "linear_in_slices", None)
    again = reader.logits(hidden[:7])
    assert narrow_products[0] == [narrow] * 3  # once to try it
    monkeypatch.undo()
    for found, expected in ((first, hidden), (again, hidden[:7])):
        plain = tiny_model(kind, VOCABULARY, dtype=narrow).float()
        torch.testing.assert_close(found, Head(plain).logits(expected), rtol=0, atol=1e-5)


def test_products_that_round_are_not_used(narrow_products):
    done, mm = narrow_products
    model = tiny_model("llama", VOCABULARY, dtype=torch.bfloat16)
    hidden = hidden_states(model)
    exact = hidden.float() @ model.lm_head.weight.float().T
    mm.kept = torch.bfloat16
    reader = Head(model)
    torch.testing.assert_close(reader.logits(hidden), exact, rtol=0, atol=1e-6)
    # Nor is a state that is no narrow number: some models scale it before the head.
    mm.kept = torch.float32
    assert len(done) == 1
    torch.testing.assert_close(Head(model).logits(hidden.float() / 3), exact / 3, rtol=0, atol=1e-6)
    torch.testing.assert_close(reader.logits(hidden), exact, rtol=0, atol=1e-6)
    assert len(done) == 2


def test_caps_and_scales_are_computed_in_float32_too():
    model = tiny_model("gemma2", VOCABULARY, dtype=torch.bfloat16)
    hidden = hidden_states(model)
    exact = 5.0 * torch.tanh(hidden.float() @ model.lm_head.weight.float().T / 5.0)
    torch.testing.assert_close(Head(model).logits(hidden), exact, rtol=0, atol=1e-5)
    model = tiny_model("granite", VOCABULARY, dtype=torch.bfloat16)
    hidden = hidden_states(model)
    exact = hidden.float() @ model.lm_head.weight.float().T / 0.6
    torch.testing.assert_close(Head(model).logits(hidden), exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2", "opt", "falcon_h1", "bloom"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_model_itself_stays_untouched(kind, dtype):
    model = tiny_model(kind, VOCABULARY, dtype=dtype, tie_word_embeddings=True)
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert head.weight.data_ptr() == embedding.weight.data_ptr()
    with torch.inference_mode():
        before = model(TOKENS, use_cache=False).logits
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    reader = Head(model)
    reader.logits(hidden_states(model))
    reader.edge_logprobs(hidden_states(model), np.zeros((20, 1), dtype=np.int64)).wait()
    assert model.get_output_embeddings() is head
    assert head.weight.data_ptr() == embedding.weight.data_ptr()
    assert {name: tensor.dtype for name, tensor in model.state_dict().items()} == {n: t.dtype for n, t in state.items()}
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    with torch.inference_mode():
        assert torch.equal(model(TOKENS, use_cache=False).logits, before)


@pytest.mark.parametrize("elements", [1, VOCABULARY, 3 * VOCABULARY, 7 * VOCABULARY])
def test_reading_in_slices_of_the_vocabulary_budget_gives_the_same(monkeypatch, elements):
    model = tiny_model("llama", VOCABULARY)
    hidden = hidden_states(model)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (20, 5))
    whole = Head(model).edge_logprobs(hidden, tokens).wait()
    monkeypatch.setattr(readout, "MAX_ELEMENTS", elements)
    sizes = []
    logits = Head.logits
    monkeypatch.setattr(Head, "logits", lambda self, part: sizes.append(len(part)) or logits(self, part))
    parts = Head(model).edge_logprobs(hidden, tokens).wait()
    assert max(sizes) == max(1, elements // VOCABULARY)
    assert sum(sizes) == 20
    np.testing.assert_allclose(parts.logprobs, whole.logprobs, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(parts.top_tokens, whole.top_tokens)
    np.testing.assert_allclose(parts.top_probs, whole.top_probs, rtol=0, atol=1e-12)


def test_edge_logprobs_are_the_full_softmax():
    model = tiny_model("qwen2", VOCABULARY)
    tokens = np.array([[4, 7, 60]] * 20)
    read = Head(model).edge_logprobs(hidden_states(model), tokens).wait()
    with torch.inference_mode():
        expected = torch.log_softmax(model(TOKENS, use_cache=False).logits[0], dim=-1)
    assert read.logprobs.dtype == np.float64
    np.testing.assert_allclose(read.logprobs, expected[:, [4, 7, 60]].numpy(), rtol=0, atol=1e-10)
    order = expected.argsort(dim=-1, descending=True)[:, : readout.OTHER_TOKENS].numpy()
    np.testing.assert_array_equal(read.top_tokens, order)
    np.testing.assert_allclose(read.top_probs, np.exp(np.take_along_axis(expected.numpy(), order, 1)), atol=1e-10)


def test_a_vocabulary_smaller_than_the_list_of_other_tokens():
    model = tiny_model("llama", 5)
    read = (
        Head(model)
        .edge_logprobs(hidden_states(model, torch.tensor([[1, 2, 3]])), np.zeros((3, 1), dtype=np.int64))
        .wait()
    )
    assert read.top_tokens.shape == (3, 5)
    np.testing.assert_allclose(read.top_probs.sum(axis=1), 1.0)


def test_a_model_without_a_head_is_refused():
    with pytest.raises(UnsupportedModelError, match="no base model apart from its head"):
        trunk_of(tiny_model("llama", VOCABULARY).model)


def test_the_input_device_is_the_embeddings():
    assert input_device(tiny_model("llama", VOCABULARY)) == torch.device("cpu")


def test_a_base_model_that_is_not_where_the_prefix_says_is_found():
    model = llama4()
    assert not hasattr(model, model.base_model_prefix)
    assert trunk_of(model) is model.model
    with torch.inference_mode():
        expected = model(TOKENS, use_cache=False).logits[0]
    torch.testing.assert_close(Head(model).logits(hidden_states(model)), expected, rtol=0, atol=1e-5)


def test_a_model_without_a_base_model_is_refused_by_name():
    model = llama4(1)
    del model._modules["model"]
    for use in (trunk_of, Head):
        with pytest.raises(UnsupportedModelError, match="Llama4ForCausalLM has no base model apart from its head"):
            use(model)
