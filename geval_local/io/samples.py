"""Sample: one row to score, and the mapping from its columns to the texts of a metric's fields.

A row that cannot be read or scored keeps its position, with the reason; other rows are not affected.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from geval_local.conversation import OFFERED, READ_AS, messages_of
from geval_local.errors import Cause, DataError, ErrorCode, FieldError, UnscorableError, code_of
from geval_local.fields import (
    ABSENT,
    ALIASES,
    MAX_CHARACTERS,
    NOT_UNICODE,
    field_value,
    is_unicode,
    nearest,
    offered,
    paths_of,
    text_of,
    unwrapped,
)
from geval_local.io.places import File
from geval_local.io.rows import RawRow, read_rows, rows_and_failure
from geval_local.questions.pair import FIRST, SECOND
from geval_local.wording import say_once

#: Most levels of nesting, far beyond any real row; without a limit, a hostile row could exhaust the stack.
MAX_LEVELS = 32
#: Most alternative names of a field listed in a message.
ALIASES_NAMED = 5
#: If at least this share of the ids is not unique, ids name documents, and rows only have numbers.
DOCUMENT_IDS = 0.9
#: Column of results with a row's number in the input, if that is not its place among the results: of one of several
#: files, or of a row that became several samples.
INPUT_ROW = "row_in_file"
#: The field of the text that is rated; of pairs see `geval_local.questions.pair`.
OUTPUT = "output"
#: Types of scalar values.
_FLAT = frozenset({str, int, float, bool, type(None)})


@dataclass(frozen=True)
class Sample:
    """One row to score.

    Parameters
    ----------
    fields : mapping of str to object
        The input columns as read, in order.
    row : int
        The row's place in its file, from 1, without blank lines; 0 when made in Python.
    origin : str
        The file's name, for messages.
    error : Cause, optional
        Why the row could not be read; `fields` then contains the readable part.
    mapping : mapping of str to str
        Field of a metric -> its column, or the dotted path into one. Other fields are found by their names.
    """

    fields: Mapping[str, Any]
    row: int = 0
    origin: str = ""
    error: Cause | None = None
    mapping: Mapping[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The sample's location, at the start of messages: ``data.jsonl, row 3``."""
        place = [self.origin] if self.origin else []
        return ", ".join([*place, f"row {self.row}"] if self.row else place) or "the sample"

    def lost(self, why: str, code: ErrorCode | None = None) -> Sample:
        """Return the sample as one that cannot be scored; a `Cause` has its own code."""
        return replace(self, error=Cause(f"{self.where}: {why}", code or code_of(why)))

    def texts(self, metric_fields: Iterable[str]) -> dict[str, str]:
        """Find the text of every field of a metric.

        Each field is read from the column in `mapping`, else from a column found by `geval_local.fields.resolve`:
        its own name, then an alias.
        """
        if self.error is not None:
            raise UnscorableError(self.error, code_of(self.error))
        wanted = tuple(metric_fields)
        try:
            found = paths_of(wanted, self.fields, self.mapping)
        except FieldError as error:
            raise FieldError(error.message.replace("the sample", self.where, 1), error.code, hint=error.hint) from None
        texts = {}
        for name in wanted:
            column = found.get(name)
            if column is None:
                raise self._missing(name, {one: path for one, path in found.items() if one not in self.mapping})
            value = self._mapped(name, column) if name in self.mapping else self._value(column)
            if not (
                type(value) is str
                and 0 < len(value) <= MAX_CHARACTERS
                and value[0] not in "[{"
                and not value.isspace()
                and (value.isascii() or is_unicode(value))
            ):
                what = f"the field {name!r}" + ("" if column == name else f" (column {column!r})")
                value = _readable(value, f"{self.where}: {what}", column, is_one=name in (OUTPUT, FIRST, SECOND))
                value = text_of(value, f"{self.where}: {what}", alternatives=name == "reference")
            texts[name] = value
        return texts

    @cached_property
    def _offered(self) -> Mapping[str, Any]:
        return offered(self.fields, self.where)

    def _value(self, column: str) -> Any:
        return self.fields[column] if column in self.fields else self._offered[column]

    def _mapped(self, name: str, path: str) -> Any:
        value = field_value(self.fields, path, ABSENT)
        if value is ABSENT and path in READ_AS:
            value = self._offered.get(path, ABSENT)  # raises the error of the conversation
        if value is ABSENT:
            columns = list(map(str, self.fields))
            raise FieldError(
                f"{self.where}: the field {name!r} is mapped to {path!r}, which is not there; the columns are: "
                f"{', '.join(columns) or 'none'}{nearest(path, columns)}",
                ErrorCode.MISSING_FIELD,
                hint="Map it to a column, or to a dotted path into one, such as turns.0.content.",
            )
        return value

    def _missing(self, wanted: str, columns: Mapping[str, str]) -> FieldError:
        chat = messages_of(self.fields)
        if chat is not None and wanted in READ_AS:
            raise FieldError(
                f"{self.where}: the field {wanted!r} is missing: the conversation in {chat[0]!r} has none "
                f"({OFFERED[READ_AS[wanted]]})",
                ErrorCode.MISSING_FIELD,
                hint="Map it to a column.",
            )
        read_as = {column: field for field, column in columns.items() if column != field}
        there = [f"{name} (read as {read_as[name]})" if name in read_as else str(name) for name in self.fields]
        names = " or ".join((wanted, *ALIASES.get(wanted, ())[:ALIASES_NAMED]))
        return FieldError(
            f"{self.where}: the field {wanted!r} is missing; the columns are: {', '.join(there) or 'none'}",
            ErrorCode.MISSING_FIELD,
            hint=f"Map it to its column, or name the column {names}.",
        )


def _readable(value: Any, what: str, column: str, *, is_one: bool) -> Any:
    """Decode a cell that holds messages or a list of texts; of an output (`is_one`), a list is several."""
    held = unwrapped(value, texts=not is_one)
    if isinstance(value, str) and held is not value:
        say_once(f"cells of the column {column!r} hold messages or lists as code: they are read as what they are")
    if is_one and isinstance(held, list | tuple) and len(held) == 1:
        return unwrapped(held[0])
    texts = held if isinstance(held, list | tuple) and all(isinstance(one, str) for one in held) else ()
    if is_one and len(texts) > 1:
        raise FieldError(
            f"{what} is a list of {len(texts)} texts, and a judge rates one",
            ErrorCode.NOT_TEXT,
            hint=f"`system_columns={shlex.quote(column)}` scores each as a candidate; join them if they are one text.",
        )
    return held


def not_empty(found: Iterable[Sample], paths: Sequence[File]) -> Iterator[Sample]:
    """Yield the samples of files; raise an error if there is none."""
    sample = None
    for sample in found:
        yield sample
    if sample is None:
        told = f"{paths[0]} holds no rows" if len(paths) == 1 else f"none of the {len(paths)} files holds a row"
        raise DataError(told, hint="Was it written completely?")


def samples_of(
    rows: Iterable[RawRow],
    origin: str,
    mapping: Mapping[str, str],
    repeated: Mapping[int, int] | None = None,
    name_documents: Callable[[], bool] = lambda: False,
) -> Iterator[Sample]:
    """Make samples of rows, with the reason in invalid ones; if ids name documents, repeated ids are no error."""
    # Hashes instead of the ids themselves: memory must not grow with the length of the ids.
    first_seen: dict[int, int] = {}
    before = dict[str, Any]()
    for row in rows:
        fields, error = row.fields, row.error
        if _FLAT.issuperset(map(type, fields.values())):
            # The candidates of a document share its text: it is stored and checked once.
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
            error = Cause(f"a column is nested deeper than {MAX_LEVELS} levels; flatten it", ErrorCode.INVALID_ROW)
        elif error is None and not all(map(is_unicode, chain(fields, texts))):
            error = Cause(
                f"the row {NOT_UNICODE}; name the file's encoding (`encoding`), or convert the file to UTF-8",
                ErrorCode.NOT_UNICODE,
            )
        if repeated is not None:
            first = repeated.get(row.number, row.number)
        else:
            key = id_hash(fields.get("id"))
            first = row.number if key is None else first_seen.setdefault(key, row.number)
        if first != row.number and error is None and not name_documents():
            error = Cause(
                f"duplicate id {fields['id']!r}, first seen in row {first}; give every row its own id",
                ErrorCode.DUPLICATE_ID,
            )
        before = fields if error is None else {}
        sample = Sample(fields, row.number, origin, None, mapping)
        yield sample if error is None else sample.lost(error)


def ids_of_documents(path: File, *how: Any, **reading: Any) -> bool:
    """Read a whole file, see `read_rows`, to decide whether its ids name documents; see `name_documents`."""
    found = rows_and_failure(read_rows(path, *how, **reading))
    return name_documents(Counter(id_hash(row.fields.get("id")) for row in found))


def name_documents(rows_of: Mapping[int | None, int]) -> bool:
    """Decide whether ids name documents, given the number of rows with each id.

    A single repeated id is an error of its row. If nearly all ids repeat, they cannot be names of rows.
    """
    counts = [count for key, count in rows_of.items() if key is not None]
    shared = sum(count for count in counts if count > 1)
    return sum(counts) - len(counts) > 1 and shared >= DOCUMENT_IDS * sum(counts)


def _is_deep(value: Any, levels: int = MAX_LEVELS) -> bool:
    return levels == 0 or any(_is_deep(item, levels - 1) for item in _items(value))


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return chain(value, value.values())
    return value if isinstance(value, list | tuple) else ()


def id_hash(value: Any) -> int | None:
    """Hash an id to 64 bits; None for a value that is not an id (null, empty, NaN, an object)."""
    if not isinstance(value, (str, int, float)) or value == "" or value != value:
        return None
    text = f"{type(value).__name__}:{value}"
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
