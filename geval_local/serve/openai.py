"""OpenAI's dialect of decisions: ``POST /v1/decisions``, as sent and read by openai-python 3.54."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
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
from geval_local.serve.bodies import check_json_part
from geval_local.serve.refusals import Refused, Strict

__all__ = ["DecisionsAnswer", "DecisionsRequest", "write_answer"]

MAX_QUESTIONS = 400
MAX_ITEMS = 131_072
#: OpenAI's limit; a longer scale is a choice, or a question in Python.
MAX_SCORE_LEVELS = 10

_T = TypeVar("_T")


class _Open(BaseModel):
    """A part of the evidence: clients send fields that say nothing to a local model, such as ids and cache marks."""

    model_config = ConfigDict(strict=True, frozen=True)


# --- the request: evidence --------------------------------------------------------------------------------------------


class _InputText(_Open):
    type: Literal["input_text"]
    text: str


class _OutputText(_Open):
    type: Literal["output_text"]
    text: str


class _Refusal(_Open):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


class _Json(_Open):
    type: Literal["input_json"]
    data: Annotated[Any, AfterValidator(check_json_part), WithJsonSchema({"type": ["object", "array"]})]

    @property
    def text(self) -> str:
        return json.dumps(self.data, ensure_ascii=False)


#: A text, or parts of some kinds that make one together.
_Text = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[_T], Field(min_length=1, fail_fast=True), Tag("parts")],
    Discriminator(
        lambda given: {str: "text", list: "parts"}.get(type(given)),
        custom_error_type="text_or_list",
        custom_error_message="a text or a list of parts is needed",
    ),
]
_Said = Annotated[_InputText | _Json, Discriminator("type")]


class _User(_Open):
    type: Literal["message"] = "message"
    role: Literal["user"]
    content: _Text[_Said]


class _System(_Open):
    type: Literal["message"] = "message"
    role: Literal["system", "developer"]
    content: _Text[_InputText]


class _Assistant(_Open):
    type: Literal["message"] = "message"
    role: Literal["assistant"]
    content: _Text[Annotated[_OutputText | _Refusal, Discriminator("type")]]


class _Call(_Open):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class _CustomCall(_Open):
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str


class _Output(_Open):
    type: Literal["function_call_output"]
    call_id: str
    output: _Text[_InputText]


class _CustomOutput(_Open):
    type: Literal["custom_tool_call_output"]
    call_id: str
    output: _Text[_InputText]


_Message = Annotated[_User | _System | _Assistant, Discriminator("role")]
_Item = Annotated[
    Annotated[_Message, Tag("message")]
    | Annotated[_Call, Tag("function_call")]
    | Annotated[_Output, Tag("function_call_output")]
    | Annotated[_CustomCall, Tag("custom_tool_call")]
    | Annotated[_CustomOutput, Tag("custom_tool_call_output")],
    Discriminator(lambda given: str(given.get("type", "message")) if isinstance(given, dict) else None),
]
_Evidence = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[_Item], Field(min_length=1, max_length=MAX_ITEMS, fail_fast=True), Tag("items")],
    Discriminator(
        lambda given: {str: "text", list: "items"}.get(type(given)),
        custom_error_type="text_or_list",
        custom_error_message="a text or a list of items is needed",
    ),
]


# --- the request: questions -------------------------------------------------------------------------------------------


def _all_different(given: list[Any]) -> list[Any]:
    seen = set()
    for place, choice in enumerate(given):
        if (type(choice.value), choice.value) in seen:
            raise ValueError(f"the choice in place {place} occurs twice")
        seen.add((type(choice.value), choice.value))
    return given


def _is_value(given: Any) -> Any:
    if not isinstance(given, str | bool):
        raise ValueError("the value of a choice is a text or a boolean")
    return given


class _Choice(Strict):
    value: Annotated[Any, AfterValidator(_is_value), WithJsonSchema({"type": ["string", "boolean"]})]
    description: str | None = None


class _Level(Strict):
    label: str
    description: str | None = None


class _Predicate(Strict):
    type: Literal["predicate"]
    name: str | None = None
    instructions: _Text[_Said]

    def asked(self) -> Question:
        return PredicateQuestion(name=self.name, instructions=_plain(self.instructions))


class _ChoiceOf(Strict):
    type: Literal["choice"]
    name: str | None = None
    instructions: _Text[_Said]
    choices: Annotated[
        list[_Choice], Field(min_length=2, max_length=MAX_OPTIONS, fail_fast=True), AfterValidator(_all_different)
    ]

    def asked(self) -> Question:
        options = tuple(Option(value=one.value, description=one.description) for one in self.choices)
        return ChoiceQuestion(name=self.name, instructions=_plain(self.instructions), options=options)


class _ScoreOf(Strict):
    type: Literal["score"]
    name: str | None = None
    instructions: _Text[_Said]
    levels: Annotated[list[_Level], Field(min_length=2, max_length=MAX_SCORE_LEVELS, fail_fast=True)]

    def asked(self) -> Question:
        levels = tuple(Level(label=one.label, description=one.description) for one in self.levels)
        return ScoreQuestion(name=self.name, instructions=_plain(self.instructions), levels=levels)


def _refuse_sglang(given: Any) -> Any:
    if isinstance(given, dict) and "instructions" not in given and ("question" in given or "id" in given):
        raise ValueError(
            "this looks like SGLang's dialect (id, question); here OpenAI's is served: name, type, instructions"
        )
    return given


_Question = Annotated[_Predicate | _ChoiceOf | _ScoreOf, Discriminator("type")]


class DecisionsRequest(Strict):
    """Questions about one piece of evidence; `rotations` is an extension of this server."""

    model: str
    input: _Evidence
    questions: Annotated[
        list[Annotated[_Question, BeforeValidator(_refuse_sglang)]],
        Field(min_length=1, max_length=MAX_QUESTIONS, fail_fast=True),
    ]
    prompt_cache_key: Annotated[str, Field(max_length=64)] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    rotations: Annotated[int, Field(ge=1, le=MAX_OPTIONS)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_system_one(cls, given: Any) -> Any:
        if isinstance(given, dict) and ("state" in given or isinstance(given.get("questions"), dict)):
            raise ValueError(
                "this looks like System One's dialect (state, named questions): POST it to /v1/systemone; "
                "here are input, and questions as a list"
            )
        return given

    def asked(self) -> tuple[Any, list[Question]]:
        """Return the evidence and the questions."""
        names: set[str] = set()
        found = []
        for place, question in enumerate(self.questions):
            if question.name is not None and question.name in names:
                raise Refused("the name of a question occurs twice", param=f"questions[{place}].name")
            names |= {question.name} if question.name is not None else set()
            if question.type == "predicate" and not _plain(question.instructions).strip():
                where = f"questions[{place}].instructions"
                raise Refused("the instructions of a predicate are not blank", param=where)
            found.append(question.asked())
        return self._state(), found

    def _state(self) -> Any:
        if isinstance(self.input, str):
            return self.input
        calls: set[tuple[str, str]] = set()
        turns: list[dict[str, Any]] = []
        for place, item in enumerate(self.input):
            if isinstance(item, _Call | _CustomCall):
                calls.add((f"{item.type}_output", item.call_id))
                turns.append(item.model_dump(exclude={"call_id"}))
            elif isinstance(item, _Output | _CustomOutput):
                if (item.type, item.call_id) not in calls:
                    before = item.type.removesuffix("_output")
                    raise Refused(f"this needs the call_id of an earlier {before}", param=f"input[{place}].call_id")
                turns.append({"type": item.type, "output": _plain(item.output)})
            else:
                turns.append({"role": item.role, "content": _plain(item.content)})
        return turns[0]["content"] if len(turns) == 1 and turns[0].get("role") == "user" else state_text(turns)


def _plain(text: Any) -> str:
    return text if isinstance(text, str) else "".join(part.text for part in text)


# --- the answer -------------------------------------------------------------------------------------------------------


class _Named(TypedDict):
    name: str | None


class _Sure(_Named):
    confidence: float
    label_mass: float
    spread: NotRequired[float]


class _PredicateAnswer(_Named):
    type: Literal["predicate"]
    probability: float
    label_mass: float
    spread: NotRequired[float]


class _OfChoice(TypedDict):
    value: str | bool
    probability: float


class _ChoiceAnswer(_Sure):
    type: Literal["choice"]
    choice: str | bool
    probabilities: list[_OfChoice]


class _OfLevel(TypedDict):
    value: int
    label: str
    probability: float


class _ScoreAnswer(_Sure):
    type: Literal["score"]
    score: float
    probabilities: list[_OfLevel]


class _Declined(_Named):
    type: Literal["refusal"]


class _Usage(TypedDict):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class DecisionsAnswer(TypedDict):
    """One answer per question, in their order."""

    model: str
    answers: list[Annotated[_PredicateAnswer | _ChoiceAnswer | _ScoreAnswer | _Declined, Discriminator("type")]]
    usage: _Usage


def write_answer(decision: Decision, model: str) -> dict[str, Any]:
    """Build the response."""
    for place, answer in enumerate(decision):
        if answer.is_too_long:
            raise Refused(f"question {place}: {answer.error}", param="input", code="context_length_exceeded")
    output = len(decision)
    return {
        "model": model,
        "answers": [_answer(answer) for answer in decision],
        "usage": {
            "input_tokens": decision.tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": decision.tokens + output,
        },
    }


def _answer(answer: Any) -> dict[str, Any]:
    named = {"type": answer.question.type, "name": answer.name}
    if not answer.is_answered:
        return {"type": "refusal", "name": answer.name}
    extra: dict[str, Any] = {"label_mass": answer.label_mass}
    if answer.spread is not None:
        extra["spread"] = answer.spread
    if isinstance(answer, PredicateAnswer):
        return {**named, "probability": answer.probability, **extra}
    if isinstance(answer, ChoiceAnswer):
        pairs = [{"value": value, "probability": p} for value, p in answer.probabilities]
        return {**named, "choice": answer.choice, "confidence": answer.confidence, "probabilities": pairs, **extra}
    levels = [{"value": n, "label": label, "probability": p} for n, (label, p) in enumerate(answer.probabilities)]
    return {**named, "score": answer.score, "confidence": answer.confidence, "probabilities": levels, **extra}
