"""Samples become requests: every row keeps its place, and nothing is cut silently, least of all criteria or form."""

from __future__ import annotations

import numpy as np
import pytest
from encoders import real_encoder
from example_counts import example_count
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import byte_tokenizer

from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.prompt import render_form
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.requests import RequestMaker

ENCODER = PromptEncoder(byte_tokenizer())


def a_metric(**settings) -> Metric:
    base = {
        "name": "x/relevance",
        "introduction": "Rate it.",
        "criteria": "Is it relevant?",
        "scale": "0-10",
        "steps": ("Read both.", "Compare."),
        "fields": {"source": "Source", "output": "Summary"},
    }
    return Metric(**(base | settings))


def length_of(encoder: PromptEncoder, metric: Metric, **fields: str) -> int:
    return len(encoder.encode([render_form(metric, fields)])[0])


def text_of(request) -> str:
    return ENCODER.tokenizer.decode(request.ids[1:])


def prepare_one(metric, context, encoder=ENCODER, **fields):
    maker = RequestMaker(encoder, metric, context)
    return maker.prepare([Sample(fields)])[0], maker


@pytest.mark.sweep
@pytest.mark.parametrize("name", [None, "qwen", "mistral", "gpt2", "olmo2", "pythia"])
def test_every_form_starts_with_the_prefix_of_its_metric(name):
    encoder = ENCODER if name is None else real_encoder(name)
    maker = RequestMaker(encoder, a_metric(), 10_000)
    own = length_of(encoder, a_metric(), source="", output="") // 2
    for text in ("Once upon a time.", "1984", "été"):
        request = maker.prepare([Sample({"source": text, "output": text})])[0].request
        assert request.prefix is maker.prefix
        assert np.array_equal(request.ids[: len(maker.prefix)], maker.prefix)
    assert len(maker.prefix) > own


def test_a_prompt_of_exactly_the_context_fits_and_one_token_more_does_not():
    metric = a_metric()
    fields = {"source": "A source.", "output": "An output."}
    length = length_of(ENCODER, metric, **fields)
    depth = RequestMaker(ENCODER, metric, 10_000).reader.trie.depth
    assert depth == 2  # " 1" and then "0"
    fitting, _ = prepare_one(metric, length + depth, **fields)
    assert fitting.error is None
    assert fitting.prompt_tokens == len(fitting.request.ids) == length
    long, _ = prepare_one(metric, length + depth - 1, **fields)
    assert long.request is None
    assert long.prompt_tokens == length
    assert f"the prompt has {length} tokens" in long.error
    assert f"the judge reads {length + depth - 1}" in long.error
    assert "shorten: source" in long.error


@pytest.mark.parametrize("missing", [1, 2, 7, 60])
def test_only_the_named_field_is_cut(missing):
    metric = a_metric(shorten="source")
    fields = {"source": "abcdefghij" * 10, "output": "A summary that stays."}
    length = length_of(ENCODER, metric, **fields)
    entry, maker = prepare_one(metric, length + 2 - missing, **fields)
    assert entry.error is None
    assert entry.dropped_tokens == missing
    assert entry.prompt_tokens == len(entry.request.ids) == length - missing
    expected = render_form(metric, {**fields, "source": fields["source"][:-missing]}).text
    assert text_of(entry.request) == expected
    assert entry.request.trie is maker.reader.trie


def test_a_prompt_that_fits_is_never_cut():
    metric = a_metric(shorten="source")
    fields = {"source": "A source.", "output": "An output."}
    for context in (10_000, length_of(ENCODER, metric, **fields) + 2):
        entry, _ = prepare_one(metric, context, **fields)
        assert (entry.dropped_tokens, entry.error) == (0, None)
        assert text_of(entry.request) == render_form(metric, fields).text


def test_a_field_that_cannot_be_shortened_enough_leaves_the_row_unscored():
    metric = a_metric(shorten="source")
    fields = {"source": "Too short.", "output": "y" * 300}
    length = length_of(ENCODER, metric, **fields)
    entry, _ = prepare_one(metric, length - 200, **fields)
    assert entry.request is None
    assert entry.dropped_tokens == 0
    assert entry.prompt_tokens == length
    assert f"{length} tokens" in entry.error
    assert "'source' cannot be shortened far enough" in entry.error


def test_the_named_field_is_never_emptied():
    metric = a_metric(shorten="source")
    fields = {"source": "Source", "output": "An output."}
    length = length_of(ENCODER, metric, **fields)
    almost, _ = prepare_one(metric, length + 2 - 5, **fields)
    assert almost.dropped_tokens == 5
    gone, _ = prepare_one(metric, length + 2 - 6, **fields)
    assert gone.request is None


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(str.strip)


@pytest.mark.sweep("mistral")
@pytest.mark.parametrize("name", ["qwen", "mistral"])
def test_shortening_on_real_tokenizers(name):
    encoder = real_encoder(name)
    metric = a_metric(shorten="source")
    empty = length_of(encoder, metric, source="", output="Y")

    @settings(max_examples=example_count(60))
    @given(source=TEXT, spare=st.integers(0, 30))
    def check(source, spare):
        context = empty + spare
        entry = maker_for(context).prepare([Sample({"source": source, "output": "Y"})])[0]
        full = length_of(encoder, metric, source=source, output="Y")
        if entry.request is None:
            assert entry.prompt_tokens == full > context - depth
            return
        assert len(entry.request.ids) + entry.request.trie.depth <= context
        assert entry.dropped_tokens == full - len(entry.request.ids)
        assert entry.prompt_tokens == len(entry.request.ids)
        if entry.dropped_tokens:
            kept = [source[:end] for end in range(1, len(source))]
            same = [text for text in kept if self_ids(text) == entry.request.ids.tolist()]
            assert same, "what is left is not the form filled with the beginning of the source"

    def self_ids(text):
        return encoder.encode([render_form(metric, {"source": text, "output": "Y"})])[0].tolist()

    makers: dict[int, RequestMaker] = {}

    def maker_for(context):
        return makers.setdefault(context, RequestMaker(encoder, metric, context))

    depth = maker_for(empty).reader.trie.depth
    check()


def test_bad_rows_keep_their_place_and_their_reason():
    metric = a_metric()
    samples = [
        Sample({"source": "A", "output": "one"}, row=1, origin="f.jsonl"),
        Sample({"output": "no source"}, row=2, origin="f.jsonl"),
        Sample({"document": "B", "system_output": "by aliases"}, row=3),
        Sample({}, row=4, origin="f.jsonl", error="f.jsonl, row 4: not JSON"),
        Sample({"source": "C", "output": ""}, row=5),
        Sample({"source": "D", "output": "last"}, row=6),
        Sample({"source": "z" * 5000, "output": "long"}, row=7),
    ]
    entries = RequestMaker(ENCODER, metric, 1000).prepare(samples)
    assert [entry.request is not None for entry in entries] == [True, False, True, False, False, True, False]
    assert [entry.error is None for entry in entries] == [True, False, True, False, False, True, False]
    assert "row 2" in entries[1].error
    assert "'source' is missing" in entries[1].error
    assert entries[3].error == "f.jsonl, row 4: not JSON"
    assert "'output'" in entries[4].error
    assert entries[1].prompt_tokens == entries[3].prompt_tokens == entries[4].prompt_tokens == 0
    for place, fields in ((0, ("A", "one")), (2, ("B", "by aliases")), (5, ("D", "last"))):
        expected = render_form(metric, {"source": fields[0], "output": fields[1]}).text
        assert text_of(entries[place].request) == expected


def test_no_samples_are_no_requests():
    assert RequestMaker(ENCODER, a_metric(), 100).prepare([]) == []


def test_chat_prompts_are_shortened_inside_their_frame():
    encoder = PromptEncoder(byte_tokenizer(thinking=True), style="chat")
    metric = a_metric(shorten="source")
    fields = {"source": "s" * 100, "output": "An output."}
    full = encoder.encode([render_form(metric, fields)])[0]
    entry, _ = prepare_one(metric, len(full) + 2 - 30, encoder, **fields)
    shorter = encoder.encode([render_form(metric, {**fields, "source": "s" * 70})])[0]
    assert entry.dropped_tokens == 30
    np.testing.assert_array_equal(entry.request.ids, shorter)
    np.testing.assert_array_equal(entry.request.ids[-100:], full[-100:])
