"""TypeSafe's dialect of decisions: ``POST /v1/systemone``, as sent and read by typesafe-sdk 0.7."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, WithJsonSchema, model_validator
from typing_extensions import NotRequired, TypedDict

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
from geval_local.serve.refusals import Refused, Strict

__all__ = ["SystemOneAnswer", "SystemOneRequest", "write_answer"]

MAX_SCORE_LEVELS = 10
MAX_QUESTIONS = 4096


# --- the request ------------------------------------------------------------------------------------------------------


def _is_text(given: Any) -> Any:
    if not isinstance(given, str | dict | list):
        raise ValueError("a text, an object or an array is needed")
    return given


def _is_small(given: Any) -> Any:
    """Refuse a large mapping before its parts are looked at."""
    if isinstance(given, dict) and not 1 <= len(given) <= MAX_OPTIONS:
        raise ValueError(f"criteria map 1 to {MAX_OPTIONS} labels to descriptions, not {len(given)}")
    return given


def _no_assets(given: Any) -> Any:
    if given is not None:
        raise ValueError("images and other assets cannot be read: this server's models read text only")
    return given


_Text = Annotated[Any, AfterValidator(_is_text), WithJsonSchema({"type": ["string", "object", "array"]})]


class _Outcomes(Strict):
    true: _Text | None = None
    false: _Text | None = None


class _Noul(Strict):
    type: Literal["noul"]
    instructions: _Text | None = None
    criteria: _Outcomes | None = None

    @model_validator(mode="after")
    def _check(self) -> _Noul:
        described = self.criteria or _Outcomes()
        texts = (_instructions(self.instructions), _line(described.true), _line(described.false))
        if not any(text and text.strip() for text in texts):
            raise ValueError("a noul needs instructions or a described outcome")
        return self

    def asked(self, name: str) -> Question:
        described = self.criteria or _Outcomes()
        return PredicateQuestion(
            name=name,
            instructions=_instructions(self.instructions),
            if_true=_line(described.true),
            if_false=_line(described.false),
        )


class _Choice(Strict):
    type: Literal["choice"]
    instructions: _Text | None = None
    criteria: Annotated[
        dict[str, _Text | None],
        Field(min_length=1, max_length=MAX_OPTIONS),
        BeforeValidator(_is_small),
    ]

    def asked(self, name: str) -> Question:
        options = tuple(Option(value=label, description=_line(value)) for label, value in self.criteria.items())
        # The dialect allows one-item lists: they are handled the same way, with a certain answer.
        make = ChoiceQuestion if len(options) > 1 else ChoiceQuestion.model_construct
        return make(name=name, instructions=_instructions(self.instructions), options=options)


class _Score(Strict):
    type: Literal["score"]
    instructions: _Text | None = None
    criteria: Annotated[list[_Text], Field(min_length=1, max_length=MAX_SCORE_LEVELS, fail_fast=True)]

    def asked(self, name: str) -> Question:
        levels = tuple(Level(label=_line(value) or "") for value in self.criteria)
        make = ScoreQuestion if len(levels) > 1 else ScoreQuestion.model_construct
        return make(name=name, instructions=_instructions(self.instructions), levels=levels)


class SystemOneRequest(Strict):
    """Named questions about one state; `rotations` is an extension of this server."""

    model: str
    state: _Text
    questions: Annotated[
        dict[str, Annotated[_Noul | _Choice | _Score, Discriminator("type")]],
        Field(min_length=1, max_length=MAX_QUESTIONS),
    ]
    assets: Annotated[None, BeforeValidator(_no_assets)] = None
    rotations: Annotated[int, Field(ge=1, le=MAX_OPTIONS)] | None = None

    def asked(self) -> tuple[Any, list[Question]]:
        """Return the evidence and the questions."""
        return self.state, [question.asked(name) for name, question in self.questions.items()]


def _instructions(value: Any) -> str:
    """Read instructions: a text, a list of texts, or anything else, formatted like evidence."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(value)
    return state_text(value) if value else ""


def _line(value: Any) -> str | None:
    """Read a description: a text, or JSON on one line."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- the answer -------------------------------------------------------------------------------------------------------


class _Said(TypedDict):
    x_label_mass: float
    x_spread: NotRequired[float]


class _NoulAnswer(_Said):
    type: Literal["noul"]
    noul: float


class _ChoiceAnswer(_Said):
    type: Literal["choice"]
    choice: str
    confidence: float
    probabilities: dict[str, float]


class _ScoreAnswer(_Said):
    type: Literal["score"]
    score: float
    confidence: float
    legend: dict[str, Any]
    probabilities: dict[str, float]


class SystemOneAnswer(TypedDict):
    """One answer per question, by its name."""

    model: str
    answers: dict[str, Annotated[_NoulAnswer | _ChoiceAnswer | _ScoreAnswer, Discriminator("type")]]
    usage: dict[str, int]


def write_answer(decision: Decision, model: str, request: SystemOneRequest) -> dict[str, Any]:
    """Build the response."""
    for answer in decision:
        if answer.is_too_long:
            raise Refused(str(answer.error), 400, code="max_tokens_exceeded")
        if not answer.is_answered:
            raise Refused(f"a question has no answer: {answer.error}", 422)
    return {
        "model": model,
        "answers": {
            name: _answer(answer, question.criteria)
            for (name, question), answer in zip(request.questions.items(), decision, strict=True)
        },
        "usage": {"input_tokens": decision.tokens, "output_tokens": len(decision)},
    }


def _answer(answer: Any, criteria: Any) -> dict[str, Any]:
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
        "legend": {str(place): level for place, level in enumerate(criteria)},
        "probabilities": {str(place): p for place, p in enumerate(answer.p)},
        **extra,
    }
