"""Bradley-Terry strengths from fractional counts of wins, with intervals over documents.

The strengths `s` maximise the likelihood of ``P(i beats j) = 1 / (1 + exp(s_j - s_i))``, where each side of a
comparison counts by the probability that it is better, and a tie counts as half a win for each side. The fit is choix's
(Maystre and Grossglauser, 2015: iterative Luce spectral ranking, which converges to the maximum likelihood). The error
is the sandwich of Liang and Zeger (1986) over documents: what each of them adds to the slope of the likelihood, over
its curvature. To leave out one document at a time gives intervals that are too long with one comparison a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import DataError
from geval_local.statistics.interval import Interval, by_name, t_interval

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NO_CHOIX = "they need choix; install it with `pip install 'geval-local[pairs]'`"


@dataclass(frozen=True)
class BradleyTerry:
    """Strengths of systems."""

    strengths: tuple[Interval, ...]
    warning: str = ""


def fit_bradley_terry(
    systems: int, first: Ints, second: Ints, preference: Floats, documents: Sequence[str]
) -> BradleyTerry:
    """Fit the strengths of systems, with Student's interval over documents."""
    none = tuple(Interval(float("nan")) for _ in range(systems))
    if preference.size and not ((preference >= 0) & (preference <= 1)).all():
        raise DataError("a preference is not between 0 and 1")
    codes = by_name(documents)[1]
    wins = np.zeros((systems, systems))  # of the row's system over the column's, in fractions
    np.add.at(wins, (first, second), preference)
    np.add.at(wins, (second, first), 1 - preference)
    if missing := _unconnected(wins):
        return BradleyTerry(none, f"no Bradley-Terry strengths: {missing}")
    try:
        from choix import ilsr_pairwise_dense
    except ImportError:
        return BradleyTerry(none, f"no Bradley-Terry strengths: {NO_CHOIX}")
    strengths = np.asarray(ilsr_pairwise_dense(wins, max_iter=1000), dtype=np.float64)
    strengths -= strengths.mean()
    chance = 1 / (1 + np.exp(strengths[second] - strengths[first]))
    sides = np.eye(systems)[first] - np.eye(systems)[second]
    slopes = np.zeros((int(codes.max()) + 1, systems))
    np.add.at(slopes, codes, (preference - chance)[:, None] * sides)
    moved = slopes @ np.linalg.pinv((sides * (chance * (1 - chance))[:, None]).T @ sides)
    units = len(slopes)
    errors = np.sqrt((moved**2).sum(axis=0) * units / max(1, units - 1))
    found = zip(strengths.tolist(), errors.tolist(), strict=True)
    return BradleyTerry(tuple(t_interval(value, error, units) for value, error in found))


def _unconnected(wins: Floats) -> str:
    """Return why the likelihood has no single maximum; empty if it has one."""
    from scipy.sparse.csgraph import connected_components

    if connected_components(wins > 0, directed=True, connection="weak")[0] > 1:
        return "some systems were never compared with the others, directly or through others"
    if connected_components(wins > 0, directed=True, connection="strong")[0] > 1:
        return "some systems won, or lost, every comparison with the others, so that their strength has no bound"
    return ""
