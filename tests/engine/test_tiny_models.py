"""The test models themselves: a helper that is uniform, untied to its seed or blind to context would prove nothing."""

from __future__ import annotations

import math

import pytest
import torch
from tiny import KINDS, byte_tokenizer, tiny_model


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_predicts_far_from_uniformly_and_causally(kind):
    vocab = 263
    model = tiny_model(kind, vocab)
    tokens = torch.arange(40).remainder(37).unsqueeze(0) + 8
    with torch.inference_mode():
        logits = model(tokens).logits
        changed = tokens.clone()
        changed[0, -1] = 100
        earlier = model(changed).logits[0, :-1]
    assert logits.shape == (1, 40, vocab)
    probabilities = logits.double().softmax(-1)[0]
    entropy = -(probabilities * probabilities.clamp_min(1e-300).log()).sum(-1).mean().item()
    assert 0.05 < entropy < 0.85 * math.log(vocab)
    assert torch.equal(logits[0, :-1], earlier) or (logits[0, :-1] - earlier).abs().max() < 1e-6
    # The same last token in another context predicts something else.
    other = model(torch.cat([tokens[:, :20] + 50, tokens[:, 20:]], dim=1)).logits[0, -1]
    assert (other - logits[0, -1]).abs().max() > 1e-3


def test_the_seed_decides_the_weights_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, third = (tiny_model("llama", 50, seed=seed).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_byte_tokenizer_merges_marks_the_beginning_and_closes_thinking():
    tokenizer = byte_tokenizer(merges=[("1", "0"), (":", "\n")], thinking=True)
    assert tokenizer("10:\n1").tokens()[0] == "<s>"
    assert len(tokenizer("10:\n1")["input_ids"]) == 4
    assert tokenizer.decode(tokenizer("Grüße, 10:\n1", add_special_tokens=False)["input_ids"]) == "Grüße, 10:\n1"
    chat = [{"role": "user", "content": "hi"}]
    closed = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert closed == "<s><|user|>hi</s><|assistant|><think></think>"


def test_one_seed_gives_the_same_weights_in_every_dtype():
    exact = tiny_model("llama", 50)
    rounded = tiny_model("llama", 50, dtype=torch.bfloat16)
    assert rounded.dtype == rounded.config.dtype == torch.bfloat16
    assert torch.equal(exact.lm_head.weight.to(torch.bfloat16), rounded.lm_head.weight)
    assert rounded.model.rotary_emb.inv_freq.dtype == torch.float32
