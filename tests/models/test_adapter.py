"""Adapters: other scores under another name, fingerprint and signature; never applied silently."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from cli_run import METRIC, run
from safetensors.torch import load_file, save_file
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.errors import ConfigurationError, JudgeError, UnsupportedModelError, WeightsError
from geval_local.judge.judge import Judge
from geval_local.metric import Metric
from geval_local.models import stored
from geval_local.models.load import load_model
from geval_local.models.registry import find_judge, label_of
from geval_local.models.stored import Stored
from geval_local.options import JudgeOptions
from geval_local.signature import signature_differences

peft = pytest.importorskip("peft")

METRIC_IN_PYTHON = Metric(name="clarity", criteria="How clear it is.", scale="1-5", fields={"output": "O"})
METRIC_IN_PYTHON = METRIC_IN_PYTHON.with_steps(("Read.", "Choose a score."))
SAMPLES = [{"output": f"It ends at {row}."} for row in range(5)]
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))


@pytest.fixture
def plain(tmp_path):
    return save_judge(tmp_path / "judge", tiny_model("llama", 263, dtype=torch.float32), byte_tokenizer())


def make_adapter(directory, judge, seed=0, **settings):
    """Write a LoRA adapter with weights far from zero, and return the logits computed by peft itself."""
    model = load_model(find_judge(judge).model_copy(update={"adapter": None})).model
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]} | settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = peft.get_peft_model(model, config).eval()
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_" in name:
                    parameter.copy_(0.5 * torch.randn_like(parameter))
    adapted.save_pretrained(str(directory))
    with torch.inference_mode():
        return directory, adapted(torch.arange(20).unsqueeze(0) + 8).logits


@pytest.fixture
def adapter(tmp_path, plain):
    return make_adapter(tmp_path / "tuned", plain)[0]


def values(judge):
    return [score.value for score in judge.score_many(METRIC_IN_PYTHON, SAMPLES)]


@pytest.mark.parametrize("key", ["target_modules", "rank_pattern"])
def test_a_pattern_without_end_is_refused(plain, adapter, monkeypatch, key):
    monkeypatch.setattr("geval_local.models.adapter.PATIENCE", 1.0)
    file = adapter / CONFIG
    pattern = "(model|(.*)*)*X"
    changes = {key: pattern if key == "target_modules" else {pattern: 3}}
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(JudgeError, match=r"adapter_config\.json do not come to an end within 1 s"):
        load_model(find_judge(plain, adapter=adapter))


def test_an_ordinary_pattern_is_taken(plain, tmp_path):
    adapter, logits = make_adapter(tmp_path / "tuned", plain, target_modules=r".*layers\.\d+\..*(q_proj|down_proj)")
    model = load_model(find_judge(plain, adapter=adapter)).model
    with torch.inference_mode():
        assert (model(torch.arange(20).unsqueeze(0) + 8).logits - logits).abs().max() < 1e-4


@pytest.mark.slow
def test_an_adapter_changes_scores_name_fingerprint_signature_and_cache_key(tmp_path, plain):
    adapter, logits = make_adapter(tmp_path / "tuned", plain)
    one, other = Judge.load(plain), Judge.load(plain, adapter=adapter)
    assert max(abs(a - b) for a, b in zip(values(one), values(other), strict=True)) > 0.01
    with torch.inference_mode():
        found = other.backend.loaded.model(torch.arange(20).unsqueeze(0) + 8).logits
    assert (found - logits).abs().max() < 1e-4
    assert other.name == f"{plain.name}+tuned"
    assert one.fingerprint != other.fingerprint
    assert one.identity != other.identity
    assert set(signature_differences(str(one.signature(METRIC_IN_PYTHON)), str(other.signature(METRIC_IN_PYTHON)))) == {
        "judge"
    }
    second = make_adapter(tmp_path / "again" / "tuned", plain, seed=1)[0]
    assert Judge.load(plain, adapter=second).fingerprint not in (one.fingerprint, other.fingerprint)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_the_prefix_engine_is_exact_with_an_adapter(tmp_path, kind):
    directory = save_judge(tmp_path / kind, tiny_model(kind, 263, dtype=torch.float32), byte_tokenizer())
    make_adapter(tmp_path / "tuned", directory, target_modules="all-linear")
    shared = Judge.load(directory, adapter=tmp_path / "tuned", engine="trie")
    padded = Judge.load(directory, adapter=tmp_path / "tuned", engine="padded")
    assert shared.engine_report.engine == "trie"
    assert values(shared) == pytest.approx(values(padded), abs=1e-4)


def test_an_adapter_in_the_judges_directory_is_named_and_counts(tmp_path, plain, adapter):
    expected = Judge.load(plain, adapter=adapter)
    both = shutil.copytree(plain, tmp_path / "both")
    for file in (CONFIG, WEIGHTS):
        shutil.copy(adapter / file, both)
    found = Judge.load(both)
    assert (found.name, found.fingerprint) == (f"{both.name}+adapter", expected.fingerprint)
    assert values(found) == pytest.approx(values(expected), abs=1e-6)
    assert label_of(JudgeOptions(name=str(both))) == found.name
    with pytest.raises(JudgeError, match="already has an adapter"):
        Judge.load(both, adapter=adapter)
    # A model loaded without the adapter is the plain one, under its plain name.
    bare = load_model(find_judge(plain).model_copy(update={"path": both}))
    assert bare.fingerprint == Judge.load(plain).fingerprint
    assert bare.entry.label == str(plain)


def test_a_models_file_names_an_adapter(tmp_path, plain, adapter):
    models = tmp_path / "models.yaml"
    models.write_text("judges:\n  mine:\n    path: judge\n    adapter: tuned\n    dtype: float32\n    style: chat\n")
    judge = Judge.load("mine", models_file=models)
    assert judge.name == "mine+tuned"
    assert values(judge) == pytest.approx(values(Judge.load(plain, adapter=adapter)), abs=1e-6)


def test_without_peft_it_is_refused_before_any_weights(plain, adapter, monkeypatch):
    monkeypatch.setattr("geval_local.models.adapter.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("geval_local.models.load.AutoModelForCausalLM", None)
    with pytest.raises(ConfigurationError, match="needs the package peft") as caught:
        Judge.load(plain, adapter=adapter)
    assert "pip install 'geval-local[peft]'" in caught.value.hint


def edit(adapter, **changes):
    file = adapter / CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def as_pickle(adapter):
    (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")


def another_rank(adapter):
    edit(adapter, r=2)


def more_targets(adapter):
    edit(adapter, target_modules=["q_proj", "down_proj", "up_proj"])


def fewer_targets(adapter):
    edit(adapter, target_modules=["q_proj"])


def foreign_targets(adapter):
    edit(adapter, target_modules=["c_attn"])


def not_finite(adapter):
    weights = load_file(adapter / WEIGHTS)
    save_file({name: tensor * float("nan") for name, tensor in weights.items()}, adapter / WEIGHTS)


def cut_short(adapter):
    (adapter / WEIGHTS).write_bytes((adapter / WEIGHTS).read_bytes()[:-100])


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (as_pickle, WeightsError, f"holds no {WEIGHTS}"),
        (another_rank, JudgeError, "does not fit"),
        (more_targets, WeightsError, "2 are missing and 0 have no place|4 are missing and 0 have no place"),
        (fewer_targets, WeightsError, "0 are missing and 4 have no place"),
        (foreign_targets, JudgeError, "does not fit"),
        (not_finite, JudgeError, "merged|finite"),
        (cut_short, WeightsError, "is damaged or cut short"),
        (lambda adapter: edit(adapter, peft_type="PREFIX_TUNING"), UnsupportedModelError, "only LoRA is merged"),
        (lambda adapter: edit(adapter, peft_type=["x"]), UnsupportedModelError, "only LoRA is merged"),
        (lambda adapter: edit(adapter, r="x"), JudgeError, "does not fit"),
        (lambda adapter: (adapter / CONFIG).write_text("[1"), JudgeError, "not the configuration of an adapter"),
        (lambda adapter: (adapter / CONFIG).write_text("[1]"), JudgeError, "not the configuration of an adapter"),
        (lambda adapter: (adapter / CONFIG).unlink(), JudgeError, f"holds no {CONFIG}"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(plain, adapter, change, error, says):
    change(adapter)
    with pytest.raises(error, match=says):
        Judge.load(plain, adapter=adapter)


# --- what no merge represents -----------------------------------------------------------------------------------------

AS_PLAIN = "path_initial_model_for_weight_conversion="


@pytest.mark.parametrize(
    ("changes", "says", "remedy"),
    [
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: 'pissa_niter_4'", AS_PLAIN),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights: 'pissa_niter_16'", AS_PLAIN),
        ({"init_lora_weights": "corda"}, "init_lora_weights: 'corda'", AS_PLAIN),
        ({"init_lora_weights": "eva"}, "init_lora_weights: 'eva'", AS_PLAIN),
        ({"init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4}}, "init_lora_weights: 'loftq'", AS_PLAIN),
        ({"init_lora_weights": "lora_ga"}, "init_lora_weights: 'lora_ga'", AS_PLAIN),
        ({"init_lora_weights": "of_next_year"}, "init_lora_weights: 'of_next_year'", AS_PLAIN),
        ({"init_lora_weights": ["pissa"]}, "init_lora_weights: ", AS_PLAIN),
        ({"layer_replication": [[0, 2], [0, 2]]}, "layer_replication", "copy the repeated layers"),
        ({"alora_invocation_tokens": [7, 8]}, "activated LoRA", "plain LoRA"),
        ({"arrow_config": {"top_k": 2}}, "arrow_config", "one of its adapters"),
    ],
)
def test_what_changes_the_base_or_cannot_be_merged_is_refused_before_the_weights(
    plain, adapter, monkeypatch, changes, says, remedy
):
    edit(adapter, **changes)
    monkeypatch.setattr("geval_local.models.load.AutoModelForCausalLM", None)
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        load_model(find_judge(plain, adapter=adapter))
    assert remedy in caught.value.hint
    assert str(adapter) in caught.value.message


def trained(directory, judge, **settings):
    """Write an adapter that was trained a little from its own beginning; its logits, and those of the base."""
    model = load_model(find_judge(judge)).model
    with torch.inference_mode():
        base = model(torch.arange(20).unsqueeze(0) + 8).logits
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], **settings))
        adapted.eval()
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_A" in name or ("lora_B" in name and settings["init_lora_weights"] != "mica"):
                    parameter.add_(0.1 * torch.randn_like(parameter))
    adapted.save_pretrained(str(directory))
    with torch.inference_mode():
        return adapted(torch.arange(20).unsqueeze(0) + 8).logits, base


@pytest.mark.parametrize("start", ["pissa", "olora", "mica", "orthogonal", "gaussian", False])
@pytest.mark.parametrize("few", [0, 1 << 26])
def test_a_beginning_that_is_found_again_gives_the_adapter_as_trained(tmp_path, monkeypatch, start, few):
    """From bfloat16 weights that are widened product by product, and from widened ones."""
    monkeypatch.setattr(stored, "FEW", few)
    judge = save_judge(tmp_path / "judge", tiny_model("llama", 263, dtype=torch.bfloat16), byte_tokenizer())
    expected, base = trained(tmp_path / "tuned", judge, init_lora_weights=start)
    for _ in range(2):
        model = load_model(find_judge(judge, adapter=tmp_path / "tuned")).model
        with torch.inference_mode():
            found = model(torch.arange(20).unsqueeze(0) + 8).logits
        assert (found - expected).abs().max() < 1e-4
    assert (expected - base).abs().max() > 0.01


@pytest.mark.parametrize("start", ["pissa", "olora", "mica"])
def test_factors_of_the_base_are_not_computed_in_float64(plain, tmp_path, start):
    trained(tmp_path / "tuned", plain, init_lora_weights=start)
    with pytest.raises(ConfigurationError, match="computes in float32 at most") as caught:
        load_model(find_judge(plain, adapter=tmp_path / "tuned"), JudgeOptions(dtype="float64"))
    assert "`dtype=float32`" in caught.value.hint


@pytest.mark.parametrize("start", ["pissa", "olora"])
def test_factors_of_a_base_in_blocks_are_those_of_other_weights(tmp_path, start):
    pytest.importorskip("gguf")
    from gguf_kit import write_gguf

    model = tiny_model("llama", 265, dtype=torch.float32)
    judge = save_judge(tmp_path / "judge", model, byte_tokenizer(merges=[("1", "0"), ("1", "2")]))
    trained(tmp_path / "tuned", judge, init_lora_weights=start)
    with pytest.raises(UnsupportedModelError, match="a GGUF file are not the ones") as caught:
        load_model(find_judge(write_gguf(tmp_path / "m.gguf", model), adapter=tmp_path / "tuned"))
    assert AS_PLAIN in caught.value.hint


def test_a_bias_of_an_adapter_needs_one_in_the_model(tmp_path, plain):
    make_adapter(tmp_path / "tuned", plain, lora_bias=True)
    with pytest.raises(JudgeError, match=r"cannot be merged: .*lora_bias") as caught:
        load_model(find_judge(plain, adapter=tmp_path / "tuned"))
    assert "Train it without `lora_bias`" in caught.value.hint
    model = tiny_model("llama", 263, dtype=torch.float32, attention_bias=True)
    biased = save_judge(tmp_path / "biased", model, byte_tokenizer())
    _, logits = make_adapter(tmp_path / "other", biased, lora_bias=True, target_modules=["q_proj"])
    found = load_model(find_judge(biased, adapter=tmp_path / "other")).model
    with torch.inference_mode():
        assert (found(torch.arange(20).unsqueeze(0) + 8).logits - logits).abs().max() < 1e-4


DTYPES = ["float32", "bfloat16", "float16", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "gpt2"])
def test_a_merge_is_compared_with_the_adapter_beside_the_model(tmp_path, monkeypatch, kind, dtype):
    judge = save_judge(tmp_path / kind, tiny_model(kind, 263, dtype=torch.float32), byte_tokenizer())
    make_adapter(tmp_path / "tuned", judge, target_modules="all-linear")
    options = JudgeOptions(dtype=dtype)
    assert load_model(find_judge(judge, adapter=tmp_path / "tuned"), options).dtype == getattr(torch, dtype)
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "another home"))
    merge = peft.tuners.lora.LoraModel.merge_and_unload

    def without_one_layer(model, **settings):
        for name, module in model.named_modules():
            if hasattr(module, "lora_B") and ".0." in name:
                for part in module.lora_B.values():
                    part.weight.data.mul_(0.5)
        return merge(model, **settings)

    monkeypatch.setattr(peft.tuners.lora.LoraModel, "merge_and_unload", without_one_layer)
    with pytest.raises(
        JudgeError, match=r"another model than with the adapter beside it: .* more than rounding"
    ) as caught:
        load_model(find_judge(judge, adapter=tmp_path / "tuned"), options)
    assert caught.value.hint


def test_replicated_layers_are_found_by_what_they_do_as_well(tmp_path, plain, monkeypatch):
    monkeypatch.setattr("geval_local.models.adapter.NO_MERGE", {})
    make_adapter(tmp_path / "tuned", plain, layer_replication=[[0, 2], [0, 2]])
    with pytest.raises(JudgeError, match="more than rounding"):
        load_model(find_judge(plain, adapter=tmp_path / "tuned"))


def test_a_merge_into_blocks_is_compared_too(tmp_path, monkeypatch):
    pytest.importorskip("gguf")
    from gguf import GGMLQuantizationType
    from gguf_kit import write_gguf

    monkeypatch.setattr(stored, "FEW", 0)
    model = tiny_model("llama", 265, dtype=torch.float32, hidden_size=256, intermediate_size=256)
    file = write_gguf(tmp_path / "m.gguf", model, kind=GGMLQuantizationType.Q8_0)
    _, logits = make_adapter(tmp_path / "tuned", file, target_modules="all-linear")
    found = load_model(find_judge(file, adapter=tmp_path / "tuned")).model
    with torch.inference_mode():
        assert (found(torch.arange(20).unsqueeze(0) + 8).logits - logits).abs().max() < 1e-3


def test_a_merge_is_compared_once_for_each_fingerprint_and_none_without_an_adapter(
    tmp_path, plain, adapter, monkeypatch
):
    load_model(find_judge(plain, adapter=adapter))
    other = make_adapter(tmp_path / "again" / "tuned", plain, seed=1)[0]
    monkeypatch.setattr("geval_local.models.adapter.probe_logits", None)
    load_model(find_judge(plain))
    load_model(find_judge(plain, adapter=adapter))
    with pytest.raises(JudgeError, match="NoneType"):
        load_model(find_judge(plain, adapter=other))
    with pytest.raises(JudgeError, match="NoneType"):
        load_model(find_judge(plain, adapter=adapter), JudgeOptions(dtype="bfloat16"))


def test_an_adapter_and_quantization_exclude_each_other(plain, adapter, monkeypatch):
    entry = find_judge(plain, adapter=adapter)
    with pytest.raises(ConfigurationError, match="quantization has no room"):
        load_model(entry, JudgeOptions(quantization="4bit"))


def test_tied_embeddings_are_not_changed_in_one_place_only(tmp_path):
    model = tiny_model("llama", 263, dtype=torch.float32, tie_word_embeddings=True)
    directory = save_judge(tmp_path / "tied", model, byte_tokenizer())
    make_adapter(tmp_path / "tuned", directory, target_modules=["lm_head"])
    with pytest.raises(JudgeError, match="embedding or the head, which are one"):
        Judge.load(directory, adapter=tmp_path / "tuned")


def test_an_adapter_alone_says_how_it_is_given(adapter):
    with pytest.raises(JudgeError, match="is an adapter alone") as caught:
        find_judge(adapter)
    assert f"`judge=MODEL` `adapter={adapter}`" in caught.value.hint


def test_the_command_line_scores_with_an_adapter_under_its_own_name(tmp_path, plain, adapter, monkeypatch):
    """First with the adapter, then without: the cache must not give one the other's figures."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clarity.yaml").write_text(METRIC, encoding="utf-8")
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"source": "A tale.", **row}) + "\n" for row in SAMPLES))
    command = ("score", "data.jsonl", "-m", "clarity.yaml", "-j", str(plain))
    tuned = run(*command, "--adapter", "tuned", "-o", "tuned.jsonl", home=tmp_path / "home")
    bare = run(*command, "-o", "bare.jsonl", home=tmp_path / "home")
    assert (tuned.exit_code, bare.exit_code) == (0, 0), tuned.output + bare.output
    found = [
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("tuned.jsonl", "bare.jsonl")
    ]
    assert "judge+tuned@" in (tmp_path / "tuned.jsonl.meta.json").read_text()
    assert found[0] != found[1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_it_is_merged_in_float32_into_weights_that_are_stored_narrow(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(stored, "FEW", 0)
    model = tiny_model("llama", 263, dtype=dtype)
    narrow = save_judge(tmp_path / "narrow", model, byte_tokenizer())
    wide = save_judge(tmp_path / "wide", model.float(), byte_tokenizer())
    tuned, expected = make_adapter(tmp_path / "tuned", wide)
    first, second = (
        load_model(find_judge(place).model_copy(update={"adapter": tuned})).model for place in (narrow, wide)
    )
    layer = first.model.layers[0]
    assert [isinstance(part.weight, Stored) for part in (layer.self_attn.q_proj, layer.mlp.up_proj)] == [False, True]
    with torch.inference_mode():
        found, same = (one(torch.arange(20).unsqueeze(0) + 8).logits for one in (first, second))
    assert torch.equal(found, same)
    assert (found - expected).abs().max() < 1e-4
