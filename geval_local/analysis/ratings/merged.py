"""Rows that are one rating each: the rows of a text become one, which holds what every person said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from geval_local.analysis.ratings.values import ByRater
from geval_local.errors import DataError, UnscorableError, nearest
from geval_local.fields import SYSTEM_FIELDS, lookup
from geval_local.io.results import numbered
from geval_local.io.rows import Row
from geval_local.io.samples import Sample

#: Most people who are told apart; of more, each text has a first, a second, ... rater.
MOST_RATERS = 12


def merge_raters(
    rows: Sequence[Mapping[str, Any]],
    column: str,
    fields: Sequence[str],
    mapping: Mapping[str, str],
    path: object,
    system: str | None = None,
) -> list[Mapping[str, Any]]:
    """Merge rows that are equal in all fields of the metric; columns that differ in them become `ByRater`.

    `column` names the person of each row. A merged row has the place of its first row, whose scores it keeps. If a
    person rated a text twice, the second rating counts as another person's.
    """
    texts: dict[Any, list[tuple[str, Mapping[str, Any]]]] = {}
    people: dict[str, None] = {}
    for number, row in numbered(rows):
        who = lookup(row, column)
        if who in (None, ""):
            raise DataError(
                f"{path}, row {number}: no rater in {column!r}{nearest(column, map(str, row))}",
                hint="`rater_column` names the column with the person who rated the row.",
            )
        name = str(who).replace(".", "_")  # a dot would lead into it
        people[name] = None
        texts.setdefault(_key(row, number, fields, mapping, system), []).append((name, row))
    whole = [_merged(own, column, by_name=len(people) <= MOST_RATERS) for own in texts.values()]
    varying = {name for row in whole for name, value in row.items() if isinstance(value, ByRater)}
    for row, own in zip(whole, texts.values(), strict=True):
        for name in varying & row.keys():
            if not isinstance(row[name], ByRater):
                row[name] = ByRater(_named([(who, one.get(name)) for who, one in own], len(people) <= MOST_RATERS))
    return list(whole)


def _key(
    row: Mapping[str, Any], number: int, fields: Sequence[str], mapping: Mapping[str, str], system: str | None
) -> Any:
    names = SYSTEM_FIELDS if system is None else (system,)
    try:
        return *Sample(row, mapping=mapping).texts(fields).values(), *(str(lookup(row, name)) for name in names)
    except UnscorableError:
        return number


def _merged(own: Sequence[tuple[str, Mapping[str, Any]]], column: str, *, by_name: bool) -> Row:
    first = own[0][1]
    merged = Row({name: value for name, value in first.items() if name != column})
    merged.number = first.number if isinstance(first, Row) else 0
    for name in merged.keys() - {"geval"}:
        values = [(who, row.get(name)) for who, row in own]
        if any(value != values[0][1] for _, value in values):
            merged[name] = ByRater(_named(values, by_name))
    return merged


def _named(values: Sequence[tuple[str, Any]], by_name: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, (who, value) in enumerate(values, start=1):
        name = who if by_name else str(place)
        found[name if name not in found else f"{name} ({place})"] = value
    return found
