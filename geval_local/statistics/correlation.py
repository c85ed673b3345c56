"""Agreement of scores with people at three levels, with ties, skipped groups and intervals; of two judges or runs.

The agreement of two judges, or of two runs of one judge, needs no human ratings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from geval_local.errors import DataError
from geval_local.fields import counted
from geval_local.statistics.coefficients import ALL_COEFFICIENTS, COEFFICIENTS, coefficients
from geval_local.statistics.interval import Interval
from geval_local.statistics.levels import (
    DEFAULT_TARGETS,
    Level,
    LevelFigures,
    Ties,
    draws_for,
    level_figures,
)
from geval_local.statistics.records import ScoredItem, pair, usable
from geval_local.statistics.resampling import RESAMPLES, FiguresWithErrors, Target, mean_of

#: With fewer systems, intervals for new systems are too wide and tests are conservative
#: (benchmarks/interval_coverage.py).
FEW_SYSTEMS = 30
#: With fewer documents, correlations within them and accuracy over systems cover .86 to .92.
FEW_DOCUMENTS = 20


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
    #: Fraction of pairs that the scores order, or tie, as people do, 0 to 1. The tie threshold is calibrated on other
    #: documents (none at system level). NaN if not computed (many items).
    accuracy: Interval
    #: Best accuracy without any information: always a tie, or never one.
    chance: float
    #: Area under the ROC curve, 0 to 1, if the ratings have two values; else NaN.
    auc: Interval
    #: Population to which the intervals generalise.
    target: Target
    #: Description of that population and of the intervals' limitations.
    holds_for: str
    #: Items with a rating and a score.
    n: int
    #: Number of correlated points: groups kept (summary), items (pooled) or systems (system).
    points: int
    #: Number of groups and of systems among the items; 0 systems if unknown.
    groups: int
    systems: int
    #: Reason -> number of groups without a coefficient of their own; summary level only.
    skipped: dict[str, int]
    #: Reason -> number of items without a score or a rating.
    left_out: dict[str, int]
    #: Pairs with equal values.
    ties: Ties
    #: Largest difference that counts as a tie in the accuracy, calibrated on all documents.
    epsilon: float | None
    #: Number of bootstrap draws behind the intervals; 0 if they are Student's intervals of one figure per document.
    resamples: int


def correlate(
    items: Iterable[ScoredItem],
    level: Level = "summary",
    *,
    target: Target | None = None,
    accuracy: bool | None = None,
) -> Correlation:
    """Correlate scores with human ratings."""
    kept, left_out = usable(items)
    target = known_target(level, target)
    found = level_figures(kept, level, target, accuracy=accuracy)
    intervals = {name: interval_at(found.figures, name, target, level) for name in ALL_COEFFICIENTS}
    tied = found.ties.human / found.ties.pairs if found.ties.pairs else math.nan
    return Correlation(
        level,
        **intervals,
        chance=max(tied, (1 - tied) / 2),
        target=target,
        holds_for=generalises_to(target, found),
        n=len(kept),
        points=found.points,
        groups=found.documents,
        systems=found.systems,
        skipped=dict(Counter(found.skipped.values())),
        left_out=left_out,
        ties=found.ties,
        epsilon=found.epsilon,
        resamples=0 if found.figures.draws is None else RESAMPLES,
    )


def interval_at(figures: FiguresWithErrors, coefficient: str, target: Target, level: Level) -> Interval:
    """Return the interval of one coefficient."""
    on_z = coefficient == "pearson" and target != "documents"
    in_steps = coefficient != "pearson" and level == "system"
    found = figures.interval(ALL_COEFFICIENTS.index(coefficient), on_z=on_z, in_steps=in_steps)
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
) -> Interval:
    """Mean of a coefficient over the dimensions of a benchmark: a paper's headline figure.

    Each draw takes a document with all its dimensions, so dimensions are not treated as independent.
    """
    rated = [usable(items)[0] for items in dimensions]
    chosen, wanted = known_target(level, target), coefficient == "accuracy"
    draws = draws_for(rated, level, chosen)
    figures = [level_figures(own, level, chosen, accuracy=wanted, draws=draws).figures for own in rated]
    return interval_at(mean_of(figures), coefficient, chosen, level)


def known_target(level: Level, target: Target | None) -> Target:
    """Return the target in use: the given one, or the level's default."""
    if target not in (None, "documents", "systems", "both"):
        raise DataError(f"unknown target {target!r}", hint="Choose documents, systems or both.")
    return DEFAULT_TARGETS[level] if target is None else target


def generalises_to(target: Target, figures: LevelFigures) -> str:
    """Describe the population to which an interval or a test applies, and its limitations."""
    documents = counted(figures.documents, "document")
    systems = f"{figures.systems} systems" if figures.systems > 1 else "system" if figures.systems else "systems"
    told = {
        "documents": f"new documents from the same {systems}, not for new systems",
        "systems": f"new systems on the same {documents}, not for new documents",
        "both": "new systems and new documents",
    }[target]
    few = []
    if target != "documents" and figures.systems < FEW_SYSTEMS:
        few.append(f"approximately, with only {counted(figures.systems, 'system')}: rather too wide")
    if target != "systems" and figures.documents < FEW_DOCUMENTS:
        few.append(f"approximately, with only {counted(figures.documents, 'document')}")
    return f"{told} ({'; '.join(few)})" if few else told


@dataclass(frozen=True)
class Agreement:
    """Agreement of two score lists."""

    #: Number of items scored by both.
    n: int
    #: Number of items scored by only one of them.
    only_first: int
    only_second: int
    #: Pooled coefficients (tau-b); NaN if one side is constant.
    pearson: float
    spearman: float
    kendall: float
    #: Mean of ``first - second``, in units of the scale: positive if the first is more lenient.
    mean_difference: float
    #: In units of the scale.
    mean_absolute_difference: float
    largest_difference: float
    #: Krippendorff's alpha for interval data: 1 is identity, 0 is chance level. Unlike a correlation it falls when one
    #: judge is more lenient than the other.
    alpha: float


def agree(first: Sequence[ScoredItem], second: Sequence[ScoredItem]) -> Agreement:
    """Measure the agreement of two score lists on the items that both scored."""
    left, right = pair(first, second, same_human=False)
    a = np.array([item.predicted for item in left])
    b = np.array([item.predicted for item in right])
    pearson, spearman, kendall = coefficients(a, b)[:3].tolist()
    scored = [sum(math.isfinite(item.predicted) for item in items) for items in (first, second)]
    return Agreement(
        n=len(left),
        only_first=scored[0] - len(left),
        only_second=scored[1] - len(left),
        pearson=pearson,
        spearman=spearman,
        kendall=kendall,
        mean_difference=float((a - b).mean()),
        mean_absolute_difference=float(np.abs(a - b).mean()),
        largest_difference=float(np.abs(a - b).max()),
        alpha=krippendorff_alpha([a, b]),
    )


def krippendorff_alpha(ratings: ArrayLike, *, ordinal: bool = False) -> float:
    """Compute Krippendorff's alpha with the interval or the ordinal difference function; NaN is no rating.

    The ordinal difference of two ratings is that of their mean ranks.
    """
    table = np.atleast_2d(np.array(ratings, dtype=np.float64))
    table = table[:, np.isfinite(table).sum(axis=0) >= 2]
    if table.size == 0:
        return math.nan
    if ordinal:
        from scipy.stats import rankdata

        table[np.isfinite(table)] = rankdata(table[np.isfinite(table)])
    raters = np.isfinite(table).sum(axis=0)
    # sum over ordered pairs of (x - y)^2 = 2 n sum (x - mean)^2, within an item and over all ratings.
    observed = float((2 * raters * np.nanvar(table, axis=0) * raters / (raters - 1)).sum())
    values = table[np.isfinite(table)]
    if np.unique(values).size < 2:
        return math.nan
    expected = 2 * values.size * float(values.var()) * values.size / (values.size - 1)
    return 1.0 - observed / expected
