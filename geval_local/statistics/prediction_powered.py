"""Prediction-powered inference: the mean rating of all rows, from many scores and few human ratings.

PPI++ (Angelopoulos, Duchi and Zrnic, 2023, arXiv:2311.01453) corrects the mean of the ratings by the difference of the
scores between rated and other rows, times a power that minimises the error. A power of 0 uses the ratings alone. Rows
of one document count as one unit. The power is estimated too, so the error has two degrees of freedom less than there
are rated documents. For shares we add one pseudo-observation of each kind (people's yes and no, each with the judge's
yes and no) to every interval, because a good judge may make no error in a small sample, which would leave an interval
without length (Agresti and Coull, 1998; Lang and Reiczigel, 2014, doi:10.1016/j.prevetmed.2013.09.015). These intervals
keep their coverage from 20 ratings on, and are conservative if the judge is seldom wrong. All methods assume that the
rated rows are a random sample of all rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.statistics.interval import Ends, Interval, by_name, mean_interval, t_interval, t_test
from geval_local.statistics.records import ScoredItem

#: If fewer rated documents than this make up the error, the interval is too short.
_FEW_TELLING = 5
# With fewer rated documents, estimating a power that gains nothing would widen the interval by more than 5 %.
_FEW_DOCUMENTS = 14
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """The mean rating of all rows, from the ratings alone and with the help of the scores."""

    #: Mean of all scores, and of the scores of the rated rows.
    judge: Interval
    judge_of_rated: float
    #: Mean of the ratings.
    people: Interval
    #: Both together, for the population of documents from which all rows are a sample.
    combined: Interval
    #: Both together, for exactly these rows; no interval if all of them are rated.
    these: Interval
    #: `combined` with an interval that also covers other raters; None with fewer than three raters.
    other_raters: Interval | None
    #: Weight of the scores; 0 ignores them.
    power: float
    #: Number of rated rows, of all scored rows, and of rows without a score.
    rated: int
    n: int
    unscored: int
    #: Number of ratings that would give as short an interval without the judge.
    worth: float
    #: Two-sided p-value of "the judge scores rated and other rows alike". A small value says that the rated rows are
    #: not a random sample.
    p_sample: float
    #: What every document, and every rater, contributes to the combined estimate.
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
        The items of one system; few have a rating.
    ends : (float, float), optional
        The ends of the ratings' scale; intervals stay between them.
    cut : float, optional
        A score above it is the judge's yes. For ratings of 0 and 1, and 0.5 for a tie.
    raters : mapping of str to float, optional
        How much higher each person rates than all of them.
    """
    from scipy.special import stdtrit

    kept = [place for place, item in enumerate(items) if math.isfinite(item.predicted)]
    human, score = (np.array([getattr(items[place], name) for place in kept]) for name in ("human", "predicted"))
    names, codes = by_name(items[place].group for place in kept)
    is_rated = np.isfinite(human)
    rated, rest = np.flatnonzero(is_rated), np.flatnonzero(~is_rated)
    sizes = np.unique(codes[rated], return_counts=True)[1]
    units, effective = sizes.size, rated.size**2 / max(1, int((sizes**2).sum()))
    mean, own, moved, added, taken = _corrections(human, score, codes, rated, rest)
    difference = added - taken
    squares = float(difference @ difference)
    power = float(own @ difference) / squares if squares > 1e-14 and rest.size and units > 2 else 0.0
    if 2 < units < _FEW_DOCUMENTS:
        residual = own - power * difference
        lengths = [float(stdtrit(units - less, 0.975)) ** 2 / (units - less) for less in (1, 2)]
        if float(own @ own) < max(1.2, lengths[1] / lengths[0]) * float(residual @ residual):
            power = 0.0  # the gain is smaller than the cost of estimating the power
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
    # For exactly these rows only the ratings of the unrated ones are unknown; all their scores are known.
    left = rest.size / len(kept)
    within = math.sqrt(left) * (own - power / left * added) if left else 0 * own
    known = ((1 - left) * mean + left * bottom, (1 - left) * mean + left * top) if left else (mean, mean)

    def found(shown: float, middle: float, one: Floats, less: int, bounds: Ends = (bottom, top)) -> Interval:
        error = math.sqrt(float(one @ one) * units / (units - less)) if units > less else math.nan
        if cut is None:
            return _doubted(
                t_interval(shown, error, effective + 1 - less, ends=bounds if ends else None),
                one[np.unique(codes[rated])],
                units,
            )
        own = replace(t_interval(middle, error, effective + 1 - less), value=shown)
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
    """Compute every rater's contribution to the mean of all; empty for fewer than three raters, who say too little."""
    count = len(raters)
    return {name: own / math.sqrt(count * (count - 1)) for name, own in raters.items()} if count > 2 else {}


def for_other_raters(found: Interval, parts: Mapping[str, float], ends: Ends | None = None) -> Interval:
    """Widen an interval to cover other raters too, with the degrees of freedom of Satterthwaite (1946)."""
    squares = np.array([found.error**2, sum(own**2 for own in parts.values())])
    if not squares.sum() > 0 or found.units < 2:
        return found
    freedom = float(squares.sum() ** 2 / (squares**2 / [found.units - 1, len(parts) - 1]).sum())
    wide = t_interval(found.value, math.sqrt(squares.sum()), int(freedom) + 1, ends=ends)
    return replace(wide, low=min(wide.low, found.low), high=max(wide.high, found.high), warning=found.warning)


def _p_of_sample(score: Floats, codes: Ints, is_rated: NDArray[np.bool_]) -> float:
    """Compute the two-sided p-value of "rated documents are drawn at random" from the known spread of all scores.

    If a document is rated in part, the test assumes that rows were drawn. The sum of a draw without replacement is
    approximated by a gamma distribution with its first three moments (Pearson's type III), since scores at a ceiling
    are skewed.
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
    """Add a warning if few rated documents make up the error; `own` has shape (rated documents,)."""
    squares = float(own @ own)
    if squares > 1e-20 and squares**2 < _FEW_TELLING * float((own**4).sum()):
        told = f"fewer than {_FEW_TELLING} rated documents make up the error: the interval may be too short"
        return replace(found, warning=told)
    return replace(found, warning=f"only {units} documents") if found.warning and math.isfinite(found.low) else found


def _corrections(
    human: Floats, score: Floats, codes: Ints, rated: Ints, rest: Ints
) -> tuple[float, Floats, float, Floats, Floats]:
    """Return the mean rating and how much higher rated rows are scored, with every document's contribution to each."""
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
    """Compute the mean of these rows, and every document's contribution to its deviation."""
    mean = float(values[rows].mean()) if rows.size else 0.0
    own = np.bincount(codes[rows], (values[rows] - mean) / max(1, rows.size), minlength=int(codes.max()) + 1)
    return mean, np.asarray(own, dtype=np.float64)


def estimate_difference(first: Estimate, second: Estimate) -> tuple[Interval, float, Interval | None]:
    """Compute the difference of two estimates, which may share documents, with the p-value of "no difference".

    The last element is the interval that also covers other raters; None with fewer than three raters.
    """
    value = first.combined.value - second.combined.value
    both = ((first.parts, second.parts), (first.rater_parts, second.rater_parts))
    parts, raters = ({name: one.get(name, 0.0) - two.get(name, 0.0) for name in {**one, **two}} for one, two in both)
    error = math.sqrt(sum(own**2 for own in parts.values()))
    found = t_interval(value, error, min(first.combined.units, second.combined.units))
    return found, t_test(value, error, found.units), for_other_raters(found, raters) if raters else None
