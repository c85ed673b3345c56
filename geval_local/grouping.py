"""Grouping of rows into documents: by the user's field, else by ``doc_id``, else by equal sources.

Rows of one document are dependent: an interval that treats them as independent is too short. Rows therefore count as
separate documents only if nothing suggests otherwise, or if the user says so.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from geval_local.fields import ALIASES, lookup

#: ``group_by="row"`` makes every row a separate document, unless there is a column of that name.
EVERY_ROW = "row"
#: Number of hashes kept to count documents over parts of the rows.
SKETCH = 256
DOCUMENT_FIELDS = ("doc_id", "document_id", "dialogue_id", "dialog_id", "conversation_id")
SOURCE_FIELDS = ("source", *ALIASES["source"])
#: This field names documents if its values repeat; otherwise it names rows.
ID_FIELD = "id"
#: Most distinct ids per row if ids name documents: a few documents may have one row, all others have more.
MOST_IDS = 0.55


@dataclass(frozen=True)
class DocumentCounts:
    """Counts that decide which field groups rows into documents; they add up over parts of the rows."""

    #: The field that the user named.
    given: str | None = None
    #: The field in use, if it groups anything.
    candidate: str | None = None
    #: Number of rows, of rows without the field, and of documents; a document in two parts of the rows counts twice.
    rows: int = 0
    missing: int = 0
    distinct: int = 0
    #: The smallest hashes of documents, ascending, at most `SKETCH`. They give the number of documents in all parts (k
    #: minimum values, Bar-Yossef et al. 2002).
    smallest: tuple[int, ...] = ()

    def __add__(self, other: DocumentCounts) -> DocumentCounts:
        """Add the counts of other rows; if their fields differ, no field groups the rows."""
        if not self.rows or not other.rows:
            return other if not self.rows else self
        candidate = self.candidate if self.candidate == other.candidate else None
        counts = (self.rows + other.rows, self.missing + other.missing, self.distinct + other.distinct)
        smallest = tuple(sorted({*self.smallest, *other.smallest})[:SKETCH])
        return DocumentCounts(self.given, candidate, *counts, smallest)

    @property
    def documents(self) -> int:
        """Number of distinct documents: exact below `SKETCH`, else an estimate within about 6 %."""
        if len(self.smallest) < SKETCH:
            return len(self.smallest)
        return min(self.distinct, round((SKETCH - 1) * 2**64 / self.smallest[-1]))

    @property
    def field(self) -> str | None:
        """The field that groups the rows; None if every row is a separate document."""
        if self.candidate is None or self.given == self.candidate:
            return self.candidate
        if self.candidate == ID_FIELD and self.distinct > MOST_IDS * self.rows:
            return None
        return None if self.missing or not 1 < self.distinct < self.rows else self.candidate

    @property
    def told(self) -> str:
        """Description of the grouping, to end a sentence: ``rows with the same doc_id are one document``."""
        if self.given is not None:
            if self.given != EVERY_ROW and not self.rows:
                return f"rows with the same {self.given} are one document"
            if self.field is None:
                return "every row is a separate document, as `group_by=row` says"
            alone = f", and each of {self.missing} rows without it is its own" if self.missing else ""
            return f"rows with the same {self.field} are one document{alone}"
        if self.field is not None:
            return f"rows with the same {self.field} are treated as one document (a guess; `group_by=FIELD` changes it)"
        if self.candidate is not None and not self.missing and self.distinct == 1 < self.rows:
            why = f"all rows have the same {self.candidate}"
        elif self.candidate not in (None, ID_FIELD) and not self.missing:
            why = f"no two rows have the same {self.candidate}"
        else:
            why = "no column names a document"
        return f"every row is treated as a separate document, since {why} (a guess; `group_by=FIELD` changes it)"


class Documents:
    """Collects rows one by one and determines which field groups them; 8 bytes per row."""

    def __init__(self, group_by: str | None = None) -> None:
        self._given = group_by
        self._candidate: str | None = None
        self._codes = array("q")
        self._missing = 0

    def add(self, row: Mapping[str, Any]) -> int:
        """Add a row; return the number of its document."""
        if not self._codes:
            self._candidate = self._first(row)
        value = None if self._candidate is None else lookup(row, self._candidate)
        self._missing += value is None
        text = f"\x00row {len(self._codes)}" if value is None else str(value)
        code = int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True)
        self._codes.append(code)
        return code

    @property
    def counts(self) -> DocumentCounts:
        """Counts of the documents so far."""
        codes = np.unique(np.asarray(self._codes, dtype=np.int64)).view(np.uint64)
        smallest = tuple(map(int, np.sort(codes)[:SKETCH]))
        return DocumentCounts(self._given, self._candidate, len(self._codes), self._missing, int(codes.size), smallest)

    def _first(self, row: Mapping[str, Any]) -> str | None:
        if self._given is not None:
            return None if self._given == EVERY_ROW and lookup(row, EVERY_ROW) is None else self._given
        return document_field([row], None) or (ID_FIELD if row.get(ID_FIELD) not in (None, "") else None)


def documents_of(rows: Iterable[Mapping[str, Any]], group_by: str | None) -> tuple[str | None, str]:
    """Find the field that groups rows into documents, with a description of the grouping."""
    documents = Documents(group_by)
    for row in rows:
        documents.add(row)
    counts = documents.counts
    return counts.field, counts.told


def document_field(rows: Iterable[Mapping[str, Any]], group_by: str | None) -> str | None:
    """Find the field of the document for comparisons between rows: the given one, or the first known one.

    Unlike `documents_of` it does not require a second document: all rows of a file may be for one.
    """
    if group_by is not None:
        return group_by
    names = (*DOCUMENT_FIELDS, *SOURCE_FIELDS)
    return next((name for row in rows for name in names if row.get(name) not in (None, "")), None)
