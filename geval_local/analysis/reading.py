"""Rows and the numbers in them: data files, and the result files of ``geval-local score`` as scored items."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geval_local.analysis.records import ScoredItem, word_count
from geval_local.errors import DataError
from geval_local.io import readers
from geval_local.io.text_formats import FIGURES

__all__ = ["figures_of", "lookup", "number_at", "rated_items", "read_results", "read_rows", "row_keys"]

OUTPUT_FIELDS = ("output", "system_output", "response", "actual_output")
SYSTEM_FIELDS = ("system_id", "system")


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read all rows of a JSONL, JSON, CSV or Parquet file; figures of a scored file come as ``geval`` from each.

    Raises
    ------
    DataError
        If the file cannot be read, is empty, or a row cannot be read; with the row's number, from 1.
    """
    rows = []
    for number, row in enumerate(readers.read_rows(Path(path)), start=1):
        if row.error is not None:
            raise DataError(f"{path}, row {number}: {row.error}")
        rows.append(_with_figures(row.fields))
    if not rows:
        raise DataError(f"{path} holds no rows")
    return rows


def _with_figures(row: dict[str, Any]) -> dict[str, Any]:
    """Gather a CSV row's ``metric.figure`` columns into one object, as the other formats have it."""
    if "geval" in row:
        return row
    plain: dict[str, Any] = {}
    scores: dict[str, dict[str, Any]] = {}
    for column, value in row.items():
        metric, _, figure = str(column).rpartition(".")
        if metric and figure in FIGURES and f"{metric}.score" in row:
            scores.setdefault(metric, {})[figure] = _decoded(value)
        else:
            plain[column] = value
    return {**plain, "geval": scores} if scores else row


def _decoded(value: Any) -> Any:
    """Read an object that stands in a CSV cell as JSON; everything else is as it is, an empty cell None."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return None if value == "" else value


def lookup(row: Mapping[str, Any], field: str) -> Any:
    """Find a field by name or by dotted path (``scores.coherence``); None if it is not there."""
    if field in row:
        return row[field]
    value: Any = row
    for part in field.split("."):
        value = _decoded(value)
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def number_at(row: Mapping[str, Any], field: str, where: str) -> float:
    """Read a number from a row: NaN where the field is absent, null or empty.

    Raises
    ------
    DataError
        If the field holds something that is not a finite number.
    """
    value = lookup(row, field)
    if value is None or value == "":
        return math.nan
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: {field} is not a number: {value!r}")
    return number


def row_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Identity of each row: its ``id`` where all rows have distinct ones, else its number from 1."""
    ids = [str(row["id"]) for row in rows if row.get("id") is not None]
    if len(ids) == len(rows) == len(set(ids)):
        return ids
    return [str(number) for number in range(1, len(rows) + 1)]


def read_results(
    path: str | Path,
    metric: str,
    *,
    human: str | None = None,
    group_by: str | None = None,
    system: str | None = None,
) -> list[ScoredItem]:
    """Read the scores of one metric from a result file of ``geval-local score``.

    Parameters
    ----------
    path : str or Path
        As written by ``geval-local score``, in any of its formats.
    metric : str
        Which metric.
    human : str, optional
        Field of the human rating, by name or dotted path. Single rows may lack it.
    group_by : str, optional
        Field of the document; without it every item is a group of its own.
    system : str, optional
        Field that names the writer; by default ``system_id`` or ``system`` where a row has one.

    Raises
    ------
    DataError
        If the file or one of its rows cannot be used, with the row's number from 1.
    """
    rows = read_rows(path)
    return rated_items(rows, figures_of(rows, metric, path), path, human=human, group_by=group_by, system=system)


def figures_of(rows: Sequence[Mapping[str, Any]], metric: str, path: str | Path) -> list[Mapping[str, Any]]:
    """Take the figures of one metric out of scored rows.

    Raises
    ------
    DataError
        If a row has none, with its number from 1.
    """
    found: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows, start=1):
        scores = row.get("geval")
        if not isinstance(scores, Mapping):
            raise DataError(f"{path}, row {number}: no scores", hint="Expected a result file of `geval-local score`.")
        if not isinstance(scores.get(metric), Mapping):
            raise DataError(
                f"{path}, row {number}: no score of the metric {metric!r}", hint=f"The row has: {', '.join(scores)}."
            )
        found.append(scores[metric])
    return found


def rated_items(
    rows: Sequence[Mapping[str, Any]],
    figures: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    human: str | None = None,
    group_by: str | None = None,
    system: str | None = None,
) -> list[ScoredItem]:
    """Join figures, one per row, to the rows' human ratings; the other arguments are those of `read_results`.

    Raises
    ------
    DataError
        If a row lacks the field to group by or holds a rating that is no number, or no row is rated.
    """
    keys = row_keys(rows)
    items = [
        _item(row, own, key, f"{path}, row {number}", human, group_by, system)
        for number, (row, own, key) in enumerate(zip(rows, figures, keys, strict=True), start=1)
    ]
    if human is not None and all(math.isnan(item.human) for item in items):
        raise DataError(f"{path}: no row has a human rating in {human!r}", hint=f"Columns: {', '.join(rows[0])}.")
    return items


def _item(
    row: Mapping[str, Any],
    figures: Mapping[str, Any],
    key: str,
    where: str,
    human: str | None,
    group_by: str | None,
    system: str | None,
) -> ScoredItem:
    group = key if group_by is None else lookup(row, group_by)
    if group is None:
        raise DataError(f"{where}: the field {group_by!r} to group by is missing")
    writers = (system,) if system is not None else SYSTEM_FIELDS
    writer = next((str(found) for name in writers if (found := lookup(row, name)) is not None), "")
    if system is not None and not writer:
        raise DataError(f"{where}: the field {system!r} is missing")
    output = next((row[name] for name in OUTPUT_FIELDS if isinstance(row.get(name), str)), None)
    value = number_at(figures, "score", where)
    return ScoredItem(
        group=str(group),
        system=writer,
        human=math.nan if human is None else number_at(row, human, where),
        predicted=value,
        probabilities=figures.get("probabilities") or None,
        length=None if output is None else word_count(output),
        key=key,
        error=(figures.get("error") or "unscored") if math.isnan(value) else None,
    )
