"""The probe admits the prefix-sharing engine only where it is exact, whatever a model declares."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
import transformers
from architectures import STRANGE, llama4, unusual
from prompts import (
    MUST_FALL_BACK,
    SERVED,
    VOCAB,
    by_plain_passes,
    documents,
    label_trie,
    largest_difference,
    logprobs,
    request,
)
from tiny import byte_tokenizer, save_judge, tiny_model
from transformers import AutoModelForCausalLM

from geval_local import Judge, Metric
from geval_local.engine import choose as gate
from geval_local.engine import probe
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.choose import choose_engine
from geval_local.engine.prefix_sharing.attention import PackAttention
from geval_local.engine.probe import widened
from geval_local.errors import UnsupportedModelError
from geval_local.models import stored
from geval_local.models.head import Head, trunk_of

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def choose(model, choice="auto", **options):
    return choose_engine(model, Head(model), choice, **options)


@pytest.mark.sweep("llama-dtype0", "gemma3-dtype1")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", SERVED)
def test_exact_architectures_are_served_by_the_trie(kind, dtype):
    engine, report = choose(tiny_model(kind, VOCAB, dtype))
    assert (engine.name, report.engine, report.reason) == ("trie", "trie", None)
    assert report.difference <= report.tolerance
    assert report.window is None
    assert "nats" in report.text


@pytest.mark.sweep
@pytest.mark.parametrize("kind", sorted(MUST_FALL_BACK))
def test_the_others_step_down_with_a_reason(kind):
    model = tiny_model(kind, VOCAB)
    engine, report = choose(model)
    assert engine.name == report.engine
    assert report.engine in ("cache", "padded")
    assert report.reason in report.text
    with pytest.raises(UnsupportedModelError, match="cannot share prefixes exactly"):
        choose(model, "trie")


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", sorted(MUST_FALL_BACK))
def test_the_probe_alone_finds_them_too(kind, dtype, monkeypatch):
    monkeypatch.setattr(gate, "stated_refusal", lambda model: None)
    assert choose(tiny_model(kind, VOCAB, dtype))[1].engine != "trie"


@pytest.mark.sweep
@pytest.mark.parametrize("sieve", [True, False])
@pytest.mark.parametrize("kind", STRANGE)
def test_linear_and_recurrent_layers_step_down(kind, sieve, monkeypatch):
    model = unusual(kind)
    if not sieve:
        monkeypatch.setattr(gate, "stated_refusal", lambda model: None)
    engine, report = choose(model)
    assert engine.name == report.engine
    assert report.engine in ("cache", "padded")
    assert report.reason


def test_a_window_that_is_not_applied_is_noticed(monkeypatch):
    call = PackAttention.__call__

    def without_window(self, query, key, value, *, span, **options):
        out = call(self, query, key, value, span=None, **options)
        self.spans[-1] = span
        return out

    monkeypatch.setattr(PackAttention, "__call__", without_window)
    report = choose(tiny_model("mistral", VOCAB))[1]
    assert report.engine == "cache"
    assert "differ by" in report.reason


def test_a_window_beyond_what_a_probe_may_cost_is_compared_with_the_configuration(monkeypatch):
    model = tiny_model("mistral", VOCAB, sliding_window=3000)
    monkeypatch.setitem(probe.PROBE_OPERATIONS, "cpu", 0.0)
    report = choose(model)[1]
    assert (report.engine, report.window) == ("trie", 3000)
    assert "window 3000 not reached" in report.text
    monkeypatch.setattr(gate, "expected_spans", lambda config: [3000, None])
    report = choose(model)[1]
    assert report.engine == "padded"
    assert "do not ask for the sliding windows" in report.reason


def test_a_layer_that_attends_by_itself_is_noticed():
    model = tiny_model("llama", VOCAB)
    # The second layer's output is as before for one prompt at a time, but it never asks for the attention function.
    model.model.layers[1].self_attn.config = type(model.config)(**model.config.to_dict())
    model.model.layers[1].self_attn.config._attn_implementation = "sdpa"
    report = choose(model)[1]
    assert report.engine != "trie"
    assert "1 of its 2 layers" in report.reason


@pytest.mark.sweep("afmoe", "llama4", "qwen3_next", "falcon_mamba")
@pytest.mark.parametrize("kind", ["afmoe", "llama4", *STRANGE])
def test_a_prompt_beyond_what_the_probe_reached_is_exact(kind, monkeypatch):
    monkeypatch.setitem(probe.PROBE_OPERATIONS, "cpu", 0.0)
    spans = {"afmoe": {"sliding_window": 70}, "recurrent_gemma": {"attention_window_size": 70}}
    wide = {} if kind in ("rwkv", "falcon_mamba") else {"initializer_range": 0.1}
    model = llama4(chunk=70) if kind == "llama4" else unusual(kind, **wide, **spans.get(kind, {}))
    engine, report = choose(model)
    if kind == "afmoe":
        assert (report.engine, report.window) == ("trie", 70)
    requests = documents(stem=100, documents=2)
    plain = PaddedEngine(model, Head(model), batch_tokens=1, plain=True)
    assert largest_difference(logprobs(engine, requests), logprobs(plain, requests)) < 1e-4


@pytest.mark.sweep("4-gemma3", "64-mistral")
@pytest.mark.parametrize("kind", ["mistral", "gemma3"])
@pytest.mark.parametrize("window", [4, 64, 4096])
def test_attention_has_the_layout_of_the_models_own(kind, window, monkeypatch):
    call, strides = PackAttention.__call__, set()

    def looking(self, *tensors, **options):
        out = call(self, *tensors, **options)
        strides.add(out.is_contiguous())
        return out

    monkeypatch.setattr(PackAttention, "__call__", looking)
    choose(tiny_model(kind, VOCAB, sliding_window=window), "trie")
    assert strides == {True}


def seeing_later_tokens(kind):
    """A causal class whose tokens see later ones: a mask that is never made, or a context read in both directions."""
    if kind == "llama":
        model = tiny_model("llama", VOCAB)
        model.model.layers[1].self_attn.config = type(model.config)(**model.config.to_dict())
        model.model.layers[1].self_attn.config._attn_implementation = "eager"
        return model
    torch.manual_seed(0)
    if kind == "cpmant":
        sizes = {"num_attention_heads": 4, "dim_head": 8, "dim_ff": 64, "num_hidden_layers": 2, "prompt_length": 4}
        config = transformers.CpmAntConfig(vocab_size=VOCAB, hidden_size=32, init_std=0.4, **sizes)
    else:
        sizes = {"num_attention_heads": 4, "intermediate_size": 64, "num_hidden_layers": 2, "initializer_range": 0.4}
        config = transformers.BertConfig(vocab_size=VOCAB, hidden_size=32, **sizes)
    return AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


@pytest.mark.parametrize("choice", ["auto", "padded"])
@pytest.mark.parametrize("kind", ["llama", "bert", "cpmant"])
def test_a_model_whose_tokens_see_later_ones_is_refused(kind, choice):
    with pytest.raises(UnsupportedModelError, match=r"no next-token distribution: .* with the tokens after it"):
        choose(seeing_later_tokens(kind), choice)


def model_with(monkeypatch, change):
    """A Llama whose final hidden states go through `change(hidden)`, shape (rows, tokens, size)."""
    model = tiny_model("llama", VOCAB)
    forward = model.model.forward

    def changed(*given, **options):
        output = forward(*given, **options)
        output.last_hidden_state = change(output.last_hidden_state)
        return output

    monkeypatch.setattr(model.model, "forward", changed)
    monkeypatch.setattr(gate, "stated_refusal", lambda model: "for this test")
    return model


def test_where_a_batch_is_not_exact_prompts_go_one_by_one(monkeypatch):
    # As ties in sparse attention that the length of a row breaks.
    model = model_with(monkeypatch, lambda hidden: hidden * (1 + 0.01 * hidden.shape[1]))
    requests = documents()
    for choice in ("auto", "padded"):
        engine, report = choose(model, choice)
        assert (engine.name, engine.batch_tokens, report.engine) == ("padded", 1, "padded")
        assert "one prompt at a time, because batches are not exact" in report.text
        assert report.difference == 0
        for one, found in zip(requests, logprobs(engine, requests), strict=True):
            np.testing.assert_allclose(found, by_plain_passes(model, one), rtol=0, atol=1e-9)


def test_a_model_that_remembers_earlier_prompts_is_refused(monkeypatch):
    calls = itertools.count()
    model = model_with(monkeypatch, lambda hidden: hidden * (1 + 0.1 * next(calls)))
    with pytest.raises(UnsupportedModelError, match="no next-token distribution"):
        choose(model)


@pytest.mark.parametrize(
    ("kind", "engine", "expected"), [("llama", "trie", 4), ("mistral", "trie", 4), ("falcon_h1", "cache", 15)]
)
def test_a_probe_takes_few_passes(kind, engine, expected):
    """Each reads all weights of a judge, and widens those that are stored narrower."""
    model = tiny_model(kind, VOCAB)
    passes = []
    trunk_of(model).register_forward_pre_hook(lambda *_: passes.append(1))
    report = choose(model)[1]
    assert (report.engine, report.reason is None) == (engine, engine == "trie")
    assert len(passes) == expected


def test_what_one_probe_has_shown_is_not_computed_for_the_next(monkeypatch):
    model = tiny_model("llama", VOCAB)
    monkeypatch.setattr(gate, "stated_refusal", lambda model: "for this test")
    asked = []
    read = PaddedEngine.execute
    monkeypatch.setattr(
        PaddedEngine,
        "execute",
        lambda self, requests, packs: asked.append((self.batch_tokens, len(requests))) or read(self, requests, packs),
    )
    monkeypatch.setattr(
        gate, "compare_cache", lambda plain, requests: plain.one_by_one(requests) and gate.EngineReport("cache", "no")
    )
    assert choose(model)[1].engine == "padded"
    assert [size for budget, size in asked if budget == 1 and size] == [6]


def test_a_first_start_widens_stored_weights_five_times(tmp_path, monkeypatch):
    """A pass for finite logits, three packs of which one continues another, and one for the same prompts in rows."""
    monkeypatch.setattr(stored, "FEW", 0)  # a tiny model stands for a large one
    monkeypatch.setenv("GEVAL_LOCAL_HOME", str(tmp_path / "home"))  # no verdict is kept there
    tokenizer = byte_tokenizer()
    save_judge(tmp_path / "judge", tiny_model("llama", len(tokenizer), torch.bfloat16), tokenizer)
    widened, times = stored.Stored.widened, Counter()

    def counted(self, out=None):
        times[self.data_.data_ptr()] += out is not None
        return widened(self, out)

    monkeypatch.setattr(stored.Stored, "widened", counted)
    judge = Judge.load(tmp_path / "judge")
    assert judge.engine_report.engine == "trie"
    layer = judge.backend.loaded.model.model.layers[0].mlp.up_proj.weight
    assert isinstance(layer, stored.Stored)
    assert times[layer.data_.data_ptr()] == 5


def test_forcing_and_forbidding():
    model = tiny_model("llama", VOCAB)
    assert choose(model, "trie", batch_tokens=77)[0].batch_tokens == 77
    engine, report = choose(model, "padded", batch_tokens=77)
    assert (engine.name, engine.batch_tokens) == ("padded", 77)
    assert report.text.startswith("padded (differs by ")


def test_stepping_down_is_said_once(caplog):
    with caplog.at_level("INFO", logger="geval_local"):
        engine, _ = choose(tiny_model("bloom", VOCAB))
        logprobs(engine, documents())
    assert len(caplog.records) == 1
    assert "no trie" in caplog.text


@pytest.mark.parametrize(
    ("config", "length"),
    [
        (transformers.LlamaConfig(), None),
        (transformers.Qwen2Config(), None),  # its window is stored, and not used
        (transformers.MistralConfig(sliding_window=70), 70),
        (transformers.Gemma3TextConfig(sliding_window=70), 70),
        (transformers.ReformerConfig(local_attn_chunk_length=70), 70),
        (transformers.RecurrentGemmaConfig(attention_window_size=70), 70),
        (transformers.Mamba2Config(chunk_size=70), 70),
        (transformers.MiniMaxConfig(block_size=70), 70),
        (transformers.GPTNeoConfig(window_size=70), 70),
        (transformers.DogeConfig(keep_window_size=70), 70),
        (transformers.Qwen3NextConfig(), 64),
        (transformers.DeepseekV32Config(index_topk=70), 70),
        (transformers.MiniMaxM3VLTextConfig(index_block_size=16, index_topk_blocks=5), 80),
    ],
    ids=lambda one: getattr(one, "model_type", None),
)
def test_the_probe_reaches_every_length_at_which_a_model_changes(config, length):
    assert gate.longest_span(config) == length


def test_attention_that_hashes_all_tokens_is_refused_beyond_its_chunk():
    torch.manual_seed(0)
    sizes = {
        "attn_layers": ["local", "lsh"],
        "hash_seed": 0,
        "axial_pos_shape": (32, 32),
        "axial_pos_embds_dim": (32, 32),
    }
    config = transformers.ReformerConfig(
        vocab_size=VOCAB, hidden_size=64, is_decoder=True, max_position_embeddings=1024, initializer_range=0.4, **sizes
    )
    with pytest.raises(UnsupportedModelError, match="no next-token distribution"):
        choose(AutoModelForCausalLM.from_config(config).eval())


def test_chunked_attention_needs_no_probe():
    config = transformers.Llama4TextConfig(num_hidden_layers=4)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert "chunked_attention" in gate.stated_refusal(model)


def test_prompts_beyond_the_switch_of_a_long_rope_go_apart():
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "rope_theta": 10_000.0}
    rope["original_max_position_embeddings"] = 64
    model = tiny_model("phi3", VOCAB, rope_parameters=rope, original_max_position_embeddings=64)
    stem = np.random.default_rng(0).integers(0, VOCAB, 50)
    requests = [request([*stem, *range(size)], label_trie((1,), (2, 3), (2,))) for size in (1, 5, 12, 13, 14, 30, 30)]
    engine, report = choose(model)
    assert report.engine == "trie"
    alone = PaddedEngine(model, Head(model), batch_tokens=1)
    assert largest_difference(logprobs(engine, requests), logprobs(alone, requests)) < 1e-10
    # Of the four below the switch each token once, and one more behind each for the label that starts with 2.
    assert engine.computed_tokens == 63 + 4


def test_widening_for_a_probe_leaves_no_trace():
    model = tiny_model("qwen2", VOCAB, torch.bfloat16)
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    with widened(model) as wide:
        assert wide
        assert model.dtype == torch.float32
    assert model.dtype == torch.bfloat16
    assert {name: tensor.data_ptr() for name, tensor in model.state_dict().items()} == before
    with pytest.raises(ZeroDivisionError), widened(model):
        raise ZeroDivisionError
    assert model.dtype == torch.bfloat16
    with widened(tiny_model("qwen2", VOCAB)) as wide:
        assert not wide


def test_a_judge_scores_the_same_with_either_engine(tmp_path):
    tokenizer = byte_tokenizer()
    save_judge(tmp_path / "judge", tiny_model("qwen3", len(tokenizer), torch.float32), tokenizer)
    metric = Metric(
        name="x/quality", introduction="Rate it.", criteria="Is it good?", scale="0-10", steps=("Read it.",)
    )
    samples = [{"output": text} for text in ("One.", "One. And another.", "One.", "Something else", "10 10 10")]
    judges = {name: Judge.load(tmp_path / "judge", engine=name) for name in ("auto", "trie", "padded")}
    assert [judge.engine_report.engine for judge in judges.values()] == ["trie", "trie", "padded"]
    scores = {name: [score.value for score in judge.score_many(metric, samples)] for name, judge in judges.items()}
    assert scores["auto"] == scores["trie"]
    np.testing.assert_allclose(scores["trie"], scores["padded"], atol=1e-5, rtol=0)
    # Earlier prompts have no effect, not even in the last bit.
    judges["trie"].score(metric, output="In between.")
    assert [score.value for score in judges["trie"].score_many(metric, samples)] == scores["trie"]
