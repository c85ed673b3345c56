"""Gates: limits on a run's figures that turn its exit code to 1."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from geval_local.score import LEAST_LABEL_MASS
from geval_local.summary import QuestionSummary, Summary, UnscoredReason

#: In the place of a metric's name: a gate of all of them.
EVERY_METRIC = "all"
#: Reasons that are named for a metric without a score.
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
#: How a failure says which side of the limit the figure is on.
_WORDS = {">=": "under", "<=": "over", ">": "not over", "<": "not under"}
_SHARES = ("passed", "unscored")
_NAMES = {
    "mean": "the mean",
    "mean_low": "the lower end of the mean's interval",
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


def parse_limit(figure: str, text: str) -> Limit:
    """Read what a figure must reach: ``>= 3.5``, ``<= 2%``."""
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

    #: What is looked at.
    figure: str
    #: What it must reach.
    limit: Limit
    #: Name of a result (a metric, or ``metric@judge``), of a metric of any judge, or `EVERY_METRIC`.
    metric: str = EVERY_METRIC

    def concerns(self, result: str, metric: str) -> bool:
        """Whether it is a gate of a result, which is named by its metric, or ``metric@judge``."""
        return self.metric in (EVERY_METRIC, result, metric)

    @property
    def is_of_scored(self) -> bool:
        """Whether it limits a figure of the scored rows; ``label_mass: ">= 0"`` limits nothing."""
        sign, limit, _ = self.limit
        return self.figure != "unscored" and not (self.figure == "label_mass" and _SIGNS[sign](0, limit))

    def missing(self, name: str, figures: Summary | QuestionSummary, what: str) -> str | None:
        """Say that too many rows have no figures; None if they do not."""
        sign, limit, is_share = self.limit
        count = figures.unscored / max(figures.rows, 1) if is_share else figures.unscored
        if _SIGNS[sign](count, limit):
            return None
        return f"{name}: {figures.unscored} of {figures.rows} rows are {what}, {_beyond(self.limit)}"

    def failure(self, summary: Summary) -> str | None:
        """Say why it fails; None if it does not. A figure that does not exist fails it."""
        if self.figure == "unscored":
            return self.missing(summary.metric, summary, "unscored")
        sign, limit, is_share = self.limit
        figure = self._figure(summary)
        if _SIGNS[sign](figure, limit):
            return None
        if math.isnan(figure):
            why = summary.interval.warning if self.figure == "mean_low" else ""
            return f"{summary.metric}: {_NAMES[self.figure]} is missing{f': {why}' if why else ''}"
        shown = f"{limit:.2%}" if is_share else f"{limit:g}"
        found = f"{figure:.2%}" if is_share else f"{figure:.4g}"
        return f"{summary.metric}: {_NAMES[self.figure]} {found} is {_WORDS[sign]} {shown}"

    def _figure(self, summary: Summary) -> float:
        if self.figure == "passed":
            return math.nan if summary.passed_share is None else summary.passed_share
        # As computed: a gate of the label mass may allow a mean that is not shown.
        mean = summary.interval
        return {"mean": mean.value, "mean_low": mean.low, "label_mass": summary.label_mass}[self.figure]


def checked(gates: Sequence[Gate], summaries: Sequence[Summary], metrics: Sequence[str] = ()) -> int:
    """Count the limits that a run was held against; parameters as `failures`."""
    pairs = zip(summaries, metrics or [one.metric for one in summaries], strict=True)
    return sum(gate.concerns(summary.metric, metric) for summary, metric in pairs for gate in gates)


def _unanswered(gates: Sequence[Gate], summary: Summary) -> str | None:
    """Say that no threshold and no mean counts, because the judge does not answer; None if it does, or none is set.

    A gate of the label mass itself goes before this one: ``label_mass: ">= 0"`` allows anything.
    """
    figures = {gate.figure for gate in gates}
    if "label_mass" in figures or (summary.threshold is None and not figures & {"mean", "mean_low", "passed"}):
        return None
    if not summary.label_mass < LEAST_LABEL_MASS:
        return None
    return (
        f"{summary.metric}: the mean label mass {summary.label_mass:.3g} is under {LEAST_LABEL_MASS:g}: the judge does "
        "not answer, so nothing passes (a limit of 0 on `label_mass` allows it)"
    )


def _too_few(gates: Sequence[Gate], summary: Summary) -> str | None:
    """Say that a mean or a share is of too few rows to be held against a limit; None if it is not, or none is set.

    A gate of the unscored rows goes before this one: ``unscored: "<= 50%"`` allows half of them.
    """
    if "unscored" in {gate.figure for gate in gates} or not any(gate.is_of_scored for gate in gates):
        return None
    if summary.scored >= LEAST_SCORED * summary.rows:
        return None
    counted = f"{summary.scored} of {summary.rows} rows have a score"
    return (
        f"{summary.metric}: {counted}, fewer than the {LEAST_SCORED:.0%} that a gate of a mean or a share "
        "needs (`max_unscored=N`, or the key unscored of the evaluation file, sets another limit)"
    )


def failures(
    gates: Sequence[Gate],
    summaries: Sequence[Summary],
    metrics: Sequence[str] = (),
    *,
    answers: Sequence[QuestionSummary] = (),
) -> list[str]:
    """Say which gates a run has failed, and which metrics or questions have nothing at all, gates or not."""
    found = []
    for summary, metric in zip(summaries, metrics or [one.metric for one in summaries], strict=True):
        if summary.rows and not summary.scored:
            found.append(f"{summary.metric}: {_why(summary.rows, 'a score', summary.reasons)}")
            continue
        own = [gate for gate in gates if gate.concerns(summary.metric, metric)]
        told = (_too_few(own, summary), _unanswered(own, summary), *(gate.failure(summary) for gate in own))
        found += [one for one in told if one is not None]
    for answer in answers:
        if answer.rows and not answer.answered:
            found.append(f"{answer.name}: {_why(answer.rows, 'an answer', answer.reasons)}")
            continue
        for gate in gates:
            if gate.figure == "unscored" and (failed := gate.missing(answer.name, answer, "unanswered")):
                found.append(failed)
    return found


def _beyond(limit: Limit) -> str:
    """Say how a count or share of rows misses its limit."""
    told = f"{limit.value:.2%}" if limit.is_share else f"{limit.value:.4g}"
    return f"{'more than' if limit.sign == '<=' else _WORDS[limit.sign]} {told}"


def _why(rows: int, what: str, reasons: Sequence[UnscoredReason]) -> str:
    told = f"the only row has no {what.split()[-1]}" if rows == 1 else f"none of {rows} rows has {what}"
    named = "; ".join(
        reason.text + (f" ({reason.count} rows)" if reason.count > 1 else "") for reason in reasons[:REASONS_NAMED]
    )
    return f"{told}: {named}" if named else told
