"""What comparisons of pairs say: of the systems, of the judge's consistency, and of its agreement with people.

Intervals are Student's, by leaving out one document at a time (`geval_local.interval`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.preferences import Preference
from geval_local.analysis.statistics.bradley_terry import BradleyTerry, fit_bradley_terry
from geval_local.analysis.statistics.coefficients import tie_threshold
from geval_local.analysis.statistics.correlation import within
from geval_local.analysis.statistics.resampling import PERMUTATIONS, SIGN_FLIP_GROUPS, sign_flip
from geval_local.analysis.statistics.significance import corrected
from geval_local.analysis.studies.systems import PERMUTATIONS_PER_TEST, SIGNIFICANT, letter_groups, letters_of
from geval_local.errors import DataError
from geval_local.interval import Interval, mean_interval, t_test

__all__ = [
    "Consistency",
    "PairAgreement",
    "PairStudy",
    "SystemPair",
    "SystemRank",
    "agreement",
    "consistency",
    "rank",
    "study_pairs",
    "system_pairs",
    "systems_of",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SystemPair:
    """How two systems compare.

    Attributes
    ----------
    first, second : str
        The systems, in the order in which they first appear.
    n, unscored : int
        Comparisons judged, and not judged.
    preference : Interval
        Mean preference for the first: 1 always better, 0 never, half of every tie included.
    tie : float
        Mean probability of a tie.
    p : float
        Two-sided p-value of "neither is preferred": signs of the documents' preferences beyond one half are flipped
        at random, or Student's t where they are fewer than six. NaN with fewer than two documents.
    p_holm : float
        The same, corrected for all pairs of systems.
    """

    first: str
    second: str
    n: int
    unscored: int
    preference: Interval
    tie: float
    p: float
    p_holm: float = math.nan

    @property
    def is_told_apart(self) -> bool:
        """Whether one of the two is preferred beyond chance, after the correction."""
        return self.p_holm < SIGNIFICANT


@dataclass(frozen=True)
class Consistency:
    """How far a judge agrees with itself.

    Attributes
    ----------
    n, unscored : int
        Comparisons judged, and not judged.
    position_shift : Interval
        How much preference an output gains by being shown first, -0.5 to 0.5: half the difference of its preference
        when it is shown first and second.
    flip_rate : Interval
        Share of comparisons of which each order names another winner.
    tie : float
        Mean probability of a tie.
    masses : tuple of (float, float)
        Mean label mass in the given order and in the other one; NaN without orders.
    triads, cyclic : int
        Sets of three systems that were all compared, and those in which each beats the next in a circle.
    document_triads, document_cyclic : int
        The same within single documents.
    """

    n: int
    unscored: int
    position_shift: Interval
    flip_rate: Interval
    tie: float
    masses: tuple[float, float]
    triads: int
    cyclic: int
    document_triads: int
    document_cyclic: int


@dataclass(frozen=True)
class SystemRank:
    """A system among all.

    Attributes
    ----------
    system : str
        Which one.
    n : int
        Comparisons of it that were judged.
    preference : Interval
        Mean preference for it over all of them.
    strength : Interval
        Bradley-Terry strength, in log-odds, mean 0 over the systems.
    """

    system: str
    n: int
    preference: Interval
    strength: Interval


@dataclass(frozen=True)
class PairStudy:
    """All that a set of comparisons says; command and page show these figures.

    Attributes
    ----------
    ranks : list of SystemRank
        The systems, the strongest first; see `rank`.
    warning : str
        Why there are no Bradley-Terry strengths; empty otherwise.
    groups : tuple of tuple of str
        Systems that cannot be told apart, in the order of the ranking; a system may be in several. Empty where not
        every two systems were compared.
    pairs : list of SystemPair
        Every two systems that were compared.
    consistency : Consistency
        How far the judge agrees with itself.
    agreement : PairAgreement or None
        How far it agrees with people, where their preferences are known.
    """

    ranks: list[SystemRank]
    warning: str
    groups: tuple[tuple[str, ...], ...]
    pairs: list[SystemPair]
    consistency: Consistency
    agreement: PairAgreement | None

    def letters(self, system: str) -> str:
        """Name the groups that a system belongs to: ``a``, ``ab``."""
        return letters_of(self.groups, system)

    @property
    def told(self) -> str:
        """What came out for the systems, in a sentence; empty where no two systems were judged."""
        judged = [pair for pair in self.pairs if pair.n]
        if not judged:
            return ""
        apart = sum(pair.is_told_apart for pair in judged)
        if len(judged) == 1:
            (pair,) = judged
            value = pair.preference.value
            ahead, behind = (pair.first, pair.second) if value >= 0.5 else (pair.second, pair.first)
            by = f"by {max(value, 1 - value):.3f}, where one half is no preference"
            if apart:
                return f"This judge prefers {ahead} to {behind} {by}."
            if abs(value - 0.5) < 5e-4:
                return f"This judge cannot tell {ahead} and {behind} apart: it prefers neither."
            few = "" if math.isfinite(pair.p) else ", and one document allows no test"
            return f"This judge cannot tell {ahead} and {behind} apart: it prefers the first {by}{few}."
        first, systems = self.ranks[0].system, len(self.ranks)
        told = f"{apart} of {len(judged)} pairs of systems are told apart (Holm, p < {SIGNIFICANT:g})"
        return f"This judge ranks {first} first of {systems} systems; {told}."


@dataclass(frozen=True)
class PairAgreement:
    """How far comparisons agree with people's.

    Attributes
    ----------
    n : int
        Comparisons that were judged and of which people's preference is known.
    human_ties, left_out : int
        Of these, those that people tie; comparisons that were not judged or not rated.
    decided : Interval
        Share of the comparisons that people decided in which the judge prefers the same output; a preference of
        exactly one half counts half.
    with_ties : Interval
        Share of all comparisons in which it prefers the same output or ties as people do; a preference within
        `threshold` of one half is a tie (Deutsch, Foster and Freitag, 2023).
    threshold : float
        The one that makes `with_ties` highest on these data, 0 to 0.5.
    expected : Interval
        Mean probability that the judge's verdict, drawn from its distribution, is that of people; of several people,
        of one of them.
    """

    n: int
    human_ties: int
    left_out: int
    decided: Interval
    with_ties: Interval
    threshold: float
    expected: Interval


def _judged(found: Sequence[Preference]) -> list[Preference]:
    return [one for one in found if math.isfinite(one.value)]


def _mean(values: Sequence[float] | Floats, documents: Sequence[str], low: float = 0.0) -> Interval:
    """Mean with its interval, cut off at `low` and one above it, where the figure cannot be."""
    return within(mean_interval(values, documents), low, low + 1) if len(values) else Interval(math.nan)


def systems_of(found: Sequence[Preference]) -> list[str]:
    """List the systems in the order in which they first appear."""
    return list(dict.fromkeys(system for one in found for system in (one.first, one.second) if system))


def _by_pair(found: Sequence[Preference]) -> dict[tuple[str, str], list[Preference]]:
    """Gather the comparisons of every two systems, all turned to the side of the one that appears first."""
    place = {system: number for number, system in enumerate(systems_of(found))}
    groups: dict[tuple[str, str], list[Preference]] = {}
    for one in found:
        if one.first and one.second:
            own = one if place[one.first] < place[one.second] else one.turned()
            groups.setdefault((own.first, own.second), []).append(own)
    return dict(sorted(groups.items(), key=lambda pair: (place[pair[0][0]], place[pair[0][1]])))


def system_pairs(found: Sequence[Preference]) -> list[SystemPair]:
    """Compare every two systems that were held against each other, with tests that are corrected for their number."""
    groups = _by_pair(found)
    permutations = max(PERMUTATIONS, PERMUTATIONS_PER_TEST * len(groups))
    pairs = {}
    for (first, second), members in groups.items():
        judged = _judged(members)
        preference = _mean([one.value for one in judged], [one.document for one in judged])
        pairs[f"{first}\x1f{second}"] = SystemPair(
            first,
            second,
            len(judged),
            len(members) - len(judged),
            preference,
            float(np.mean([one.p[2] for one in judged])) if judged else math.nan,
            _p_of(judged, preference, permutations),
        )
    return list(corrected(pairs).values())


def _means(judged: Sequence[Preference]) -> dict[tuple[str, str], float]:
    """Mean preference of every two systems; a system may have several outputs for a document."""
    return {pair: float(np.mean([one.value for one in own])) for pair, own in _by_pair(judged).items()}


def _p_of(judged: Sequence[Preference], preference: Interval, permutations: int) -> float:
    """Test whether comparisons of two systems prefer neither; documents are independent, their comparisons are not."""
    beyond: dict[str, float] = {}
    for one in judged:
        beyond[one.document] = beyond.get(one.document, 0.0) + one.value - 0.5
    if len(beyond) >= SIGN_FLIP_GROUPS:
        return sign_flip(np.array(list(beyond.values())), permutations=permutations)
    return t_test(preference.value - 0.5, preference.error, preference.units)


def study_pairs(found: Sequence[Preference]) -> PairStudy:
    """Find all that a set of comparisons says.

    Parameters
    ----------
    found : sequence of Preference
        Of any pairs, judged or not.
    """
    ranks, warning = rank(found)
    pairs = system_pairs(found)
    ranked = [one.system for one in ranks]
    apart = [(pair.first, pair.second) for pair in pairs if pair.is_told_apart]
    is_complete = sum(bool(pair.n) for pair in pairs) == len(ranked) * (len(ranked) - 1) // 2
    rated = any(math.isfinite(one.human) for one in _judged(found))
    return PairStudy(
        ranks,
        warning,
        letter_groups(ranked, apart) if ranked and is_complete else (),
        pairs,
        consistency(found),
        agreement(found) if rated else None,
    )


def rank(found: Sequence[Preference]) -> tuple[list[SystemRank], str]:
    """Rank the systems, the strongest first.

    Returns
    -------
    ranks : list of SystemRank
        By strength, by mean preference where there are no strengths.
    warning : str
        Why there are no Bradley-Terry strengths; empty otherwise.
    """
    judged = [one for one in _judged(found) if one.first and one.second]
    systems = systems_of(judged)
    place = {system: number for number, system in enumerate(systems)}
    fitted = BradleyTerry(())
    if judged:
        fitted = fit_bradley_terry(
            len(systems),
            np.array([place[one.first] for one in judged], dtype=np.int64),
            np.array([place[one.second] for one in judged], dtype=np.int64),
            np.clip([one.value for one in judged], 0.0, 1.0),
            [one.document for one in judged],
        )
    ranks = []
    for system, strength in zip(systems, fitted.strengths, strict=True):
        own = [one if one.first == system else one.turned() for one in judged if system in (one.first, one.second)]
        preference = _mean([one.value for one in own], [one.document for one in own])
        ranks.append(SystemRank(system, len(own), preference, strength))
    ranks.sort(key=lambda one: (-one.strength.value if math.isfinite(one.strength.value) else 0, -one.preference.value))
    return ranks, fitted.warning


def consistency(found: Sequence[Preference]) -> Consistency:
    """Measure what the order of the two outputs does, and whether preferences go round in circles."""
    judged = _judged(found)
    ordered = [one for one in judged if len(one.orders) >= 2]
    documents = [one.document for one in ordered]
    shown = [(float(np.mean(one.orders[::2])), float(np.mean(one.orders[1::2]))) for one in ordered]
    masses = (math.nan, math.nan)
    if ordered:
        masses = (
            float(np.mean([np.mean(one.masses[::2]) for one in ordered])),
            float(np.mean([np.mean(one.masses[1::2]) for one in ordered])),
        )
    by_document: dict[str, list[Preference]] = {}
    for one in judged:
        by_document.setdefault(one.document, []).append(one)
    triads, cyclic = _circles(_means(judged))
    inner = [_circles(_means(own)) for own in by_document.values()]
    return Consistency(
        n=len(judged),
        unscored=len(found) - len(judged),
        position_shift=_mean([(one - other) / 2 for one, other in shown], documents, low=-0.5),
        flip_rate=_mean([float((one - 0.5) * (other - 0.5) < 0) for one, other in shown], documents),
        tie=float(np.mean([one.p[2] for one in judged])) if judged else math.nan,
        masses=masses,
        triads=triads,
        cyclic=cyclic,
        document_triads=sum(count for count, _ in inner),
        document_cyclic=sum(count for _, count in inner),
    )


def _circles(preferences: dict[tuple[str, str], float]) -> tuple[int, int]:
    """Count the sets of three that were all compared, and those that are circles; an exact half makes none."""
    systems = sorted({system for pair in preferences for system in pair if system})
    place = {system: number for number, system in enumerate(systems)}
    sign = np.zeros((len(systems), len(systems)), dtype=np.int8)
    there = np.zeros_like(sign, dtype=bool)
    for (first, second), value in preferences.items():
        if first and second:
            one, other = place[first], place[second]
            there[one, other] = there[other, one] = True
            sign[one, other] = np.sign(value - 0.5)
            sign[other, one] = -sign[one, other]
    triads = cyclic = 0
    for one, other, third in combinations(range(len(systems)), 3):
        if there[one, other] and there[other, third] and there[one, third]:
            triads += 1
            cyclic += abs(int(sign[one, other]) + int(sign[other, third]) + int(sign[third, one])) == 3
    return triads, cyclic


def agreement(found: Sequence[Preference]) -> PairAgreement:
    """Hold comparisons against people's.

    Raises
    ------
    DataError
        If of no judged comparison people's preference is known.
    """
    kept = [one for one in _judged(found) if math.isfinite(one.human)]
    if not kept:
        raise DataError(
            "people's preference is known of no comparison that was judged",
            hint="Name the rating by --human, and the file that holds it by --ratings.",
        )
    documents = [one.document for one in kept]
    gap = np.array([one.value - 0.5 for one in kept])
    human = np.array([one.human - 0.5 for one in kept])
    # A difference that float arithmetic leaves of nothing is none.
    gap[np.abs(gap) < 1e-12] = 0.0
    right = np.where(gap == 0, 0.5, np.sign(gap) == np.sign(human)).astype(np.float64)
    decided = np.flatnonzero(human != 0)
    # Every comparison is a group of two items, one at its gap and one at nothing.
    zeros = np.zeros_like(gap)
    groups = np.repeat(np.arange(len(kept)), 2)
    threshold = tie_threshold(np.stack([human, zeros], 1).ravel(), np.stack([gap, zeros], 1).ravel(), groups)
    assert threshold is not None  # groups of two are never too large
    verdict = np.where(np.abs(gap) <= threshold, 0.0, np.sign(gap))
    expected = [float(np.mean([_probability(one.p, value) for value in one.people or (one.human,)])) for one in kept]
    return PairAgreement(
        n=len(kept),
        human_ties=len(kept) - len(decided),
        left_out=len(found) - len(kept),
        decided=_mean(right[decided], [documents[place] for place in decided]),
        with_ties=_mean((verdict == np.sign(human)).astype(np.float64), documents),
        threshold=threshold,
        expected=_mean(expected, documents),
    )


def _probability(p: tuple[float, float, float], human: float) -> float:
    """Probability of people's verdict under the judge's distribution."""
    return p[0] if human > 0.5 else p[1] if human < 0.5 else p[2]
