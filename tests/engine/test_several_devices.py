"""Models on simulated devices: several GPUs, offloaded weights, Apple's and Intel's.

Every operation insists that its tensors are on one device, see `simulated_devices`.
"""

from __future__ import annotations

import pytest
import torch
from accelerate import dispatch_model
from prompts import VOCAB, documents, largest_difference, logprobs
from simulated_devices import Elsewhere, SimulatedDevices
from tiny import tiny_model

from geval_local.engine.backend import EngineReport
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import CPU_TOKENS, choose_engine
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.engine.self_check import check_engine
from geval_local.engine.shared_cache import SharedCacheEngine
from geval_local.models import precision
from geval_local.models.head import Head, gpus_of, input_device
from geval_local.models.memory import default_device
from geval_local.models.options import loading_arguments
from geval_local.options import JudgeOptions

#: A CUDA build asks its driver at every index, also where there is no card.
cpu_build = pytest.mark.skipif(torch.version.cuda is not None, reason="simulates CUDA devices on a CPU build of torch")


@pytest.fixture
def requests():
    return documents(seed=1, documents=2)


def expected_of(kind, requests):
    model = tiny_model(kind, VOCAB, torch.float32)
    return logprobs(PaddedEngine(model, Head(model), batch_tokens=1), requests)


def over_two(kind, embeddings):
    """A model of two layers, the second on the second GPU, as accelerate places it."""
    model = tiny_model(kind, VOCAB, torch.float32)
    places = {f"model.{name}": "cuda:1" for name, _ in model.model.named_children() if name != "layers"}
    places |= {"model.embed_tokens": embeddings, "model.layers.0": "cuda:0", "model.layers.1": "cuda:1"}
    places["lm_head"] = embeddings if model.config.tie_word_embeddings else "cuda:1"
    return dispatch_model(model, device_map=places, main_device="cuda:0")


@pytest.mark.sweep
@cpu_build
@pytest.mark.parametrize(
    ("kind", "embeddings"),
    [
        ("llama", "cuda:0"),
        ("llama", "cpu"),
        ("gemma3", "cuda:0"),
        *(pytest.param(*given, marks=pytest.mark.slow) for given in (("gemma3", "cpu"), ("gpt_oss", "cpu"))),
    ],
)
def test_a_model_over_two_devices_is_served_by_every_engine(kind, embeddings, requests):
    expected = expected_of(kind, requests)
    with SimulatedDevices():
        model = over_two(kind, embeddings)
        assert [str(device) for device in gpus_of(model)] == ["cuda:0", "cuda:1"]
        assert str(input_device(model)) == "cuda:0"
        assert (model.model.embed_tokens.weight.device.type == "meta") == (embeddings == "cpu")
        alone = PaddedEngine(model, Head(model))
        trie = PrefixSharingEngine(model, Head(model), batch_tokens=40, padded=alone)
        assert trie.look_ahead == 2
        cache = SharedCacheEngine(model, Head(model), batch_tokens=40, padded=alone)
        for engine in (alone, trie, cache):
            assert largest_difference(logprobs(engine, requests), expected) < 1e-3
        held = {trie.path_store.read(layer, 1)[0].device for layer in range(model.config.num_hidden_layers)}
        assert held == {torch.device("cuda", 0), torch.device("cuda", 1)}


@cpu_build
def test_a_tensor_on_the_wrong_device_is_not_overlooked(requests):
    """The simulation notices what a real machine would."""
    with SimulatedDevices():
        one = torch.zeros(3).to("cuda:0")
        with pytest.raises(RuntimeError, match="same device"):
            one + torch.zeros(3).to("cuda:1")
        with pytest.raises(RuntimeError, match="same device"):
            one + torch.zeros(3)
        with pytest.raises(TypeError, match="numpy"):
            one.numpy()
        with pytest.raises(TypeError, match="float64"):
            torch.zeros(3).to("mps").double()
        model = over_two("llama", "cuda:0")
        model.model.norm.weight = torch.nn.Parameter(torch.ones(32).to("cuda:0"), requires_grad=False)
        model.model.norm._hf_hook.execution_device = "cuda:1"
        with pytest.raises(RuntimeError, match="same device"):
            logprobs(PaddedEngine(model, Head(model)), requests)


@pytest.mark.sweep
@pytest.mark.parametrize("device", ["mps", "xpu:0"])
def test_the_devices_of_apple_and_intel_are_chosen_for_and_checked_by_the_plain_path(device, requests):
    expected = expected_of("gemma3", requests)
    with SimulatedDevices():
        model = tiny_model("gemma3", VOCAB, torch.float32).to(device)
        assert isinstance(model.lm_head.weight, Elsewhere)
        engine, report = choose_engine(model, Head(model))
        assert (engine.name, engine.kernel, engine.look_ahead, engine.batch_tokens) == ("trie", None, 0, CPU_TOKENS)
        assert report.reason is None
        assert largest_difference(logprobs(engine, requests), expected) < 1e-3


@pytest.mark.slow
def test_the_self_check_asks_no_float64_of_apples_device(monkeypatch):
    monkeypatch.setattr("geval_local.engine.self_check.OPERATIONS_ELSEWHERE", 0.0)
    with SimulatedDevices():
        model = tiny_model("llama", VOCAB, torch.float32).to("mps")
        padded = PaddedEngine(model, Head(model), batch_tokens=1)
        engine = PrefixSharingEngine(model, Head(model), batch_tokens=256, padded=padded)
        check = check_engine(model, engine, EngineReport("trie", None, 1e-6, 2e-3, 48))
    assert check.failed == ()
    assert next(one for one in check.findings if one.name == "attention").passed


def test_the_noise_of_half_precision_is_measured_without_float64_on_the_device():
    with SimulatedDevices():
        model = tiny_model("llama", VOCAB, torch.float32).to("mps")
        hidden = [torch.randn(1, 32).to("mps") for _ in range(2)]
        assert (precision.label_scores(Head(model), hidden, [1, 2, 3, 4, 5]) > 1).all()


@pytest.mark.parametrize("device", ["mps", "xpu", "cuda"])
def test_an_accelerator_is_found(device, monkeypatch):
    """AMD's cards are called cuda by PyTorch."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_, **__: torch.device(device))
    with SimulatedDevices():
        assert default_device() == torch.device(device)
        assert loading_arguments(JudgeOptions(), "auto")["device_map"] == {"": torch.device(device)}
        assert loading_arguments(JudgeOptions(), "auto")["dtype"] == "auto"
        assert loading_arguments(JudgeOptions(device_map="auto"), "auto")["dtype"] == "auto"
        assert loading_arguments(JudgeOptions(device="cpu"), "auto")["dtype"] == torch.float32


def test_without_an_accelerator_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert loading_arguments(JudgeOptions(), "float32")["device_map"] == {"": torch.device("cpu")}
