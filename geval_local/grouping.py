"""Documents: which rows count as one, by what the metric reads about the item; the only rule of it.

Rows of one document are dependent: an interval that treats them as independent is too short. Rows that agree in the
fields that the metric reads about the item (source, question, context, conversation; not output, reference, or what
differs between systems) are one document, whatever their columns are called. The user's `group_by` overrides. A column
that names documents counts if it joins rows further, such as the turns of a conversation.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geval_local.conversation import CHATS, READ_AS, TURN
from geval_local.errors import UnscorableError
from geval_local.fields import ALIASES, SYSTEM_FIELDS, decoded_json, field_value, output_text, paths_of, text_of

#: ``group_by="row"`` makes every row a separate document, unless there is a column of that name.
EVERY_ROW = "row"
_CHATS = frozenset(CHATS)
#: Most different rows whose columns are remembered.
_MOST_PATHS = 1000
#: Most texts whose hashes are kept, and characters from which one is kept alone.
_MOST_CODES, _LONG = 64, 10_000
#: Columns that name documents, best first.
DOCUMENT_FIELDS = ("doc_id", "document_id", "dialogue_id", "dialog_id", "conversation_id")
#: This column names documents if its values repeat; otherwise it names rows.
ID_FIELD = "id"
#: Most distinct ids per row if ids name documents: a few documents may have one row, all others have more.
MOST_IDS = 0.55
#: Fields of a metric that say nothing about the item, under any name.
_OF_ANSWERS = frozenset(
    {"output", *ALIASES["output"], "output_a", "output_b", "reference", *ALIASES["reference"], "system_prompt"}
)
#: If a metric reads nothing about the item, the columns that other metrics would read.
_USUAL = ("source", "question", "context", "conversation")
#: What a conversation offers that is all of its turns, or those before the answer.
_WHOLE_CHATS = ("conversation", "history")
_CHANGE = "`group_by=COLUMN` changes it"
_MERGE = "`rater_column=COLUMN` of the analyses merges their ratings"
#: From this share of rows that repeat others on, they are thought to be ratings of the same texts.
MOST_REPEATS = 0.25

Codes = NDArray[np.uint64]


def answer_field(fields: Sequence[str]) -> str:
    """Return the field that a metric judges: ``output``, else an alias of it, else the last one of the form."""
    return next((name for name in ("output", *ALIASES["output"]) if name in fields), fields[-1] if fields else "output")


def item_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the fields that a metric reads about the item."""
    return tuple(name for name in fields if name not in _OF_ANSWERS and name != answer_field(fields))


@dataclass(frozen=True)
class DocumentRule:
    """What decides which rows are one document."""

    #: The column that the user named, or `EVERY_ROW`.
    group_by: str | None = None
    #: All fields that the metrics read, and those about the item.
    fields: tuple[str, ...] = ()
    item: tuple[str, ...] = ()
    #: The field that the metrics judge, if it is one.
    answer: str = ""
    #: Field of a metric -> its column, as the user mapped it.
    mapping: Mapping[str, str] = field(default_factory=dict)
    #: Fields or columns that an earlier run used; none if every row was a document. None if nothing is known.
    used: tuple[str, ...] | None = None
    #: Columns of a row and a name -> its path; rows with a conversation are read one by one.
    _paths: dict[tuple[tuple[str, ...], str], str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        metrics: Iterable[Sequence[str]] = (),
        *,
        mapping: Mapping[str, str] | None = None,
        group_by: str | None = None,
        used: Sequence[str] | None = None,
    ) -> DocumentRule:
        """Make the rule for metrics, given by their fields."""
        listed = [tuple(fields) for fields in metrics]
        names = dict.fromkeys(name for fields in listed for name in fields)
        item = dict.fromkeys(name for fields in listed for name in item_fields(fields))
        known = None if used is None else tuple(used)
        answers = {answer_field(fields) for fields in listed}
        return cls(
            group_by, tuple(names), tuple(item), answers.pop() if len(answers) == 1 else "", dict(mapping or {}), known
        )

    def path(self, row: Mapping[str, Any], name: str) -> str:
        """Return the column from which a name is read, or the path into one."""
        if name == self.group_by and field_value(row, name) is not None:
            return name
        key = tuple(row), name
        if key not in self._paths:
            if not _CHATS.isdisjoint(row) or len(self._paths) > _MOST_PATHS:
                return self._found(row, name)
            self._paths[key] = self._found(row, name)
        return self._paths[key]

    def _found(self, row: Mapping[str, Any], name: str) -> str:
        with suppress(UnscorableError):
            if name in self.fields:
                return paths_of(self.fields, row, self.mapping).get(name, name)
            if name in _USUAL or not self.fields:
                return self._usual(row).get(name) or paths_of((name,), row, self.mapping).get(name, name)
        return name

    def _usual(self, row: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the columns of the usual fields, without those that a metric reads otherwise."""
        with suppress(UnscorableError):
            read = {*paths_of(self.fields or ("output",), row, self.mapping).values(), *self.mapping.values()}
            rest = {name: value for name, value in row.items() if name not in read}
            return {name: path for name, path in paths_of(_USUAL, rest, {}).items() if path in rest}
        return {}

    def value(self, row: Mapping[str, Any], name: str) -> Any:
        """Read a name's value; None if there is none."""
        return field_value(row, self.path(row, name))

    def text(self, row: Mapping[str, Any], name: str) -> str:
        """Return the text of a field, as it is scored; empty if there is none."""
        return _text(self.value(row, name))

    @property
    def judged(self) -> str:
        """The field whose text is judged by itself, as none of a pair is; empty if there is none."""
        return "" if "output_a" in self.fields else self.answer

    def output(self, row: Mapping[str, Any]) -> str | None:
        """Return the text of a row that is judged: the metric's, else that of the usual columns; None if none is."""
        return (self.text(row, self.judged) if self.judged else "") or output_text(row, self.mapping)

    def shown(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str | None, str | None]:
        """Name the field that is judged, and the one about the item that differs most between rows; None without.

        Of a chat that is judged as a whole these are its last answer, and what it answers. A field that documents do
        not go by, such as the passages that each system retrieved, is not shown.
        """
        some = rows[:: max(1, len(rows) // 200)]
        is_chat = READ_AS.get(self.answer) in _WHOLE_CHATS and any(self.text(row, "output") for row in some)
        answer = "output" if is_chat else self.answer or "output"
        used = [name for name in self.used or () if name not in (answer, self.answer)]
        item = [name for name in self.item if name in used] or self.item or ("question", *_USUAL)
        kinds = {name: len({text for row in some if (text := self.text(row, name))}) for name in (*item, *used)}
        asked = max(kinds, key=lambda name: (kinds[name] > 0, name in item, kinds[name]), default=None)
        is_told = any(self.text(row, answer) for row in some)
        return answer if is_told else None, asked if asked is not None and kinds[asked] else None

    def names(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names in use, judging by one row: what the user or an earlier run says, else the item's fields."""
        if self.group_by is not None:
            return () if self.group_by == EVERY_ROW and field_value(row, EVERY_ROW) is None else (self.group_by,)
        if self.used is not None or self.item:
            return self.item if self.used is None else self.used
        return tuple(name for name in _USUAL if name in self._usual(row)) or self.fields or ("output",)

    def named(self, row: Mapping[str, Any]) -> str | None:
        """Return the column that names the document."""
        return next((name for name in (*DOCUMENT_FIELDS, ID_FIELD) if row.get(name) not in (None, "")), None)

    def document(self, row: Mapping[str, Any]) -> str | None:
        """Return the document of a row as far as the row alone shows it; None if it is a document of its own."""
        names = self.names(row)
        if self.group_by is None and (named := self.named(row)) is not None:
            names = (named,)
        texts = [self.text(row, name) for name in names]
        return "\n".join(texts) if any(texts) else None


def _text(value: Any) -> str:
    """Write a value as the text that is compared; empty if there is none."""
    if type(value) is str and not value.startswith(("{", "[")):
        return value
    if value is None or value == "" or value != value:
        return ""
    value = decoded_json(value)
    with suppress(UnscorableError):
        return text_of(value, "the field")
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


@dataclass(frozen=True)
class DocumentCounts:
    """Counts of rows and documents, and what decided them."""

    #: The column that the user named.
    given: str | None = None
    #: Fields or columns in which the rows of a document agree, as the manifest records them.
    used: tuple[str, ...] = ()
    #: The same by the names of the columns.
    columns: tuple[str, ...] = ()
    #: Number of rows, of rows without any of the values, and of documents.
    rows: int = 0
    missing: int = 0
    distinct: int = 0
    #: Whether a single document counts, such as the one conversation of a file.
    may_be_one: bool = False
    #: Why a column that names documents was not taken.
    note: str = ""
    #: Rows whose texts, and system, are those of an earlier row; whether all rows of a document have the same texts.
    repeats: int = 0
    is_of_texts: bool = False

    @property
    def is_grouped(self) -> bool:
        """Whether rows share documents; otherwise every row is one."""
        if self.given is not None or not self.used:
            return bool(self.used)
        return self.distinct < self.rows and (self.may_be_one or self.distinct > 1)

    @property
    def is_about_items(self) -> bool:
        """Whether documents are named by what a row is about, and not by its answer for want of anything else."""
        return bool(self.used) and not _OF_ANSWERS.issuperset(self.used)

    @property
    def noun(self) -> str:
        """What the documents are, in the plural: ``questions``, ``conversations``."""
        name = re.sub(r"(_id|doc)$", "", self.columns[0]) if self.is_grouped and len(self.columns) == 1 else ""
        if not re.fullmatch(r"[a-z]{3,}", name) or name == ID_FIELD:
            return "documents" if self.is_grouped else "rows"
        return name if name.endswith("s") else f"{name[:-1]}ies" if re.search(r"[^aeiou]y$", name) else f"{name}s"

    @property
    def told(self) -> str:
        """Say which rows are one document: ``rows with the same question count as one document``."""
        same = " and ".join(self.columns)
        if self.given is not None:
            if not self.used:
                return "every row counts as a document, as `group_by=row` says"
            alone = f", and so does each row without it ({self.missing})" if self.missing else ""
            return f"rows with the same {same} count as one document{alone}"
        note = f"; {self.note}" if self.note else ""
        if self.repeats >= MOST_REPEATS * self.rows > 0:
            note += f"; {self.repeats} rows repeat the texts of others: if several people rated them, {_MERGE}"
        if self.is_grouped:
            return f"rows with the same {same} count as one document; {_CHANGE}{note}"
        why = ""
        if self.used and self.distinct == 1 < self.rows:
            why = f", since all have the same {same}"
        elif self.used and not self.missing:
            why = f", since no two have the same {same}"
        return f"every row counts as a document{why}; {_CHANGE}{note}"


class _Column:
    """The values of one name in all rows, as hashes; 8 bytes per row."""

    def __init__(self, rows: int, *, named: bool) -> None:
        self.hashes = array("Q", [0]) * rows
        self.texts: dict[int, str] | None = {} if named else None
        # Those of the last texts: rows of one document often follow each other, and systems repeat.
        self._codes: dict[str, int] = {}

    def add(self, value: Any) -> int:
        """Add a row's value; 0 if there is none."""
        text = _text(value)
        if not text:
            self.hashes.append(0)
            return 0
        code = self._codes.get(text, 0)
        if not code:
            digest = blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
            code = int.from_bytes(digest, "big") or 1
            if len(self._codes) >= _MOST_CODES or len(text) > _LONG:
                self._codes.clear()
            self._codes[text] = code
        self.hashes.append(code)
        if self.texts is not None:
            self.texts.setdefault(code, text)
        return code

    @property
    def codes(self) -> Codes:
        """The hashes so far."""
        return np.array(self.hashes, dtype=np.uint64)


class Documents:
    """Collects rows one by one, and decides at the end which of them are one document.

    `named` keeps the texts that name the documents, for `names`.
    """

    def __init__(self, rule: DocumentRule | None = None, *, named: bool = False) -> None:
        self._rule = rule or DocumentRule()
        self._named = named
        self._columns: dict[str, _Column] = {}
        self._shown: dict[str, str] = {}
        self._by: str | None = None
        self._systems: _Column | None = None
        self._answer: _Column | None = None
        self._rows = 0
        # The column's numbers, one whenever what the rows are about changes; None if it holds anything else.
        self._order: array[int] | None = array("q")
        self._about: tuple[int, ...] = ()
        self._settled: tuple[int, DocumentCounts, Codes] | None = None

    @classmethod
    def of(
        cls, rule: DocumentRule, rows: Iterable[Mapping[str, Any]], systems: Iterable[Any] | None = None
    ) -> Documents:
        """Collect rows, whose `systems` are known or in the usual columns."""
        found = cls(rule, named=True)
        writers: Iterator[Any] = (None for _ in count()) if systems is None else iter(systems)
        for row, system in zip(rows, writers, strict=False):
            found.add(row, system)
        return found

    def add(self, row: Mapping[str, Any], system: Any = None) -> int:
        """Add a row; return its place, from 0."""
        if not self._columns and row:  # rows that cannot be read may come first
            self._begin(row)
        for name, column in self._columns.items():
            column.add(self._rule.value(row, name))
        if self._systems is not None:
            known = (row.get(name) for name in SYSTEM_FIELDS) if system is None else iter((system,))
            self._systems.add(next((str(one) for one in known if one not in (None, "")), None))
        if self._answer is not None:
            self._answer.add(self._rule.value(row, self._rule.judged))
        if self._by is not None and self._order is not None:
            about = tuple(column.hashes[-1] for name, column in self._columns.items() if name != self._by)
            if about != self._about:
                self._about = about
                try:
                    self._order.append(int(str(row.get(self._by))))
                except (ValueError, OverflowError):
                    self._order = None
        self._rows += 1
        return self._rows - 1

    def _begin(self, row: Mapping[str, Any]) -> None:
        names = self._rule.names(row)
        if self._rule.group_by is None and self._rule.used is None:
            self._by = self._rule.named(row)
        if TURN in row:  # a single conversation may have a number
            self._order = None
        self._systems = _Column(self._rows, named=False)
        self._answer = _Column(self._rows, named=False) if self._rule.judged else None
        for name in dict.fromkeys((*names, *filter(None, (self._by,)))):
            self._columns[name] = _Column(self._rows, named=self._named)
        self._shown = {
            name: self._rule.path(row, name) for name in (*self._columns, *filter(None, (self._rule.judged,)))
        }

    @property
    def counts(self) -> DocumentCounts:
        """What decides, with the counts so far."""
        return self._settle()[0]

    @property
    def codes(self) -> NDArray[np.int64]:
        """A number per row, equal for the rows of one document."""
        return self._settle()[1].view(np.int64)

    @property
    def names(self) -> list[str | None]:
        """The texts that name the rows' documents, whether or not rows share them; None if a row has none."""
        columns = [self._column(name) for name in self.counts.used]
        known: dict[tuple[int, ...], str | None] = {(0,) * len(columns): None}
        found = []
        for codes in zip(*(column.hashes for column in columns), strict=True) if columns else [()] * self._rows:
            if codes not in known:
                known[codes] = "\n".join(
                    (column.texts or {}).get(code, f"{code:x}" * (code > 0))
                    for column, code in zip(columns, codes, strict=True)
                )
            found.append(known[codes])
        return found

    def _settle(self) -> tuple[DocumentCounts, Codes]:
        if self._settled is None or self._settled[0] != self._rows:
            self._settled = (self._rows, *self._decided())
        return self._settled[1:]

    def _decided(self) -> tuple[DocumentCounts, Codes]:
        alone = _mixed(np.arange(1, self._rows + 1, dtype=np.uint64))
        item = [name for name in self._columns if name != self._by]
        used, note = item, ""
        codes = self._joined(item)
        if len(item) > 1:
            used = self._of_item(item)
            codes = self._joined(used)
        if self._by is not None:
            named = self._columns[self._by].codes
            named = np.where(named == 0, codes, named)  # a row without falls back to what it is about
            used, note = self._chosen(used, codes, named)
            codes = named if used == [self._by] else codes
        repeats = self._repeats(item)
        is_open = self._rule.group_by is None and self._rule.judged not in used
        if is_open and _kinds(codes) == 1 and repeats >= MOST_REPEATS * self._rows > 0:
            # All rows are about one item, and people rated the same texts.
            used = [*used, self._rule.judged]
            codes = self._joined(used)
        missing = codes == 0
        codes = np.where(missing, alone, codes)
        distinct = np.unique(codes)
        counts = DocumentCounts(
            self._rule.group_by,
            tuple(used),
            tuple(self._shown[name] for name in used),
            self._rows,
            int(missing.sum()),
            int(distinct.size),
            len(used) == 1 and used[0] in DOCUMENT_FIELDS,
            note,
            repeats,
            self._rule.judged in used,
        )
        return (counts, codes if counts.is_grouped else alone)

    @property
    def _counts_within(self) -> bool:
        """Whether a column counts 1, 2, 3 within documents that nothing else names, and begins again with the next."""
        order = [] if self._order is None else self._order.tolist()
        follows = all(number in (order[0], before + 1) for before, number in pairwise(order))
        return follows and order[0] in order[1:] if order else False

    def _repeats(self, item: Sequence[str]) -> int:
        """Count rows whose texts, and system, are those of an earlier row."""
        if self._answer is None or self._systems is None:
            return 0
        whole = [*(self._columns[name].codes for name in item), self._answer.codes, self._systems.codes]
        return self._rows - _kinds(*whole)

    def _joined(self, names: Sequence[str]) -> Codes:
        """Combine the hashes of several names; 0 where none has a value."""
        return _combined([self._column(name).codes for name in names], self._rows)

    def _column(self, name: str) -> _Column:
        """Return the values of a name, or of the judged text."""
        return self._columns[name] if self._answer is None or name in self._columns else self._answer

    def _of_item(self, names: list[str]) -> list[str]:
        """Leave out the fields that differ between systems, such as the passages that each of them retrieved."""
        assert self._systems is not None
        systems, kept = self._systems.codes, list(names)
        if len(np.unique(systems)) < 2 or not systems.all():
            return kept
        for name in reversed(names):
            rest = [other for other in kept if other != name]
            if not rest:
                break
            without, whole = self._joined(rest), self._joined(kept)
            by_system = _kinds(without, systems)
            is_shared = by_system > _kinds(without)
            is_fixed = _kinds(whole, systems) == by_system and _kinds(whole) > _kinds(without)
            is_own = _kinds(whole, systems) == _kinds(whole)
            if is_shared and (is_fixed or is_own):
                kept = rest
        return kept

    def _chosen(self, item: list[str], codes: Codes, named: Codes) -> tuple[list[str], str]:
        """Choose between the item's fields and the column that names documents; say why if they disagree."""
        assert self._by is not None
        by, rows = self._by, self._rows
        same = " and ".join(self._shown[name] for name in item)
        by_item, by_name = (_kinds(one[one != 0]) + int((one == 0).sum()) for one in (codes, named))
        if by == ID_FIELD and by_name > MOST_IDS * rows:
            return item, ""
        if by_item == 1:  # all rows are about one item, and only names can part them
            return ([by], "") if 1 < by_name < rows else (item, "")
        if by_name < by_item:
            if not self._counts_within:
                return [by], ""
            return item, f"{by} counts within documents: it has {by_name} values for {by_item} of {same}"
        if by_name == by_item < rows:
            return [by], ""
        if by == ID_FIELD or by_item == rows:
            return item, ""
        return item, f"{by} differs in rows with the same {same}"


def _mixed(codes: Codes) -> Codes:
    """Spread numbers over 64 bits (splitmix64)."""
    with np.errstate(over="ignore"):
        codes = codes * np.uint64(0x9E3779B97F4A7C15)
        codes = (codes ^ (codes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        codes = (codes ^ (codes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Codes = codes ^ (codes >> np.uint64(31))
    return mixed


def _combined(columns: Sequence[Codes], rows: int) -> Codes:
    """Combine the hashes of several columns into one per row; a single column stays as it is."""
    if len(columns) == 1:
        return columns[0]
    total, known = np.zeros(rows, dtype=np.uint64), np.zeros(rows, dtype=np.bool_)
    for place, column in enumerate(columns, start=1):
        known |= column != 0
        total = _mixed(total + column + np.uint64(place))
    return np.where(known, np.maximum(total, 1), 0).astype(np.uint64)


def _kinds(*columns: Codes) -> int:
    """Count the different combinations of values."""
    return int(np.unique(_combined(columns, len(columns[0]))).size)
