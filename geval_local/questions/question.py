"""Question: a typed question to a judge about any evidence, with its possible answers. Read from YAML or JSON. Pure.

A predicate asks how likely it is that a statement holds, a choice which of several options fits, a score which of
several ordered levels. Prompts are built in `geval_local.questions.form`, answers in
`geval_local.questions.answer`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node

from geval_local.errors import QuestionError
from geval_local.yaml_model import MOST_PROBLEMS, Place, read_file, validate
from geval_local.yaml_text import line_of, load_yaml

MAX_OPTIONS = 255
MAX_LEVELS = 101
_FORMS = "A question has a type (predicate, choice or score), instructions, and options or levels."


class _QuestionPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Option(_QuestionPart):
    """One option of a choice."""

    value: str | bool
    description: str | None = None


class Level(_QuestionPart):
    """One level of a score."""

    label: str
    description: str | None = None


class _Asked(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    instructions: str = ""
    rotations: int | None = Field(default=None, ge=1)


class PredicateQuestion(_Asked):
    """A question about the probability that a statement holds.

    Parameters
    ----------
    instructions : str
        A statement, or a question to be answered by yes or no. May be empty if an outcome is described.
    name : str, optional
        The caller's name for the question; not shown to the judge.
    if_true, if_false : str, optional
        Meaning of the outcomes.
    rotations : int, optional
        Number of orders in which the two outcomes are shown, 1 or 2; more counts as 2. Absent: set by the call.
    """

    type: Literal["predicate"] = "predicate"
    if_true: str | None = None
    if_false: str | None = None

    @model_validator(mode="after")
    def _check(self) -> PredicateQuestion:
        if not any(text and text.strip() for text in (self.instructions, self.if_true, self.if_false)):
            raise ValueError("instructions: a predicate needs a statement, or a described outcome")
        return self


class ChoiceQuestion(_Asked):
    """A question about which of several options fits.

    Parameters
    ----------
    options : sequence of Option, of str or bool, or mapping of these to descriptions
        2 to 255 options, all different.
    instructions : str
        The question; may be empty.
    name : str, optional
        The caller's name for the question; not shown to the judge.
    rotations : int, optional
        Number of orders in which the options are shown, evenly spread over the rotations of the list; at most one per
        option. Absent: set by the call.
    """

    type: Literal["choice"] = "choice"
    options: tuple[Option, ...] = Field(min_length=2, max_length=MAX_OPTIONS)

    @field_validator("options", mode="before")
    @classmethod
    def _plain_options(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            return tuple({"value": value, "description": text} for value, text in given.items())
        if isinstance(given, list | tuple):
            return tuple({"value": item} if isinstance(item, str | bool) else item for item in given)
        return given

    @model_validator(mode="after")
    def _check(self) -> ChoiceQuestion:
        _refuse_doubled([option.value for option in self.options], "options")
        return self


class ScoreQuestion(_Asked):
    """A question about which of several ordered levels fits; the score is the expectation over their numbers, from 0.

    Parameters
    ----------
    levels : sequence of Level or str, or mapping of labels to descriptions
        2 to 101 levels, lowest first.
    instructions : str
        The question; may be empty.
    name : str, optional
        The caller's name for the question; not shown to the judge.
    rotations : int, optional
        Number of orders in which the levels are shown, 1 (upwards) or 2 (also downwards); more counts as 2. Absent: set
        by the call.
    """

    type: Literal["score"] = "score"
    levels: tuple[Level, ...] = Field(min_length=2, max_length=MAX_LEVELS)

    @field_validator("levels", mode="before")
    @classmethod
    def _plain_levels(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            return tuple({"label": _label(label), "description": text} for label, text in given.items())
        if isinstance(given, list | tuple):
            return tuple({"label": _label(item)} if isinstance(item, str | int | float) else item for item in given)
        return given


#: Any question.
Question: TypeAlias = PredicateQuestion | ChoiceQuestion | ScoreQuestion

_QUESTION = Annotated[Question, Field(discriminator="type")]


def parse_questions(given: Mapping[str, Any] | Iterable[Any]) -> tuple[Question, ...]:
    """Parse questions from plain values."""
    return _parse(given, "the questions", None)


def load_questions(path: str | Path) -> tuple[Question, ...]:
    """Read questions from a YAML or JSON file: a mapping of names to questions, or a list of questions.

    Parameters
    ----------
    path : str or Path
        A ``.yaml``, ``.yml`` or ``.json`` file.

    Returns
    -------
    tuple of Question
        In the order of the file, all named; unnamed ones are called ``q1``, ``q2``, ... by position.

    Raises
    ------
    QuestionError
        If the file cannot be read, or its questions are inconsistent; with line numbers.
    """
    path = Path(path)
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise QuestionError(
            f"cannot tell the format of {path} by its extension", hint="Known extensions: .yaml, .yml, .json."
        )
    text = read_file(path, "the questions", QuestionError)
    try:
        if path.suffix == ".json":
            json.loads(text)  # YAML would accept texts that are not JSON
        data, node = load_yaml(text)
    except (ValueError, RecursionError, YAMLError) as error:
        raise QuestionError(f"{path}: not valid {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(data, dict | list):
        raise QuestionError(f"{path}: questions are a mapping of names to questions, or a list", hint=_FORMS)
    if isinstance(data, dict) and set(data) == {"questions"} and isinstance(data["questions"], dict | list):
        data, node = data["questions"], _inside(node, "questions")
    return _named(_parse(data, str(path), node), str(path))


def named_questions(given: Mapping[str, Any] | Iterable[Any]) -> tuple[Question, ...]:
    """Read questions as `parse_questions` does, and call those without a name ``q1``, ``q2``, ... by their place."""
    return _named(parse_questions(given), "the questions")


def _named(questions: Sequence[Question], origin: str) -> tuple[Question, ...]:
    named = tuple(
        question if question.name is not None else question.model_copy(update={"name": f"q{place}"})
        for place, question in enumerate(questions, start=1)
    )
    _refuse_doubled_names(named, origin)
    return named


def _parse(given: Mapping[str, Any] | Iterable[Any], origin: str, node: Node | None) -> tuple[Question, ...]:
    found: list[Question] = []
    problems: list[QuestionError] = []
    items: Iterable[tuple[Any, Any]] = given.items() if isinstance(given, Mapping) else enumerate(given)
    for key, item in items:
        if len(problems) >= MOST_PROBLEMS:
            break
        where = f"question {key!r}" if isinstance(given, Mapping) else f"question {key + 1}"
        if isinstance(given, Mapping) and not isinstance(key, str | int | float):
            problems.append(QuestionError(f"{_where(origin, node, str(key), where, ())}: a question's name is a text"))
            continue
        try:
            question = validate(_QUESTION, item, partial(_where, origin, node, key, where), QuestionError, _FORMS)
        except QuestionError as error:
            problems.append(error)
            continue
        if isinstance(given, Mapping):
            if question.name not in (None, key):
                raise QuestionError(f"{origin}: the question {key!r} calls itself {question.name!r}; name it once")
            question = question.model_copy(update={"name": str(key)})
        found.append(question)
    if problems:
        hints = dict.fromkeys(problem.hint for problem in problems if problem.hint)
        raise QuestionError("\n".join(problem.message for problem in problems), hint="\n".join(hints))
    if not found:
        raise QuestionError(f"{origin}: there is no question", hint=_FORMS)
    _refuse_doubled_names(found, origin)
    return tuple(found)


def _where(origin: str, node: Node | None, key: int | str, name: str, place: Place) -> str:
    line = "" if node is None else f", line {line_of(node, (key, *place))}"
    return f"{origin}{line}: {name}"


def _refuse_doubled_names(questions: Sequence[Question], origin: str) -> None:
    names = [question.name for question in questions if question.name is not None]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise QuestionError(f"{origin}: two questions have the same name: {', '.join(doubled)}")


def _refuse_doubled(values: Sequence[str | bool], what: str) -> None:
    seen = set()
    for value in values:
        key = (type(value), value)
        if key in seen:
            raise ValueError(f"{what}: {value!r} occurs twice")
        seen.add(key)


def _label(label: object) -> object:
    """Write a level that YAML read as a number in its usual form; a boolean is kept, to be rejected later."""
    return label if isinstance(label, bool) else f"{label:g}" if isinstance(label, float) else str(label)


def _inside(node: Node | None, key: str) -> Node | None:
    pairs = node.value if isinstance(node, MappingNode) else []
    return next((value for name, value in pairs if name.value == key), None)
