"""Examples in the form: what is refused, what the prompt shows, how the label is read, and what they cost."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from brute_force import brute_force_labels
from prompts import distinct_tokens
from tiny import byte_tokenizer, tiny_model

from geval_local import Metric
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.errors import MetricError
from geval_local.examples import doubts
from geval_local.io.samples import Sample
from geval_local.models.head import Head
from geval_local.prompt import examples_text, render_form, render_steps_prompt
from geval_local.questions.pair import pair_metric
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.requests import RequestMaker

BARE = """\
name: clarity
criteria: How clear the text is.
fields:
  source: Source
  output: Text
scale: 1-5
steps: [Read both texts.]
"""
EXAMPLES = """\
examples:
  - {source: The sea, output: It is wide., label: 4, reason: 'says "wide"', id: r7}
  - source: |
      The hill

      and the lake
    output: It is.
    label: 1
"""
METRIC = Metric.from_yaml(BARE + EXAMPLES)
ROWS = [{"source": f"Source {number // 2}.", "output": f"Text {number}."} for number in range(8)]


def refusal(text: str) -> str:
    with pytest.raises(MetricError) as caught:
        Metric.from_yaml(BARE + text, origin="m.yaml")
    return str(caught.value)


def changed(**update) -> Metric:
    first, second = METRIC.examples
    return METRIC.model_copy(update={"examples": (first.model_copy(update=update), second)})


def test_the_form_shows_them_between_the_steps_and_the_sample_as_forms_that_are_filled_in():
    fields = {"source": "A source.", "output": "A text."}
    bare = render_form(METRIC.model_copy(update={"examples": ()}), fields)
    assert bare == render_form(Metric.from_yaml(BARE), fields)
    before, sample = bare.body.split("Source:\n\nA source.")
    sample = f"Source:\n\nA source.{sample}"
    form = sample.replace("A source.", "{}").replace("A text.", "{}")
    first, second = form.format("The sea", "It is wide."), form.format("The hill\n\nand the lake", "It is.")
    assert render_form(METRIC, fields).text == (
        f'{before}Rated Examples:\n\nExample 1:\n\n{first}- Clarity: 4\n\nReason: says "wide"\n\n'
        f"Example 2:\n\n{second}- Clarity: 1\n\nNow Rate This One:\n\n{sample}- Clarity:"
    )
    assert "Example" not in render_steps_prompt(METRIC).text, "the steps are those of the metric without examples"


def test_a_file_and_python_give_the_same_metric_and_it_reads_back():
    rows = [
        {"source": "The sea", "output": "It is wide.", "label": 4, "reason": 'says "wide"', "id": "r7"},
        {"source": "The hill\n\nand the lake", "output": "It is.", "label": "1"},
    ]
    bare = Metric.from_yaml(BARE)
    assert Metric(**bare.model_dump(exclude={"examples"}), examples=rows) == METRIC
    assert Metric.from_yaml(METRIC.to_yaml()) == METRIC
    assert "examples" not in bare.to_yaml()


def test_the_hash_is_of_all_that_is_shown_and_of_no_id():
    assert changed(id="other").hash == METRIC.hash
    others = [
        changed(label="5"),
        changed(reason=None),
        METRIC.model_copy(update={"examples": METRIC.examples[::-1]}),
        METRIC.model_copy(update={"examples": METRIC.examples[:1]}),
        METRIC.model_copy(update={"examples": ()}),
        Metric.from_yaml((BARE + EXAMPLES).replace("wide.", "wide!")),
    ]
    hashes = {METRIC.hash, *(one.hash for one in others)}
    assert len(hashes) == len(others) + 1
    assert METRIC.model_copy(update={"examples": ()}).hash == Metric.from_yaml(BARE).hash


def test_every_problem_of_an_example_is_named():
    good = "examples:\n  - {source: a, output: b, label: 3}\n"
    assert len(Metric.from_yaml(BARE + good).examples) == 1
    message = refusal(good + "  - {source: a, output: b, label: 7}\n  - {source: a, label: 3}\n")
    assert "m.yaml, line 10: examples.1.label: example 2 has the label '7'; the labels are 1, 2, 3, 4, 5" in message
    assert "m.yaml, line 11: examples.2: example 3 lacks the field 'output'" in message
    message = refusal(good + "  - {source: a, output: b, outptu: c, label: 3}\n")
    assert "example 2: 'outptu' is not one of the fields source, output; did you mean 'output'?" in message
    assert "the key 'examples.0.label' is missing" in refusal("examples: [{source: a, output: b}]\n")
    assert "examples.0.output: the text is empty" in refusal("examples: [{source: a, output: '', label: 3}]\n")
    assert "examples: a template is the whole prompt" in refusal(good + "template: |\n  {{output}}\n  - X:\n")
    mine = BARE.replace("  source: Source", "  reason: Reason").replace("clarity", "x")
    with pytest.raises(MetricError, match="the field 'reason' cannot be told from an example's own"):
        Metric.from_yaml(mine + "examples: [{reason: a, output: b, label: 3}]\n")


def test_words_are_labels_as_the_scale_writes_them():
    words = BARE.replace("1-5", "Yes/No")
    assert Metric.from_yaml(words + "examples: [{source: a, output: b, label: No}]\n").examples[0].label == "No"
    with pytest.raises(MetricError, match=r"'yes'; the labels are Yes, No; did you mean 'Yes'\?"):
        Metric.from_yaml(words + "examples: [{source: a, output: b, label: yes}]\n")


def test_pairs_do_not_take_examples_of_single_texts_silently():
    with pytest.raises(MetricError, match="has examples of single texts"):
        pair_metric(METRIC)


def prepared(metric: Metric, encoder: PromptEncoder, rows=ROWS, context: int = 100_000):
    return [one.request for one in RequestMaker(encoder, metric, context).prepare([Sample(row) for row in rows])]


def engine_of(model, budget: int) -> PrefixSharingEngine:
    head = Head(model)
    padded = PaddedEngine(model, head, batch_tokens=budget)
    return PrefixSharingEngine(model, head, batch_tokens=budget, padded=padded)


def test_the_label_behind_examples_is_read_exactly():
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", len(tokenizer), max_position_embeddings=4096)
    requests = prepared(METRIC, PromptEncoder(tokenizer), ROWS[:2])
    engine = engine_of(model, 4096)
    for pack, readouts in engine.execute(requests, engine.plan(requests)):
        for index, readout in zip(pack.requests, readouts, strict=True):
            spellings = [[label, f" {label}"] for label in METRIC.scale.labels]
            text = render_form(METRIC, ROWS[index]).text
            wanted = brute_force_labels(model, tokenizer, text, spellings)
            np.testing.assert_allclose(np.exp(readout.label_logprobs), wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("rows", [1, 8])
def test_examples_are_computed_once_however_many_rows_there_are(rows):
    """What they add to a run does not grow with its rows, and is at most their own length."""
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", len(tokenizer), max_position_embeddings=4096)
    encoder = PromptEncoder(tokenizer)
    tokens = len(encoder.encode_texts([examples_text(METRIC)])[0]) - len(encoder.prefix_ids)
    computed = []
    for metric in (METRIC.model_copy(update={"examples": ()}), METRIC):
        requests = prepared(metric, encoder, ROWS[:rows])
        engine = engine_of(model, 512)
        assert sum(len(found) for _, found in engine.execute(requests, engine.plan(requests))) == rows
        assert engine.computed_tokens == distinct_tokens(requests)
        computed.append(engine.computed_tokens)
    assert computed[1] - computed[0] == tokens > 200


def test_in_a_chat_they_are_text_of_the_one_user_turn():
    encoder = PromptEncoder(byte_tokenizer(chat=True), style="chat")
    shown, bare = (encoder.full_text(render_form(one, ROWS[0])) for one in (METRIC, Metric.from_yaml(BARE)))
    assert shown.count("- Clarity: 4\n\nReason") == 1
    for secret in encoder.secret_names.values():
        assert shown.count(secret) == bare.count(secret)
    assert shown.rpartition("Now Rate This One:\n\n")[2] == bare[bare.index("Source:\n\n") :]


def test_what_speaks_against_examples_is_said_once_for_a_judge(caplog):
    one_label = changed(label="1")
    assert "clarity has 2 examples with one label, 1:" in doubts("clarity", one_label.examples)[0]
    assert not doubts("clarity", METRIC.examples) + doubts("clarity", ())
    encoder = PromptEncoder(byte_tokenizer())
    tokens = len(encoder.encode_texts([examples_text(METRIC)])[0]) - len(encoder.prefix_ids)
    with caplog.at_level(logging.WARNING, logger="geval_local"):
        prepared(METRIC, encoder, context=2 * tokens)
        assert not caplog.records
        prepared(METRIC, encoder, context=2 * tokens - 1)
        assert f"the examples of clarity take {tokens:,} of the {2 * tokens - 1:,} tokens" in caplog.text
        caplog.clear()
        prepared(one_label, encoder)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
