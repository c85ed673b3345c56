"""Requests and answers: OpenAI's ``/v1/decisions``, TypeSafe's ``/v1/systemone``, this project's ``/v1/score``.

The first two are as openai-python 3.54 and typesafe-sdk 0.7 send and read them; `rotations` is an extension of this
server. In the third, a metric is scored with its own evaluation steps, or without any: the server writes and keeps no
steps for clients.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Sequence
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

from geval_local.errors import ConfigurationError, ErrorCode
from geval_local.fields import nearest
from geval_local.io.columns import plain
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.metric_file import preset_names
from geval_local.questions.answer import Answer, ChoiceAnswer, Decision, PredicateAnswer
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
from geval_local.score import Score, silence
from geval_local.serve.bodies import Refused, Strict, measure

#: OpenAI's limit. For a longer scale, ask a choice, or use Python.
MAX_SCORE_LEVELS = 10
#: Most rows, and most questions of System One.
MAX_ROWS = 4096
#: Limits of an ``input_json`` part, from openai-python's types.
PART_DEPTH, PART_VALUES, PART_BYTES = 32, 10_000, 256 << 10

_T = TypeVar("_T")
_Rotations = Annotated[int, Field(ge=1, le=MAX_OPTIONS)] | None


def _either(kinds: dict[type, str], message: str) -> Discriminator:
    """Choose a union's member by the value's Python type; `message` is the error for any other type."""
    return Discriminator(
        lambda given: kinds.get(type(given)), custom_error_type="other_type", custom_error_message=message
    )


def _all_different(what: str, key: Callable[[Any], Hashable]) -> AfterValidator:
    """Refuse a list in which two items have the same key, unless that is None."""

    def check(given: list[_T]) -> list[_T]:
        seen = set[Hashable]()
        for place, found in enumerate(map(key, given)):
            if found is not None and found in seen:
                raise ValueError(f"the {what} in place {place} occurs twice")
            seen.add(found)
        return given

    return AfterValidator(check)


def _needs(holds: Callable[[Any], bool], message: str) -> AfterValidator:
    """Refuse a value that is another than it has to be."""

    def check(given: Any) -> Any:
        if not holds(given):
            raise ValueError(message)
        return given

    return AfterValidator(check)


# --- OpenAI's evidence ------------------------------------------------------------------------------------------------


class _Open(BaseModel):
    """A part of the evidence; fields that a local model does not use, such as ids and cache marks, are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


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


def _is_json_part(value: Any) -> Any:
    if not (isinstance(value, dict) or (isinstance(value, list) and all(isinstance(item, dict) for item in value))):
        raise ValueError("data is an object or an array of objects")
    depth, count = measure(value, PART_DEPTH)
    if depth > PART_DEPTH:
        raise ValueError(f"data is nested deeper than {PART_DEPTH} levels")
    if count > PART_VALUES:
        raise ValueError(f"data holds more than {PART_VALUES} values")
    if len(json.dumps(value, ensure_ascii=False).encode()) > PART_BYTES:
        raise ValueError(f"data is larger than {PART_BYTES} bytes")
    return value


class _Json(_Open):
    type: Literal["input_json"]
    data: Annotated[Any, AfterValidator(_is_json_part), WithJsonSchema({"type": ["object", "array"], "items": {}})]

    @property
    def text(self) -> str:
        return json.dumps(self.data, ensure_ascii=False)


#: A text, or parts that are joined into one.
_Text = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[_T], Field(min_length=1, max_length=131_072, fail_fast=True), Tag("parts")],
    _either({str: "text", list: "parts"}, "a text or a list is needed"),
]
_Said = Annotated[_InputText | _Json, Discriminator("type")]


class _Message(_Open):
    type: Literal["message"] = "message"


class _User(_Message):
    role: Literal["user"]
    content: _Text[_Said]


class _System(_Message):
    role: Literal["system", "developer"]
    content: _Text[_InputText]


class _Assistant(_Message):
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
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: _Text[_InputText]


_Item = Annotated[
    Annotated[Annotated[_User | _System | _Assistant, Discriminator("role")], Tag("message")]
    | Annotated[_Call, Tag("function_call")]
    | Annotated[_CustomCall, Tag("custom_tool_call")]
    | Annotated[_Output, Tag("function_call_output")]
    | Annotated[_Output, Tag("custom_tool_call_output")],
    Discriminator(lambda given: str(given.get("type", "message")) if isinstance(given, dict) else None),
]


# --- OpenAI's questions -----------------------------------------------------------------------------------------------


def _refuse_sglang(given: Any) -> Any:
    if isinstance(given, dict) and "instructions" not in given and ("question" in given or "id" in given):
        raise ValueError(
            "this looks like SGLang's dialect (id, question); here OpenAI's is served: name, type, instructions"
        )
    return given


def _joined(text: Any) -> str:
    return text if isinstance(text, str) else "".join(part.text for part in text)


class _Option(Strict):
    value: Annotated[
        Any,
        _needs(lambda given: isinstance(given, str | bool), "the value of a choice is a text or a boolean"),
        WithJsonSchema({"type": ["string", "boolean"]}),
    ]
    description: str | None = None


class _Level(Strict):
    label: str
    description: str | None = None


class _Asked(Strict):
    name: str | None = None
    instructions: _Text[_Said]


class _Predicate(_Asked):
    type: Literal["predicate"]
    instructions: Annotated[
        _Text[_Said],
        _needs(lambda given: bool(_joined(given).strip()), "the instructions of a predicate are not blank"),
    ]

    def asked(self) -> Question:
        return PredicateQuestion(name=self.name, instructions=_joined(self.instructions))


class _Choice(_Asked):
    type: Literal["choice"]
    choices: Annotated[
        list[_Option],
        Field(min_length=2, max_length=MAX_OPTIONS, fail_fast=True),
        _all_different("choice", lambda option: (type(option.value), option.value)),
    ]

    def asked(self) -> Question:
        options = tuple(Option(value=one.value, description=one.description) for one in self.choices)
        return ChoiceQuestion(name=self.name, instructions=_joined(self.instructions), options=options)


class _Score(_Asked):
    type: Literal["score"]
    levels: Annotated[list[_Level], Field(min_length=2, max_length=MAX_SCORE_LEVELS, fail_fast=True)]

    def asked(self) -> Question:
        levels = tuple(Level(label=one.label, description=one.description) for one in self.levels)
        return ScoreQuestion(name=self.name, instructions=_joined(self.instructions), levels=levels)


class DecisionsRequest(Strict):
    """Questions about one piece of evidence, in OpenAI's dialect."""

    model: str
    input: _Text[_Item]
    questions: Annotated[
        list[Annotated[_Predicate | _Choice | _Score, Discriminator("type"), BeforeValidator(_refuse_sglang)]],
        Field(min_length=1, max_length=400, fail_fast=True),
        _all_different("name of the question", lambda question: question.name),
    ]
    prompt_cache_key: Annotated[str, Field(max_length=64)] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    rotations: _Rotations = None

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
        questions = [question.asked() for question in self.questions]
        if isinstance(self.input, str):
            return self.input, questions
        calls: set[tuple[str, str]] = set()
        turns: list[dict[str, Any]] = []
        for place, item in enumerate(self.input):
            if isinstance(item, _Call | _CustomCall):
                calls.add((f"{item.type}_output", item.call_id))
                turns.append(item.model_dump(exclude={"call_id"}))
            elif isinstance(item, _Output):
                if (item.type, item.call_id) not in calls:
                    before = item.type.removesuffix("_output")
                    raise Refused(f"this needs the call_id of an earlier {before}", param=f"input[{place}].call_id")
                turns.append({"type": item.type, "output": _joined(item.output)})
            else:
                turns.append({"role": item.role, "content": _joined(item.content)})
        is_one = len(turns) == 1 and turns[0].get("role") == "user"
        return turns[0]["content"] if is_one else state_text(turns), questions


# --- OpenAI's answer --------------------------------------------------------------------------------------------------


class _Named(TypedDict):
    name: str | None
    label_mass: float
    spread: NotRequired[float]
    warning: NotRequired[str]


class _PredicateAnswer(_Named):
    type: Literal["predicate"]
    probability: float


class _OfOption(TypedDict):
    value: str | bool
    probability: float


class _ChoiceAnswer(_Named):
    type: Literal["choice"]
    choice: str | bool
    confidence: float
    probabilities: list[_OfOption]


class _OfLevel(TypedDict):
    value: int
    label: str
    probability: float


class _ScoreAnswer(_Named):
    type: Literal["score"]
    score: float
    confidence: float
    probabilities: list[_OfLevel]


class _Declined(TypedDict):
    type: Literal["refusal"]
    #: One of `geval_local.errors.ErrorCode`.
    error_code: str
    name: str | None


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


def write_decisions(decision: Decision, model: str) -> dict[str, Any]:
    """Build the response."""
    answers = []
    for place, answer in enumerate(decision):
        if answer.error_code == ErrorCode.TOO_LONG:
            raise Refused(f"question {place}: {answer.error}", param="input", code="context_length_exceeded")
        figures = answer.to_dict() if answer.is_answered else {"type": "refusal", "error_code": answer.error_code}
        # The dialect has no field for the number of prompts.
        kept = {name: value for name, value in figures.items() if name not in ("orders", "prompt_tokens")}
        answers.append({**kept, "name": answer.name, **_warning(answer.label_mass)})
    usage = {
        "input_tokens": decision.tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": len(decision),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": decision.tokens + len(decision),
    }
    return {"model": model, "answers": answers, "usage": usage}


# --- System One -------------------------------------------------------------------------------------------------------


def _is_small(given: Any) -> Any:
    """Refuse a large mapping before its parts are validated."""
    if isinstance(given, dict) and not 1 <= len(given) <= MAX_OPTIONS:
        raise ValueError(f"criteria map 1 to {MAX_OPTIONS} labels to descriptions, not {len(given)}")
    return given


_AnyText = Annotated[
    Any,
    _needs(lambda given: isinstance(given, str | dict | list), "a text, an object or an array is needed"),
    WithJsonSchema({"type": ["string", "object", "array"], "items": {}}),
]


class _Outcomes(Strict):
    true: _AnyText | None = None
    false: _AnyText | None = None


class _Instructed(Strict):
    instructions: _AnyText | None = None

    @property
    def text(self) -> str:
        """A text, a list of texts, or any other JSON value, formatted like evidence."""
        given = self.instructions
        if isinstance(given, list) and all(isinstance(item, str) for item in given):
            return "\n".join(given)
        return given if isinstance(given, str) else state_text(given) if given else ""


class _Noul(_Instructed):
    type: Literal["noul"]
    criteria: _Outcomes | None = None

    @property
    def _described(self) -> dict[str, str | None]:
        outcomes = self.criteria or _Outcomes()
        return {"instructions": self.text, "if_true": _line(outcomes.true), "if_false": _line(outcomes.false)}

    @model_validator(mode="after")
    def _check(self) -> _Noul:
        if not any(text and text.strip() for text in self._described.values()):
            raise ValueError("a noul needs instructions or a described outcome")
        return self

    def asked(self, name: str) -> Question:
        return PredicateQuestion.model_validate({"name": name, **self._described})


class _NamedChoice(_Instructed):
    type: Literal["choice"]
    criteria: Annotated[
        dict[str, _AnyText | None], Field(min_length=1, max_length=MAX_OPTIONS), BeforeValidator(_is_small)
    ]

    def asked(self, name: str) -> Question:
        options = tuple(Option(value=label, description=_line(value)) for label, value in self.criteria.items())
        # The dialect allows one option: its answer has probability 1.
        make = ChoiceQuestion if len(options) > 1 else ChoiceQuestion.model_construct
        return make(name=name, instructions=self.text, options=options)


class _NamedScore(_Instructed):
    type: Literal["score"]
    criteria: Annotated[list[_AnyText], Field(min_length=1, max_length=MAX_SCORE_LEVELS, fail_fast=True)]

    def asked(self, name: str) -> Question:
        levels = tuple(Level(label=_line(value) or "") for value in self.criteria)
        make = ScoreQuestion if len(levels) > 1 else ScoreQuestion.model_construct
        return make(name=name, instructions=self.text, levels=levels)


def _line(value: Any) -> str | None:
    """Read a description: a text, or JSON on one line."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class SystemOneRequest(Strict):
    """Named questions about one state, in System One's dialect."""

    model: str
    state: _AnyText
    questions: Annotated[
        dict[str, Annotated[_Noul | _NamedChoice | _NamedScore, Discriminator("type")]],
        Field(min_length=1, max_length=MAX_ROWS),
    ]
    assets: Annotated[
        Any,
        _needs(
            lambda given: given is None, "images and other assets cannot be read: this server's models read text only"
        ),
        WithJsonSchema({"type": "null"}),
    ] = None
    rotations: _Rotations = None

    def asked(self) -> tuple[Any, list[Question]]:
        """Return the evidence and the questions."""
        return self.state, [question.asked(name) for name, question in self.questions.items()]


class _Figures(TypedDict):
    x_label_mass: float
    x_spread: NotRequired[float]
    x_warning: NotRequired[str]


class _NoulFigures(_Figures):
    type: Literal["noul"]
    noul: float


class _ChoiceFigures(_Figures):
    type: Literal["choice"]
    choice: str
    confidence: float
    probabilities: dict[str, float]


class _ScoreFigures(_Figures):
    type: Literal["score"]
    score: float
    confidence: float
    legend: dict[str, Any]
    probabilities: dict[str, float]


class SystemOneAnswer(TypedDict):
    """One answer per question, by its name."""

    model: str
    answers: dict[str, Annotated[_NoulFigures | _ChoiceFigures | _ScoreFigures, Discriminator("type")]]
    usage: dict[str, int]


def write_system_one(decision: Decision, model: str, request: SystemOneRequest) -> dict[str, Any]:
    """Build the response."""
    for answer in decision:
        if answer.error_code == ErrorCode.TOO_LONG:
            raise Refused(str(answer.error), 400, code="max_tokens_exceeded")
        if not answer.is_answered:
            raise Refused(f"a question has no answer: {answer.error}", 422, code=answer.error_code)
    pairs = zip(request.questions.items(), decision, strict=True)
    return {
        "model": model,
        "answers": {name: _figures(answer, question.criteria) for (name, question), answer in pairs},
        "usage": {"input_tokens": decision.tokens, "output_tokens": len(decision)},
    }


def _figures(answer: Answer, criteria: Any) -> dict[str, Any]:
    spread = {} if answer.spread is None else {"x_spread": answer.spread}
    extra = {"x_label_mass": answer.label_mass, **spread, **_warning(answer.label_mass, "x_warning")}
    if isinstance(answer, PredicateAnswer):
        return {"type": "noul", "noul": answer.probability, **extra}
    extra["confidence"] = answer.confidence
    if isinstance(answer, ChoiceAnswer):
        return {"type": "choice", "choice": answer.choice, "probabilities": dict(answer.probabilities), **extra}
    legend = {str(place): level for place, level in enumerate(criteria)}
    by_level = {str(place): p for place, p in enumerate(answer.p)}
    return {"type": "score", "score": answer.score, "legend": legend, "probabilities": by_level, **extra}


# --- scores -----------------------------------------------------------------------------------------------------------


class ScoreRequest(Strict):
    """Rows to be scored on a metric: the name of a preset, or a definition as in a metric's YAML file."""

    model: str | None = None
    metric: Annotated[
        Annotated[str, Tag("preset")]
        | Annotated[Metric, Tag("definition"), WithJsonSchema({"type": "object", "required": ["name", "criteria"]})],
        _either(
            {str: "preset", dict: "definition"},
            "the name of a preset, or a definition as in a metric's YAML file, is needed",
        ),
    ]
    rows: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MAX_ROWS, fail_fast=True)]
    threshold: float | None = None

    def asked(self) -> tuple[Metric, list[Sample]]:
        """Return the metric, with its steps or none, and the rows."""
        metric = self.metric
        if isinstance(metric, str):
            # Only names of presets: a path would let a client read files of this machine.
            if metric not in preset_names():
                said = f"there is no preset metric {metric[:100]!r}{nearest(metric[:100], preset_names())}"
                raise Refused(f"{said}; GET /v1/metrics lists them", 404, param="metric", code="metric_not_found")
            metric = Metric.load(metric)
        try:
            metric.check_on_scale(self.threshold, "the threshold")
        except ConfigurationError as error:
            raise Refused(error.message, param="threshold") from None
        if metric.needs_steps:
            metric = metric.with_steps(())
        return metric, [Sample(row, number) for number, row in enumerate(self.rows, start=1)]


class ScoresAnswer(TypedDict):
    """The rows, each with its columns and ``geval``, as the command line writes them."""

    model: str
    metric: str
    signature: str
    rows: list[dict[str, Any]]
    warning: NotRequired[str]


def write_scores(
    metric: Metric, samples: Sequence[Sample], scores: Sequence[Score], model: str, signature: str
) -> dict[str, Any]:
    """Build the response."""
    rows = [
        {**plain(dict(sample.fields)), "geval": {metric.name: score.to_dict()}}
        for sample, score in zip(samples, scores, strict=True)
    ]
    known = [score.label_mass for score in scores if score.is_scored]
    mass = math.fsum(known) / len(known) if known else math.nan
    return {"model": model, "metric": metric.name, "signature": signature, "rows": rows, **_warning(mass)}


def _warning(label_mass: float, name: str = "warning") -> dict[str, str]:
    """Return a warning if the judge does not answer, else an empty mapping."""
    told = silence(label_mass)
    return {name: f"Nothing can be concluded: {told}."} if told else {}
