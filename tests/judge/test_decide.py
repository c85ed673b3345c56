"""Decisions: exact label probabilities of questions, and evidence that a judge cannot read."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import brute_force_labels
from tiny import byte_tokenizer, shared_tokenizer, tiny_model

from geval_local import ChoiceQuestion, Judge, PredicateQuestion, ScoreQuestion
from geval_local.engine.batched import PaddedEngine
from geval_local.errors import QuestionError
from geval_local.judge import scorer
from geval_local.models.head import Head
from geval_local.prompt import render_form
from geval_local.questions.form import question_forms, state_text
from geval_local.testing import MockEngine, MockJudge

STATE = {"message": "I was charged twice, 10 times over.", "days": 3}
QUESTIONS = [
    PredicateQuestion(name="refund", instructions="The customer asks for a refund."),
    ChoiceQuestion(
        name="topic", instructions="What is it about?", options={"billing": "money", "other": None, True: "x"}
    ),
    ScoreQuestion(name="anger", instructions="How angry?", levels=["calm", "cross", "angry"]),
    ScoreQuestion(name="rating", instructions="How urgent?", levels=list(range(11))),
]
MANY = ChoiceQuestion(name="many", options=[f"option {number}" for number in range(120)])


def judge_of(model, tokenizer, **options):
    """A judge with the padded reference engine, and its model."""
    return MockJudge(
        PaddedEngine(model, Head(model), batch_tokens=20_000), tokenizer=tokenizer, context=8192, **options
    )


def oracle(model, tokenizer, question, rotations):
    """Probabilities of the question's outcomes, by enumeration of every label's strings in every order."""
    found, masses = [], []
    for form in question_forms(question, rotations=rotations):
        prompt = render_form(form.metric, {"state": state_text(STATE), "question": form.text})
        spellings = [[label, f" {label}"] for label in form.metric.scale.labels]
        raw = brute_force_labels(model, tokenizer, prompt.text, spellings)
        found.append((raw / raw.sum())[list(form.order)])
        masses.append(raw.sum())
    return np.mean(found, axis=0), np.mean(masses), np.ptp(found, axis=0).max()


@pytest.mark.sweep
@pytest.mark.parametrize("rotations", [1, 3])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt2"])
def test_answers_equal_brute_force(kind, rotations):
    tokenizer = byte_tokenizer()
    model = tiny_model(kind, len(tokenizer))
    decision = judge_of(model, tokenizer).decide(STATE, QUESTIONS, rotations=rotations)
    for question, answer in zip(QUESTIONS, decision, strict=True):
        p, mass, spread = oracle(model, tokenizer, question, rotations)
        np.testing.assert_allclose(answer.p, p, rtol=0, atol=1e-9)
        assert answer.label_mass == pytest.approx(mass, abs=1e-9)
        assert answer.spread == (None if rotations == 1 else pytest.approx(spread, abs=1e-9))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["gpt2", "pythia", "olmo2", "mistral", "qwen"])
def test_real_tokenizers_and_labels_of_several_tokens_equal_brute_force(name):
    tokenizer = shared_tokenizer(name)
    model = tiny_model("llama", len(tokenizer), hidden_size=16, num_hidden_layers=1)
    questions = [*QUESTIONS, MANY]
    decision = judge_of(model, tokenizer).decide(STATE, questions)
    for question, answer in zip(questions, decision, strict=True):
        p, mass, _ = oracle(model, tokenizer, question, 1)
        np.testing.assert_allclose(answer.p, p, rtol=1e-7, atol=1e-9)
        assert answer.label_mass == pytest.approx(mass, rel=1e-7)


@pytest.mark.parametrize("count", [30, pytest.param(255, marks=pytest.mark.nightly)])
def test_as_many_options_as_there_may_be_equal_brute_force(count):
    question = ChoiceQuestion(name="most", options=[f"o{number}" for number in range(count)])
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", len(tokenizer), num_hidden_layers=1)
    (answer,) = judge_of(model, tokenizer).decide(STATE, [question])
    p, _, _ = oracle(model, tokenizer, question, 1)
    np.testing.assert_allclose(answer.p, p, rtol=1e-7, atol=1e-9)


@pytest.fixture(scope="module")
def nano():
    return Judge.load("nano")


def test_a_question_does_not_depend_on_its_company(nano):
    together = nano.decide(STATE, QUESTIONS, rotations=2)
    for question, answer in zip(QUESTIONS, together, strict=True):
        alone = nano.decide(STATE, [question], rotations=2)[0]
        np.testing.assert_allclose(answer.p, alone.p, rtol=0, atol=1e-5)
    many = nano.decide_many([STATE, "Another text.", {}], QUESTIONS, rotations=2)
    np.testing.assert_allclose(many[0]["topic"].p, together["topic"].p, rtol=0, atol=1e-5)
    assert [len(decision) for decision in many] == [4, 4, 4]


def test_the_evidence_is_computed_once(nano):
    questions = [PredicateQuestion(instructions=f"Statement {number} holds.") for number in range(20)]
    before = nano.engine.computed_tokens
    decision = nano.decide("A long text. " * 100, questions)
    computed = nano.engine.computed_tokens - before
    asked = sum(answer.prompt_tokens for answer in decision)
    assert computed <= decision.tokens + 20 * 2
    assert asked > 8 * computed


def test_chat_style_puts_the_evidence_first_too():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}[/]{% endfor %}[assistant]"
    judge = MockJudge(tokenizer=tokenizer, style="chat")
    work = judge.decision_work("EVIDENCE", QUESTIONS)
    texts = [tokenizer.decode(entry.request.ids) for entry in work.prepare(0, len(work))]
    shared = texts[0][: texts[0].index("EVIDENCE") + len("EVIDENCE")]
    assert all(text.startswith(shared) and text.endswith("[/][assistant]Answer:") for text in texts)


@pytest.mark.slow
def test_control_tokens_in_any_text_stay_text():
    tokenizer = shared_tokenizer("qwen")
    judge = MockJudge(tokenizer=tokenizer)
    control = tokenizer.convert_tokens_to_ids("<|im_end|>")
    hostile = "a <|im_end|> b"
    questions = [
        PredicateQuestion(instructions=hostile, if_true=hostile),
        ChoiceQuestion(instructions=hostile, options={hostile: hostile, "x": None}),
        ScoreQuestion(instructions=hostile, levels={hostile: hostile, "x": None}),
    ]
    work = judge.decision_work({hostile: hostile}, questions, rotations=2)
    for entry in work.prepare(0, len(work)):
        assert control not in entry.request.ids.tolist()


# --- unanswerable questions -------------------------------------------------------------------------------------------


def test_a_question_too_long_is_unanswered_and_the_others_stand():
    judge = MockJudge(context=700)
    long = PredicateQuestion(instructions="word " * 200)
    decision = judge.decide("Short.", [QUESTIONS[0], long, QUESTIONS[2]])
    assert [answer.is_answered for answer in decision] == [True, False, True]
    assert decision[1].error_code == "too_long"
    assert "the judge reads 700" in decision[1].error


def test_evidence_too_long_is_found_out_without_encoding_it_for_every_question(monkeypatch):
    judge = MockJudge(context=1000)
    seen = []
    encode = judge.encoder.encode_texts
    monkeypatch.setattr(judge.encoder, "encode_texts", lambda texts: seen.extend(map(len, texts)) or encode(texts))
    decision = judge.decide("x" * 5_000_000, [PredicateQuestion(instructions="x")] * 50)
    assert {answer.error_code for answer in decision} == {"too_long"}
    assert sum(seen) < 50_000


def test_text_that_is_not_unicode_is_unanswered_with_the_reason():
    answer = MockJudge().decide("half a pair: \ud800", QUESTIONS[:1])[0]
    assert not answer.is_answered
    assert answer.error_code == "not_unicode"
    assert "Unicode" in answer.error


def test_questions_are_checked_before_anything_is_computed():
    engine = MockEngine()
    with pytest.raises(QuestionError, match="same name"):
        MockJudge(engine).decide("x", [QUESTIONS[0], QUESTIONS[0]])
    with pytest.raises(QuestionError, match="not bytes"):
        MockJudge(engine).decide(b"x", QUESTIONS)
    assert engine.executed_packs == 0


def test_the_mock_judge_answers_the_same_every_time():
    first, second = (MockJudge().decide(STATE, QUESTIONS, rotations=2).to_dict() for _ in range(2))
    assert first == second
    assert list(first) == ["refund", "topic", "anger", "rating"]


def test_many_evidences_stream_in_order(monkeypatch):
    monkeypatch.setattr(scorer, "WINDOW", 50)
    states = (f"text {number}" for number in range(90))
    judge = MockJudge()
    found = list(judge.iter_decisions(states, QUESTIONS[:2]))
    assert len(found) == 90
    assert all(found[n][0].p == judge.decide(f"text {n}", QUESTIONS[:2])[0].p for n in (0, 24, 25, 50, 89))
