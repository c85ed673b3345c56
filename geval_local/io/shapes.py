"""Shapes of rows: which column is the id, and rows with several samples, as systems side by side or as turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from geval_local.conversation import (
    SPEAKER,
    TURN,
    Turn,
    fields_at,
    is_messages,
    messages_of,
    question_at,
    read_turns,
    with_roles,
)
from geval_local.errors import Cause, ErrorCode, FieldError
from geval_local.fields import ABSENT, decoded_json, field_value, unwrapped, without
from geval_local.grouping import DOCUMENT_FIELDS
from geval_local.io.rows import RawRow
from geval_local.io.samples import Sample
from geval_local.options import RunOptions

#: Columns that a row of one system has in addition to those of the wide row.
_SYSTEM, _OUTPUT, _MESSAGES, _PROMPT = "system", "output", "messages", "prompt"
#: Columns that a row of one turn has instead of the conversation; the input's own of these names are kept apart.
_OF_TURN = ("question", _OUTPUT, "history", TURN, SPEAKER)
#: Column that names what a judge cannot see of the turns before.
NOT_SHOWN = "not_shown"
_ROLES = ("user", "assistant")
#: New name of the column `id` if another column is the id.
FORMER_ID = "original_id"


@dataclass(frozen=True)
class Shape:
    """How rows become samples, by options: `id`, `system_columns`, `turns`, `turns_at` and `roles`."""

    options: RunOptions

    @property
    def multiplies(self) -> bool:
        """Whether a row may become several samples."""
        return bool(self.options.system_columns) or self.options.turns is not None

    def identified(self, rows: Iterable[RawRow]) -> Iterable[RawRow]:
        """Put the id into the column `id`."""
        return rows if self.options.id in (None, "id") else (self._identified(row, self.options.id) for row in rows)

    def _identified(self, row: RawRow, column: str) -> RawRow:
        value = field_value(row.fields, column)
        if row.error is not None or value is None:
            missing = Cause(f"the id {column!r} is missing or null", ErrorCode.MISSING_ID)
            return row if row.error is not None else row._replace(error=missing)
        former = {FORMER_ID: row.fields["id"]} if "id" in row.fields and FORMER_ID not in row.fields else {}
        rest = {name: item for name, item in row.fields.items() if name != "id"}
        return row._replace(fields={"id": value, **former, **rest})

    def samples(self, sample: Sample) -> Iterator[Sample]:
        """Yield the samples of a row; a row without the shape becomes one sample with the reason."""
        systems, turns = self.options.system_columns, self.options.turns
        for one in self._by_system(sample, systems) if systems and sample.error is None else (sample,):
            one = one if one.error is not None else self._found(one)
            is_done = one.error is not None or TURN in one.fields  # a row of results is already a turn
            yield from (one,) if turns is None or is_done else _by_turn(one, turns)

    def _found(self, sample: Sample) -> Sample:
        """Put the messages into one column; those of all columns get the usual names of roles."""
        if not (self.options.turns_at or self.options.roles) or TURN in sample.fields:
            return sample
        fields, chat = dict(sample.fields), messages_of(sample.fields)
        for path in self.options.turns_at or ():
            value = decoded_json(field_value(fields, path, None))
            if not is_messages(value):
                return sample.lost(
                    f"there is no list of messages at {path!r}; the columns are: {', '.join(fields)}",
                    ErrorCode.MISSING_FIELD,
                )
            fields = without(fields, path)
            chat = _MESSAGES, [*(chat[1] if chat is not None and chat[0] not in sample.fields else ()), *value]
        fields |= {} if chat is None else {chat[0]: chat[1]}
        chats = {name: held for name, value in fields.items() if is_messages(held := decoded_json(value))}
        named = {name: with_roles(chat, self.options.roles) for name, chat in chats.items()}
        return replace(sample, fields=fields | named)

    def _by_system(self, sample: Sample, systems: Sequence[str]) -> Iterator[Sample]:
        values = {name: unwrapped(field_value(sample.fields, name, ABSENT)) for name in systems}
        rest = {name: value for name, value in sample.fields.items() if name not in systems}
        made = {_MESSAGES if is_messages(value) else _OUTPUT for value in values.values() if value is not ABSENT}
        columns = f"the columns are: {', '.join(sample.fields)}"
        if taken := sorted({_SYSTEM, *made} & rest.keys()):
            told = f"the column {taken[0]!r} is taken: system columns make one of this name; rename it; {columns}"
            yield sample.lost(told, ErrorCode.INVALID_ROW)
            return
        prompt = decoded_json(rest.get(_PROMPT))
        for name, value in _candidates(values, prompt):
            fields = {**_numbered(sample, rest, "doc_id", name, "/"), _SYSTEM: name}
            if is_messages(value):
                fields[_MESSAGES] = [*prompt, *value] if is_messages(prompt) else value
            elif value is not ABSENT:
                fields[_OUTPUT] = value
            one = replace(sample, fields=fields)
            is_lost = value is ABSENT
            yield (
                one.lost(f"the system column {name!r} is missing; {columns}", ErrorCode.MISSING_FIELD)
                if is_lost
                else one
            )


def _candidates(values: Mapping[str, Any], prompt: Any) -> Iterator[tuple[str, Any]]:
    """Yield systems with their outputs: a list of texts is several candidates, or the turns that answer a prompt's."""
    for name, value in values.items():
        if not isinstance(value, list | tuple) or is_messages(value) or not value:
            yield name, value
        elif len(value) == 1:
            yield name, value[0]
        elif isinstance(prompt, list | tuple) and len(prompt) == len(value) and not is_messages(prompt):
            said = zip(prompt, value, strict=True)
            yield (
                name,
                [{"role": role, "content": text} for turn in said for role, text in zip(_ROLES, turn, strict=True)],
            )
        else:
            yield from ((f"{name}[{place}]", one) for place, one in enumerate(value))


def _by_turn(sample: Sample, speaker: str) -> Iterator[Sample]:
    """Yield the turns of a speaker, each with what came before; one that a judge cannot see has the reason."""
    found = messages_of(sample.fields)
    if found is None:
        told = f"there is no conversation; the columns are: {', '.join(sample.fields)}. `turns_at` says where it is"
        yield sample.lost(told, ErrorCode.MISSING_FIELD)
        return
    column, messages = found
    apart = {name: value for name, value in sample.fields.items() if name in _OF_TURN}
    rest = {name: value for name, value in sample.fields.items() if name not in (column, *_OF_TURN)}
    rest |= {f"original_{name}": value for name, value in apart.items()}
    try:
        turns = read_turns(column, messages, sample.where)
        if turns[-1].role in ("user", "tool") and isinstance(said := unwrapped(apart.get(_OUTPUT)), str):
            turns.append(Turn("assistant", "Assistant", said))
    except FieldError:  # reading its texts raises the error
        yield sample
        return
    is_role = speaker == "assistant"
    own = [place for place, turn in enumerate(turns) if speaker in ((turn.role,) if is_role else turn[:2])]
    if not own and (broken := next((turn.lost for turn in turns if not turn.role), None)) is not None:
        yield sample.lost(broken.message.removeprefix(f"{sample.where}: "), broken.code)
    elif not own:
        speakers = ", ".join(dict.fromkeys(turn.speaker for turn in turns if turn.role))
        told = f"the column {column!r} has no turn of {speaker!r}; its speakers are: {speakers or 'none'}. If one has "
        yield sample.lost(f"{told}another name, map it: `roles=assistant=NAME`", ErrorCode.MISSING_FIELD)
    for number, place in enumerate(own, start=1):
        offered = {name: text for name, text in fields_at(turns[: place + 1], place).items() if name not in rest}
        fields = _numbered(sample, rest | offered, "conversation_id", number, "#")
        fields |= {TURN: number} | ({SPEAKER: turns[place].speaker} if turns[place].speaker != "Assistant" else {})
        unseen = [f"message {turn.number}: {kind}" for turn in turns[:place] for kind in turn.unseen]
        one = replace(sample, fields={**fields, **({NOT_SHOWN: ", ".join(unseen)} if unseen else {})})
        lost = _lost_at(turns, place)
        yield one if lost is None else one.lost(lost.message.removeprefix(f"{sample.where}: "), lost.code)


def _lost_at(turns: list[Turn], place: int) -> FieldError | None:
    """Return why a turn cannot be judged: it, or what it answers, is not only text, or a message before is none."""
    asked = question_at(turns, place)
    own = [place]
    while asked is not None and (len(own) == 1 or turns[asked].role == turns[own[-1]].role):
        own.append(asked)
        asked = asked - 1 if asked else None
    broken = [turn.lost for turn in turns[:place] if not turn.role]
    return next((error for error in [turns[at].lost for at in own] + broken if error is not None), None)


def _numbered(sample: Sample, fields: Mapping[str, Any], document: str, part: object, mark: str) -> dict[str, Any]:
    """Return the columns of a part of a row, with an id of its own and the document that all parts share."""
    own = None if fields.get("id") == "" else fields.get("id")
    where = sample.where if "file" in fields else f"row {sample.row}"
    is_named = any(fields.get(name) not in (None, "") for name in DOCUMENT_FIELDS)
    named = {} if is_named else {document: where if own is None else own}
    return {**fields, **({} if own is None else {"id": f"{own}{mark}{part}"}), **named}
