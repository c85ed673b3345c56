"""The automatic dtype: chosen by measured figures of a probe that runs on any device."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local import Judge
from geval_local.errors import ConfigurationError
from geval_local.models import options, precision, verdicts
from geval_local.models.load import load_model
from geval_local.models.precision import Noise, ProbeResults, automatic_dtype, computing_in, decide, measure, settle
from geval_local.models.registry import find_judge
from geval_local.options import JudgeOptions

GOOD, BAD = Noise(0.004, 0.01, 10), Noise(0.04, 0.08, 10)


def figures(**changed) -> ProbeResults:
    return ProbeResults(
        **({"largest_weight": 9.0, "largest_activation": 900.0, "noise": {"float16": GOOD, "bfloat16": BAD}} | changed)
    )


@pytest.mark.parametrize(
    ("changed", "dtype", "reason"),
    [
        ({}, "float16", "bfloat16 would move a score by 0.04, and activations up to 900 leave room"),
        ({"largest_weight": 7e4}, "bfloat16", "weights up to 7e+04 are beyond float16"),
        ({"largest_activation": 4e4}, "bfloat16", "activations up to 4e+04 leave too little"),
        ({"largest_activation": float("nan")}, "bfloat16", "leave too little"),
        ({"noise": {"float16": None, "bfloat16": BAD}}, "bfloat16", "not finite"),
        ({"noise": {"float16": BAD, "bfloat16": GOOD}}, "bfloat16", "no nearer to float32: 0.04 against 0.004"),
        ({"noise": {"float16": GOOD, "bfloat16": GOOD}}, "bfloat16", "no nearer"),
    ],
)
def test_the_decision(changed, dtype, reason):
    found, told = decide(figures(**changed))
    assert found == dtype
    assert reason in told


def a_model(dtype=torch.float32, **settings):
    settings = {"max_position_embeddings": 4096, "initializer_range": 0.1} | settings
    return tiny_model("llama", 263, dtype=dtype, **settings)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(precision, "SIZES", (1, 2))


def test_the_probe_tells_the_half_precisions_apart_and_leaves_the_model_alone(short):
    model, tokenizer = a_model(), byte_tokenizer()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = measure(model, tokenizer, ["float16", "bfloat16"])
    assert 0 < found.noise["float16"].mean < found.noise["bfloat16"].mean
    assert found.noise["bfloat16"].largest >= found.noise["bfloat16"].mean
    assert found.largest_weight == pytest.approx(max(float(p.abs().max()) for p in model.parameters()))
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert decide(found)[0] == "float16"


def test_the_probe_sees_activations_that_float16_cannot_hold(short):
    model = a_model()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight *= 3e6
    found = measure(model, byte_tokenizer(), ["float16"])
    assert found.largest_activation > 65504
    assert decide(found)[0] == "bfloat16"


@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float16])
def test_computing_in_another_dtype_is_what_a_cast_model_computes(own, wanted):
    model = a_model(own)
    ids = torch.arange(40)[None]
    with torch.inference_mode():
        with computing_in(model, wanted):
            found = model(ids).logits
        cast = a_model(own)
        for parameter in cast.parameters():
            parameter.data = parameter.data.to(wanted)
        expected = cast(ids).logits
    assert found.dtype == wanted
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert {parameter.dtype for parameter in model.parameters()} == {own}


def test_a_failure_in_the_middle_puts_the_weights_back():
    def fail(*_):
        raise RuntimeError("enough")

    model = a_model()
    model.model.layers[1].mlp.down_proj.forward = fail
    with pytest.raises(RuntimeError, match="enough"), computing_in(model, torch.bfloat16):
        model(torch.arange(9)[None])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.sweep
@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
def test_on_an_accelerator_auto_settles_on_what_the_probe_finds(own, short, tmp_path, monkeypatch):
    """The device is the CPU here; only its reported type is changed."""
    model, tokenizer = a_model(own), byte_tokenizer()
    entry = find_judge(save_judge(tmp_path, model, tokenizer))
    monkeypatch.setattr(precision, "is_on_cpu", lambda model: False)
    settled = settle(entry, model, tokenizer, asked_for=None)
    assert model.dtype == torch.float16
    assert settled.noise is not None
    assert "bfloat16 would move a score" in settled.text("float16")
    assert f"moves a score on 1-5 by {settled.noise.text}" in settled.text("float16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    with torch.inference_mode():
        assert np.isfinite(model(torch.arange(9)[None]).logits.numpy()).all()


@pytest.mark.slow
def test_what_was_asked_for_is_kept_and_measured(short, tmp_path, monkeypatch):
    model, tokenizer = a_model(torch.bfloat16), byte_tokenizer()
    entry = find_judge(save_judge(tmp_path, model, tokenizer))
    monkeypatch.setattr(precision, "is_on_cpu", lambda model: False)
    settled = settle(entry, model, tokenizer, asked_for="bfloat16")
    assert (model.dtype, settled.reason) == (torch.bfloat16, "asked for")
    assert settled.noise is not None


def test_a_probe_that_fails_costs_the_choice_and_not_the_judge(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no such kernel")

    model, tokenizer = a_model(), byte_tokenizer()
    entry = find_judge(save_judge(tmp_path, model, tokenizer))
    monkeypatch.setattr(precision, "is_on_cpu", lambda model: False)
    monkeypatch.setattr(precision, "measure", fail)
    settled = settle(entry, model, tokenizer, asked_for=None)
    assert model.dtype == torch.bfloat16
    assert "the probe failed: RuntimeError: no such kernel" in settled.text("bfloat16")


def test_on_a_cpu_auto_is_float32_whatever_the_weights_are_kept_in(tmp_path):
    directory = save_judge(tmp_path, a_model(torch.bfloat16), byte_tokenizer())
    loaded = load_model(find_judge(directory), JudgeOptions(device="cpu"))
    assert loaded.dtype == torch.float32
    assert loaded.precision.text("float32") == "float32 (exact to 1e-5)"
    kept = load_model(find_judge(directory).model_copy(update={"dtype": "bfloat16"}), JudgeOptions(device="cpu"))
    assert kept.dtype == torch.bfloat16  # an entry that names a dtype keeps it
    asked = load_model(find_judge(directory), JudgeOptions(device="cpu", dtype="auto"))
    assert asked.dtype == torch.float32


def test_accelerators_load_what_the_files_hold():
    assert automatic_dtype(None, {"device_map": {"": torch.device("meta")}}) == "auto"
    assert automatic_dtype(None, {"device_map": {"": torch.device("cpu")}}) is torch.float32


def test_the_signature_names_the_dtype_that_was_settled_on(tmp_path):
    directory = save_judge(tmp_path, a_model(torch.bfloat16), byte_tokenizer())
    judge = Judge.load(directory, device="cpu", engine="padded")
    assert "dtype:float32" in judge.identity
    assert judge.precision == "float32 (exact to 1e-5)"


def test_a_mixture_of_experts_runs_in_the_dtype_of_its_fused_product(short, tmp_path, monkeypatch):
    """In float16 a GPU would compute expert after expert, and wait for the host at every layer."""
    model, tokenizer = tiny_model("qwen3_moe", len(byte_tokenizer()), torch.float32), byte_tokenizer()
    entry = find_judge(save_judge(tmp_path, model, tokenizer))
    monkeypatch.setattr(precision, "is_on_cpu", lambda model: False)
    settled = settle(entry, model, tokenizer, asked_for=None)
    assert model.dtype == torch.bfloat16
    assert "exists in bfloat16 only" in settled.reason
    assert settled.noise is not None
    model = tiny_model("qwen3_moe", len(tokenizer), torch.float16)
    assert settle(entry, model, tokenizer, asked_for="float16").reason == "asked for"
    assert settle(entry, model, tokenizer, asked_for="float16", who="by its entry").reason == "by its entry"
    assert model.dtype == torch.float16


def test_a_mixture_is_known_by_its_configuration_whatever_the_place_of_the_number():
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    mixtures = {
        "DbrxConfig": {"d_model": 32, "n_heads": 2, "n_layers": 1},
        "GptOssConfig": sizes,
        "DeepseekV3Config": sizes,
        "Ernie4_5_MoeConfig": sizes,
    }
    dense = {"LlamaConfig": sizes, "HunYuanMoEV1Config": sizes | {"num_experts": 1}}
    for expected, kinds in ((True, mixtures), (False, dense)):
        for name, given in kinds.items():
            config = getattr(transformers, name)(**given)
            assert precision.has_experts(SimpleNamespace(config=config)) is expected, name


def test_what_the_probe_found_is_kept(short, tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    tokenizer = byte_tokenizer()
    entry = find_judge(save_judge(tmp_path / "judge", a_model(torch.bfloat16), tokenizer))
    monkeypatch.setattr(precision, "is_on_cpu", lambda model: False)
    monkeypatch.setattr(verdicts, "input_device", lambda model: torch.device("mps"))
    found = []
    for _ in range(2):
        model = a_model(torch.bfloat16)
        found.append((settle(entry, model, tokenizer, asked_for=None, fingerprint="f" * 64), model.dtype))
        monkeypatch.setattr(precision, "measure", lambda *given, **named: 1 / 0)
    assert found[0] == found[1]
    assert found[0][0].noise is not None


def test_precision_is_measured_without_tf32(short):
    before = torch.get_float32_matmul_precision()
    model, seen = a_model(), set()
    model.model.register_forward_pre_hook(lambda *_: seen.add(torch.get_float32_matmul_precision()))
    try:
        torch.set_float32_matmul_precision("high")
        measure(model, byte_tokenizer(), [])
        assert seen == {"highest"}
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("method", "kernel"), [("fp8", "finegrained-fp8"), ("mxfp4", "gpt-oss-triton-kernels")])
def test_weights_that_need_a_kernel_of_the_hub_are_refused_by_name_or_dequantized(
    method, kernel, tmp_path, monkeypatch
):
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": method}}))
    monkeypatch.setattr(options, "place_of", lambda placement: torch.device("cuda"))
    monkeypatch.setattr(options.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ConfigurationError, match=f"stored as {method.upper()}.*kernels-community/{kernel}") as refused:
        options.loading_arguments(JudgeOptions(device="cpu"), "auto", tmp_path)
    assert "`quantization=dequantize`" in refused.value.hint
    wide = options.loading_arguments(JudgeOptions(device="cpu", quantization="dequantize"), "auto", tmp_path)
    assert wide["quantization_config"].dequantize is True
    (tmp_path / "hub" / f"models--kernels-community--{kernel}").mkdir(parents=True)
    monkeypatch.setattr(options.importlib.util, "find_spec", lambda name: object())
    assert "quantization_config" not in options.loading_arguments(JudgeOptions(device="cpu"), "auto", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="only weights in FP8 or MXFP4"):
        options.loading_arguments(JudgeOptions(device="cpu", quantization="dequantize"), "auto", tmp_path)
