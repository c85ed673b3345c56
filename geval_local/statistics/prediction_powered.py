"""Means as people would rate, from many scores and few ratings: prediction-powered inference, and Rogan-Gladen.

PPI++ (Angelopoulos, Duchi and Zrnic, 2023, arXiv:2311.01453) corrects the mean of the ratings by the difference of the
scores between rated and other rows, times a power that makes the error smallest; a power of 0 gives the ratings alone.
Rows of one document count as one unit. The power is estimated too, so that the error has two degrees of freedom fewer
than there are rated documents. Rogan and Gladen (1978) correct a share of yes by sensitivity and specificity; its
interval is Fieller's, which holds where their sum is near 1, with a yes and a no added to the ratings of each kind
(Lang and Reiczigel, 2014, doi:10.1016/j.prevetmed.2013.09.015), which holds from 20 ratings on and is rather too long
where the judge is seldom wrong. Both take the rated rows for a random sample of all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.statistics.interval import Interval, mean_interval, t_interval, t_test
from geval_local.statistics.records import ScoredItem

#: With fewer rated rows of one kind than this, the interval of a share is too short.
FEW_OF_A_KIND = 5
# With fewer rated documents a power that gains nothing would widen the interval by more than 5 %.
_FEW_DOCUMENTS = 14
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean as people would rate, by the ratings alone and with the scores' help."""

    #: Mean of all scores, and of the scores of the rated rows.
    judge: Interval
    judge_of_rated: float
    #: Mean of the ratings.
    people: Interval
    #: Both together.
    combined: Interval
    #: Weight of the scores; 0 leaves them out.
    power: float
    #: Rated rows, all scored rows, and rows without a score.
    rated: int
    n: int
    unscored: int
    #: Ratings that would give as short an interval without the judge.
    worth: float
    #: Two-sided p-value of "the judge scores rated and other rows alike"; small where they are no random sample.
    p_sample: float
    #: Share of yes by sensitivity and specificity; None where ratings are not yes or no.
    rogan_gladen: Interval | None = None
    #: What every document adds to the combined estimate.
    parts: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def helps(self) -> bool:
        """Whether the combined interval is shorter than that of the ratings."""
        return self.combined.high - self.combined.low < self.people.high - self.people.low


def estimate_mean(items: Sequence[ScoredItem], verdicts: Sequence[float] | None = None) -> Estimate:
    """Estimate the mean rating of all items; `verdicts` are the judge's yes and no, for Rogan and Gladen's estimate."""
    kept = [place for place, item in enumerate(items) if math.isfinite(item.predicted)]
    human, score = (np.array([getattr(items[place], name) for place in kept]) for name in ("human", "predicted"))
    names, codes = np.unique([items[place].group for place in kept], return_inverse=True)
    is_rated = np.isfinite(human)
    rated, rest = np.flatnonzero(is_rated), np.flatnonzero(~is_rated)
    units = np.unique(codes[rated]).size
    mean, own = _by_document(rated, human, codes)
    (of_rated, added), (of_rest, taken) = (_by_document(rows, score, codes) for rows in (rated, rest))
    difference = added - taken
    squares = float(difference @ difference)
    power = float(own @ difference) / squares if squares > 1e-14 and rest.size and units > 2 else 0.0
    if units < _FEW_DOCUMENTS and float(own @ own) < 1.2 * float(
        (own - power * difference) @ (own - power * difference)
    ):
        power = 0.0  # so little is gained that estimating the power would cost more
    moved = of_rated - of_rest if rest.size else 0.0
    added = own - power * difference
    lost = 1 + (power != 0)
    alone, both = (
        math.sqrt(float(one @ one) * units / (units - less)) if units > less else math.nan
        for one, less in ((own, 1), (added, lost))
    )
    people = t_interval(mean, alone, units)
    combined = t_interval(mean - power * moved, both, units + 1 - lost)
    kinds = np.unique(human[rated], return_counts=True)[1]
    if kinds.size == 1 or (kinds.size == 2 and kinds.min() < FEW_OF_A_KIND):
        warning = f"fewer than {FEW_OF_A_KIND} ratings of a kind: the interval may be too short"
        people, combined = replace(people, warning=warning), replace(combined, warning=warning)
    corrected = None
    if verdicts is not None:
        chosen = np.array([verdicts[place] for place in kept])
        corrected = _rogan_gladen(human, chosen, codes, rated, units)
    return Estimate(
        mean_interval(score, codes),
        of_rated,
        people,
        combined,
        power,
        rated.size,
        len(kept),
        len(items) - len(kept),
        rated.size * (alone / both) ** 2 if both > 0 else math.nan,
        t_test(moved, math.sqrt(squares), units),
        corrected,
        dict(
            zip(
                map(str, names),
                (added * math.sqrt(units / (units - lost)) if units > lost else added).tolist(),
                strict=True,
            )
        ),
    )


def _by_document(rows: NDArray[np.int64], values: Floats, codes: NDArray[np.int64]) -> tuple[float, Floats]:
    """Mean of these rows, and what every document adds to it, less the mean."""
    mean = float(values[rows].mean()) if rows.size else 0.0
    own = np.bincount(codes[rows], (values[rows] - mean) / max(1, rows.size), minlength=int(codes.max()) + 1)
    return mean, np.asarray(own, dtype=np.float64)


def estimate_difference(first: Estimate, second: Estimate) -> tuple[Interval, float]:
    """Difference of two estimates, whose documents may be the same, with the p-value of "no difference"."""
    value = first.combined.value - second.combined.value
    names = dict.fromkeys([*first.parts, *second.parts])  # in order: a set's would change the last digits
    error = math.sqrt(sum((first.parts.get(name, 0.0) - second.parts.get(name, 0.0)) ** 2 for name in names))
    found = t_interval(value, error, min(first.combined.units, second.combined.units))
    return found, t_test(value, error, found.units)


def _rogan_gladen(
    human: Floats, verdict: Floats, codes: NDArray[np.int64], rated: NDArray[np.int64], units: int
) -> Interval:
    """Solve "share of yes by the judge = sensitivity x share + (1 - specificity) x (1 - share)" for the share."""
    from scipy.special import stdtrit

    yes, no = rated[human[rated] == 1], rated[human[rated] == 0]
    if not yes.size or not no.size or units < 3 or verdict[yes].mean() <= verdict[no].mean():
        return Interval(math.nan)
    wrong = float(verdict[no].mean())
    value = min(1.0, max(0.0, float((verdict.mean() - wrong) / (verdict[yes].mean() - wrong))))
    # Of a few ratings often all are said rightly; a yes and a no more of each kind keep the error from being 0.
    rows = np.arange(verdict.size)
    added = verdict.size + np.arange(4)
    yes, no = np.append(yes, added[:2]), np.append(no, added[2:])
    verdict, codes = np.append(verdict, (1.0, 0.0, 1.0, 0.0)), np.append(codes, codes.max() + 1 + np.arange(4))

    said, sensitivity, specificity = (
        _by_document(chosen, values, codes) for chosen, values in ((rows, verdict), (yes, verdict), (no, 1 - verdict))
    )
    above, below = said[0] + specificity[0] - 1, sensitivity[0] + specificity[0] - 1
    a, b = said[1] + specificity[1], sensitivity[1] + specificity[1]
    t = float(stdtrit(units - 1, 0.975))
    # All shares p with (above - p below)^2 <= t^2 |a - p b|^2; where they are in two pieces, what lies between as well.
    curve = np.array([below**2 - t**2 * (b @ b), -2 * (above * below - t**2 * (a @ b)), above**2 - t**2 * (a @ a)])
    roots = np.roots(curve)
    ends = [value, *(p for p in roots[np.isreal(roots)].real if 0 <= p <= 1)]
    ends += [p for p in (0.0, 1.0) if np.polyval(curve, p) <= 0]
    residual = a - value * b
    error = math.sqrt(float(residual @ residual)) / below if below > 0 else math.nan
    return Interval(value, float(min(ends)), float(max(ends)), error, units - 1)
