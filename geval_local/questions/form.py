"""The form for questions: the evidence first, the question last, answered by one short label. Pure.

All evidence shares the introduction, and all questions about one piece of evidence share its text, so that the
prompt trie computes both once. A question's form is a metric's: a template with two fields, and a scale of labels, so
that encoding, label trie, engine and audit are the same as for scores.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from geval_local.conversation import is_messages, read_turns, written
from geval_local.errors import QuestionError
from geval_local.metric import Metric
from geval_local.questions.question import ChoiceQuestion, PredicateQuestion, Question, ScoreQuestion
from geval_local.scale import Scale

#: Kind of labels that mark the outcomes and serve as answers.
Marks = Literal["words", "letters", "numbers"]

TEMPLATE = """\
You will be given some evidence and a question about it. Answer the question from the evidence alone.

Evidence:

{{state}}

{{question}}

Answer:"""
NO_STATE = "(none)"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_INTEGER = re.compile(r"-?\d{1,3}")
_BREAK = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")


@dataclass(frozen=True)
class QuestionForm:
    """A question in one order of its outcomes."""

    #: The form itself, the same for all questions with the same labels; its fields are ``state`` and ``question``.
    metric: Metric
    #: Text for the field ``question``.
    text: str
    #: For every outcome of the question, the index of its label in the metric's scale.
    order: tuple[int, ...]


def question_forms(question: Question, *, rotations: int = 1, marks: Marks | None = None) -> tuple[QuestionForm, ...]:
    """Build a question's forms, one for each order of its outcomes."""
    wanted = rotations if question.rotations is None else question.rotations
    if wanted < 1:
        raise QuestionError(f"a question is shown in at least one order, not in {wanted}")
    if isinstance(question, PredicateQuestion):
        return tuple(_predicate(question, shown, marks or "words") for shown in _both((0, 1), wanted))
    if isinstance(question, ScoreQuestion):
        return tuple(
            _score(question, shown, marks or "numbers") for shown in _both(tuple(range(len(question.levels))), wanted)
        )
    count = len(question.options)
    orders = order_count(question, rotations)
    starts = [number * count // orders for number in range(orders)]
    return tuple(
        _choice(question, tuple((start + place) % count for place in range(count)), marks or "letters")
        for start in starts
    )


def order_count(question: Question, rotations: int) -> int:
    """Count the orders in which `question_forms` would show a question."""
    wanted = rotations if question.rotations is None else question.rotations
    return min(wanted, len(question.options) if isinstance(question, ChoiceQuestion) else 2)


def forms_hash(forms: Sequence[QuestionForm]) -> str:
    """Hash (16 hex digits) of all that the prompts of a question and its labels are made from; its name is no part."""
    record = [[form.metric.template, form.metric.scale.labels, form.text, form.order] for form in forms]
    return hashlib.sha256(json.dumps(record, ensure_ascii=True).encode()).hexdigest()[:16]


def _both(outcomes: tuple[int, ...], wanted: int) -> tuple[tuple[int, ...], ...]:
    return (outcomes, outcomes[::-1]) if wanted > 1 else (outcomes,)


def _predicate(question: PredicateQuestion, shown: tuple[int, ...], marks: Marks) -> QuestionForm:
    """Build a predicate's form; `shown` lists the outcomes in display order, 0 is true."""
    texts = (_line(question.if_true), _line(question.if_false))
    asked = question.instructions.strip()
    heading = "Question" if asked.endswith("?") or not asked else "Statement"
    request = "" if heading == "Question" else "Is the statement true? "
    if not asked:
        asked = "Which of these fits the evidence?"
    blocks = [f"{heading}: {asked}"]
    if marks == "words":
        words = ("Yes", "No")
        described = [f"{words[outcome]}: {texts[outcome]}" for outcome in shown if texts[outcome]]
        blocks += ["\n".join(described)] if described else []
        first, second = (words[outcome] for outcome in shown)
        # The labels keep their indices: the order of display does not change them.
        return QuestionForm(_form(words), "\n\n".join([*blocks, f"{request}Answer {first} or {second}."]), (0, 1))
    names = ("Yes", "No") if heading == "Question" else ("True", "False")
    lines = [f"{names[outcome]}: {texts[outcome]}" if texts[outcome] else names[outcome] for outcome in shown]
    return _listed(blocks, lines, shown, marks, request)


def _choice(question: ChoiceQuestion, shown: tuple[int, ...], marks: Marks) -> QuestionForm:
    options = [question.options[outcome] for outcome in shown]
    lines = [_described(_value(option.value), option.description) for option in options]
    asked = question.instructions.strip() or "Which of these fits the evidence best?"
    return _listed([f"Question: {asked}"], lines, shown, marks, "")


def _score(question: ScoreQuestion, shown: tuple[int, ...], marks: Marks) -> QuestionForm:
    asked = question.instructions.strip() or "Which level fits the evidence best?"
    blocks = [f"Question: {asked}"]
    labels = [level.label.strip() for level in question.levels]
    lines = [_described(labels[outcome], question.levels[outcome].description) for outcome in shown]
    if marks == "letters":
        return _listed(blocks, lines, shown, marks, "")
    # A number belongs to its level in either order of the list. Where the levels are already named by numbers, other
    # numbers before them would be misread.
    numbers = labels
    if marks != "numbers" or not _is_run(labels):
        numbers = [str(number) for number in range(1, len(labels) + 1)]
        lines = [f"{numbers[outcome]}. {line}" for outcome, line in zip(shown, lines, strict=True)]
    request = f"Answer with one of the numbers {numbers[shown[0]]} to {numbers[shown[-1]]}."
    text = "\n\n".join([*blocks, "\n".join(lines), request])
    return QuestionForm(_form(tuple(numbers)), text, tuple(range(len(numbers))))


def _is_run(labels: Sequence[str]) -> bool:
    """Whether labels are whole numbers that count upwards, such as 0 to 10."""
    if not all(map(_INTEGER.fullmatch, labels)):
        return False
    first = int(labels[0])
    return list(labels) == [str(first + place) for place in range(len(labels))]


def _listed(
    blocks: list[str], lines: Sequence[str], shown: tuple[int, ...], marks: Marks, request: str
) -> QuestionForm:
    """List the outcomes, each after the letter or number of its position in the list."""
    letters = marks == "letters" and len(lines) <= len(LETTERS)
    labels = tuple(LETTERS[: len(lines)]) if letters else tuple(str(place) for place in range(1, len(lines) + 1))
    listed = "\n".join(f"{label}. {line}" for label, line in zip(labels, lines, strict=True))
    ending = f"{request}Answer with the {'letter' if letters else 'number'} of one of them."
    places = tuple(place for _, place in sorted((outcome, place) for place, outcome in enumerate(shown)))
    return QuestionForm(_form(labels), "\n\n".join([*blocks, listed, ending]), places)


@lru_cache(maxsize=1024)
def _form(labels: tuple[str, ...]) -> Metric:
    # A scale has at least two labels; the second label of a one-item list is never used.
    labels = labels if len(labels) > 1 else (labels[0], "B" if labels[0] == "A" else "2")
    return Metric(
        name=f"question/{len(labels)}",
        title="Question",
        criteria="",
        fields={"state": "Evidence", "question": "Question"},
        scale=Scale(labels, tuple(float(place) for place in range(len(labels)))),
        template=TEMPLATE,
        case_variants=False,  # the form shows the labels; a small "a" is more often an article than an answer
    )


def state_text(state: Any) -> str:
    """Convert evidence to text."""
    if isinstance(state, str):
        return state if state.strip() else NO_STATE
    if isinstance(state, Mapping):
        return "\n\n".join(f"{key}:\n{_content(value)}" for key, value in state.items()) or NO_STATE
    if isinstance(state, Sequence) and not isinstance(state, bytes):
        turns = read_turns("state", state, "the evidence") if is_messages(state) else []
        if not turns or not all(turn.role for turn in turns):
            return _json(list(state)) if state else NO_STATE
        if (lost := next((turn.lost for turn in turns if turn.lost is not None), None)) is not None:
            raise QuestionError(lost.message, hint=lost.hint)
        return written(turns)
    raise QuestionError(f"evidence is text, a mapping or a list, not {type(state).__name__}")


def _content(value: Any) -> str:
    """Format the value of a key: text, parts with text, or anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and value and all(isinstance(part, Mapping) and "text" in part for part in value):
        return "".join(str(part["text"]) for part in value)
    return _json(value)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise QuestionError(f"evidence cannot be written as JSON: {error}") from error


def _value(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _described(name: str, description: str | None) -> str:
    text = _line(description)
    name = _line(name) or '""'
    return f"{name}: {text}" if text else name


def _line(text: str | None) -> str:
    """Keep an option on one line: a line break in it could open another option."""
    # Not by one expression with the spaces around a break: over a run of spaces it takes time by the square of them.
    return " ".join(filter(None, map(str.strip, _BREAK.split(text or ""))))
