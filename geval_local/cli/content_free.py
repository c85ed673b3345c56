"""The prior of a form: a judge's label distribution for content-free input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geval_local.errors import DataError

if TYPE_CHECKING:
    from geval_local.judge import Judge
    from geval_local.metric import Metric

__all__ = ["CONTENT_FREE", "content_free_prior"]

#: Texts without content, as in Zhao et al. (2021), whose empty text is three dots here: a field cannot be empty.
CONTENT_FREE = ("N/A", "[MASK]", "...")


def content_free_prior(judge: Judge, metric: Metric) -> dict[str, float]:
    """Average the judge's label distributions over forms with content-free fields.

    Returns
    -------
    dict of str to float
        Label -> probability, summing to 1.

    Raises
    ------
    DataError
        If the judge cannot score such a form.
    """
    scores = judge.score_many(metric, [dict.fromkeys(metric.fields, text) for text in CONTENT_FREE])
    distributions = [score.probabilities for score in scores if score.probabilities]
    if len(distributions) < len(CONTENT_FREE):
        reasons = "; ".join(dict.fromkeys(score.error for score in scores if score.error))
        raise DataError(f"{judge.name} cannot score a form without content: {reasons}")
    return {label: sum(p[label] for p in distributions) / len(distributions) for label in metric.scale.labels}
