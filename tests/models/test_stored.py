"""Stored weights: the figures of a float32 load to the last bit, in the memory of the file."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny import KINDS, byte_tokenizer, save_judge, tiny_model
from torch import nn

from geval_local.engine.transformers_backend import TransformersBackend
from geval_local.errors import WeightsError
from geval_local.judge.judge import Judge
from geval_local.metric import Metric
from geval_local.models import products, reading, stored
from geval_local.models.fingerprint import weight_files
from geval_local.models.gguf.blocks import BLOCK_TYPES
from geval_local.models.load import load_model
from geval_local.models.memory import memory_needed
from geval_local.models.registry import find_judge
from geval_local.models.stored import Stored, bytes_of

gguf = pytest.importorskip("gguf")
from gguf_kit import random_blocks, write_any_gguf, write_gguf, write_gpt_oss  # noqa: E402 - needs gguf

VOCABULARY = 265
TOKENS = torch.arange(60).unsqueeze(0) + 8
NARROW = [torch.bfloat16, torch.float16]
METRIC = Metric(name="clarity", criteria="How clear it is.", scale="0-10", fields={"source": "S", "output": "O"})
METRIC = METRIC.with_steps(("Read.", "Choose a score."))
SAMPLES = [{"source": "A tale. " * (1 + row % 3), "output": f"It ends at {row}."} for row in range(7)]


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(stored, "FEW", 0)  # tiny models stand for large ones
    monkeypatch.setattr(products, "uses_onednn", lambda: False)  # the oracle computes by PyTorch's own choice


def logits(model):
    with torch.inference_mode():
        return model(TOKENS, use_cache=False).logits


def float32_load(place, attention="sdpa"):
    """The oracle: transformers widens all weights."""
    if place.is_file():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(place.parent), gguf_file=str(place), dtype=torch.float32
        )
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(str(place), dtype=torch.float32)
    if attention == "eager":  # where the softmax of others lacks the cap, which depends on the release
        model.set_attn_implementation("eager")
    return model.eval()


def kept(model):
    return {name: one for name, one in model.named_parameters() if isinstance(one, Stored)}


# --- the same bits ----------------------------------------------------------------------------------------------------

QUICK = {"llama", "gemma2", "gpt2", "qwen3_moe", "deepseek_v3", "falcon_h1"}


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.sweep) for kind in KINDS]
)
def test_logits_are_those_of_a_float32_load(tmp_path, kind, dtype):
    directory = save_judge(tmp_path / kind, tiny_model(kind, VOCABULARY, dtype=dtype), byte_tokenizer())
    loaded = load_model(find_judge(directory))
    wide = float32_load(directory, loaded.attention)
    assert loaded.dtype == loaded.model.dtype == torch.float32
    assert torch.equal(logits(loaded.model), logits(wide))
    assert loaded.parameters == wide.num_parameters()
    assert loaded.memory_bytes < 0.75 * bytes_of(wide)
    assert len(kept(loaded.model)) >= 2


@pytest.mark.parametrize("tied", [False, True])
def test_shards_of_mixed_storage_give_the_logits_of_a_float32_load(tmp_path, tied):
    """Norms in float32, some matrices in float16, the others and the biases in bfloat16, in several files."""
    model = tiny_model("qwen2", VOCABULARY, dtype=torch.bfloat16, tie_word_embeddings=tied)
    directory = save_judge(tmp_path, model, byte_tokenizer(), max_shard_size="30KB")
    shards = sorted(directory.glob("model-*.safetensors"))
    for shard in shards:
        weights = load_file(shard)
        kinds = {
            name: torch.float32 if "norm" in name else torch.float16
            for name in weights
            if "norm" in name or "k_proj" in name
        }
        save_file({name: one.to(kinds.get(name, one.dtype)) for name, one in weights.items()}, shard, {"format": "pt"})
    loaded = load_model(find_judge(directory))
    assert torch.equal(logits(loaded.model), logits(float32_load(directory)))
    assert {one.data_.dtype for one in kept(loaded.model).values()} == {torch.bfloat16, torch.float16}
    ends = loaded.model.get_input_embeddings().weight, loaded.model.get_output_embeddings().weight
    assert (ends[0] is ends[1]) == tied
    assert memory_needed(directory, "auto").weights == pytest.approx(loaded.memory_bytes, rel=0.01)
    assert len(shards) > 1


PLAIN = [gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16]


@pytest.mark.parametrize("code", [*PLAIN, *BLOCK_TYPES], ids=lambda code: gguf.GGMLQuantizationType(code).name)
def test_every_type_of_blocks_gives_the_logits_of_its_widened_weights(tmp_path, code):
    model = tiny_model("llama", VOCABULARY, dtype=torch.float32, hidden_size=256, intermediate_size=512)
    file = write_gguf(tmp_path / "m.gguf", model, kind=gguf.GGMLQuantizationType(code))
    loaded = load_model(find_judge(file))
    wide = float32_load(file)
    assert torch.equal(logits(loaded.model), logits(wide))
    assert loaded.memory_bytes < 1.1 * file.stat().st_size
    matrices = [name for name, one in wide.named_parameters() if one.dim() == 2]
    assert list(kept(loaded.model)) == matrices
    for name, one in kept(loaded.model).items():
        assert torch.equal(one.widened(), wide.get_parameter(name)), name


_LINEAR_ATTENTION = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
_MIXTURE = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4}
#: Models whose files need more than names: type, class, settings.
_MORE: dict[str, tuple[str, dict[str, object]]] = {
    "lfm2": (
        "Lfm2Config",
        KINDS["llama"][1] | {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
    ),
    "qwen35": ("Qwen3_5TextConfig", KINDS["llama"][1] | _LINEAR_ATTENTION),
    "qwen35moe": (
        "Qwen3_5MoeTextConfig",
        KINDS["llama"][1] | _LINEAR_ATTENTION | _MIXTURE | {"num_experts_per_tok": 2},
    ),
    # Of these transformers does not read the widths: it takes those that its configurations have by default.
    "qwen2moe": ("Qwen2MoeConfig", KINDS["llama"][1] | {"num_experts_per_tok": 2, "num_experts": 4}),
    "qwen3moe": ("Qwen3MoeConfig", KINDS["qwen3_moe"][1] | {"moe_intermediate_size": 768}),
    "qwen3": ("Qwen3Config", KINDS["qwen3"][1] | {"head_dim": 128}),
    "gpt2": ("GPT2Config", KINDS["gpt2"][1] | {"n_positions": 1024}),
    "stablelm": ("StableLmConfig", KINDS["llama"][1]),
    "starcoder2": ("Starcoder2Config", KINDS["llama"][1]),
    "nemotron": ("NemotronConfig", KINDS["llama"][1] | {"partial_rotary_factor": 0.5}),
}
#: What is widened for good: routers (float32 in files), and matrices that are transposed or whose columns move.
_WIDE = {"gate", "shared_expert_gate", "c_attn", "c_proj", "c_fc", "query_key_value"}


@pytest.mark.sweep("qwen3moe", "lfm2", "qwen35moe", "bloom")
@pytest.mark.parametrize(
    "architecture",
    [
        "qwen3moe",
        "lfm2",
        "qwen35moe",
        "bloom",
        "qwen35",
        "qwen2moe",
        "gpt2",
        "mamba",
        "gemma2",
        "gemma3",
        "qwen2",
        "qwen3",
        "falcon",
        "stablelm",
        "starcoder2",
        "nemotron",
    ],
)
def test_files_of_every_architecture_give_the_logits_of_a_float32_load(tmp_path, monkeypatch, architecture):
    monkeypatch.setitem(KINDS, architecture, _MORE.get(architecture) or KINDS[architecture])
    if not hasattr(transformers, KINDS[architecture][0]):
        pytest.skip("this transformers does not know the architecture")
    settings = {"falcon": {"new_decoder_architecture": False}}.get(architecture, {})
    model = tiny_model(architecture, VOCABULARY, dtype=torch.float32, **settings)
    file = write_any_gguf(tmp_path / "m.gguf", model, architecture, gguf.GGMLQuantizationType.Q8_0)
    loaded = load_model(find_judge(file))
    wide = float32_load(file, loaded.attention)
    for name, one in loaded.model.named_parameters():
        expected = wide.get_parameter(name)
        assert torch.equal(one.widened() if isinstance(one, Stored) else one, expected), name
        if one.dim() > 1 and one.shape[-1] >= 32 and not isinstance(one, Stored):
            assert name.split(".")[-2] in _WIDE | ({"out_proj"} if "linear_attn" in name else set()), name
    assert torch.equal(logits(loaded.model), logits(wide))
    assert memory_needed(file, "auto").weights == pytest.approx(loaded.memory_bytes, rel=0.02)
    if "moe" in architecture:
        assert any(name.endswith("experts.gate_up_proj") for name in kept(loaded.model))


YARN = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 128, "rope_theta": 150000.0}
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 128}


@pytest.mark.parametrize("code", ["MXFP4", "Q8_0", "F16"])
@pytest.mark.parametrize("few", [0, 1 << 26])
def test_gpt_oss_is_the_model_of_its_dequantized_experts(tmp_path, monkeypatch, code, few):
    """As the published files are: experts in MXFP4, the rest in other types, YaRN, a window in every other layer."""
    monkeypatch.setattr(stored, "FEW", few)
    model = tiny_model("gpt_oss", VOCABULARY, dtype=torch.float32, rope_parameters=YARN, sliding_window=16)
    kind = gguf.GGMLQuantizationType[code]
    file, weights = write_gpt_oss(tmp_path / "m.gguf", model, kind, YARN_KEYS)
    with torch.no_grad():
        model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})
    loaded = load_model(find_judge(file))
    assert loaded.model.config.sliding_window == 16
    torch.testing.assert_close(logits(loaded.model), logits(model), atol=1e-4, rtol=1e-4)
    experts = [name for name in kept(loaded.model) if "experts" in name]
    assert len(experts) == (0 if few else 2 * model.config.num_hidden_layers)
    for name, array in weights.items():
        own = loaded.model.get_parameter(name)
        assert np.array_equal((own.widened() if isinstance(own, Stored) else own).detach().numpy(), array), name
    if not few:
        assert memory_needed(file, "auto").weights == pytest.approx(loaded.memory_bytes, rel=0.02)
        metric = Judge(TransformersBackend(loaded)).score_many(METRIC, SAMPLES)
        again = Judge(
            TransformersBackend(load_model(find_judge(save_judge(tmp_path / "st", model, loaded.tokenizer))))
        ).score_many(METRIC, SAMPLES)
        assert [one.value for one in metric] == pytest.approx([one.value for one in again], abs=1e-4)


def test_the_width_of_experts_is_read_from_the_file(tmp_path):
    model = tiny_model("qwen3_moe", VOCABULARY, dtype=torch.float32, norm_topk_prob=True)
    file = write_any_gguf(tmp_path / "m.gguf", model, "qwen3moe", gguf.GGMLQuantizationType.F32)
    loaded = load_model(find_judge(file)).model
    assert loaded.config.moe_intermediate_size == 32
    torch.testing.assert_close(logits(loaded), logits(model), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("few", [0, 1 << 26])
def test_a_model_of_few_weights_is_widened_when_it_is_loaded(tmp_path, monkeypatch, few):
    monkeypatch.setattr(stored, "FEW", few)
    narrow = tiny_model("llama", 263, dtype=torch.bfloat16, tie_word_embeddings=True)
    place = save_judge(tmp_path / "narrow", narrow, byte_tokenizer())
    loaded = load_model(find_judge(place))
    assert bool(kept(loaded.model)) == (few == 0)
    assert torch.equal(logits(loaded.model), logits(float32_load(place)))
    assert memory_needed(place, "auto").weights == pytest.approx(loaded.memory_bytes, rel=0.02)


@pytest.mark.parametrize("engine", ["trie", "cache", "padded"])
def test_scores_are_those_of_a_float32_checkpoint(tmp_path, engine):
    narrow = tiny_model("llama", 263, dtype=torch.bfloat16, tie_word_embeddings=True)
    first = save_judge(tmp_path / "narrow", narrow, byte_tokenizer())
    second = save_judge(tmp_path / "wide", narrow.float(), byte_tokenizer())
    found, expected = (
        [score.probabilities for score in Judge.load(one, engine=engine).score_many(METRIC, SAMPLES)]
        for one in (first, second)
    )
    assert found == expected
    assert len({tuple(one.values()) for one in expected}) == len(SAMPLES)


# --- the files --------------------------------------------------------------------------------------------------------


def stored_in(form, folder):
    """Write a judge: its place, and its weight files."""
    if form == "shards":
        place = save_judge(
            folder, tiny_model("llama", VOCABULARY, dtype=torch.bfloat16), byte_tokenizer(), max_shard_size="30KB"
        )
    else:
        model = tiny_model("llama", VOCABULARY, dtype=torch.float32)
        place = write_gguf(
            folder / "m.gguf", model, kind=gguf.GGMLQuantizationType.Q8_0, part_tensors=7 * (form == "parts")
        )
    files = weight_files(place)
    assert (len(files) > 1) == (form != "gguf")
    return place, files


@pytest.mark.parametrize("form", ["shards", "gguf", "parts"])
def test_weights_that_stay_as_stored_are_the_judges_own(tmp_path, form):
    place, files = stored_in(form, tmp_path)
    loaded = load_model(find_judge(place))
    before = logits(loaded.model)
    for file in files:
        with file.open("r+b") as stream:
            stream.write(bytes(file.stat().st_size))
    assert torch.equal(logits(loaded.model), before)
    for file in files:
        os.truncate(file, 0)
    assert torch.equal(logits(loaded.model), before)


@pytest.mark.parametrize("form", ["shards", "gguf", "parts"])
@pytest.mark.parametrize("what", ["changes", "shrinks"])
def test_a_file_that_moves_while_it_is_read_is_refused_by_name(tmp_path, monkeypatch, form, what):
    place, files = stored_in(form, tmp_path)
    read = reading.read_tensors

    def read_and_move(file, *given, **options):
        if what == "shrinks":
            os.truncate(files[-1], files[-1].stat().st_size - 1)
        found = read(file, *given, **options)
        os.utime(files[-1])
        return found

    monkeypatch.setattr(reading, "read_tensors", read_and_move)
    with pytest.raises(WeightsError, match=rf"{files[-1].name} (changed while|is damaged or cut short)") as caught:
        load_model(find_judge(place))
    assert "again" in caught.value.hint


# --- the tensor -------------------------------------------------------------------------------------------------------


def some(kind, rows=24, columns=512):
    if isinstance(kind, torch.dtype):
        return Stored(torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).to(kind))
    shape = (rows, columns // kind.elements)
    return Stored(torch.from_numpy(random_blocks(kind, shape, np.random.default_rng(1), 0.1)), kind)


ALL = [*NARROW, *BLOCK_TYPES.values()]


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: str(getattr(kind, "name", kind)))
def test_whatever_is_computed_is_computed_with_the_widened_weights(kind):
    weight = some(kind)
    wide = weight.widened()
    given = torch.randn(5, 512)
    rows = torch.tensor([3, 0, 23, 3])
    for function in (
        lambda one: nn.functional.linear(given, one),
        lambda one: given @ one.t(),
        lambda one: torch.addmm(torch.ones(24), given, one.mT),
        lambda one: nn.functional.embedding(rows, one),
        lambda one: one[rows] + 0,
        lambda one: one[3:7] * 2,
        lambda one: torch.stack([one, one])[1] + 0,
        lambda one: torch.cat([one[:5], one[5:]]).sum(1),
        lambda one: one.chunk(2)[1].abs().max(),
        lambda one: one.unsqueeze(0).transpose(1, 2).contiguous() + 0,
        lambda one: one[:, 5] + 0,
        lambda one: one.reshape(2, -1).double(),
        lambda one: torch.bmm(given.expand(2, 5, 512), torch.stack([one, one]).transpose(1, 2)),
        lambda one: one.to(torch.float64) + 0,
        lambda one: one.clone().view(-1).mul(3),
    ):
        found, expected = function(weight), function(wide)
        assert type(found) is torch.Tensor
        assert torch.equal(found, expected)
    assert (weight.dtype, weight.shape, weight.device) == (wide.dtype, wide.shape, wide.device)
    assert weight.stored_bytes == weight.data_.nbytes < wide.nbytes


def test_rows_are_arranged_without_widening():
    weight = some(BLOCK_TYPES[12])
    order = torch.randperm(24)
    for moved in (weight[order], torch.stack([weight, weight]), torch.cat([weight, weight]), weight.contiguous()):
        assert isinstance(moved, Stored)
        assert moved.blocks is weight.blocks
    assert not isinstance(torch.cat([weight, weight], dim=1), Stored)


def test_a_result_is_never_changed_by_the_next_product():
    first, second = some(torch.bfloat16), some(BLOCK_TYPES[2])
    given = torch.randn(3, 512)
    one = nn.functional.linear(given, first)
    before = one.clone()
    nn.functional.linear(given, second)
    assert torch.equal(one, before)
    assert len(stored.FREE[first.device, torch.float32]) == 1
    both = torch.bmm(torch.stack([first, first]), torch.stack([first, first]).mT)
    assert torch.equal(both[1], first.widened() @ first.widened().T)
    stored.release_buffers()
    assert not stored.FREE


def test_a_large_matrix_is_widened_in_slices(monkeypatch):
    weight, given, bias = some(BLOCK_TYPES[13]), torch.randn(3, 512), torch.randn(24)
    expected = nn.functional.linear(given, weight.widened(), bias)
    stored.release_buffers()
    monkeypatch.setattr(stored, "SLICE", 5 * 512)
    # Products of other shapes add up in another order, and the figures are hundreds.
    torch.testing.assert_close(nn.functional.linear(given, weight, bias), expected, rtol=1e-5, atol=1e-2)
    assert [one.numel() for one in stored.FREE[weight.device, torch.float32]] == [5 * 512]


def test_blocks_move_to_half_precision_and_stay_blocks():
    weight = some(BLOCK_TYPES[12])
    half = nn.Parameter(weight.to(torch.bfloat16), requires_grad=False)
    assert isinstance(half, Stored)
    given = torch.randn(5, 512).bfloat16()
    expected = nn.functional.linear(given, weight.widened().bfloat16())
    assert torch.equal(nn.functional.linear(given, half), expected)
    module = nn.Linear(512, 24, bias=False)
    module.weight = nn.Parameter(weight, requires_grad=False)
    module.weight.data = module.weight.data.to(torch.bfloat16)
    assert module.weight.dtype == torch.bfloat16
    assert torch.equal(module(given), expected)
    module.weight.data = weight
    assert module.weight.dtype == torch.float32
    assert torch.equal(module.weight.widened(), weight.widened())


@pytest.mark.parametrize("shape", [(), (0, 8), (5,), (7, 64), (3, 4, 32)])
def test_one_number_that_is_not_finite_is_found_in_parts(monkeypatch, shape):
    monkeypatch.setattr(stored, "SLICE", 64)
    numbers = torch.full(shape, 3e38, dtype=torch.bfloat16)  # whose sum overflows
    assert stored.are_finite(numbers)
    for place in range(numbers.numel()):
        numbers.view(-1)[place] = math.nan if place % 2 else math.inf
        assert not stored.are_finite(numbers)
        numbers.view(-1)[place] = 1.0


def test_no_more_than_a_slice_is_widened_to_look_for_numbers_that_are_not_finite(monkeypatch):
    added = []
    monkeypatch.setattr(stored, "SLICE", 64)
    monkeypatch.setattr(torch.Tensor, "sum", lambda part, **_: added.append(part.numel()) or torch.zeros(()))
    stored.are_finite(torch.zeros(7, 16, dtype=torch.bfloat16).mT)
    assert sum(added) == 7 * 16
    assert max(added) <= 64
