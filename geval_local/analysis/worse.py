"""Is a run worse than its baseline? Rows are paired by id, by question, or by document, and tested by document.

Without a margin a metric fails if its scores dropped significantly. With a margin it fails unless the test shows that
the scores are not lower by that margin or more (non-inferiority). Both use `geval_local.statistics.noninferiority`.
Scores that differ by no more than rounding are equal.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import Unpack

from geval_local.analysis.comparison import Differ, allowed_differences, shared_metrics, told_differ
from geval_local.analysis.differences import doubt_of
from geval_local.analysis.results import Reading, ResultsGiven, ScoredRun
from geval_local.analysis.tables import Study, Table, as_record, digits, interval, number, p_value
from geval_local.direction import Direction
from geval_local.errors import ConfigurationError, DataError, GevalError
from geval_local.fields import counted, lookup
from geval_local.io.samples import Sample
from geval_local.slices import Slicing, find_slicings
from geval_local.statistics.interval import FEW_UNITS
from geval_local.statistics.noninferiority import TOO_FEW, NotWorse, NotWorseSoFar, missed, not_worse, not_worse_so_far
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.significance import LEVEL

#: The judged field, which a new version changes.
_OUTPUT = "output"


class BaselineQuestion(NamedTuple):
    """A question about a run and its baseline."""

    #: Name of the result.
    metric: str
    #: How much lower the mean may be, in units of the scale; None: any significant drop counts.
    margin: float | None = None
    #: Column and value that select the rows; None: all rows.
    column: str | None = None
    value: str | None = None

    @property
    def place(self) -> str:
        """The metric, and the slice if there is one."""
        return self.metric if self.column is None else f"{self.metric}, {self.column} = {self.value}"


@dataclass(frozen=True)
class Change:
    """How the scores of shared rows changed from the baseline, and whether the run passes.

    Attributes
    ----------
    passed : bool
        Whether the run is not worse.
    told : str
        Sentence that states the result with its figures.
    difference : float
        Mean over documents of new minus old, in units of the scale; NaN if nothing is shared or the judge does not
        answer.
    test : NotWorse, optional
        The test, of the new run's advantage: new minus old if high scores are good, else old minus new. None if there
        is nothing to test.
    new, old : float
        Means over the shared documents.
    rows, documents : int
        Number of new rows with a partner in the baseline, and of their documents.
    margin : float, optional
        How much worse the mean may be.
    """

    passed: bool
    told: str
    difference: float = math.nan
    test: NotWorse | None = None
    new: float = math.nan
    old: float = math.nan
    rows: int = 0
    documents: int = 0
    margin: float | None = None
    #: Result of the sequential test; None without it.
    so_far: NotWorseSoFar | None = None
    #: Which scores of the metric are good.
    direction: Direction = Direction.HIGH


@dataclass(frozen=True)
class WorseStudy(Study):
    """A run compared with its baseline."""

    #: The new run and the old run.
    runs: tuple[ScoredRun, ScoredRun]
    #: Metric -> key of the signature -> its values.
    differ: Differ
    #: Descriptions of how rows were paired, and grouped into documents.
    pairing: str
    grouping: str
    #: Question -> result.
    changes: dict[BaselineQuestion, Change]
    #: How columns cut the rows.
    slicings: Sequence[Slicing] = ()

    @property
    def passed(self) -> bool:
        """Whether every question passes."""
        return all(change.passed for change in self.changes.values())

    @property
    def failures(self) -> list[str]:
        """Say what is worse."""
        return [f"{asked.place}: {change.told}" for asked, change in self.changes.items() if not change.passed]

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values."""
        found = [
            {"metric": asked.metric, "slice": None if asked.column is None else [asked.column, asked.value]}
            | as_record(change)
            for asked, change in self.changes.items()
        ]
        record = {"new": self.runs[0].path, "old": self.runs[1].path, "differ": self.differ, "pairing": self.pairing}
        record |= {"grouping": self.grouping, "passed": self.passed}
        return dict(as_record(record)) | {"changes": found}

    def lines(self) -> list[str]:
        """Give what was compared, and how."""
        told = [
            f"{name}  {run.path}, {len(run.rows)} rows" for name, run in zip(("new", "old"), self.runs, strict=True)
        ]
        return [
            *told,
            *told_differ(self.differ),
            self.pairing,
            self.grouping,
            *(s.told for s in self.slicings if s.told),
        ]

    def shown(self) -> Iterator[Table]:
        """Give a row for every question."""
        headers = ("", "documents", "new / old", "new - old", "p", "could be found", "verdict")
        rows = [
            (
                asked.place,
                change.documents,
                f"{number(change.new)} / {number(change.old)}",
                "-" if change.test is None else interval(_turned(change)),
                "-" if change.test is None else p_value(change.test.p),
                "-" if change.test is None else number(change.test.detectable, 2),
                _verdict(change),
            )
            for asked, change in self.changes.items()
        ]
        margins = {asked.margin for asked in self.changes}
        notes = ["95 % intervals over documents; could be found: a loss, or a margin, found with 80 % probability"]
        if None in margins:
            notes.append("worse: a one-sided test shows it; its level of .05 is shared by all rows of this table")
        if margins - {None}:
            notes.append("not worse: a one-sided test at .05 shows that the mean is not worse by the margin or more")
        yield Table.of(headers, rows, notes).titled("Is the new run worse than the old one?")


def is_worse(
    new: ResultsGiven | ScoredRun,
    old: ResultsGiven | ScoredRun,
    *,
    metrics: Sequence[str] = (),
    margin: float | None = None,
    by: Sequence[str] = (),
    across: Sequence[str] = (),
    sequential: bool = False,
    **reading: Unpack[Reading],
) -> WorseStudy:
    """Say whether a run is worse than its baseline, metric by metric.

    Parameters
    ----------
    new, old : path, RunResult, rows or data frame
        The run, and its baseline.
    metrics : sequence of str
        Names of the metrics to test; by default all that both runs have.
    margin : float, optional
        How much lower the mean may be, in units of the scale, 0 or more. The run is then worse unless the test shows
        that it is not lower by this margin. Without a margin, it is worse if the test shows a drop.
    by : sequence of str
        Columns of the new rows; every slice by their values is tested too.
    across : sequence of str
        Keys of the signature in which the two may differ, ``versions`` or ``any``.
    sequential : bool
        Use the sequential test, whose error level covers repeated looks at a growing file. The order of the rows must
        not depend on their scores.
    **reading
        As in `geval_local.analysis.comparison.compare`.

    Raises
    ------
    ConfigurationError
        If the signatures differ in keys that `across` does not name, or a metric is missing.
    DataError
        If nothing pairs the rows.
    """
    run, before = (one if isinstance(one, ScoredRun) else ScoredRun.of(one, **reading) for one in (new, old))
    names = shared_metrics((run, before), metrics)
    slicings = find_slicings(run.rows, by, run.mapping) if by else []
    places = [(None, None), *((one.column, name) for one in slicings for name in one.names)]
    asked = [BaselineQuestion(name, margin, *place) for name in names for place in places]
    return changes(run, before, asked, slicings=slicings, across=across, sequential=sequential)


def changes(
    new: ScoredRun,
    old: ScoredRun,
    asked: Iterable[BaselineQuestion],
    *,
    slicings: Sequence[Slicing] = (),
    across: Sequence[str] = (),
    tests: int | None = None,
    sequential: bool = False,
) -> WorseStudy:
    """Answer questions about a run and its baseline; raises as `is_worse` does.

    `tests` is the number of tests without a margin that share one level; by default the number in `asked`.
    """
    asked = list(dict.fromkeys(asked))
    for margin in dict.fromkeys(question.margin for question in asked):
        if margin is not None and not 0 <= margin < math.inf:
            raise ConfigurationError(f"a margin is 0 or more, not {margin:g}", hint="In units of the scale.")
    names = list(dict.fromkeys(question.metric for question in asked))
    differ = allowed_differences(new, old, shared_metrics((new, old), names), across, texts=False)
    keys, pairing = _keys(new, old, names)
    documents = new.documents
    grouping = documents.told
    if documents.names is None and len(set(keys[0])) < len(keys[0]):
        grouping = "rows that were paired as one count as one document"
    columns = {one.column: one for one in slicings}
    slices = {name: [one.slice_of(row, new.mapping) for row in new.rows] for name, one in columns.items()}
    # A drop in any row of the table counts, so all tests share one error level.
    level = LEVEL / max(1, sum(question.margin is None for question in asked) if tests is None else tests)
    items = {name: (new.items(name), old.items(name)) for name in names}
    found = {}
    for question in asked:
        chosen = None
        if question.column is not None:
            chosen = [value == question.value for value in slices[question.column]]
        pair, direction = items[question.metric], new.direction(question.metric)
        span = _span(new, question.metric, pair)
        smallest = max(run.rounding(question.metric) for run in (new, old))
        change = _change(
            question, pair, keys, chosen, span, level, smallest, direction=direction, sequential=sequential
        )
        found[question] = change
    return WorseStudy((new, old), differ, pairing, grouping, found, list(slicings))


def refused(asked: Iterable[BaselineQuestion], error: GevalError, baseline: object) -> dict[BaselineQuestion, Change]:
    """Answer every question with the error that makes the two runs incomparable; no question passes."""
    hint = " ".join((error.hint or "").split())
    if keys := re.findall(r"`across=(\w+)`", hint):
        hint = (
            "Score the baseline again as this run was scored, or allow the difference: "
            f"baseline: {{run: ..., across: [{', '.join(keys)}]}}"
        )
    told = f"it cannot be compared with the baseline {baseline}: {error.message}{hint and f'. {hint}'}"
    return {question: Change(False, told) for question in asked}


def _keys(new: ScoredRun, old: ScoredRun, names: Sequence[str]) -> tuple[tuple[list[str], list[str]], str]:
    """Return a key for every row of both runs, equal for partners, and a description of the key."""
    ids = tuple([lookup(row, "id") for row in run.rows] for run in (new, old))
    if all(None not in own and len(set(map(str, own))) == len(own) for own in ids):
        keys = tuple([str(one) for one in own] for own in ids)
        if set(keys[0]) & set(keys[1]):
            return (keys[0], keys[1]), "rows with the same id are compared"
    hashes = {None if run.manifest is None else run.manifest.input_sha256 for run in (new, old)}
    if len(hashes) == 1 and None not in hashes and len(new.rows) == len(old.rows):
        numbers = [str(number) for number in range(1, len(new.rows) + 1)]
        return (numbers, numbers), "rows with the same number are compared: both runs scored the same file"
    for fields, told in _asked_fields(new, old, names):
        texts = tuple([_texts(run, row, fields) for row in run.rows] for run in (new, old))
        if set(filter(None, texts[0])) & set(filter(None, texts[1])):
            found = tuple([text or f"\0{side} {at}" for at, text in enumerate(own)] for side, own in enumerate(texts))
            return (found[0], found[1]), f"rows with the same {told} are compared"
    raise DataError(
        f"nothing pairs the rows of {new.path} with those of {old.path}: they share no id and no text that was asked",
        hint="Give both files the same `id` column.",
    )


def _asked_fields(new: ScoredRun, old: ScoredRun, names: Sequence[str]) -> Iterator[tuple[Sequence[str], str]]:
    """Yield the fields of a metric other than the judged one, such as the question or the source."""
    for name in names:
        if new.is_described(name):
            fields = [field for field in new.origin(name).definition.fields if field != _OUTPUT]
            if fields:
                yield fields, " and ".join(fields)


def _texts(run: ScoredRun, row: Mapping[str, Any], fields: Sequence[str]) -> str | None:
    """Join the texts of fields; None if one is missing."""
    try:
        return "\0".join(Sample(row, mapping=run.mapping).texts(fields).values())
    except GevalError:
        return None


def _span(run: ScoredRun, metric: str, items: Iterable[Iterable[ScoredItem]]) -> float:
    """Return the length of the metric's scale; without a manifest, the range of the scores of both runs."""
    if run.is_described(metric):
        scale = run.origin(metric).definition.scale
        return scale.high - scale.low
    found = [item.predicted for own in items for item in own if math.isfinite(item.predicted)]
    return max(found) - min(found) if found else math.nan


def _change(
    question: BaselineQuestion,
    items: tuple[Sequence[ScoredItem], Sequence[ScoredItem]],
    keys: tuple[Sequence[str], Sequence[str]],
    chosen: Sequence[bool] | None,
    span: float,
    level: float,
    smallest: float,
    *,
    direction: Direction,
    sequential: bool,
) -> Change:
    """Pair the rows of a question by key, average by key and then by document, and test the differences."""
    own = [item for at, item in enumerate(items[0]) if chosen is None or chosen[at]]
    for which, held in (("new", own), ("old", items[1])):
        if doubt := doubt_of(held):
            return Change(False, f"nothing can be concluded of the {which} run: {doubt}", margin=question.margin)
    before = _means((key, item) for key, item in zip(keys[1], items[1], strict=True))
    pairs = [
        (key, item) for at, (key, item) in enumerate(zip(keys[0], items[0], strict=True)) if not chosen or chosen[at]
    ]
    after = _means(pairs)
    group = {key: item.group for key, item in pairs}
    rows = sum(key in before and math.isfinite(item.predicted) for key, item in pairs)
    by_document: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for key in after:
        if key in before:
            is_equal = abs(after[key] - before[key]) <= smallest
            by_document[group[key]].append((before[key] if is_equal else after[key], before[key]))
    if not by_document:
        if question.column is not None and not {key for key, _ in pairs} & set(keys[1]):
            return Change(True, "no row of this slice is in the baseline: nothing is compared", margin=question.margin)
        return Change(False, "no row with a score is in both runs", margin=question.margin)
    means = np.array([np.mean(pairs, axis=0) for pairs in by_document.values()])
    differences = means[:, 0] - means[:, 1]
    gains = direction.sign * differences
    level = level if question.margin is None else LEVEL
    test = not_worse(gains, question.margin, span=span, level=level)
    passed, so_far = bool(test.passed), None
    if sequential:
        so_far = not_worse_so_far(gains, question.margin or 0.0, span=span, level=level)
        passed = so_far.verdict != "failed" if question.margin is None else so_far.verdict == "passed"
    mean, (after_mean, before_mean) = float(differences.mean()), means.mean(axis=0).tolist()
    figures = (after_mean, before_mean, rows, len(differences), question.margin, so_far, direction)
    made = Change(passed, "", mean, test, *figures)
    return replace(made, told=_sentence(made))


def _means(items: Iterable[tuple[str, ScoredItem]]) -> dict[str, float]:
    """Compute the mean score of the rows with one key; unscored rows are skipped."""
    found: dict[str, list[float]] = defaultdict(list)
    for key, item in items:
        if math.isfinite(item.predicted):
            found[key].append(item.predicted)
    return {key: float(np.mean(values)) for key, values in found.items()}


def _turned(change: Change) -> Any:
    """Return the interval of new minus old."""
    assert change.test is not None
    one = change.test.difference
    if change.direction.sign > 0:
        return one
    return replace(one, value=-one.value, low=-one.high, high=-one.low)


def _verdict(change: Change) -> str:
    if change.test is None:
        return "new" if change.passed else "not known"
    if change.margin is None:
        return "not shown to be worse" if change.passed else "worse" if change.test.passed is False else "cannot decide"
    return "not worse" if change.passed else "not shown"


def _sentence(change: Change) -> str:
    """State the result, and the smallest change that the test could find."""
    test, direction = change.test, change.direction
    assert test is not None
    places = max(2, digits(test.difference))
    means = f"{number(change.new, places)} against {number(change.old, places)}"
    on = f"on {counted(change.documents, 'shared document')}"
    d = f"{change.difference:+.{places}f}"
    p = f", p {p_value(test.p)}" if math.isfinite(test.p) else ""
    found, could, few = number(test.detectable, places), "", ""
    if math.isfinite(test.detectable) and change.margin is None:
        could = f"; a {direction.loss} of {found} would be found with 80 % probability"
    elif math.isfinite(test.detectable):
        could = f"; a margin of {found} could be shown with 80 % probability"
    if change.documents < FEW_UNITS:
        few = f"; with only {counted(change.documents, 'document')}, smaller changes go unseen"
    if change.so_far is not None:
        return _sentence_so_far(change, f"the mean changed by {d} ({means}) {on}")
    if test.passed is None:
        return (
            f"cannot decide: the mean changed by {d} ({means}) {on}, and no test of so few can show a "
            f"{direction.loss}; at least {TOO_FEW + 1} are needed"
        )
    if change.margin is None:
        if change.passed:
            unseen = missed(change.documents)
            return f"no {direction.loss} is shown: the mean changed by {d} ({means}) {on}{could}{few}{unseen}"
        by = number(abs(change.difference), places)
        doubt = "; few documents and skewed differences: not certain" if test.difference.warning else ""
        return f"the mean {direction.lost} by {by} ({means}) {on}, more than chance explains{p}{doubt}"
    worst = f"at worst {direction.sign * test.low:+.{places}f}"
    if not math.isfinite(test.low):
        worst = f"it may be {direction.behind} by any amount"
    told = f"the mean changed by {d} ({means}), {worst}, {on}"
    if change.passed:
        return f"not {direction.behind} by {change.margin:g} or more: {told}{p}"
    return f"not shown to be less than {change.margin:g} {direction.behind}: {told}{could}{few}"


def _sentence_so_far(change: Change, told: str) -> str:
    """State the result of the sequential test; `told` states the change."""
    found = change.so_far
    assert found is not None
    if found.verdict == "open":
        return f"not decided yet: {told}; add rows and look again"
    than = "" if change.margin is None else f" by {change.margin:g} or more"
    behind = change.direction.behind
    shown = f"{behind}{than}" if found.verdict == "failed" else f"not {behind}{than}"
    return f"{shown}, decided after {found.decided} documents: {told}; level .05 over all looks"
