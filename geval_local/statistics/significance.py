"""Tests of whether one judge is better than another on the same items and documents.

A difference of means over documents uses Student's t with their skewness. All else uses Student's t with the
bootstrap's error, with one exception. Rank coefficients over new systems use a permutation test that exchanges the
two judges' scores of whole systems with all their documents (PERM-SYSTEMS of Deutsch, Dror and Roth, 2021, TACL,
doi:10.1162/tacl_a_00417); it has more power. Exchanges on documents too (their PERM-INPUTS and PERM-BOTH) reject too
often for equally good judges that disagree (benchmarks/results/2026-11-23-tests-system.txt). Pearson's correlation is
not exchanged: the test would separate a judge that is far off for a few systems from one that is a little off for all.
Every p-value is two-sided. In a table, p-values are also adjusted for all tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import counted
from geval_local.statistics.coefficients import ALL_COEFFICIENTS, COEFFICIENTS
from geval_local.statistics.correlation import generalises_to, known_target, within
from geval_local.statistics.interval import Interval, t_test
from geval_local.statistics.levels import Level, Ties, documents_kept, draws_for, exchanged, level_figures
from geval_local.statistics.records import ScoredItem, pair, usable
from geval_local.statistics.resampling import (
    LEAST_EXCHANGED,
    PERMUTATIONS,
    RESAMPLES,
    Draws,
    FiguresWithErrors,
    Target,
    mean_of,
    minus,
    swapped_p,
)

#: With fewer documents the test over the same systems has a false-positive rate of 0.00 to 0.05 at level 0.05
#: (benchmarks/interval_coverage.py).
FEW_OVER_SYSTEMS = 50
#: One judge's scores, of one dimension or of several.
Judged = Sequence[ScoredItem] | Sequence[Sequence[ScoredItem]]


@dataclass(frozen=True)
class Comparison:
    """Difference of two judges' agreement with the same human ratings, on the same documents."""

    #: Level and coefficient of the comparison.
    level: Level
    coefficient: str
    #: Coefficient of each judge on the common documents.
    first: float
    second: float
    #: ``first - second``.
    difference: Interval
    #: Two-sided p-value.
    p: float
    #: The p-value corrected for the number of tests in its table; NaN for a single test.
    p_adjusted: float
    #: Population to which the interval and the test generalise.
    target: Target
    #: Description of that population and of the test's limitations.
    holds_for: str
    #: Number of items compared, and of their documents.
    n: int
    groups: int
    #: Number of documents with a coefficient for each judge alone; more than `groups` if the judges differ.
    kept: tuple[int, int]
    #: Description of the test, in a sentence.
    why: str
    #: Level that the correction leaves this test, if it is the first of its table.
    significance: float = field(default=math.nan, repr=False, compare=False)
    #: Smallest p-value that the test can give; 0 for Student's t.
    least: float = field(default=0.0, repr=False)
    #: Document -> its difference, if the total is their mean.
    by_document: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)


def holm(p: Sequence[float]) -> list[float]:
    """Apply Holm's step-down correction; NaN values do not count as tests."""
    order = sorted((value, index) for index, value in enumerate(p) if math.isfinite(value))
    result, largest = [math.nan] * len(p), 0.0
    for rank, (value, index) in enumerate(order):
        largest = max(largest, min(1.0, value * (len(order) - rank)))
        result[index] = largest
    return result


_Tested = TypeVar("_Tested")
_Key = TypeVar("_Key")
#: The family-wise error of a table of tests.
LEVEL = 0.05


def corrected(tests: Mapping[_Key, _Tested]) -> dict[_Key, _Tested]:
    """Copy the tests of one table, with p-values adjusted for all of them.

    p-values get Holm's correction. Student's t replaces exchanges of so few systems that they could never reject.
    """
    given: dict[Any, Any] = dict(tests)
    count = max(1, sum(math.isfinite(test.p) for test in given.values()))
    known = {key: _by_t(test) if getattr(test, "least", 0.0) * count > LEVEL else test for key, test in given.items()}
    found = {}
    for (key, test), adjusted in zip(known.items(), holm([test.p for test in known.values()]), strict=True):
        level = {"significance": LEVEL / count} if hasattr(test, "significance") else {}
        found[key] = replace(test, p_adjusted=adjusted, **level)
    return found


def _by_t(test: Any) -> Any:
    """Replace a test by Student's t."""
    one = test.difference
    return replace(test, p=t_test(one.value, one.error, one.units), why="Student's t test, two-sided.")


def common_ground(
    judges: Sequence[Sequence[ScoredItem]], level: Level = "summary"
) -> tuple[list[list[ScoredItem]], list[int]]:
    """Restrict several judges to the items on which all can be compared."""
    shared = usable(judges[0])[0]
    for other in judges[1:]:
        shared = pair(shared, usable(other)[0])[0]
    aligned = [pair(shared, usable(other)[0])[1] for other in judges]
    if level != "summary":
        return aligned, [len({item.group for item in shared})] * len(judges)
    kept = [documents_kept(items) for items in aligned]
    common = set.intersection(*kept)
    return [[item for item in items if item.group in common] for items in aligned], [len(own) for own in kept]


def compare(
    first: Judged,
    second: Judged | None,
    level: Level = "summary",
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    seed: int = 0,
) -> Comparison:
    """Test the difference of two judges' agreement with people, on the items and documents that both keep.

    With several dimensions, it compares the averages over dimensions. Items are paired by key. Without a second judge,
    it compares the first with chance.
    """
    if coefficient not in ALL_COEFFICIENTS:
        raise ConfigurationError(
            f"unknown coefficient {coefficient!r}", hint=f"Choose one of: {', '.join(ALL_COEFFICIENTS)}."
        )
    index = ALL_COEFFICIENTS.index(coefficient)
    sides_given = [_dimensions(judge) for judge in (first, first if second is None else second)]
    grounds = [common_ground([a, b], level) for a, b in zip(*sides_given, strict=True)]
    for (left, _), kept in grounds:
        if not left:
            raise DataError(
                f"no document is kept by both: of {kept[0]} and {kept[1]} documents with varying scores none is common",
                hint="Compare at the pooled level.",
            )
    target = known_target(level, target)
    draws = draws_for([items[0] for items, _ in grounds], level, target)
    wanted = coefficient == "accuracy"
    found = [[level_figures(own, level, target, accuracy=wanted, draws=draws) for own in items] for items, _ in grounds]
    sides = [mean_of([own[side].figures for own in found]) for side in (0, 1)]
    if second is None:
        sides[1] = _chance([own[0].ties for own in found], sides[0])
    difference = minus(*sides)
    in_steps = level == "system" and coefficient != "pearson"
    (p, why), least = difference.p(index, in_steps=in_steps), 0.0
    if second is not None and level == "system" and target != "documents" and coefficient != "pearson":
        own = [item for items, _ in grounds for item in items[0]]
        exchange = Draws((), sorted({item.system for item in own}), "systems", count=PERMUTATIONS, seed=seed, swap=True)
        # With fewer systems no exchange can reject at 0.05.
        if exchange.units >= LEAST_EXCHANGED:
            drawn = np.mean(
                [exchanged(one, other, exchange, accuracy=wanted)[:, index] for (one, other), _ in grounds], axis=0
            )
            p, least = swapped_p(float(difference.value[index]), drawn), 2.0 ** (1 - exchange.units)
            why = (
                f"{PERMUTATIONS:,} exchanges of the two judges on systems (PERM-SYSTEMS), two-sided; interval from "
                f"{RESAMPLES:,} draws."
            )
    most = 2.0 if coefficient in COEFFICIENTS and second is not None else 1.0
    interval = within(difference.interval(index, in_steps=in_steps), -most, most)
    widest = max((own[0] for own in found), key=lambda own: own.documents)
    if level == "system" and target == "documents" and widest.documents < FEW_OVER_SYSTEMS:
        why += f" The test is conservative, with only {counted(widest.documents, 'document')}."
    return Comparison(
        level,
        coefficient,
        float(sides[0].value[index]),
        float(sides[1].value[index]),
        interval,
        p,
        math.nan,
        target,
        generalises_to(target, widest),
        sum(len(items[0]) for items, _ in grounds),
        len({item.group for items, _ in grounds for item in items[0]}),
        (max(kept[0] for _, kept in grounds), max(kept[1] for _, kept in grounds)),
        why,
        least=least,
        by_document=difference.by_document(index),
    )


def _dimensions(judged: Judged) -> list[Sequence[ScoredItem]]:
    """Return the scores of every dimension."""
    several = [one for one in judged if not isinstance(one, ScoredItem)]
    return several or [[one for one in judged if isinstance(one, ScoredItem)]]


def compare_all(
    pairs: Mapping[str, tuple[Judged, Judged | None]],
    level: Level,
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    seed: int = 0,
) -> tuple[dict[str, Comparison], dict[str, str]]:
    """Test every pair as `compare` does; if a pair cannot be compared, return the reason."""
    found, failed = {}, {}
    for name, (first, second) in pairs.items():
        try:
            found[name] = compare(first, second, level, coefficient, target=target, seed=seed)
        except DataError as error:
            failed[name] = error.message
    return found, failed


def _chance(ties: Sequence[Ties], like: FiguresWithErrors) -> FiguresWithErrors:
    """Return the figures of uninformative scores: 0, AUC 0.5, and the accuracy of always or never a tie."""
    tied = np.array([own.human / own.pairs if own.pairs else math.nan for own in ties])
    value = np.array([0.0, 0.0, 0.0, np.maximum(tied, (1 - tied) / 2).mean(), 0.5])
    draws = None if like.draws is None else np.broadcast_to(value, like.draws.shape)
    return FiguresWithErrors(value, dict.fromkeys(like.parts, value), draws, like.units, like.unit)
