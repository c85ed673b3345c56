"""The memory that a judge will take is known before it is loaded, and what does not fit is refused."""

from __future__ import annotations

import pytest
import torch
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.errors import JudgeError
from geval_local.models import stored
from geval_local.models.load import check_judge, load_model
from geval_local.models.memory import memory_needed
from geval_local.models.registry import find_judge
from geval_local.options import JudgeOptions

gguf = pytest.importorskip("gguf")
from gguf_kit import write_gguf  # noqa: E402 - needs gguf


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(stored, "FEW", 0)  # tiny models stand for large ones


def llama(dtype):
    return tiny_model("llama", 265, dtype=dtype, hidden_size=256, intermediate_size=512)


@pytest.mark.parametrize("form", ["bfloat16", "float32", "gguf"])
def test_what_is_told_is_what_is_taken(tmp_path, form):
    if form == "gguf":
        place = write_gguf(tmp_path / "m.gguf", llama(torch.float32), kind=gguf.GGMLQuantizationType.Q4_K)
    else:
        place = save_judge(tmp_path / "judge", llama(getattr(torch, form)), byte_tokenizer())
    for dtype in ("auto", "bfloat16"):
        needs = memory_needed(place, dtype)
        loaded = load_model(find_judge(place), JudgeOptions(dtype=dtype))
        if form != "gguf" or dtype == "auto":
            assert needs.weights == pytest.approx(loaded.memory_bytes, rel=0.01)
        assert needs.parameters == loaded.parameters
    largest = 4 * 512 * 256 if form != "float32" else 0
    assert memory_needed(place, "auto").widened == largest


def test_experts_are_widened_by_layers(tmp_path):
    place = save_judge(tmp_path, tiny_model("qwen3_moe", 265, dtype=torch.bfloat16), byte_tokenizer())
    experts = load_model(find_judge(place)).model.model.layers[0].mlp.experts
    assert memory_needed(place, "auto").widened == 4 * (experts.gate_up_proj.numel() + experts.down_proj.numel())


def test_a_judge_that_does_not_fit_is_refused_before_it_is_read(tmp_path, monkeypatch):
    place = save_judge(tmp_path, llama(torch.bfloat16), byte_tokenizer())
    monkeypatch.setattr("geval_local.models.load.read_safetensors", None)
    monkeypatch.setattr("geval_local.models.memory.WORKING", 0)
    needs = memory_needed(place, "auto")
    for free, says in ((0.9 * needs.weights, "of the type Q8_0"), (1000, "Not even its Q4_K file")):
        monkeypatch.setattr("geval_local.models.memory.available_memory", lambda free=free: int(free))
        for use in (load_model, check_judge):
            with pytest.raises(JudgeError, match=r"takes .* GB of memory, .* and 0\.0 GB are free") as caught:
                use(find_judge(place), JudgeOptions(device="cpu"))
            assert says in caught.value.hint
    # A device map may leave a part on the disk.
    check_judge(find_judge(place), JudgeOptions(device_map="auto"))
