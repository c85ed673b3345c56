"""Tally: the answers to one question over a whole file, summed up. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from geval_local.questions.answer import Answer, ChoiceAnswer, PredicateAnswer
from geval_local.questions.question import Question
from geval_local.score import LOW_LABEL_MASS
from geval_local.summary import Reason, Reasons


@dataclass(frozen=True)
class QuestionSummary:
    """What the answers to one question came to. Rows without an answer are counted and enter no other figure."""

    #: Name of the results: the question's, with the judge's where there are several.
    name: str
    #: predicate, choice or score.
    type: str
    #: All rows, and those with an answer.
    rows: int
    answered: int
    #: Mean probability of a predicate, or mean expected level of a score; NaN for a choice, and without an answer.
    mean: float
    #: Options of a choice, with how many rows each was the likeliest in; the most frequent first.
    chosen: tuple[tuple[str | bool, int], ...]
    #: Mean and smallest label mass, and the share of answers with less than `LOW_LABEL_MASS`; NaN without an answer.
    label_mass: float
    label_mass_min: float
    low_mass_share: float
    #: Mean of the largest differences that the order of the outcomes made; None where one order was shown.
    spread: float | None
    #: Why rows have no answer, the most frequent reason first.
    reasons: tuple[Reason, ...]

    @property
    def unscored(self) -> int:
        """Rows without an answer."""
        return self.rows - self.answered

    def to_dict(self) -> dict[str, Any]:
        """Give the figures as plain JSON values; one that does not exist is null."""
        record: dict[str, Any] = {"type": self.type, "rows": self.rows, "answered": self.answered}
        if self.type == "choice":
            record["chosen"] = [{"value": value, "rows": count} for value, count in self.chosen]
        else:
            record["mean"] = _finite(self.mean)
        return {
            **record,
            "label_mass": {
                "mean": _finite(self.label_mass),
                "min": _finite(self.label_mass_min),
                "low": LOW_LABEL_MASS,
                "share_below_low": _finite(self.low_mass_share),
            },
            "spread": self.spread,
            "reasons": [{"reason": one.text, "count": one.count, "rows": list(one.rows)} for one in self.reasons],
        }


class QuestionTally:
    """Takes in the answers to one question row by row."""

    def __init__(self, name: str, question: Question) -> None:
        self.name = name
        self.question = question
        self._rows = 0
        self._answered = 0
        self._total = 0.0
        self._mass = 0.0
        self._least_mass = math.inf
        self._low = 0
        self._spread = 0.0
        self._orders = 1
        self._chosen: dict[tuple[type, str | bool], int] = {}
        self._reasons = Reasons()

    def add(self, where: str, row: int | None, answer: Answer, group: int | None = None) -> None:
        """Count one row; its document does not matter."""
        self._rows += 1
        if answer.error is not None:
            self._reasons.add(where, row or self._rows, answer.error)
            return
        self._answered += 1
        self._mass += answer.label_mass
        self._least_mass = min(self._least_mass, answer.label_mass)
        self._low += answer.label_mass < LOW_LABEL_MASS
        self._spread += answer.spread or 0.0
        self._orders = max(self._orders, answer.orders)
        if isinstance(answer, ChoiceAnswer):
            choice = answer.choice
            self._chosen[type(choice), choice] = self._chosen.get((type(choice), choice), 0) + 1
        else:
            self._total += answer.probability if isinstance(answer, PredicateAnswer) else answer.score

    def summary(self, grouping: str = "", *, grouped: bool = False) -> QuestionSummary:
        """Sum up the rows so far."""
        some = self._answered
        chosen = sorted(self._chosen.items(), key=lambda item: -item[1])
        return QuestionSummary(
            name=self.name,
            type=self.question.type,
            rows=self._rows,
            answered=some,
            mean=self._total / some if some and self.question.type != "choice" else math.nan,
            chosen=tuple((value, count) for (_, value), count in chosen),
            label_mass=self._mass / some if some else math.nan,
            label_mass_min=self._least_mass if some else math.nan,
            low_mass_share=self._low / some if some else math.nan,
            spread=self._spread / some if some and self._orders > 1 else None,
            reasons=self._reasons.listed(),
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
