"""What people would say of all rows, from the judge's scores of all and people's ratings of a few."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from typing_extensions import Unpack

from geval_local.analysis.results import HumanFields, Reading, ResultsGiven, ScoredRun
from geval_local.analysis.tables import Study, Table, interval, interval_warnings, number, p_value
from geval_local.errors import ConfigurationError, DataError
from geval_local.statistics.interval import Interval
from geval_local.statistics.prediction_powered import Estimate, estimate_difference, estimate_mean
from geval_local.statistics.records import ScoredItem, labels_of
from geval_local.statistics.significance import holm

ALL = "all rows"


@dataclass(frozen=True)
class Estimates(Study):
    """Means as people would rate, with the judge's help."""

    #: The results, the metric, and what is estimated, in words.
    file: str
    metric: str
    what: str
    #: How rows are grouped into documents, in words.
    grouping: str
    #: System -> its estimate; or all rows.
    estimates: dict[str, Estimate]
    #: ``first - second`` -> their difference, and its two-sided p with and without Holm's correction.
    differences: dict[str, tuple[Interval, float, float]]

    def shown(self) -> Iterator[Table]:
        """Give the estimates and their differences."""
        columns: dict[str, Callable[[Estimate], Any]] = {
            "judge": lambda one: one.judge.value,
            "people, rated rows": lambda one: f"{interval(one.people)}, n {one.rated} of {one.n}",
            "people and judge": lambda one: one.combined,
            "worth": lambda one: f"{number(one.worth, 0)} ratings" if one.helps else "the judge does not help here",
        }
        notes = [
            "95 % intervals over documents hold where the rated rows are a random sample of all (PPI++, Angelopoulos "
            "et al., 2023); judge: its own mean of all rows, which is no estimate of people's",
            "worth: ratings that would give as short an interval without the judge",
            *interval_warnings({name: one.combined for name, one in self.estimates.items()}),
        ]
        table = Table.over(self.estimates, columns, notes)
        yield table.titled(f"{self.metric}: {self.what}, as people would rate")
        if self.differences:
            rows = [(name, d, p_value(p), p_value(h)) for name, (d, p, h) in self.differences.items()]
            note = "p: two-sided, Student's t; p (Holm): for all differences of this table"
            table = Table.of(("", "difference", "p", "p (Holm)"), rows, (note,))
            yield table.titled("differences, with the judge")

    def remarks(self) -> list[tuple[str, bool]]:
        """Say how rows were grouped, and where rated rows are no random sample."""
        found = [(self.grouping, False)]
        for name, one in self.estimates.items():
            if one.unscored:
                told = f"{one.unscored} rows without a score are left out, with their ratings"
                found.append((f"note: {name}: {told}", True))
            if one.p_sample < 0.01:
                told = f"{number(one.judge_of_rated)} against {number(one.judge.value)} of all"
                found.append(
                    (f"warning: {name}: rated rows do not look like a random sample: the judge gives them {told}", True)
                )
        return found


def estimate(
    results: ResultsGiven,
    human: HumanFields,
    *,
    metric: str | None = None,
    share: float | None = None,
    wins: bool = False,
    baseline: str | None = None,
    **reading: Unpack[Reading],
) -> Estimates:
    """Estimate the mean rating of every system from many scores and few ratings, with a valid interval.

    Parameters
    ----------
    results : path, RunResult, sequence of mapping, or data frame
        Results of `score`; a random sample of the rows has a rating.
    human : str
        Field of the human rating, empty where there is none.
    metric : str, optional
        Which metric, where there are several.
    share : float, optional
        Estimate the share of rows that people would rate this or higher, in place of the mean.
    wins : bool
        Estimate how often one system is rated above another on a document; a tie is half a win.
    baseline : str, optional
        Compare every system with this one only.
    **reading
        Fields of the document and of the system, and how scores are read: see `Reading`.

    Raises
    ------
    ConfigurationError, DataError
        If the results cannot be used, or a system has fewer than three rated documents.
    """
    if wins and share is not None:
        raise ConfigurationError("a share and wins are two things to estimate", hint="Take one.")
    run = ScoredRun.of(results, **reading)
    name = run.one_metric(metric)
    items = run.items(name, human=human, group_by=run.documents[0])
    named = list(dict.fromkeys(item.system for item in items))
    if baseline is not None and baseline not in named:
        raise ConfigurationError(f"there is no system {baseline!r}", hint=f"The systems are: {', '.join(named)}.")
    couples = [pair for pair in combinations(named, 2) if baseline in (None, *pair)] if len(named) > 1 else []
    what = "mean" if share is None else f"share of {share:g} or higher"
    groups = {one or ALL: [item for item in items if item.system == one] for one in named}
    if wins:
        what = "share of documents won, a tie counting half"
        groups = {f"{one} over {other}": _won(groups[one], groups[other]) for one, other in couples}
        if not groups:
            raise DataError("wins need two systems", hint="Name the column that holds the system with `system`.")
    found = {one: _estimated(one, own, share, wins=wins) for one, own in groups.items()}
    differences = {}
    if not wins and couples:
        tests = {f"{one} - {other}": estimate_difference(found[one], found[other]) for one, other in couples}
        p = holm([own[1] for own in tests.values()])
        differences = {key: (*own, value) for (key, own), value in zip(tests.items(), p, strict=True)}
    return Estimates(str(run.path), name, what, run.documents[1], found, differences)


def _estimated(name: str, items: Sequence[ScoredItem], share: float | None, *, wins: bool) -> Estimate:
    rated = {item.group for item in items if math.isfinite(item.human) and math.isfinite(item.predicted)}
    if len(rated) < 3:
        raise DataError(
            f"{name}: {len(rated)} documents have a rating and a score; an estimate needs three, an interval of use 20",
            hint="Rate a random sample of the rows, the same column for all of them.",
        )
    values = {item.human for item in items if math.isfinite(item.human)}
    verdicts = None
    if share is not None:
        verdicts = [float(item.predicted >= share) for item in items]
        items = [_reaching(item, share) for item in items]
    elif values <= {0.0, 1.0} and not wins:
        labels = labels_of(items)
        cut = (labels[0] + labels[-1]) / 2 if labels else 0.5
        verdicts = [float(item.predicted > cut) for item in items]
    return estimate_mean(items, verdicts)


def _reaching(item: ScoredItem, share: float) -> ScoredItem:
    """Turn rating and score into whether they reach a value; of a distribution, how probably."""
    score = float(item.predicted >= share) if math.isfinite(item.predicted) else math.nan
    if math.isfinite(score) and labels_of([item]):
        score = sum(p for label, p in (item.probabilities or {}).items() if float(label) >= share)
    human = float(item.human >= share) if math.isfinite(item.human) else math.nan
    return replace(item, human=human, predicted=score)


def _won(first: Sequence[ScoredItem], second: Sequence[ScoredItem]) -> list[ScoredItem]:
    """Make one item of every document that both answered: 1 where the first is above, one half for a tie."""
    others = {item.group: item for item in second}
    if len(others) < len(second) or len({item.group for item in first}) < len(first):
        raise DataError("a system has several rows of one document, so that none is won", hint="Estimate the mean.")

    def won(one: float, other: float) -> float:
        return 0.5 + 0.5 * ((one > other) - (one < other)) if math.isfinite(one + other) else math.nan

    return [
        replace(item, human=won(item.human, other.human), predicted=won(item.predicted, other.predicted))
        for item in first
        if (other := others.get(item.group)) is not None
    ]
