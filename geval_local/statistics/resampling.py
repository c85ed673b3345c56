"""Permutations and folds over groups. Items of one group are never separated, and nothing is rescored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from geval_local.errors import ConfigurationError

#: Enough for rejections after Holm's correction of a hundred tests; all arrangements if there are fewer.
PERMUTATIONS = 9_999
#: From six groups on a sign-flip test can reject at .05; with fewer it never can.
SIGN_FLIP_GROUPS = 6
# With more groups the permutation distribution is Student's t to every digit shown, at a fraction of the time.
_MOST_PERMUTED = 2_000

Floats = NDArray[np.float64]


def sign_flip(differences: Floats, *, permutations: int = PERMUTATIONS, seed: int = 0) -> float:
    """Permutation test of paired differences: the sign of every group's difference is drawn at random.

    Exact if all arrangements can be enumerated (13 groups or fewer by default), else from seeded draws and the
    observed arrangement; by Student's t, which is its limit, for more than 2,000 groups. For two judges it
    is the permutation of whole inputs of Deutsch, Dror and Roth (2021), since swapping two judges on a document swaps
    the sign of the difference of their coefficients there.
    """
    from scipy import stats

    if differences.size < 2:
        return math.nan
    if np.abs(differences).max() <= 1e-12:
        return 1.0
    if differences.size > _MOST_PERMUTED:
        return float(stats.ttest_1samp(differences, 0.0).pvalue)
    # Rounded, so that arrangements that are equal are not told apart by the order of a sum.
    scaled = np.round(differences / np.abs(differences).max(), 12)
    if 2**scaled.size <= permutations:
        found = stats.permutation_test(
            (scaled,),
            lambda values, axis: np.round(values.mean(axis=axis), 12),
            permutation_type="samples",
            n_resamples=permutations,
            vectorized=True,
        )
        return float(found.pvalue)
    # scipy draws anew for every test; one draw for all pairs of a table makes sixteen systems a matter of seconds.
    means = np.round(_flipped(scaled, permutations, seed), 12)
    observed = np.round(scaled.mean(), 12)
    tails = (int((means >= observed).sum()) + 1, int((means <= observed).sum()) + 1)
    return min(1.0, 2 * min(tails) / (permutations + 1))


def _flipped(values: Floats, permutations: int, seed: int) -> Floats:
    """Means of the values with their signs drawn anew, shape (permutations,)."""
    signs = _signs(values.size, permutations, seed)
    step = max(1, 4_000_000 // values.size)
    parts = [signs[start : start + step].astype(np.float64) @ values for start in range(0, permutations, step)]
    return np.concatenate(parts) / values.size


@lru_cache(maxsize=2)
def _signs(size: int, permutations: int, seed: int) -> NDArray[np.int8]:
    draws = np.random.default_rng(seed).integers(0, 2, size=(permutations, size), dtype=np.int8)
    return 2 * draws - 1


def group_folds(groups: Sequence[str], folds: int, seed: int) -> NDArray[np.int64]:
    """Assign whole groups to folds of nearly equal size."""
    names = sorted(set(groups))
    if folds < 2 or len(names) < 2:
        raise ConfigurationError(
            f"nothing can be held out with {len(names)} group(s) and {folds} fold(s)",
            hint="Give at least two groups (documents) and two folds: figures on the items fitted on are not reported.",
        )
    order = np.random.default_rng(seed).permutation(len(names))
    fold = {names[place]: rank % min(folds, len(names)) for rank, place in enumerate(order)}
    return np.array([fold[group] for group in groups], dtype=np.int64)
