"""Figures of a set of comparisons: about the systems, the judge's consistency, and its agreement with people."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.differences import Ranking, gap, hidden, ranking_of, ranking_table, side_means
from geval_local.analysis.preferences import Preference, Ratings, outputs_of
from geval_local.analysis.tables import Table, as_record, mean_warnings, number
from geval_local.errors import DataError
from geval_local.score import silence
from geval_local.statistics.bradley_terry import fit_bradley_terry
from geval_local.statistics.coefficients import FOLDS, tie_threshold
from geval_local.statistics.correlation import within
from geval_local.statistics.interval import Interval, mean_interval
from geval_local.statistics.resampling import group_folds

Floats = NDArray[np.float64]


#: If more than this share of a judge's comparisons change the winner with the order, the judge only follows the order.
ALWAYS_FLIPS = 0.9


@dataclass(frozen=True)
class Consistency:
    """How consistent a judge is with itself."""

    #: Number of comparisons judged, and not judged.
    n: int
    unscored: int
    #: How much preference an output gains by being shown first, -0.5 to 0.5: half the difference between its preference
    #: when shown first and when shown second.
    position_shift: Interval
    #: Share of comparisons in which the two orders name different winners.
    flip_rate: Interval
    #: Mean probability of a tie.
    tie: float
    #: Mean label mass in the given order and in the swapped order; NaN without orders.
    masses: tuple[float, ...]
    #: Number of triads (three systems that were all compared), and of those in which each beats the next in a cycle.
    triads: int
    cyclic: int
    #: Standard error that thoughts leave in the effect of the order on one comparison, on average; NaN without any.
    thought_error: float = math.nan


@dataclass(frozen=True)
class PairStudy:
    """All figures of a set of comparisons, for command and page."""

    #: The systems, strongest first, with their mean preference: 1 always better, 0 never, a tie counts as 0.5. The
    #: difference of two systems is that of their preferences in their comparisons, -1 to 1; 0 is a draw.
    ranking: Ranking
    #: Bradley-Terry strengths, in log-odds, mean 0 over the systems.
    strengths: dict[str, Interval]
    #: Why there are no strengths, or none with intervals; empty otherwise.
    warning: str
    #: How consistent the judge is with itself.
    consistency: Consistency
    #: How well it agrees with people; None without their preferences.
    agreement: PairAgreement | None

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values."""
        record = as_record(self.ranking)
        for side in record["systems"]:
            side["strength"] = as_record(self.strengths.get(side["side"]))
        if self.ranking.doubt:  # says why there are no ranks
            record |= dict.fromkeys(("systems", "pairs", "groups"))
        rest = {"warning": self.warning or None, "consistency": self.consistency, "agreement": self.agreement}
        return dict(record | as_record(rest))

    @property
    def names(self) -> list[str]:
        """The systems, strongest first."""
        return [side.side for side in self.ranking.systems]


def doubt_of(own: Consistency) -> str:
    """Say why nothing can be concluded from a judge that does not answer, or only follows the order; else empty."""
    if told := silence(math.fsum(own.masses) / 2, "A, B or tie"):
        return f"Nothing can be concluded: {told}."
    if own.flip_rate.value > ALWAYS_FLIPS:
        which = "first" if own.position_shift.value > 0 else "second"
        return (
            f"Nothing can be concluded: this judge goes by the order, and prefers whatever is shown {which} "
            f"({own.flip_rate.value:.0%} of the comparisons name another winner in the other order)."
        )
    return ""


@dataclass(frozen=True)
class PairAgreement:
    """How well comparisons agree with people's."""

    #: Number of judged comparisons with a known preference of people.
    n: int
    #: Number of them that people tie, and number of other comparisons, not judged or not rated.
    human_ties: int
    left_out: int
    #: Accuracy on comparisons that people do not tie: the share in which the judge prefers the same output. A
    #: preference of exactly 0.5 counts as half.
    decided: Interval
    #: Accuracy with ties: the share of all comparisons in which the judge prefers the same output or ties as people do.
    #: A preference within a threshold of 0.5 is a tie (Deutsch, Foster and Freitag, 2023); the threshold is calibrated
    #: on other documents.
    with_ties: Interval
    #: The threshold that maximises `with_ties` on all of these data, 0 to 0.5.
    threshold: float
    #: Mean probability that a verdict drawn from the judge's distribution matches people's; with several people, that
    #: of one drawn at random.
    expected: Interval


def _judged(found: Sequence[Preference]) -> list[Preference]:
    return [one for one in found if math.isfinite(one.value)]


def _mean(values: Sequence[float] | Floats, documents: Sequence[str], low: float = 0.0) -> Interval:
    """Compute a mean with its interval, clipped to its range from `low` to `low` + 1."""
    return within(mean_interval(values, documents), low, low + 1) if len(values) else Interval(math.nan)


def _by_pair(found: Sequence[Preference]) -> dict[tuple[str, str], list[Preference]]:
    """Group comparisons by pair of systems, in alphabetical order, without those of a system with itself."""
    groups: dict[tuple[str, str], list[Preference]] = {}
    for one in found:
        if one.first and one.second and one.first != one.second:
            groups.setdefault((min(one.first, one.second), max(one.first, one.second)), []).append(one)
    return groups


def study_pairs(found: Sequence[Preference], ratings: Ratings | None = None) -> PairStudy:
    """Compute all figures of a set of comparisons; with people's ratings of the outputs, their means too."""
    own = consistency(found)
    rated = any(math.isfinite(one.human) for one in _judged(found))
    named = [one for one in found if one.first and one.second]
    fitted = _strengths(_judged(named))
    sides = side_means(outputs_of(named, ratings or {}))
    sides = [replace(side, mean=within(side.mean, 0.0, 1.0)) for side in sides if side.n]
    sides.sort(key=lambda side: (-np.nan_to_num(fitted[0][side.side].value), -side.mean.value, side.side))
    place = {side.side: at for at, side in enumerate(sides)}
    pairs = {tuple(sorted(pair, key=place.__getitem__)): own for pair, own in _by_pair(_judged(named)).items()}
    tests = []
    for first, second in sorted(pairs, key=lambda pair: (place[pair[0]], place[pair[1]])):
        test = gap(outputs_of(pairs[first, second], {}), first, second)
        apart = np.array(list(test.by_document.values()))  # a preference moves both sides
        rare = hidden(apart, -1.0) if apart.size else 0.0
        tests.append(replace(test, difference=within(test.difference, -1.0, 1.0), hidden=rare))
    words = ("ranks first", "of net preference, where 1 is always,")
    holds_for = f"new documents from the same {len(sides)} systems, not for new systems"
    ranking = ranking_of(sides, tests, holds_for, doubt_of(own), words=words)
    return PairStudy(ranking, *fitted, own, agreement(found) if rated else None)


def _strengths(judged: Sequence[Preference]) -> tuple[dict[str, Interval], str]:
    """Fit Bradley-Terry strengths, and return a warning if there are none."""
    systems = sorted({system for one in judged for system in (one.first, one.second)})
    if not systems:
        return {}, ""
    place = {system: number for number, system in enumerate(systems)}
    fitted = fit_bradley_terry(
        len(systems),
        np.array([place[one.first] for one in judged], dtype=np.int64),
        np.array([place[one.second] for one in judged], dtype=np.int64),
        np.clip([one.value for one in judged], 0.0, 1.0),
        [one.document for one in judged],
    )
    return dict(zip(systems, fitted.strengths, strict=True)), fitted.warning


def consistency(found: Sequence[Preference]) -> Consistency:
    """Measure the effect of the order of the two outputs, and count cyclic preferences."""
    judged = _judged(found)
    ordered = [one for one in judged if len(one.orders) >= 2]
    documents = [one.document for one in ordered]
    shown = [_by_order(one.orders) for one in ordered]
    masses = [float(np.mean(own)) for own in zip(*(_by_order(one.masses) for one in ordered), strict=True)]
    pairs = _by_pair(judged).items()  # a system may have several outputs for a document
    triads, cyclic = _circles({pair: float(np.mean([one.value_for(pair[0]) for one in own])) for pair, own in pairs})
    return Consistency(
        n=len(judged),
        unscored=len(found) - len(judged),
        position_shift=_mean([(one - other) / 2 for one, other in shown], documents, low=-0.5),
        flip_rate=_mean([float((one - 0.5) * (other - 0.5) < 0) for one, other in shown], documents),
        tie=float(np.mean([one.p[2] for one in judged])) if judged else math.nan,
        masses=tuple(masses) or (math.nan, math.nan),
        triads=triads,
        cyclic=cyclic,
        thought_error=float(np.mean([one.thought_error for one in ordered])) if ordered else math.nan,
    )


def _by_order(values: Sequence[float]) -> tuple[float, float]:
    """Average over the forms in the given order, and over those in the swapped order."""
    return float(np.mean(values[::2])), float(np.mean(values[1::2]))


def _circles(preferences: dict[tuple[str, str], float]) -> tuple[int, int]:
    """Count the triads that were all compared, and the cyclic ones; a preference of exactly 0.5 makes no cycle."""
    place = {system: number for number, system in enumerate(dict.fromkeys(one for pair in preferences for one in pair))}
    there, beats = np.zeros((2, len(place), len(place)), dtype=np.int64)
    for (first, second), value in preferences.items():
        one, other = place[first], place[second]
        there[one, other] = there[other, one] = 1
        beats[one, other], beats[other, one] = value > 0.5, value < 0.5
    # Closed walks of three steps: six in every triad, three around every cycle.
    return int(np.trace(there @ there @ there)) // 6, int(np.trace(beats @ beats @ beats)) // 3


def agreement(found: Sequence[Preference]) -> PairAgreement:
    """Compare comparisons with people's."""
    kept = [one for one in _judged(found) if math.isfinite(one.human)]
    if not kept:
        raise DataError(
            "people's preference is known of no comparison that was judged",
            hint="Name the rating by `human`, and the file that holds it by `ratings`.",
        )
    documents = [one.document for one in kept]
    gap = np.array([one.value - 0.5 for one in kept])
    human = np.array([one.human - 0.5 for one in kept])
    # Rounding errors are not differences.
    gap[np.abs(gap) < 1e-12] = 0.0
    right = np.where(gap == 0, 0.5, np.sign(gap) == np.sign(human)).astype(np.float64)
    decided = np.flatnonzero(human != 0)
    threshold = _tie_within(human, gap, np.arange(len(kept)))
    # Calibrates the threshold on other documents: on the same ones the accuracy would be too high.
    within_own = np.full(len(kept), threshold)
    if len(set(documents)) > 1:
        folds = group_folds(documents, FOLDS, 0)
        for fold in np.unique(folds):
            within_own[folds == fold] = _tie_within(human, gap, np.flatnonzero(folds != fold))
    verdict = np.where(np.abs(gap) <= within_own, 0.0, np.sign(gap))
    # Index of people's verdict: 0 first better (above 0.5), 1 tie, 2 second better.
    verdicts = [[1 - int(np.sign(value - 0.5)) for value in one.people or (one.human,)] for one in kept]
    orders = [(one.p[0], one.p[2], one.p[1]) for one in kept]
    expected = [float(np.mean([p[at] for at in own])) for p, own in zip(orders, verdicts, strict=True)]
    return PairAgreement(
        n=len(kept),
        human_ties=len(kept) - len(decided),
        left_out=len(found) - len(kept),
        decided=_mean(right[decided], [documents[place] for place in decided]),
        with_ties=_mean((verdict == np.sign(human)).astype(np.float64), documents),
        threshold=threshold,
        expected=_mean(expected, documents),
    )


def _tie_within(human: Floats, gap: Floats, chosen: NDArray[np.int64]) -> float:
    """Calibrate the tie threshold; each comparison becomes a pair of items with scores gap and 0."""
    sides = [np.stack([own[chosen], np.zeros(chosen.size)], 1).ravel() for own in (human, gap)]
    found = tie_threshold(sides[0], sides[1], np.repeat(np.arange(chosen.size), 2))
    assert found is not None  # groups of two are never too large
    return found


def rank_table(study: PairStudy) -> Table:
    """Build a table of systems by strength, with groups that no test separates, and people's mean ratings if known."""
    found = ranking_table(study.ranking, mean="preferred", strengths=study.strengths)
    told = ("preferred: mean probability of being better, half of ties included; strengths in log-odds, mean 0",)
    return replace(found, notes=(*found.notes, *told, *filter(None, (study.warning,))))


def consistency_table(figures: Mapping[str, Consistency]) -> Table:
    """Build a table of the effect of the outputs' order and of the share of cyclic preferences."""
    columns: dict[str, Callable[[Consistency], Any]] = {
        "first shown gains": lambda one: one.position_shift,
        "flips": lambda one: one.flip_rate,
        "p(tie)": lambda one: one.tie,
        "mass AB / BA": lambda one: " / ".join(map(number, one.masses)),
        "circles": lambda one: f"{one.cyclic}/{one.triads}",
        "n / unscored": lambda one: f"{one.n} / {one.unscored}",
    }
    notes = (
        "first shown gains: preference for the output shown first beyond one half, 0 for no position bias",
        "flips: comparisons of which each order names another winner; circles: A over B over C over A, by chance in a "
        "quarter of the sets of three",
    )
    shifts = {name: one.position_shift for name, one in figures.items()}
    thoughts = [
        f"{name}: each order has its own thoughts, which leave a standard error of {number(one.thought_error)} in what "
        "one comparison gains: some flips are theirs; the interval of the mean includes it"
        for name, one in figures.items()
        if math.isfinite(one.thought_error)
    ]
    return Table.over(figures, columns, (*notes, *thoughts, *mean_warnings(shifts)))


def pair_agreement_table(figures: Mapping[str, PairAgreement]) -> Table:
    """Build a table of the agreement with people, one row per way to compare."""
    rows = [
        (name, one.decided, one.n - one.human_ties, one.with_ties, one.threshold, one.expected, one.n, one.left_out)
        for name, one in figures.items()
    ]
    headers = ("", "decided pairs", "n decided", "with ties", "tie within", "expected", "n", "left out")
    notes = (
        "decided pairs: of those that people decided, the same output preferred; with ties: ties within a calibrated "
        "distance of one half (Deutsch et al., 2023)",
        *(
            f"{name}: always a tie would give {number(one.human_ties / one.n)} with ties"
            for name, one in figures.items()
        ),
        "expected: mean probability of people's verdict; intervals hold for new documents from the same systems",
    )
    return Table.of(headers, rows, notes)
