"""Files in which one record holds several outputs, or one output several records: made one row for each output.

A path leads from a record to its outputs, in steps between dots:

- ``name`` enters a column, or a key of an object; a number counts the items of a list, from 0;
- ``*`` takes every item of a list, or every value of an object;
- ``{name}`` does the same, and keeps the item's key (in a list its place, from 1) in a column ``name``.

An output takes over what stands beside its path on the way: ``gen.{system}`` gives every output the columns of its
record, except ``gen``, and the column ``system``. What it holds itself comes first. Where a file is one JSON object,
the path begins at that object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import EVERY, lookup, nearest
from geval_local.files import check_is_file, open_text
from geval_local.io.results import Row, decoded, numbered, read_result_rows

__all__ = ["expand_rows", "merge_rows", "read_records"]

_NAMED = re.compile(r"\{(\w+)\}")


def read_records(path: str | Path) -> Sequence[Row]:
    """Read the rows of a file; a file that is one JSON object is one record.

    Raises
    ------
    DataError
        If the file cannot be read, is empty, or a row cannot be read.
    """
    path = Path(path)
    if path.name.lower().removesuffix(".gz").endswith(".json"):
        check_is_file(path)
        with open_text(path, newline="") as file:
            text = file.read()
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError):
            whole = None  # said below, with the place
        if isinstance(whole, dict):
            return [Row(whole)]
    return read_result_rows(path)


def expand_rows(records: Sequence[Mapping[str, Any]], path: str, where: str | Path) -> list[Row]:
    """Make one row of every output that a path leads to.

    Parameters
    ----------
    records : sequence of mapping
        The file's rows.
    path : str
        See the module.
    where : str or Path
        The file, for messages.

    Raises
    ------
    ConfigurationError
        If the path has an empty step, or names one column twice.
    DataError
        If a record has no such place, or there is neither an object nor a text; with the record's number.
    """
    steps = path.split(".")
    named = [found[1] for step in steps if (found := _NAMED.fullmatch(step))]
    if not all(steps) or len(set(named)) < len(named):
        raise ConfigurationError(
            f"--rows {path!r} is no path to rows",
            hint="Steps between dots: name, 0, *, {column}; such as gen.{system}.",
        )
    rows: list[Row] = []
    for number, record in numbered(records):
        for columns in _outputs(dict(record), steps, {}, f"{where}, row {number}"):
            row = Row(columns)
            row.number = len(rows) + 1
            rows.append(row)
    if not rows:
        raise DataError(f"{where}: the path {path!r} leads to no rows")
    return rows


def merge_rows(rows: Sequence[Mapping[str, Any]], fields: Sequence[str], where: str | Path) -> list[Row]:
    """Make one row of all rows that are alike in some fields, such as one row for each annotator of one output.

    Columns that differ within any of them become lists, in all rows.

    Parameters
    ----------
    rows : sequence of mapping
        The rows.
    fields : sequence of str
        What identifies an output: names or paths.
    where : str or Path
        The file, for messages.

    Raises
    ------
    DataError
        If a row lacks one of the fields, with its number.
    """
    together: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for number, row in numbered(rows):
        key = [lookup(row, field) for field in fields]
        if None in key:
            missing = fields[key.index(None)]
            raise DataError(
                f"{where}, row {number}: the field {missing!r} to merge by is missing{nearest(missing, map(str, row))}",
                hint=f"Columns: {', '.join(map(str, row))}.",
            )
        together.setdefault(tuple(map(str, key)), []).append(row)
    columns = dict.fromkeys(str(name) for row in rows for name in row)
    varying = {
        name for name in columns for own in together.values() if any(row.get(name) != own[0].get(name) for row in own)
    }
    merged = []
    for number, own in enumerate(together.values(), start=1):
        row = Row({name: [one.get(name) for one in own] if name in varying else own[0].get(name) for name in columns})
        row.number = number
        merged.append(row)
    return merged


def _outputs(value: Any, steps: Sequence[str], columns: Mapping[str, Any], where: str) -> Iterator[dict[str, Any]]:
    value = decoded(value)
    if not steps:
        if not isinstance(value, Mapping | str):
            raise DataError(
                f"{where} is {json.dumps(value, ensure_ascii=False, default=str):.60}, neither an object nor a text",
                hint="A path leads to objects, one for each output, or to the outputs themselves.",
            )
        yield {**columns, **({"output": value} if isinstance(value, str) else value)}
        return
    step, rest = steps[0], steps[1:]
    named = _NAMED.fullmatch(step)
    if isinstance(value, Mapping) and step in value:
        beside = {name: own for name, own in value.items() if name != step}
        yield from _outputs(value[step], rest, {**columns, **beside}, f"{where}, {step}")
    elif (step == EVERY or named) and isinstance(value, Mapping | list):
        items = value.items() if isinstance(value, Mapping) else enumerate(value, start=1)
        for key, own in items:
            name = {named[1]: str(key)} if named else {}
            yield from _outputs(own, rest, {**columns, **name}, f"{where}, {key}")
    elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        yield from _outputs(value[int(step)], rest, columns, f"{where}, {step}")
    else:
        held = f"its keys are: {', '.join(map(str, value))}" if isinstance(value, Mapping) else "it is no object"
        raise DataError(f"{where}: there is no {step!r} for --rows; {held:.300}")
