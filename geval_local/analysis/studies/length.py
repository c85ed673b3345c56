"""Whether the judge favours length: scores, and human ratings beside them, against the number of words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.correlation import Correlation, Level, correlate

__all__ = ["LengthBias", "length_bias"]


@dataclass(frozen=True)
class LengthBias:
    """Correlation of scores, and of human ratings, with the length of the output in words.

    Attributes
    ----------
    score : Correlation
        Scores against length; its field for human ratings holds the length.
    human : Correlation or None
        Human ratings against length on the same items: what a fair judge would show. None without ratings.
    """

    score: Correlation
    human: Correlation | None


def length_bias(
    items: Sequence[ScoredItem], level: Level = "pooled", *, resamples: int = 1000, seed: int = 0
) -> LengthBias:
    """Correlate scores, and human ratings where there are any, with the output's length in words.

    Raises
    ------
    DataError
        If no scored item has a length.
    """
    known = [item for item in items if item.length is not None and math.isfinite(item.predicted)]
    against = [replace(item, human=float(item.length or 0)) for item in known]
    rated = [replace(item, human=float(item.length or 0), predicted=item.human) for item in known]
    rated = [item for item in rated if math.isfinite(item.predicted)]
    return LengthBias(
        correlate(against, level, resamples=resamples, seed=seed),
        correlate(rated, level, resamples=resamples, seed=seed) if rated else None,
    )
