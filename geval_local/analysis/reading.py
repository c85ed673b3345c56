"""Rows and the numbers in them: data files, and the result files of ``geval-local score`` as scored items."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from geval_local.analysis.records import ScoredItem, word_count
from geval_local.errors import DataError
from geval_local.fields import EVERY, SYSTEM_FIELDS, lookup, nearest, output_text
from geval_local.io.results import Row, decoded, numbered, read_result_rows, row_number
from geval_local.runs.directory import result_file

__all__ = [
    "check_ratings",
    "each_place",
    "figures_of",
    "missing_field",
    "number_at",
    "rated_items",
    "read_results",
    "read_rows",
    "row_keys",
]

logger = logging.getLogger("geval_local")


def read_rows(path: str | Path) -> Sequence[Row]:
    """Read all rows of a JSONL, JSON, CSV or Parquet file; figures of a scored file are always under ``geval``.

    A run directory stands for the results of its run.

    Raises
    ------
    DataError
        If the file cannot be read, is empty, or a row cannot be read; with the row's number.
    """
    return read_result_rows(result_file(path))


def number_at(row: Mapping[str, Any], field: str, where: str) -> float:
    """Read a number from a row: NaN if the field is absent, null or empty; the mean of a list of ratings.

    Raises
    ------
    DataError
        If the field holds something that is not a finite number, nor a list of them.
    """
    value = decoded(lookup(row, field))
    if isinstance(value, list | tuple):
        given = [_number(item) for item in value if item is not None and item != ""]
        number = math.nan if any(map(math.isnan, given)) else sum(given) / len(given) if given else None
        if number is not None and not math.isnan(number):
            _say_averaged(field)
    else:
        number = None if value is None or value == "" else _number(value)
    if number is None:
        return math.nan
    if not math.isfinite(number):
        inner = f"; its keys are: {', '.join(map(str, value))}" if isinstance(value, Mapping) and value else ""
        raise DataError(
            f"{where}: {field} is not a number: {_shown(value)}{inner}",
            hint="A rating is a number, or a list of numbers; a dotted path leads into a column: scores.coherence.",
        )
    return number


def each_place(rows: Sequence[Mapping[str, Any]], path: str) -> list[str]:
    """Spell out the last ``*`` of a path: ``ratings.*`` is ``ratings.0``, ``ratings.1``, ... as far as any row goes."""
    before, star, after = path.rpartition(f".{EVERY}")
    if not star:
        return [path]
    keys: dict[str, None] = {}
    for row in rows:
        held = decoded(lookup(row, before))
        if isinstance(held, Mapping):
            keys |= dict.fromkeys(map(str, held))
        elif isinstance(held, list | tuple):
            keys |= dict.fromkeys(map(str, range(len(held))))
    return [f"{before}.{key}{after}" for key in keys] or [path]


def _number(value: Any) -> float:
    """Read one number; NaN for an empty value."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@cache
def _say_averaged(field: str) -> None:
    logger.info("%s holds lists of ratings: the mean of each is taken", field)


def check_ratings(rows: Sequence[Mapping[str, Any]], field: str, path: str | Path) -> None:
    """Check that a field contains ratings, before any scoring.

    Raises
    ------
    DataError
        If a rating is no number, or no row has one.
    """
    ratings = [number_at(row, field, f"{path}, row {number}") for number, row in numbered(rows)]
    if all(map(math.isnan, ratings)):
        raise _no_ratings(rows, field, path)


def _no_ratings(rows: Sequence[Mapping[str, Any]], field: str, path: str | Path) -> DataError:
    columns = _columns(rows)
    return DataError(
        f"{path}: no row has a human rating in {field!r}{nearest(field, columns)}",
        hint=f"Columns: {', '.join(columns)}."
        + (" CSV results hold the input's columns with `score --columns all` only." if "geval" in columns else ""),
    )


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(name) for row in rows for name in row))


def row_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a key for each row: its ``id`` if all rows have distinct ones, else its number from 1."""
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
        As written by ``geval-local score``, in any of its formats, or the directory of a run.
    metric : str
        Name of the metric.
    human : str, optional
        Field of the human rating, by name or dotted path. Single rows may lack it.
    group_by : str, optional
        Field of the document; without it every item is a separate group.
    system : str, optional
        Field with the writer's name; by default ``system_id`` or ``system`` where a row has one.

    Raises
    ------
    DataError
        If the file or one of its rows cannot be used, with the row's number from 1.
    """
    rows = read_rows(path)
    return rated_items(rows, figures_of(rows, metric, path), path, human=human, group_by=group_by, system=system)


def figures_of(rows: Sequence[Mapping[str, Any]], metric: str, path: str | Path) -> list[Mapping[str, Any]]:
    """Return the figures of one metric from scored rows.

    Raises
    ------
    DataError
        If a row has none, with its number from 1.
    """
    found: list[Mapping[str, Any]] = []
    for number, row in numbered(rows):
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
    fields: Mapping[str, str] | None = None,
) -> list[ScoredItem]:
    """Join figures, one per row, to the rows' human ratings; other arguments as for `read_results`.

    `fields` maps ``output`` to its column if the name differs.

    Raises
    ------
    DataError
        If a row lacks the field to group by or holds a rating that is no number, or no row is rated.
    """
    keys = row_keys(rows)
    items = [
        _item(row, own, key, f"{path}, row {row_number(row, place)}", human, group_by, system, fields)
        for place, (row, own, key) in enumerate(zip(rows, figures, keys, strict=True), start=1)
    ]
    if human is not None and all(math.isnan(item.human) for item in items):
        raise _no_ratings(rows, human, path)
    return items


def missing_field(row: Mapping[str, Any], field: str, where: str, purpose: str = "") -> DataError:
    """Return the error for a missing field, with the row's columns."""
    columns = [str(name) for name in row if name != "geval"]
    return DataError(
        f"{where}: the field {field!r} {purpose}is missing{nearest(field, columns)}",
        hint=f"Columns: {', '.join(columns)}.",
    )


def _item(
    row: Mapping[str, Any],
    figures: Mapping[str, Any],
    key: str,
    where: str,
    human: str | None,
    group_by: str | None,
    system: str | None,
    fields: Mapping[str, str] | None,
) -> ScoredItem:
    group = key if group_by is None else lookup(row, group_by)
    if group is None:
        raise missing_field(row, group_by or "", where, "to group by ")
    writers = (system,) if system is not None else SYSTEM_FIELDS
    writer = next((str(found) for name in writers if (found := lookup(row, name)) is not None), "")
    if system is not None and not writer:
        raise missing_field(row, system, where)
    output = output_text(row, fields)
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
