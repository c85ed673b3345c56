"""TypeSafe's dialect of decisions: ``POST /v1/systemone``, as sent and read by typesafe-sdk 0.7."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from geval_local.questions.answer import ChoiceAnswer, Decision, PredicateAnswer
from geval_local.questions.form import state_text
from geval_local.questions.question import (
    MAX_OPTIONS,
    ChoiceQuestion,
    Level,
    Option,
    PredicateQuestion,
    Question,
    ScoreQuestion,
)
from geval_local.serve.refusals import Refused

__all__ = ["read_request", "write_answer"]

MAX_SCORE_LEVELS = 10
MAX_QUESTIONS = 4096
_FIELDS = ("model", "state", "questions", "assets", "rotations")
_QUESTION_FIELDS = {"type", "instructions", "criteria"}

_Loc = tuple[str | int, ...]


def read_request(body: Mapping[str, Any]) -> tuple[Any, list[Question], int | None]:
    """Parse the request; parameters, results and errors as in `openai.read_request`."""
    for field in ("state", "questions"):
        if field not in body:
            raise _refused("Field required", field, rule="missing")
    for field in body:
        if field not in _FIELDS:
            raise _refused("unknown field", field[:40], rule="extra_forbidden")
    if body.get("assets") is not None:
        raise _refused("images and other assets cannot be read: this server's models read text only", "assets")
    rotations = body.get("rotations")
    if rotations is not None and (type(rotations) is not int or not 1 <= rotations <= MAX_OPTIONS):
        raise _refused(f"rotations is a number from 1 to {MAX_OPTIONS}", "rotations")
    state = body["state"]
    if not isinstance(state, str | dict | list):
        raise _refused("state is a text, an object or an array", "state")
    questions = body["questions"]
    if not isinstance(questions, dict) or not 1 <= len(questions) <= MAX_QUESTIONS:
        raise _refused(f"questions is an object of 1 to {MAX_QUESTIONS} named questions", "questions", rule="too_short")
    return state, [_question(name, item) for name, item in questions.items()], rotations


def write_answer(decision: Decision, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Build the response.

    Raises
    ------
    Refused
        If a question with its evidence exceeds the judge's context, or a question has no answer.
    """
    for answer in decision:
        if answer.is_too_long:
            raise Refused(str(answer.error), 400, code="max_tokens_exceeded")
        if not answer.is_answered:
            raise Refused(f"a question has no answer: {answer.error}", 422)
    return {
        "model": model,
        "answers": {
            name: _answer(answer, body["questions"][name])
            for name, answer in zip(body["questions"], decision, strict=True)
        },
        "usage": {"input_tokens": decision.tokens, "output_tokens": len(decision)},
    }


def _answer(answer: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = {"x_label_mass": answer.label_mass}
    if answer.spread is not None:
        extra["x_spread"] = answer.spread
    if isinstance(answer, PredicateAnswer):
        return {"type": "noul", "noul": answer.probability, **extra}
    if isinstance(answer, ChoiceAnswer):
        return {
            "type": "choice",
            "choice": answer.choice,
            "confidence": answer.confidence,
            "probabilities": dict(answer.probabilities),
            **extra,
        }
    return {
        "type": "score",
        "score": answer.score,
        "confidence": answer.confidence,
        "legend": {str(place): level for place, level in enumerate(asked["criteria"])},
        "probabilities": {str(place): p for place, p in enumerate(answer.p)},
        **extra,
    }


def _question(name: str, item: Any) -> Question:
    place: _Loc = ("questions", name)
    if not isinstance(item, dict):
        raise _refused("a question is an object", *place)
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in ("noul", "choice", "score"):
        image = "; a box needs an image, and this server's models read text only" if kind == "box" else ""
        raise _refused(
            f"the type of a question is noul, choice or score{image}", *place, "type", rule="union_tag_invalid"
        )
    for field in item:
        if field not in _QUESTION_FIELDS:
            raise _refused("unknown field", *place, kind, field[:40], rule="extra_forbidden")
    text = _instructions(item.get("instructions"), (*place, kind, "instructions"))
    criteria, where = item.get("criteria"), (*place, kind, "criteria")
    if kind == "noul":
        if not (criteria is None or (isinstance(criteria, dict) and criteria.keys() <= {"true", "false"})):
            raise _refused("criteria describe true and false", *where)
        described = {key: _line(value, (*where, key)) for key, value in (criteria or {}).items()}
        if not text.strip() and not any(value and value.strip() for value in described.values()):
            raise _refused("a noul needs instructions or a described outcome", *place, kind)
        return PredicateQuestion(
            name=name, instructions=text, if_true=described.get("true"), if_false=described.get("false")
        )
    if kind == "choice":
        if not isinstance(criteria, dict) or not 1 <= len(criteria) <= MAX_OPTIONS:
            rule = "missing" if criteria is None else "value_error"
            raise _refused(f"criteria map 1 to {MAX_OPTIONS} labels to descriptions", *where, rule=rule)
        options = tuple(
            Option(value=label, description=_line(value, (*where, label))) for label, value in criteria.items()
        )
        # The dialect allows one-item lists: they are handled the same way, with a certain answer.
        make = ChoiceQuestion if len(options) > 1 else ChoiceQuestion.model_construct
        return make(name=name, instructions=text, options=options)
    if not isinstance(criteria, list) or not 1 <= len(criteria) <= MAX_SCORE_LEVELS:
        rule = "missing" if criteria is None else "value_error"
        raise _refused(f"criteria list 1 to {MAX_SCORE_LEVELS} levels, lowest first", *where, rule=rule)
    levels = tuple(
        Level(label=_line(value, (*where, number), is_needed=True) or "") for number, value in enumerate(criteria)
    )
    make_score = ScoreQuestion if len(levels) > 1 else ScoreQuestion.model_construct
    return make_score(name=name, instructions=text, levels=levels)


def _instructions(value: Any, loc: _Loc) -> str:
    """Read instructions: a text, a list of texts, or anything else, formatted like evidence."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, dict | list):
        raise _refused("a text, an object or an array is needed", *loc)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return state_text(value) if value else ""


def _line(value: Any, loc: _Loc, *, is_needed: bool = False) -> str | None:
    """Read a description: a text, or JSON on one line."""
    if isinstance(value, str) or (value is None and not is_needed):
        return value
    if not isinstance(value, dict | list):
        raise _refused("a text, an object or an array is needed", *loc)
    return json.dumps(value, ensure_ascii=False)


def _refused(message: str, *loc: str | int, rule: str = "value_error") -> Refused:
    place: Sequence[str | int] = ("body", *loc)
    return Refused(message, 422, loc=place, rule=rule)
