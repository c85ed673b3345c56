"""The memory that a judge will take is known before it is loaded, and what does not fit is refused."""

from __future__ import annotations

import pytest
import torch
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.errors import JudgeError
from geval_local.models import stored
from geval_local.models.load import check_judge, load_model
from geval_local.models.memory import available_memory, memory_needed
from geval_local.models.registry import find_judge
from geval_local.options import JudgeOptions

gguf = pytest.importorskip("gguf")
from gguf_kit import write_any_gguf, write_gguf  # noqa: E402 - needs gguf


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


@pytest.mark.parametrize("kinds", [("Q8_0", "Q8_0"), ("Q8_0", "Q5_0")])
def test_experts_of_two_types_are_widened_for_good_and_counted(tmp_path, kinds):
    """Gates and the layers beside them are one tensor in the model; a file may store them in two types."""
    model = tiny_model("qwen3_moe", 265, dtype=torch.float32, norm_topk_prob=True)
    gates, beside = (gguf.GGMLQuantizationType[kind] for kind in kinds)
    file = write_any_gguf(tmp_path / "m.gguf", model, "qwen3moe", gates, other={"ffn_up_exps": beside})
    loaded = load_model(find_judge(file))
    assert memory_needed(file, "auto").weights == pytest.approx(loaded.memory_bytes, rel=0.02)
    joined = loaded.model.model.layers[0].mlp.experts.gate_up_proj
    assert isinstance(joined, stored.Stored) == (gates == beside)


def test_a_pack_is_counted_by_the_width_of_the_layers(tmp_path):
    narrow = memory_needed(save_judge(tmp_path / "narrow", llama(torch.bfloat16), byte_tokenizer()), "auto")
    wide = tiny_model("llama", 265, dtype=torch.bfloat16, hidden_size=256, intermediate_size=2304)
    needs = memory_needed(save_judge(tmp_path / "wide", wide, byte_tokenizer()), "auto")
    assert narrow.activations * (256 + 2304) == needs.activations * (256 + 512)
    assert needs.total > needs.weights + needs.widened + needs.activations


def proc(root, *, available, groups, **files):
    """Write what Linux tells about memory and groups of processes."""
    files |= {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {available // 1024} kB\n", "proc/self/cgroup": groups}
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


GB = 1 << 30


@pytest.mark.parametrize(
    ("groups", "files", "left"),
    [
        ("0::/\n", {}, 24),
        ("0::/\n", {"memory.max": f"{6 * GB}", "memory.current": f"{3 * GB}"}, 4),
        ("0::/a/b\n", {"memory.max": "max", "memory.current": "5", "a/memory.max": f"{2 * GB}"}, 24),
        ("0::/a/b\n", {"a/memory.max": f"{8 * GB}", "a/memory.current": f"{7 * GB}"}, 2),
        ("0::/seen/only/outside\n", {"memory.max": f"{6 * GB}", "memory.current": f"{3 * GB}"}, 4),
        (
            "4:memory:/x\n0::/\n",
            {"memory/x/memory.limit_in_bytes": f"{6 * GB}", "memory/x/memory.usage_in_bytes": f"{3 * GB}"},
            4,
        ),
        ("no lines of this form", {}, 24),
    ],
)
def test_the_limit_of_a_container_counts(tmp_path, groups, files, left):
    """One GB of what a group takes is files, which can be read again."""
    for name in [name for name in files if name.endswith(("current", "usage_in_bytes"))]:
        key = "total_inactive_file" if "usage" in name else "inactive_file"
        files = files | {name.rpartition("/")[0] + "/memory.stat": f"anon 5\n{key} {GB}\n"}
    told = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert available_memory(proc(tmp_path, available=24 * GB, groups=groups, **told)) == left * GB


def test_a_judge_that_does_not_fit_is_refused_before_it_is_read(tmp_path, monkeypatch):
    place = save_judge(tmp_path, llama(torch.bfloat16), byte_tokenizer())
    monkeypatch.setattr("geval_local.models.load.read_safetensors", None)
    needs = memory_needed(place, "auto")
    beside = needs.widened + needs.activations
    for free, says in ((0.9 * needs.weights + beside, "of the type Q8_0"), (beside, "Not even its Q4_K file")):
        monkeypatch.setattr("geval_local.models.memory.available_memory", lambda free=free: int(free))
        for use in (load_model, check_judge):
            with pytest.raises(JudgeError, match=r"takes .* of memory, .* and 0\.\d GB are free") as caught:
                use(find_judge(place), JudgeOptions(device="cpu"))
            assert says in caught.value.hint
    # A device map may leave a part on the disk.
    check_judge(find_judge(place), JudgeOptions(device_map="auto"))
