"""Agreement of scores with people: correlations at three levels, with ties, skipped groups and intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from geval_local.errors import DataError
from geval_local.statistics.coefficients import ALL_COEFFICIENTS, COEFFICIENTS
from geval_local.statistics.interval import FEW_UNITS, Interval
from geval_local.statistics.jackknife import Replicates, Target, mean_of
from geval_local.statistics.levels import (
    DEFAULT_TARGETS,
    Level,
    LevelFigures,
    Ties,
    level_figures,
    skipped_by_reason,
)
from geval_local.statistics.records import ScoredItem, usable

#: Below this many systems intervals about new ones are too wide, and tests reject too rarely (benchmarks/coverage.py).
FEW_SYSTEMS = 30


@dataclass(frozen=True)
class Correlation:
    """Agreement of scores with human ratings at one level."""

    #: ``summary``: within each group, then the mean over groups. ``pooled``: all items at once. ``system``: over the
    #: means of the systems.
    level: Level
    #: Coefficients (Kendall's is tau-b), -1 to 1; NaN where undefined.
    pearson: Interval
    spearman: Interval
    kendall: Interval
    #: Fraction of pairs ordered, or tied, by the scores as by people, 0 to 1, with calibrated ties; NaN if not computed
    #: (many items).
    accuracy: Interval
    #: Area under the ROC curve, 0 to 1, where the ratings have two values; else NaN.
    auc: Interval
    #: Population that the intervals generalise to.
    target: Target
    #: The same in words.
    holds_for: str
    #: Items with a rating and a score.
    n: int
    #: Number of correlated points: groups kept (summary), items (pooled) or systems (system).
    points: int
    #: Groups and systems among the items; 0 systems where they are not known.
    groups: int
    systems: int
    #: Reason -> groups without a coefficient of their own; summary level only.
    skipped: dict[str, int]
    #: Reason -> items without a score or a rating.
    left_out: dict[str, int]
    #: Pairs with equal values.
    ties: Ties
    #: Largest difference that counts as a tie in the accuracy.
    epsilon: float | None


def correlate(
    items: Iterable[ScoredItem],
    level: Level = "summary",
    *,
    target: Target | None = None,
    confidence: float = 0.95,
    accuracy: bool = False,
) -> Correlation:
    """Correlate scores with human ratings."""
    kept, left_out = usable(items)
    target = known_target(kept, level, target)
    figures = level_figures(kept, level, target, accuracy=accuracy)
    found = {name: interval_at(figures.replicates, name, level, target, confidence) for name in ALL_COEFFICIENTS}
    return Correlation(
        level,
        pearson=found["pearson"],
        spearman=found["spearman"],
        kendall=found["kendall"],
        accuracy=found["accuracy"],
        auc=found["auc"],
        target=target,
        holds_for=generalises_to(target, figures),
        n=len(kept),
        points=figures.points,
        groups=figures.documents,
        systems=figures.systems,
        skipped=skipped_by_reason(figures.skipped),
        left_out=left_out,
        ties=figures.ties,
        epsilon=figures.epsilon,
    )


def interval_at(
    replicates: Replicates, coefficient: str, level: Level, target: Target, confidence: float = 0.95
) -> Interval:
    """Return the interval of one coefficient at a level."""
    # At summary level with fixed systems the figure is a mean over documents; elsewhere it is one correlation.
    correlation = coefficient in COEFFICIENTS and not (level == "summary" and target == "documents")
    found = replicates.interval(ALL_COEFFICIENTS.index(coefficient), target, confidence, correlation=correlation)
    return within(found, -1.0 if coefficient in COEFFICIENTS else 0.0, 1.0)


def within(interval: Interval, low: float, high: float) -> Interval:
    """Clip an interval to the possible range."""
    if math.isnan(interval.low):
        return interval
    return replace(interval, low=max(low, interval.low), high=min(high, interval.high))


def average_interval(
    dimensions: Iterable[Iterable[ScoredItem]],
    level: Level,
    coefficient: str = "spearman",
    *,
    target: Target | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Mean of a coefficient over the dimensions of a benchmark: a paper's headline figure.

    Each document is left out of all dimensions at once, so that dimensions are not treated as independent.
    """
    rated = [usable(items)[0] for items in dimensions]
    chosen = known_target([item for items in rated for item in items], level, target)
    wanted = coefficient == "accuracy"
    parts = [level_figures(items, level, chosen, accuracy=wanted) for items in rated]
    figures = mean_of([part.replicates for part in parts])
    return interval_at(figures, coefficient, level, chosen, confidence)


def known_target(items: Iterable[ScoredItem], level: Level, target: Target | None) -> Target:
    """Return the target in use: the given one, or the level's default."""
    if target not in (None, "documents", "systems", "both"):
        raise DataError(f"unknown target {target!r}", hint="Choose documents, systems or both.")
    return DEFAULT_TARGETS[level] if target is None else target


def generalises_to(target: Target, figures: LevelFigures) -> str:
    """Describe the population that an interval or a test holds for, and its limitations."""
    documents = f"{figures.documents} documents"
    systems = f"{figures.systems} systems" if figures.systems else "systems"
    told = {
        "documents": f"new documents from the same {systems}, not for new systems",
        "systems": f"new systems on the same {documents}, not for new documents",
        "both": "new systems and new documents",
    }[target]
    few = []
    if target != "documents" and figures.systems < FEW_SYSTEMS:
        few.append(f"approximately, with only {figures.systems} systems: rather too wide")
    if target != "systems" and figures.documents < FEW_UNITS:
        few.append(f"approximately, with only {figures.documents} documents")
    return f"{told} ({'; '.join(few)})" if few else told
