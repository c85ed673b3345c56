"""Differences on documents, of two sides or of all systems, with the groups that no test separates.

Every pair of systems is compared on the documents that both answered, by the test of `gap`, corrected for all pairs
(`corrected`). Easy documents make high means, so systems that answered different documents are ranked by adjusted
means: those of the additive model of documents and systems (least squares). Groups of systems that no test separates
are those of a compact letter display (Piepho, 2004): two systems share a group if and only if their difference is not
significant.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.tables import Table, digits, interval, interval_warnings, mean_warnings, number, p_value
from geval_local.direction import Direction
from geval_local.errors import ConfigurationError, DataError
from geval_local.score import silence
from geval_local.signature import rounding_of
from geval_local.statistics.interval import Ends, Interval, mean_interval, skewness_of, t_interval, t_test
from geval_local.statistics.noninferiority import p_of_mean
from geval_local.statistics.records import ScoredItem, labels_of
from geval_local.statistics.resampling import RESAMPLES, Draws
from geval_local.statistics.significance import LEVEL, corrected

#: With fewer shared documents, the test is unpaired. A difference may then be due to the documents, unless they were
#: assigned to sides at random.
SHARED = 2
WELCH = "Welch t"
Floats = NDArray[np.float64]
#: Scores that differ by less are equal, unless the run's own rounding is larger.
ROUNDING = rounding_of("")
#: Why the leading system is not called better.
_FEW = "no winner is named: so few documents may lack rare scores that would undo the lead"
#: With more pairs than this, a short table lists only the most informative ones.
MOST_PAIRS = 15


@dataclass(frozen=True)
class SideMean:
    """Mean score of one side (LLM-written, human-written, a system, ...), with equal weight for every document."""

    #: Name of the side.
    side: str
    #: Mean over its documents of their mean score.
    mean: Interval
    #: Mean human rating of its scored items with the same weights, NaN without ratings; and the number of rated items.
    human: float
    rated: int
    #: Number of scored items, and of items without a score.
    n: int
    unscored: int
    #: Number of documents that only others answered.
    left_out: int = 0
    #: The mean adjusted to all documents; None if all sides have the same documents, or no adjustment is possible.
    adjusted: Interval | None = None

    @property
    def shown(self) -> Interval:
        """The mean used to compare sides: the adjusted one, if there is one."""
        return self.adjusted or self.mean


@dataclass(frozen=True)
class Gap:
    """Difference of two sides' scores, with equal weight for every document."""

    #: The sides.
    first: str
    second: str
    #: Their means on the compared documents.
    means: tuple[float, float]
    #: ``first - second`` in units of the scale.
    difference: Interval
    #: Two-sided p-value of the test; NaN with too few documents.
    p: float
    #: The p-value adjusted for all tests of its table; NaN for a single test.
    p_adjusted: float
    #: ``t`` (paired by document), or ``Welch t`` (documents not shared).
    test: str
    #: Number of paired documents; if unpaired, of the documents of both sides together.
    documents: int
    #: Number of documents that only one side has, which a paired test cannot use.
    left_out: int
    #: Number of documents on which the first side is better, tied, and worse; None if unpaired.
    wins: int | None = None
    ties: int | None = None
    losses: int | None = None
    #: Document -> difference; empty if unpaired.
    by_document: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    #: Level that the correction leaves this test, if it is the first of its table.
    significance: float = field(default=LEVEL, repr=False)
    #: Which scores are good.
    direction: Direction = Direction.HIGH
    #: How probably so few documents lack what would undo the lead, such as rare failures of the better side: Gaffke's p
    #: of a lead, if one side's score may be any on the scale; 0 if unpaired.
    hidden: float = 0.0

    @property
    def name(self) -> str:
        """Name of the difference: ``first - second``."""
        return f"{self.first} - {self.second}"

    @property
    def is_told_apart(self) -> bool:
        """Whether the adjusted p is significant; False if the documents differ, as they may cause the gap."""
        return self.p_adjusted < LEVEL and self.test != WELCH

    @property
    def is_equal(self) -> bool:
        """Whether both sides have the same score on every shared document."""
        return self.wins is not None and not any(self.by_document.values())

    @property
    def better(self) -> str | None:
        """The significantly better side; None if the test separates neither, or rare scores may undo the lead."""
        if not self.is_told_apart or self.hidden >= LEVEL:
            return None
        return self.first if self.lead > 0 else self.second

    @property
    def lead(self) -> float:
        """How far the first is ahead, in units of the scale; negative if it is behind."""
        return self.direction.sign * self.difference.value


def side_means(items: Sequence[ScoredItem]) -> list[SideMean]:
    """Compute the mean score per side (system of the items), in order of appearance."""
    result = []
    known = [document_means(items, of) for of in ("predicted", "human")]
    everything = {document for own in known[0].values() for document in own}
    by_side: dict[str, list[ScoredItem]] = {}
    for item in items:
        by_side.setdefault(item.system, []).append(item)
    for side, members in by_side.items():
        scored = [item for item in members if math.isfinite(item.predicted)]
        means, ratings = (list(own.get(side, {}).values()) for own in known)
        mean = mean_interval(means) if means else Interval(math.nan)
        rating = float(np.mean(ratings)) if ratings else math.nan
        rated = sum(math.isfinite(item.human) for item in scored)
        unscored, left_out = len(members) - len(scored), len(everything) - len(means)
        result.append(SideMean(side, mean, rating, rated, len(scored), unscored, left_out))
    return result


def adjusted_means(items: Sequence[ScoredItem], *, seed: int = 0) -> dict[str, Interval]:
    """Compute every system's mean adjusted to all documents; empty if all have the same ones or share too few.

    The error is the bootstrap's over whole documents. If more than a tenth of the draws do not connect all systems,
    there is no interval.
    """
    from scipy.sparse.csgraph import connected_components

    by_system = document_means(items)
    names = [name for name in dict.fromkeys(item.system for item in items) if name in by_system]
    cells = [by_system[name] for name in names]
    documents = list(dict.fromkeys(document for own in cells for document in own))
    there = np.array([[document in own for own in cells] for document in documents], dtype=np.float64)
    shared = there.T @ there
    if there.all() or connected_components(shared >= SHARED)[0] > 1:
        return {}
    score = np.array([[own.get(document, 0.0) for own in cells] for document in documents])
    count = there.sum(axis=1)
    level = score.sum(axis=1) / count
    # Normal equations without the documents' effects. They are sums over documents, so a draw only reweights them.
    table = there[:, :, None] * (np.eye(len(names)) - there[:, None] / count[:, None, None])
    right = there * (score - level[:, None])

    def solve(weights: Floats) -> Floats:
        sums = np.tensordot(weights, table, axes=1) + 1 / len(names) + 1e-9 * np.eye(len(names))
        found = np.linalg.solve(sums, (weights @ right)[..., None])[..., 0]
        effect = level - found @ (there / count[:, None]).T
        return np.asarray(found + (weights * effect).sum(axis=-1, keepdims=True) / weights.sum(axis=-1, keepdims=True))

    value = solve(np.ones((1, len(documents))))[0]
    drawn = Draws(documents, (), "documents", count=max(200, min(RESAMPLES, 2_000_000 // len(names) ** 2)), seed=seed)
    weights = drawn.documents(documents)
    whole = _connected(np.tensordot(weights, there[:, :, None] * there[:, None], axes=1) > 0)
    means = np.where(whole[:, None], solve(weights), np.nan).T
    units = there.sum(axis=0).astype(int).tolist()
    return {
        name: _drawn_interval(own, drew, count)
        for name, own, drew, count in zip(names, value.tolist(), means, units, strict=True)
    }


def _connected(linked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return for every graph, shape (graphs, systems, systems), whether it is connected."""
    reached = np.zeros(linked.shape[:2], dtype=bool)
    reached[:, 0] = True
    for _ in range(linked.shape[1] - 1):
        reached |= (linked & reached[:, None]).any(axis=2)
    return np.asarray(reached.all(axis=1))


def _drawn_interval(value: float, drawn: Floats, units: int) -> Interval:
    """Compute an interval from draws, whose variance is too small by the factor (n - 1) / n (Efron, 1982)."""
    if np.isfinite(drawn).mean() < 0.9:
        return Interval(
            value, warning="in many draws of the documents some systems share none, which allows no interval"
        )
    error = float(np.nanstd(drawn, ddof=1)) * math.sqrt(units / max(1, units - 1))
    return t_interval(value, error, units)


def gap(
    items: Sequence[ScoredItem],
    first: str,
    second: str,
    *,
    tie: float = 0.0,
    smallest: float = ROUNDING,
    ends: Ends | None = None,
    direction: Direction = Direction.HIGH,
    known: Mapping[str, dict[str, float]] | None = None,
) -> Gap:
    """Test whether one side (a system of the items) scores higher than another.

    If at least `SHARED` documents have both sides, the test is paired, so easy and hard documents cancel. Otherwise it
    is Welch's t test of the documents' means. A document is tied if its scores differ by at most `tie`; differences up
    to `smallest` are 0. `ends` are those of the scale; without them no score is taken to be beyond those of both sides.
    `known` are the documents' means, if they were computed before.
    """
    by_side = known or document_means(items)
    means = [by_side.get(side, {}) for side in (first, second)]
    for side, own in zip((first, second), means, strict=True):
        if not own:
            sides = dict.fromkeys(item.system for item in items)
            raise DataError(f"no scored item belongs to {side!r}", hint=f"Sides: {', '.join(sides)}.")
    documents = len(means[0].keys() | means[1].keys())
    shared = _paired(means[0], means[1])
    if not shared:
        a, b = (np.array([own[name] for name in sorted(own)]) for own in means)
        difference = _welch(a, b)
        p = t_test(difference.value, difference.error, difference.units)
        ends = float(a.mean()), float(b.mean())
        return Gap(first, second, ends, difference, p, math.nan, WELCH, documents, 0, direction=direction)
    a, b = (np.array([own[name] for name in shared]) for own in means)
    apart = np.where(np.abs(a - b) <= smallest, 0.0, a - b)
    by_document = dict(zip(shared, apart.tolist(), strict=True))
    difference = mean_interval(apart)
    p = t_test(difference.value, difference.error, difference.units, skewness_of(apart))
    low, high = ends or (float(min(a.min(), b.min())), float(max(a.max(), b.max())))
    worst = min(low - float(b.mean()), float(a.mean()) - high, -abs(difference.value))
    wins, losses = (int((sign * direction.sign * apart > tie + smallest).sum()) for sign in (1, -1))
    return Gap(
        first,
        second,
        (float(a.mean()), float(b.mean())),
        difference,
        p,
        math.nan,
        "t",
        len(shared),
        documents - len(shared),
        wins,
        len(shared) - wins - losses,
        losses,
        by_document,
        direction=direction,
        hidden=hidden(apart, worst),
    )


def hidden(differences: Floats, worst: float) -> float:
    """Bound the probability that so few documents lack the differences against a lead, down to `worst`."""
    return p_of_mean(math.copysign(1.0, float(differences.mean())) * differences, worst, 0.0)


def document_means(
    items: Iterable[ScoredItem], of: str = "predicted", *, scored: bool = True
) -> dict[str, dict[str, float]]:
    """Compute the mean score, or rating, of every document of every side; of scored items only if `scored`."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for item in items:
        value = getattr(item, of)
        if math.isfinite(value) and (math.isfinite(item.predicted) or not scored):
            groups[item.system, item.group].append(value)
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for (side, document), values in groups.items():
        found[side][document] = math.fsum(values) / len(values)
    return found


def _paired(one: dict[str, float], other: dict[str, float]) -> list[str]:
    """Return the shared documents for a paired test; empty if they are too few and others exist."""
    shared = sorted(one.keys() & other.keys())
    return shared if len(shared) >= SHARED or len(shared) == len(one.keys() | other.keys()) else []


def _welch(a: Floats, b: Floats) -> Interval:
    """Compute Welch's interval of the difference of two independent means."""
    from scipy import stats

    value = float(a.mean() - b.mean())
    if min(a.size, b.size) < 2:
        return Interval(value)
    error = math.sqrt(a.var(ddof=1) / a.size + b.var(ddof=1) / b.size)
    if error == 0:
        return t_interval(value, 0.0, min(a.size, b.size))
    degrees = float(stats.ttest_ind(a, b, equal_var=False).df)
    warning = next((side for v in (a, b) if (side := mean_interval(v).warning)), "")
    return t_interval(value, error, math.floor(degrees) + 1, warning=warning)


@dataclass(frozen=True)
class Ranking:
    """Systems by their mean score, or by their mean preference."""

    #: Best mean first (adjusted if documents differ), or strongest first; systems without a score last.
    systems: tuple[SideMean, ...]
    #: All pairs, in the order of the ranking; with a baseline, each system and the baseline.
    pairs: tuple[Gap, ...]
    #: Groups of systems that no test separates, in the order of the ranking; a system may be in several. Empty with a
    #: baseline, since only pairs with it are tested.
    groups: tuple[tuple[str, ...], ...]
    #: The system that every other was compared with; None if all pairs were.
    baseline: str | None
    #: Description of the population to which intervals and tests generalise.
    holds_for: str
    #: Sentence that states the result.
    told: str
    #: Sentence that says why nothing can be concluded; empty if the judge answers.
    doubt: str = ""

    def letters(self, system: str) -> str:
        """Name the groups of a system: ``a``, ``ab``; with more than 26 groups by numbers."""
        own = [index for index, members in enumerate(self.groups) if system in members]
        if len(self.groups) > 26:
            return ",".join(str(index + 1) for index in own)
        return "".join(chr(ord("a") + index) for index in own)


def doubt_of(items: Sequence[ScoredItem]) -> str:
    """Say why nothing can be concluded from scores of a judge that does not answer; empty if it answers."""
    known = [item.label_mass for item in items if math.isfinite(item.label_mass)]
    told = silence(math.fsum(known) / len(known)) if known else ""
    return f"Nothing can be concluded: {told}." if told else ""


def rank_systems(
    items: Sequence[ScoredItem],
    *,
    baseline: str | None = None,
    tie: float = 0.0,
    smallest: float = ROUNDING,
    seed: int = 0,
    direction: Direction = Direction.HIGH,
    ends: Ends | None = None,
) -> Ranking:
    """Compare systems by the scores of one judge on one metric; `direction` says which scores are good.

    Differences up to `smallest` are rounding, and count as 0. `ends` are those of the scale, by default of its labels,
    see `gap`.
    """
    nameless = [item.key for item in items if not item.system]
    if nameless:
        raise DataError(
            f"{len(nameless)} of {len(items)} rows name no system, the first of them {nameless[0]!r}",
            hint="Name the column that holds it with `system`.",
        )
    adjusted = adjusted_means(items, seed=seed)
    found = [replace(side, adjusted=adjusted.get(side.side)) for side in side_means(items)]
    means = sorted(found, key=lambda side: (-np.nan_to_num(direction.sign * side.shown.value, nan=-np.inf), side.side))
    ranked = [side.side for side in means if side.n]
    if len(ranked) < 2:
        told = (
            f"all rows are of one system, {items[0].system!r}"
            if len(means) < 2
            else "fewer than two systems have a score"
        )
        raise DataError(f"{told}: there is nothing to compare")
    if len(ranked) > 2 and len(ranked) == sum(side.n for side in means) == len({item.group for item in items}):
        raise DataError(
            f"each of the {len(ranked)} systems has one row, of a document of its own: there is nothing to compare",
            hint=f"{ranked[0]!r} looks like the id of a row. Name the column that holds the system.",
        )
    if baseline is not None and baseline not in ranked:
        raise ConfigurationError(
            f"there is no system {baseline!r} with a score", hint=f"The systems are: {', '.join(ranked)}."
        )
    if ends is None and len(labels := labels_of(items)) > 1:
        ends = labels[0], labels[-1]
    test = partial(gap, items, tie=tie, smallest=smallest, ends=ends, direction=direction, known=document_means(items))
    tests = [test(one, other) for one, other in combinations(ranked, 2) if baseline in (None, one, other)]
    holds_for = f"new documents from the same {len(ranked)} systems, not for new systems"
    words = f"has the {direction.best} mean", "in units of the scale"
    return ranking_of(means, tests, holds_for, doubt_of(items), baseline=baseline, words=words)


def ranking_of(
    systems: Sequence[SideMean],
    tests: Sequence[Gap],
    holds_for: str,
    doubt: str,
    *,
    baseline: str | None = None,
    words: tuple[str, str] = ("has the highest mean", "in units of the scale"),
) -> Ranking:
    """Correct the tests of ranked systems, group the systems that no test separates, and state the result.

    Without tests of all pairs there are no groups: they would put systems together that were never compared.
    """
    ranked = [side.side for side in systems if side.n]
    pairs = tuple(corrected({(test.first, test.second): test for test in tests}).values())
    is_complete = baseline is None and len(pairs) == len(ranked) * (len(ranked) - 1) // 2
    apart = [(pair.first, pair.second) for pair in pairs if pair.is_told_apart]
    groups = letter_groups(ranked, apart) if ranked and is_complete else ()
    told = doubt or (_told(ranked, pairs, baseline, words) if pairs else "")
    return Ranking(tuple(systems), pairs, groups, baseline, holds_for, told, doubt)


def letter_groups(ranked: Sequence[str], apart: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Find the maximal sets of systems of which no two are separated (insert and absorb; Piepho, 2004)."""
    sets = [frozenset(ranked)]
    for one, other in apart:
        split = [part for own in sets if {one, other} <= own for part in (own - {one}, own - {other})]
        kept = [own for own in sets if not {one, other} <= own]
        for part in dict.fromkeys(split):
            if not any(part <= own for own in (*kept, *(rest for rest in split if rest != part))):
                kept.append(part)
        sets = kept
    place = {name: index for index, name in enumerate(ranked)}
    ordered = [tuple(sorted(own, key=place.__getitem__)) for own in sets]
    return tuple(sorted(ordered, key=lambda own: [place[name] for name in own]))


def _told(ranked: Sequence[str], pairs: Sequence[Gap], baseline: str | None, words: tuple[str, str]) -> str:
    """State the result in a sentence."""
    if len(pairs) == 1:
        return _told_pair(pairs[0], words[1])
    anchor = ranked[0] if baseline is None else baseline
    outcomes: dict[str, list[str]] = defaultdict(list)
    for pair in pairs:
        if anchor in (pair.first, pair.second):
            outcomes[_outcome(pair, anchor)].append(pair.second if pair.first == anchor else pair.first)
    told = {
        "better": ("it is better than {}", "{} {is} worse than {anchor}"),
        "few": (f"it is ahead of {{}}, but {_FEW}", f"{{}} {{differ}} from {{anchor}}, but {_FEW}"),
        "even": ("it is not told apart from {}", "{} {is} not told apart from {anchor}"),
        "equal": ("it has the same scores as {}", "{} {has} the same scores as {anchor}"),
        "worse": ("on the documents that both answered it is worse than {}", "{} {is} better than {anchor}"),
        "apart": ("it answered other documents than {}", "{} answered other documents than {anchor}"),
    }
    parts = []
    for outcome in ("worse", "better", "even", "equal", "apart") if baseline else told:
        if names := outcomes.get(outcome):
            be = {"is": "is", "has": "has", "differ": "differs"}
            be = be if len(names) == 1 else {"is": "are", "has": "have", "differ": "differ"}
            parts.append(told[outcome][baseline is not None].format(", ".join(names), anchor=anchor, **be))
    how = f"(Holm, p < {LEVEL:g})"
    if baseline is not None:
        return f"By this judge, {'; '.join(parts)} {how}."
    apart = sum(pair.is_told_apart for pair in pairs)
    return (
        f"By this judge {anchor} {words[0]} of {len(ranked)} systems; {'; '.join(parts)}. {apart} of "
        f"{len(pairs)} pairs are told apart {how}."
    )


def _outcome(pair: Gap, anchor: str) -> str:
    if pair.test == WELCH:
        return "apart"
    if pair.is_told_apart and pair.better is None:
        return "few"
    return "equal" if pair.is_equal else {None: "even", anchor: "better"}.get(pair.better, "worse")


def _told_pair(pair: Gap, unit: str) -> str:
    d = pair.difference
    ahead, behind = (pair.first, pair.second) if pair.lead >= 0 else (pair.second, pair.first)
    if pair.is_equal:
        which = f"{pair.documents} documents{' that both answered' if pair.left_out else ''}"
        return f"By this judge {pair.first} and {pair.second} have the same scores on all {which}."
    size = interval(d if d.value >= 0 else replace(d, value=-d.value, low=-d.high, high=-d.low))
    p = "too few for an interval or a test"
    if math.isfinite(pair.p):
        p = f"{pair.test} p {'' if pair.p < 1e-4 else '= '}{p_value(pair.p)}"
    if pair.test == WELCH:
        return (
            f"By this judge {ahead} scored {pair.direction.ahead} than {behind}, on other documents, by {size} "
            f"{unit} on {pair.documents} documents ({p}): what differs may be the documents."
        )
    noun = "document" if pair.documents == 1 else "documents"
    on = f"on {pair.documents} {'shared ' if pair.wins is not None else ''}{noun} ({p})"
    counted = ""
    if pair.wins is not None and pair.losses is not None:
        won, lost = (pair.wins, pair.losses) if pair.lead >= 0 else (pair.losses, pair.wins)
        counted = f"; {ahead} wins {won}, ties {pair.ties} and loses {lost}"
    if pair.better is not None:
        return f"By this judge {ahead} is better than {behind}, by {size} {unit} {on}{counted}."
    if pair.is_told_apart:
        return f"By this judge {ahead} is ahead of {behind} by {size} {unit} {on}{counted}, but {_FEW}."
    return f"By this judge {ahead} and {behind} cannot be told apart: {ahead} is ahead by {size} {unit} {on}{counted}."


def ranking_table(
    ranking: Ranking,
    human: str | None = None,
    *,
    mean: str = "mean score",
    strengths: Mapping[str, Interval] | None = None,
) -> Table:
    """One row per system, the best first; `human` is the field of the ratings."""
    adjusted = any(side.adjusted is not None for side in ranking.systems)
    columns: dict[str, Callable[[SideMean], Any]] = {
        "rank": lambda side: 1 + ranking.systems.index(side),
        "adjusted mean" if adjusted else mean: lambda side: side.shown,
        "own mean": lambda side: number(side.mean.value, digits(side.mean)),
        "Bradley-Terry": lambda side: (strengths or {})[side.side],
        "group": lambda side: ranking.letters(side.side) or "-",
        f"mean {human or 'human'} (n)": lambda side: f"{number(side.human)} ({side.rated})",
        "n": lambda side: side.n,
        "unscored": lambda side: side.unscored,
    }
    shown = (True, True, adjusted, strengths, ranking.groups, any(side.rated for side in ranking.systems), True, True)
    columns = {name: said for (name, said), is_shown in zip(columns.items(), shown, strict=True) if is_shown}
    notes = [] if ranking.doubt or not ranking.told else [ranking.told]  # a doubt is printed above the table
    if adjusted:
        notes.append(
            "warning: systems answered different documents: ranks are by means adjusted for documents (additive "
            "model), tests are on the documents that two systems share"
        )
    if any(pair.is_told_apart and pair.better is None for pair in ranking.pairs):
        notes.append(f"{_FEW} (the bound of Gaffke, 2005, for any scores on the scale, is above {LEVEL:g})")
    if any(pair.test == WELCH for pair in ranking.pairs):
        notes.append(
            "warning: no winner is named of systems that share no documents (Welch's t): what differs may be these"
        )
    if left := [f"{side.side} {side.left_out}" for side in ranking.systems if side.n and side.left_out]:
        more = f" and {len(left) - MOST_PAIRS} others" if len(left) > MOST_PAIRS else ""
        told = f"{', '.join(left[:MOST_PAIRS])}{more}"
        notes.append(f"documents left out by {told}: nothing can be concluded about these")
    notes.append(f"intervals and tests hold for {ranking.holds_for}; every document weighs the same")
    if strengths is None:
        notes.append("`score` prints the mean of rows, where a document with more rows weighs more")
    if ranking.groups:
        notes.append("systems that share a letter cannot be told apart")
    notes += mean_warnings({side.side: side.shown for side in ranking.systems})
    return Table.over({side.side: side for side in ranking.systems}, columns, notes)


def pair_table(ranking: Ranking, pairs: Sequence[Gap] | None = None) -> Table:
    """One row per pair of systems."""
    shown = ranking.pairs if pairs is None else pairs
    tests = "this pair" if len(ranking.pairs) == 1 else f"all {len(ranking.pairs)} pairs"
    found = gap_table({pair.name: pair for pair in shown}, tests, of_systems=True)
    if len(shown) == len(ranking.pairs):
        return found
    told = f"{len(shown)} of {len(ranking.pairs)} pairs: the best and its others, and neighbours"
    return replace(found, notes=(told, *found.notes))


def gap_table(gaps: Mapping[str, Gap], what: str = "all gaps of this table", *, of_systems: bool = False) -> Table:
    """One row per gap, such as one per human preference; gaps of systems are named by them, with wins and losses."""
    columns: dict[str, Callable[[Gap], Any]] = {
        "gap": lambda own: own.name,
        "means": lambda own: " / ".join(number(mean, digits(own.difference)) for mean in own.means),
        "difference": lambda own: own.difference,
        "p": lambda own: p_value(own.p),
        "p (adjusted)": lambda own: p_value(own.p_adjusted),
        "win / tie / loss": lambda own: "-" if own.wins is None else f"{own.wins} / {own.ties} / {own.losses}",
        "documents": lambda own: f"{own.documents} ({own.left_out} left out)" if own.left_out else own.documents,
    }
    del columns["gap" if of_systems else "win / tie / loss"]
    tests = ", ".join(dict.fromkeys(own.test for own in gaps.values()))
    notes = [f"p: two-sided, {tests}, with the skewness of the differences; p (adjusted): for {what} (Holm)"]
    if any(own.left_out for own in gaps.values()):
        notes.append("left out: documents that one of the two did not answer")
    return Table.over(gaps, columns, notes + mean_warnings({name: own.difference for name, own in gaps.items()}))


def telling_pairs(ranking: Ranking) -> list[Gap]:
    """Choose the most informative pairs: all, or the best system with every other, and neighbours in the ranking."""
    if len(ranking.pairs) <= MOST_PAIRS or ranking.baseline is not None:
        return list(ranking.pairs)
    ranked = [side.side for side in ranking.systems if side.n]
    neighbours = set(pairwise(ranked))
    return [pair for pair in ranking.pairs if pair.first == ranked[0] or (pair.first, pair.second) in neighbours]


def side_table(means: Sequence[SideMean]) -> Table:
    """Build a table with one row per side."""
    rows = [(m.side, m.mean, f"{number(m.human)} ({m.rated})", m.n, m.unscored) for m in means]
    notes = ("every document weighs the same", *interval_warnings({m.side: m.mean for m in means}))
    return Table.of(("", "mean score", "mean human (n)", "n", "unscored"), rows, notes)
