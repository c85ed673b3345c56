"""Surface forms of labels on the real tokenizers, and published prompt files with various texts after their cue."""

from __future__ import annotations

import numpy as np
import pytest
from encoders import real_encoder
from tiny import SHARED, byte_tokenizer

from geval_local.errors import TokenizerError
from geval_local.metric import Metric
from geval_local.prompt import metric_from_prompt_file, render_form
from geval_local.tokens import label_forms as surface
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.label_forms import LabelReader, find_labels, label_variants
from geval_local.tokens.label_trie import SurfaceForm

TOKENIZERS = ["gpt2", "pythia", "olmo2", "mistral", "qwen"]
PROMPTS = sorted((SHARED / "prompts").glob("*.txt"))


def a_metric(scale="1-5", **settings) -> Metric:
    return Metric(name="x/coherence", criteria="Whether it hangs together.", scale=scale, steps=(), **settings)


def templated(template: str, scale="1-3", **settings) -> Metric:
    return a_metric(scale, template=template, **settings)


def pieces_of(encoder, trie, label: int) -> dict[str, list[str]]:
    convert = encoder.tokenizer.convert_ids_to_tokens
    return {form.text: convert(list(form.token_ids)) for form in trie.forms if form.label == label}


# --- real tokenizers --------------------------------------------------------------------------------------------------

SPACE = "Ġ"
DOCUMENTED = {
    "gpt2": {"3": ["Ġ3"], "10": ["Ġ10"]},
    "pythia": {"3": ["Ġ3"], "10": ["Ġ10"]},
    "olmo2": {"3": [SPACE, "3"], "10": [SPACE, "10"]},
    "qwen": {"3": [SPACE, "3"], "10": [SPACE, "1", "0"]},
    "mistral": {"3": ["▁", "3"], "10": ["▁", "1", "0"]},
}
BARE_TEN = {"gpt2": ["10"], "pythia": ["10"], "olmo2": ["10"], "qwen": ["1", "0"], "mistral": ["1", "0"]}


@pytest.mark.sweep
@pytest.mark.parametrize("name", TOKENIZERS)
def test_three_and_ten_as_documented(name):
    encoder = real_encoder(name)
    metric = a_metric("0-10")
    prompt = render_form(metric, {"output": "A text."})
    assert prompt.text.endswith("- Coherence:")
    trie, dropped = find_labels(encoder, metric, prompt)
    assert dropped == ()
    assert pieces_of(encoder, trie, 3) == {"3": ["3"], " 3": DOCUMENTED[name]["3"]}
    assert pieces_of(encoder, trie, 10) == {"10": BARE_TEN[name], " 10": DOCUMENTED[name]["10"]}
    assert trie.collisions() == ([(1, 10)] if name in ("qwen", "mistral") else [])
    # Digits one by one: the root, the space, and "1" after each of them.
    assert len(trie.inner_nodes) == {"gpt2": 1, "pythia": 1, "olmo2": 2, "qwen": 4, "mistral": 4}[name]


@pytest.mark.sweep
@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_form_decodes_to_its_text_behind_the_form(name):
    encoder = real_encoder(name)
    metric = a_metric({"Yes": 1, "No": 0, "not sure": 0.5}, case_variants=True)
    prompt = render_form(metric, {"output": "A text."})
    ids = encoder.encode([prompt])[0].tolist()
    trie, _ = find_labels(encoder, metric, prompt)
    plain = encoder.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    for form in trie.forms:
        longer = encoder.tokenizer.decode([*ids, *form.token_ids], clean_up_tokenization_spaces=False)
        assert longer == plain + form.text
        assert form.text.strip().lower() == metric.scale.labels[form.label].lower()


@pytest.mark.sweep
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_merged_new_line_is_dropped_with_a_note(name, monkeypatch):
    monkeypatch.setattr(surface, "LEADS", ("", " ", "\n"))
    metric = a_metric("1-3")
    trie, dropped = find_labels(real_encoder(name), metric, render_form(metric, {"output": "A text."}))
    if name in ("olmo2", "qwen"):
        assert [(form.label, form.text) for form in dropped] == [("1", "\n1"), ("2", "\n2"), ("3", "\n3")]
        assert all("re-tokenizes the form" in form.reason and ":\\n" in form.reason for form in dropped)
        assert len(trie.forms) == 6
    else:
        assert dropped == ()
        assert len(trie.forms) == 9


# --- merges made on purpose -------------------------------------------------------------------------------------------


def test_a_form_that_changes_the_prompt_is_dropped_and_the_other_stays():
    encoder = PromptEncoder(byte_tokenizer(merges=[(":", " ")]))
    labels = LabelReader(encoder, a_metric("1-3"))
    assert [form.text for form in labels.trie.forms] == ["1", "2", "3"]
    assert [(form.label, form.text) for form in labels.dropped] == [("1", " 1"), ("2", " 2"), ("3", " 3")]
    assert all("': 1'" in form.reason or "': 2'" in form.reason or "': 3'" in form.reason for form in labels.dropped)


def test_labels_without_any_form_are_named():
    encoder = PromptEncoder(byte_tokenizer(merges=[(":", " "), (":", "2"), (":", "3")]))
    with pytest.raises(TokenizerError, match="no way to write '2', '3' after '- Coherence:'") as caught:
        LabelReader(encoder, a_metric("1-3"))
    assert "'1'" not in caught.value.message
    assert caught.value.hint


def test_one_case_variant_is_enough_for_a_label():
    merges = [(":", " "), (":", "Y")]
    with pytest.raises(TokenizerError, match="'Yes'"):
        LabelReader(PromptEncoder(byte_tokenizer(merges=merges)), a_metric("Yes/No", case_variants=False))
    reader = LabelReader(PromptEncoder(byte_tokenizer(merges=merges)), a_metric("Yes/No"))
    assert {form.text for form in reader.trie.forms} == {"yes", "No", "no", "NO"}


@pytest.mark.parametrize(
    ("label", "variants"),
    [
        ("yes", ["yes", "Yes", "YES"]),
        ("Yes", ["Yes", "yes", "YES"]),
        ("A", ["A"]),
        ("3", ["3"]),
        ("very good", ["very good", "Very good", "Very Good", "VERY GOOD"]),
        ("don't know", ["don't know", "Don't know", "Don't Know", "DON'T KNOW"]),
        ("iOS", ["iOS", "ios", "Ios", "IOS"]),
    ],
)
def test_label_variants(label, variants):
    assert label_variants(label, case_variants=True) == variants
    assert label_variants(label, case_variants=False) == [label]


def test_labels_that_differ_in_case_alone_keep_their_own_spelling_and_share_none():
    labels = LabelReader(PromptEncoder(byte_tokenizer()), a_metric({"no": 0, "NO": 1, "Yes": 2}))
    texts = {label: {form.text.strip() for form in labels.trie.forms if form.label == label} for label in range(3)}
    assert texts == {0: {"no"}, 1: {"NO"}, 2: {"Yes", "yes", "YES"}}


def test_words_count_in_every_case_unless_the_metric_says_no():
    encoder = PromptEncoder(byte_tokenizer())
    by_default = LabelReader(encoder, a_metric({"poor": 1, "fair": 2})).trie.forms
    assert {form.text for form in by_default if form.label == 0} == {"poor", " poor", "Poor", " Poor", "POOR", " POOR"}
    exact = LabelReader(encoder, a_metric({"poor": 1, "fair": 2}, case_variants=False)).trie.forms
    assert {form.text for form in exact if form.label == 0} == {"poor", " poor"}


def test_equal_spellings_of_one_label_are_kept_once(monkeypatch):
    monkeypatch.setattr(surface, "LEADS", ("", " ", ""))
    forms = LabelReader(PromptEncoder(byte_tokenizer()), a_metric("1-3")).trie.forms
    assert sorted(form.text for form in forms) == [" 1", " 2", " 3", "1", "2", "3"]
    assert all(isinstance(form, SurfaceForm) for form in forms)


# --- the trie belongs to the prompt -----------------------------------------------------------------------------------


def test_ordinary_prompts_share_one_trie():
    encoder, metric = PromptEncoder(byte_tokenizer()), a_metric()
    reader = LabelReader(encoder, metric)
    for text in ("x", "Ends in a new line\n", "Ends in a colon:", "- Coherence:", "\u00e9" * 40):
        prompt = render_form(metric, {"output": text})
        assert reader.trie_for(prompt, encoder.encode([prompt])[0]) is reader.trie


def test_a_prompt_whose_tail_merges_differently_gets_its_own_trie():
    """After "wow!" the line break goes to the "!", so that "::" is one token, and "::1" another."""
    merges = [("!", "\n"), ("\n", ":"), (":", ":"), ("::", "1")]
    encoder = PromptEncoder(byte_tokenizer(merges=merges))
    metric = templated("Text: {{output}}\n::")
    reader = LabelReader(encoder, metric)
    plain, odd = (render_form(metric, {"output": text}) for text in ("wow", "wow!"))
    plain_ids, odd_ids = encoder.encode([plain, odd])
    assert reader.trie_for(plain, plain_ids) is reader.trie
    assert "1" in {form.text for form in reader.trie.forms}
    own = reader.trie_for(odd, odd_ids)
    assert "1" not in {form.text for form in own.forms}
    assert {" 1", "2", "3"} <= {form.text for form in own.forms}
    assert own.forms == find_labels(encoder, metric, odd)[0].forms


@pytest.mark.sweep
@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_shared_trie_equals_each_prompts_own(name):
    encoder = real_encoder(name)
    for metric in (a_metric("0-10"), templated("{{output}}\n- Coherence (1-3):"), templated("A\n{{output}}\nScore:")):
        reader = LabelReader(encoder, metric)
        for text in ("x", "wow!", "a:", "two\n\n", "- ", " ", "3", "<|endoftext|>"):
            prompt = render_form(metric, {"output": text})
            trie = reader.trie_for(prompt, encoder.encode([prompt])[0])
            assert trie.forms == find_labels(encoder, metric, prompt)[0].forms


# --- published prompt files -------------------------------------------------------------------------------------------


@pytest.mark.sweep
@pytest.mark.skipif(not PROMPTS, reason="needs ../shared/prompts")
@pytest.mark.parametrize("name", TOKENIZERS)
def test_white_space_behind_a_files_cue_changes_nothing(name, tmp_path):
    encoder = real_encoder(name)
    for path in PROMPTS:
        text = path.read_text(encoding="utf-8")
        assert text.rstrip().endswith(":")
        results = []
        for number, ending in enumerate(["", " ", "\n", " \n\n", "\r\n"]):
            copy = tmp_path / f"{number}" / path.name
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes((text.rstrip() + ending).encode())
            metric = metric_from_prompt_file(copy, "1-5")
            fields = dict.fromkeys(metric.fields, "Some text, 10 words long.")
            prompt = render_form(metric, fields)
            ids = encoder.encode([prompt])[0]
            results.append((ids, LabelReader(encoder, metric).trie_for(prompt, ids)))
        for ids, trie in results[1:]:
            np.testing.assert_array_equal(ids, results[0][0])
            assert trie.forms == results[0][1].forms
            assert trie.inner_nodes == results[0][1].inner_nodes
        assert {form.text for form in results[0][1].forms} == {lead + str(n) for n in range(1, 6) for lead in ("", " ")}
