"""Looking words up gives the tokens of the whole text, for real tokenizers and hostile texts, or is not done."""

from __future__ import annotations

import numpy as np
import pytest
from encoders import real_encoder
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import byte_tokenizer
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from geval_local.tokens import words
from geval_local.tokens.words import WordEncoder, can_split

SPLIT = ["gpt2", "olmo2", "pythia", "qwen"]
WORDS = st.sampled_from(
    [
        *(
            "the",
            "The",
            "cat",
            "don't",
            "'s",
            "'S",
            "it's",
            "42",
            "1234567",
            "3.14",
            "U.S.",
            "-",
            "--",
            "…",
            "“Oh”",
            "’s",
        ),
        *(
            "",
            "",
            "\n",
            "a\n\nB",
            "\t",
            "\u00a0",
            "\u3000",
            "中文",
            "é",
            "e\u0301",
            "\u0301",
            "🙂",
            "\u2028",
            "\x00",
            "Ġ",
            "▁",
        ),
        *("<|im_end|>", "<|endoftext|>", "</s>", "x" * 70, "Straße", "naïve", "(see", "[1]", "a_b", "http://x.y/z?q=1"),
    ]
)
TEXTS = st.lists(st.lists(WORDS | st.text(max_size=5), max_size=20).map(" ".join), min_size=1, max_size=6)


def whole(backend, texts) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def encoder(backend) -> WordEncoder:
    return WordEncoder(lambda texts: [np.array(ids, dtype=np.int32) for ids in whole(backend, texts)])


@pytest.mark.parametrize(("name", "splits"), [*((name, True) for name in SPLIT), ("mistral", False)])
def test_which_real_tokenizers_can_be_split(name, splits):
    assert can_split(real_encoder(name)._backend) is splits


@pytest.mark.parametrize("name", SPLIT)
@settings(max_examples=150, deadline=None)
@given(texts=TEXTS)
def test_words_have_the_tokens_of_the_whole(name, texts):
    backend = real_encoder(name)._backend
    by_word = encoder(backend)
    for _ in range(2):  # from what it has just learnt, too
        assert [ids.tolist() for ids in by_word.encode(texts)] == whole(backend, texts), texts


def test_words_are_encoded_once_and_forgotten_when_they_are_many(monkeypatch):
    backend = real_encoder("qwen")._backend
    encoded: list[str] = []

    def encode(texts):
        encoded.extend(texts)
        return [np.array(ids, dtype=np.int32) for ids in whole(backend, texts)]

    by_word = WordEncoder(encode)
    by_word.encode(["One two two", "One three", "One  gap", "One ends\n in"])
    assert sorted(encoded) == sorted(["One", " two", " three", " gap", " in", "One  gap", "One ends\n in"])
    encoded.clear()
    by_word.encode(["One three two"])
    assert encoded == []
    monkeypatch.setattr(words, "MOST_WORDS", 3)
    by_word.encode(["One three two"])
    assert sorted(encoded) == sorted(["One", " three", " two"])


def splitting(pattern: str = r"\s?\S+|\s+", **settings) -> Tokenizer:
    """A byte-level tokenizer that cuts as a pattern says."""
    backend = byte_tokenizer(bos=False).backend_tokenizer
    backend = Tokenizer.from_str(backend.to_str())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    for name, value in settings.items():
        setattr(backend, name, value)
    return backend


def test_a_tokenizer_that_cuts_before_spaces_can_be_split():
    assert can_split(splitting())


@pytest.mark.parametrize(
    "backend",
    [
        splitting(r"\S+\s?|\s+"),
        splitting(r"\s?[^\s7]+|\s?7+ 7+|\s?7+|\s+"),
        splitting(r"\s?\S+(?=\s)|\s?\S+|\s+"),
        splitting(normalizer=normalizers.Lowercase()),
        splitting(normalizer=normalizers.Replace("  ", " ")),
        splitting(pre_tokenizer=pre_tokenizers.Metaspace()),
        byte_tokenizer(bos=False).backend_tokenizer,
        Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")),
    ],
    ids=["behind", "sevens", "looks ahead", "lowercase", "squeeze", "metaspace", "no splitter", "other model"],
)
def test_what_is_not_known_is_encoded_whole(backend):
    assert not can_split(backend)


@pytest.mark.parametrize(
    "token", [AddedToken("<m>", rstrip=True), AddedToken("ab", single_word=True), AddedToken("a b"), AddedToken(" ")]
)
def test_added_tokens_that_reach_for_spaces_are_not_trusted(token):
    backend = splitting()
    backend.add_tokens([token])
    assert not can_split(backend)


def test_a_tokenizer_that_takes_the_space_behind_a_token_would_not_pass():
    backend = splitting()
    backend.add_tokens([AddedToken("<m>", rstrip=True)])
    texts = ["a <m> b"]
    assert [ids.tolist() for ids in encoder(backend).encode(texts)] != whole(backend, texts)
