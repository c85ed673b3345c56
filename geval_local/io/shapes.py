"""Shapes of rows: which column is the id, and rows with several samples, as systems side by side or as turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from geval_local.conversation import TURN, is_messages, messages_of, turns_of
from geval_local.errors import Cause, ErrorCode, FieldError
from geval_local.fields import ABSENT, decoded_json, field_value
from geval_local.grouping import DOCUMENT_FIELDS
from geval_local.io.rows import RawRow
from geval_local.io.samples import Sample

#: Columns that a row of one system has in addition to those of the wide row.
_SYSTEM, _OUTPUT, _MESSAGES, _PROMPT = "system", "output", "messages", "prompt"
#: New name of the column `id` if another column is the id.
FORMER_ID = "original_id"


@dataclass(frozen=True)
class Shape:
    """How rows become samples."""

    #: The column that is the id, or a dotted path into one; None for `id`.
    id: str | None = None
    #: Columns with the outputs of one system each.
    system_columns: tuple[str, ...] = ()
    #: Whether every turn of the assistant is a sample.
    by_turn: bool = False

    @property
    def multiplies(self) -> bool:
        """Whether a row may become several samples."""
        return bool(self.system_columns) or self.by_turn

    def identified(self, rows: Iterable[RawRow]) -> Iterable[RawRow]:
        """Put the id into the column `id`."""
        return rows if self.id in (None, "id") else (self._identified(row) for row in rows)

    def _identified(self, row: RawRow) -> RawRow:
        assert self.id is not None
        value = field_value(row.fields, self.id)
        if row.error is not None or value is None:
            missing = Cause(f"the id {self.id!r} is missing or null", ErrorCode.MISSING_ID)
            return row if row.error is not None else row._replace(error=missing)
        former = {FORMER_ID: row.fields["id"]} if "id" in row.fields and FORMER_ID not in row.fields else {}
        rest = {name: item for name, item in row.fields.items() if name != "id"}
        return row._replace(fields={"id": value, **former, **rest})

    def samples(self, sample: Sample) -> Iterator[Sample]:
        """Yield the samples of a row; a row without the shape becomes one sample with the reason."""
        if sample.error is not None or not self.multiplies:
            yield sample
            return
        for one in self._by_system(sample) if self.system_columns else (sample,):
            yield from _by_turn(one) if self.by_turn and one.error is None else (one,)

    def _by_system(self, sample: Sample) -> Iterator[Sample]:
        rest = {name: value for name, value in sample.fields.items() if name not in self.system_columns}
        values = {name: decoded_json(field_value(sample.fields, name, ABSENT)) for name in self.system_columns}
        missing = [name for name, value in values.items() if value is ABSENT]
        made = {_SYSTEM, *(_MESSAGES if is_messages(value) else _OUTPUT for value in values.values())}
        taken = sorted(made & rest.keys())
        if missing or taken:
            problem = f"the system column {missing[0]!r} is missing" if missing else ""
            problem = problem or f"the column {taken[0]!r} is taken: system columns make one of this name; rename it"
            code = ErrorCode.MISSING_FIELD if missing else ErrorCode.INVALID_ROW
            yield sample.lost(f"{problem}; the columns are: {', '.join(sample.fields)}", code)
            return
        for name, value in values.items():
            fields = {**_numbered(sample, rest, "doc_id", name, "/"), _SYSTEM: name}
            if is_messages(value):
                prompt = decoded_json(rest.get(_PROMPT))
                fields[_MESSAGES] = [*prompt, *value] if is_messages(prompt) else value
            else:
                fields[_OUTPUT] = value
            yield replace(sample, fields=fields)


def _by_turn(sample: Sample) -> Iterator[Sample]:
    found = messages_of(sample.fields)
    if found is None or TURN in sample.fields:  # a row of results is already a turn
        yield sample
        return
    if _OUTPUT in sample.fields:
        yield sample.lost("the column 'output' is taken: turns make one of this name; rename it", ErrorCode.INVALID_ROW)
        return
    try:
        turns = turns_of(*found, sample.where)
    except FieldError:  # reading its texts raises the error
        yield sample
        return
    count = sum(turn.role == "assistant" for turn in turns)
    if not count:
        yield sample
    for number in range(1, count + 1):
        fields = _numbered(sample, sample.fields, "conversation_id", number, "#")
        yield replace(sample, fields={**fields, TURN: number})


def _numbered(sample: Sample, fields: Mapping[str, Any], document: str, part: object, mark: str) -> dict[str, Any]:
    """Return the columns of a part of a row, with an id of its own and the document that all parts share."""
    own = fields.get("id")
    where = sample.where if "file" in fields else f"row {sample.row}"
    named = {} if any(fields.get(name) not in (None, "") for name in DOCUMENT_FIELDS) else {document: own or where}
    return {**fields, **({} if own is None else {"id": f"{own}{mark}{part}"}), **named}
