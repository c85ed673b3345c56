"""Sample: one row to be scored, and the way from its columns to the texts of a metric's fields.

A row that cannot be read or scored keeps its place with the reason; good rows around it are not affected.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from geval_local.errors import ConfigurationError, DataError, UnscorableError
from geval_local.io.readers import RawRow, read_rows
from geval_local.io.seen import FirstSeen

__all__ = ["ALIASES", "Sample", "read_samples"]

#: Field of a metric -> other column names that are read as it, best first.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "source": ("document", "article", "context", "input"),
    "output": ("system_output", "response", "actual_output", "prediction"),
    "reference": ("expected_output", "ground_truth"),
    "fact": ("knowledge", "context"),
    "question": ("query", "input", "user_input"),
    "context": ("retrieval_context", "retrieved_contexts", "source", "document"),
}
#: No sane row comes near; without a limit one hostile row would exhaust the stack of whoever walks it.
MAX_LEVELS = 32
#: Types of values that hold no others.
_FLAT = frozenset({str, int, float, bool, type(None)})
_NOT_UNICODE = "holds text that is not valid Unicode (bytes that are not UTF-8, or half a surrogate pair)"
_JSON_TYPES = {bool: "a boolean", int: "a number", float: "a number", dict: "an object"}


@dataclass(frozen=True)
class Sample:
    """One row to be scored.

    Parameters
    ----------
    fields : mapping of str to object
        The input columns as read, in order.
    row : int
        The row's number in its file, from 1: the line for JSONL (blank lines are skipped but counted), the data row
        for JSON, CSV and Parquet; 0 when made in Python.
    origin : str
        The file's name, for messages.
    error : str, optional
        Why the row itself could not be read; `fields` then holds what could be kept.
    """

    fields: Mapping[str, Any]
    row: int = 0
    origin: str = ""
    error: str | None = None

    @property
    def where(self) -> str:
        """The sample's place, as messages begin: ``data.jsonl, row 3``."""
        place = [self.origin] if self.origin else []
        return ", ".join([*place, f"row {self.row}"] if self.row else place) or "the sample"

    def texts(self, metric_fields: Iterable[str]) -> dict[str, str]:
        """Find the text of every field of a metric.

        Each column serves one field: columns of exactly the fields' names first, then those names in another case,
        then `ALIASES`, in the order of the fields.

        Parameters
        ----------
        metric_fields : iterable of str
            Names of the metric's fields.

        Returns
        -------
        dict of str to str
            Field -> its text, unchanged; a list of texts is joined by blank lines.

        Raises
        ------
        UnscorableError
            If the row could not be read, or a field is missing, null, NaN, empty, not text, or not valid Unicode.
        """
        if self.error is not None:
            raise UnscorableError(self.error)
        wanted = tuple(metric_fields)
        columns = _resolve(wanted, tuple(self.fields))
        texts = {}
        for field in wanted:
            if field not in columns:
                raise self._missing(field, columns)
            column = columns[field]
            value = self.fields[column]
            if not (type(value) is str and value and not value.isspace() and _is_unicode(value)):
                name = f"the field {field!r}" + ("" if column == field else f" (column {column!r})")
                value = _text(value, f"{self.where}: {name}")
            texts[field] = value
        return texts

    def _missing(self, field: str, columns: Mapping[str, str]) -> UnscorableError:
        read_as = {column: name for name, column in columns.items() if column != name}
        there = [f"{name} (read as {read_as[name]})" if name in read_as else str(name) for name in self.fields]
        names = " or ".join((field, *ALIASES.get(field, ())))
        return UnscorableError(
            f"{self.where}: the field {field!r} is missing; the columns are: {', '.join(there) or 'none'}",
            hint=f"Give its text in a column of its own, named {names}.",
        )


def read_samples(path: str | os.PathLike[str], *, limit: int | None = None) -> Iterator[Sample]:
    """Read the rows of a file, one at a time and in order.

    Rows that cannot be read (malformed, not UTF-8, wrong number of cells, an ``id`` that an earlier row has) are
    yielded in their place with `Sample.error` set.

    Parameters
    ----------
    path : str or path
        A ``.jsonl``, ``.ndjson``, ``.json`` (a list of objects), ``.csv`` or ``.parquet`` file; all but Parquet also
        compressed, with ``.gz`` behind. All but ``.json`` are streamed.
    limit : int, optional
        Stop after this many rows, bad ones included.

    Returns
    -------
    iterator of Sample

    Raises
    ------
    DataError
        If there is no readable file of a known format (at once), or the file as a whole is broken or holds no rows
        (while iterating).
    ConfigurationError
        If `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise ConfigurationError(f"the limit of rows must be at least 1, not {limit}")
    path = Path(path)
    return _samples(islice(read_rows(path), limit), path)


def _samples(rows: Iterator[RawRow], path: Path) -> Iterator[Sample]:
    # Hashes instead of the ids themselves: memory must not grow with the length of the ids.
    first_seen = FirstSeen()
    row, origin, before = None, path.name, dict[str, Any]()
    for row in rows:
        fields, error = row.fields, row.error
        if _FLAT.issuperset(map(type, fields.values())):
            # The candidates of a document share its text: it is kept once, and not looked through again.
            texts: list[Any] = []
            for column, value in fields.items():
                if type(value) is str and value == before.get(column):
                    fields[column] = before[column]
                elif type(value) is str:
                    texts.append(value)
        else:
            fields = {column: value for column, value in fields.items() if not _is_deep(value)}
            texts = list(fields.values())
        if error is None and len(fields) < len(row.fields):
            error = f"a column is nested deeper than {MAX_LEVELS} levels; flatten it"
        elif error is None and not all(map(_is_unicode, chain(fields, texts))):
            error = f"{_NOT_UNICODE}; convert the file to UTF-8"
        key = _id_hash(fields.get("id"))
        first = row.number if key is None else first_seen.add(key, row.number)
        if first != row.number and error is None:
            error = f"duplicate id {fields['id']!r}, first seen in row {first}; give every row its own id"
        before = fields if error is None else {}
        sample = Sample(fields, row.number, origin)
        yield sample if error is None else replace(sample, error=f"{sample.where}: {error}")
    if row is None:
        raise DataError(f"{path} holds no rows", hint="Was the file written completely?")


@lru_cache(maxsize=256)
def _resolve(wanted: tuple[str, ...], columns: tuple[str, ...]) -> Mapping[str, str]:
    """Map fields to columns; a field without a column is left out."""
    found = {field: field for field in wanted if field in columns}
    own_name = {field: (field,) for field in wanted}
    for names, loosely in ((own_name, True), (ALIASES, False), (ALIASES, True)):
        for field in wanted:
            if field in found:
                continue
            free = [column for column in columns if column not in found.values()]
            column = next(filter(None, (_match(name, free, loosely) for name in names.get(field, ()))), None)
            if column is not None:
                found[field] = column
    return found


def _match(name: str, columns: list[str], loosely: bool) -> str | None:
    if not loosely:
        return name if name in columns else None
    same = [column for column in columns if str(column).strip().casefold() == name.casefold()]
    return same[0] if len(same) == 1 else None  # "Output" beside "OUTPUT" is anyone's guess


def _text(value: Any, what: str) -> str:
    """Check one field's value; `what` begins the message."""
    if isinstance(value, list | tuple):
        if not value:
            raise UnscorableError(f"{what} is an empty list", hint="Give at least one text.")
        return "\n\n".join(_text(item, f"{what}, item {index}") for index, item in enumerate(value, start=1))
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise UnscorableError(
            f"{what} is {'null' if value is None else 'NaN'}", hint="Fill it in, or leave the row out."
        )
    if not isinstance(value, str):
        found = _JSON_TYPES.get(type(value), f"of type {type(value).__name__}")
        raise UnscorableError(f"{what} is {found}, not text", hint="A field's value is a text or a list of texts.")
    if not value.strip():
        raise UnscorableError(
            f"{what} is empty" if not value else f"{what} is only white space", hint="Fill it in, or leave the row out."
        )
    if not _is_unicode(value):
        raise UnscorableError(f"{what} {_NOT_UNICODE}", hint="Convert the text to UTF-8.")
    return value


def _is_unicode(value: Any) -> bool:
    """Whether no text inside a value holds a lone surrogate, which is how bytes that are not UTF-8 come in."""
    if isinstance(value, str):
        try:
            return value.isascii() or bool(value.encode())
        except UnicodeEncodeError:
            return False
    return all(map(_is_unicode, _items(value)))


def _is_deep(value: Any, levels: int = MAX_LEVELS) -> bool:
    return levels == 0 or any(_is_deep(item, levels - 1) for item in _items(value))


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return chain(value, value.values())
    return value if isinstance(value, list | tuple) else ()


def _id_hash(value: Any) -> int | None:
    """Hash an id to 64 bits, never 0; None for what is no id (null, empty, NaN, an object)."""
    if not isinstance(value, (str, int, float)) or value == "" or value != value:
        return None
    text = f"{type(value).__name__}:{value}"
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1
