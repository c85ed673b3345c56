"""Which system is better, by one judge: a ranking with what can and what cannot be told apart.

Every pair of systems is compared on the documents that both answered, by the test of `sides.gap`, with Holm's
correction over all pairs. Groups of systems that cannot be told apart are those of a compact letter display (Piepho,
2004): two systems share a group exactly where their difference is not significant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.resampling import PERMUTATIONS
from geval_local.analysis.statistics.significance import corrected
from geval_local.analysis.studies.sides import Gap, SideMean, gap, shared_documents, side_means
from geval_local.errors import ConfigurationError, DataError

__all__ = [
    "PERMUTATIONS_PER_TEST",
    "SIGNIFICANT",
    "Ranking",
    "SystemPair",
    "letter_groups",
    "letters_of",
    "rank_systems",
]

#: Two systems are told apart where the corrected p is below this.
SIGNIFICANT = 0.05
#: So that Holm's correction can reject: the smallest p of a permutation test is two in the number of arrangements.
PERMUTATIONS_PER_TEST = 100
# Means of equal scores, summed in another order, differ by less.
_EQUAL = 1e-9


@dataclass(frozen=True)
class SystemPair(Gap):
    """Difference of two systems, the first the one with the higher mean; attributes of `Gap` and the following.

    Attributes
    ----------
    wins, ties, losses : int or None
        Documents on which the first is scored higher, alike and lower; None where documents are not paired.
    effect : float
        The difference in standard deviations: of the documents' differences where they are paired (Cohen's d_z), else
        of the scores (Cohen's d, pooled). NaN where nothing varies.
    """

    wins: int | None
    ties: int | None
    losses: int | None
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
    """Systems by their mean score.

    Attributes
    ----------
    systems : tuple of SideMean
        Highest mean first; systems without any score last.
    pairs : tuple of SystemPair
        All pairs, in the order of the ranking; with a baseline, each system and the baseline.
    groups : tuple of tuple of str
        Systems that cannot be told apart, in the order of the ranking; a system may be in several. Empty with a
        baseline, against which alone was tested.
    baseline : str or None
        What every other system was compared with.
    holds_for : str
        What intervals and tests generalise to, in words.
    told : str
        What came out, in a sentence.
    """

    systems: tuple[SideMean, ...]
    pairs: tuple[SystemPair, ...]
    groups: tuple[tuple[str, ...], ...]
    baseline: str | None
    holds_for: str
    told: str

    def letters(self, system: str) -> str:
        """Name the groups that a system belongs to, see `letters_of`."""
        return letters_of(self.groups, system)


def rank_systems(
    items: Sequence[ScoredItem], *, baseline: str | None = None, tie: float = 0.0, seed: int = 0
) -> Ranking:
    """Compare systems by the scores of one judge on one metric.

    Parameters
    ----------
    items : sequence of ScoredItem
        All with the name of a system; those of one `group` are about one document.
    baseline : str, optional
        Compare every system with this one only: fewer tests, so that smaller differences are found.
    tie : float
        Documents whose means differ by no more count as a tie, in units of the scale. For counting only.
    seed : int
        Seed of the permutations.

    Raises
    ------
    DataError
        If an item lacks its system, or there are not two systems with a score.
    ConfigurationError
        If the baseline is none of the systems.
    """
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
    """Find the largest sets of systems of which no two are told apart (insert and absorb; Piepho, 2004).

    Parameters
    ----------
    ranked : sequence of str
        All systems, in order.
    apart : iterable of (str, str)
        The pairs that are told apart.

    Returns
    -------
    tuple of tuple of str
        In the order of their first members.
    """
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
