"""Which system is better, or how two runs over the same rows differ, with a check that they are comparable.

It also plans a study from a pilot: how many documents, and systems, a test needs to find a difference.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from typing import Any

import numpy as np
from typing_extensions import Unpack

from geval_local.analysis.differences import Ranking, doubt_of, pair_table, rank_systems, ranking_table, telling_pairs
from geval_local.analysis.preferences import holds_pairs
from geval_local.analysis.ratings.values import HumanFields, rating_fields
from geval_local.analysis.results import (
    Grouped,
    Reading,
    ResultsGiven,
    ScoredRun,
    each_given,
    grouped,
    has_ids,
    level_of_rated,
    row_keys,
    shared_columns,
    system_of_columns,
    together,
    writers,
)
from geval_local.analysis.tables import FOLDED_TESTS, Study, Table, as_record, comparison_table, number
from geval_local.conversation import named_turns
from geval_local.errors import ConfigurationError, NotComparableError
from geval_local.fields import beginning, listed, shortened
from geval_local.grouping import DocumentRule, Documents
from geval_local.signature import KEYS, signature_differences, told_differences
from geval_local.statistics.correlation import Agreement, agree
from geval_local.statistics.interval import Interval, mean_interval
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem, pair
from geval_local.statistics.resampling import Target
from geval_local.statistics.significance import LEVEL, Comparison, corrected
from geval_local.statistics.significance import compare as compare_agreement

#: Metric -> key of the signature -> its values.
Differ = dict[str, dict[str, tuple[str, str]]]
ANY = "any"
#: Keys that always differ together with a key.
IMPLIED = {"judge": ("judge", "tokenizer"), "versions": ("transformers", "torch", "version")}
#: Most characters shown of an output.
BEGINNING = 60
#: Most rows of only one file that a message names, and most characters of a name: a document may be a whole text.
NAMED, LONGEST_NAME = 10, 40
POWERS = (0.8, 0.9)
#: The most documents that a plan considers.
_MOST = 10_000_000


@dataclass(frozen=True)
class Difference:
    """Difference of two runs on the items that both scored."""

    #: Mean scores on the shared items.
    mean_first: float
    mean_second: float
    #: Mean of ``first - second`` in units of the scale, with an interval over documents.
    mean: Interval
    #: Correlations and absolute differences.
    agreement: Agreement
    #: Key and both scores of the items that differ most, largest difference first, without equal items.
    largest: tuple[tuple[str, float, float], ...]


def differences(
    first: Sequence[ScoredItem],
    second: Sequence[ScoredItem],
    *,
    count: int = 10,
) -> Difference:
    """Compare two runs item by item."""
    left, right = pair(first, second, same_human=False)
    a, b = (np.array([item.predicted for item in items]) for items in (left, right))
    order = np.argsort(-np.abs(a - b), kind="stable")[:count]
    return Difference(
        float(a.mean()),
        float(b.mean()),
        mean_interval(a - b, [item.group for item in left]),
        agree(first, second),
        tuple((left[index].key, float(a[index]), float(b[index])) for index in order if a[index] != b[index]),
    )


def _rounded(first: Sequence[ScoredItem], second: Sequence[ScoredItem], smallest: float) -> list[ScoredItem]:
    """Give the second run's items the scores of the first where they differ by no more than rounding."""
    known = {item.key: item.predicted for item in first}
    apart = ((item, known.get(item.key, math.nan)) for item in second)
    return [replace(i, predicted=score) if 0 < abs(i.predicted - score) <= smallest else i for i, score in apart]


def difference_table(differences: Mapping[str, Difference]) -> Table:
    """Build a table with one row per metric shared by two runs."""
    columns: dict[str, Callable[[Difference], Any]] = {
        "n": lambda one: one.agreement.n,
        "A / B": lambda one: f"{number(one.mean_first)} / {number(one.mean_second)}",
        "A - B": lambda one: one.mean,
        "mean |diff|": lambda one: one.agreement.mean_absolute_difference,
        "spearman": lambda one: one.agreement.spearman,
        "kendall": lambda one: one.agreement.kendall,
        "alpha": lambda one: one.agreement.alpha,
    }
    return Table.over(differences, columns)


@dataclass(frozen=True)
class SystemRows:
    """The rows of all systems together."""

    runs: tuple[ScoredRun, ...]
    names: tuple[str | None, ...]
    #: The documents of every run's rows.
    documents: tuple[Grouped, ...]
    #: What decided which rows are one document.
    rule: DocumentRule

    @property
    def grouping(self) -> str:
        """Which rows are one document, in words."""
        return self.documents[0].told

    def items(self, metric: str, *, human: HumanFields | None = None) -> list[list[ScoredItem]]:
        """Return the scores of one metric with systems and documents, run by run."""
        found = []
        for run, name, documents in zip(self.runs, self.names, self.documents, strict=True):
            own = run.items(run.one_metric(metric), human=human, documents=documents)
            found.append(own if name is None else [replace(item, system=name) for item in own])
        return found

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield all rows as if of one run, each with its system, for a page."""
        for run, name in zip(self.runs, self.names, strict=True):
            for row, system in zip(run.rows, _systems(run, name), strict=True):
                yield {**{key: value for key, value in row.items() if key != "system_id"}, "system": system or None}


def gather(runs: Sequence[ScoredRun]) -> SystemRows:
    """Find the system and the document of every row."""
    names: list[str | None] = [None] * len(runs)
    if runs[0].system is None and len(runs) > 1:
        writers = [_writers(run) for run in runs]
        single = [next(iter(found)) if len(found) == 1 else "" for found in writers]
        distinct = all(single) and len(set(single)) == len(single)
        names = [name if distinct else run.name for name, run in zip(single, runs, strict=True)]
        if len(set(names)) < len(names):
            names = [str(run.path) for run in runs]
        if len(set(names)) < len(names):
            raise ConfigurationError(
                f"{runs[0].path} is given twice", hint="Name one file for each system, or `system=FIELD`."
            )
    rows = chain.from_iterable(shared_columns(run, runs) for run in runs)
    systems = chain.from_iterable(map(_systems, runs, names))
    documents = Documents.of(runs[0].rule, rows, systems)
    grouping = documents.counts.told
    if not documents.counts.is_grouped and runs[0].group_by is None and len(runs) > 1:
        by_id = all(has_ids(run.rows) for run in runs)
        same = "id" if by_id else "place in their files"
        grouping = f"rows with the same {same} count as one document; `group_by=COLUMN` changes it"
    starts = accumulate((len(run.rows) for run in runs), initial=0)
    own = [
        grouped(documents, run.rows, run.path, first=first)._replace(told=grouping)
        for run, first in zip(runs, starts, strict=False)
    ]
    rule = replace(runs[0].rule, used=documents.counts.used)
    return SystemRows(tuple(runs), tuple(names), tuple(own), rule)


def _systems(run: ScoredRun, name: str | None) -> list[str]:
    """Return the system of every row."""
    return writers(run.rows, run.path, run.system) if name is None else [name] * len(run.rows)


def check_single_outputs(runs: Sequence[ScoredRun], metrics: Sequence[str]) -> None:
    """Reject runs of pairs, whose rows are comparisons and belong to no system."""
    for run in runs:
        if any(holds_pairs(run.rows.first, metric) for metric in metrics):
            raise ConfigurationError(
                f"{run.path} holds pairs, and no scores of single outputs",
                hint=f"What they say of the systems: geval-local rank {run.path}.",
            )


def unmatched(first: Sequence[str], second: Sequence[str], names: Sequence[str]) -> list[str]:
    """List, one line per file, the keys that only one of two files has."""
    lines = []
    for name, own, others in ((names[0], first, set(second)), (names[1], second, set(first))):
        alone = [key for key in dict.fromkeys(own) if key not in others]
        if alone:
            told = listed([shortened(key, LONGEST_NAME) for key in alone], NAMED)
            lines.append(f"only in {name}: {len(alone)} of {len(set(own))}: {told}")
    return lines


def why_systems(first: ScoredRun, second: ScoredRun) -> str | None:
    """Say why `compare` treats two files as two systems; None if they are two runs over the same texts."""
    one, other = _writers(first), _writers(second)
    if len(one) == len(other) == 1 and one != other:
        return f"their rows name one system each, {next(iter(one))} and {next(iter(other))}"
    pairs = paired_outputs(first, second)
    if not pairs:
        return "no id is in both files"
    # If a CSV file lacks the texts, they say nothing about the system.
    known = [pair for pair in pairs if None not in pair]
    changed = sum(one != other for one, other in known)
    if changed > len(known) / 2:
        return f"{changed} of {len(known)} outputs differ under the same id or row number"
    return None


def changed_outputs(first: ScoredRun, second: ScoredRun) -> int:
    """Count the rows that have the same key but different texts.

    A CSV file of results may lack the texts. The hash of the scored input then shows whether the texts are equal.
    """
    hashes = {None if run.manifest is None else run.manifest.input_sha256 for run in (first, second)}
    is_same_input = len(hashes) == 1 and None not in hashes
    pairs = paired_outputs(first, second)
    return sum(one != other and not (is_same_input and None in (one, other)) for one, other in pairs)


def paired_outputs(first: ScoredRun, second: ScoredRun) -> list[tuple[str | None, str | None]]:
    """Pair the outputs of the rows that have the same key in both files."""
    one, other = first.outputs, second.outputs
    return [(text, other[key]) for key, text in one.items() if key in other]


def _writers(run: ScoredRun) -> set[str]:
    """Return the systems that the usual columns name; empty if a row names none."""
    found = set(writers(run.rows, run.path))
    return set() if "" in found else found


def _told_run(run: ScoredRun) -> str:
    judge = "of unknown origin" if run.manifest is None else f"by {run.manifest.judges}"
    return f"{run.path}, {len(run.rows)} rows, {judge}"


def told_differ(differ: Differ, of: str = "") -> dict[str, None]:
    """List the keys in which signatures differ, each once."""
    pairs = ((key, pair) for own in differ.values() for key, pair in own.items())
    return dict.fromkeys(f"{of}differs in {key}: {one} | {other}" for key, (one, other) in pairs)


@dataclass(frozen=True)
class Need:
    """How many documents one comparison needs."""

    #: Standard deviation of the difference over documents, and the number of documents in the pilot.
    spread: float
    pilot: int
    #: Number of planned systems; 0 if systems are fixed.
    systems: int
    #: Level of its test, as the correction leaves it for the first test of its table.
    significance: float
    #: Power -> number of documents. None if the pilot has no spread to plan from, or if no number of documents suffices
    #: for so many systems.
    documents: Mapping[float, int | None]

    @property
    def missing(self) -> str:
        """Text that a table shows if there is no number of documents."""
        if not self.spread > 0:
            return "-"
        return "more systems" if self.systems else f"> {_MOST:,}"


@dataclass(frozen=True)
class StudyPlan:
    """How many documents every comparison of a pilot needs to find a true difference."""

    difference: float
    needs: Mapping[str, Need]

    def table(self) -> Table:
        """One row per comparison."""
        rows = [
            (name, need.spread, need.pilot, need.systems, *(need.documents[p] or need.missing for p in POWERS))
            for name, need in self.needs.items()
        ]
        by_system = "systems" if any(need.systems for need in self.needs.values()) else None
        levels = dict.fromkeys(f"{need.significance:.4f}" for need in self.needs.values())
        notes = (
            f"documents to find a true difference of {self.difference:g} with that probability, two-sided at "
            f"{' or '.join(levels)}, which is what the correction for all tests of its table leaves of .05; spread: "
            "the pilot's, as uncertain as the pilot is small",
        )
        headers = ("", "spread", "pilot", by_system, *(f"documents ({p:.0%})" for p in POWERS))
        return Table.of(headers, rows, notes).titled("how many documents are needed?")


def plan_for(
    pilots: Mapping[str, Interval],
    difference: float,
    systems: Mapping[str, Interval] | None = None,
    *,
    levels: Mapping[str, float] | None = None,
) -> StudyPlan:
    """Plan for differences on new documents, and with 1, 2 and 4 times as many new `systems`.

    `pilots` has the intervals for new documents alone, `systems` those for new systems alone. Without `systems`, the
    plan keeps the systems of the pilot. `levels` are the tests' levels after the correction of their tables; by default
    Bonferroni's in one table.
    """
    needs = {}
    for name, pilot in pilots.items():
        level = (levels or {}).get(name, LEVEL / len(pilots))
        spread, by_system = pilot.error * math.sqrt(pilot.units), (systems or {}).get(name)
        for times in (1, 2, 4) if by_system else (0,):
            count = times * by_system.units if by_system else 0
            # The part of the variance that more documents do not reduce.
            rest = by_system.error**2 * by_system.units / max(1, count) if by_system else 0.0
            fewest = {p: _fewest(spread**2, rest, count or math.inf, difference, level, p) for p in POWERS}
            needs[f"{name}, {count} systems" if by_system else name] = Need(spread, pilot.units, count, level, fewest)
    return StudyPlan(difference, needs)


def _fewest(
    variance: float, rest: float, systems: float, difference: float, significance: float, power: float
) -> int | None:
    """Find the fewest documents; the smaller number of units (documents or systems) gives the degrees of freedom."""
    from scipy.special import stdtrit

    def found(documents: int) -> bool:
        degrees = min(documents, systems) - 1
        quantiles = float(stdtrit(degrees, 1 - significance / 2) + stdtrit(degrees, power))
        return quantiles * math.sqrt(variance / documents + rest) <= difference

    if not 0 < variance < math.inf or not math.isfinite(rest) or difference <= 0 or not found(_MOST):
        return None
    return 2 + bisect_left(range(2, _MOST), True, key=found)


@dataclass(frozen=True)
class RunComparison(Study):
    """Two runs over the same rows."""

    #: The runs.
    runs: tuple[ScoredRun, ScoredRun]
    #: Metric -> key of the signature -> its values.
    differ: Differ
    #: How rows are grouped into documents, in words.
    grouping: str
    #: Lines that list the rows of only one run.
    unmatched: list[str]
    #: Metric -> differences, row by row.
    metrics: dict[str, Difference]
    #: Metric -> which run agrees better with people; empty without ratings.
    against_human: dict[str, Comparison]
    #: Metric -> field of its human ratings.
    human: dict[str, str]
    #: Metric -> why nothing can be concluded from the first and from the second run; empty if the judge answers.
    doubt: dict[str, tuple[str, str]]
    #: Documents needed to find a difference; None without `plan`.
    plan: StudyPlan | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values."""
        first, second = self.runs
        record = {"a": first.path, "b": second.path, "differ": self.differ, "grouping": self.grouping}
        known = {name: self.answered.get(name) for name in self.metrics}  # null if `doubts` has the reason
        tests = {name: one if name in self.answered else None for name, one in self.against_human.items()}
        record |= {"doubts": self.doubts("AB"), "unmatched": self.unmatched, "metrics": known}
        record |= {"against_human": tests} | ({"plan": self.plan} if self.plan else {})
        return dict(as_record(record))

    def lines(self) -> list[str]:
        """Describe the runs and list their differences."""
        found = [f"{letter}  {_told_run(run)}" for letter, run in zip("AB", self.runs, strict=True)]
        differ = told_differ(self.differ) or ["no differences in the signatures"]
        return [*found, *differ, self.grouping, *self.unmatched, *self.doubts("AB")]

    def doubts(self, names: Sequence[str]) -> list[str]:
        """List the metrics and runs from which nothing can be concluded, with reasons; `names` names the runs."""
        pairs = ((metric, *one) for metric, told in self.doubt.items() for one in zip(names, told, strict=True))
        return [f"{metric} of {name}: {told}" for metric, name, told in pairs if told]

    @property
    def answered(self) -> dict[str, Difference]:
        """Differences on the metrics that the judges of both runs answer; `doubts` has the others."""
        return {name: one for name, one in self.metrics.items() if not any(self.doubt[name])}

    def shown(self) -> Iterator[Table]:
        """Give differences, the test against people, and the rows that differ most."""
        if self.answered:
            yield difference_table(self.answered).titled("A and B on the rows that both scored")
        if self.against_human:
            yield comparison_table(self.against_human).titled("which agrees better with people?", fold=FOLDED_TESTS)
        outputs = self.runs[0].outputs
        named = dict(zip(outputs, named_turns(self.runs[0].rows.inputs(), [*outputs]), strict=True))
        for name, own in self.answered.items():
            rows = [
                (named[key], a, b, f"{a - b:+.3f}", beginning(outputs[key] or "", BEGINNING))
                for key, a, b in own.largest
            ]
            if rows:
                title = f"largest disagreements: {name}"
                yield Table.of(("item", "A", "B", "A - B", "output"), rows).titled(title)
        if self.plan is not None:
            yield self.plan.table()


@dataclass(frozen=True)
class SystemComparison(Study):
    """Systems by the scores of one judge."""

    #: The rows of all systems.
    together: SystemRows
    #: File -> metric -> key of the signature -> its values in the first file and in this one.
    differ: dict[str, Differ]
    #: Lines that list the documents of only one file.
    unmatched: list[str]
    #: Metric -> which system is better.
    systems: dict[str, Ranking]
    #: Why `compare` treated two files as two systems; None if it did not have to guess.
    reason: str | None
    #: Metric -> field of its human ratings.
    human: dict[str, str]
    #: Documents needed to find a difference; None without `plan`.
    plan: StudyPlan | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values."""
        record: dict[str, Any] = {"files": [run.path for run in self.together.runs], "differ": self.differ}
        record |= {"grouping": self.together.grouping} | ({"plan": self.plan} if self.plan else {})
        known = {name: None if one.doubt else one for name, one in self.systems.items()}  # `doubts` has the reason
        return dict(as_record(record | {"unmatched": self.unmatched, "doubts": self.doubts, "systems": known}))

    @property
    def doubts(self) -> list[str]:
        """List the metrics from which nothing can be concluded, with reasons."""
        return [f"{name}: {one.doubt}" for name, one in self.systems.items() if one.doubt]

    def lines(self) -> list[str]:
        """Describe the compared results and list the differences of the files."""
        found = [_told_run(run) for run in self.together.runs]
        if self.reason is not None:
            found.append(f"two systems: {self.reason}")
        differ = [told for path, own in self.differ.items() for told in told_differ(own, f"{path} ")]
        return [*found, *differ, self.together.grouping, *self.unmatched, *self.doubts]

    def shown(self) -> Iterator[Table]:
        """Give the ranking and the differences of every metric."""
        for name, ranking in self.systems.items():
            if ranking.doubt:  # `lines` has the sentence
                continue
            table = ranking_table(ranking, self.human.get(name))
            yield table.titled(f"{name}: which system is better?")
            pairs = pair_table(ranking, telling_pairs(ranking))
            yield pairs.titled(f"{name}: differences", fold=("documents", "means"))
        if self.plan is not None:
            yield self.plan.table()


def compare(
    results: ResultsGiven | Sequence[ResultsGiven],
    *,
    metrics: Sequence[str] = (),
    baseline: str | None = None,
    tie: float = 0.0,
    across: Sequence[str] = (),
    human: HumanFields | None = None,
    level: Level | None = None,
    coefficient: str = "spearman",
    target: Target | None = None,
    largest: int = 10,
    plan: float | None = None,
    seed: int = 0,
    system_columns: Sequence[str] | None = None,
    **reading: Unpack[Reading],
) -> RunComparison | SystemComparison:
    """Say which system is better, or how two runs over the same rows differ; the results decide which.

    Two results without `system` and `baseline` count as two runs, unless each names one system of its own or most of
    their outputs differ. All other results count as systems. With ratings, two runs are also compared with people.

    Parameters
    ----------
    results : path, RunResult, rows or data frame, or sequence of them
        One with the systems in a column, one for each system, or two runs.
    metrics : sequence of str
        Names of the metrics to compare; by default all that the results share.
    baseline : str, optional
        Compare every system with this one only.
    tie : float
        Documents whose scores differ by at most this much count as ties.
    across : sequence of str
        Keys of the signature in which the results may differ, ``versions`` or ``any``; of two runs also ``input``.
    human : str, sequence or mapping of str, optional
        Field of the human rating; with several metrics ``METRIC=FIELD`` for each, or a mapping.
    level, coefficient, target
        Level, coefficient and target population of the agreement of two runs with people.
    largest : int
        Disagreements of two runs to list.
    plan : float, optional
        A true difference: of systems' means, in units of the scale, or of two runs' coefficients, which requires
        `human`. The result says how many documents are needed to find it.
    seed : int
        Seed of the draws and permutations.
    system_columns : sequence of str, optional
        Those with which the results were scored: compare their systems.
    **reading
        Fields of the document and of the system, and how scores are read: see `Reading`.

    Raises
    ------
    ConfigurationError
        If the signatures differ in keys that `across` does not name, or a metric is missing.
    DataError
        If the results cannot be used.
    """
    if plan is not None and not plan > 0:
        raise ConfigurationError(f"a plan is for a difference above 0, not {plan:g}", hint="In units of the scale.")
    scored = [ScoredRun.of(one, **reading).readable() for one in each_given(results)]
    if system_columns:
        field = system_of_columns(scored, system_columns, reading.get("system"))
        scored = [replace(run, system=field) for run in scored]
    names = shared_metrics(scored, metrics)
    rated = rating_fields(human, names)
    named = (("`system`", scored[0].system), ("`baseline`", baseline))
    reason = next((f"{option} is given" for option, value in named if value is not None), None)
    if len(scored) == 2 and reason is None and "input" not in across:
        guess = why_systems(*scored)
        reason = guess and f"{guess} (a guess; `across=input` compares them as two runs)"
    if len(scored) == 2 and reason is None:
        if plan is not None and not rated:
            raise ConfigurationError("a plan for two runs is about agreement with people", hint="Add `human=FIELD`.")
        test = partial(compare_agreement, coefficient=coefficient, seed=seed)
        return _compare_runs(scored[0], scored[1], names, rated, across, test, level, target, largest, plan)
    if level is not None or target not in (None, "documents"):
        raise ConfigurationError(
            "`level` and `target` are about two runs over the same rows: systems are compared by their scores, for new "
            "documents",
            hint="`geval-local meta-eval` correlates scores with ratings over systems.",
        )
    rank = partial(rank_systems, baseline=baseline, tie=tie, seed=seed)
    return _compare_systems(scored, names, rated, across, rank, plan, reason if len(scored) == 2 else None)


def _compare_systems(
    scored: Sequence[ScoredRun],
    names: Sequence[str],
    rated: dict[str, str],
    across: Sequence[str],
    rank: Callable[..., Ranking],
    plan: float | None,
    reason: str | None,
) -> SystemComparison:
    """Rank the systems by every metric."""
    check_single_outputs(scored, names)
    # Differences between the first file and each other file, except texts.
    others = {
        str(other.path): allowed_differences(scored[0], other, names, across, texts=False) for other in scored[1:]
    }
    gathered = gather(scored)
    rankings = {
        name: rank(
            list(chain.from_iterable(gathered.items(name, human=rated))),
            smallest=max(run.rounding(name) for run in scored),
            direction=scored[0].direction(name),
            ends=scored[0].ends(name),
        )
        for name in names
    }
    alone: list[str] = []
    if len(scored) == 2:
        one, other = gathered.items(names[0])
        ends = [str(run.path) for run in scored]
        alone = unmatched([item.group for item in one], [item.group for item in other], ends)
    planned = None
    if plan is not None:
        answered = {name: own for name, own in rankings.items() if not own.doubt}
        tests = {f"{name}: {pair.name}": pair for name, own in answered.items() for pair in own.pairs}
        levels = {name: pair.significance for name, pair in tests.items()}
        planned = plan_for({name: pair.difference for name, pair in tests.items()}, plan, levels=levels)
    return SystemComparison(gathered, others, alone, rankings, reason, rated, planned)


def _compare_runs(
    one: ScoredRun,
    other: ScoredRun,
    names: Sequence[str],
    rated: dict[str, str],
    across: Sequence[str],
    test: Callable[..., Comparison],
    level: Level | None,
    target: Target | None,
    largest: int,
    plan: float | None,
) -> RunComparison:
    """Compare two runs row by row, and with people."""
    differ = allowed_differences(one, other, names, across)
    documents = together((one, other))
    found: dict[str, Difference] = {}
    doubt: dict[str, tuple[str, str]] = {}
    tests: dict[str, Comparison] = {}
    pilots: dict[str, Interval] = {}
    systems: dict[str, Interval] = {}
    for name in names:
        items, others = (
            run.items(name, human=rated, documents=own) for run, own in zip((one, other), documents, strict=True)
        )
        sides = items, _rounded(items, others, max(run.rounding(name) for run in (one, other)))
        found[name] = differences(*sides, count=largest)
        doubt[name] = doubt_of(sides[0]), doubt_of(sides[1])
        if name in rated:
            test_over = partial(test, *sides, level=level or level_of_rated(documents[0].level, sides))
            tests[name] = test_over(target=target)
            if plan is not None:
                pilots[name] = tests[name].difference
            if plan is not None and tests[name].target != "documents":
                pilots[name] = test_over(target="documents").difference
                systems[name] = test_over(target="systems").difference
    tests = corrected(tests)
    levels = {name: own.significance for name, own in tests.items()}
    planned = None if plan is None else plan_for(pilots, plan, systems, levels=levels)
    unpaired = unmatched(row_keys(one.rows), row_keys(other.rows), [str(one.path), str(other.path)])
    return RunComparison((one, other), differ, documents[0].told, unpaired, found, tests, rated, doubt, planned)


def shared_metrics(runs: Sequence[ScoredRun], wanted: Sequence[str]) -> list[str]:
    """Return the requested metrics, or by default those that all runs have."""
    for run in runs:
        for name in wanted:
            run.one_metric(name)
    if wanted:
        return list(wanted)
    names = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    if not names:
        held = "; ".join(f"{run.path} holds {', '.join(run.metrics)}" for run in runs)
        named = " and ".join(str(run.path) for run in runs)
        raise ConfigurationError(f"{named} share no metric", hint=f"{held}.")
    return names


def allowed_differences(
    first: ScoredRun, second: ScoredRun, names: Sequence[str], across: Sequence[str], *, texts: bool = True
) -> Differ:
    """List the differences per metric, and refuse those that `across` does not name; `texts` includes the outputs."""
    known = [*KEYS, "versions", "input", ANY]
    unknown = [key for key in across if key not in known]
    if unknown:
        raise ConfigurationError(f"`across={unknown[0]}`: no such key", hint=f"Keys: {', '.join(known)}.")
    differ = {}
    for name in names:
        if ANY in across and not all(run.is_described(name) for run in (first, second)):
            continue
        differ[name] = signature_differences(first.signature(name), second.signature(name))
    changed = changed_outputs(first, second) if texts else 0
    if changed:
        for own in [differ.setdefault(name, {}) for name in names]:
            own["input"] = (f"{changed} outputs", "other texts under the same id or row number")
    allowed = {part for key in across for part in IMPLIED.get(key, (key,))}
    refused = {key: pair for own in differ.values() for key, pair in own.items() if key not in allowed}
    if refused and ANY not in across:
        told = told_differences(refused, "{} | {}")
        needed = [key for key in refused if key != "tokenizer" or "judge" not in refused]
        raise NotComparableError(f"{first.path} and {second.path} are not comparable: {told}", needed)
    return differ
