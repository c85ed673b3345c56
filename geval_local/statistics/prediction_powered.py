"""Means as people would rate, from many scores and few ratings: prediction-powered inference.

PPI++ (Angelopoulos, Duchi and Zrnic, 2023, arXiv:2311.01453) corrects the mean of the ratings by the difference of the
scores between rated and other rows, times a power that makes the error smallest; a power of 0 gives the ratings alone.
Rows of one document count as one unit. The power is estimated too, so that the error has two degrees of freedom fewer
than there are rated documents. Of shares, every interval is that of the ratings with a yes and a no of the judge added
to each kind (Agresti and Coull, 1998; Lang and Reiczigel, 2014, doi:10.1016/j.prevetmed.2013.09.015): a judge that is
seldom wrong errs on none of a few rated rows, which would leave an interval of no length. It holds from 20 ratings on,
and is rather too long where the judge is seldom wrong. All take the rated rows for a random sample of all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.statistics.interval import Interval, mean_interval, t_interval, t_test
from geval_local.statistics.records import ScoredItem

#: With fewer rated documents than this that make up the error, the interval is too short.
_FEW_TELLING = 5
# With fewer rated documents a power that gains nothing would widen the interval by more than 5 %.
_FEW_DOCUMENTS = 14
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
    #: What every document adds to the combined estimate.
    parts: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def helps(self) -> bool:
        """Whether the combined interval is shorter than that of the ratings."""
        return self.combined.high - self.combined.low < self.people.high - self.people.low


def estimate_mean(items: Sequence[ScoredItem], verdicts: Sequence[float] | None = None) -> Estimate:
    """Estimate the mean rating of all items; `verdicts` are the judge's yes and no, where ratings are 1 and 0."""
    from scipy.special import stdtrit

    kept = [place for place, item in enumerate(items) if math.isfinite(item.predicted)]
    human, score = (np.array([getattr(items[place], name) for place in kept]) for name in ("human", "predicted"))
    names, codes = np.unique([items[place].group for place in kept], return_inverse=True)
    is_rated = np.isfinite(human)
    rated, rest = np.flatnonzero(is_rated), np.flatnonzero(~is_rated)
    units = np.unique(codes[rated]).size
    mean, own, moved, difference = _corrections(human, score, codes, rated, rest)
    squares = float(difference @ difference)
    power = float(own @ difference) / squares if squares > 1e-14 and rest.size and units > 2 else 0.0
    if 2 < units < _FEW_DOCUMENTS:
        residual = own - power * difference
        lengths = [float(stdtrit(units - less, 0.975)) ** 2 / (units - less) for less in (1, 2)]
        if float(own @ own) < max(1.2, lengths[1] / lengths[0]) * float(residual @ residual):
            power = 0.0  # so little is gained that estimating the power would cost more
    value, centre = mean - power * moved, (mean, mean - power * moved)
    p_sample = t_test(moved, math.sqrt(squares), units)
    own_names = list(map(str, names))
    if verdicts is not None:
        said = np.array([verdicts[place] for place in kept])
        drawn = _with_each_kind(human, score, said, codes, rated)
        around, own, moved, difference = _corrections(*drawn, rest)
        centre = around, around - power * moved
        own_names += [f"added to {items[0].system!r}: {kind}" for kind in range(4)]
    added = own - power * difference
    lost = 1 + (power != 0)
    intervals = []
    for shown, middle, one, less in ((mean, centre[0], own, 1), (value, centre[1], added, lost)):
        error = math.sqrt(float(one @ one) * units / (units - less)) if units > less else math.nan
        found = replace(t_interval(middle, error, units + 1 - less), value=shown)
        if verdicts is not None and math.isfinite(found.low):
            found = replace(found, low=max(0.0, min(found.low, shown)), high=min(1.0, max(found.high, shown)))
        intervals.append(_doubted(found, one[np.unique(codes[rated])], units) if verdicts is None else found)
    people, combined = intervals
    return Estimate(
        mean_interval(score, codes),
        float(score[rated].mean()),
        people,
        combined,
        power,
        rated.size,
        len(kept),
        len(items) - len(kept),
        rated.size * (people.error / combined.error) ** 2 if combined.error > 0 else math.nan,
        p_sample,
        dict(zip(own_names, (added * math.sqrt(units / max(1, units - lost))).tolist(), strict=True)),
    )


def _doubted(found: Interval, own: Floats, units: int) -> Interval:
    """Warn where few rated documents make up the error, shape (rated,); where none does, there is no interval."""
    squares = float(own @ own)
    if squares <= 1e-20:
        return Interval(found.value, warning="no rated document differs from the others: there is no interval")
    if squares**2 < _FEW_TELLING * float((own**4).sum()):
        told = f"fewer than {_FEW_TELLING} rated documents make up the error: the interval may be too short"
        return replace(found, warning=told)
    return replace(found, warning=f"only {units} documents") if found.warning else found


def _corrections(
    human: Floats, score: Floats, codes: Ints, rated: Ints, rest: Ints
) -> tuple[float, Floats, float, Floats]:
    """Mean rating, and how much higher rated rows are scored than others; after each what every document adds to it."""
    mean, own = _by_document(rated, human, codes)
    (of_rated, added), (of_rest, taken) = (_by_document(rows, score, codes) for rows in (rated, rest))
    return mean, own, of_rated - of_rest if rest.size else 0.0, added - taken


def _with_each_kind(
    human: Floats, score: Floats, said: Floats, codes: Ints, rated: Ints
) -> tuple[Floats, Floats, Ints, Ints]:
    """Add documents to the rated ones: people's yes and no, each with a yes and a no of the judge."""
    yes, no = (score[said == kind].mean() if (said == kind).any() else score.mean() for kind in (1.0, 0.0))
    times = max(1, round(rated.size / np.unique(codes[rated]).size))
    kinds = np.repeat([(1.0, yes), (1.0, no), (0.0, yes), (0.0, no)], times, axis=0).T
    own = codes.max() + 1 + np.repeat(np.arange(4), times)
    more = human.size + np.arange(own.size)
    return np.append(human, kinds[0]), np.append(score, kinds[1]), np.append(codes, own), np.append(rated, more)


def _by_document(rows: Ints, values: Floats, codes: Ints) -> tuple[float, Floats]:
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
