"""One evaluator for every tool that takes a function: columns in, ``{key, score, comment, metadata}`` out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from geval_local.hosts.bound import BoundMetric, JudgeLike, MetricLike, laid_out
from geval_local.score import Score


class EvaluatorResult(TypedDict):
    """What an evaluator returns."""

    #: The metric's name.
    key: str
    #: None if the row cannot be scored.
    score: float | None
    #: The label probabilities in words, or why there is no score.
    comment: str
    #: Every figure, judge and signature.
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Evaluator:
    """A metric on a judge as a function; `acall` is the same for event loops. Both can be copied and pickled."""

    #: The metric on its judge.
    bound: BoundMetric
    #: Whether scores are mapped to 0-1.
    normalized: bool = False

    @property
    def __name__(self) -> str:
        return self.bound.metric.name

    def __call__(
        self, inputs: Any = None, outputs: Any = None, reference_outputs: Any = None, **columns: Any
    ) -> EvaluatorResult:
        """Score one row: one mapping of columns, or columns by name; keys of objects become columns too."""
        return self._written(self.bound.score(_row(inputs, outputs, reference_outputs, columns)))

    async def acall(
        self, inputs: Any = None, outputs: Any = None, reference_outputs: Any = None, **columns: Any
    ) -> EvaluatorResult:
        """Score one row without blocking the event loop."""
        future = self.bound.submit(_row(inputs, outputs, reference_outputs, columns))
        return self._written((await asyncio.wrap_future(future))[0])

    def _written(self, score: Score) -> EvaluatorResult:
        value = score.normalized if self.normalized else score.value
        return {
            "key": self.bound.metric.name,
            "score": value if score.is_scored else None,
            "comment": self.bound.words(score),
            "metadata": self.bound.record(score),
        }


def _row(inputs: Any, outputs: Any, reference_outputs: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
    return laid_out({**columns, "reference_outputs": reference_outputs, "inputs": inputs, "outputs": outputs})


def evaluator(
    metric: MetricLike,
    judge: JudgeLike = None,
    *,
    fields: Mapping[str, str] | None = None,
    threshold: float | None = None,
    normalized: bool = False,
) -> Evaluator:
    """Make a function of a metric and a judge, as LangSmith, Phoenix, Braintrust and others take it.

    Parameters
    ----------
    metric : Metric, str or path
        A metric, the name of a preset, or a YAML file.
    judge : Judge, JudgeOptions, str, path, optional
        Who rates; loaded once per process. None is the default judge.
    fields : mapping of str to str, optional
        Field of the metric -> its column, or a dotted path into one.
    threshold : float, optional
        The score that passes, on the metric's scale; ``metadata["passed"]`` says whether it does.
    normalized : bool
        Map scores to 0-1.

    Returns
    -------
    Evaluator
        Called with one mapping of columns or with columns by name, it returns an `EvaluatorResult`; a row that cannot
        be scored has None as its score and the reason as its comment. ``evaluator(...).acall`` is awaited instead.

    Raises
    ------
    ConfigurationError
        If the metric or the judge cannot be found, or the threshold is outside the scale.
    """
    return Evaluator(BoundMetric.bind(metric, judge, fields=fields, threshold=threshold), normalized)
