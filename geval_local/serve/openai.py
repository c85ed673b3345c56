"""OpenAI's dialect of decisions: ``POST /v1/decisions``, as sent and read by openai-python 3.54."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from geval_local.serve.bodies import check_json_part
from geval_local.serve.refusals import Refused

__all__ = ["read_request", "write_answer"]

MAX_QUESTIONS = 400
MAX_ITEMS = 131_072
#: OpenAI's limit; a longer scale is a choice, or a question in Python.
MAX_SCORE_LEVELS = 10
_FIELDS = ("model", "input", "questions", "prompt_cache_key", "prompt_cache_options", "safety_identifier", "rotations")
_QUESTION_FIELDS = {
    "predicate": {"type", "name", "instructions"},
    "choice": {"type", "name", "instructions", "choices"},
    "score": {"type", "name", "instructions", "levels"},
}
_PARTS = {
    "user": ("input_text", "input_json"),
    "system": ("input_text",),
    "developer": ("input_text",),
    "assistant": ("output_text", "refusal"),
}
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS = {"function_call_output": "function_call", "custom_tool_call_output": "custom_tool_call"}


def read_request(body: Mapping[str, Any]) -> tuple[Any, list[Question], int | None]:
    """Parse the request.

    Parameters
    ----------
    body : mapping
        The request; its ``model`` is handled elsewhere.

    Returns
    -------
    state : object
        Evidence, see `geval_local.questions.form.state_text`.
    questions : list of Question
    rotations : int or None
        The field ``rotations``, an extension of this server.

    Raises
    ------
    Refused
        If a field is missing, of the wrong type or out of limits, or contains an image.
    """
    for field in ("input", "questions"):
        if field not in body:
            hint = " (evidence under `state` is System One's: POST /v1/systemone)" if "state" in body else ""
            raise Refused(f"{field} is missing{hint}", param=field, code="missing_required_parameter")
    for field in body:
        if field not in _FIELDS:
            raise Refused(
                f"unknown field {field[:40]!r}; known are {', '.join(_FIELDS)}",
                param=field[:40],
                code="unknown_parameter",
            )
    for field, most in (("prompt_cache_key", 64), ("safety_identifier", 128)):
        value = body.get(field)
        if value is not None and not (isinstance(value, str) and len(value) <= most):
            raise Refused(f"{field} is a text of at most {most} characters", param=field)
    if not isinstance(body.get("prompt_cache_options"), dict | None):
        raise Refused("prompt_cache_options is an object", param="prompt_cache_options")
    rotations = body.get("rotations")
    if rotations is not None and (type(rotations) is not int or not 1 <= rotations <= MAX_OPTIONS):
        raise Refused(f"rotations is a number from 1 to {MAX_OPTIONS}", param="rotations")
    return _evidence(body["input"]), _questions(body["questions"]), rotations


def write_answer(decision: Decision, model: str) -> dict[str, Any]:
    """Build the response.

    Raises
    ------
    Refused
        If a question with its evidence exceeds the judge's context.
    """
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


def _evidence(given: Any) -> Any:
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        raise Refused("input is a text or a list of items with at least one", param="input")
    if len(given) > MAX_ITEMS:
        raise Refused(f"input has at most {MAX_ITEMS} items", param="input")
    calls: dict[str, set[str]] = {}
    turns = [_turn(item, f"input[{place}]", calls) for place, item in enumerate(given)]
    if len(turns) == 1 and turns[0].get("role") == "user":
        return turns[0]["content"]
    return state_text(turns)


def _turn(item: Any, param: str, calls: dict[str, set[str]]) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise Refused("an item of the input is an object", param=param)
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise Refused("the type of an item is a text", param=f"{param}.type")
    if kind in _CALLS:
        for field in ("call_id", "name", _CALLS[kind]):
            if not isinstance(item.get(field), str):
                raise Refused(f"a {kind} needs the text {field}", param=f"{param}.{field}")
        calls.setdefault(kind, set()).add(item["call_id"])
        return {"type": kind, "name": item["name"], _CALLS[kind]: item[_CALLS[kind]]}
    if kind in _OUTPUTS:
        call = item.get("call_id")
        if not isinstance(call, str) or call not in calls.get(_OUTPUTS[kind], ()):
            raise Refused(f"a {kind} needs the call_id of an earlier {_OUTPUTS[kind]}", param=f"{param}.call_id")
        return {"type": kind, "output": _text(item.get("output"), f"{param}.output", ("input_text",))}
    if kind != "message":
        raise Refused(
            "an item of the input is a message, a call of a tool or its output" + _images(kind), param=f"{param}.type"
        )
    role = item.get("role")
    if not isinstance(role, str) or role not in _PARTS:
        raise Refused(f"a message has a role: {', '.join(_PARTS)}", param=f"{param}.role")
    return {"role": role, "content": _text(item.get("content"), f"{param}.content", _PARTS[role])}


def _text(content: Any, param: str, allowed: tuple[str, ...]) -> str:
    """Read a text, or the text of parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise Refused("content is a text or a list of parts with at least one", param=param)
    texts: list[str] = []
    for place, part in enumerate(content):
        where = f"{param}[{place}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in allowed:
            raise Refused(f"a part here is one of {', '.join(allowed)}{_images(kind)}", param=where)
        if kind == "input_json":
            problem = check_json_part(part.get("data"))
            if problem is not None:
                raise Refused(problem, param=f"{where}.data")
            text = json.dumps(part["data"], ensure_ascii=False)
        else:
            text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise Refused(f"a part of type {kind} needs its text", param=where)
        texts.append(text)
    return "".join(texts)


def _images(kind: Any) -> str:
    """Say that a kind of part or item, in any API's words, cannot be read."""
    if not isinstance(kind, str) or not kind.endswith(("image", "image_url", "file", "audio", "video")):
        return ""
    what = "images" if "image" in kind else "files"
    return f"; {what} cannot be read: this server's models read text only"


def _questions(given: Any) -> list[Question]:
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_QUESTIONS:
        found = f", not {len(given)}" if isinstance(given, list) else ""
        raise Refused(f"questions is a list of 1 to {MAX_QUESTIONS} questions{found}", param="questions")
    questions = [_question(item, f"questions[{place}]") for place, item in enumerate(given)]
    seen: set[str] = set()
    for place, question in enumerate(questions):
        if question.name is not None and question.name in seen:
            raise Refused("the name of a question occurs twice", param=f"questions[{place}].name")
        seen |= {question.name} if question.name is not None else set()
    return questions


def _question(item: Any, param: str) -> Question:
    if not isinstance(item, dict):
        raise Refused("a question is an object", param=param)
    if "instructions" not in item and ("question" in item or "id" in item):
        raise Refused(
            "this looks like SGLang's dialect (id, question); here OpenAI's is served: name, type, instructions",
            param=param,
        )
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in _QUESTION_FIELDS:
        raise Refused("the type of a question is predicate, choice or score", param=f"{param}.type")
    for field in item:
        if field not in _QUESTION_FIELDS[kind]:
            raise Refused(f"a {kind} question has no field {field[:40]!r}", param=param, code="unknown_parameter")
    name = item.get("name")
    if not isinstance(name, str | None):
        raise Refused("the name of a question is a text", param=f"{param}.name")
    if "instructions" not in item:
        raise Refused("instructions are missing", param=f"{param}.instructions", code="missing_required_parameter")
    text = _text(item["instructions"], f"{param}.instructions", ("input_text", "input_json"))
    if kind == "predicate":
        if not text.strip():
            raise Refused("the instructions of a predicate are not blank", param=f"{param}.instructions")
        return PredicateQuestion(name=name, instructions=text)
    if kind == "choice":
        return ChoiceQuestion(name=name, instructions=text, options=_choices(item.get("choices"), f"{param}.choices"))
    return ScoreQuestion(name=name, instructions=text, levels=_levels(item.get("levels"), f"{param}.levels"))


def _choices(given: Any, param: str) -> tuple[Option, ...]:
    if not isinstance(given, list) or not 2 <= len(given) <= MAX_OPTIONS:
        raise Refused(f"choices is a list of 2 to {MAX_OPTIONS} choices", param=param)
    seen = set()
    for place, choice in enumerate(given):
        where = f"{param}[{place}]"
        _check_fields(choice, {"value", "description"}, "a choice", where)
        value = choice.get("value")
        if type(value) not in (str, bool):
            raise Refused("the value of a choice is a text or a boolean", param=f"{where}.value")
        if (type(value), value) in seen:
            raise Refused("a choice occurs twice", param=where)
        seen.add((type(value), value))
    return tuple(Option(value=choice["value"], description=choice.get("description")) for choice in given)


def _levels(given: Any, param: str) -> tuple[Level, ...]:
    if not isinstance(given, list) or not 2 <= len(given) <= MAX_SCORE_LEVELS:
        raise Refused(f"levels is a list of 2 to {MAX_SCORE_LEVELS} levels", param=param)
    for place, level in enumerate(given):
        where = f"{param}[{place}]"
        _check_fields(level, {"label", "description"}, "a level", where)
        if not isinstance(level.get("label"), str):
            raise Refused("the label of a level is a text", param=f"{where}.label")
    return tuple(Level(label=level["label"], description=level.get("description")) for level in given)


def _check_fields(item: Any, fields: set[str], what: str, param: str) -> None:
    if not isinstance(item, dict):
        raise Refused(f"{what} is an object", param=param)
    if not item.keys() <= fields:
        raise Refused(f"{what} has the fields {', '.join(sorted(fields))}", param=param, code="unknown_parameter")
    if not isinstance(item.get("description"), str | None):
        raise Refused("a description is a text", param=f"{param}.description")
