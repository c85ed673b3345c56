"""Scores of the rows of a data frame, as columns next to its own; narwhals reads and extends frames of any library."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import narwhals as nw

from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import nearest
from geval_local.figures import FIGURES, Kind
from geval_local.io.columns import EVERYTHING, figures_in
from geval_local.io.input_checks import ROWS_CHECKED, check_rows, instead_of, load_metrics
from geval_local.io.samples import Sample
from geval_local.judge.scorer import OnProgress, in_thread
from geval_local.metric import Metric
from geval_local.score import Estimator, Score

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

logger = logging.getLogger("geval_local")


def _collected(frame: Any) -> nw.DataFrame[Any]:
    """Give a frame with its rows: lazy frames and relations are collected, datasets read as Arrow tables."""
    try:
        found = nw.from_native(frame, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        told = " ".join(str(error).split())
        raise DataError(f"the frame has columns twice: {told}", hint="Rename one of each.") from None
    if isinstance(found, nw.LazyFrame):
        return found.collect()
    if isinstance(found, nw.DataFrame):
        return found
    if _is_dataset(frame) and hasattr(frame, "__len__") and not isinstance(frame, Mapping):
        frame = frame.with_format("arrow")[:]
    if hasattr(frame, "__arrow_c_stream__"):
        return nw.from_arrow(frame, backend="pyarrow")
    raise TypeError(
        f"a frame is expected (pandas, polars, Arrow, duckdb, datasets), not {type(frame).__name__}; "
        f"{instead_of(frame)}"
    )


def _is_dataset(frame: object) -> bool:
    return type(frame).__module__.split(".")[0] == "datasets" and hasattr(frame, "with_format")


def _rows(frame: nw.DataFrame[Any]) -> list[dict[str, Any]]:
    """Give the rows, each a dictionary of its columns; a missing value is None, whatever the column calls it."""
    if any(isinstance(name, tuple) for name in frame.columns):
        raise DataError(
            "the frame's columns have several levels", hint="Flatten them: frame.columns = ['.'.join(c) for c in ...]."
        )
    names = [str(name) for name in frame.columns]
    columns = [
        [None if missing else value for value, missing in zip(one.to_list(), one.is_null().to_list(), strict=True)]
        for one in frame.iter_columns()
    ]
    # A frame may have rows and no column, as groups have whose only column is the one that they are grouped by.
    cells = zip(*columns, strict=True) if columns else [()] * len(frame)
    return [dict(zip(names, row, strict=True)) for row in cells]


def _series(name: str, kind: Kind, values: list[Any], labels: Sequence[str], frame: Any) -> Any:
    """Make a column of figures for a frame; None stands where there is none."""
    if kind == "tokens":
        values = [None if one is None else [{"token": token, "probability": p} for token, p in one] for one in values]
    if frame.implementation.is_pandas_like():
        # Types of pandas that know a missing value. One of texts would make it NaN, which is true in a condition.
        dtype = {"number": "float64", "count": "Int64", "flag": "boolean"}.get(kind, "object")
        native = nw.get_native_namespace(frame).Series(values, name=name, dtype=dtype)
        return nw.from_native(native, series_only=True)
    stored = nw.Struct(dict.fromkeys(labels, nw.Float64)) if kind == "distribution" else _TYPES[kind]
    return nw.new_series(name, values, stored, backend=frame.implementation)


_TYPES: Mapping[Kind, Any] = {
    "number": nw.Float64,
    "numbers": nw.List(nw.Float64),
    "count": nw.Int64,
    "flag": nw.Boolean,
    "text": nw.String,
    "texts": nw.List(nw.String),
    "tokens": nw.List(nw.Struct({"token": nw.String, "probability": nw.Float64})),
}

#: Metrics, or the names and files that `Metric.load` takes.
Metrics: TypeAlias = "Metric | str | os.PathLike[str] | Sequence[Metric | str | os.PathLike[str]]"


def score_frame(
    frame: Any,
    metrics: Metrics,
    judge: Judge | str | os.PathLike[str] | None = None,
    *,
    fields: Mapping[str, str] | None = None,
    figures: Sequence[str] | Literal["all"] = ("score", "error", "error_code"),
    estimator: Estimator | None = None,
    threshold: float | None = None,
    progress: OnProgress = False,
) -> Any:
    """Score the rows of a data frame; the figures are those of the command line, to the bit without its cache.

    Parameters
    ----------
    frame : frame of pandas or polars, pyarrow.Table, duckdb relation, datasets.Dataset, or what narwhals or Arrow reads
        One sample per row. It is not changed; a lazy one is collected.
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
    frame
        A copy of the frame's kind, of a lazy frame what it collects to, with the columns ``METRIC.FIGURE``, rows and
        their order as they were. A row that cannot be scored has no score (NaN in pandas, else null) and its reason in
        ``METRIC.error``, with one of `geval_local.errors.ErrorCode` in ``METRIC.error_code``; never 0. A column of the
        frame that has such a name is replaced, which is logged.

    Raises
    ------
    TypeError
        If `frame` or a metric is none.
    ConfigurationError
        If a metric or the judge cannot be found, or a figure or field is unknown.
    DataError
        If no row can be scored on a metric for want of a column, before a judge is loaded.
    """
    collected = _collected(frame)
    chosen = load_metrics(metrics)
    wanted = _figures(figures)
    samples = [
        Sample(row, number, "the frame", mapping=dict(fields or {}))
        for number, row in enumerate(_rows(collected), start=1)
    ]
    check_rows(list(islice(samples, ROWS_CHECKED)), chosen, "the frame", fields)
    if judge is None or isinstance(judge, str | os.PathLike):
        from geval_local.judge.judge import Judge

        judge = Judge.load(None if judge is None else os.fspath(judge))
    found = judge.score_many(chosen, samples, estimator=estimator, threshold=threshold, progress=progress)
    columns = [column for metric in chosen for column in _columns(metric, found[metric.name], wanted, collected)]
    for name in {column.name for column in columns} & set(collected.columns):
        logger.warning("the frame's column %r is replaced by the new result", name)
    extended = collected.with_columns(columns).to_native()
    return type(frame)(extended) if _is_dataset(frame) else extended


async def ascore_frame(
    frame: Any,
    metrics: Metrics,
    judge: Judge | str | os.PathLike[str] | None = None,
    *,
    progress: OnProgress = False,
    **options: Any,
) -> Any:
    """Score the rows of a data frame for an event loop; all else as in `score_frame`.

    Calls of one loaded judge are computed one after the other; see `Judge.ascore_many`.
    """
    # A judge that is named is loaded for this call alone.
    return await in_thread(lambda told: score_frame(frame, metrics, judge, progress=told, **options), progress)


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


def _columns(metric: Metric, scores: Sequence[Score], figures: tuple[str, ...] | None, frame: Any) -> list[Any]:
    """Make the columns of a metric's figures, such as ``summarization/coherence.score``."""
    records = [score.to_dict() for score in scores]
    if figures is None:
        present = figures_in({"": record} for record in records) | {"score", "error", "error_code"}
        figures = tuple(name for name in FIGURES if name in present)
    kinds = {name: FIGURES[name].kind for name in figures}
    return [
        _series(f"{metric.name}.{name}", kind, [one.get(name) for one in records], metric.scale.labels, frame)
        for name, kind in kinds.items()
    ]
