"""Differences on documents: of two sides, of all systems, with what can and what cannot be told apart.

Every pair of systems is compared on the documents that both answered, by the test of `gap`, with Holm's correction over
all pairs. Where systems answered different documents they are ranked by means adjusted for documents, those of the
additive model of documents and systems (least squares), since easy documents make high means; by these are compared two
that share hardly any document, if others connect them. Groups of systems that
cannot be told apart are those of a compact letter display (Piepho, 2004): two systems share a group exactly where their
difference is not significant.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.tables import Table, interval_warnings, mean_warnings, number, p_value
from geval_local.errors import ConfigurationError, DataError
from geval_local.score import silence
from geval_local.statistics.interval import Interval, mean_interval, t_interval, t_test
from geval_local.statistics.records import ScoredItem, mean_mass
from geval_local.statistics.resampling import PERMUTATIONS, RESAMPLES, Draws, paired_test
from geval_local.statistics.significance import corrected

#: With fewer documents that both sides share, documents are compared unpaired; what differs may then be the documents,
#: unless chance gave every side its own.
SHARED = 2
WELCH, ADJUSTED = "Welch t", "t (adjusted means)"
Floats = NDArray[np.float64]
#: Two systems are told apart where the corrected p is below this.
SIGNIFICANT = 0.05
#: So that Holm's correction can reject: the smallest p of a permutation test is two in the number of arrangements.
PERMUTATIONS_PER_TEST = 100
# Means of equal scores, summed in another order, differ by less.
_EQUAL = 1e-9
#: More pairs than this are not all listed where there is little room.
MOST_PAIRS = 15


@dataclass(frozen=True)
class SideMean:
    """Mean score of one side (LLM-written, human-written, a system, ...), every document weighing the same."""

    #: Which one.
    side: str
    #: Mean over its documents of their mean score.
    mean: Interval
    #: Mean human rating of the same items, weighed alike, where they are rated, else NaN.
    human: float
    #: Scored items, and items without a score.
    n: int
    unscored: int
    #: The mean as if it had every document; None where all sides have the same, or none can be adjusted.
    adjusted: Interval | None = None

    @property
    def shown(self) -> Interval:
        """The mean by which sides are compared: the adjusted one, if there is one."""
        return self.adjusted or self.mean


@dataclass(frozen=True)
class Gap:
    """Difference of two sides' scores, every document weighing the same."""

    #: The sides.
    first: str
    second: str
    #: Their means on the documents that the gap is about.
    means: tuple[float, float]
    #: ``first - second`` in units of the scale.
    difference: Interval
    #: Two-sided p-value of the test; NaN where there are too few documents.
    p: float
    #: The same, corrected for the number of tests in its table; NaN where it stands alone.
    p_holm: float
    #: Smallest true gap that would have been found with 80 % probability.
    detectable: float
    #: ``sign-flip`` (paired by document), ``t`` (paired, too few documents for a permutation), ``t (adjusted means)``
    #: or ``Welch t`` (documents not shared).
    test: str
    #: Pairs, or documents of both sides together.
    documents: int
    #: Documents of one side alone that a paired test cannot use.
    left_out: int
    #: Documents on which the first is scored higher, alike and lower; None where documents are not paired.
    wins: int | None = None
    ties: int | None = None
    losses: int | None = None

    @property
    def name(self) -> str:
        """What was subtracted from what."""
        return f"{self.first} - {self.second}"

    @property
    def is_told_apart(self) -> bool:
        """Whether the corrected p is significant."""
        return self.p_holm < SIGNIFICANT

    @property
    def better(self) -> str | None:
        """The side that is scored higher beyond chance; None where they cannot be told apart."""
        if not self.is_told_apart:
            return None
        return self.first if self.difference.value > 0 else self.second


def side_means(items: Sequence[ScoredItem]) -> list[SideMean]:
    """Mean score per side, the system of its items, in order of appearance."""
    result = []
    for side in dict.fromkeys(item.system for item in items):
        members = [item for item in items if item.system == side]
        scored = sum(math.isfinite(item.predicted) for item in members)
        means, ratings = (list(document_means(members, side, of).values()) for of in ("predicted", "human"))
        mean = mean_interval(means) if means else Interval(math.nan)
        rating = float(np.mean(ratings)) if ratings else math.nan
        result.append(SideMean(side, mean, rating, scored, len(members) - scored))
    return result


def adjusted_means(items: Sequence[ScoredItem], *, seed: int = 0) -> dict[str, tuple[Interval, Floats]]:
    """Mean of every system as if it had all documents; empty where all have the same, or they share too few.

    The error is that of drawing whole documents with replacement; the means in every draw are given too.
    """
    from scipy.sparse.csgraph import connected_components

    by_system = {name: document_means(items, name) for name in dict.fromkeys(item.system for item in items)}
    names, cells = [name for name, own in by_system.items() if own], [own for own in by_system.values() if own]
    documents = list(dict.fromkeys(document for own in cells for document in own))
    there = np.array([[document in own for own in cells] for document in documents], dtype=np.float64)
    shared = there.T @ there
    if there.all() or connected_components(shared >= SHARED)[0] > 1:
        return {}
    score = np.array([[own.get(document, 0.0) for own in cells] for document in documents])
    count = there.sum(axis=1)
    level = score.sum(axis=1) / count
    # Normal equations without the documents' own effects: sums over documents, so that a draw of documents weighs them.
    table = there[:, :, None] * (np.eye(len(names)) - there[:, None] / count[:, None, None])
    right = there * (score - level[:, None])

    def solve(weights: Floats) -> Floats:
        sums = np.tensordot(weights, table, axes=1) + 1 / len(names) + 1e-9 * np.eye(len(names))
        found = np.linalg.solve(sums, (weights @ right)[..., None])[..., 0]
        effect = level - found @ (there / count[:, None]).T
        return np.asarray(found + (weights * effect).sum(axis=-1, keepdims=True) / weights.sum(axis=-1, keepdims=True))

    value = solve(np.ones((1, len(documents))))[0]
    drawn = Draws(documents, (), "documents", count=max(200, min(RESAMPLES, 2_000_000 // len(names) ** 2)), seed=seed)
    means = solve(drawn.documents(documents)).T
    units = there.sum(axis=0).astype(int)
    spread = zip(names, value.tolist(), means, units.tolist(), strict=True)
    return {name: (t_interval(own, float(drew.std(ddof=1)), count), drew) for name, own, drew, count in spread}


def gap(
    items: Sequence[ScoredItem],
    first: str,
    second: str,
    *,
    permutations: int = PERMUTATIONS,
    tie: float = 0.0,
    seed: int = 0,
) -> Gap:
    """Test whether one side, a system of the items, is scored above another.

    Paired by document on all documents that have both sides, if there are at least `SHARED`, so that easy and hard
    documents cancel: signs of the documents' differences are flipped at random. Otherwise by Welch's t of
    the documents' means. A document is tied if its scores differ by no more than `tie`.
    """
    means = [document_means(items, side) for side in (first, second)]
    for side, own in zip((first, second), means, strict=True):
        if not own:
            sides = dict.fromkeys(item.system for item in items)
            raise DataError(f"no scored item belongs to {side!r}", hint=f"Sides: {', '.join(sides)}.")
    documents = len(means[0].keys() | means[1].keys())
    shared = _paired(means[0], means[1])
    counts: tuple[int | None, ...] = (None, None, None)
    if shared:
        a, b = (np.array([own[group] for group in shared]) for own in means)
        difference = mean_interval(a - b)
        p, test = paired_test(a - b, difference, permutations=permutations, seed=seed)
        left_out = documents - len(shared)
        wins, losses = int((a - b > tie + _EQUAL).sum()), int((b - a > tie + _EQUAL).sum())
        counts = wins, len(shared) - wins - losses, losses
    else:
        a, b = (np.array(list(own.values())) for own in means)
        difference = _welch(a, b)
        p, test, left_out = t_test(difference.value, difference.error, difference.units), WELCH, 0
    return Gap(
        first,
        second,
        (float(a.mean()), float(b.mean())),
        difference,
        p,
        math.nan,
        difference.detectable(),
        test,
        documents - left_out,
        left_out,
        *counts,
    )


def document_means(
    items: Iterable[ScoredItem], side: str, of: str = "predicted", *, scored: bool = True
) -> dict[str, float]:
    """Mean score, or rating, of every document of a side; of scored items, unless all are asked for."""
    groups: dict[str, list[float]] = defaultdict(list)
    for item in items:
        value = getattr(item, of)
        if item.system == side and math.isfinite(value) and (math.isfinite(item.predicted) or not scored):
            groups[item.group].append(value)
    return {group: float(np.mean(values)) for group, values in groups.items()}


def _paired(one: dict[str, float], other: dict[str, float]) -> list[str]:
    """Documents by which two sides are compared: those of both, if there are enough or no others; else none."""
    shared = [group for group in one if group in other]
    return shared if len(shared) >= SHARED or len(shared) == len(one.keys() | other.keys()) else []


def _welch(a: Floats, b: Floats) -> Interval:
    """Welch's interval of the difference of two independent means."""
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


class Grouped:
    """Systems in groups that cannot be told apart."""

    groups: tuple[tuple[str, ...], ...]

    def letters(self, system: str) -> str:
        """Name the groups that a system belongs to: ``a``, ``ab``; by numbers where there are more than 26 groups."""
        own = [index for index, members in enumerate(self.groups) if system in members]
        if len(self.groups) > 26:
            return ",".join(str(index + 1) for index in own)
        return "".join(chr(ord("a") + index) for index in own)


@dataclass(frozen=True)
class Ranking(Grouped):
    """Systems by their mean score."""

    #: Highest mean first, adjusted for documents where these differ; systems without a score last.
    systems: tuple[SideMean, ...]
    #: All pairs, in the order of the ranking; with a baseline, each system and the baseline.
    pairs: tuple[Gap, ...]
    #: Systems that cannot be told apart, in the order of the ranking; a system may be in several. Empty with a
    #: baseline, against which alone was tested.
    groups: tuple[tuple[str, ...], ...]
    #: What every other system was compared with.
    baseline: str | None
    #: What intervals and tests generalise to, in words.
    holds_for: str
    #: What came out, in a sentence.
    told: str
    #: Why nothing can be concluded, in a sentence; empty where the judge answers.
    doubt: str = ""


def doubt_of(items: Sequence[ScoredItem]) -> str:
    """Say in a sentence why nothing can be concluded from scores: the judge does not answer; else empty."""
    told = silence(mean_mass(items))
    return f"Nothing can be concluded: {told}." if told else ""


def rank_systems(
    items: Sequence[ScoredItem], *, baseline: str | None = None, tie: float = 0.0, seed: int = 0
) -> Ranking:
    """Compare systems by the scores of one judge on one metric."""
    nameless = [item.key for item in items if not item.system]
    if nameless:
        raise DataError(
            f"{len(nameless)} of {len(items)} rows name no system, the first of them {nameless[0]!r}",
            hint="Name the column that holds it with `system`.",
        )
    adjusted = adjusted_means(items, seed=seed)
    found = [
        replace(side, adjusted=adjusted[side.side][0] if side.side in adjusted else None) for side in side_means(items)
    ]
    means = sorted(found, key=lambda side: (-np.nan_to_num(side.shown.value, nan=-np.inf), side.side))
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
    chosen = [(one, other) for one, other in combinations(ranked, 2) if baseline in (None, one, other)]
    permutations = max(PERMUTATIONS, PERMUTATIONS_PER_TEST * len(chosen))
    by_system = {name: [item for item in items if item.system == name] for name in ranked}
    tests = {}
    for one, other in chosen:
        own = [*by_system[one], *by_system[other]]
        test = gap(own, one, other, permutations=permutations, tie=tie, seed=seed)
        tests[one, other] = _adjusted(test, adjusted) if adjusted and test.test == WELCH else test
    pairs = tuple(corrected(tests).values())
    doubt = doubt_of(items)
    groups = letter_groups(ranked, [(pair.first, pair.second) for pair in pairs if pair.is_told_apart])
    return Ranking(
        tuple(means),
        pairs,
        groups if baseline is None else (),
        baseline,
        f"new documents from the same {len(ranked)} systems, not for new systems",
        doubt or _told(ranked, pairs, baseline),
        doubt,
    )


def _adjusted(test: Gap, means: Mapping[str, tuple[Interval, Floats]]) -> Gap:
    """Compare by adjusted means two systems that share hardly any document."""
    (one, drew), (other, drew_too) = means[test.first], means[test.second]
    error, units = float((drew - drew_too).std(ddof=1)), min(one.units, other.units)
    difference = t_interval(one.value - other.value, error, units)
    p = t_test(difference.value, error, difference.units)
    return replace(test, means=(one.value, other.value), difference=difference, p=p, test=ADJUSTED)


def letter_groups(ranked: Sequence[str], apart: Iterable[tuple[str, str]]) -> tuple[tuple[str, ...], ...]:
    """Find the largest sets of systems of which no two are told apart (insert and absorb; Piepho, 2004)."""
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


def _told(ranked: Sequence[str], pairs: Sequence[Gap], baseline: str | None) -> str:
    """Say what came out, in a sentence."""
    if len(pairs) == 1:
        return _told_pair(pairs[0])
    anchor = ranked[0] if baseline is None else baseline
    own = [(p.second if p.first == anchor else p.first, p.better) for p in pairs if anchor in (p.first, p.second)]
    below, even = ([other for other, better in own if better == which] for which in (anchor, None))
    above = [other for other, better in own if better == other]
    if baseline is not None:
        outcomes = {"better than": above, "worse than": below, "not told apart from": even}
        parts = [
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {how} {baseline}"
            for how, names in outcomes.items()
            if names
        ]
        return f"By this judge, {'; '.join(parts)} (Holm, p < {SIGNIFICANT:g})."
    outcomes = {"it is better than": below, "it is not told apart from": even}
    outcomes["on the documents that both answered it is worse than"] = above
    parts = [f"{how} {', '.join(names)}" for how, names in outcomes.items() if names]
    apart = sum(pair.is_told_apart for pair in pairs)
    return (
        f"By this judge {anchor} has the highest mean of {len(ranked)} systems; {'; '.join(parts)}. {apart} of "
        f"{len(pairs)} pairs are told apart (Holm, p < {SIGNIFICANT:g}, two-sided)."
    )


def _told_pair(pair: Gap) -> str:
    d = pair.difference
    ahead, behind = (pair.first, pair.second) if d.value >= 0 else (pair.second, pair.first)
    low, high = (d.low, d.high) if d.value >= 0 else (-d.high, -d.low)
    size = f"{abs(d.value):.3f}" + (f" [{low:.3f}, {high:.3f}]" if math.isfinite(low) else "")
    p = "too few for an interval or a test"
    if math.isfinite(pair.p):
        p = f"{pair.test} p {'' if pair.p < 1e-4 else '= '}{p_value(pair.p)}"
    noun = "document" if pair.documents == 1 else "documents"
    on = f"on {pair.documents} {'shared ' if pair.wins is not None else ''}{noun} ({p})"
    counted = ""
    if pair.wins is not None and pair.losses is not None:
        won, lost = (pair.wins, pair.losses) if d.value >= 0 else (pair.losses, pair.wins)
        counted = f"; {ahead} wins {won}, ties {pair.ties} and loses {lost}"
    if pair.better is not None:
        return f"By this judge {ahead} is better than {behind}, by {size} in units of the scale {on}{counted}."
    missed = ""
    if math.isfinite(pair.detectable):
        missed = f" A true difference of {pair.detectable:.3f} would have been found with 80 % probability."
    return (
        f"By this judge {ahead} and {behind} cannot be told apart: {ahead} is ahead by {size} in units of the scale "
        f"{on}{counted}.{missed}"
    )


def ranking_table(ranking: Ranking, human: str | None = None) -> Table:
    """One row per system, the best first; `human` is the field of the ratings."""
    rated = any(side.human == side.human for side in ranking.systems)
    adjusted = any(side.adjusted is not None for side in ranking.systems)
    rows = [
        (m.side, place, m.shown, m.mean.value, ranking.letters(m.side) or "-", m.human, m.n, m.unscored)
        for place, m in enumerate(ranking.systems, start=1)
    ]
    means = ("adjusted mean", "own mean") if adjusted else ("mean score", None)
    optional = ("group" if ranking.groups else None, f"mean {human or 'human'}" if rated else None)
    headers = ("", "rank", *means, *optional, "n", "unscored")
    notes = [] if ranking.doubt else [ranking.told]  # a doubt stands above the table
    if adjusted:
        few = " or by these means where they share hardly any" if any(p.test == ADJUSTED for p in ranking.pairs) else ""
        notes.append(
            "warning: systems answered different documents: ranks are by means adjusted for documents (additive "
            f"model), tests are on the documents that two systems share{few}"
        )
    if any(pair.test == WELCH for pair in ranking.pairs):
        notes.append(
            "warning: systems that share no documents are compared by Welch's t: what differs may be their documents"
        )
    notes.append(f"intervals and tests hold for {ranking.holds_for}; every document weighs the same")
    notes.append("`score` prints the mean of rows, where a document with more rows weighs more")
    if ranking.groups:
        notes.append("systems that share a letter cannot be told apart")
    notes += mean_warnings({side.side: side.shown for side in ranking.systems})
    return Table.of(headers, rows, notes)


def all_pairs(count: int) -> str:
    """Name the tests that Holm's correction is for."""
    return "this pair" if count == 1 else f"all {count} pairs"


def pair_table(ranking: Ranking, pairs: Sequence[Gap] | None = None) -> Table:
    """One row per pair of systems."""
    shown = ranking.pairs if pairs is None else pairs
    found = gap_table({pair.name: pair for pair in shown}, all_pairs(len(ranking.pairs)), of_systems=True)
    if len(shown) == len(ranking.pairs):
        return found
    told = f"{len(shown)} of {len(ranking.pairs)} pairs: the best and its others, and neighbours"
    return replace(found, notes=(told, *found.notes))


def gap_table(gaps: Mapping[str, Gap], what: str = "all gaps of this table", *, of_systems: bool = False) -> Table:
    """One row per gap, such as one per human preference; gaps of systems are named by them, with wins and losses."""
    columns: dict[str, Callable[[Gap], Any]] = {
        "gap": lambda own: own.name,
        "means": lambda own: f"{number(own.means[0])} / {number(own.means[1])}",
        "difference": lambda own: own.difference,
        "p": lambda own: p_value(own.p),
        "p (Holm)": lambda own: p_value(own.p_holm),
        "win / tie / loss": lambda own: "-" if own.wins is None else f"{own.wins} / {own.ties} / {own.losses}",
        "detectable": lambda own: own.detectable,
        "documents": lambda own: f"{own.documents} ({own.left_out} left out)" if own.left_out else own.documents,
    }
    del columns["gap" if of_systems else "win / tie / loss"]
    tests = ", ".join(dict.fromkeys(own.test for own in gaps.values()))
    notes = [
        f"p: two-sided, {tests}; p (Holm): for {what}; detectable: the difference found with 80 % probability "
        "after Holm's correction"
    ]
    if any(own.left_out for own in gaps.values()):
        notes.append("left out: documents that one of the two did not answer")
    return Table.over(gaps, columns, notes + mean_warnings({name: own.difference for name, own in gaps.items()}))


def telling_pairs(ranking: Ranking) -> list[Gap]:
    """Choose the pairs that say most: all of them, or the best with each other and neighbours in the ranking."""
    if len(ranking.pairs) <= MOST_PAIRS or ranking.baseline is not None:
        return list(ranking.pairs)
    ranked = [side.side for side in ranking.systems if side.n]
    neighbours = set(pairwise(ranked))
    return [pair for pair in ranking.pairs if pair.first == ranked[0] or (pair.first, pair.second) in neighbours]


def side_table(means: Sequence[SideMean]) -> Table:
    """Build a table with one row per side."""
    rows = [(m.side, m.mean, m.human, m.n, m.unscored) for m in means]
    notes = ("every document weighs the same", *interval_warnings({m.side: m.mean for m in means}))
    return Table.of(("", "mean score", "mean human", "n", "unscored"), rows, notes)
