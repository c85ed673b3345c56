"""Differences on documents: of two sides, of all systems, with what can and what cannot be told apart.

Every pair of systems is compared on the documents that both answered, by the test of `sides.gap`, with Holm's
correction over all pairs. Groups of systems that cannot be told apart are those of a compact letter display (Piepho,
2004): two systems share a group exactly where their difference is not significant.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.tables import Table, interval, interval_warnings, mean_warnings, number, p_value
from geval_local.errors import ConfigurationError, DataError
from geval_local.statistics.interval import Interval, mean_interval, t_interval, t_test
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.resampling import PERMUTATIONS, SIGN_FLIP_GROUPS, sign_flip
from geval_local.statistics.significance import corrected

#: With fewer documents that both sides share, documents are compared unpaired.
SHARED = SIGN_FLIP_GROUPS
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
    #: ``sign-flip`` (paired by document), ``t`` (paired, too few documents for a permutation) or ``Welch t`` (documents
    #: not shared).
    test: str
    #: Pairs, or documents of both sides together.
    documents: int
    #: Documents of one side alone that a paired test cannot use.
    left_out: int


def side_means(items: Sequence[ScoredItem], sides: Sequence[str]) -> list[SideMean]:
    """Mean score per side, in order of appearance."""
    result = []
    for side in dict.fromkeys(sides):
        members = [item for item, own in zip(items, sides, strict=True) if own == side]
        scored = [item for item in members if math.isfinite(item.predicted)]
        rated = [item for item in scored if math.isfinite(item.human)]
        mean = mean_interval(list(document_means(scored).values())) if scored else Interval(math.nan)
        human = [replace(item, predicted=item.human) for item in rated]
        rating = float(np.mean(list(document_means(human).values()))) if rated else math.nan
        result.append(SideMean(side, mean, rating, len(scored), len(members) - len(scored)))
    return result


def gap(
    items: Sequence[ScoredItem],
    sides: Sequence[str],
    first: str,
    second: str,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Gap:
    """Test whether one side is scored above another.

    Paired by document on all documents that have both sides, if there are at least `SHARED`, so that easy and hard
    documents cancel: signs of the documents' differences are flipped at random. Otherwise by Welch's t of
    the documents' means.
    """
    means = [_of_side(items, sides, side) for side in (first, second)]
    documents = len(means[0].keys() | means[1].keys())
    shared = _paired(means[0], means[1])
    if shared:
        a, b = (np.array([own[group] for group in shared]) for own in means)
        difference = mean_interval(a - b)
        if len(shared) >= SHARED:
            p, test = sign_flip(a - b, permutations=permutations, seed=seed), "sign-flip"
        else:
            p, test = t_test(difference.value, difference.error, difference.units), "t"
        left_out = documents - len(shared)
    else:
        a, b = (np.array(list(own.values())) for own in means)
        difference = _welch(a, b)
        p, test, left_out = t_test(difference.value, difference.error, difference.units), "Welch t", 0
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
    )


def shared_documents(
    items: Sequence[ScoredItem], sides: Sequence[str], first: str, second: str
) -> tuple[Floats, Floats] | None:
    """Mean scores of two sides on the documents by which `gap` pairs them; None where it does not pair them."""
    one, other = (_of_side(items, sides, side) for side in (first, second))
    shared = _paired(one, other)
    if not shared:
        return None
    return np.array([one[group] for group in shared]), np.array([other[group] for group in shared])


def document_means(items: Sequence[ScoredItem]) -> dict[str, float]:
    """Mean score of every document."""
    groups: dict[str, list[float]] = defaultdict(list)
    for item in items:
        groups[item.group].append(item.predicted)
    return {group: float(np.mean(values)) for group, values in groups.items()}


def _of_side(items: Sequence[ScoredItem], sides: Sequence[str], side: str) -> dict[str, float]:
    """Mean scores of a side's documents."""
    members = [i for i, own in zip(items, sides, strict=True) if own == side and math.isfinite(i.predicted)]
    if not members:
        raise DataError(f"no scored item belongs to {side!r}", hint=f"Sides: {', '.join(dict.fromkeys(sides))}.")
    return document_means(members)


def _paired(one: dict[str, float], other: dict[str, float]) -> list[str]:
    """Documents by which two sides are compared: those of both, if there are enough or no others; else none."""
    shared = [group for group in one if group in other]
    return shared if len(shared) >= SHARED or len(shared) == len(one.keys() | other.keys()) else []


def _welch(a: Floats, b: Floats) -> Interval:
    """Welch's interval of the difference of two independent means."""
    value = float(a.mean() - b.mean())
    if min(a.size, b.size) < 2:
        return Interval(value)
    parts = np.array([v.var(ddof=1) / v.size for v in (a, b)])
    error = float(np.sqrt(parts.sum()))
    if error == 0:
        return t_interval(value, 0.0, min(a.size, b.size))
    degrees = parts.sum() ** 2 / (parts**2 / np.array([a.size - 1, b.size - 1])).sum()
    warning = next((side for v in (a, b) if (side := mean_interval(v).warning)), "")
    return t_interval(value, error, math.floor(degrees) + 1, warning=warning)


@dataclass(frozen=True)
class SystemPair(Gap):
    """Difference of two systems, the first the one with the higher mean; attributes of `Gap` and the following."""

    #: Documents on which the first is scored higher, alike and lower; None where documents are not paired.
    wins: int | None
    ties: int | None
    losses: int | None
    #: The difference in standard deviations: of the documents' differences where they are paired (Cohen's d_z), else of
    #: the scores (Cohen's d, pooled). NaN where nothing varies.
    effect: float

    @property
    def is_told_apart(self) -> bool:
        """Whether the corrected p is significant."""
        return self.p_holm < SIGNIFICANT

    @property
    def better(self) -> str | None:
        """The system that is scored higher beyond chance; None where they cannot be told apart."""
        if not self.is_told_apart:
            return None
        return self.first if self.difference.value > 0 else self.second


@dataclass(frozen=True)
class Ranking:
    """Systems by their mean score."""

    #: Highest mean first; systems without any score last.
    systems: tuple[SideMean, ...]
    #: All pairs, in the order of the ranking; with a baseline, each system and the baseline.
    pairs: tuple[SystemPair, ...]
    #: Systems that cannot be told apart, in the order of the ranking; a system may be in several. Empty with a
    #: baseline, against which alone was tested.
    groups: tuple[tuple[str, ...], ...]
    #: What every other system was compared with.
    baseline: str | None
    #: What intervals and tests generalise to, in words.
    holds_for: str
    #: What came out, in a sentence.
    told: str

    def letters(self, system: str) -> str:
        """Name the groups that a system belongs to, see `letters_of`."""
        return letters_of(self.groups, system)


def rank_systems(
    items: Sequence[ScoredItem], *, baseline: str | None = None, tie: float = 0.0, seed: int = 0
) -> Ranking:
    """Compare systems by the scores of one judge on one metric."""
    nameless = [item.key for item in items if not item.system]
    if nameless:
        raise DataError(
            f"{len(nameless)} of {len(items)} rows name no system, the first of them {nameless[0]!r}",
            hint="Name the column that holds it with --system.",
        )
    sides = [item.system for item in items]
    means = sorted(side_means(items, sides), key=lambda side: (-_finite(side.mean.value), side.side))
    ranked = [side.side for side in means if side.n]
    if len(ranked) < 2:
        told = f"all rows are of one system, {sides[0]!r}" if len(means) < 2 else "fewer than two systems have a score"
        raise DataError(f"{told}: there is nothing to compare")
    if baseline is not None and baseline not in ranked:
        raise ConfigurationError(
            f"there is no system {baseline!r} with a score", hint=f"The systems are: {', '.join(ranked)}."
        )
    chosen = [(one, other) for one, other in combinations(ranked, 2) if baseline in (None, one, other)]
    permutations = max(PERMUTATIONS, PERMUTATIONS_PER_TEST * len(chosen))
    by_system = {name: [item for item in items if item.system == name] for name in ranked}
    tests = corrected(
        {
            f"{one}\x1f{other}": _pair(by_system, one, other, permutations=permutations, tie=tie, seed=seed)
            for one, other in chosen
        }
    )
    pairs = tuple(tests.values())
    groups = letter_groups(ranked, [(pair.first, pair.second) for pair in pairs if pair.is_told_apart])
    return Ranking(
        tuple(means),
        pairs,
        groups if baseline is None else (),
        baseline,
        f"new documents from the same {len(ranked)} systems, not for new systems",
        _told(ranked, pairs, baseline),
    )


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


def letters_of(groups: Sequence[Sequence[str]], system: str) -> str:
    """Name the groups that a system belongs to: ``a``, ``ab``; by numbers where there are more than 26 groups."""
    own = [index for index, members in enumerate(groups) if system in members]
    if len(groups) > 26:
        return ",".join(str(index + 1) for index in own)
    return "".join(chr(ord("a") + index) for index in own)


def _pair(
    by_system: dict[str, list[ScoredItem]], one: str, other: str, *, permutations: int, tie: float, seed: int
) -> SystemPair:
    items = [*by_system[one], *by_system[other]]
    sides = [item.system for item in items]
    found = gap(items, sides, one, other, permutations=permutations, seed=seed)
    shared = shared_documents(items, sides, one, other)
    if shared is None:
        # Cohen's d from what Welch's test was made of: the spread of the documents' means on either side.
        spreads = [side.mean.error**2 * side.mean.units for side in side_means(items, sides)]
        spread = math.sqrt(float(np.mean(spreads)))
        return SystemPair(**vars(found), wins=None, ties=None, losses=None, effect=_share(found, spread))
    differences = shared[0] - shared[1]
    wins, losses = int((differences > tie + _EQUAL).sum()), int((differences < -tie - _EQUAL).sum())
    spread = float(differences.std(ddof=1)) if differences.size > 1 else math.nan
    ties = differences.size - wins - losses
    return SystemPair(**vars(found), wins=wins, ties=ties, losses=losses, effect=_share(found, spread))


def _share(found: Gap, spread: float) -> float:
    return found.difference.value / spread if math.isfinite(spread) and spread > _EQUAL else math.nan


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -math.inf


def _told(ranked: Sequence[str], pairs: Sequence[SystemPair], baseline: str | None) -> str:
    """Say what came out, in a sentence."""
    if len(pairs) == 1:
        return _told_pair(pairs[0])
    if baseline is not None:
        better = [name for name in ranked if any(p.better == name and baseline in (p.first, p.second) for p in pairs)]
        better = [name for name in better if name != baseline]
        worse = [p.first if p.second == baseline else p.second for p in pairs if p.better == baseline]
        same = [name for name in ranked if name not in (*better, *worse, baseline)]
        parts = [
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {how}"
            for names, how in (
                (better, f"better than {baseline}"),
                (worse, f"worse than {baseline}"),
                (same, f"not told apart from {baseline}"),
            )
            if names
        ]
        return f"By this judge, {'; '.join(parts)} (Holm, p < {SIGNIFICANT:g})."
    apart = sum(pair.is_told_apart for pair in pairs)
    best = ranked[0]
    same = [p.second if p.first == best else p.first for p in pairs if best in (p.first, p.second) and p.better is None]
    told = f"{', '.join(same)} cannot be told apart from it" if same else "every other system is told apart from it"
    return (
        f"By this judge {best} is first of {len(ranked)} systems, and {told}; {apart} of {len(pairs)} pairs are told "
        f"apart (Holm, p < {SIGNIFICANT:g})."
    )


def _told_pair(pair: SystemPair) -> str:
    d = pair.difference
    ahead, behind = (pair.first, pair.second) if d.value >= 0 else (pair.second, pair.first)
    low, high = (d.low, d.high) if d.value >= 0 else (-d.high, -d.low)
    size = f"{abs(d.value):.3f}" + (f" [{low:.3f}, {high:.3f}]" if math.isfinite(low) else "")
    p = "too few for an interval or a test" if not math.isfinite(pair.p) else f"{pair.test} p {_told_p(pair.p)}"
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


def _told_p(p: float) -> str:
    return "< .0001" if p < 1e-4 else f"= {p:.4f}" if p < 0.01 else f"= {p:.3f}"


def ranking_table(ranking: Ranking) -> Table:
    """One row per system, the best first."""
    rated = any(side.human == side.human for side in ranking.systems)
    rows = tuple(
        (
            side.side,
            str(place),
            interval(side.mean),
            *([ranking.letters(side.side) or "-"] if ranking.groups else []),
            *([number(side.human)] if rated else []),
            str(side.n),
            str(side.unscored),
        )
        for place, side in enumerate(ranking.systems, start=1)
    )
    headers = ("", "rank", "mean score", *(["group"] if ranking.groups else []), *(["mean human"] if rated else []))
    notes = [ranking.told, f"intervals and tests hold for {ranking.holds_for}; every document weighs the same"]
    if ranking.groups:
        notes.append("systems that share a letter cannot be told apart")
    notes += mean_warnings({side.side: side.mean for side in ranking.systems})
    return Table((*headers, "n", "unscored"), rows, tuple(notes))


def pair_table(ranking: Ranking, pairs: Sequence[SystemPair] | None = None) -> Table:
    """One row per pair of systems."""
    shown = ranking.pairs if pairs is None else tuple(pairs)
    rows = tuple(
        (
            f"{pair.first} - {pair.second}",
            f"{number(pair.means[0])} / {number(pair.means[1])}",
            interval(pair.difference),
            p_value(pair.p),
            p_value(pair.p_holm),
            "-" if pair.wins is None else f"{pair.wins} / {pair.ties} / {pair.losses}",
            number(pair.effect),
            number(pair.detectable),
            pair.test,
            str(pair.documents),
            str(pair.left_out),
        )
        for pair in shown
    )
    headers = (
        *("", "means", "difference", "p", "p (Holm)", "win / tie / loss", "effect", "detectable", "test"),
        *("documents", "left out"),
    )
    notes = [f"p (Holm): for all {len(ranking.pairs)} pairs; effect: the difference in standard deviations"]
    if len(shown) < len(ranking.pairs):
        notes.insert(0, f"{len(shown)} of {len(ranking.pairs)} pairs: the best and its others, and neighbours")
    if any(pair.left_out for pair in shown):
        notes.append("left out: documents that one of the two did not answer")
    notes += mean_warnings({f"{pair.first} - {pair.second}": pair.difference for pair in shown})
    return Table(headers, rows, tuple(notes))


def telling_pairs(ranking: Ranking) -> list[SystemPair]:
    """Choose the pairs that say most: all of them, or the best with each other and neighbours in the ranking."""
    if len(ranking.pairs) <= MOST_PAIRS or ranking.baseline is not None:
        return list(ranking.pairs)
    ranked = [side.side for side in ranking.systems if side.n]
    neighbours = set(pairwise(ranked))
    return [pair for pair in ranking.pairs if pair.first == ranked[0] or (pair.first, pair.second) in neighbours]


def side_table(means: Sequence[SideMean]) -> Table:
    """Build a table with one row per side."""
    rows = tuple((m.side, interval(m.mean), number(m.human), str(m.n), str(m.unscored)) for m in means)
    notes = ("every document weighs the same", *interval_warnings({m.side: m.mean for m in means}))
    return Table(("", "mean score", "mean human", "n", "unscored"), rows, notes)


def gap_table(gaps: Mapping[str, Gap]) -> Table:
    """Build a table with one row per gap, such as one per human preference."""
    rows = tuple(
        (
            name,
            f"{g.first} - {g.second}",
            f"{number(g.means[0])} / {number(g.means[1])}",
            interval(g.difference),
            p_value(g.p),
            p_value(g.p_holm),
            number(g.detectable),
            g.test,
            str(g.documents),
            str(g.left_out),
        )
        for name, g in gaps.items()
    )
    headers = (*("", "gap", "means", "difference", "p", "p (Holm)", "detectable", "test", "documents", "left out"),)
    return Table(headers, rows, tuple(interval_warnings({name: g.difference for name, g in gaps.items()})))
