"""Cached pieces give the tokens of the whole prompt, for real tokenizers and hostile texts, or are not used."""

from __future__ import annotations

import json

import numpy as np
import pytest
from encoders import real_encoder
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import byte_tokenizer
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.shared_text import SharedTextEncoder, can_cut

NAMES = ["gpt2", "mistral", "olmo2", "pythia", "qwen"]
FRAGMENTS = st.sampled_from(
    [
        *("\n", "\n\n", "\nThe", "\nSummary:\n\n", "a", "Ab", " ", "   ", "\t", "\r\n", "'s", "'", "!\n", ":", "42"),
        *(
            "é",
            "e\u0301",
            "中",
            "<|im_end|>",
            "<|endoftext|>",
            "</s>",
            "🙂\nX",
            "\u00a0\n",
            "-\nlist",
            "\x00",
            "▁",
            "Ċ",
        ),
    ]
)


def whole(backend, texts):
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_real_tokenizers_can_be_cut(name):
    assert real_encoder(name).shared_texts.is_shared


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=example_count(60))
@given(texts=st.lists(st.lists(FRAGMENTS | st.text(max_size=6), max_size=14).map("".join), min_size=2, max_size=5))
def test_pieces_have_the_tokens_of_the_whole(name, texts):
    encoder = real_encoder(name)
    encoder.shared_texts.least = 0
    found = encoder.shared_texts.encode(texts)
    for text, shared, ids in zip(texts, found, whole(encoder.backend, texts), strict=True):
        assert shared.tolist() == ids, text


def test_equal_pieces_are_encoded_once():
    encoder = PromptEncoder(byte_tokenizer()).shared_texts
    encoder.least = 0
    encoded = []
    inner = encoder.encode_whole
    assert encoder.is_shared
    encoder.encode_whole = lambda texts: encoded.extend(texts) or inner(texts)
    source = "A long source.\n\nSummary:\n\n"
    texts = [
        f"Rate it.\n\nSource:\n\n{source}Candidate {number}.\n\nEvaluation Form:\n\n- Score:" for number in range(9)
    ]
    found = encoder.encode(texts)
    assert len([text for text in encoded if "long source" in text]) == 1
    assert sum(map(len, encoded)) < sum(map(len, texts)) / 3
    assert [np.asarray(ids).tolist() for ids in found] == whole(encoder.backend, texts)


def spanning(**settings) -> Tokenizer:
    """A byte-level tokenizer that merges a line end with the letter after it."""
    backend = byte_tokenizer(merges=[("\n", "T")], bos=False).backend_tokenizer
    record = json.loads(backend.to_str()) | settings
    return Tokenizer.from_str(json.dumps(record | {"post_processor": None}))


def test_a_tokenizer_that_merges_across_a_line_end_is_encoded_whole():
    backend = spanning()
    assert not can_cut(backend)
    texts = ["a\nTo", "b\nTo"]
    assert [ids.tolist() for ids in SharedTextEncoder(backend, least=0).encode(texts)] == whole(backend, texts)
    forced = SharedTextEncoder(backend, least=0)
    forced.is_shared = True
    assert [ids.tolist() for ids in forced.encode(texts)] != whole(backend, texts), "the test above shows nothing"


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": json.loads(normalizers.Lowercase().__getstate__())},
        {"normalizer": json.loads(normalizers.Strip().__getstate__())},
        {"pre_tokenizer": json.loads(pre_tokenizers.Split(Regex(r"(?<=a)\n"), "isolated").__getstate__())},
        {"pre_tokenizer": json.loads(pre_tokenizers.Split(Regex(r"^\s+"), "isolated").__getstate__())},
    ],
    ids=["lowercase", "strip", "looks behind", "looks for the start"],
)
def test_what_is_not_known_is_encoded_whole(change):
    record = json.loads(byte_tokenizer(bos=False).backend_tokenizer.to_str()) | {"post_processor": None}
    assert can_cut(Tokenizer.from_str(json.dumps(record)))
    assert not can_cut(Tokenizer.from_str(json.dumps(record | change)))


@pytest.mark.parametrize(
    "token",
    [{"content": "x\nY"}, {"content": "Q"}, {"content": "User", "lstrip": True}, {"content": "w", "single_word": True}],
)
def test_added_tokens_that_may_reach_across_are_not_trusted(token):
    record = json.loads(byte_tokenizer(bos=False).backend_tokenizer.to_str()) | {"post_processor": None}
    usual = {"id": 900, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    record["added_tokens"].append(usual | token)
    assert not can_cut(Tokenizer.from_str(json.dumps(record)))


def test_other_models_are_encoded_whole():
    assert not can_cut(Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
