"""Products by oneDNN are those of PyTorch, in float32, for every shape that a layer may meet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import byte_tokenizer, save_judge, tiny_model
from torch import nn

from geval_local import Judge, Metric
from geval_local.models import products, stored

METRIC = Metric(name="m", criteria="c", scale="0-10", fields={"source": "Source", "output": "Output"}, steps=[])
ROWS = [{"source": "A ferry stops. " * n, "output": "It stops."} for n in range(1, 7)]

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of PyTorch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """As on a processor for which oneDNN is chosen."""
    monkeypatch.setattr(products, "uses_onednn", lambda: True)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("shape", [(1, 64), (3, 64), (2, 5, 64), (2, 3, 5, 64), (0, 64), (64,)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_that_of_float64(shape, has_bias):
    torch.manual_seed(0)
    given, weight, bias = torch.randn(shape), torch.randn(48, 64), torch.randn(48) if has_bias else None
    found = products.linear(given, weight, bias)
    expected = nn.functional.linear(given.double(), weight.double(), None if bias is None else bias.double())
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.usefixtures("onednn")
def test_views_half_precision_and_gradients_are_served_too():
    torch.manual_seed(0)
    turned = torch.randn(64, 6).T
    weight = torch.randn(64, 96)[:, :64]
    torch.testing.assert_close(products.linear(turned, weight), turned @ weight.T, rtol=1e-5, atol=2e-5)
    half = products.linear(turned.bfloat16(), weight.bfloat16())
    assert half.dtype is torch.bfloat16
    learning = weight.clone().requires_grad_()
    products.linear(turned, learning).sum().backward()
    assert learning.grad is not None


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_scores_are_those_of_the_other_library(kind, tmp_path, monkeypatch):
    tokenizer = byte_tokenizer()
    place = save_judge(tmp_path / kind, tiny_model(kind, len(tokenizer)), tokenizer)

    def scores(is_chosen: bool) -> list[np.ndarray]:
        monkeypatch.setattr(products, "uses_onednn", lambda: is_chosen)
        judge = Judge.load(place, dtype="float32", style="completion")
        classes = {type(one) for one in judge.backend.loaded.model.modules() if isinstance(one, nn.Linear)}
        assert (classes == {nn.Linear}) != is_chosen
        return [np.array(list(one.probabilities.values())) for one in judge.score_many(METRIC, ROWS)]

    np.testing.assert_allclose(scores(True), scores(False), atol=1e-5)


@pytest.mark.usefixtures("onednn")
def test_stored_weights_give_the_bits_of_widened_ones(tmp_path, monkeypatch):
    """The promise of `geval_local.models.stored` does not depend on the library."""
    tokenizer = byte_tokenizer()
    place = save_judge(tmp_path / "half", tiny_model("llama", len(tokenizer)).bfloat16(), tokenizer)

    def scores(few: int) -> list[dict[str, float]]:
        monkeypatch.setattr(stored, "FEW", few)
        judge = Judge.load(place, dtype="float32", style="completion")
        return [one.probabilities for one in judge.score_many(METRIC, ROWS)]

    assert scores(0) == scores(1 << 40)


MEMORY = """
import torch
from torch import nn
from geval_local.models import products
def memory():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmRSS"))
products.is_faster = lambda: True
torch.set_grad_enabled(False)
torch.set_num_threads(1)
layer, given = nn.Linear(64, 64), torch.randn(4096, 64)
products.use_faster_products(layer)
layer(given)
before = memory()
for rows in range(1, 1600):
    layer(given[:rows])
print(memory() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from Linux")
def test_memory_does_not_grow_with_the_shapes_that_it_has_met():
    """By their own settings, oneDNN and PyTorch's layer above it keep 1,024 shapes each: some 300 MB here."""
    names = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    printed = subprocess.run(
        [sys.executable, "-c", MEMORY], env=environment, capture_output=True, text=True, check=True
    )
    assert float(printed.stdout) < 100
