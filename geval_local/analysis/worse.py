"""Is a run worse than its baseline? Rows are paired by id, by question, or by document, and tested by document.

Without a margin a metric fails if its scores dropped significantly. With a margin it fails unless the test shows that
the scores are not lower by that margin or more (non-inferiority). Both use `geval_local.statistics.noninferiority`.
Scores that differ by no more than rounding are equal.
Rows that are missing fail it too: most rows of both runs, and of every slice, need a partner with a score.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from geval_local.analysis.comparison import Differ, allowed_differences, shared_metrics, told_differ
from geval_local.analysis.differences import doubt_of
from geval_local.analysis.gates import (
    NOT_WORSE,
    ROWS_SHOWN,
    Gate,
    GateOutcome,
    Limit,
    ShownRow,
    Verdict,
    parse_limit,
)
from geval_local.analysis.results import (
    Grouped,
    Reading,
    ResultsGiven,
    ScoredRun,
    documents_of,
    has_ids,
    row_keys,
)
from geval_local.analysis.tables import Study, Table, as_record, digits, interval, number, p_value
from geval_local.conversation import row_name
from geval_local.errors import DataError, GevalError, NotComparableError
from geval_local.fields import counted, field_value
from geval_local.io.ownership import file_sha256
from geval_local.io.result_manifest import manifest_path
from geval_local.io.results import input_number
from geval_local.io.samples import INPUT_ROW
from geval_local.options import MAX_UNPAIRED, BaselineOptions
from geval_local.runs.manifest import definition
from geval_local.runs.settings import definition_differences
from geval_local.signature import signature_differences
from geval_local.slices import NO_VALUE, Slicing, find_slicings
from geval_local.statistics.levels import in_order
from geval_local.statistics.noninferiority import TOO_FEW, missed, not_worse, not_worse_so_far
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.significance import LEVEL

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
#: The judged field, which a new version changes.
_OUTPUT = "output"


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
    #: Gate, of one result and one slice -> its outcome.
    changes: dict[Gate, GateOutcome]
    #: How columns cut the rows.
    slicings: Sequence[Slicing] = ()

    @property
    def passed(self) -> bool:
        """Whether no gate fails."""
        return all(change.passed for change in self.changes.values())

    @property
    def failures(self) -> list[str]:
        """Say what is worse."""
        return [change.sentence for change in self.changes.values() if not change.passed]

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values."""
        record = {"new": self.runs[0].path, "old": self.runs[1].path, "differ": self.differ, "pairing": self.pairing}
        record |= {"grouping": self.grouping, "passed": self.passed}
        return dict(as_record(record)) | {"changes": [change.to_dict() for change in self.changes.values()]}

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
        headers = ("", "documents", "new / old", "new - old", "p", "verdict")
        rows = [
            (
                asked.place,
                change.documents,
                f"{number(change.new)} / {number(change.old)}",
                "-" if change.change is None else interval(change.change),
                "-" if change.test is None else p_value(change.test.p),
                _verdict(change),
            )
            for asked, change in self.changes.items()
        ]
        margins = {asked.margin for asked in self.changes}
        notes = ["95 % intervals over documents"]
        if None in margins:
            notes.append("worse: a one-sided test shows it; its level of .05 is shared by all rows of this table")
        if margins - {None}:
            notes.append("not worse: a one-sided test at .05 shows that the mean is not worse by the margin or more")
        yield Table.of(headers, rows, notes).titled("Is the new run worse than the old one?")


def is_worse(
    new: ResultsGiven,
    old: ResultsGiven,
    *,
    metrics: Sequence[str] = (),
    not_worse: float | None = None,
    by: Sequence[str] = (),
    across: Sequence[str] = (),
    max_unpaired: str = MAX_UNPAIRED,
    undecided: Literal["fail", "pass"] = "fail",
    sequential: bool = False,
    **reading: Unpack[Reading],
) -> WorseStudy:
    """Say whether a run is worse than its baseline, metric by metric.

    Parameters
    ----------
    new, old : path, RunResult, rows or data frame
        The run, and its baseline.
    metrics : sequence of str
        Names of the metrics to test; by default all of the new run. One that the baseline lacks is skipped.
    not_worse : float, optional
        A margin: how much lower the mean may be, in units of the scale, 0 or more. The run is then worse unless the
        test shows that it is not lower by this margin. Without a margin, it is worse if the test shows a drop.
    by : sequence of str
        Columns of the new rows; every slice by their values is tested too. A slice that only the baseline has fails.
    across : sequence of str
        Keys of the signature in which the two may differ, ``versions`` or ``any``.
    max_unpaired : str
        Most rows of either run, and of a slice, that may have no partner with a score: a count, or a share such as
        ``10%``.
    undecided : {"fail", "pass"}
        Whether a gate that cannot decide, such as one of two documents, fails or is skipped.
    sequential : bool
        Use the sequential test, whose error level covers repeated looks at a growing file. The order of the rows must
        not depend on their scores. The baseline may have more rows.
    **reading
        As in `geval_local.analysis.comparison.compare`.

    Raises
    ------
    ConfigurationError
        If the signatures differ in keys that `across` does not name, or a metric is missing.
    DataError
        If nothing pairs the rows, or a result file is not the one that its manifest describes.
    """
    run, before = (ScoredRun.of(one, **reading) for one in (new, old))
    shared_metrics((run, before), metrics)
    slicings = find_slicings(run.rows.inputs(), by, run.rule) if by else []
    columns = [None, *(one.column for one in slicings)]
    asked = [
        Gate(NOT_WORSE, metric=name, by=column, margin=not_worse)
        for name in metrics or run.metrics
        for column in columns
    ]
    for one in (run, before):
        check_own(one)
    options = BaselineOptions(across=list(across), max_unpaired=max_unpaired, undecided=undecided)
    return changes(run, before, asked, options, slicings=slicings, sequential=sequential)


def check_own(run: ScoredRun) -> None:
    """Refuse a result file that was changed after it was written; one without a manifest is its user's."""
    described = None if run.manifest is None else {run.manifest.results_sha256, run.manifest.rows_sha256} - {None}
    if described and run.path.is_file() and file_sha256(run.path) not in described:
        raise DataError(
            f"{run.path} is not the file that {manifest_path(run.path).name} describes: it was changed",
            hint=f"Score it again. If the change is yours, remove {manifest_path(run.path)} and allow `across=any`.",
        )


def changes(
    new: ScoredRun,
    old: ScoredRun,
    gates: Iterable[Gate],
    options: BaselineOptions,
    *,
    slicings: Sequence[Slicing] = (),
    tests: int | None = None,
    sequential: bool = False,
) -> WorseStudy:
    """Check a run against gates of its baseline, each of one result; raises as `is_worse` does.

    A gate of a column is one of each of its slices. `tests` is the number of tests without a margin that share one
    level; by default the number of these gates.
    """
    gates, columns = list(dict.fromkeys(gates)), {one.column: one for one in slicings}
    found: dict[Gate, GateOutcome] = {}
    for gate in gates:
        if gate.metric in old.metrics:
            continue
        base = gate.metric.partition("@")[0]
        if same := [name for name in old.metrics if name.partition("@")[0] == base]:
            # A judge was added or taken away, and a drop must not pass for that.
            own = Gate(NOT_WORSE, metric=gate.metric)
            told = (
                f"the baseline has {', '.join(same)} and no {gate.metric}: results are named METRIC@JUDGE if several "
                "judges score. Compare this change with the judges of the baseline first, or accept this run as the "
                "next baseline (`accept: true` below `baseline`)"
            )
            found[own] = GateOutcome(own, "failed", told)
        else:
            told = f"{old.path} has no scores of it, only of {', '.join(old.metrics)}"
            found[gate] = GateOutcome(gate, "skipped", f"{told}: the comparison begins with the next run")
    asked = [one for gate in gates if gate.metric in old.metrics for one in each_slice(gate, columns)]
    names = list(dict.fromkeys(gate.metric for gate in asked))
    if not names:
        return WorseStudy((new, old), {}, "no metric is in both runs", "", found, list(slicings))
    differ = allowed_differences(new, old, shared_metrics((new, old), names), options.across, texts=False)
    keys, pairing = _keys(new, old)
    documents = new.documents
    grouping = documents.told
    if documents.names is None and len(set(keys[0])) < len(keys[0]):
        grouping = "rows that were paired as one count as one document"
    # A drop in any row of the table counts, so all tests share one error level.
    level = LEVEL / max(1, sum(gate.margin is None for gate in asked) if tests is None else tests)
    codes = in_order([*keys[0], *keys[1]])[1]
    comparison = _Comparison(
        (new, old),
        (codes[: len(keys[0])], codes[len(keys[0]) :]),
        {name: (new.items(name), old.items(name, documents=Grouped(None, ""))) for name in names},
        {name: _slices(one, new, old) for name, one in columns.items()},
        parse_limit("unscored", f"<= {options.max_unpaired}"),
        level,
        sequential,
        "skipped" if options.undecided == "pass" else "failed",
    )
    found |= {gate: comparison.outcome(gate) for gate in asked}
    for gate in gates:
        if gate.by is not None and gate.metric in names:
            for value, count in _vanished(comparison.slices[gate.by][1], columns[gate.by]):
                told = f"this slice vanished: the baseline has {counted(count, 'row')} of it, and the new run has none"
                own = replace(gate, value=value)
                found[own] = GateOutcome(own, "failed", told)
    return WorseStudy((new, old), differ, pairing, grouping, found, list(slicings))


def each_slice(gate: Gate, slicings: Mapping[str, Slicing]) -> list[Gate]:
    """Make one gate of every slice of a gate's column."""
    if gate.by is None or gate.value is not None:
        return [gate]
    return [replace(gate, value=name) for name in slicings[gate.by].names]


def _slices(slicing: Slicing, new: ScoredRun, old: ScoredRun) -> tuple[list[str], list[str | None]]:
    """Find the slice of every row of both runs; a baseline without the column has none."""
    own = [slicing.slice_of(row, new.rule) for row in new.rows.inputs()]
    if not slicing.of_output and all(field_value(row, slicing.column) is None for row in old.rows.inputs()):
        return own, [None] * len(old.rows)
    return own, [slicing.slice_of(row, old.rule) for row in old.rows.inputs()]


def _vanished(slices: Iterable[str | None], slicing: Slicing) -> Iterator[tuple[str, int]]:
    """Yield the names that only the baseline has, with their rows; numbers that are cut, and lengths, have none."""
    if not (slicing.edges or slicing.of_output):
        known = {NO_VALUE, *slicing.names}
        yield from sorted(Counter(one for one in slices if one is not None and one not in known).items())


def shown_row(run: ScoredRun, items: Sequence[ScoredItem], at: int) -> ShownRow:
    """Describe a row of a run, counted from 0."""
    row = run.rows[at]
    number = input_number(row.get(INPUT_ROW), row.number or at + 1)
    return ShownRow(number, row_name(row), items[at].predicted, run.rule.output(row) or "")


def refused(gate: Gate, error: GevalError, new: ScoredRun, old: ScoredRun) -> GateOutcome:
    """Fail a gate by the error that makes the two runs incomparable; say in words what changed."""
    hint = " ".join((error.hint or "").split())
    told = f"it cannot be compared with the baseline {old.path}: {error.message}{hint and f'. {hint}'}"
    if isinstance(error, NotComparableError):
        told = (
            f"it cannot be compared with the baseline: {_changed(gate.metric, error.keys, new, old)}. If that is "
            "wanted, accept this run as the next baseline (`accept: true` below `baseline`), or compare all the same "
            f"(`across: [{', '.join(error.keys)}]`)"
        )
    return GateOutcome(gate, "failed", told)


def _changed(metric: str, keys: Sequence[str], new: ScoredRun, old: ScoredRun) -> str:
    """Say what differs between two signatures: of a metric its keys, of anything else its values."""
    differ = signature_differences(old.signature(metric), new.signature(metric))
    told = [f"{key} was {differ[key][0]}, is {differ[key][1]}" for key in keys if key != "metric"]
    if "metric" in keys:
        told = [
            *definition_differences("metric", *([definition(run.origin(metric).definition)] for run in (old, new))),
            *told,
        ]
    return "; ".join(told)


def _keys(new: ScoredRun, old: ScoredRun) -> tuple[tuple[list[str], list[str]], str]:
    """Return a key for every row of both runs, equal for partners, and a description of the key."""
    if all(has_ids(run.rows) for run in (new, old)):
        keys = row_keys(new.rows), row_keys(old.rows)
        if set(keys[0]) & set(keys[1]):
            return keys, "rows with the same id are compared"
    hashes = {None if run.manifest is None else run.manifest.input_sha256 for run in (new, old)}
    if len(hashes) == 1 and None not in hashes and len(new.rows) == len(old.rows):
        numbers = [str(number) for number in range(1, len(new.rows) + 1)]
        return (numbers, numbers), "rows with the same number are compared: both runs scored the same file"
    named = [documents.names for documents in documents_of((new, old)) if documents.counts.is_about_items]
    if len(named) == 2 and {*named[0]} & {*named[1]} - {None}:
        found = [[text or f"\0{side} {at}" for at, text in enumerate(own)] for side, own in enumerate(named)]
        told = " and ".join(new.collected.counts.columns)
        return (found[0], found[1]), f"rows with the same {told} are compared"
    raise DataError(
        f"nothing pairs the rows of {new.path} with those of {old.path}: they share no id and no text that was asked",
        hint="Give both files the same `id` column.",
    )


def _span(run: ScoredRun, metric: str, items: Iterable[Iterable[ScoredItem]]) -> float:
    """Return the length of the metric's scale; without a manifest, the range of the scores of both runs."""
    if ends := run.ends(metric):
        return ends[1] - ends[0]
    found = [item.predicted for own in items for item in own if math.isfinite(item.predicted)]
    return max(found) - min(found) if found else math.nan


@dataclass(frozen=True)
class _Comparison:
    """Two runs whose rows are paired, and how strictly gates compare them."""

    runs: tuple[ScoredRun, ScoredRun]
    #: Of every row of both runs, equal for partners.
    keys: tuple[Places, Places]
    #: Metric -> the scores of both runs.
    items: Mapping[str, tuple[Sequence[ScoredItem], Sequence[ScoredItem]]]
    #: Column -> the slice of every row of both runs; None where a row has none.
    slices: Mapping[str, tuple[list[str], list[str | None]]]
    #: How many rows may have no partner with a score.
    unpaired: Limit
    #: Level of a test without a margin.
    level: float
    #: Whether the new run grows: the baseline may then have more rows.
    sequential: bool
    #: Verdict of a gate that cannot decide.
    undecided: Verdict

    def outcome(self, gate: Gate) -> GateOutcome:
        """Check one gate of one slice: whether enough rows are paired, whether the judge answers, and the test."""
        items, places = self.items[gate.metric], self._places(gate)
        scores = [np.array([item.predicted for item in own]) for own in items]
        after, before = (self._means(side, scores[side], slice(None)) for side in (0, 1))
        paired = np.isfinite(after) & np.isfinite(before)
        alone = [int(np.count_nonzero(~paired[own[inside]])) for own, inside in zip(self.keys, places, strict=True)]
        most = [self.unpaired.value * (len(inside) if self.unpaired.is_share else 1) for inside in places]
        if gate.value is not None and not len(places[1]) and alone[0] > min(most[0], len(places[0]) - 1):
            return GateOutcome(gate, "skipped", "this slice is new: the comparison begins with the next run")
        told = [
            f"{alone[side]} of {counted(len(places[side]), 'row')} of the {which}"
            for side, which in enumerate(["new run"] if self.sequential else ["new run", "baseline"])
            if alone[side] > most[side]
        ]
        if told:
            may = self.unpaired.shown.replace(".00%", "%")
            why = f"{' and '.join(told)} have no partner with a score, and {may} may (max_unpaired)"
            return GateOutcome(gate, "failed", why)
        for which, held in (("new", [items[0][at] for at in places[0]]), ("old", items[1])):
            if doubt := doubt_of(held):
                return GateOutcome(gate, "failed", f"nothing can be concluded of the {which} run: {doubt}")
        made = self._tested(gate, scores[0], before, places[0])
        return made if made.passed else replace(made, rows=self._fallen(gate, places[0]))

    def _means(self, side: int, scores: Floats, places: Places | slice) -> Floats:
        """Compute the mean score of the chosen rows of every key; NaN without a score."""
        own, keys = scores[places], self.keys[side][places]
        known, size = np.isfinite(own), 1 + max(int(one.max()) for one in self.keys)
        with np.errstate(invalid="ignore"):
            return np.bincount(keys[known], own[known], size) / np.bincount(keys[known], minlength=size)

    def _places(self, gate: Gate) -> tuple[Places, Places]:
        """Choose a slice's rows of both runs; a row of the baseline that has no slice is in that of its partner."""
        if gate.by is None:
            return np.arange(self.keys[0].size), np.arange(self.keys[1].size)
        new, old = self.slices[gate.by]
        own = np.array([at for at, value in enumerate(new) if value == gate.value], dtype=np.int64)
        inside = set(self.keys[0][own].tolist())
        both = enumerate(zip(self.keys[1].tolist(), old, strict=True))
        theirs = [at for at, (key, value) in both if (key in inside if value is None else value == gate.value)]
        return own, np.array(theirs, dtype=np.int64)

    def _tested(self, gate: Gate, scores: Floats, before: Floats, places: Places) -> GateOutcome:
        """Average the differences of partners by document, and test them."""
        items, keys, direction = self.items[gate.metric], self.keys[0], self.runs[0].direction(gate.metric)
        smallest = max(run.rounding(gate.metric) for run in self.runs)
        after = self._means(0, scores, places)
        rows = int(np.count_nonzero(np.isfinite(before[keys[places]]) & np.isfinite(scores[places])))
        if not rows:
            return GateOutcome(gate, "failed", "no row with a score is in both runs")
        after = np.where(np.abs(after - before) <= smallest, before, after)
        first = np.unique(keys[places], return_index=True)[1]
        shared = places[np.sort(first[np.isfinite((after - before)[keys[places[first]]])])]
        document = in_order([items[0][at].group for at in shared])[1]
        sums = [np.bincount(document, own[keys[shared]]) for own in (after, before)]
        means = np.stack(sums, axis=1) / np.bincount(document)[:, None]
        differences = means[:, 0] - means[:, 1]
        gains, span = direction.sign * differences, _span(self.runs[0], gate.metric, items)
        level = self.level if gate.margin is None else LEVEL
        test = not_worse(gains, gate.margin, span=span, level=level)
        passed, so_far = test.passed, None
        if self.sequential:
            so_far = not_worse_so_far(gains, gate.margin or 0.0, span=span, level=level)
            passed = {"passed": True, "failed": False}.get(so_far.verdict, True if gate.margin is None else None)
        new, old = means.mean(axis=0).tolist()
        counts = {"scored": rows, "documents": len(differences), "new": new, "old": old}
        verdict: Verdict = self.undecided if passed is None else "holds" if passed else "failed"
        made = GateOutcome(gate, verdict, "", float(differences.mean()), **counts)
        made = replace(made, test=test, so_far=so_far, direction=direction)
        return replace(made, told=_sentence(made))

    def _fallen(self, gate: Gate, places: Places) -> tuple[ShownRow, ...]:
        """Return the rows that fell most, worst first, each with its first partner."""
        new, old = self.items[gate.metric]
        first = {key: at for at, key in reversed(list(enumerate(self.keys[1].tolist())))}
        pairs = [(at, first[key]) for at in places.tolist() if (key := int(self.keys[0][at])) in first]
        sign = self.runs[0].direction(gate.metric).sign
        falls = sorted((sign * (new[at].predicted - old[was].predicted), at, was) for at, was in pairs)
        return tuple(
            shown_row(self.runs[0], new, at)._replace(
                before=old[was].predicted, output_before=shown_row(self.runs[1], old, was).output
            )
            for fall, at, was in falls[:ROWS_SHOWN]
            if fall < 0
        )


def _verdict(change: GateOutcome) -> str:
    if change.test is None:
        return "new" if change.verdict == "skipped" else "not known"
    if change.verdict == "skipped" or change.test.passed is None:
        return "cannot decide"
    if change.gate.margin is None:
        return "not shown to be worse" if change.passed else "worse"
    return "not worse" if change.passed else "not shown"


def _sentence(change: GateOutcome) -> str:
    """State the result."""
    test, direction = change.test, change.direction
    assert test is not None
    places = max(2, digits(test.difference))
    means = f"{number(change.new, places)} against {number(change.old, places)}"
    on = f"on {counted(change.documents, 'shared document')}"
    d = f"{change.found:+.{places}f}"
    p = f", p {p_value(test.p)}" if math.isfinite(test.p) else ""
    if change.so_far is not None:
        return _sentence_so_far(change, f"the mean changed by {d} ({means}) {on}")
    if test.passed is None:
        return (
            f"cannot decide: the mean changed by {d} ({means}) {on}, and no test of so few can show a "
            f"{direction.loss}; at least {TOO_FEW + 1} are needed{_undecided(change)}"
        )
    if change.gate.margin is None:
        if change.passed:
            unseen = missed(change.documents)
            return f"no {direction.loss} is shown: the mean changed by {d} ({means}) {on}{unseen}"
        by = number(abs(change.found), places)
        doubt = f"; not certain: {test.difference.warning}" if test.difference.warning else missed(change.documents)
        return f"the mean {direction.lost} by {by} ({means}) {on}, more than chance explains{p}{doubt}"
    worst = f"at worst {direction.sign * test.low:+.{places}f}"
    if not math.isfinite(test.low):
        worst = f"it may be {direction.behind} by any amount"
    told = f"the mean changed by {d} ({means}), {worst}, {on}"
    if change.passed:
        return f"not {direction.behind} by {change.gate.margin:g} or more: {told}{p}"
    return f"not shown to be less than {change.gate.margin:g} {direction.behind}: {told}"


def _undecided(change: GateOutcome) -> str:
    """Say what becomes of a gate that cannot decide."""
    return {"failed": " (`undecided: pass` lets it pass)", "skipped": "; it passes: `undecided: pass`"}.get(
        change.verdict, ""
    )


def _sentence_so_far(change: GateOutcome, told: str) -> str:
    """State the result of the sequential test; `told` states the change."""
    found = change.so_far
    assert found is not None
    if found.verdict == "open":
        return f"not decided yet: {told}; add rows and look again{_undecided(change)}"
    than = "" if change.gate.margin is None else f" by {change.gate.margin:g} or more"
    behind = change.direction.behind
    shown = f"{behind}{than}" if found.verdict == "failed" else f"not {behind}{than}"
    return f"{shown}, decided after {found.decided} documents: {told}; level .05 over all looks"
