"""Device behaviour tested without a device: by mocks, the meta device, and allocators' messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from prompts import VOCAB, documents, largest_difference, logprobs
from tiny import tiny_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, MistralConfig

from geval_local.engine import choose, probe
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import choose_engine, find_budget
from geval_local.engine.prefix_sharing import attention as kernels
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.errors import JudgeError, UnsupportedModelError
from geval_local.models import stored
from geval_local.models.guard import guarded
from geval_local.models.head import Head
from geval_local.models.memory import is_out_of_memory

GIB = 1 << 30


class FakeGpu:
    """What PyTorch would say of a GPU's memory; `take` is what the computation is made to need per token."""

    def __init__(self, monkeypatch, free, per_token):
        self.device = torch.device("cuda", 0)
        monkeypatch.setattr(choose, "gpus_of", lambda model: [self.device])
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, 80 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: 0)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 0)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=None: None)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: self.most * per_token)
        self.most = 0
        launch = choose.PrefixSharingEngine.execute

        def watched(engine, requests, packs):
            for pack, found in launch(engine, requests, packs):
                self.most = max(self.most, pack.tokens)
                yield pack, found

        monkeypatch.setattr(choose.PrefixSharingEngine, "execute", watched)


@pytest.mark.parametrize(("free", "budget"), [(40 * GIB, 16_384), (16 * GIB, 8_192), (1 * GIB, 1_024)])
def test_the_budget_is_measured_with_the_engine_that_will_be_used(monkeypatch, free, budget):
    """On documents with candidates in a scale of digits, as it will be used for, too."""
    model = tiny_model("llama", VOCAB, torch.float32)
    gpu = FakeGpu(monkeypatch, free, GIB >> 10)
    engine, report = choose_engine(model, Head(model))
    assert report.engine == "trie"
    assert engine.batch_tokens == engine.limit == budget
    assert 900 < gpu.most <= choose.LEAST


def test_a_model_of_few_positions_has_a_budget_too(monkeypatch):
    FakeGpu(monkeypatch, 40 * GIB, GIB >> 10)
    model = tiny_model("gpt2", VOCAB, torch.float32, n_positions=40)
    engine, _ = choose_engine(model, Head(model))
    assert engine.batch_tokens == choose.MOST
    assert find_budget(model, engine) == choose.MOST


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "No valid triton configs. OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        "HIP error: out of memory",
        "MPS backend out of memory (MPS allocated: 17.9 GB)",
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory",
        "DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes",
    ],
)
def test_every_allocator_that_ran_out_is_understood(message):
    kinds = [RuntimeError, getattr(torch, "AcceleratorError", RuntimeError)]
    for kind in kinds:
        error = kind(message) if kind is RuntimeError else kind.__new__(kind, message)
        assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError(message))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_products_beyond_float16_are_scaled_before_they_are_taken():
    generator = torch.Generator().manual_seed(0)
    query = (torch.randn(4, 6, 128, generator=generator) * 90).half()
    key = (torch.randn(2, 9, 128, generator=generator) * 90).half()
    value = torch.randn(2, 9, 128, generator=generator).half()
    scale = 128**-0.5
    query[0, 0], key[0, 0] = 40.0, 40.0
    assert (query[0, 0].float() @ key[0, 0].float()) > 65_504
    out, lse = kernels.attend(query, key, value, scale=scale, softcap=1e6)
    exact = torch.matmul(query.float(), key.float().repeat_interleave(2, 0).mT) * scale
    assert torch.isfinite(out).all()
    torch.testing.assert_close(lse, exact.logsumexp(-1), rtol=2e-3, atol=0)


class Largest(TorchDispatchMode):
    """The most elements of any float32 tensor that is made."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.float32:
                self.elements = max(self.elements, tensor.numel())
        return found


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["llama", "gemma2", "phi", "opt", "gpt_neox"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_head_is_read_in_float32_without_a_copy(kind, dtype, monkeypatch):
    vocabulary = 2000
    model = tiny_model(kind, vocabulary, dtype)
    hidden = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    wide = tiny_model(kind, vocabulary, dtype).float()
    expected = Head(wide).logits(hidden.float())
    monkeypatch.setattr(stored, "SLICE", 32 * 100)
    with Largest() as largest:
        found = Head(model).logits(hidden)
    assert largest.elements <= 3 * vocabulary
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("tied", [False, True])
def test_offloaded_weights_are_read_where_they_are(dtype, tied):
    model = tiny_model("llama", VOCAB, dtype, tie_word_embeddings=tied)
    requests = documents(seed=1)
    alone = PaddedEngine(model, Head(model), batch_tokens=1)
    expected = logprobs(alone, requests[:4])
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert model.lm_head.weight.device.type == "meta"
    head = Head(model)
    alone = PaddedEngine(model, head, batch_tokens=1)
    assert largest_difference(logprobs(alone, requests[:4]), expected) < 1e-5
    trie = PrefixSharingEngine(model, head, batch_tokens=40, padded=alone)
    assert largest_difference(logprobs(trie, requests[:4]), expected) < (0.5 if dtype == torch.bfloat16 else 1e-4)
    assert model.lm_head.weight.device.type == "meta"


def test_no_float64_is_asked_of_a_device():
    """Apple's have none."""
    seen = set()

    class Types(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            for tensor in found if isinstance(found, (tuple, list)) else [found]:
                if isinstance(tensor, torch.Tensor):
                    seen.add(tensor.dtype)
            return found

    model = tiny_model("llama", VOCAB, torch.float32)
    trie = PrefixSharingEngine(model, Head(model), batch_tokens=40, padded=PaddedEngine(model, Head(model)))
    with Types():
        logprobs(trie, documents())
    assert torch.float32 in seen
    assert torch.float64 not in seen


@pytest.mark.parametrize("told", ["config", "model"])
def test_8_bit_weights_are_read_one_prompt_at_a_time(told, caplog):
    """LLM.int8 picks its outliers over all rows of a pass."""
    model = tiny_model("llama", VOCAB, torch.float32)
    if told == "config":
        model.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    else:
        model.is_loaded_in_8bit = True
    passes = []
    model.model.register_forward_pre_hook(lambda _, __, given: passes.append(len(given["input_ids"])), with_kwargs=True)
    engine, report = choose_engine(model, Head(model), batch_tokens=10_000)
    logprobs(engine, documents())
    assert (engine.name, set(passes)) == ("padded", {1})
    assert "8-bit weights" in report.text
    assert "8-bit weights" in caplog.text
    with pytest.raises(UnsupportedModelError, match="8-bit weights"):
        choose_engine(model, Head(model), "trie")
    model.config.quantization_config = {"load_in_8bit": True, "llm_int8_threshold": 0.0}
    assert choose_engine(model, Head(model))[0].name == "trie"


def test_a_probe_that_memory_cut_short_says_so(monkeypatch):
    monkeypatch.setattr(probe, "free_memory", lambda device: 1000)
    model = tiny_model("llama", VOCAB, torch.bfloat16)
    engine, report = choose_engine(model, Head(model))
    assert engine.name == "trie"
    assert "no memory for a probe in float32" in report.text
    assert report.tolerance == probe.TOLERANCE[torch.bfloat16]


def limited(model, monkeypatch, most):
    forward = model.model.forward

    def failing(input_ids, **options):
        if input_ids.numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        return forward(input_ids=input_ids, **options)

    monkeypatch.setattr(model.model, "forward", failing)


def test_memory_that_runs_out_in_a_probe_makes_it_shorter(monkeypatch):
    model = tiny_model("mistral", VOCAB, torch.float32, sliding_window=100)
    limited(model, monkeypatch, 90)
    engine, report = choose_engine(model, Head(model))
    assert (engine.name, report.window, report.probe_tokens) == ("trie", 100, probe.SHORT_PROBE)
    assert "window 100 not reached" in report.text


def test_memory_for_no_probe_at_all_is_no_verdict_on_the_engine(monkeypatch):
    model = tiny_model("llama", VOCAB, torch.float32)
    limited(model, monkeypatch, 5)
    with pytest.raises(JudgeError, match="leaves no memory for a forward pass of 48 tokens"):
        choose_engine(model, Head(model))


def test_the_window_of_a_7b_model_is_reached_on_a_gpu():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(MistralConfig(sliding_window=4096), dtype=torch.bfloat16)
    assert model.device.type not in probe.PROBE_OPERATIONS
    assert probe.probe_length(model, 4096) > 6000


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_float32_is_float32_whatever_the_environment_asks_for(precision):
    before = torch.get_float32_matmul_precision()
    asked = []
    model = tiny_model("llama", VOCAB, torch.bfloat16)

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket.__name__ in ("mm", "addmm", "linear", "matmul") and args[1].dtype == torch.float32:
                asked.append(torch.get_float32_matmul_precision())
            return func(*args, **(kwargs or {}))

    try:
        torch.set_float32_matmul_precision(precision)
        with Watch():
            choose_engine(model, Head(model))
            Head(model).logits(torch.zeros(2, 32, dtype=torch.bfloat16))
        with guarded:
            assert torch.get_float32_matmul_precision() == "highest"
        assert set(asked) == {"highest"}
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


#: What they are where nobody asks for anything.
TF32 = {
    torch.backends: "none",
    torch.backends.cuda.matmul: "none",
    torch.backends.mkldnn.matmul: "none",
    torch.backends.cudnn: "none",
    torch.backends.cudnn.conv: "tf32",
    torch.backends.cudnn.rnn: "tf32",
}


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (torch.backends.cuda.matmul, "allow_tf32", True),
        (torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        (torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
        (torch.backends, "fp32_precision", "tf32"),
        (torch.backends.cudnn, "fp32_precision", "tf32"),
        (torch.backends.cudnn.conv, "fp32_precision", "ieee"),
        (torch.backends.cudnn, "allow_tf32", False),
    ],
)
def test_whatever_enables_tf32_is_off_for_a_while(owner, name, value):
    """PyTorch refuses to read a switch by its old name once its new one was used."""
    parts = list(TF32)[1:]
    try:
        setattr(owner, name, value)
        asked = [part.fp32_precision for part in parts]
        for _ in range(2):
            with guarded:
                assert torch.get_float32_matmul_precision() == "highest"
                assert not torch.backends.cudnn.allow_tf32
                assert {part.fp32_precision for part in parts} == {"ieee"}
            assert [part.fp32_precision for part in parts] == asked
        model = tiny_model("llama", VOCAB, torch.bfloat16)
        assert choose_engine(model, Head(model))[0].name == "trie"
    finally:
        for part, precision in TF32.items():
            part.fp32_precision = precision
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True


@pytest.mark.slow
def test_token_numbers_survive_the_way_to_the_host():
    vocabulary = (1 << 19) + 1
    model = tiny_model("llama", vocabulary, torch.float32)
    head, hidden = Head(model), torch.randn(1, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.lm_head.weight[-1] = hidden[0] * 10
    read = head.edge_logprobs(hidden, np.array([[vocabulary - 1]])).wait()
    assert read.top_tokens[0].tolist() == head.logits(hidden)[0].argsort(descending=True)[:8].tolist()
    assert read.top_tokens[0, 0] == vocabulary - 1
    assert read.logprobs.dtype == np.float64


@pytest.mark.parametrize("devices", [0, 1, 4])
def test_as_many_packs_are_launched_ahead_as_a_model_has_gpus(devices, monkeypatch):
    gpus = [torch.device("cuda", number) for number in range(devices)]
    monkeypatch.setattr("geval_local.engine.prefix_sharing.engine.gpus_of", lambda model: gpus)
    model = tiny_model("llama", VOCAB, torch.float32)
    alone = PaddedEngine(model, Head(model), batch_tokens=1)
    trie = PrefixSharingEngine(model, Head(model), batch_tokens=20, padded=alone)
    assert trie.look_ahead == devices
    assert largest_difference(logprobs(trie, documents()), logprobs(alone, documents())) < 1e-3
