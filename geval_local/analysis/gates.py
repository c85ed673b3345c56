"""Gates: limits on a run's figures, and on what changed from a baseline; a failed gate sets the exit code to 1."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from geval_local.direction import Direction
from geval_local.io.columns import plain
from geval_local.score import LEAST_LABEL_MASS
from geval_local.summary import QuestionSummary, Slice, Summary, UnscoredReason

if TYPE_CHECKING:
    from geval_local.statistics.interval import Interval
    from geval_local.statistics.noninferiority import NotWorse, NotWorseSoFar

#: Instead of a metric's name: a gate of all metrics.
EVERY_METRIC = "all"
#: Most reasons in the message on a metric without a score.
REASONS_NAMED = 3
#: Share of the rows that must have a score for a mean or a share to count, unless a gate of the unscored rows decides.
LEAST_SCORED = 0.9
GATE_PATTERN = r"^\s*(>=|<=|>|<)\s*([+-]?[0-9]+(\.[0-9]+)?)\s*(%?)\s*$"
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
#: Sign of a limit -> words for a figure that misses it.
_WORDS = {">=": "under", "<=": "over", ">": "not over", "<": "not under"}
_SHARES = ("passed", "unscored")
#: The figures on the metric's own scale.
MEANS = ("mean", "mean_low", "mean_high")
#: Name of the comparison with a baseline.
NOT_WORSE = "not_worse"
#: Name of the check that every metric has, even without gates: some row has a score.
SCORED = "scored"
#: Rows that a failed gate shows.
ROWS_SHOWN = 3
_NAMES = {
    "mean": "the mean",
    "mean_low": "the lower end of the mean's interval",
    "mean_high": "the upper end of the mean's interval",
    "passed": "the share that passes",
    "label_mass": "the mean label mass",
}


class Limit(NamedTuple):
    """The right-hand side of a gate."""

    #: ``>=``, ``<=``, ``>`` or ``<``.
    sign: str
    #: The number; a share as 0 to 1.
    value: float
    #: Whether it was written in percent.
    is_share: bool

    @property
    def shown(self) -> str:
        """The number as text."""
        return f"{self.value:.2%}" if self.is_share else f"{self.value:g}"


#: Of a gate that limits no number.
NO_LIMIT = Limit(">=", 0.0, False)


def parse_limit(figure: str, text: str) -> Limit:
    """Read the limit of a figure: ``>= 3.5``, ``<= 2%``."""
    match = re.match(GATE_PATTERN, text)
    if match is None:
        example = ">= 90%" if figure == "passed" else "<= 2%" if figure == "unscored" else ">= 3.5"
        raise ValueError(f'{text!r} is no comparison; write one in quotes, such as "{example}"')
    sign, number, is_share = match[1], float(match[2]), bool(match[4])
    if is_share and figure not in _SHARES:
        raise ValueError(f"{text!r}: {figure} is no share, so its limit is not in percent")
    value = number / 100 if is_share else number
    if figure in ("passed", "label_mass") or is_share:
        if not 0 <= value <= 1:
            raise ValueError(f"{text!r}: a share is between 0 and 1, or 0% and 100%")
    elif figure == "unscored" and (value < 0 or value != int(value)):
        raise ValueError(f"{text!r}: rows are counted in whole numbers; a share is written in percent")
    return Limit(sign, value, is_share)


@dataclass(frozen=True)
class Gate:
    """One limit."""

    #: Name of the limited figure.
    figure: str
    #: The limit.
    limit: Limit = NO_LIMIT
    #: Name of a result (a metric, or ``metric@judge``), of a metric of any judge, or `EVERY_METRIC`.
    metric: str = EVERY_METRIC
    #: The column whose slices must each reach it; None: all rows together.
    by: str | None = None
    #: For `NOT_WORSE`: how much lower than the baseline the mean may be; None: any significant drop fails.
    margin: float | None = None
    #: The only slice that it is about; None: every slice of the column.
    value: str | None = None

    @property
    def told(self) -> str:
        """The gate as the file of an evaluation writes it, ``mean >= 3.5``; empty if no file asks for it."""
        if self.figure == NOT_WORSE:
            return NOT_WORSE if self.margin is None else f"{NOT_WORSE} by {self.margin:g}"
        return "" if self.figure == SCORED else f"{self.figure} {self.limit.sign} {self.limit.shown}"

    @property
    def place(self) -> str:
        """The metric, and the slice if there is one: ``rag/faithfulness, language = de``."""
        if self.by is None:
            return self.metric
        return f"{self.metric}, {self.by}" + ("" if self.value is None else f" = {self.value}")

    def concerns(self, result: str, metric: str) -> bool:
        """Whether the gate applies to a result, named by its metric or ``metric@judge``."""
        return self.metric in (EVERY_METRIC, result, metric)

    def misses_good(self, direction: Direction) -> bool:
        """Whether it limits a mean on the side that good scores are on: ``mean >= 3`` where low scores are good."""
        return self.figure in MEANS and (self.limit.sign[0] == ">") != (direction is Direction.HIGH)

    @property
    def is_of_scored(self) -> bool:
        """Whether it limits a figure of the scored rows; ``label_mass: ">= 0"`` limits nothing."""
        sign, limit, _ = self.limit
        return self.figure != "unscored" and not (self.figure == "label_mass" and _SIGNS[sign](0, limit))

    def checked(self, figures: Summary | QuestionSummary, what: str = "unscored") -> tuple[bool, str, float]:
        """Return whether it holds, a sentence, and the figure, NaN if it does not exist; a missing figure fails it."""
        sign, limit, is_share = self.limit
        if self.figure == "unscored":
            count, told = figures.unscored, f"{figures.unscored} of {figures.rows} rows are {what}"
            if _SIGNS[sign](count / max(figures.rows, 1) if is_share else count, limit):
                return True, told, float(count)
            beyond = "more than" if sign == "<=" else _WORDS[sign]
            return False, f"{told}, {beyond} {self.limit.shown}", float(count)
        assert isinstance(figures, Summary)
        found = {
            # The computed mean: a gate of the label mass may allow a mean that is not shown.
            "mean": figures.interval.value,
            "mean_low": figures.interval.low,
            "mean_high": figures.interval.high,
            "passed": math.nan if figures.passed_share is None else figures.passed_share,
            "label_mass": figures.label_mass,
        }[self.figure]
        name, shown = _NAMES[self.figure], f"{found:.2%}" if is_share else f"{found:.4g}"
        if _SIGNS[sign](found, limit):
            return True, f"{name} is {shown}", found
        if math.isnan(found):
            why = figures.interval.warning if self.figure in MEANS else ""
            return False, f"{name} is missing{f': {why}' if why else ''}", found
        return False, f"{name} {shown} is {_WORDS[sign]} {self.limit.shown}", found


class ShownRow(NamedTuple):
    """A row that explains a failed gate: the lowest, or of a comparison one that fell most."""

    #: Number of the row, and its ``id``, which may be empty.
    row: int
    id: str
    #: Score and judged text, and those of the baseline; NaN and empty without one.
    score: float
    output: str
    before: float = math.nan
    output_before: str = ""


#: A gate that is skipped holds nothing and fails nothing; it says why.
Verdict = Literal["holds", "failed", "skipped"]


@dataclass(frozen=True)
class GateOutcome:
    """The outcome of a gate, on one result or on one slice of its rows."""

    #: The gate, of one result, and of one slice if it is of slices.
    gate: Gate
    verdict: Verdict
    #: Sentence that says why, without the result and the slice.
    told: str
    #: The value of the figure; for `NOT_WORSE` the mean over documents of new minus old, in units of the scale. NaN if
    #: it does not exist.
    found: float = math.nan
    #: Number of rows with a score, in a comparison on both sides, and of their documents.
    scored: int = 0
    documents: int = 0
    #: Name of the data file; empty if there is only one.
    data: str = ""
    #: The test of a comparison, of the new run's advantage: new minus old if high scores are good, else old minus new.
    #: None if there is nothing to test.
    test: NotWorse | None = None
    #: Means over the shared documents.
    new: float = math.nan
    old: float = math.nan
    #: Result of the sequential test; None without it.
    so_far: NotWorseSoFar | None = None
    #: Which scores of the metric are good.
    direction: Direction = Direction.HIGH
    #: The baseline in words, and the command that shows more.
    baseline: str = ""
    next: str = ""
    #: Of a failed gate: the rows of its slice that fell most, or the lowest.
    rows: tuple[ShownRow, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether it does not fail."""
        return self.verdict != "failed"

    @property
    def full_name(self) -> str:
        """The data file's name, then the outcome's name."""
        return f"{self.data}: {self.name}" if self.data else self.name

    @property
    def told_at(self) -> str:
        """The sentence, after the result and the slice."""
        return f"{self.gate.place}: {self.told}"

    @property
    def sentence(self) -> str:
        """The data file's name, then `told_at`."""
        return f"{self.data}: {self.told_at}" if self.data else self.told_at

    @property
    def name(self) -> str:
        """Name of the outcome: ``rag/faithfulness, language = de: mean >= 3.5``."""
        return f"{self.gate.place}: {self.gate.told or 'rows have a score'}"

    @property
    def change(self) -> Interval | None:
        """The interval of new minus old; None without a test."""
        if self.test is None:
            return None
        one = self.test.difference
        if self.direction.sign > 0:
            return one
        return replace(one, value=-one.value, low=-one.high, high=-one.low)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        gate, change = self.gate, self.change
        compared: dict[str, Any] = {"new": self.new, "old": self.old}
        compared["interval"] = None if change is None else [change.low, change.high]
        compared["p"] = None if self.test is None else self.test.p
        compared |= {"baseline": self.baseline or None, "next": self.next or None}
        record = {
            **({"data": self.data} if self.data else {}),
            "name": self.name,
            "metric": gate.metric,
            "figure": gate.figure,
            "gate": gate.told or None,
            "slice": None if gate.value is None else {"column": gate.by, "value": gate.value},
            "passed": self.passed,
            "verdict": self.verdict,
            "found": self.found,
            "scored": self.scored,
            "documents": self.documents,
            "told": self.told_at,
            **(compared if gate.figure == NOT_WORSE else {}),
            "rows": [row._asdict() for row in self.rows],
        }
        return dict(plain(record))


def _unanswered(gates: Sequence[Gate], summary: Summary) -> str | None:
    """Say that thresholds and means do not count, because the judge does not answer; None if it does, or none is set.

    A gate of the label mass replaces this check: ``label_mass: ">= 0"`` allows anything.
    """
    figures = {gate.figure for gate in gates}
    if "label_mass" in figures or (summary.threshold is None and not figures & {*MEANS, "passed", NOT_WORSE}):
        return None
    if not summary.label_mass < LEAST_LABEL_MASS:
        return None
    return (
        f"the mean label mass {summary.label_mass:.3g} is under {LEAST_LABEL_MASS:g}: the judge does "
        "not answer, so nothing passes (a limit of 0 on `label_mass` allows it)"
    )


def _too_few(gates: Sequence[Gate], summary: Summary) -> str | None:
    """Say that too few rows have a score for a limit on a mean or a share; None if enough have, or none is set.

    A gate of the unscored rows replaces this check: ``unscored: "<= 50%"`` allows half of them.
    """
    if "unscored" in {gate.figure for gate in gates} or not any(gate.is_of_scored for gate in gates):
        return None
    if summary.scored >= LEAST_SCORED * summary.rows:
        return None
    counted = f"{summary.scored} of {summary.rows} rows have a score"
    return (
        f"{counted}, fewer than the {LEAST_SCORED:.0%} that a gate of a mean or a share "
        "needs (`max_unscored=N`, or the key unscored of the evaluation file, sets another limit)"
    )


def outcomes(
    gates: Sequence[Gate],
    summaries: Sequence[Summary],
    metrics: Sequence[str] = (),
    *,
    answers: Sequence[QuestionSummary] = (),
) -> list[GateOutcome]:
    """Check a run against its gates, except those of a baseline, see `geval_local.analysis.worse`.

    Parameters
    ----------
    gates : sequence of Gate
        The gates.
    summaries : sequence of Summary
        The figures of every result.
    metrics : sequence of str
        The metric of every result; by default the result's name.
    answers : sequence of QuestionSummary
        The figures of questions.
    """
    found: list[GateOutcome] = []
    for summary, metric in zip(summaries, metrics or [one.metric for one in summaries], strict=True):
        own = [replace(gate, metric=summary.metric) for gate in gates if gate.concerns(summary.metric, metric)]
        places: list[Slice | None] = [None]
        if summary.scored:
            columns = dict.fromkeys(gate.by for gate in own)
            places += [place for column in columns for place in summary.slices if place.column == column]
        for shown in places:
            found += _held(own, summary, shown)
    for answer in answers:
        if answer.rows and not answer.answered:
            why = _why(answer.rows, "an answer", answer.reasons)
            found.append(GateOutcome(Gate(SCORED, metric=answer.name), "failed", why))
            continue
        for gate in gates:
            if gate.figure == "unscored":
                holds, told, count = gate.checked(answer, "unanswered")
                own_gate = replace(gate, metric=answer.name)
                found.append(GateOutcome(own_gate, "holds" if holds else "failed", told, count, answer.answered))
    return found


def _held(gates: Sequence[Gate], summary: Summary, place: Slice | None) -> Iterator[GateOutcome]:
    """Check one result, or one slice of it, against its gates."""
    column, value = (None, None) if place is None else (place.column, place.value)
    own = [replace(gate, value=value) for gate in gates if gate.by == column]
    shown = summary if place is None else place.summary
    scored = Gate(SCORED, metric=summary.metric, by=column, value=value)
    counts = (shown.scored, shown.documents)
    if shown.rows and not shown.scored:
        yield GateOutcome(scored, "failed", _why(shown.rows, "a score", shown.reasons), math.nan, *counts)
        return
    # A limit of the unscored rows or of the label mass for all rows applies to every slice too.
    allowed = [*own, *(gate for gate in gates if gate.by is None and gate.figure in ("unscored", "label_mass"))]
    for told in filter(None, (_too_few(allowed, shown), _unanswered(allowed, shown))):
        yield GateOutcome(scored, "failed", told, math.nan, *counts)
    for gate in own:
        if gate.figure != NOT_WORSE:
            holds, told, found = gate.checked(shown)
            yield GateOutcome(gate, "holds" if holds else "failed", told, found, *counts)


def _why(rows: int, what: str, reasons: Sequence[UnscoredReason]) -> str:
    told = f"the only row has no {what.split()[-1]}" if rows == 1 else f"none of {rows} rows has {what}"
    named = "; ".join(
        reason.text + (f" ({reason.count} rows)" if reason.count > 1 else "") for reason in reasons[:REASONS_NAMED]
    )
    return f"{told}: {named}" if named else told
