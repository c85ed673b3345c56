"""Scores of the rows of a data frame, as columns beside its own."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar

from geval_local.errors import ConfigurationError
from geval_local.fields import nearest
from geval_local.frames.libraries import Column, Kind, library_of
from geval_local.io.checks import ROWS_CHECKED, check_rows, load_metrics
from geval_local.io.columns import EVERYTHING, FIGURES, figures_in
from geval_local.io.samples import Sample
from geval_local.judge.progress import OnProgress, in_thread
from geval_local.metric import Metric
from geval_local.score import Estimator, Score

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

__all__ = ["Metrics", "ascore_frame", "score_frame"]

_Frame = TypeVar("_Frame")
_T = TypeVar("_T")
_P = ParamSpec("_P")

#: Metrics, or the names and files that `Metric.load` takes.
Metrics: TypeAlias = "Metric | str | os.PathLike[str] | Sequence[Metric | str | os.PathLike[str]]"

_KINDS: Mapping[str, Kind] = {
    "probabilities": "distribution",
    "mode": "text",
    "error": "text",
    "passed": "flag",
    "other_tokens": "tokens",
    "prompt_tokens": "count",
    "dropped_tokens": "count",
}


def score_frame(
    frame: _Frame,
    metrics: Metrics,
    judge: Judge | str | os.PathLike[str] | None = None,
    *,
    fields: Mapping[str, str] | None = None,
    figures: Sequence[str] | Literal["all"] = ("score", "error"),
    estimator: Estimator | None = None,
    threshold: float | None = None,
    progress: OnProgress = False,
) -> _Frame:
    """Score the rows of a data frame; the figures are those of the command line, to the last bit.

    Parameters
    ----------
    frame : pandas.DataFrame or polars.DataFrame
        One sample per row. It is not changed.
    metrics : Metric, str, path, or sequence of them
        What to rate: metrics, or the names and files that `Metric.load` takes.
    judge : Judge, str, path, optional
        Who rates, or its name; a judge that is named is loaded for this call. None is the default judge.
    fields : mapping of str to str, optional
        Field of a metric -> the column, or the dotted path into one, that it is read from. Fields that are not in it
        are found by their names.
    figures : sequence of str, or "all"
        The figures that become columns, see `geval_local.score.Score`; ``all`` leaves out those that no row has.
    estimator : Estimator, optional
        Exact expectation when absent.
    threshold : float, optional
        The score that passes, on the metrics' scale; overrides the metrics' own.
    progress : bool or callable
        See `Judge.score_many`.

    Returns
    -------
    pandas.DataFrame or polars.DataFrame
        A copy with the columns ``METRIC.FIGURE``, rows and their order as they were. A row that cannot be scored has
        no score (NaN in pandas, null in polars) and its reason in ``METRIC.error``; never 0.

    Raises
    ------
    TypeError
        If `frame` or a metric is none.
    ConfigurationError
        If a metric or the judge cannot be found, or a figure or field is unknown.
    DataError
        If no row can be scored on a metric for want of a column, before a judge is loaded.
    """
    library = library_of(frame)
    chosen = load_metrics(metrics)
    wanted = _figures(figures)
    samples = [
        Sample(row, number, "the frame", mapping=dict(fields or {}))
        for number, row in enumerate(library.rows(frame), start=1)
    ]
    check_rows(list(islice(samples, ROWS_CHECKED)), chosen, "the frame", fields)
    if judge is None or isinstance(judge, str | os.PathLike):
        from geval_local.judge.judge import Judge

        judge = Judge.load(None if judge is None else os.fspath(judge))
    found = judge.score_many(chosen, samples, estimator=estimator, threshold=threshold, progress=progress)
    columns = [column for metric in chosen for column in _columns(metric, found[metric.name], wanted)]
    extended: _Frame = library.extended(frame, columns)
    return extended


def _asynchronous(score: Callable[_P, _T]) -> Callable[_P, Coroutine[Any, Any, _T]]:
    """Make a function with the parameters ``judge`` and ``progress`` one that runs beside an event loop."""
    signature = inspect.signature(score)

    @wraps(score)
    async def beside_loop(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        judge, progress = given.arguments["judge"], given.arguments["progress"]

        def work(told: OnProgress) -> _T:
            given.arguments["progress"] = told
            return score(*given.args, **given.kwargs)

        # A judge that is named is loaded for this call alone.
        turn: AbstractContextManager[object] = getattr(judge, "turn", nullcontext())
        return await in_thread(work, progress, turn)

    return beside_loop


ascore_frame = _asynchronous(score_frame)
ascore_frame.__name__ = ascore_frame.__qualname__ = "ascore_frame"
ascore_frame.__doc__ = """Score the rows of a data frame beside an event loop; all else as in `score_frame`.

Calls of one loaded judge are computed one after the other; see `Judge.ascore_many`.
"""


def _figures(given: Sequence[str] | str) -> tuple[str, ...] | None:
    """List the figures that are asked for; None for all."""
    if given == EVERYTHING:
        return None
    names = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))
    for name in names:
        if name not in FIGURES:
            raise ConfigurationError(
                f"there is no figure {name!r}{nearest(name, FIGURES)}", hint=f"Figures: {', '.join(FIGURES)}, or all."
            )
    return names


def _columns(metric: Metric, scores: Sequence[Score], figures: tuple[str, ...] | None) -> list[Column]:
    records = [score.to_dict() for score in scores]
    if figures is None:
        present = figures_in({"": record} for record in records) | {"score", "error"}
        figures = tuple(name for name in FIGURES if name in present)
    return [
        Column(
            f"{metric.name}.{name}",
            _KINDS.get(name, "number"),
            [record.get(name) for record in records],
            metric.scale.labels,
        )
        for name in figures
    ]
