"""Decisions: questions about one piece of evidence become prompts, stretch by stretch, and read-outs become answers.

Prompts become label probabilities as in scoring: `Scorer.prepare`, the engine, `Scorer.outcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from geval_local.engine.interface import MOST_POSITIONS
from geval_local.errors import Cause, ErrorCode, UnscorableError
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.questions.answer import Decision, answers_of
from geval_local.questions.form import Marks, QuestionForm, question_forms, state_text
from geval_local.questions.question import Question
from geval_local.score import Outcome
from geval_local.tokens.requests import Ids, Prepared, common_prefix

if TYPE_CHECKING:
    from geval_local.judge.scorer import Scorer

#: Most characters per token assumed for a text that may still fit.
CHARACTERS_PER_TOKEN = 8


#: An evidence as text, and a form to be filled with it.
Asked = tuple[str, QuestionForm]


def prepare_forms(judge: Scorer, asked: Sequence[Asked]) -> list[Prepared]:
    """Turn forms about evidences into what a judge's engine takes, or into reasons why not, in order."""
    prepared: list[Prepared | None] = [None] * len(asked)
    refused: dict[str, Prepared | None] = {}
    groups: dict[int, tuple[Metric, list[int]]] = {}
    for place, (text, form) in enumerate(asked):
        for one in (text, form.text):
            if one not in refused:
                refused[one] = _refusal(judge, one)
        prepared[place] = refused[text] or refused[form.text]
        if prepared[place] is None:
            groups.setdefault(id(form.metric), (form.metric, []))[1].append(place)
    for metric, places in groups.values():
        samples = [Sample({"state": asked[place][0], "question": asked[place][1].text}) for place in places]
        for place, entry in zip(places, judge.prepare(metric, samples), strict=True):
            prepared[place] = entry
    return [entry for entry in prepared if entry is not None]


def _refusal(judge: Scorer, text: str) -> Prepared | None:
    """Say why a text is too long for a judge, as soon as its beginning shows it; None if it may not be.

    Otherwise a text of megabytes would be tokenized once for every question, to be refused.
    """
    context = judge.context
    size = CHARACTERS_PER_TOKEN * context
    while len(text) > 2 * context:
        try:
            tokens = len(judge.encoder.encode_texts([text[:size]])[0])
        except UnscorableError as error:
            return Prepared(None, error=error.cause)
        if tokens > context:
            reason = (
                f"the prompt has more than {tokens} tokens, the judge reads {context} with the label; "
                "shorten the evidence or the question, or take a judge that reads more"
            )
            return Prepared(None, error=Cause(reason, ErrorCode.TOO_LONG))
        if size >= len(text):
            break
        size *= 2
    return None


@dataclass
class DecisionWork:
    """The questions about one piece of evidence, as work for a judge.

    Every question contributes one item for each order of its outcomes; items are numbered from 0.
    """

    state: Any
    questions: Sequence[Question]
    prepare_asked: Callable[[Sequence[Asked]], list[Prepared]]
    rotations: int = 1
    marks: Marks | None = None
    _ids: list[Ids] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._text = state_text(self.state)
        self._forms = [question_forms(one, rotations=self.rotations, marks=self.marks) for one in self.questions]
        self._items = list(chain.from_iterable(self._forms))

    def __len__(self) -> int:
        return len(self._items)

    @property
    def evidence(self) -> str:
        """The evidence as text."""
        return self._text

    @property
    def shared(self) -> int:
        """Number of characters shared by all items."""
        return len(self._text)

    def own(self, item: int) -> int:
        """Return the number of characters that one item adds to the shared ones."""
        return len(self._items[item].text)

    def prepare(self, start: int, stop: int) -> list[Prepared]:
        """Turn a stretch of the items into what the engine takes, or into reasons why not, in order."""
        found = self.prepare_asked([(self._text, form) for form in self._items[start:stop]])
        self._ids += [entry.request.ids for entry in found if entry.request is not None]
        return found

    def prefix(self) -> Ids | None:
        """Give the tokens that all prompts about this evidence start with, for the engine to keep; None if unknown."""
        form = self._items[0]
        asked = [(self._text, replace(form, text=text)) for text in ("A", "7")]
        requests = [entry.request for entry in self.prepare_asked(asked)]
        if requests[0] is None or requests[1] is None:
            return None
        first, second = requests[0].ids, requests[1].ids
        prefix = first[: common_prefix(first, second)]
        return prefix if len(prefix) <= MOST_POSITIONS else requests[0].prefix

    def finish(self, outcomes: Sequence[Outcome]) -> Decision:
        """Put the decision together, given the outcomes of all items in order."""
        answers = answers_of(self.questions, self._forms, outcomes)
        return Decision(answers, _distinct_tokens(self._ids))


def _distinct_tokens(ids: Sequence[Ids]) -> int:
    """Count the distinct tokens of prompts: shared ones count once."""
    ordered = sorted(ids, key=lambda one: one.astype(">u4").tobytes())
    total, before = 0, None
    for one in ordered:
        total += len(one) - (0 if before is None else common_prefix(before, one))
        before = one
    return total
