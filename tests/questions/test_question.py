"""Questions: accepted input, their forms, and figures derived from their probabilities."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from geval_local.errors import Cause, ErrorCode, QuestionError
from geval_local.prompt import render_form
from geval_local.questions.answer import (
    ChoiceAnswer,
    PredicateAnswer,
    ScoreAnswer,
    choice_confidence,
    make_answer,
    score_confidence,
    unanswered,
)
from geval_local.questions.form import question_forms, state_text
from geval_local.questions.question import (
    ChoiceQuestion,
    PredicateQuestion,
    ScoreQuestion,
    load_questions,
    parse_questions,
)

YAML = """\
refund:
  type: predicate
  instructions: The customer asks for a refund.
topic:
  type: choice
  instructions: What is it about?
  options: [{value: billing, description: money}, other, true, {value: "true", description: a word}]
urgency:
  type: score
  levels: [can wait, this week, 3]
  rotations: 2
"""


def text(form, state="STATE"):
    return render_form(form.metric, {"state": state, "question": form.text}).text


def test_yaml_and_json_give_the_same_questions(tmp_path):
    (tmp_path / "q.yaml").write_text(YAML)
    found = load_questions(tmp_path / "q.yaml")
    assert [question.name for question in found] == ["refund", "topic", "urgency"]
    assert [option.value for option in found[1].options] == ["billing", "other", True, "true"]
    assert [type(option.value) for option in found[1].options] == [str, str, bool, str]
    assert [level.label for level in found[2].levels] == ["can wait", "this week", "3"]
    records = [question.model_dump(exclude_none=True) for question in found]
    (tmp_path / "q.json").write_text(json.dumps(records))
    assert load_questions(tmp_path / "q.json") == found
    (tmp_path / "nested.yaml").write_text("questions:\n" + "".join(f"  {line}\n" for line in YAML.splitlines()))
    assert load_questions(tmp_path / "nested.yaml") == found


def test_a_list_without_names_is_named_by_place(tmp_path):
    (tmp_path / "q.json").write_text('[{"type": "predicate", "instructions": "It rains."}]')
    assert load_questions(tmp_path / "q.json")[0].name == "q1"


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("a:\n  type: oracle\n", "line 1.*question 'a'.*oracle"),
        ("a:\n  instructions: x\n", "question 'a'"),
        ("a:\n  type: predicate\n", "a predicate needs a statement"),
        ("a:\n  type: choice\n  options: [x]\n", "line 3.*at least 2"),
        ("a:\n  type: choice\n  options: [x, x]\n", "'x' occurs twice"),
        ("a:\n  type: choice\n  options: [true, true]\n", "True occurs twice"),
        ("a:\n  type: choice\n  options: [1, 2]\n", "line 3"),
        ("a:\n  type: choice\n  optoins: [x, y]\n", "did you mean 'options'"),
        ("a:\n  type: score\n  levels: [x]\n", "line 3.*levels: at least 2 are needed, not 1"),
        ("a:\n  type: score\n  levels: [true, false]\n", "line 3"),
        ("a:\n  type: predicate\n  instructions: x\n  rotations: 0\n", "line 4"),
        ("- {type: predicate, instructions: x, name: n}\n- {type: predicate, instructions: y, name: n}\n", "same name"),
        ("{}", "no question"),
        ("[]", "no question"),
        ("text", "mapping of names"),
        ("a: {", "not valid YAML"),
    ],
)
def test_what_is_wrong_is_named_by_line(tmp_path, yaml, message):
    (tmp_path / "q.yaml").write_text(yaml)
    with pytest.raises(QuestionError, match=message):
        load_questions(tmp_path / "q.yaml")


def test_limits_of_options_and_levels():
    assert len(ChoiceQuestion(options=[str(number) for number in range(255)]).options) == 255
    with pytest.raises(QuestionError, match="at most 255"):
        parse_questions([{"type": "choice", "options": [str(number) for number in range(256)]}])
    with pytest.raises(QuestionError, match="at most 101"):
        parse_questions([{"type": "score", "levels": list(range(102))}])


def test_a_missing_file_and_another_format_are_told(tmp_path):
    with pytest.raises(QuestionError, match="cannot read"):
        load_questions(tmp_path / "none.yaml")
    with pytest.raises(QuestionError, match="extension"):
        load_questions(tmp_path / "q.txt")
    (tmp_path / "q.json").write_text("a: b")
    with pytest.raises(QuestionError, match="not valid JSON"):
        load_questions(tmp_path / "q.json")


# --- forms ------------------------------------------------------------------------------------------------------------


def test_evidence_comes_first_and_all_questions_share_everything_up_to_its_end():
    questions = parse_questions(
        [
            {"type": "predicate", "instructions": "It rains."},
            {"type": "choice", "options": ["a", "b"]},
            {"type": "score", "levels": ["low", "high"]},
        ]
    )
    forms = [text(form) for question in questions for form in question_forms(question, rotations=2)]
    shared = forms[0][: forms[0].index("STATE") + len("STATE\n\n")]
    assert len(forms) == 6
    assert all(form.startswith(shared) and form.endswith("\n\nAnswer:") for form in forms)


def test_every_outcome_has_its_own_label_in_every_rotation():
    question = ChoiceQuestion(options=["one", "two", "three", "four", "five"])
    forms = question_forms(question, rotations=5)
    assert len(forms) == 5
    for place in range(5):
        labels = [form.metric.scale.labels[form.order[place]] for form in forms]
        assert sorted(labels) == ["A", "B", "C", "D", "E"]
        for form, label in zip(forms, labels, strict=True):
            assert f"\n{label}. {question.options[place].value}\n" in form.text


def test_rotations_are_spread_evenly_and_never_more_than_there_are():
    question = ChoiceQuestion(options=["a", "b", "c", "d"])
    assert [form.order[0] for form in question_forms(question, rotations=2)] == [0, 2]
    assert len(question_forms(question, rotations=100)) == 4
    assert len(question_forms(PredicateQuestion(instructions="x"), rotations=9)) == 2
    assert len(question_forms(ScoreQuestion(levels=["a", "b", "c"]), rotations=9)) == 2
    with pytest.raises(QuestionError, match="at least one order"):
        question_forms(question, rotations=0)


def test_a_questions_own_rotations_go_before_the_calls():
    question = ChoiceQuestion(options=["a", "b", "c"], rotations=3)
    assert len(question_forms(question, rotations=1)) == 3


def test_a_score_shown_downwards_keeps_its_numbers():
    up, down = question_forms(ScoreQuestion(levels=["low", "middle", "high"]), rotations=2)
    assert "1. low\n2. middle\n3. high" in up.text
    assert "3. high\n2. middle\n1. low" in down.text
    assert up.order == down.order == (0, 1, 2)


def test_levels_that_are_numbers_are_their_own_labels():
    (form,) = question_forms(ScoreQuestion(levels=list(range(11))))
    assert form.metric.scale.labels == tuple(str(number) for number in range(11))
    assert "1. 0" not in form.text


@pytest.mark.parametrize("levels", [["1", "5", "10"], ["2", "1"], ["01", "02"], ["low", "1"]])
def test_other_numbers_are_names_of_levels_only(levels):
    (form,) = question_forms(ScoreQuestion(levels=levels))
    assert form.metric.scale.labels == tuple(str(number) for number in range(1, len(levels) + 1))


@pytest.mark.parametrize("count", [2, 26, 27, 255])
def test_letters_go_as_far_as_the_alphabet(count):
    (form,) = question_forms(ChoiceQuestion(options=[f"option {number}" for number in range(count)]))
    labels = form.metric.scale.labels
    assert len(labels) == count
    assert labels[0] == ("A" if count <= 26 else "1")
    assert f"\n{labels[-1]}. option {count - 1}\n" in form.text


def test_forms_of_questions_with_the_same_labels_are_one():
    first, second = (question_forms(PredicateQuestion(instructions=word))[0] for word in ("x", "y"))
    assert first.metric is second.metric


def test_an_option_cannot_open_another_one():
    (form,) = question_forms(ChoiceQuestion(options={"a\nB. c": "d\u2028C. e", "f": None}))
    assert "\nA. a B. c: d C. e\nB. f\n" in form.text


def test_braces_in_texts_are_text():
    (form,) = question_forms(PredicateQuestion(instructions="{{state}} is {question}."))
    assert "{{state}} is {question}." in text(form, "{{question}}")
    assert text(form, "{{question}}").count("{{question}}") == 1


@pytest.mark.parametrize("marks", ["words", "letters", "numbers"])
def test_the_name_is_not_shown(marks):
    for question in (PredicateQuestion(name="NAME", instructions="x"), ChoiceQuestion(name="NAME", options=["a", "b"])):
        assert all("NAME" not in text(form) for form in question_forms(question, rotations=2, marks=marks))


def test_a_described_predicate_needs_no_statement():
    (form,) = question_forms(PredicateQuestion(if_true="It is advertising."))
    assert "Yes: It is advertising." in form.text


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("A text.\n", "A text.\n"),
        ("", "(none)"),
        (" \n", "(none)"),
        ({}, "(none)"),
        ([], "(none)"),
        ({"message": "Hi\nthere", "days": 3}, "message:\nHi\nthere\n\ndays:\n3"),
        (["a", {"b": "é"}], '["a", {"b": "é"}]'),
        ([{"role": "cook", "name": "Ann"}], '[{"role": "cook", "name": "Ann"}]'),
        (
            [{"role": "user", "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}]}],
            "User: Hi \nyou",
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": "Wait.",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "content": "done"},
            ],
            "Assistant: Wait.\n[calls f({})]\n\nTool: done",
        ),
        (
            [
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
                {"type": "function_call_output", "call_id": "1", "output": "ok"},
            ],
            'Assistant: [calls f({"a": 1})]\n\nTool: ok',
        ),
    ],
)
def test_evidence_as_text(state, expected):
    assert state_text(state) == expected


@pytest.mark.parametrize("state", [None, 7, b"x", {"a": {1, 2}}, {"a": math.nan}])
def test_evidence_that_is_none(state):
    with pytest.raises(QuestionError):
        state_text(state)


def test_evidence_with_a_photo_is_none():
    said = [{"role": "user", "content": "Hi"}, {"role": "user", "content": [{"type": "image_url"}]}]
    with pytest.raises(QuestionError, match="message 2, part 1 of the content is image_url, not text"):
        state_text(said)


def test_evidence_tells_what_a_tool_returned_from_what_the_user_says():
    parts = [{"type": "tool_result", "tool_use_id": "c", "content": "gold"}, {"type": "text", "text": "And?"}]
    assert state_text([{"role": "user", "content": parts}]) == "Tool: gold\n\nUser: And?"
    custom = {"type": "custom_tool_call", "call_id": "1", "name": "f", "input": "x"}
    answer = {"type": "custom_tool_call_output", "call_id": "1", "output": "ok"}
    assert state_text([custom, answer]) == "Assistant: [calls f(x)]\n\nTool: ok"


# --- derived figures --------------------------------------------------------------------------------------------------


def test_confidence_by_hand():
    assert choice_confidence([0.25] * 4) == 0
    assert choice_confidence([1, 0, 0]) == 1
    assert choice_confidence([1.0]) == score_confidence([1.0]) == 1
    assert choice_confidence([0.7, 0.2, 0.1]) == pytest.approx((3 * 0.7 - 1) / 2)
    assert score_confidence([0, 1, 0]) == 1
    # Even over 3: distances to the lowest are 0, 1, 2, mean 1; even spread around the middle 2/3; below 0 is 0.
    assert score_confidence([1 / 3] * 3) == 0
    assert score_confidence([0.1, 0.8, 0.1]) == pytest.approx(1 - 0.2 / (2 / 3))
    assert score_confidence([0.5, 0.0, 0.5]) == 0


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=20))
def test_confidence_stays_in_its_interval(weights):
    p = np.array(weights) / sum(weights)
    assert 0 <= choice_confidence(p) <= 1
    assert 0 <= score_confidence(p) <= 1


def test_an_answer_is_the_mean_over_its_orders_and_reports_their_spread():
    question = ChoiceQuestion(name="q", options=["a", True, "true"])
    answer = make_answer(question, [np.array([0.2, 0.5, 0.3]), np.array([0.4, 0.5, 0.1])], [0.9, 0.7], prompt_tokens=8)
    assert isinstance(answer, ChoiceAnswer)
    assert answer.p == pytest.approx((0.3, 0.5, 0.2))
    assert answer.choice is True
    assert answer.spread == pytest.approx(0.2)
    assert answer.label_mass == pytest.approx(0.8)
    record = json.loads(json.dumps(answer.to_dict()))
    assert record["choice"] is True
    assert [item["value"] for item in record["probabilities"]] == ["a", True, "true"]
    assert sum(item["probability"] for item in record["probabilities"]) == pytest.approx(1, abs=1e-15)


def test_score_and_probability():
    score = make_answer(ScoreQuestion(levels=["a", "b", "c"]), [np.array([0.2, 0.3, 0.5])], [1.0])
    assert isinstance(score, ScoreAnswer)
    assert score.score == pytest.approx(1.3)
    assert score.spread is None
    predicate = make_answer(PredicateQuestion(instructions="x"), [np.array([0.2, 0.8])], [1.0])
    assert isinstance(predicate, PredicateAnswer)
    assert predicate.probability == pytest.approx(0.2)


def test_an_unanswered_question_says_why_and_has_no_figures():
    answer = unanswered(ScoreQuestion(levels=["a", "b"]), Cause("too long", ErrorCode.TOO_LONG))
    assert answer.to_dict() == {"type": "score", "error": "too long", "error_code": "too_long", "prompt_tokens": 0}
    for figure in ("score", "confidence", "probabilities"):
        with pytest.raises(ValueError, match="too long"):
            getattr(answer, figure)
