"""Ratings in rows of their own: the rows of a text become one, and those of a second file join the rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from geval_local.analysis.ratings.values import ByRater
from geval_local.errors import ConfigurationError, DataError, UnscorableError, nearest
from geval_local.fields import SYSTEM_FIELDS, counted, field_value
from geval_local.io.results import ResultRows, numbered, read_result_rows
from geval_local.io.rows import Row
from geval_local.io.samples import Sample
from geval_local.options import RatingOptions
from geval_local.runs.addresses import local_results
from geval_local.runs.directory import result_file
from geval_local.wording import say_once

#: Most people who are told apart; of more, each text has a first, a second, ... rater.
MOST_RATERS = 12


def rated_rows(
    rows: ResultRows,
    people: RatingOptions,
    fields: Sequence[str],
    mapping: Mapping[str, str],
    path: object,
    system: str | None = None,
) -> ResultRows:
    """Add the ratings of a second file to rows, and merge rows that are one rating each.

    Rows with the same texts in all `fields` become one, at the place of the first, whose scores it keeps; columns that
    differ in them become `ByRater`. `rater_column` names the person of each row, of the second file if there is one. If
    a person rated a text twice, the second rating counts as another person's.
    """
    if people.ratings is not None or people.on is not None:
        return _joined(rows, people, path)
    if people.rater_column is None:
        return rows

    def text(number: int, row: Mapping[str, Any]) -> Any:
        names = SYSTEM_FIELDS if system is None else (system,)
        try:
            texts = Sample(row, mapping=mapping).texts(fields).values()
            return *texts, *(str(field_value(row, name)) for name in names)
        except UnscorableError:
            return number

    return ResultRows.of(_merge(rows, people.rater_column, path, text), str(path))


def _joined(rows: ResultRows, people: RatingOptions, path: object) -> ResultRows:
    """Add the columns of a second file to the row with the same key."""
    if people.ratings is None or people.on is None:
        raise ConfigurationError(
            "a second file with ratings needs both `ratings=FILE` and `on=COLUMN`, the key that both files share"
        )
    own, _, other = people.on.partition("=")
    filled: Sequence[Mapping[str, Any]] = read_result_rows(result_file(local_results(str(people.ratings))))
    if people.rater_column is not None:
        filled = _merge(filled, people.rater_column, people.ratings, lambda number, row: _key(row, other or own))
    ratings = _by_key(filled, other or own, people.ratings)
    joined, numbers, columns = list[Row](), list[int](), set[str]()
    for key, (number, row) in _by_key(rows, own, path).items():
        place, found = ratings.pop(key, (0, {}))
        for name in found.keys() & row.keys() - {other or own}:
            if row[name] not in (None, "", found[name]) and str(row[name]) != str(found[name]):
                raise DataError(
                    f"{path}, row {number}: {name} is {row[name]!r}, and {found[name]!r} in {people.ratings}",
                    hint="Rename or remove the column in the file with the ratings.",
                )
        made = Row({**row, **{name: value for name, value in found.items() if name != "geval"}, own: row.get(own)})
        made.number = number
        joined.append(made)
        numbers.append(place)
        columns |= found.keys() - row.keys()
    matched = sum(map(bool, numbers))
    if not matched:
        raise DataError(f"{people.ratings}: no row has a key {other or own!r} of a row of {path}")
    more = f"; {counted(len(ratings), 'key')} of it, such as {next(iter(ratings))}, are of no row" if ratings else ""
    say_once(f"{people.ratings} rates {matched} of {counted(len(rows), 'row')} of {path} by {people.on}{more}")
    rated = ResultRows.of(joined, str(path))
    rated.second = people.ratings, frozenset(columns), numbers
    return rated


def _key(row: Mapping[str, Any], column: str) -> str:
    value = field_value(row, column)
    return "" if value is None else str(value).strip()


def _by_key(rows: Sequence[Mapping[str, Any]], column: str, path: object) -> dict[str, tuple[int, Mapping[str, Any]]]:
    """List rows with their numbers by a key, which every row has to itself."""
    found: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for number, row in numbered(rows):
        key = _key(row, column)
        if not key:
            raise DataError(
                f"{path}, row {number}: no key in {column!r}{nearest(column, map(str, row))}",
                hint="`on` names the column that both files share, as `on=id`; id=trace if it has two names.",
            )
        if key in found:
            raise DataError(
                f"{path}, row {number}: the key {key!r} in {column!r} is also that of row {found[key][0]}",
                hint="Name a column whose values are distinct; `rater_column` names the person, where the file with "
                "the ratings has a row for each.",
            )
        found[key] = number, row
    return found


def _merge(
    rows: Sequence[Mapping[str, Any]], column: str, path: object, text: Callable[[int, Mapping[str, Any]], Any]
) -> list[Mapping[str, Any]]:
    texts: dict[Any, list[tuple[str, Mapping[str, Any]]]] = {}
    people: dict[str, None] = {}
    for number, row in numbered(rows):
        who = field_value(row, column)
        if who in (None, ""):
            raise DataError(
                f"{path}, row {number}: no rater in {column!r}{nearest(column, map(str, row))}",
                hint="`rater_column` names the column with the person who rated the row.",
            )
        name = str(who).replace(".", "_")  # a dot would lead into it
        people[name] = None
        texts.setdefault(text(number, row), []).append((name, row))
    whole = [_merged(own, column, by_name=len(people) <= MOST_RATERS) for own in texts.values()]
    varying = {name for row in whole for name, value in row.items() if isinstance(value, ByRater)}
    for row, own in zip(whole, texts.values(), strict=True):
        for name in varying & row.keys():
            if not isinstance(row[name], ByRater):
                row[name] = ByRater(_named([(who, one.get(name)) for who, one in own], len(people) <= MOST_RATERS))
    return list(whole)


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
