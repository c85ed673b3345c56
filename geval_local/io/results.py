"""Results as written by ``geval-local score``, read back from any of its formats, or handed over as rows."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geval_local.errors import DataError
from geval_local.io.readers import read_rows
from geval_local.io.text_formats import FIGURES
from geval_local.score import Score

__all__ = ["Record", "Results", "ResultsInput", "load_results"]

#: A result file, or its rows: the input's columns and ``geval: {metric: figures}``.
ResultsInput = str | os.PathLike[str] | Sequence[Mapping[str, Any]]

_HINT = "Expected a result file of `geval-local score`."
_ABSENT = "the row holds no figures of this metric"


@dataclass(frozen=True)
class Record:
    """One row of results.

    Attributes
    ----------
    number : int
        The row's number in its file (the line for JSONL), from 1.
    columns : dict
        The input's columns.
    scores : dict of str to Score
        Metric -> its figures, for every metric of the results.
    """

    number: int
    columns: dict[str, Any]
    scores: dict[str, Score]


@dataclass(frozen=True)
class Results:
    """All rows of a run.

    Attributes
    ----------
    name : str
        The file's name, or ``results``.
    metrics : tuple of str
        In order of appearance.
    records : tuple of Record
        In the order of the rows.
    """

    name: str
    metrics: tuple[str, ...]
    records: tuple[Record, ...]

    def ids(self) -> list[str] | None:
        """Give the rows' ``id`` where all rows have distinct ones, else None."""
        ids = [str(record.columns["id"]) for record in self.records if record.columns.get("id") is not None]
        return ids if len(ids) == len(self.records) == len(set(ids)) else None

    def row_keys(self) -> list[str]:
        """Identity of each row: its ``id`` where all rows have distinct ones, else its place in the run, from 1."""
        return self.ids() or [str(place) for place in range(1, len(self.records) + 1)]


def load_results(given: ResultsInput) -> Results:
    """Read results.

    Parameters
    ----------
    given : path, or sequence of mapping
        A ``.jsonl``, ``.json``, ``.csv`` or ``.parquet`` file as ``geval-local score`` writes it, or such rows.

    Raises
    ------
    DataError
        If there is no such file, it holds no rows, or a row holds no results; with the row's number.
    """
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        name, rows = path.name, list(_file_rows(path))
    else:
        name, rows = "results", [(f"results, row {number}", number, row) for number, row in enumerate(given, start=1)]
    if not rows:
        raise DataError(f"{name} holds no rows", hint=_HINT)
    split = [(where, number, *_split(row, where)) for where, number, row in rows]
    metrics = tuple(dict.fromkeys(metric for _, _, _, found in split for metric in found))
    if not metrics:
        raise DataError(f"{name}: no row holds the figures of a metric", hint=_HINT)
    return Results(
        name,
        metrics,
        tuple(
            Record(number, columns, {metric: _score(metric, found.get(metric), where) for metric in metrics})
            for where, number, columns, found in split
        ),
    )


def _file_rows(path: Path) -> Iterable[tuple[str, int, Mapping[str, Any]]]:
    for row in read_rows(path):
        where = f"{path}, row {row.number}"
        if row.error is not None:
            raise DataError(f"{where}: {row.error}", hint=_HINT)
        yield where, row.number, row.fields


def _split(row: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Mapping[str, Any]]]:
    """Part the input's columns from the figures: an object ``geval``, or CSV's columns ``metric.figure``."""
    columns = {str(name): value for name, value in row.items() if name != "geval"}
    if "geval" in row:
        found = row["geval"]
        if not isinstance(found, Mapping) or not all(
            value is None or isinstance(value, Mapping) for value in found.values()
        ):
            raise DataError(f"{where}: the column 'geval' does not hold one object per metric", hint=_HINT)
        return columns, {str(metric): figures for metric, figures in found.items() if figures is not None}
    metrics = [name.removesuffix(".score") for name in columns if name.endswith(".score")]
    metrics = [name for name in metrics if f"{name}.label_mass" in columns and f"{name}.error" in columns]
    if not metrics:
        raise DataError(f"{where}: no scores", hint=_HINT)
    flat: dict[str, Mapping[str, Any]] = {
        metric: {figure: columns.pop(f"{metric}.{figure}", None) for figure in FIGURES} for metric in metrics
    }
    if columns.get("extra") == "":
        del columns["extra"]
    return columns, flat


def _score(metric: str, figures: Mapping[str, Any] | None, where: str) -> Score:
    where = f"{where}: {metric}"
    if figures is None or (_number(figures, "score", where) is None and not figures.get("error")):
        return Score.unscored(metric, _ABSENT)
    value = _number(figures, "score", where)
    tokens = int(_number(figures, "prompt_tokens", where) or 0)
    if value is None:
        return Score.unscored(metric, str(figures["error"]), prompt_tokens=tokens)

    def number(figure: str) -> float:
        found = _number(figures, figure, where)
        return math.nan if found is None else found

    mode = figures.get("mode")
    return Score(
        metric=metric,
        value=value,
        normalized=number("normalized"),
        probabilities=_probabilities(figures, where),
        label_mass=number("label_mass"),
        std=number("std"),
        entropy=number("entropy"),
        mode=None if mode is None else str(mode),
        margin=number("margin"),
        threshold=_number(figures, "threshold", where),
        threshold_probability=_number(figures, "threshold_probability", where),
        passed={"true": True, "false": False}.get(str(figures.get("passed")).lower()),
        other_tokens=_other_tokens(figures, where),
        prompt_tokens=tokens,
        dropped_tokens=int(_number(figures, "dropped_tokens", where) or 0),
    )


def _number(figures: Mapping[str, Any], figure: str, where: str) -> float | None:
    value = figures.get(figure)
    if value is None or value == "":
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: {figure} is not a finite number: {value!r:.80}", hint=_HINT)
    return number


def _probabilities(figures: Mapping[str, Any], where: str) -> dict[str, float] | None:
    found = _parsed(figures, "probabilities", where)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise DataError(f"{where}: probabilities are not an object of labels", hint=_HINT)
    by_label = {str(label): _number(found, label, f"{where}: probabilities") for label in found}
    wrong = [label for label, p in by_label.items() if p is None or not -1e-9 <= p <= 1 + 1e-9]
    if wrong:
        raise DataError(f"{where}: the probability of the label {wrong[0]!r:.80} is not between 0 and 1", hint=_HINT)
    return {label: p for label, p in by_label.items() if p is not None}


def _other_tokens(figures: Mapping[str, Any], where: str) -> tuple[tuple[str, float], ...]:
    found = _parsed(figures, "other_tokens", where) or ()
    try:
        # Pairs in JSON and CSV, structs in Parquet.
        pairs = [(item["token"], item["probability"]) if isinstance(item, Mapping) else item for item in found]
        return tuple((str(token), float(p)) for token, p in pairs)
    except (TypeError, ValueError, KeyError) as error:
        raise DataError(f"{where}: other_tokens are not pairs of token and probability", hint=_HINT) from error


def _parsed(figures: Mapping[str, Any], figure: str, where: str) -> Any:
    value = figures.get(figure)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value else None
    except ValueError as error:
        raise DataError(f"{where}: {figure} is not valid JSON: {error}", hint=_HINT) from error
