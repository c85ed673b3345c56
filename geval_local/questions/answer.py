"""Answer: the result of a question, with all figures derived from its options' probabilities. Pure.

Confidence follows TypeSafe's documentation of System One, which other servers of that API also follow: a choice's is
the peak's height above an even spread, ``(n max p - 1) / (n - 1)``; a score's is 1 minus the mean distance to the
likeliest level, relative to an even spread's mean distance to its middle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from geval_local.errors import code_of
from geval_local.figures import ANSWERS, as_dict
from geval_local.questions.form import QuestionForm
from geval_local.questions.question import ChoiceQuestion, PredicateQuestion, Question, ScoreQuestion
from geval_local.score import UNEXPLAINED, Distribution, Outcome
from geval_local.thinking import ThoughtFigures, Thoughts, thought_figures


def choice_confidence(p: ArrayLike) -> float:
    """Return how far the likeliest option lies above a uniform distribution: 0 for uniform, 1 for certainty."""
    values = np.asarray(p, dtype=np.float64)
    count = len(values)
    return 1.0 if count == 1 else _in_unit((count * float(values.max()) - 1) / (count - 1))


def score_confidence(p: ArrayLike) -> float:
    """Return how concentrated the probabilities are at the likeliest level: 1 for certainty, 0 for uniform or worse."""
    values = np.asarray(p, dtype=np.float64)
    count = len(values)
    if count == 1:
        return 1.0
    places = np.arange(count)
    even = float(np.abs(places - (count - 1) / 2).sum()) / count
    return _in_unit(1 - float(values @ np.abs(places - int(values.argmax()))) / even)


def _in_unit(value: float) -> float:
    return min(max(value, 0.0), 1.0)


@dataclass(frozen=True)
class _Answer:
    """Attributes common to all answers."""

    #: The question.
    question: Any
    #: One probability per outcome, in the question's own order, summing to 1; empty if unanswered. A predicate's
    #: outcomes are true and false.
    p: tuple[float, ...] = ()
    #: Probability, 0 to 1, that the judge's next text is any of the answer labels; the mean over the orders. Low mass
    #: means that it did not treat the form as a form.
    label_mass: float = 0.0
    #: Number of orders in which the outcomes were shown; `p` is the mean over them.
    orders: int = 1
    #: The largest difference that the order made to the probability of an outcome, 0 to 1; None for a single order.
    spread: float | None = None
    #: Standard error that thoughts leave in that difference: each order has its own; None where it is not known.
    spread_error: float | None = None
    #: What the thoughts of a judge that thinks leave open in the probability of a predicate or of the option that was
    #: chosen, or in the expected level.
    thoughts: ThoughtFigures | None = None
    #: Tokens of the prompts, counting the evidence in each.
    prompt_tokens: int = 0
    #: Why there is no answer.
    error: str | None = None

    @property
    def name(self) -> str | None:
        """The question's name."""
        return self.question.name  # type: ignore[no-any-return]

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer."""
        return self.error is None

    @property
    def error_code(self) -> str | None:
        """One of `geval_local.errors.ErrorCode` where there is no answer, such as ``too_long``; else None."""
        return None if self.error is None else code_of(self.error).value

    def weights(self) -> NDArray[np.float64]:
        """Weigh the outcomes: the answer's figure is the sum of their probabilities by weight."""
        weights = np.zeros(len(self.p))
        weights[int(self._need().argmax())] = 1.0
        return weights

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON values; an unanswered question has ``error`` and no figures."""
        return as_dict(ANSWERS, self, kind=self.question.type)

    def _need(self) -> NDArray[np.float64]:
        if self.error is not None:
            raise ValueError(f"the question has no answer: {self.error}")
        return np.asarray(self.p, dtype=np.float64)


@dataclass(frozen=True)
class PredicateAnswer(_Answer):
    """The answer to a predicate; attributes besides `probability` are those of every answer."""

    @property
    def probability(self) -> float:
        """Probability that the statement holds, 0 to 1."""
        return float(self._need()[0])

    def weights(self) -> NDArray[np.float64]:
        """See `_Answer.weights`: those of its probability."""
        return np.array([1.0, 0.0])


@dataclass(frozen=True)
class ChoiceAnswer(_Answer):
    """The answer to a choice; properties raise `ValueError` if the question has no answer."""

    @property
    def choice(self) -> str | bool:
        """The likeliest option; the first one on an exact tie."""
        question: ChoiceQuestion = self.question
        return question.options[int(self._need().argmax())].value

    @property
    def probabilities(self) -> tuple[tuple[str | bool, float], ...]:
        """Pairs of option and probability, in the question's order."""
        self._need()
        return tuple((option.value, p) for option, p in zip(self.question.options, self.p, strict=True))

    @property
    def confidence(self) -> float:
        """See `choice_confidence`."""
        return choice_confidence(self._need())

    def outcomes(self) -> list[dict[str, Any]]:
        """Return `probabilities` as plain JSON values."""
        return [{"value": value, "probability": p} for value, p in self.probabilities]


@dataclass(frozen=True)
class ScoreAnswer(_Answer):
    """The answer to a score; properties raise `ValueError` if the question has no answer."""

    @property
    def score(self) -> float:
        """The expected level, 0 (the lowest) to the number of levels less 1."""
        p = self._need()
        return min(max(float(p @ np.arange(len(p))), 0.0), len(p) - 1.0)

    @property
    def probabilities(self) -> tuple[tuple[str, float], ...]:
        """Pairs of level and probability, lowest first."""
        self._need()
        return tuple((level.label, p) for level, p in zip(self.question.levels, self.p, strict=True))

    @property
    def confidence(self) -> float:
        """See `score_confidence`."""
        return score_confidence(self._need())

    def weights(self) -> NDArray[np.float64]:
        """See `_Answer.weights`: those of its expected level."""
        return np.arange(len(self.p), dtype=np.float64)

    def outcomes(self) -> list[dict[str, Any]]:
        """Return `probabilities` as plain JSON values."""
        return [{"value": at, "label": label, "probability": p} for at, (label, p) in enumerate(self.probabilities)]


#: Any answer.
Answer: TypeAlias = PredicateAnswer | ChoiceAnswer | ScoreAnswer


@dataclass(frozen=True)
class Decision(Sequence[Any]):
    """The answers to all questions about one piece of evidence, in order; indexed by position or name.

    Attributes
    ----------
    answers : tuple of Answer
        One per question.
    tokens : int
        Distinct tokens of all prompts: shared ones count once.
    """

    answers: tuple[Answer, ...]
    tokens: int = 0

    def __len__(self) -> int:
        return len(self.answers)

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    def __getitem__(self, key: Any) -> Any:
        """Return an answer by its position or its question's name; a `KeyError` or `IndexError` if there is none."""
        if not isinstance(key, str):
            return self.answers[key]
        for answer in self.answers:
            if answer.name == key:
                return answer
        raise KeyError(key)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return ``{name: figures}``; unnamed questions are called ``q1``, ``q2``, ... by position."""
        return {answer.name or f"q{place}": answer.to_dict() for place, answer in enumerate(self.answers, start=1)}


def answer_of(question: Question, forms: Sequence[QuestionForm], outcomes: Sequence[Outcome]) -> Answer:
    """Put an answer together from the outcomes of a question's forms."""
    tokens = sum(outcome.prompt_tokens for outcome in outcomes)
    found = []
    for form, outcome in zip(forms, outcomes, strict=True):
        if outcome.label_logprobs is None:
            return unanswered(question, outcome.error or UNEXPLAINED, prompt_tokens=tokens)
        found.append((Distribution(form.metric.scale, outcome.label_logprobs), list(form.order)))
    p = [distribution.p[order] for distribution, order in found]
    answer = make_answer(question, p, [distribution.label_mass for distribution, _ in found], prompt_tokens=tokens)
    drawn = [one for outcome in outcomes for one in outcome.thoughts]
    return _with_thoughts(answer, np.stack(p), drawn, [order for _, order in found]) if drawn else answer


def _with_thoughts(
    answer: Answer, p: NDArray[np.float64], drawn: Sequence[Thoughts], orders: Sequence[Sequence[int]]
) -> Answer:
    """Add what the thoughts about each of the forms leave open; `p` has a row for every form."""

    def by_label(weights: NDArray[np.float64], order: Sequence[int]) -> NDArray[np.float64]:
        return weights[np.argsort(order)]

    figures = thought_figures(drawn, [by_label(answer.weights(), order) for order in orders])
    moved = int(np.ptp(p, axis=0).argmax())
    one, other = (
        drawn[form].errors(by_label(np.eye(p.shape[1])[moved], orders[form]))[0]
        for form in (int(p[:, moved].argmin()), int(p[:, moved].argmax()))
    )
    is_known = len(p) > 1 and not np.isnan(one + other)
    return replace(answer, thoughts=figures, spread_error=float(np.hypot(one, other)) if is_known else None)


def answers_of(
    questions: Sequence[Question], forms: Sequence[Sequence[QuestionForm]], outcomes: Sequence[Outcome]
) -> tuple[Answer, ...]:
    """Put the answers of a row together, given the outcomes of all forms."""
    waiting = iter(outcomes)
    pairs = zip(questions, forms, strict=True)
    return tuple(answer_of(question, own, list(islice(waiting, len(own)))) for question, own in pairs)


def make_answer(
    question: Question,
    p: Sequence[NDArray[np.float64]],
    label_mass: Sequence[float],
    *,
    prompt_tokens: int = 0,
) -> Answer:
    """Assemble an answer from the judge's probabilities in every order."""
    table = np.stack(p)
    mean = table.mean(axis=0)
    return _of(question)(
        question,
        tuple((mean / mean.sum() if mean.any() else np.full(len(mean), 1 / len(mean))).tolist()),
        label_mass=float(np.mean(label_mass)),
        orders=len(table),
        spread=float((table.max(axis=0) - table.min(axis=0)).max()) if len(table) > 1 else None,
        prompt_tokens=prompt_tokens,
    )


def unanswered(question: Question, reason: str, *, prompt_tokens: int = 0) -> Answer:
    """Return the answer of a question that cannot be answered, with the reason."""
    return replace(_of(question)(question), prompt_tokens=prompt_tokens, error=reason)


def _of(question: Question) -> type[PredicateAnswer] | type[ChoiceAnswer] | type[ScoreAnswer]:
    if isinstance(question, PredicateQuestion):
        return PredicateAnswer
    return ScoreAnswer if isinstance(question, ScoreQuestion) else ChoiceAnswer
