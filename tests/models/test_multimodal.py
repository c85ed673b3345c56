"""Wrappers around a text model are judges of text; quantized checkpoints load, or name the missing library."""

from __future__ import annotations

import json
import logging

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny import byte_tokenizer, save_judge, tiny_model
from transformers import AutoModelForImageTextToText

from geval_local.engine.transformers_backend import TransformersBackend
from geval_local.errors import JudgeError, UnsupportedModelError
from geval_local.judge.judge import Judge
from geval_local.metric import Metric
from geval_local.models.load import load_model
from geval_local.models.products import use_faster_products
from geval_local.models.registry import find_judge
from geval_local.options import JudgeOptions

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
WIDE = TEXT | {"head_dim": 8}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
TOWER = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}

#: Name -> class of its configuration, of its text model and of its vision model; settings of the three.
WRAPPERS = {
    "mistral 3": ("Mistral3Config", "MistralConfig", WIDE, "PixtralVisionConfig", VISION, {"image_token_index": 299}),
    "ministral 3": (
        "Mistral3Config",
        "Ministral3Config",
        WIDE,
        "PixtralVisionConfig",
        VISION,
        {"image_token_index": 299},
    ),
    "qwen 3 vl": (
        "Qwen3VLConfig",
        None,
        WIDE | {"rope_parameters": MROPE | {"mrope_interleaved": True}},
        None,
        TOWER | {"deepstack_visual_indexes": [0]},
        {"image_token_id": 299, "video_token_id": 298, "vision_start_token_id": 297, "vision_end_token_id": 296},
    ),
    "qwen 2.5 vl": (
        "Qwen2_5_VLConfig",
        None,
        TEXT | {"rope_parameters": MROPE},
        None,
        TOWER,
        {"image_token_id": 299, "video_token_id": 298},
    ),
    "gemma 4": (
        "Gemma4Config",
        None,
        WIDE
        | {
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 300,
            "num_kv_shared_layers": 0,
        },
        None,
        VISION | {"head_dim": 8, "num_key_value_heads": 2},
        {"image_token_id": 299},
    ),
    "qwen 3.5": (
        "Qwen3_5Config",
        None,
        WIDE
        | LINEAR
        | {
            "layer_types": ["linear_attention", "full_attention"],
            "rope_parameters": MROPE | {"mrope_interleaved": True, "partial_rotary_factor": 1.0},
        },
        None,
        TOWER,
        {},
    ),
    "llava": ("LlavaConfig", "LlamaConfig", TEXT, "CLIPVisionConfig", VISION, {"image_token_index": 299}),
    "internvl": (
        "InternVLConfig",
        "Qwen2Config",
        TEXT,
        None,
        VISION | {"image_size": [28, 28], "patch_size": [14, 14]},
        {"image_token_id": 299},
    ),
}


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))


def wrapper(name):
    kind, text_kind, text, vision_kind, vision, settings = WRAPPERS[name]
    if not hasattr(transformers, kind) or (text_kind and not hasattr(transformers, text_kind)):
        pytest.skip(f"transformers {transformers.__version__} has no {text_kind or kind}")
    text_config = getattr(transformers, text_kind)(**text) if text_kind else text
    vision_config = getattr(transformers, vision_kind)(**vision) if vision_kind else vision
    config = getattr(transformers, kind)(text_config=text_config, vision_config=vision_config, **settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForImageTextToText.from_config(config, dtype=torch.float32).eval()


@pytest.mark.sweep
@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_is_a_judge_of_text(tmp_path, caplog, name):
    model = wrapper(name)
    entry = find_judge(save_judge(tmp_path / "judge", model, byte_tokenizer()))
    with caplog.at_level(logging.INFO, logger="geval_local"):
        loaded = load_model(entry, JudgeOptions(dtype="float32"))
    (said,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert "reads text only" in said
    assert "vis" in said
    assert not any("vis" in key or "projector" in key for key, _ in loaded.model.named_parameters())
    assert loaded.parameters < model.num_parameters()
    tokens = torch.arange(40).unsqueeze(0) + 8
    with torch.inference_mode():
        use_faster_products(model)  # a recurrent layer amplifies the rounding of another library
    with torch.inference_mode():
        assert (loaded.model(tokens).logits - model(tokens).logits).abs().max() < 1e-5
    metric = Metric(name="clarity", criteria="How clear it is.", scale="0-10", fields={"output": "O"})
    metric = metric.with_steps(("Read.", "Choose a score."))
    rows = [{"output": f"It ends at {row}."} for row in range(3)]
    fast, plain = (
        [score.value for score in Judge(TransformersBackend(loaded, engine=engine)).score_many(metric, rows)]
        for engine in ("auto", "padded")
    )
    assert fast == pytest.approx(plain, abs=1e-4)


def test_a_wrapper_around_an_encoder_decoder_is_no_judge(tmp_path):
    directory = save_judge(tmp_path / "judge", tiny_model("llama", 263), byte_tokenizer())
    record = {"model_type": "llava", "text_config": {"model_type": "t5"}, "vision_config": {"model_type": "clip"}}
    (directory / "config.json").write_text(json.dumps(record))
    with pytest.raises(UnsupportedModelError, match="'llava' has no causal language model head"):
        load_model(find_judge(directory))


def test_a_wrapper_that_cannot_do_without_an_image_is_refused_by_name(tmp_path):
    parts = {
        "vocab_size": 300,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "hidden_size": 16,
        "intermediate_size": 32,
    }
    text = TEXT | {"model_type": "opt", "ffn_dim": 64, "word_embed_proj_dim": 32}
    config = transformers.Blip2Config(vision_config=VISION, qformer_config=parts, text_config=text, num_query_tokens=2)
    model = AutoModelForImageTextToText.from_config(config)
    entry = find_judge(save_judge(tmp_path / "judge", model, byte_tokenizer()))
    says = "Blip2ForConditionalGeneration does not read a text alone: .*'pixel_values'"
    with pytest.raises(UnsupportedModelError, match=says):
        load_model(entry)


# --- quantized checkpoints ------------------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path):
    model = tiny_model("llama", 263, dtype=torch.float32, hidden_size=128, intermediate_size=128)
    return save_judge(tmp_path / "judge", model, byte_tokenizer())


def quantized_by(directory, **record):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": record}))


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors", "auto-round", "hqq"])
def test_the_library_that_a_quantized_checkpoint_needs_is_named(plain, method):
    quantized_by(plain, quant_method=method, bits=4)
    with pytest.raises(JudgeError, match=r"cannot be loaded from .*(pip install|not available)"):
        load_model(find_judge(plain))


def test_8_bit_floating_point_is_unpacked_where_there_is_no_gpu(plain):
    """A checkpoint as DeepSeek and Qwen publish them: blocks of 128 by 128 with a scale each."""
    expected = load_model(find_judge(plain)).model
    weights = load_file(plain / "model.safetensors")
    packed = {}
    for name, weight in weights.items():
        if weight.dim() == 2 and "layers" in name:
            scale = weight.abs().amax() / 448
            packed[name] = (weight / scale).to(torch.float8_e4m3fn)
            packed[f"{name}_scale_inv"] = scale.expand(-(-weight.shape[0] // 128), 1).contiguous()
        else:
            packed[name] = weight
    save_file(packed, plain / "model.safetensors", metadata={"format": "pt"})
    quantized_by(plain, quant_method="fp8", weight_block_size=[128, 128], activation_scheme="dynamic")
    loaded = load_model(find_judge(plain), JudgeOptions(dtype="float32", device="cpu"))
    name = "model.layers.1.mlp.down_proj.weight"
    first, second = (dict(model.named_parameters())[name] for model in (loaded.model, expected))
    assert 0 < (first - second).abs().max() < 0.1 * second.abs().max()


def test_a_text_model_that_is_listed_among_readers_of_images_is_a_judge(tmp_path):
    """Mistral 4: its configuration has no wrapper, and its causal class is in no list of text models."""
    if not hasattr(transformers, "Mistral4Config"):
        pytest.skip("this transformers does not know Mistral 4")
    sizes = {"num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    sizes |= {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    config = transformers.Mistral4Config(**TEXT | sizes)
    torch.manual_seed(0)
    model = transformers.Mistral4ForCausalLM(config).eval()
    directory = save_judge(tmp_path / "judge", model, byte_tokenizer())
    judge = Judge.load(directory)
    assert type(judge.backend.loaded.model).__name__ == "Mistral4ForCausalLM"
    tokens = torch.arange(40)[None] + 8
    with torch.inference_mode():
        assert (judge.backend.loaded.model(tokens).logits - model(tokens).logits).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["blip", "idefics", "florence2"])
def test_a_model_that_needs_images_is_none(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    save_file({"a": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModelError, match=r"causal language model head|encoder-decoder"):
        load_model(find_judge(tmp_path))
