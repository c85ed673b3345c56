"""GGUF: the same model as its safetensors, whatever the file's name; nothing dropped silently."""

from __future__ import annotations

import copy
import json
import shutil

import numpy as np
import pytest
import torch
from cli_run import METRIC, run
from tiny import KINDS as KINDS_OF_MODELS
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.engine.transformers_backend import TransformersBackend
from geval_local.errors import ConfigurationError, JudgeError, TokenizerError, UnsupportedModelError, WeightsError
from geval_local.judge.judge import Judge
from geval_local.metric import Metric
from geval_local.models.fingerprint import fingerprint
from geval_local.models.gguf.file import find_gguf, gguf_files, is_gguf, read_header
from geval_local.models.gguf.model import gguf_config
from geval_local.models.gguf.rope import ROTARY_KEYS
from geval_local.models.load import check_judge, load_model, load_tokenizer
from geval_local.models.precision import automatic_dtype
from geval_local.models.progress import watch_work
from geval_local.models.registry import JudgeEntry, find_judge
from geval_local.options import JudgeOptions

gguf = pytest.importorskip("gguf")
from gguf_kit import write_any_gguf, write_gguf  # noqa: E402 - needs gguf

TOKENS = torch.arange(60).unsqueeze(0) + 8
KINDS = gguf.GGMLQuantizationType
FLOAT32 = JudgeOptions(dtype="float32")


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))


def llama(**settings):
    return tiny_model("llama", 265, dtype=torch.float32, **settings)


def logits(model):
    with torch.inference_mode():
        return model(TOKENS).logits


def assert_same(first, second, tolerance=1e-5):
    assert (logits(first) - logits(second)).abs().max().item() < tolerance


@pytest.fixture(scope="module")
def model():
    return llama()


@pytest.fixture
def file(tmp_path, model):
    return write_gguf(tmp_path / "model.gguf", model, template=byte_tokenizer().chat_template)


# --- the same model -------------------------------------------------------------------------------------------------


def test_reading_is_told_in_bytes(file):
    told = []
    with watch_work(lambda done, total: told.append((done, total))):
        load_model(find_judge(file))
    (total,) = {total for _, total in told}
    assert told[-1][0] == total <= file.stat().st_size
    assert len(told) > 10


def test_weights_tokenizer_and_template_come_from_the_file(file, model):
    entry = find_judge(file)
    assert (entry.path, entry.dtype, entry.style, entry.context) == (file, "auto", "chat", 4096)
    loaded = load_model(entry)
    assert_same(loaded.model, model)
    assert loaded.directory == file
    assert loaded.parameters == model.num_parameters()
    assert loaded.tokenizer("a 10").input_ids == byte_tokenizer(merges=[("1", "0"), ("1", "2")])("a 10").input_ids
    assert loaded.tokenizer.chat_template == byte_tokenizer().chat_template


@pytest.mark.parametrize(
    ("kind", "dtype"), [(KINDS.F16, torch.float16), (KINDS.BF16, torch.bfloat16), (KINDS.Q8_0, torch.bfloat16)]
)
def test_the_dtype_is_float32_on_a_cpu_and_elsewhere_the_files_own(tmp_path, model, kind, dtype):
    file = write_gguf(tmp_path / "m.gguf", model, kind=kind)
    entry = find_judge(file)
    assert (entry.dtype, entry.style) == ("auto", "completion")
    loaded = load_model(entry)
    assert loaded.dtype == torch.float32
    embeddings = [one.get_input_embeddings().weight for one in (loaded.model, model)]
    assert 1e-5 < (embeddings[0] - embeddings[1]).abs().max() < 0.02
    assert automatic_dtype(file, {"device_map": {"": "cuda"}}) == dtype


def test_names_do_not_count_and_content_does(tmp_path, file, model):
    """Ollama keeps a model as sha256-..., without an extension."""
    blob = tmp_path / "blobs" / "sha256-0123"
    blob.parent.mkdir()
    shutil.copy(file, blob)
    (blob.parent / "sha256-4567").write_text("another layer")
    assert is_gguf(blob)
    assert find_judge(blob).path == blob
    assert_same(load_model(find_judge(blob)).model, model)
    assert fingerprint(blob) == fingerprint(file)
    other = write_gguf(tmp_path / "other.gguf", llama(seed=1))
    assert fingerprint(other) != fingerprint(file)


def test_a_directory_with_one_model_is_that_model(tmp_path, file, model):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    write_gguf(tmp_path / "mmproj.gguf", model, keys={"ARCH.x": 1}, architecture="clip")
    assert find_gguf(tmp_path) == find_judge(tmp_path).path == file
    models = tmp_path / "models.yaml"
    models.write_text("judges:\n  mine:\n    path: .\n    dtype: float32\n")
    assert load_model(find_judge("mine", models)).directory == file
    shutil.copy(file, tmp_path / "second.gguf")
    with pytest.raises(JudgeError, match=r"holds 2 GGUF models \(model\.gguf, second\.gguf\)"):
        find_judge(tmp_path)


def test_safetensors_go_before_a_gguf_file_beside_them(tmp_path, model):
    directory = save_judge(tmp_path / "judge", model, byte_tokenizer())
    write_gguf(directory / "m.gguf", llama(seed=1))
    assert find_judge(directory).path == directory
    assert_same(load_model(find_judge(directory)).model, model)


def test_a_split_model_is_joined_and_each_missing_part_named(tmp_path, file, model):
    first = write_gguf(tmp_path / "parts.gguf", model, part_tensors=7)
    parts = gguf_files(first)
    assert len(parts) >= 3
    for named in (first, parts[1]):
        loaded = load_model(find_judge(named), FLOAT32)
        assert_same(loaded.model, model)
        assert loaded.fingerprint == fingerprint(first)
    parts[1].rename(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match=f"1 of its {len(parts)} GGUF files are missing .*{parts[1].name}"):
        load_model(find_judge(first))
    shutil.copy(parts[2], parts[1])
    with pytest.raises(WeightsError, match="not the parts of one model"):
        load_model(find_judge(first))


# --- parts that transformers drops ----------------------------------------------------------------------------------

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16, "rope_theta": 10000.0}


def test_the_factors_of_llama_3_are_applied(tmp_path):
    model = llama(rope_parameters=LLAMA3)
    plain = 10000.0 ** -(np.arange(0, 8, 2) / 8)
    factors = plain / model.model.rotary_emb.inv_freq.numpy()
    assert factors.max() > 2
    file = write_gguf(tmp_path / "m.gguf", model, extra={"rope_freqs.weight": factors})
    assert_same(load_model(find_judge(file)).model, model, 1e-4)
    without = write_gguf(tmp_path / "without.gguf", model)
    assert (logits(load_model(find_judge(without)).model) - logits(model)).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rotary_scaling_is_read(tmp_path, kind):
    rope = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
    model = llama(rope_parameters=rope)
    keys = {"ARCH.rope.scaling.type": kind, "ARCH.rope.scaling.factor": 4.0}
    keys["ARCH.rope.scaling.original_context_length"] = 32
    file = write_gguf(tmp_path / "m.gguf", model, keys=keys)
    assert_same(load_model(find_judge(file)).model, model, 1e-4)
    assert (logits(llama()) - logits(model)).abs().max() > 0.01


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048, "rope_theta": 10000.0}
YARN_KEYS = {"type": "yarn", "factor": 4.0, "original_context_length": 2048}
#: Heads with enough pairs that the bounds of YaRN fall between them.
WIDE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("keys", "rope"),
    [
        ({"yarn_beta_fast": 8.0}, {"beta_fast": 8.0}),
        ({"yarn_beta_slow": 3.0}, {"beta_slow": 3.0}),
        ({"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}, {"beta_fast": 16.0, "beta_slow": 2.0}),
        ({"yarn_attn_factor": 1.3}, {"attention_factor": 1.3}),
        ({"yarn_attn_factor": 1.0, "yarn_ext_factor": 1.0}, {"attention_factor": 1.0}),
        ({"attn_factor": 1.0, "yarn_log_multiplier": 0.0, "finetuned": True, "alpha": 0.0}, {}),
        ({"factor": 0.0}, {"factor": 1.0}),
    ],
)
def test_every_key_of_yarn_is_read(tmp_path, keys, rope):
    model = llama(rope_parameters=YARN | rope, **WIDE)
    written = {f"ARCH.rope.scaling.{key}": value for key, value in {**YARN_KEYS, **keys}.items()}
    file = write_gguf(tmp_path / "m.gguf", model, keys=written)
    assert_same(load_model(find_judge(file)).model, model, 1e-4)
    if rope:
        assert (logits(llama(rope_parameters=YARN, **WIDE)) - logits(model)).abs().max() > 0.01


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"scaling.factor": 4.0}, 4.0),
        ({"scale_linear": 4.0}, 4.0),
        ({"scale_linear": 2.0, "scaling.factor": 4.0}, 4.0),
        ({"scale_linear": 4.0, "scaling.type": "linear"}, 4.0),
        ({"scaling.factor": 4.0, "scaling.type": "none"}, 1.0),
        ({"scaling.factor": 0.0}, 1.0),
        ({"scaling.type": "linear", "scaling.original_context_length": 9, "scaling.yarn_beta_fast": 8.0}, 1.0),
    ],
)
def test_a_factor_without_a_type_is_linear_as_in_llama_cpp(tmp_path, keys, factor):
    model = llama(rope_parameters={"rope_type": "linear", "factor": factor, "rope_theta": 10000.0})
    file = write_gguf(tmp_path / "m.gguf", model, keys={f"ARCH.rope.{key}": value for key, value in keys.items()})
    assert_same(load_model(find_judge(file)).model, model, 1e-4)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scaling.attn_factor", 1.3),
        ("scaling.yarn_log_multiplier", 0.1),
        ("scaling.yarn_ext_factor", 0.5),
        ("scaling.alpha", 1000.0),
        ("scaling.of_next_year", 2.0),
        ("freq_base_swa", 5000.0),
        ("dimension_count_swa", 4),
        ("scale_next", 2),
        ("dimension_count", 4),
        ("scaling.yarn_beta_fast", "fast"),
        ("scaling.factor", float("nan")),
        ("freq_base", 0.0),
    ],
)
def test_a_rotary_key_that_is_not_honoured_is_refused_by_name(tmp_path, model, monkeypatch, key, value):
    keys = {f"ARCH.rope.scaling.{name}": own for name, own in YARN_KEYS.items()} | {f"ARCH.rope.{key}": value}
    file = write_gguf(tmp_path / "m.gguf", model, keys=keys)
    monkeypatch.setattr("geval_local.models.load.read_gguf", None)
    with pytest.raises(UnsupportedModelError, match=rf"m\.gguf says llama\.rope\.{key}: ") as caught:
        load_model(find_judge(file))
    assert "safetensors" in caught.value.hint


def test_every_rotary_key_that_the_package_writes_is_known():
    """With a value that is no default, each is either honoured (tested above) or refused by name."""
    written = {key.removeprefix("{arch}.rope.") for name, key in vars(gguf.Keys.Rope).items() if name.isupper()}
    assert written <= ROTARY_KEYS


#: Key -> a value that changes what llama.cpp computes.
OTHER_COMPUTATION = {
    "attention.causal": False,
    "attention.clamp_kqv": 8.0,
    "attention.max_alibi_bias": 8.0,
    "attention.output_scale": 0.5,
    "attention.scale": 0.25,
    "attention.sliding_window": 8,
    "attention.sliding_window_pattern": 2,
    "attention.temperature_length": 64,
    "attention.temperature_scale": 0.1,
    "attn_logit_softcapping": 30.0,
    "embedding_scale": 12.0,
    "expert_gating_func": 2,
    "expert_used_count": 2,
    "expert_weights_scale": 2.5,
    "final_logit_softcapping": 30.0,
    "interleave_moe_layer_step": 2,
    "logit_scale": 0.0625,
    "of_next_year": "fast",
    "residual_scale": 0.22,
    "router_logit_softcapping": 30.0,
    "swin_norm": True,
    "use_parallel_residual": True,
}


@pytest.mark.parametrize("key", OTHER_COMPUTATION)
def test_a_key_that_changes_the_computation_is_refused_by_name(tmp_path, model, monkeypatch, key):
    file = write_gguf(tmp_path / "m.gguf", model, keys={f"ARCH.{key}": OTHER_COMPUTATION[key]})
    monkeypatch.setattr("geval_local.models.load.read_gguf", None)
    with pytest.raises(UnsupportedModelError, match=rf"m\.gguf says llama\.{key}: ") as caught:
        load_model(find_judge(file))
    assert "safetensors" in caught.value.hint


def test_values_that_change_nothing_are_taken(tmp_path, model):
    keys = {"attention.causal": True, "attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0}
    keys |= {"attention.sliding_window": 0, "final_logit_softcapping": 0.0, "logit_scale": 1.0, "residual_scale": 0.0}
    keys |= {"vocab_size": 265, "pooling_type": 3, "attention.key_length": 8, "attention.value_length": 8}
    keys |= {"tensor_data_layout": "Meta AI original pth", "expert_used_count": 0}
    file = write_gguf(tmp_path / "m.gguf", model, keys={f"ARCH.{key}": value for key, value in keys.items()})
    assert_same(load_model(find_judge(file)).model, model, 1e-4)


@pytest.mark.parametrize(
    ("architecture", "key", "value", "name", "other"),
    [
        ("gemma2", "final_logit_softcapping", 2.0, "final_logit_softcapping", None),
        ("gemma2", "attn_logit_softcapping", 2**-10, "attn_logit_softcapping", None),
        ("gemma3", "final_logit_softcapping", 2.0, "final_logit_softcapping", None),
        ("gemma3", "attention.sliding_window_pattern", [False, True], "layer_types", ["full_attention"] * 2),
        ("qwen3moe", "expert_weights_norm", False, "norm_topk_prob", True),
        ("nemotron", "attention.layer_norm_epsilon", 0.5, "norm_eps", 1e-5),
    ],
)
def test_keys_that_the_configuration_has_a_place_for_are_obeyed(
    tmp_path, monkeypatch, architecture, key, value, name, other
):
    """With `other`, the configuration of a file without the key, the same weights give other logits."""
    monkeypatch.setitem(KINDS_OF_MODELS, "nemotron", ("NemotronConfig", KINDS_OF_MODELS["llama"][1]))
    model = tiny_model(architecture.replace("moe", "_moe"), 265, dtype=torch.float32)
    told = {"gemma2": {"final_logit_softcapping": 0.0, "attn_logit_softcapping": 0.0}}.get(architecture, {})
    file = write_any_gguf(tmp_path / "m.gguf", model, architecture, KINDS.F32, keys={**told, key: value})
    loaded = load_model(find_judge(file)).model
    kinds = ["full_attention", "sliding_attention"]
    assert getattr(loaded.config, name) == ([kinds[flag] for flag in value] if name == "layer_types" else value)
    config = copy.deepcopy(loaded.config)
    setattr(config, name, other)
    without = type(loaded)(config).eval()
    without.load_state_dict(loaded.state_dict())
    assert (logits(loaded) - logits(without)).abs().max() > 1e-5


@pytest.mark.parametrize("window", [16, 0])
def test_the_window_of_phi3_is_read(tmp_path, window):
    """Transformers does not read it; its model has no place for the padding token of a tiny one."""
    model = tiny_model("phi3", 265, dtype=torch.float32)
    keys = {"attention.sliding_window": window}
    config = gguf_config(write_any_gguf(tmp_path / "m.gguf", model, "phi3", KINDS.F32, keys=keys))
    assert config.sliding_window == (window or None)


def test_a_cap_of_zero_is_none(tmp_path):
    model = tiny_model("gemma2", 265, dtype=torch.float32)
    keys = {"final_logit_softcapping": 0.0, "attn_logit_softcapping": 0.0}
    config = load_model(
        find_judge(write_any_gguf(tmp_path / "m.gguf", model, "gemma2", KINDS.F32, keys=keys))
    ).model.config
    assert (config.final_logit_softcapping, config.attn_logit_softcapping) == (None, None)


def test_a_pattern_is_a_number_of_layers_too(tmp_path):
    model = tiny_model("gemma3", 265, dtype=torch.float32, num_hidden_layers=4, layer_types=None)
    for number, full in ((2, [1, 3]), (4, [3])):
        keys = {"attention.sliding_window_pattern": number}
        file = write_any_gguf(tmp_path / "m.gguf", model, "gemma3", KINDS.F32, keys=keys)
        kinds = load_model(find_judge(file)).model.config.layer_types
        assert [place for place, kind in enumerate(kinds) if kind == "full_attention"] == full


def test_every_key_that_the_package_writes_is_read_known_or_refused(tmp_path, model):
    """None is skipped in silence: a strange value is refused unless the tensors or the configuration decide."""
    groups = (gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.SSM, gguf.Keys.WKV, gguf.Keys.ShortConv)
    names = {value for group in groups for name, value in vars(group).items() if name.isupper()}
    own = sorted(name.removeprefix("{arch}.") for name in names if "{dense}" not in name)
    taken = set()
    for key in own:
        file = write_gguf(tmp_path / "m.gguf", model, keys={f"ARCH.{key}": "strange"})
        try:
            gguf_config(file)
        except UnsupportedModelError:
            continue
        except Exception:  # transformers reads it
            taken.add(key)
        else:
            taken.add(key)
    assert taken <= _TAKEN, taken - _TAKEN


_TAKEN = {
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.key_length_swa"),
    *("attention.layer_norm_rms_epsilon", "attention.value_length", "attention.value_length_swa", "block_count"),
    *("context_length", "embedding_length", "expert_count", "expert_feed_forward_length", "feed_forward_length"),
    *("expert_shared_feed_forward_length", "nextn_predict_layers", "pooling_type", "tensor_data_layout", "vocab_size"),
}


def test_a_yarn_attention_factor_without_yarn_is_refused(tmp_path, model):
    file = write_gguf(tmp_path / "m.gguf", model, keys={"ARCH.rope.scaling.yarn_attn_factor": 1.25})
    with pytest.raises(UnsupportedModelError, match=r"says llama\.rope\.scaling\.yarn_attn_factor: 1\.25"):
        load_model(find_judge(file))


def test_a_key_of_sliding_layers_is_set_where_the_model_has_them_apart(tmp_path):
    model = tiny_model("gemma3", 265, dtype=torch.float32)
    for theta, swa in ((1e6, 10000.0), (5e5, 3000.0)):
        model.config.rope_parameters["full_attention"]["rope_theta"] = theta
        model.config.rope_parameters["sliding_attention"]["rope_theta"] = swa
        expected = type(model)(model.config).eval()
        expected.load_state_dict(model.state_dict())
        keys = {"rope.freq_base": theta, "rope.freq_base_swa": swa}
        file = write_any_gguf(tmp_path / "m.gguf", expected, "gemma3", KINDS.F32, keys=keys)
        found = load_model(find_judge(file)).model
        for kind in ("full_attention", "sliding_attention"):
            assert found.config.rope_parameters[kind]["rope_theta"] == model.config.rope_parameters[kind]["rope_theta"]


@pytest.mark.parametrize("width", [2, 4, 8])
def test_a_part_of_a_head_is_rotated_where_the_architecture_does_that(tmp_path, monkeypatch, width):
    settings = KINDS_OF_MODELS["llama"][1] | {"partial_rotary_factor": 0.5}
    monkeypatch.setitem(KINDS_OF_MODELS, "nemotron", ("NemotronConfig", settings))
    model = tiny_model("nemotron", 265, dtype=torch.float32)
    file = write_any_gguf(tmp_path / "m.gguf", model, "nemotron", KINDS.F32, keys={"rope.dimension_count": width})
    loaded = load_model(find_judge(file)).model
    assert loaded.model.rotary_emb.inv_freq.shape == (width // 2,)


def test_the_base_is_read_for_every_architecture(tmp_path, monkeypatch):
    """Transformers does not read that of StarCoder2."""
    monkeypatch.setitem(KINDS_OF_MODELS, "starcoder2", ("Starcoder2Config", KINDS_OF_MODELS["llama"][1]))
    model = tiny_model("starcoder2", 265, dtype=torch.float32)
    file = write_any_gguf(tmp_path / "m.gguf", model, "starcoder2", KINDS.F32, keys={"rope.freq_base": 1e6})
    expected = 1e6 ** -(torch.arange(0, 8, 2) / 8)
    torch.testing.assert_close(load_model(find_judge(file)).model.model.rotary_emb.inv_freq, expected)


def test_a_head_that_llama_would_rotate_in_part_is_told_as_that(tmp_path, model):
    file = write_gguf(tmp_path / "m.gguf", model, keys={"ARCH.rope.dimension_count": 4})
    with pytest.raises(UnsupportedModelError, match=r"rope\.dimension_count: 4, while its heads have 8 dimensions"):
        load_model(find_judge(file))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"keys": {"ARCH.rope.scaling.type": "longrope"}}, "scales its rotary embeddings"),
        ({"extra": {"rope_factors_long.weight": np.ones(4)}}, "scales its rotary embeddings"),
        ({"architecture": "brand_new"}, r"cannot read GGUF files of the architecture 'brand_new'"),
        ({"architecture": "t5"}, "cannot read GGUF files of the architecture 't5'"),
        ({"architecture": "clip"}, "holds no language model"),
    ],
)
def test_what_transformers_cannot_read_is_an_error_before_loading(tmp_path, model, monkeypatch, settings, says):
    file = write_gguf(tmp_path / "m.gguf", model, **settings)
    monkeypatch.setattr("geval_local.models.load.AutoModelForCausalLM", None)
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        load_model(find_judge(file))
    assert caught.value.hint


def test_a_type_that_is_not_read_is_refused_by_name(tmp_path, monkeypatch):
    model = llama(hidden_size=256, intermediate_size=256)
    file = write_gguf(tmp_path / "m.gguf", model, kind=KINDS.TQ1_0)
    monkeypatch.setattr("geval_local.models.load.AutoModelForCausalLM", None)
    with pytest.raises(
        UnsupportedModelError, match=r"'token_embd\.weight' of .*m\.gguf is of the type TQ1_0"
    ) as caught:
        load_model(find_judge(file))
    assert "Q4_K" in caught.value.hint


def test_a_tensor_without_a_place_is_an_error(tmp_path, model):
    file = write_gguf(tmp_path / "m.gguf", model, extra={"blk.0.attn_gate.weight": np.ones((32, 32))})
    with pytest.raises(WeightsError, match=r"holds 1 weights that .* no place for \(blk\.0\.attn_gate\.weight"):
        load_model(find_judge(file))


def test_heads_for_later_tokens_are_no_surplus_where_the_file_says_so(tmp_path, model):
    """GLM's files number them as layers."""
    extra = {"blk.2.attn_q.weight": np.ones((32, 32)), "blk.2.nextn.eh_proj.weight": np.ones((32, 64))}
    with pytest.raises(WeightsError, match=r"holds 1 weights that .* no place for \(blk\.2\.attn_q"):
        load_model(find_judge(write_gguf(tmp_path / "m.gguf", model, extra=extra)))
    keys = {"ARCH.nextn_predict_layers": 1}
    load_model(find_judge(write_gguf(tmp_path / "n.gguf", model, extra=extra, keys=keys)))


def test_a_tensor_that_is_missing_is_an_error(tmp_path, model):
    deeper = llama(num_hidden_layers=3)
    file = write_gguf(tmp_path / "m.gguf", model, keys={})
    data = file.read_bytes()
    file.write_bytes(data.replace(b"blk.1.ffn_up.weight", b"blk.9.ffn_up.weight"))
    with pytest.raises(WeightsError, match=r"1 parameters are missing .*layers\.1\.mlp\.up_proj|no place for"):
        load_model(find_judge(file))
    assert deeper.config.num_hidden_layers == 3


# --- damage, options ------------------------------------------------------------------------------------------------


def test_a_file_cut_short_anywhere_is_an_error_with_its_name(file):
    data = file.read_bytes()
    start = read_header(file).data_start
    for length in (4, 30, 400, start // 2, start - 40, start + 10, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(WeightsError, match=r"model\.gguf is (not a complete GGUF file|cut short)") as caught:
            load_model(find_judge(file))
        assert "again" in caught.value.hint


@pytest.mark.slow
def test_damaged_headers_are_errors(file):
    data = bytearray(file.read_bytes())
    rng = np.random.default_rng(0)
    for _ in range(300):
        broken = bytearray(data)
        for place in rng.integers(4, 600, 3):
            broken[place] = rng.integers(256)
        file.write_bytes(broken)
        try:
            check_judge(find_judge(file), JudgeOptions())
        except (WeightsError, UnsupportedModelError, TokenizerError, JudgeError):
            continue


def test_one_name_twice_is_refused(file):
    data = file.read_bytes()
    for old, new, says in (
        (b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight", r"the tensor 'blk\.0\.ffn_up\.weight' twice"),
        (b"ggml.eos_token_id", b"ggml.bos_token_id", r"the key 'tokenizer\.ggml\.bos_token_id' twice"),
    ):
        file.write_bytes(data.replace(old, new))
        with pytest.raises(WeightsError, match=rf"model\.gguf is not a complete GGUF file: its header has {says}"):
            load_model(find_judge(file))


def test_tensors_that_overlap_are_refused(file):
    header = read_header(file)
    name = sorted(header.tensors, key=lambda one: one.offset)[1].name.encode()
    data = bytearray(file.read_bytes())
    place = data.index(name) + len(name)
    place += 4 + 8 * int.from_bytes(data[place : place + 4], "little") + 4
    data[place : place + 8] = (32).to_bytes(8, "little")
    file.write_bytes(data)
    with pytest.raises(WeightsError, match=r"model\.gguf is damaged: its tensors .* overlap"):
        load_model(find_judge(file))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"context_length": 1}, "context_length: 1"),
        ({"context_length": 0}, "context_length: 0"),
        ({"context_length": "many"}, "context_length: 'many'"),
        ({"block_count": 1 << 20}, "block_count: 1048576, where its tensors allow 1 to 2"),
        ({"block_count": 1000}, "block_count: 1000, where its tensors allow 1 to 2"),
        ({"block_count": 264}, "block_count: 264, where its tensors allow 1 to 2"),
        ({"block_count": 3}, "block_count: 3, where its tensors allow 1 to 2"),
        ({"block_count": 0}, "block_count: 0"),
        ({"block_count": -5}, "block_count: -5"),
        ({"embedding_length": 1 << 31}, "embedding_length: 2147483648, where its tensors allow 0 to "),
        ({"feed_forward_length": 10**6}, "feed_forward_length: 1000000, where its tensors allow 0 to "),
        ({"attention.head_count": 1 << 30}, r"attention\.head_count: 1073741824, where its tensors allow 0 to "),
        ({"attention.head_count": -4}, r"attention\.head_count: -4"),
        ({"rope.dimension_count": 1 << 28}, r"rope\.dimension_count: 268435456, where its tensors allow 0 to "),
    ],
)
def test_numbers_that_the_tensors_contradict_are_refused_before_a_model_is_built(
    tmp_path, model, monkeypatch, keys, says
):
    """A model of a million layers would be built for hours, without weights."""
    file = write_gguf(tmp_path / "m.gguf", model, keys={f"ARCH.{key}": value for key, value in keys.items()})
    monkeypatch.setattr("geval_local.models.load.AutoModelForCausalLM", None)
    with pytest.raises(JudgeError, match=rf"{file}.* says {says}"):
        load_model(find_judge(file))


def test_another_version_is_named(file):
    data = bytearray(file.read_bytes())
    data[4] = 1
    file.write_bytes(data)
    with pytest.raises(WeightsError, match="version 1 of GGUF"):
        find_judge(file)


def test_without_the_package_the_error_names_it(file, monkeypatch):
    monkeypatch.setattr("geval_local.models.gguf.model.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="needs the package gguf") as caught:
        load_model(find_judge(file))
    assert "geval-local[gguf]" in caught.value.hint


def test_a_quantized_file_is_not_quantized_again(file):
    with pytest.raises(ConfigurationError, match="quantized already"):
        load_model(find_judge(file), JudgeOptions(quantization="4bit"))


def test_a_broken_template_is_found_before_the_weights(tmp_path, model, monkeypatch):
    file = write_gguf(tmp_path / "m.gguf", model, template="{{ messages[0].content }}{{ nothing.at.all }}")
    monkeypatch.setattr("geval_local.models.load.AutoModelForCausalLM", None)
    with pytest.raises(TokenizerError, match=r"m\.gguf: the chat template fails"):
        load_model(find_judge(file))
    load_tokenizer(JudgeEntry(name="x", path=file, style="completion"))


def test_a_file_that_is_no_gguf_is_no_judge(tmp_path):
    (tmp_path / "notes.txt").write_text("GGU")
    with pytest.raises(JudgeError, match="there is no judge"):
        find_judge(tmp_path / "notes.txt")


@pytest.mark.slow
def test_a_judge_from_a_file_is_checked_and_scores(tmp_path, file):
    metric = tmp_path / "metric.yaml"
    metric.write_text(METRIC)
    result = run("judges", "check", file, "-m", metric, "--json", home=tmp_path / "home")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["fingerprint"] == fingerprint(file)
    assert record["batch_difference"] < 1e-4
    loaded = load_model(find_judge(file))
    record = load_model(find_judge(save_judge(tmp_path / "as safetensors", loaded.model, loaded.tokenizer)))
    metric = Metric.load(metric)
    rows = [{"source": "S", "output": f"It ends at {row}."} for row in range(4)]
    first, second = (
        [score.value for score in Judge(TransformersBackend(one)).score_many(metric.with_steps(("Read.",)), rows)]
        for one in (loaded, record)
    )
    assert first == pytest.approx(second, abs=1e-6)
