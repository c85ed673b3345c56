"""Summary: figures for a whole file, with the uncertainty of the mean and the reasons for unscored rows."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from geval_local.direction import Direction
from geval_local.errors import Cause, ErrorCode, code_of, kind_of
from geval_local.grouping import Documents
from geval_local.questions.answer import Answer, ChoiceAnswer, PredicateAnswer
from geval_local.questions.question import Question
from geval_local.score import LEAST_LABEL_MASS, LOW_LABEL_MASS, Score, silence
from geval_local.slices import Slicing
from geval_local.statistics.interval import FEW_UNITS, Ends, Interval, mean_interval

#: Number of rows listed for each reason.
ROWS_NAMED = 5
#: Number of listed tokens outside the labels, for rows of low mass.
TOKENS_NAMED = 5


@dataclass(frozen=True)
class UnscoredReason:
    """A reason why rows are unscored."""

    #: The code that these rows share, one of `geval_local.errors.ErrorCode`.
    code: str
    #: The reason as given for the first of these rows. Rows without a known code are counted together if their reasons
    #: differ only in numbers.
    text: str
    #: Number of rows with this reason.
    count: int
    #: Numbers of the first of these rows, at most `ROWS_NAMED`; after their file's name if there are several files.
    rows: tuple[int | str, ...]
    #: Whether the others give the same reason, up to numbers.
    is_shared: bool = True

    @property
    def known_code(self) -> str:
        """The code, if one is known; else empty."""
        return "" if self.code == ErrorCode.UNKNOWN else self.code

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"code": self.code, "reason": self.text, "count": self.count, "rows": list(self.rows)}


@dataclass(frozen=True, kw_only=True)
class _Figures:
    """What the figures of a metric and of a question share."""

    #: All rows.
    rows: int
    #: Mean and smallest label mass, and the share of the rows with a figure that have less than `LOW_LABEL_MASS`, 0-1;
    #: NaN without a figure.
    label_mass: float
    label_mass_min: float
    low_mass_share: float
    #: Why rows have no figure, the most frequent reason first.
    reasons: tuple[UnscoredReason, ...]
    #: Thoughts per form; 0 of a judge that does not think.
    thoughts: int
    #: The part of the mean's standard error that drawing thoughts leaves; NaN where it is not known. The interval
    #: includes it: scores of rows differ by it, too. Of a choice, it is that of the mean probability of the options
    #: chosen.
    thought_error: float
    #: Mean of the bias that the plain mean of few thoughts has; NaN where it is not known.
    thought_bias: float
    #: Thoughts that were closed at the limit, in all rows.
    cut_thoughts: int

    def mass_record(self) -> dict[str, Any]:
        """Return the figures of the label mass as plain JSON values."""
        return {
            "mean": _finite(self.label_mass),
            "min": _finite(self.label_mass_min),
            "low": LOW_LABEL_MASS,
            "share_below_low": _finite(self.low_mass_share),
        }

    def thought_record(self) -> dict[str, Any]:
        """Return the figures of thoughts as plain JSON values, under their key; nothing of a judge without any."""
        error, bias = _finite(self.thought_error), _finite(self.thought_bias)
        told = {"count": self.thoughts, "standard_error": error, "bias": bias, "cut": self.cut_thoughts}
        return {"thoughts": told} if self.thoughts else {}


@dataclass(frozen=True, kw_only=True)
class Summary(_Figures):
    """Figures over all rows for one metric. Unscored rows are counted but enter no other figure."""

    #: Name of the metric.
    metric: str
    #: Rows that have a score.
    scored: int
    #: Mean score on the metric's own scale, NaN if no row was scored, with its 95 % interval over documents. It is
    #: computed also where the judge does not answer: show `shown`.
    interval: Interval
    #: Documents of the scored rows. Where they have different numbers of rows, the interval's units are fewer.
    documents: int
    #: Which rows are one document, and what documents are, in the plural.
    grouping: str
    noun: str
    #: Standard deviation between the rows' scores (n - 1 in the denominator); NaN for fewer than two scores.
    std: float
    #: The threshold in use.
    threshold: float | None
    #: Share of the scored rows that reach it, 0-1; None without a threshold or a score.
    passed_share: float | None
    #: Rows with a field that was shortened to fit the judge's context.
    shortened: int
    #: The likeliest next tokens outside the labels in rows of low mass, with their mean probability, 0-1; at most
    #: `TOKENS_NAMED`.
    other_tokens: tuple[tuple[str, float], ...]
    #: Which scores of the metric are good.
    direction: Direction
    #: The same figures for slices of the rows, column by column; empty unless they were asked for.
    slices: tuple[Slice, ...]

    @property
    def doubt(self) -> str:
        """Why no mean is shown, in a sentence; empty where the judge answers."""
        told = silence(self.label_mass)
        return f"no mean is shown: {told}" if told else ""

    @property
    def based_on(self) -> str:
        """Say what the interval is for, which rows count as one document, and whether there are few."""
        count, told = self.documents, f"none ({self.grouping})"
        if self.interval.units:
            told = f"for other {self.noun} like these {count:,} ({self.grouping})"
        few = FEW_UNITS > count > 1 and not math.isnan(self.interval.low)
        return f"{told}; {count} are few: the interval is wide for that reason" if few else told

    @property
    def shown(self) -> Interval:
        """The mean score with its interval; NaN where there is none, and where the judge does not answer."""
        return Interval(math.nan, units=self.interval.units, warning=self.doubt) if self.doubt else self.interval

    @property
    def mean(self) -> float:
        """The mean score of `shown`."""
        return self.shown.value

    @property
    def low(self) -> float:
        """Lower end of the mean's interval; NaN where there is none."""
        return self.shown.low

    @property
    def high(self) -> float:
        """Upper end of the mean's interval; NaN where there is none."""
        return self.shown.high

    @property
    def unscored(self) -> int:
        """Rows without a score."""
        return self.rows - self.scored

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON values; a figure that does not exist is null, never NaN or 0."""
        by: dict[str, dict[str, Any]] = {}
        for one in self.slices:
            by.setdefault(one.column, {})[one.value] = one.summary.to_dict()
        return {
            "rows": self.rows,
            "scored": self.scored,
            "unscored": self.unscored,
            "mean": _finite(self.mean),
            "interval": None if math.isnan(self.low) else [self.low, self.high],
            "standard_error": _finite(self.shown.error),
            "documents": self.documents,
            "grouping": self.grouping,
            "warning": self.shown.warning or None,
            "std": _finite(self.std),
            "label_mass": self.mass_record() | {"other_tokens": [list(pair) for pair in self.other_tokens]},
            "threshold": self.threshold,
            "better": self.direction.value,
            "passed_share": self.passed_share,
            "shortened": self.shortened,
            "reasons": [reason.to_dict() for reason in self.reasons],
            **({"by": by} if by else {}),
            **self.thought_record(),
        }


@dataclass(frozen=True)
class Slice:
    """The figures of the rows that have one value in a column."""

    #: The column, and the value; `geval_local.slices.NO_VALUE` for rows without one.
    column: str
    value: str
    #: Their figures.
    summary: Summary

    @property
    def name(self) -> str:
        """How messages name it: ``language = de``."""
        return f"{self.column} = {self.value}"


#: Share of the missing mass that the listed tokens must account for.
SAID_BY_TOKENS = 0.5


def mass_remark(summary: Summary) -> str:
    """Say that the label mass is low, on the whole or in some rows, and what the judge wrote instead."""
    rows = f"{summary.low_mass_share:.1%}" if summary.low_mass_share >= 0.0005 else "less than 0.1%"
    share = f"below {LOW_LABEL_MASS:g} in {rows} of the scored rows"
    if summary.label_mass < LOW_LABEL_MASS:
        answers = "the judge does not answer here" if summary.label_mass < LEAST_LABEL_MASS else "it is low"
        told = f"label mass {summary.label_mass:.3f}, {share}: {answers}"
    else:
        told = f"label mass {share}, but not on average"
    if summary.other_tokens:
        told += "; there it writes " + ", ".join(f"{token!r} ({p:.1%})" for token, p in summary.other_tokens)
    if sum(p for _, p in summary.other_tokens) < SAID_BY_TOKENS * (1 - summary.label_mass):
        told += "; the rest starts like a label but continues as another number or word"
    return told


class _Counts:
    """What is counted of the rows of one metric or question."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rows = self._low_rows = 0
        # Reasons for rows without a figure, by their codes: text of the first, number of rows, and the first of them.
        self._reasons: dict[tuple[str, str], tuple[str, int, list[int | str], bool]] = {}
        self._thoughts = self._cut_thoughts = 0
        # Sum of the squared errors of the figures by thoughts; NaN if one of them is not known.
        self._thought_variance = self._thought_bias = 0.0

    def _counted(self, where: str, row: int | str | None, result: Score | Answer) -> bool:
        """Count a row; return whether it has a figure."""
        self._rows += 1
        if result.error is not None:
            text = result.error.removeprefix(f"{where}: ").split("\n", 1)[0]
            key = kind_of(Cause(text, code_of(result.error)))
            first, count, rows, same = self._reasons.get(key, (text, 0, [], True))
            same &= kind_of(first) == kind_of(text)
            self._reasons[key] = (first, count + 1, [*rows, row or self._rows][:ROWS_NAMED], same)
            return False
        self._low_rows += result.label_mass < LOW_LABEL_MASS
        if result.thoughts is not None:
            self._thoughts = result.thoughts.count
            self._cut_thoughts += result.thoughts.cut
            self._thought_variance += result.thoughts.error**2
            self._thought_bias += result.thoughts.bias
        return True

    def _shared(self, known: int, masses: int) -> dict[str, Any]:
        """Return the figures that all summaries have; `known` rows have a figure, `masses` of them a label mass."""
        reasons = [UnscoredReason(code, *own[:2], tuple(own[2]), own[3]) for (code, _), own in self._reasons.items()]
        return {
            "rows": self._rows,
            "low_mass_share": self._low_rows / masses if masses else math.nan,
            "reasons": tuple(sorted(reasons, key=lambda reason: -reason.count)),
            "thoughts": self._thoughts,
            "thought_error": math.sqrt(self._thought_variance) / known if self._thoughts and known else math.nan,
            "thought_bias": self._thought_bias / known if self._thoughts and known else math.nan,
            "cut_thoughts": self._cut_thoughts,
        }


class Tally(_Counts):
    """Accumulates the scores of one metric row by row, 25 bytes per row, and summarizes them at the end."""

    def __init__(self, metric: str, *, ends: Ends | None = None) -> None:
        super().__init__(metric)
        self._ends = ends
        self._values, self._masses, self._places = array("d"), array("d"), array("q")
        self._threshold: float | None = None
        self._direction = Direction.HIGH
        self._passed = self._judged = self._shortened = 0
        # The likeliest tokens outside the labels in rows of low mass, with the sum of their probabilities.
        self._other: dict[str, float] = {}
        self._slices: dict[tuple[str, str], Tally] = {}

    def cut(self, slicings: Sequence[Slicing]) -> None:
        """Sum up every slice that columns make of the rows, too."""
        self._slices = {(one.column, name): Tally(self.name, ends=self._ends) for one in slicings for name in one.names}

    def add(
        self,
        where: str,
        row: int | str | None,
        score: Score,
        place: int = 0,
        slices: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Add one row, and to its slice of every column; `place` is that of `Documents.add`."""
        for one in slices.items():
            self._slices[one].add(where, row, score, place)
        if not self._counted(where, row, score):
            return
        self._direction = score.direction
        self._values.append(score.value)
        self._masses.append(score.label_mass)
        self._places.append(place)
        if score.label_mass < LOW_LABEL_MASS:
            for token, p in score.other_tokens:
                self._other[token] = self._other.get(token, 0.0) + p
        self._shortened += score.dropped_tokens > 0
        if score.passed is not None:
            self._threshold = score.threshold
            self._passed += score.passed
            self._judged += 1

    def summary(self, documents: Documents | None = None) -> Summary:
        """Summarize the rows so far, and slices that have any; without `documents`, every row is one."""
        documents = documents or Documents()
        values = np.asarray(self._values, dtype=np.float64)
        masses = np.asarray(self._masses, dtype=np.float64)
        masses = masses[~np.isnan(masses)]  # of a table that holds scores only they are not known
        groups = documents.codes[np.asarray(self._places, dtype=np.int64)] if documents.counts.is_grouped else None
        others = sorted(self._other.items(), key=lambda pair: -pair[1])[:TOKENS_NAMED]
        slices = (Slice(*name, tally.summary(documents)) for name, tally in self._slices.items())
        return Summary(
            **self._shared(len(values), masses.size),
            metric=self.name,
            scored=len(values),
            interval=mean_interval(values, groups, ends=self._ends) if len(values) else Interval(math.nan),
            documents=len(values) if groups is None else np.unique(groups).size,
            grouping=documents.counts.told,
            noun=documents.counts.noun,
            std=float(values.std(ddof=1)) if len(values) > 1 else math.nan,
            label_mass=float(masses.mean()) if masses.size else math.nan,
            label_mass_min=float(masses.min()) if masses.size else math.nan,
            threshold=self._threshold,
            direction=self._direction,
            passed_share=self._passed / self._judged if self._judged else None,
            shortened=self._shortened,
            other_tokens=tuple((token, total / max(1, self._low_rows)) for token, total in others),
            slices=tuple(one for one in slices if one.summary.rows),
        )


@dataclass(frozen=True, kw_only=True)
class QuestionSummary(_Figures):
    """What the answers to one question came to. Rows without an answer are counted and enter no other figure."""

    #: Name of the results: the question's, with the judge's where there are several.
    name: str
    #: predicate, choice or score.
    type: str
    #: Rows with an answer.
    answered: int
    #: Mean probability of a predicate, or mean expected level of a score; NaN for a choice, and without an answer.
    mean: float
    #: Options of a choice, with how many rows each was the likeliest in; the most frequent first.
    chosen: tuple[tuple[str | bool, int], ...]
    #: Mean of the largest differences that the order of the outcomes made; None where one order was shown.
    spread: float | None
    #: The part of the mean spread that thoughts make: the mean of its standard errors; None where it is not known.
    spread_error: float | None

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
            "label_mass": self.mass_record(),
            "spread": self.spread,
            "reasons": [reason.to_dict() for reason in self.reasons],
            **({} if self.spread_error is None else {"spread_error": self.spread_error}),
            **self.thought_record(),
        }


class QuestionTally(_Counts):
    """Takes in the answers to one question row by row."""

    def __init__(self, name: str, question: Question) -> None:
        super().__init__(name)
        self.question = question
        self._answered = 0
        self._total = 0.0
        self._mass, self._mass_min = 0.0, math.inf
        self._spread = 0.0
        self._spread_error = 0.0
        self._orders = 1
        self._chosen: dict[tuple[type, str | bool], int] = {}

    def add(self, where: str, row: int | None, answer: Answer, *_: object) -> None:
        """Count one row; which of them are one document or slice does not matter."""
        if not self._counted(where, row, answer):
            return
        self._answered += 1
        self._mass += answer.label_mass
        self._mass_min = min(self._mass_min, answer.label_mass)
        self._spread += answer.spread or 0.0
        self._spread_error += math.nan if answer.spread_error is None else answer.spread_error
        self._orders = max(self._orders, answer.orders)
        if isinstance(answer, ChoiceAnswer):
            choice = answer.choice
            self._chosen[type(choice), choice] = self._chosen.get((type(choice), choice), 0) + 1
        else:
            self._total += answer.probability if isinstance(answer, PredicateAnswer) else answer.score

    def summary(self, documents: Documents | None = None) -> QuestionSummary:
        """Sum up the rows so far."""
        some = self._answered
        chosen = sorted(self._chosen.items(), key=lambda item: -item[1])
        return QuestionSummary(
            **self._shared(some, some),
            name=self.name,
            type=self.question.type,
            answered=some,
            mean=self._total / some if some and self.question.type != "choice" else math.nan,
            chosen=tuple((value, count) for (_, value), count in chosen),
            label_mass=self._mass / some if some else math.nan,
            label_mass_min=self._mass_min if some else math.nan,
            spread=self._spread / some if some and self._orders > 1 else None,
            spread_error=self._spread_error / some if some and not math.isnan(self._spread_error) else None,
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
