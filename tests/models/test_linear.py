"""A linear layer computed as a convolution gives the same result, and is used only where allowed."""

from __future__ import annotations

import pytest
import torch
from prompts import VOCAB, documents, largest_difference, logprobs
from tiny import tiny_model
from torch import nn

from geval_local.engine.batched import PaddedEngine
from geval_local.engine.prefix_sharing import forward as launch
from geval_local.engine.prefix_sharing import linear
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.engine.prefix_sharing.linear import by_convolution, convertible, convolution_is_faster
from geval_local.models.head import Head


@pytest.fixture
def convolutions(monkeypatch):
    """Shapes of the images that went through a convolution."""
    shapes = []
    conv2d = nn.functional.conv2d

    def counted(image, *given):
        shapes.append(tuple(image.shape))
        return conv2d(image, *given)

    monkeypatch.setattr(linear.functional, "conv2d", counted)
    return shapes


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 300, 48), (300, 48), (2, 150, 48)])
def test_the_product_is_the_same_and_lies_in_memory_as_it_would(bias, shape, convolutions):
    layer = nn.Linear(48, 80, bias=bias).requires_grad_(False)
    given = torch.randn(shape)
    expected = layer(given)
    with by_convolution([layer]):
        found = layer(given)
    assert convolutions == [(1, 48, 1, 300)]
    assert found.shape == expected.shape
    assert found.is_contiguous()
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "tokens", "contiguous"),
    [(torch.float64, 300, True), (torch.bfloat16, 300, True), (torch.float32, 5, True), (torch.float32, 300, False)],
)
def test_what_it_does_not_serve_goes_the_usual_way_to_the_last_bit(dtype, tokens, contiguous, convolutions):
    layer = nn.Linear(48, 80, dtype=dtype).requires_grad_(False)
    given = torch.randn(tokens, 48).to(dtype) if contiguous else torch.randn(48, tokens).T
    expected = layer(given)
    with by_convolution([layer]):
        assert torch.equal(layer(given), expected)
    assert convolutions == []


def test_a_layer_has_its_own_product_back_afterwards_also_after_an_error():
    layer = nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), by_convolution([layer]):
        layer(torch.randn(3, 5))
    assert "forward" not in vars(layer)


def test_layers_of_another_kind_or_with_a_forward_of_their_own_are_left_alone():
    class Quantized(nn.Linear):
        pass

    hooked = nn.Linear(4, 4)
    hooked.forward = lambda given: given  # as accelerate does for weights that are elsewhere
    plain = nn.Linear(4, 4)
    assert convertible(nn.Sequential(Quantized(4, 4), hooked, plain)) == (plain,)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt_oss", "deepseek_v3", "phi3"])
def test_the_engine_says_the_same_by_it(kind, monkeypatch, convolutions):
    model = tiny_model(kind, VOCAB, torch.float32, initializer_range=0.1)
    requests = documents(seed=1, stem=200)
    alone = PaddedEngine(model, Head(model), batch_tokens=1)
    expected = logprobs(alone, requests)
    for faster in (False, True):
        monkeypatch.setattr(launch, "convolution_is_faster", lambda faster=faster: faster)
        trie = PrefixSharingEngine(model, Head(model), batch_tokens=300, padded=alone)
        assert largest_difference(logprobs(trie, requests), expected) < 2e-5
        assert bool(convolutions) == faster


@pytest.mark.parametrize(("vendor", "faster"), [("AuthenticAMD", True), ("GenuineIntel", False)])
def test_the_processor_decides(vendor, faster, monkeypatch):
    monkeypatch.setattr(linear.torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(linear.torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(linear.Path, "read_text", lambda *_, **__: f"vendor_id : {vendor}\n")
    monkeypatch.setattr(linear.Path, "exists", lambda _: True)
    convolution_is_faster.cache_clear()
    try:
        assert convolution_is_faster() is faster
    finally:
        convolution_is_faster.cache_clear()
