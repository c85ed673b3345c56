"""The mean rating of all rows, estimated from the judge's scores of all and people's ratings of a few."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from geval_local.analysis.differences import doubt_of
from geval_local.analysis.example_rows import examples_told
from geval_local.analysis.ratings.values import HumanFields, members_of, rating_fields
from geval_local.analysis.results import Reading, ResultsGiven, ScoredRun
from geval_local.analysis.tables import Study, Table, interval, interval_warnings, number, p_value, raters_told
from geval_local.errors import ConfigurationError, DataError
from geval_local.statistics.interval import Ends, Interval
from geval_local.statistics.prediction_powered import Estimate, estimate_difference, estimate_mean
from geval_local.statistics.raters import fit_raters, variance_components
from geval_local.statistics.records import EXAMPLE, ScoredItem, labels_of
from geval_local.statistics.significance import holm

ALL = "all rows"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimates(Study):
    """Mean ratings of all rows, estimated with the judge's help."""

    #: The results, the metric, and a description of the estimated figure.
    file: str
    metric: str
    what: str
    #: How rows are grouped into documents, in words.
    grouping: str
    #: System, or pair of systems with `wins`, -> its estimate; one entry for all rows without systems.
    estimates: dict[str, Estimate]
    #: ``first - second`` -> their difference, its two-sided p without and with Holm's correction, and, with three or
    #: more raters, the difference with an interval that also covers other raters.
    differences: dict[str, tuple[Interval, float, float, Interval | None]]
    #: Rater -> mean rating, and number of rated rows.
    raters: dict[str, tuple[float, int]] = field(default_factory=dict)
    #: Source of a rating's variance -> its variance component; empty with fewer than three raters.
    components: dict[str, float] = field(default_factory=dict)
    #: Sentence that says why the judge has no mean; empty if it answers.
    doubt: str = ""
    #: Notes on the rows that were left out as the metric's examples.
    left_out: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values; the means of a judge that does not answer are None."""
        record = super().to_dict()
        for own in record["estimates"].values() if self.doubt else ():
            own |= {"judge": None, "judge_of_rated": None}
        return record

    def lines(self) -> list[str]:
        """Say why the judge has no mean."""
        return [f"{self.metric}: {self.doubt}"] if self.doubt else []

    def shown(self) -> Iterator[Table]:
        """Give the estimates and their differences."""
        columns: dict[str, Callable[[Estimate], Any]] = {
            "judge": lambda one: "-" if self.doubt else one.judge.value,
            "people, rated rows": lambda one: f"{interval(one.people)}, n {one.rated} of {one.n}",
            "people and judge": lambda one: one.combined,
            "for other raters": lambda one: one.other_raters,
            "of these rows": lambda one: one.these if one.rated < one.n else f"{number(one.combined.value)}, all rated",
            "worth": lambda one: f"{number(one.worth, 0)} ratings" if one.helps else "the judge does not help here",
        }
        notes = [
            "people and judge: 95 % interval of the mean of such documents, if the rated ones were drawn at random "
            "(PPI++, Angelopoulos et al., 2023); of these rows: of no others; judge: no estimate of people's mean",
            "worth: ratings that would give as short an interval without the judge",
            *interval_warnings({name: one.combined for name, one in self.estimates.items()}),
        ]
        if not self.components:
            del columns["for other raters"]
        table = Table.over(self.estimates, columns, notes)
        yield table.titled(f"{self.metric}: {self.what}, as people would rate")
        if self.differences:
            rows = [(name, d, p_value(p), p_value(h), wide) for name, (d, p, h, wide) in self.differences.items()]
            note = "p: two-sided, Student's t; p (Holm): for all differences of this table"
            other = "for other raters" if self.components else None
            table = Table.of(("", "difference", "p", "p (Holm)", other), rows, (note,))
            yield table.titled("differences, with the judge")

    def remarks(self) -> list[tuple[str, bool]]:
        """Say how rows were grouped, and warn if the rated rows are not a random sample."""
        found = [(one, False) for one in (self.grouping, *self.left_out, *raters_told(self.raters))]
        if self.components:
            parts = ", ".join(f"{name} {number(value)}" for name, value in self.components.items())
            found.append((f"variance of a rating: {parts}", False))
        for name, one in self.estimates.items():
            if one.unscored:
                told = f"{one.unscored} rows without a score are left out, with their ratings"
                found.append((f"note: {name}: {told}", True))
            if one.p_sample < 0.01 and not self.doubt:
                told = f"{number(one.judge_of_rated)} against {number(one.judge.value)} of all"
                found.append(
                    (f"warning: {name}: rated rows do not look like a random sample: the judge gives them {told}", True)
                )
        return found


def estimate(
    results: ResultsGiven,
    human: HumanFields | None = None,
    *,
    raters: Sequence[str] = (),
    sheet: str | Path | None = None,
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
        Field of the human rating, empty in rows without one. A path into a list of objects names their raters.
    raters : sequence of str
        Fields of single people's ratings. Their mean replaces `human`; three or more give an interval that also covers
        other raters.
    sheet : path, optional
        A sheet of `plan_ratings` with ratings filled in.
    metric : str, optional
        The metric, if the results have several.
    share : float, optional
        Estimate the share of rows that people would rate this or higher, instead of the mean.
    wins : bool
        Estimate how often people would rate one system above another on a document; a tie is half a win.
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
    if bool(raters) == (human is not None) or (wins and raters):
        raise ConfigurationError(
            "an estimate needs ratings by `human`, or by `raters`; wins need those by `human`", hint="Name one of them."
        )
    run = ScoredRun.of(results, **reading).readable()
    name = run.one_metric(metric)
    if human is not None and not wins:
        members = members_of([*run.rows.inputs()], rating_fields(human, [name])[name])
        human, raters = (None, members) if members else (human, raters)
    described = run.origin(name).definition.scale if run.is_described(name) else None
    if sheet is not None:
        run = run.with_sheet(sheet, list(raters) or list(rating_fields(human, [name]).values()), metric=name)
    items = run.items(name, human=human, against_people=True)
    told = examples_told(name, items)
    kept = [item.error != EXAMPLE for item in items]
    ratings = {who: np.array(own)[kept] for who, own in run.ratings(name, raters, every=True).items()}
    items = [item for item in items if item.error != EXAMPLE]
    doubt = doubt_of(items)
    named = list(dict.fromkeys(item.system for item in items))
    if baseline is not None and baseline not in named:
        raise ConfigurationError(f"there is no system {baseline!r}", hint=f"The systems are: {', '.join(named)}.")
    couples = [pair for pair in combinations(named, 2) if baseline in (None, *pair)] if len(named) > 1 else []
    what = "mean" if share is None else f"share of {share:g} or higher"
    if share is not None:
        items = [_reaching(item, share) for item in items]
        ratings = {who: np.where(np.isfinite(own), own >= share, math.nan) for who, own in ratings.items()}
    table = np.array(list(ratings.values()))
    fitted = fit_raters(table) if raters else None
    items = items if fitted is None else fitted.rated(items)
    groups = {one or ALL: [item for item in items if item.system == one] for one in named}
    is_share = share is not None or wins
    if wins:
        what = "share of documents won, a tie counting half"
        groups = {f"{one} over {other}": _won(groups[one], groups[other]) for one, other in couples}
        if not groups:
            raise DataError("wins need two systems", hint="Name the column that holds the system with `system`.")
    given = table if raters else np.array([item.human for own in groups.values() for item in own])
    labels = labels_of(items) if described is None else [described.low, described.high]
    ends, cut = _ends_and_cut(labels, given[np.isfinite(given)], is_share=is_share)
    shifts = {}
    if len(ratings) > 2:
        own = {one: [item.system == one for item in items] for one in named}
        shifts = {one or ALL: dict(zip(ratings, fit_raters(table[:, own[one]]).added, strict=True)) for one in named}
    found = {one: _estimated(one, rows, ends, cut, shifts.get(one)) for one, rows in groups.items()}
    apart = {} if wins else _differences(found, couples)
    parts = {}
    if fitted is not None and shifts:
        parts = variance_components(fitted, [item.group for item in items], [item.system for item in items])
    people = {} if fitted is None else dict(zip(ratings, fitted.own, strict=True))
    return Estimates(str(run.path), name, what, run.documents.told, found, apart, people, parts, doubt, told)


def _estimated(
    system: str, rows: Sequence[ScoredItem], ends: Ends | None, cut: float | None, raters: Mapping[str, float] | None
) -> Estimate:
    """Estimate the mean of one system, or of one over another."""
    rated = {item.group for item in rows if math.isfinite(item.human) and math.isfinite(item.predicted)}
    if (count := len(rated)) < 3:
        raise DataError(
            f"{system}: {count} documents have a rating and a score; an estimate needs three, an interval of use 20",
            hint="Rate rows drawn at random: geval-local estimate RESULTS --human COLUMN --plan N -o SHEET.csv",
        )
    return estimate_mean(rows, ends=ends, cut=cut, raters=raters)


def _differences(
    found: Mapping[str, Estimate], couples: Sequence[tuple[str, str]]
) -> dict[str, tuple[Interval, float, float, Interval | None]]:
    """Estimate the differences of systems, with Holm's correction for their number."""
    tests = [estimate_difference(found[one], found[other]) for one, other in couples]
    both = zip(couples, tests, holm([own for _, own, _ in tests]), strict=True)
    return {f"{one} - {other}": (d, own, holms, wide) for (one, other), (d, own, wide), holms in both}


def _ends_and_cut(labels: Sequence[float], given: Floats, *, is_share: bool) -> tuple[Ends | None, float | None]:
    """Find the ends of the ratings' scale, and for yes or no ratings the score above which the judge says yes.

    The ends are those of the judge's labels (in ascending order), if they enclose all ratings.
    """
    if is_share or np.isin(given, (0, 1)).all():
        return (0.0, 1.0), (labels[0] + labels[-1]) / 2 if labels and not is_share else 0.5
    inside = len(labels) > 1 and labels[0] <= given.min() and given.max() <= labels[-1]
    return (labels[0], labels[-1]) if inside else None, None


def _reaching(item: ScoredItem, share: float) -> ScoredItem:
    """Replace rating and score by whether they reach `share`; a distribution gives the probability."""
    score = float(item.predicted >= share) if math.isfinite(item.predicted) else math.nan
    if math.isfinite(score) and labels_of([item]):
        score = sum(p for label, p in (item.probabilities or {}).items() if float(label) >= share)
    human = float(item.human >= share) if math.isfinite(item.human) else math.nan
    return replace(item, human=human, predicted=score)


def _won(first: Sequence[ScoredItem], second: Sequence[ScoredItem]) -> list[ScoredItem]:
    """Make one item for every document that both answered: 1 if the first is higher, 0.5 for a tie, else 0."""
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
