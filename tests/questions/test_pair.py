"""Pairs: exact against enumeration on real tokenizers, in both orders, and the mean over forms."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
from brute_force import brute_force_labels
from pydantic import ValidationError
from tiny import byte_tokenizer, shared_tokenizer, tiny_model

from geval_local import Metric
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.engine.window import make_outcome, read_window
from geval_local.errors import MetricError
from geval_local.io.samples import Sample
from geval_local.metric_file import FRAME
from geval_local.models.head import Head
from geval_local.questions.pair import PAIR_SCALE, mean_outcome, mean_outcomes, orders_of, pair_metric
from geval_local.score import Distribution, Estimator, Outcome
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.requests import RequestMaker

TOKENIZERS = ["gpt2", "pythia", "olmo2", "mistral", "qwen"]
SPELLINGS = {"A": ["A"], "B": ["B"], "tie": ["tie", "Tie", "TIE"]}
ROWS = [
    {"source": "The ferry stops.", "output_a": "It stops {{source}}.", "output_b": "A boat."},
    {"source": "The ferry stops.", "output_a": "It stops {{source}}.", "output_b": "Nothing of the kind, A or B."},
]


def rating(**changes) -> Metric:
    base = {"name": "x/clarity", "introduction": "Rate it.", "criteria": "Is it clear?", "scale": "1-5", "steps": ()}
    return Metric(**(base | {"fields": {"source": "Source", "output": "Text"}} | changes))


def outcomes(model, tokenizer, metric, rows):
    """One outcome per form, from the engine that shares prefixes."""
    encoder = PromptEncoder(tokenizer)
    prepared = RequestMaker(encoder, metric, 4096).prepare([Sample(row) for row in rows])
    head = Head(model)
    alone = PaddedEngine(model, head, batch_tokens=10_000)
    engine = PrefixSharingEngine(model, head, batch_tokens=10_000, padded=alone)
    readouts = read_window(engine, prepared, lambda count: None)
    return [make_outcome(entry, readout, encoder) for entry, readout in zip(prepared, readouts, strict=True)]


def enumerated(model, tokenizer, texts_and_labels):
    """Preference, tie and label mass from the enumeration of all label strings behind every form."""
    p, masses = [], []
    for text, labels in texts_and_labels:
        spellings = [[lead + one for one in SPELLINGS[label] for lead in ("", " ")] for label in labels]
        joint = brute_force_labels(model, tokenizer, text, spellings)
        p.append(joint / joint.sum())
        masses.append(joint.sum())
    return np.mean(p, axis=0), np.mean(masses), p


@pytest.mark.sweep
@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_preference_of_a_pair_is_that_of_the_enumeration(name):
    tokenizer = shared_tokenizer(name)
    model = tiny_model("llama", len(tokenizer), hidden_size=16, num_hidden_layers=1)
    metric = pair_metric(rating())
    rows = ROWS if name == "gpt2" else ROWS[:1]  # the vocabularies of the others make every enumeration dear
    found = mean_outcomes(metric, outcomes(model, tokenizer, metric, rows))
    for row, outcome in zip(rows, found, strict=True):
        forms = []
        heading = "Evaluation Form (A / B / tie ONLY):"
        for one, other, labels in (("output_a", "output_b", "A B tie"), ("output_b", "output_a", "B A tie")):
            opening = orders_of(metric)[0].fill({"source": "", "output_a": "", "output_b": ""}).text.split("Source:")[0]
            body = f"{opening}Source:\n\n{row['source']}\n\nText A:\n\n{row[one]}\n\nText B:\n\n{row[other]}\n\n"
            forms.append((f"{body}{heading}\n\n- Clarity, the better one:", labels.split()))
        p, mass, each = enumerated(model, tokenizer, forms)
        score = outcome.score(metric, estimator=Estimator())
        np.testing.assert_allclose(list(score.probabilities.values()), p, rtol=0, atol=1e-10)
        assert score.value == pytest.approx(p[0] + p[2] / 2, abs=1e-10)
        assert score.label_mass == pytest.approx(mass, abs=1e-10)
        wanted = [own[0] + own[2] / 2 for own in each]
        np.testing.assert_allclose([order.score for order in score.orders], wanted, rtol=0, atol=1e-10)
        assert max(wanted) - min(wanted) > 1e-6  # the orders do differ, so that confusing them would show


def test_the_same_two_texts_are_exactly_even_and_exchanged_ones_are_the_complement():
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", len(tokenizer))
    metric = pair_metric(rating())
    same = {"source": "S", "output_a": "One.", "output_b": "One."}
    pair = {"source": "S", "output_a": "One.", "output_b": "Two!"}
    turned = {"source": "S", "output_a": "Two!", "output_b": "One."}
    scores = [
        one.score(metric, estimator=Estimator())
        for one in mean_outcomes(metric, outcomes(model, tokenizer, metric, [same, pair, turned]))
    ]
    assert scores[0].value == pytest.approx(0.5, abs=1e-12)
    assert scores[1].value == pytest.approx(1 - scores[2].value, abs=1e-12)
    assert scores[1].value != pytest.approx(0.5, abs=1e-4)


def test_a_pair_is_asked_as_the_metric_says():
    metric = rating(rubric={"5": "Very clear."}, steps=("Read.", "Decide."), threshold=3, shorten="source")
    asked = pair_metric(metric)
    text = orders_of(asked)[0].fill({"source": "SRC", "output_a": "ONE", "output_b": "TWO"}).text
    parts = ["Rate it.", "Text A if", "Is it clear?", "Very clear.", "1. Read.", "Source:\n\nSRC", "Text A:\n\nONE"]
    places = [text.find(part) for part in [*parts, "Text B:\n\nTWO", "- Clarity, the better one:"] if part != parts[1]]
    assert -1 not in places
    assert places == sorted(places)
    assert "\nClarity (A / B / tie) - " in text
    other = orders_of(asked)[1].fill({"source": "SRC", "output_a": "ONE", "output_b": "TWO"}).text
    assert "Text A:\n\nTWO" in other
    assert "Text B:\n\nONE" in other
    assert (asked.name, asked.scale, asked.threshold, asked.shorten) == ("x/clarity/pairs", PAIR_SCALE, None, "source")
    assert pair_metric(asked) is asked
    assert Metric.from_yaml(asked.to_yaml()) == asked
    assert pair_metric(rating(fields={"answer": "Answer"})).fields == {"output_a": "Answer A", "output_b": "Answer B"}


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(MetricError, match="used to the letter"):
        pair_metric(rating(template="Rate {{output}}.\n- C:"))
    with pytest.raises(MetricError, match="output_a"):
        pair_metric(rating(fields={"output_a": "A", "output": "B"}))
    for changes, told in (
        ({"pair": ("source", "nothing")}, "'nothing' is not one of the fields"),
        ({"pair": ("source", "source")}, "cannot be compared with itself"),
        ({"pair": ("source", "output")}, "of a pair: first label above the second"),
    ):
        with pytest.raises(ValidationError, match=told):
            rating(**changes)


def test_a_metric_of_single_outputs_has_the_hash_that_it_had_before_pairs():
    metric = Metric.load("summarization/coherence")
    asked = {"pair", "examples", "better", "frame"}
    record = metric.model_dump(mode="json", exclude={"steps", "steps_provenance", "threshold", *asked})
    whole = [record | {"case_variants": False}, metric.scale.labels, metric.scale.values, list(metric.fields), []]
    text = json.dumps(whole, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert metric.hash == hashlib.sha256(text.encode()).hexdigest()[:16]  # as if there were no such keys


def test_the_mean_is_over_distributions_and_a_failed_order_fails_the_sample():
    metric = rating()
    logs = [np.log([0.5, 0.2, 0.1, 0.05, 0.05]), np.log([0.05, 0.05, 0.1, 0.1, 0.1])]
    outcome = mean_outcome(metric.scale, [Outcome(one, prompt_tokens=10) for one in logs])
    expected = (np.exp(logs[0]) / 0.9 + np.exp(logs[1]) / 0.4) / 2
    whole = Distribution(metric.scale, outcome.label_logprobs)
    np.testing.assert_allclose(whole.p, expected, rtol=1e-12)
    assert whole.label_mass == pytest.approx((0.9 + 0.4) / 2)
    assert outcome.prompt_tokens == 20
    score = outcome.score(metric, estimator=Estimator())
    assert score.value == pytest.approx(np.mean([order.score for order in score.orders]))
    record = score.to_dict()
    assert record["order_masses"] == pytest.approx([0.9, 0.4])
    failed = mean_outcome(metric.scale, [Outcome(logs[0]), Outcome(error="too long")])
    assert failed.error == "too long"
    assert failed.label_logprobs is None


def test_the_words_of_a_pair_are_part_of_its_hash_alone(monkeypatch):
    one, pair = rating(), pair_metric(rating())
    before = one.hash, pair.hash
    monkeypatch.setitem(FRAME, "pair_cue", ", the better of the two")
    assert one.hash == before[0]
    assert pair.hash != before[1]
