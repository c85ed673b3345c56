"""Decisions: questions about one evidence become prompts, stretch by stretch, and what was read becomes answers.

The way from a prompt to its labels' probabilities is that of scores: `Scorer.prepare`, the engine, `Scorer.outcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from geval_local.engine.prefix_sharing.key_value_store import MOST_POSITIONS
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.questions.answer import Answer, Decision, make_answer, unanswered
from geval_local.questions.form import Marks, QuestionForm, question_forms, state_text
from geval_local.questions.question import Question
from geval_local.score import Distribution, Outcome
from geval_local.tokens.requests import Ids, Prepared, common_prefix

__all__ = ["DecisionWork"]

#: Characters that a token has at most in a text that is worth looking at as a whole.
CHARACTERS_PER_TOKEN = 8


@dataclass
class DecisionWork:
    """The questions about one evidence, on their way through a judge.

    Every question stands in it once for each order of its outcomes: these are its items, numbered from 0.

    Parameters
    ----------
    state : object
        See `state_text`.
    questions : sequence of Question
        At least one.
    prepare_samples : callable
        `Scorer.prepare`.
    count_tokens : callable
        Gives the number of tokens of a text by itself.
    context : int
        Longest prompt that the judge can read, in tokens.
    rotations : int
        See `question_forms`.
    marks : str, optional
        See `question_forms`.

    Raises
    ------
    QuestionError
        If the evidence cannot be written as text, or `rotations` is below 1.
    """

    state: Any
    questions: Sequence[Question]
    prepare_samples: Callable[[Metric, Sequence[Sample]], list[Prepared]]
    count_tokens: Callable[[str], int]
    context: int
    rotations: int = 1
    marks: Marks | None = None
    _ids: list[Ids] = field(default_factory=list, init=False)
    _too_long: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._text = state_text(self.state)
        self._items: list[tuple[int, QuestionForm]] = [
            (number, form)
            for number, question in enumerate(self.questions)
            for form in question_forms(question, rotations=self.rotations, marks=self.marks)
        ]
        self._state_reason: str | None = None
        self._is_state_checked = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def evidence(self) -> str:
        """The evidence as text."""
        return self._text

    @property
    def shared(self) -> int:
        """Characters that all items share."""
        return len(self._text)

    def own(self, item: int) -> int:
        """Characters that one item adds to what all share."""
        return len(self._items[item][1].text)

    def prepare(self, start: int, stop: int) -> list[Prepared]:
        """Turn a stretch of the items into what the engine takes, or into reasons why not, in order."""
        if not self._is_state_checked:
            self._state_reason = self._refuse_long(self._text)
            self._is_state_checked = True
        prepared: list[Prepared | None] = [None] * (stop - start)
        groups: dict[int, tuple[Metric, list[int]]] = {}
        for item in range(start, stop):
            form = self._items[item][1]
            reason = self._state_reason or self._refuse_long(form.text)
            if reason is None:
                groups.setdefault(id(form.metric), (form.metric, []))[1].append(item)
            else:
                prepared[item - start] = Prepared(None, error=reason)
                self._too_long.add(item)
        for metric, items in groups.values():
            samples = [Sample({"state": self._text, "question": self._items[item][1].text}) for item in items]
            for item, entry in zip(items, self.prepare_samples(metric, samples), strict=True):
                prepared[item - start] = entry
                if entry.request is None and entry.prompt_tokens:
                    self._too_long.add(item)
        found = [entry for entry in prepared if entry is not None]
        self._ids += [entry.request.ids for entry in found if entry.request is not None]
        return found

    def prefix(self) -> Ids | None:
        """Give the tokens that all prompts about this evidence start with, for the engine to keep; None if unknown."""
        samples = [Sample({"state": self._text, "question": text}) for text in ("A", "7")]
        requests = [entry.request for entry in self.prepare_samples(self._items[0][1].metric, samples)]
        if requests[0] is None or requests[1] is None:
            return None
        first, second = requests[0].ids, requests[1].ids
        prefix = first[: common_prefix(first, second)]
        return prefix if len(prefix) <= MOST_POSITIONS else requests[0].prefix

    def finish(self, outcomes: Sequence[Outcome]) -> Decision:
        """Put the decision together, given the outcomes of all items in order."""
        answers: list[Answer] = []
        by_question: list[list[int]] = [[] for _ in self.questions]
        for item, (number, _) in enumerate(self._items):
            by_question[number].append(item)
        for question, items in zip(self.questions, by_question, strict=True):
            tokens = sum(outcomes[item].prompt_tokens for item in items)
            failed = next((item for item in items if outcomes[item].label_logprobs is None), None)
            if failed is not None:
                reason = outcomes[failed].error or "unknown reason"
                answers.append(unanswered(question, reason, prompt_tokens=tokens, is_too_long=failed in self._too_long))
                continue
            p, mass = [], []
            for item in items:
                form = self._items[item][1]
                logprobs = outcomes[item].label_logprobs
                assert logprobs is not None
                distribution = Distribution(form.metric.scale, logprobs)
                p.append(distribution.p[list(form.order)])
                mass.append(distribution.label_mass)
            answers.append(make_answer(question, p, mass, prompt_tokens=tokens))
        return Decision(tuple(answers), _distinct_tokens(self._ids))

    def _refuse_long(self, text: str) -> str | None:
        """Say why a text is too long for the judge, as soon as its beginning shows it; None if it may not be.

        Otherwise a text of megabytes would be tokenized once for every question, to be refused.
        """
        size = CHARACTERS_PER_TOKEN * self.context
        while len(text) > 2 * self.context:
            tokens = self.count_tokens(text[:size])
            if tokens > self.context:
                return (
                    f"the prompt has more than {tokens} tokens, the judge reads {self.context} with the label; "
                    "shorten the evidence or the question, or take a judge that reads more"
                )
            if size >= len(text):
                break
            size *= 2
        return None


def _distinct_tokens(ids: Sequence[Ids]) -> int:
    """Count the tokens of prompts, those that they share once."""
    ordered = sorted(ids, key=lambda one: one.astype(">u4").tobytes())
    total, before = 0, None
    for one in ordered:
        total += len(one) - (0 if before is None else common_prefix(before, one))
        before = one
    return total
