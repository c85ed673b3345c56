"""Decisions: questions about one piece of evidence become prompts, stretch by stretch, and read-outs become answers.

Prompts become label probabilities as in scoring: `Scorer.prepare`, the engine, `Scorer.outcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from geval_local.engine.interface import MOST_POSITIONS
from geval_local.engine.prefix_sharing.prompt_trie import build_stream
from geval_local.questions.answer import Decision, answers_of
from geval_local.questions.form import Marks, QuestionForm, question_forms, state_text
from geval_local.questions.question import Question
from geval_local.score import Outcome
from geval_local.tokens.requests import Ids, Prepared, common_prefix

#: An evidence as text, and a form to be filled with it.
Asked = tuple[str, QuestionForm]


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
        stream, _ = build_stream(self._ids, [()] * len(self._ids))
        return Decision(answers, len(stream))
