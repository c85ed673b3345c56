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

from geval_local.statistics.interval import Ends, Interval, mean_interval, t_interval, t_test
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
    #: Both together, of such documents: those that the rated and the other rows are a sample of.
    combined: Interval
    #: The same of these rows alone; without ends where all of them are rated.
    these: Interval
    #: `combined` for other raters, too; None of fewer than three.
    other_raters: Interval | None
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
    #: What every document, and every rater, adds to the combined estimate.
    parts: Mapping[str, float] = field(default_factory=dict, repr=False)
    rater_parts: Mapping[str, float] = field(default_factory=dict, repr=False)

    @property
    def helps(self) -> bool:
        """Whether the combined interval is shorter than that of the ratings."""
        return self.combined.high - self.combined.low < self.people.high - self.people.low


def estimate_mean(
    items: Sequence[ScoredItem],
    *,
    ends: Ends | None = None,
    cut: float | None = None,
    raters: Mapping[str, float] | None = None,
) -> Estimate:
    """Estimate the mean rating of all items.

    Parameters
    ----------
    items : sequence of ScoredItem
        Those of one system; few have a rating.
    ends : (float, float), optional
        The ends of the ratings' scale, which no interval leaves.
    cut : float, optional
        Above it a score is the judge's yes; for ratings of 0 and 1, and the half of a tie.
    raters : mapping of str to float, optional
        How much higher each person rates than all of them.
    """
    from scipy.special import stdtrit

    kept = [place for place, item in enumerate(items) if math.isfinite(item.predicted)]
    human, score = (np.array([getattr(items[place], name) for place in kept]) for name in ("human", "predicted"))
    names, codes = np.unique([items[place].group for place in kept], return_inverse=True)
    is_rated = np.isfinite(human)
    rated, rest = np.flatnonzero(is_rated), np.flatnonzero(~is_rated)
    units = np.unique(codes[rated]).size
    mean, own, moved, added, taken = _corrections(human, score, codes, rated, rest)
    difference = added - taken
    squares = float(difference @ difference)
    power = float(own @ difference) / squares if squares > 1e-14 and rest.size and units > 2 else 0.0
    if 2 < units < _FEW_DOCUMENTS:
        residual = own - power * difference
        lengths = [float(stdtrit(units - less, 0.975)) ** 2 / (units - less) for less in (1, 2)]
        if float(own @ own) < max(1.2, lengths[1] / lengths[0]) * float(residual @ residual):
            power = 0.0  # so little is gained that estimating the power would cost more
    bottom, top = ends or (-math.inf, math.inf)
    value, centre = min(top, max(bottom, mean - power * moved)), (mean, mean - power * moved)
    p_sample, own_names = _p_of_sample(score, codes, is_rated), list(map(str, names))
    if cut is not None:
        drawn = _with_each_kind(human, score, score > cut, codes, rated)
        around, own, moved, added, taken = _corrections(*drawn, rest)
        centre = around, around - power * moved
        own_names += [f"added to {items[0].system!r}: {kind}" for kind in range(4)]
    combined = own - power * (added - taken)
    lost = 1 + (power != 0)
    # Of these rows only the unrated share is unknown, and their scores are all that there are.
    left = rest.size / len(kept)
    within = math.sqrt(left) * (own - power / left * added) if left else 0 * own
    known = ((1 - left) * mean + left * bottom, (1 - left) * mean + left * top) if left else (mean, mean)

    def found(shown: float, middle: float, one: Floats, less: int, bounds: Ends = (bottom, top)) -> Interval:
        error = math.sqrt(float(one @ one) * units / (units - less)) if units > less else math.nan
        if cut is None:
            return _doubted(
                t_interval(shown, error, units + 1 - less, ends=bounds if ends else None),
                one[np.unique(codes[rated])],
                units,
            )
        own = replace(t_interval(middle, error, units + 1 - less), value=shown)
        low, high = min(own.low, shown), max(own.high, shown)
        return replace(own, low=max(bounds[0], low), high=min(bounds[1], high)) if math.isfinite(own.low) else own

    people, estimate = found(mean, centre[0], own, 1), found(value, centre[1], combined, lost)
    by_rater = _rater_parts(raters or {})
    return Estimate(
        mean_interval(score, codes),
        float(score[rated].mean()),
        people,
        estimate,
        found(min(known[1], max(known[0], value)), centre[1], within, lost, known) if left else Interval(value),
        for_other_raters(estimate, by_rater, ends) if by_rater else None,
        power,
        rated.size,
        len(kept),
        len(items) - len(kept),
        rated.size * (people.error / estimate.error) ** 2 if estimate.error > 0 else math.nan,
        p_sample,
        dict(zip(own_names, (combined * math.sqrt(units / max(1, units - lost))).tolist(), strict=True)),
        by_rater,
    )


def _rater_parts(raters: Mapping[str, float]) -> dict[str, float]:
    """Say what every rater adds to a mean of all of them; nothing of fewer than three, who tell little of others."""
    count = len(raters)
    return {name: own / math.sqrt(count * (count - 1)) for name, own in raters.items()} if count > 2 else {}


def for_other_raters(found: Interval, parts: Mapping[str, float], ends: Ends | None = None) -> Interval:
    """Widen an interval to one for other raters, too, with the degrees of freedom of Satterthwaite (1946)."""
    squares = np.array([found.error**2, sum(own**2 for own in parts.values())])
    if not squares.sum() > 0 or found.units < 2:
        return found
    freedom = float(squares.sum() ** 2 / (squares**2 / [found.units - 1, len(parts) - 1]).sum())
    wide = t_interval(found.value, math.sqrt(squares.sum()), int(freedom) + 1, ends=ends)
    return replace(wide, low=min(wide.low, found.low), high=max(wide.high, found.high), warning=found.warning)


def _p_of_sample(score: Floats, codes: Ints, is_rated: NDArray[np.bool_]) -> float:
    """Two-sided p-value of "rated documents are drawn at random", from the spread of all scores, which is known.

    Where a document is rated in part, rows were drawn. The sum of a draw without replacement has the gamma distribution
    of its first three moments (Pearson's type III), since scores at a ceiling are skewed.
    """
    from scipy.special import gammainc, gammaincc, ndtr

    shares = np.bincount(codes, is_rated) / np.bincount(codes)
    if ((shares > 0) & (shares < 1)).any():
        codes, shares = np.arange(score.size), is_rated.astype(float)
    apart = np.bincount(codes, score - score.mean())
    drawn, count = int(shares.sum()), shares.size
    variance = drawn * (count - drawn) / count * apart.var(ddof=1) if count > 2 else 0.0
    if variance <= 1e-14:
        return 1.0
    z = float(apart @ shares) / math.sqrt(variance)
    cubes = (
        drawn * (count - drawn) * (count - 2 * drawn) * float((apart**3).sum()) / (count * (count - 1) * (count - 2))
    )
    skewness = cubes / variance**1.5
    if abs(skewness) < 0.01:
        return float(2 * ndtr(-abs(z)))
    shape = 4 / skewness**2
    reached = max(0.0, shape + math.copysign(z, z * skewness) * math.sqrt(shape))
    return float(min(1.0, 2 * min(gammainc(shape, reached), gammaincc(shape, reached))))


def _doubted(found: Interval, own: Floats, units: int) -> Interval:
    """Warn where few rated documents make up the error, shape (rated,)."""
    squares = float(own @ own)
    if squares > 1e-20 and squares**2 < _FEW_TELLING * float((own**4).sum()):
        told = f"fewer than {_FEW_TELLING} rated documents make up the error: the interval may be too short"
        return replace(found, warning=told)
    return replace(found, warning=f"only {units} documents") if found.warning and math.isfinite(found.low) else found


def _corrections(
    human: Floats, score: Floats, codes: Ints, rated: Ints, rest: Ints
) -> tuple[float, Floats, float, Floats, Floats]:
    """Mean rating, and how much higher rated rows are scored; what every document adds to it, and to both sides."""
    mean, own = _by_document(rated, human, codes)
    (of_rated, added), (of_rest, taken) = (_by_document(rows, score, codes) for rows in (rated, rest))
    return mean, own, of_rated - of_rest if rest.size else 0.0, added, taken


def _with_each_kind(
    human: Floats, score: Floats, said: NDArray[np.bool_], codes: Ints, rated: Ints
) -> tuple[Floats, Floats, Ints, Ints]:
    """Add documents to the rated ones: people's yes and no, each with a yes and a no of the judge."""
    yes, no = (score[own].mean() if own.any() else score.mean() for own in (said, ~said))
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


def estimate_difference(first: Estimate, second: Estimate) -> tuple[Interval, float, Interval | None]:
    """Difference of two estimates, whose documents may be the same, with the p-value of "no difference".

    The last is its interval for other raters, too; None of fewer than three.
    """
    value = first.combined.value - second.combined.value
    parts, raters = (_less(getattr(first, name), getattr(second, name)) for name in ("parts", "rater_parts"))
    error = math.sqrt(sum(own**2 for own in parts.values()))
    found = t_interval(value, error, min(first.combined.units, second.combined.units))
    return found, t_test(value, error, found.units), for_other_raters(found, raters) if raters else None


def _less(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    # In order: that of a set would change the last digits.
    return {name: first.get(name, 0.0) - second.get(name, 0.0) for name in dict.fromkeys([*first, *second])}
