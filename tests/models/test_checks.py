"""A checkpoint is the trained model: no weight is left over, and all weights are finite."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import byte_tokenizer, save_judge, tiny_model

from geval_local.errors import JudgeError, WeightsError
from geval_local.models.load import load_model
from geval_local.models.registry import find_judge
from geval_local.options import JudgeOptions

WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))


def judge(tmp_path, kind="llama", **settings):
    return save_judge(tmp_path / kind, tiny_model(kind, 263, **settings), byte_tokenizer())


def edit_weights(directory, change):
    weights = load_file(directory / WEIGHTS)
    save_file({**weights, **change(weights)}, directory / WEIGHTS, metadata={"format": "pt"})


def edit_config(directory, **changes):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_configuration_with_fewer_layers_than_the_weights_is_refused(tmp_path):
    directory = judge(tmp_path)
    layers = json.loads((directory / "config.json").read_text())["num_hidden_layers"]
    edit_config(directory, num_hidden_layers=layers - 1)
    with pytest.raises(WeightsError, match=rf"no place for \(model\.layers\.{layers - 1}\.") as caught:
        load_model(find_judge(directory))
    assert f"has {layers - 1} layers" in caught.value.hint


@pytest.mark.parametrize(
    "name",
    [
        "surplus.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
        "model.layers.0.mlp.gate_up_proj.weight",
        "score.weight",
        "model.layers.0.attn.bias",
        "model.norm.bias",
    ],
)
def test_a_weight_that_is_left_over_is_refused_by_name(tmp_path, name):
    directory = judge(tmp_path)
    edit_weights(directory, lambda weights: {name: torch.zeros(3)})
    with pytest.raises(WeightsError, match=f"holds 1 weights .*{re.escape(name)}"):
        load_model(find_judge(directory))


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.self_attn.rotary_emb.cos_cached",
        "model.visual.blocks.0.attn.qkv.weight",
        "vision_tower.encoder.layers.0.mlp.weight",
        "model.vision_embed_tokens.img_processor.weight",
        "multi_modal_projector.linear.weight",
        "audio_tower.conv.weight",
        "mtp.layers.0.mlp.weight",
        "model.mtp_layers.0.mlp.weight",
        "model.embeddings.position_ids",
    ],
)
def test_what_surrounds_a_language_model_is_no_surplus(tmp_path, name):
    directory = judge(tmp_path)
    edit_weights(directory, lambda weights: {name: torch.zeros(3)})
    load_model(find_judge(directory))


def test_stored_masks_and_heads_numbered_as_layers_are_no_surplus(tmp_path):
    old = judge(tmp_path, "gpt2")
    edit_weights(
        old,
        lambda weights: {
            "transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8),
            "transformer.h.0.attn.masked_bias": torch.ones(()),
        },
    )
    load_model(find_judge(old))
    deep = judge(tmp_path)
    layers = json.loads((deep / "config.json").read_text())["num_hidden_layers"]
    edit_weights(deep, lambda weights: {f"model.layers.{layers}.eh_proj.weight": torch.zeros(3)})
    with pytest.raises(WeightsError, match="eh_proj"):
        load_model(find_judge(deep))
    edit_config(deep, num_nextn_predict_layers=1)
    load_model(find_judge(deep))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path, broken):
    directory = judge(tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"
    edit_weights(directory, lambda weights: {name: weights[name].index_fill(0, torch.tensor([0]), broken)})
    with pytest.raises(WeightsError, match=f"1 of its weights are not finite numbers .*{re.escape(name)}"):
        load_model(find_judge(directory))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_that_no_probe_reaches_is_looked_at_too(tmp_path, dtype):
    """The embedding of a token that does not occur in the probe."""
    directory = judge(tmp_path, dtype=dtype)
    name = "model.embed_tokens.weight"
    edit_weights(directory, lambda weights: {name: weights[name].index_fill(0, torch.tensor([262]), float("nan"))})
    with pytest.raises(WeightsError, match=f"1 of its weights are not finite numbers .*{re.escape(name)}"):
        load_model(find_judge(directory))


def test_large_weights_are_finite_however_large_their_sum(tmp_path):
    directory = judge(tmp_path, dtype=torch.float32)
    name = "model.layers.1.mlp.down_proj.weight"
    edit_weights(directory, lambda weights: {name: weights[name] * 0 + 3e38})
    with pytest.raises(JudgeError, match="logits are not finite in float32, although its weights are"):
        load_model(find_judge(directory))


def test_a_dtype_without_room_for_the_activations_is_refused(tmp_path):
    directory = judge(tmp_path, dtype=torch.float32)
    name = "model.layers.1.mlp.down_proj.weight"
    edit_weights(directory, lambda weights: {name: weights[name] * 1e5})
    load_model(find_judge(directory), JudgeOptions(dtype="bfloat16"))
    edit_weights(directory, lambda weights: {name: weights[name].clamp(-6e4, 6e4)})
    edit_weights(
        directory, lambda weights: {n: weights[n] * 1e3 for n in weights if n.endswith("1.mlp.up_proj.weight")}
    )
    with pytest.raises(JudgeError, match="logits are not finite in float16, although its weights are") as caught:
        load_model(find_judge(directory), JudgeOptions(dtype="float16"))
    assert "`dtype=bfloat16`" in caught.value.hint
