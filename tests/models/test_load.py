"""Loading: the loaded model equals the saved one, and anything that would load another model is rejected."""

from __future__ import annotations

import json
import re
import shutil
import socket
from threading import Event

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny import KINDS, byte_tokenizer, save_judge, tiny_model

from geval_local.engine.transformers_backend import TransformersBackend
from geval_local.errors import ConfigurationError, JudgeError, TokenizerError, UnsupportedModelError, WeightsError
from geval_local.io.ownership import file_sha256
from geval_local.judge.judge import Judge
from geval_local.metric import Metric
from geval_local.models import fingerprint, load
from geval_local.models.load import check_style, load_model, load_tokenizer, resolve_directory
from geval_local.models.progress import watch_work
from geval_local.models.reading import stored_tensors
from geval_local.models.registry import JudgeEntry, find_judge
from geval_local.options import JudgeOptions

TOKENS = torch.arange(30).unsqueeze(0) + 8


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("loading opened a socket")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def judge(tmp_path):
    return save_judge(tmp_path / "judge", tiny_model("llama", 263), byte_tokenizer())


def difference(first, second):
    with torch.inference_mode():
        return (first(TOKENS).logits - second(TOKENS).logits).abs().max().item()


def edit_config(directory, **changes):
    file = directory / "config.json"
    config = json.loads(file.read_text())
    config.update(changes)
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_as_it_was_saved(tmp_path, kind):
    model = tiny_model(kind, 263)
    loaded = load_model(find_judge(save_judge(tmp_path / kind, model, byte_tokenizer())))
    assert loaded.dtype == loaded.model.dtype == torch.float64
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.parameters == model.num_parameters()
    # GPT-J rebuilds its table of positions while it is loaded, in float32.
    assert difference(loaded.model, model) < (1e-5 if kind == "gptj" else 1e-9)


def test_options_reach_the_model(judge):
    loaded = load_model(find_judge(judge), JudgeOptions(dtype="bfloat16", attention="eager", device="cpu"))
    assert (loaded.dtype, loaded.model.dtype, loaded.attention) == (torch.bfloat16, torch.bfloat16, "eager")
    assert loaded.memory_bytes == pytest.approx(2 * loaded.parameters, rel=0.01)
    assert loaded.tokenizer.is_fast
    assert loaded.directory == judge
    mapped = load_model(find_judge(judge), JudgeOptions(device_map="auto"))
    assert mapped.parameters == loaded.parameters


def in_fp8(weights):
    """Matrices of 8 bits, a scale each; and what they stand for."""
    stored, meant = {}, {}
    for name, weight in weights.items():
        stored[name] = meant[name] = weight
        if name.endswith("proj.weight"):
            scale = weight.float().abs().max() / 448
            stored[name] = (weight.float() / scale).to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale.reshape(1, 1)
            meant[name] = stored[name].float() * scale
    return stored, meant


def in_mxfp4(weights):
    """Experts of 4 bits, two to a byte, and an exponent for 32 of them."""
    stored, meant = {}, {}
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([magnitudes, -magnitudes])
    for name, weight in weights.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, inward, outward = weight.shape
            generator = torch.Generator().manual_seed(0)
            blocks = torch.randint(0, 256, (experts, outward, inward // 32, 16), generator=generator).to(torch.uint8)
            scales = torch.randint(115, 122, (experts, outward, inward // 32), generator=generator).to(torch.uint8)
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            pairs = torch.stack([values[(blocks & 15).long()], values[(blocks >> 4).long()]], dim=-1)
            wide = pairs.flatten(3) * torch.exp2(scales[..., None].float() - 127)
            meant[name] = wide.reshape(experts, outward, inward).transpose(1, 2)
        else:
            stored[name] = meant[name] = weight
    return stored, meant


@pytest.mark.parametrize("asked", ["dequantize", None])
@pytest.mark.parametrize(
    ("kind", "pack", "settings"),
    [
        ("llama", in_fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
        ("gpt_oss", in_mxfp4, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}),
    ],
)
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_weights_of_8_and_4_bits_are_widened_as_they_are_meant(tmp_path, kind, pack, settings, asked, dtype):
    """Asked for, or on a CPU."""
    place = save_judge(tmp_path / "judge", tiny_model(kind, 263, torch.bfloat16), byte_tokenizer())
    stored, meant = pack(load_file(place / "model.safetensors"))
    save_file(stored, place / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    loaded = load_model(find_judge(place), JudgeOptions(device="cpu", dtype=dtype, quantization=asked))
    found = loaded.model.state_dict()
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16 if dtype else torch.float32}
    for name, weight in meant.items():
        torch.testing.assert_close(found[name], weight.to(loaded.dtype), rtol=0, atol=0)


def test_weights_that_transformers_reads_are_hashed_meanwhile(tmp_path, monkeypatch):
    """As on a GPU, where the weights are not read here: hashing them afterwards would take as long again."""
    place = save_judge(tmp_path / "judge", tiny_model("llama", 263), byte_tokenizer())
    expected = load_model(find_judge(place)).fingerprint
    monkeypatch.setattr(load, "noted_digest", lambda file: None)
    begun, loading, hashed = Event(), Event(), []

    def hash_slowly(file):
        begun.set()
        assert loading.wait(300)
        hashed.append(file.name)
        return file_sha256(file)

    monkeypatch.setattr(load, "file_sha256", hash_slowly)

    def hash_the_small(file):
        return pytest.fail(f"{file} is read once more") if file.suffix == ".safetensors" else file_sha256(file)

    monkeypatch.setattr(fingerprint, "file_sha256", hash_the_small)
    read = transformers.PreTrainedModel.from_pretrained.__func__

    def reading(*given, **named):
        assert begun.wait(300)
        loading.set()
        return read(*given, **named)

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", classmethod(reading))
    assert load_model(find_judge(place), JudgeOptions(device_map="auto")).fingerprint == expected
    assert hashed == ["model.safetensors"]


@pytest.mark.sweep
@pytest.mark.parametrize("engine", ["trie", "cache", "padded"])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_a_model_split_over_memory_and_disk_scores_like_the_whole_one(tmp_path, monkeypatch, kind, engine):
    """Accelerate's placement over several GPUs, emulated with the devices of every machine."""
    model = tiny_model(kind, 263, dtype=torch.float32)
    entry = find_judge(save_judge(tmp_path / kind, model, byte_tokenizer()))
    whole = load_model(entry)
    room = {"cpu": int(0.9 * whole.memory_bytes)}
    monkeypatch.setattr(transformers.integrations.accelerate, "get_max_memory", lambda *given, **named: room)
    split = load_model(entry, JudgeOptions(device_map="auto"))
    assert set(split.model.hf_device_map.values()) == {"cpu", "disk"}
    assert any(parameter.is_meta for parameter in split.model.parameters())
    metric = Metric(name="clarity", criteria="How clear it is.", scale="0-10", fields={"source": "S", "output": "O"})
    metric = metric.with_steps(("Read.", "Choose a score."))
    samples = [{"source": "A tale. " * (1 + row % 3), "output": f"It ends at {row}."} for row in range(7)]
    found, expected = (
        Judge(TransformersBackend(loaded, engine=engine)).score_many(metric, samples) for loaded in (split, whole)
    )
    assert [score.value for score in found] == pytest.approx([score.value for score in expected], abs=1e-6)
    assert len({round(score.value, 6) for score in expected}) == len(samples)  # or else the line above says little


@pytest.mark.parametrize("tied", [True, False])
def test_a_device_map_without_memory_for_any_part_is_refused_with_what_helps(tmp_path, monkeypatch, tied):
    model = tiny_model("llama", 263, dtype=torch.float32, tie_word_embeddings=tied)
    entry = find_judge(save_judge(tmp_path / "tied", model, byte_tokenizer()))
    whole = load_model(entry)
    room = {"cpu": int((0.55 if tied else 0.3) * whole.memory_bytes)}
    monkeypatch.setattr(transformers.integrations.accelerate, "get_max_memory", lambda *given, **named: room)
    with pytest.raises(JudgeError, match=r"'.*tied'.*no memory for any part") as caught:
        load_model(entry, JudgeOptions(device_map="auto"))
    assert ("shares with its head" in str(caught.value)) is tied
    metric = Metric(name="clarity", criteria="How clear it is.", scale="0-10", fields={"output": "O"})
    metric = metric.with_steps(("Read.", "Choose a score."))
    samples = [{"output": f"It ends at {row}."} for row in range(3)]
    expected = [score.value for score in Judge(TransformersBackend(whole)).score_many(metric, samples)]
    for remedy in (JudgeOptions(device="cpu"), JudgeOptions(device_map="auto", dtype="bfloat16")):
        assert f"`{'dtype=bfloat16' if remedy.dtype else 'device=cpu'}`" in str(caught.value.hint)
        found = [
            score.value for score in Judge(TransformersBackend(load_model(entry, remedy))).score_many(metric, samples)
        ]
        assert found == pytest.approx(expected, abs=0.5 if remedy.dtype else 1e-6)


def test_soft_capped_attention_is_never_computed_without_its_cap(tmp_path):
    model = tiny_model("gemma2", 263, attn_logit_softcapping=0.5)
    model.set_attn_implementation("eager")
    entry = find_judge(save_judge(tmp_path / "capped", model, byte_tokenizer()))
    loaded = load_model(entry)
    assert loaded.attention == "eager"
    assert difference(loaded.model, model) < 1e-9
    with pytest.raises(ConfigurationError, match=r"sdpa|attention"):
        load_model(entry, JudgeOptions(attention="sdpa"))
    free = find_judge(save_judge(tmp_path / "free", tiny_model("gemma3", 263), byte_tokenizer()))
    assert load_model(free).attention == "sdpa"


def test_the_entry_decides_the_dtype_unless_an_option_does(judge):
    entry = find_judge(judge).model_copy(update={"dtype": "float32"})
    assert load_model(entry).dtype == torch.float32
    assert load_model(entry, JudgeOptions(dtype="float64")).dtype == torch.float64


def test_shards_load_and_each_missing_one_is_named(tmp_path):
    model = tiny_model("llama", 263)
    directory = save_judge(tmp_path / "shards", model, byte_tokenizer(), max_shard_size="100KB")
    shards = sorted(directory.glob("model-*.safetensors"))
    assert len(shards) >= 3
    loaded = load_model(find_judge(directory))
    assert difference(loaded.model, model) < 1e-9
    shards[1].unlink()
    shards[2].unlink()
    shards[2].symlink_to(tmp_path / "gone")  # how an interrupted download looks in the hub cache
    with pytest.raises(WeightsError, match=f"2 of {len(shards)} weight files are missing") as caught:
        load_model(find_judge(directory))
    assert shards[1].name in caught.value.message
    assert shards[2].name in caught.value.message


def test_reading_is_told_in_bytes(tmp_path):
    directory = save_judge(tmp_path / "shards", tiny_model("llama", 263), byte_tokenizer(), max_shard_size="100KB")
    size = sum(one.size for file in directory.glob("*.safetensors") for one in stored_tensors(file).values())
    told = []
    with watch_work(lambda done, total: told.append((done, total))):
        load_model(find_judge(directory))
    assert told[-1] == (size, size)
    assert {total for _, total in told} == {size}
    assert len(told) > 10
    assert told == sorted(told)
    load_model(find_judge(directory))
    assert told[-1] == (size, size)


def test_an_index_that_points_outside_its_directory_is_refused(judge):
    index = {"weight_map": {"a": "../other.safetensors"}}
    (judge / "model.safetensors").unlink()
    (judge / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="not a safetensors file of its own directory"):
        load_model(find_judge(judge))
    (judge / "model.safetensors.index.json").write_text("{")
    with pytest.raises(WeightsError, match="is not an index"):
        load_model(find_judge(judge))


def test_missing_weights_say_how_to_fetch_and_carry_them(judge):
    with pytest.raises(WeightsError, match=r"microsoft/phi-4\) are not on this machine") as caught:
        resolve_directory(find_judge("phi-4"))
    assert "geval-local judges fetch phi-4" in caught.value.hint
    assert "without a network" in caught.value.hint
    (judge / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"there are no weights \(model.safetensors\)"):
        load_model(find_judge(judge))
    (judge / "weights.onnx").touch()
    with pytest.raises(WeightsError, match=r"found weights\.onnx, a format that is not read"):
        load_model(find_judge(judge))
    with pytest.raises(WeightsError, match=r"holds no config\.json"):
        resolve_directory(JudgeEntry(name="x", path=judge / "nowhere"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_refused_unread(judge, name):
    (judge / "model.safetensors").unlink()
    (judge / name).write_bytes(b"never read")
    with pytest.raises(WeightsError, match=f"only as pickle \\({re.escape(name)}\\)") as caught:
        load_model(find_judge(judge))
    assert "save_pretrained" in caught.value.hint


def test_a_truncated_file_is_named_as_damaged(judge):
    file = judge / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(WeightsError, match="damaged or cut short"):
        load_model(find_judge(judge))


@pytest.mark.parametrize("change", ["drop", "rename"])
def test_parameters_without_weights_are_never_random(judge, change):
    file = judge / "model.safetensors"
    weights = load_file(file)
    tensor = weights.pop("model.layers.1.mlp.up_proj.weight")
    if change == "rename":
        weights["model.layers.1.mlp.upp_proj.weight"] = tensor
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"1 parameters are missing .*model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(find_judge(judge))


def test_weights_of_another_shape_are_refused(judge):
    edit_config(judge, intermediate_size=48)
    with pytest.raises(WeightsError, match=r"6 have another shape \(model\.layers\.0\.mlp"):
        load_model(find_judge(judge))


def test_a_head_left_out_is_not_made_up_but_a_tied_one_is_no_gap(judge, tmp_path):
    file = judge / "model.safetensors"
    weights = load_file(file)
    del weights["lm_head.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(WeightsError, match=r"lm_head\.weight"):
        load_model(find_judge(judge))
    tied = save_judge(tmp_path / "tied", tiny_model("llama", 263, tie_word_embeddings=True), byte_tokenizer())
    assert "lm_head.weight" not in load_file(tied / "model.safetensors")
    model = load_model(find_judge(tied)).model
    assert torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (transformers.T5Config(), "'t5' is an encoder-decoder model"),
        (transformers.BartConfig(), "'bart' is an encoder-decoder model"),
        (transformers.BertConfig(architectures=["BertForMaskedLM"]), "'bert' is an encoder"),
        (transformers.XLMRobertaConfig(), "'xlm-roberta' is an encoder"),
        (transformers.ReformerConfig(is_decoder=True), "'reformer' attends to tokens by hashes"),
        (transformers.DebertaV2Config(), "'deberta-v2' has no causal language model head"),
        (transformers.CLIPConfig(), "'clip' has no causal language model head"),
        (
            transformers.LlamaConfig(architectures=["LlamaForSequenceClassification"]),
            "its weights belong to LlamaForSequenceClassification",
        ),
    ],
)
def test_models_without_a_next_token_distribution_are_refused(judge, config, says):
    config.save_pretrained(judge)
    with pytest.raises(UnsupportedModelError, match=re.escape(says)):
        load_model(find_judge(judge))


def test_an_unknown_architecture_and_one_with_its_own_code_are_told_apart(judge):
    edit_config(judge, model_type="brand_new")
    with pytest.raises(UnsupportedModelError, match="does not know the model type 'brand_new'"):
        load_model(find_judge(judge))
    edit_config(judge, auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    with pytest.raises(UnsupportedModelError, match="Python code in its own directory") as caught:
        load_model(find_judge(judge))
    assert "`trust_remote_code=True`" in caught.value.hint


OWN_CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM
Path(r"{mark}").touch()
class OwnConfig(LlamaConfig):
    model_type = "own_llama"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_own_code_runs_only_when_allowed(judge, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    mark = tmp_path / "ran"
    (judge / "own.py").write_text(OWN_CODE.format(mark=mark))
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    # A model type known to transformers is built by transformers, ignoring code beside it.
    edit_config(judge, auto_map=auto_map)
    assert type(load_model(find_judge(judge)).model) is transformers.LlamaForCausalLM
    edit_config(judge, model_type="own_llama", architectures=["OwnModel"])
    with pytest.raises(UnsupportedModelError):
        load_model(find_judge(judge))
    assert not mark.exists()
    loaded = load_model(find_judge(judge), JudgeOptions(trust_remote_code=True))
    assert mark.exists()
    assert type(loaded.model).__name__ == "OwnModel"


def test_a_missing_tokenizer_is_an_error_of_its_own(judge):
    for file in judge.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(TokenizerError, match="no tokenizer can be loaded") as caught:
        load_tokenizer(find_judge(judge))
    assert "tokenizer.json" in caught.value.hint


def test_a_tokenizer_without_a_fast_backend_is_refused(judge):
    for file in judge.glob("tokenizer*"):
        file.unlink()
    (judge / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    with pytest.raises(TokenizerError, match=r"\(ByT5Tokenizer\) has no fast backend"):
        load_tokenizer(find_judge(judge))


def test_the_tokenizer_loads_without_weights(judge):
    (judge / "model.safetensors").unlink()
    entry = find_judge(judge)
    assert entry.style == "chat"
    assert load_tokenizer(entry)("10", add_special_tokens=False)["input_ids"] == byte_tokenizer()("10")["input_ids"][1:]


@pytest.mark.parametrize("style", ["chat", "chat-no-prefill"])
def test_a_chat_style_needs_a_template(judge, style):
    (judge / "chat_template.jinja").unlink()
    entry = find_judge(judge)
    assert entry.style == "completion"
    load_tokenizer(entry)
    with pytest.raises(TokenizerError, match=r"judge .*: a chat style needs a chat template") as caught:
        load_tokenizer(entry.model_copy(update={"style": style}))
    assert "style: completion" in caught.value.hint
    with pytest.raises(TokenizerError, match="needs a chat template"):
        check_style(entry.model_copy(update={"style": style}), byte_tokenizer(chat=False))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "cpu", "device_map": "auto"}, "`device` and `device_map` exclude each other"),
        ({"device": "warp:0"}, "the device 'warp:0' cannot be used here"),
        ({"attention": "psychic"}, "psychic"),
    ],
)
def test_options_that_cannot_be_met_are_named(judge, options, says):
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        load_model(find_judge(judge), JudgeOptions(**options))


def test_quantization_without_its_package_says_what_to_install(judge, monkeypatch):
    monkeypatch.setattr("geval_local.models.options.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="4bit quantization needs the package bitsandbytes") as caught:
        load_model(find_judge(judge), JudgeOptions(quantization="4bit"))
    assert "pip install bitsandbytes" in caught.value.hint


def test_loading_is_silent_and_leaves_the_log_level_as_it_was(judge, capfd):
    transformers.utils.logging.set_verbosity_info()
    try:
        weights = load_file(judge / "model.safetensors")
        surplus = {"model.rotary_emb.inv_freq": torch.zeros(2)}
        save_file({**weights, **surplus}, judge / "model.safetensors", metadata={"format": "pt"})
        load_model(find_judge(judge))
        assert transformers.utils.logging.get_verbosity() == transformers.utils.logging.INFO
    finally:
        transformers.utils.logging.set_verbosity_warning()
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_a_text_and_image_wrapper_reads_text(tmp_path):
    text = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 300,
        "layer_types": ["sliding_attention", "full_attention"],
        "initializer_range": 0.4,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=299, boi_token_index=298
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    loaded = load_model(find_judge(save_judge(tmp_path / "wrapper", model, byte_tokenizer())))
    assert difference(loaded.model, model) < 1e-5


def test_a_copy_elsewhere_is_the_same_judge(judge, tmp_path):
    first = load_model(find_judge(judge))
    copy = shutil.copytree(judge, tmp_path / "copy")
    second = load_model(find_judge(copy))
    assert (first.fingerprint, first.tokenizer_hash) == (second.fingerprint, second.tokenizer_hash)
    (copy / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    third = load_model(find_judge(copy))
    assert third.fingerprint == first.fingerprint
    assert third.tokenizer_hash != first.tokenizer_hash
