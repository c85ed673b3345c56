"""The paper's ablations that need no new scoring: other estimates from the same label distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.distributions import probability_matrix
from geval_local.analysis.statistics.jackknife import Target
from geval_local.analysis.statistics.levels import Level
from geval_local.analysis.statistics.significance import Comparison, compare
from geval_local.errors import DataError
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, estimate

__all__ = ["ABLATIONS", "against_exact", "estimate_name", "estimated_items"]

#: What stands beside the expectation: the paper's two, and those of Wang, Zhang and Choi (2025, arXiv:2503.03064).
ABLATIONS = (
    Estimator("mode"),
    Estimator("sample", n=20),
    Estimator("median"),
)


def estimated_items(items: Sequence[ScoredItem], scale: Scale, estimator: Estimator) -> list[ScoredItem]:
    """Score by another estimate from the stored label distributions; unscored items stay as they are.

    Parameters
    ----------
    items : sequence of ScoredItem
        With label probabilities.
    scale : Scale
        The metric's scale.
    estimator : Estimator
        Draws of ``sample`` depend on the item's key, and not on its place.

    Raises
    ------
    DataError
        If a scored item has no probabilities over the labels of `scale`.
    """
    result = list(items)
    scored = [index for index, item in enumerate(items) if np.isfinite(item.predicted)]
    rows = probability_matrix([items[index] for index in scored], scale)
    with np.errstate(divide="ignore"):
        logs = np.log(rows)
    for index, row in zip(scored, logs, strict=True):
        key = int.from_bytes(blake2b(items[index].key.encode(), digest_size=8).digest(), "big")
        value = estimate(Distribution(scale, row), estimator, sample_key=key)
        # What the estimate has in hand is one number; its distribution is not known to whoever sampled it.
        result[index] = replace(items[index], predicted=value, probabilities=None)
    return result


def estimate_name(judge: str, estimator: Estimator) -> str:
    """Name the row of another estimate by one judge: ``nano - probs``, ``nano n = 20``, ``nano median``."""
    return f"{judge} " + {"mode": "- probs", "sample": f"n = {estimator.n}"}.get(estimator.kind, estimator.text)


def against_exact(
    items: Sequence[ScoredItem],
    scale: Scale,
    judge: str,
    estimators: Sequence[Estimator] = ABLATIONS,
    *,
    level: Level,
    coefficient: str = "spearman",
    target: Target | None = None,
) -> dict[str, Comparison]:
    """Test the expectation against each other estimate, on the documents that both keep.

    Parameters
    ----------
    items : sequence of ScoredItem
        Scores by the expectation, with label probabilities and ratings.
    scale : Scale
        The metric's scale.
    judge : str
        What the rows are called by.
    estimators : sequence of Estimator
        The others.
    level, coefficient, target
        As in `geval_local.analysis.statistics.significance.compare`.

    Returns
    -------
    dict of str to Comparison
        ``judge / judge median`` and so on; an estimate that keeps no document is left out.

    Raises
    ------
    DataError
        If a scored item has no probabilities over the labels of `scale`.
    """
    found: dict[str, Comparison] = {}
    for name, other in _estimates(items, scale, judge, estimators).items():
        try:
            found[f"{judge} / {name}"] = compare(items, other, level, coefficient, target=target)
        except DataError:
            continue  # Constant everywhere, or nothing rated: there is nothing to compare.
    return found


def _estimates(
    items: Sequence[ScoredItem], scale: Scale, judge: str, estimators: Sequence[Estimator]
) -> Mapping[str, list[ScoredItem]]:
    return {estimate_name(judge, one): estimated_items(items, scale, one) for one in estimators}
