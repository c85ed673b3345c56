"""Rows and the numbers in them: JSON files in, and the result files of ``geval-local score`` as scored items."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geval_local.analysis.records import ScoredItem, word_count
from geval_local.errors import DataError

__all__ = ["lookup", "number_at", "read_results", "read_rows", "row_keys"]

OUTPUT_FIELDS = ("output", "system_output", "response", "actual_output")
SYSTEM_FIELDS = ("system_id", "system")


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read a JSON list of objects, or JSON lines.

    Raises
    ------
    DataError
        If the file cannot be read, is empty, or a row is not an object; with the row's number, from 1.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    rows: list[Any] = []
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path} is not valid JSON: {error}") from error
    else:
        # Not splitlines(): JSON strings may hold U+2028 and its like unescaped.
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise DataError(f"{path}, line {number} is not valid JSON: {error}") from error
    if not rows:
        raise DataError(f"{path} holds no rows")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(f"{path}, row {number}: expected an object, found {type(row).__name__}")
    return rows


def lookup(row: Mapping[str, Any], field: str) -> Any:
    """Find a field by name or by dotted path (``scores.coherence``); None if it is not there."""
    if field in row:
        return row[field]
    value: Any = row
    for part in field.split("."):
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
        JSONL rows (or a JSON list) with the input's columns and ``geval: {metric: {...}}``.
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
    items = [
        _item(row, key, f"{path}, row {number}", metric, human, group_by, system)
        for number, (row, key) in enumerate(zip(rows, row_keys(rows), strict=True), start=1)
    ]
    if human is not None and all(math.isnan(item.human) for item in items):
        raise DataError(f"{path}: no row has a human rating in {human!r}", hint=f"Columns: {', '.join(rows[0])}.")
    return items


def _item(
    row: Mapping[str, Any],
    key: str,
    where: str,
    metric: str,
    human: str | None,
    group_by: str | None,
    system: str | None,
) -> ScoredItem:
    scores = row.get("geval")
    if not isinstance(scores, Mapping):
        raise DataError(f"{where}: no scores", hint="Expected a result file of `geval-local score`.")
    if not isinstance(scores.get(metric), Mapping):
        raise DataError(f"{where}: no score of the metric {metric!r}", hint=f"The row has: {', '.join(scores)}.")
    figures = scores[metric]
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
        probabilities=figures.get("probabilities"),
        length=None if output is None else word_count(output),
        key=key,
        error=(figures.get("error") or "unscored") if math.isnan(value) else None,
    )
