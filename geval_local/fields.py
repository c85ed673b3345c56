"""Fields: which column of a row has the text of a metric's field, and how its value becomes text.

One list of aliases serves scoring, analysis, the report and the placeholders of prompt files. The user's own mapping
takes precedence.
"""

from __future__ import annotations

import difflib
import math
import re
import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any

from geval_local.conversation import (
    OFFERED,
    READ_AS,
    TURN,
    is_message,
    is_messages,
    messages_of,
    offered_by,
    parted,
    turn_of,
)
from geval_local.conversation import decoded_json as decoded_json  # for modules that read cells
from geval_local.errors import ConfigurationError, ErrorCode, FieldError, UnscorableError
from geval_local.errors import nearest as nearest  # for modules that handle names of fields

_OUTPUTS = (
    *("system_output", "response", "actual_output", "prediction", "answer", "completion", "generation", "generated"),
    *("generated_text", "generated_answer", "model_output", "model_answer", "hypothesis", "candidate", "summary"),
    *("output_text", "reply", "decoded"),
)
_PASSAGES = ("contexts", "retrieval_context", "retrieved_contexts", "retrieved_chunks", "retrieved_documents")
_CHATS = ("conversation", "dialogue", "messages", "history")

#: Field of a metric -> alternative column names, best first; if a row has two, the first is used.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "source": ("document", "article", "context", "input", "source_text", "text", "passage", *_CHATS, "prompt"),
    "output": _OUTPUTS,
    "reference": (
        *("expected_output", "expected_response", "ground_truth", "target", "gold", "reference_answer"),
        *("expected_answer", "gold_answer", "expected", "ideal", "label", "reference_summary", "references"),
    ),
    "fact": ("knowledge", "context"),
    "question": ("query", "input", "user_input", "user_query", "user_question", "instruction", "prompt"),
    "context": (*_PASSAGES, "source", "document", "documents", "chunks", "passages", "passage", *_CHATS),
}
#: Columns that name the writer of an output, best first.
SYSTEM_FIELDS = ("system_id", "system", "model_id")
#: In a path: every item of a list, every value of an object.
EVERY = "*"
#: A field of a sample in a published prompt, such as ``{{Document}}``.
PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_]\w*(?: +\w+)*)\s*\}\}")
#: Aliases that published prompts use; other placeholders stay unchanged, because a prompt may have two of them.
_PUBLISHED = ("document", "article", "summary", "response", "expected_output")
#: Longest accepted text: no judge reads a million tokens, and it would take minutes to tokenize one to find out.
MAX_CHARACTERS = 4_000_000

NOT_UNICODE = "holds text that is not valid Unicode (bytes that are not UTF-8, or half a surrogate pair)"
_JSON_TYPES = {bool: "a boolean", int: "a number", float: "a number", dict: "an object"}
_SHAPES = "A field's value is a text, a list of texts, or a chat: a list of objects with role and content."
#: Value of `field_value` for a missing field, where None may be a value.
ABSENT = object()
#: Control characters except tab and line end, and characters that change the direction of a line.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


# --- columns ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def resolve(wanted: tuple[str, ...], columns: tuple[str, ...]) -> Mapping[str, str]:
    """Map fields to columns, without the fields that have no column.

    A column serves at most one field. Fields first take the columns with exactly their names, then those with their
    names in another case, then their `ALIASES`, each time in the order of the fields. Of two aliases of a field, the
    first listed wins.
    """
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
    return same[0] if len(same) == 1 else None  # "Output" and "OUTPUT" together are ambiguous


def field_value(row: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """Return a value by a column's name, or by a dotted path into a column: ``scores.coherence``, ``turns.0.content``.

    The function first looks for a column with exactly that name, and last for a field that the row's conversation
    offers. A number is an index into a list, from 0, or from its end if it is negative. ``*`` matches every item of a
    list and every value of an object, and returns one flat list of the values found in them:
    ``annotators.*.coherence``. In a list of objects a name does the same: ``annotators.coherence``. JSON objects and
    lists in a CSV cell are decoded.
    """
    if path in row:
        return row[path]
    found = _walk(row, path.split("."), ABSENT)
    if found is ABSENT and path in READ_AS:
        with suppress(UnscorableError):
            found = offered(row).get(path, ABSENT)
    return default if found is ABSENT else found


def is_answered(row: Mapping[str, Any]) -> bool:
    """Whether a column of the row has the output, so that its conversation does not."""
    return TURN not in row and "output" in resolve(("output",), tuple(row))


def offered(row: Mapping[str, Any], where: str = "the sample") -> dict[str, Any]:
    """Return the fields that the row's conversation offers, see `geval_local.conversation`."""
    column = None if TURN in row else resolve(("output",), tuple(row)).get("output")
    return offered_by(row, where, answer=None if column is None else row[column])


def resolve_row(wanted: tuple[str, ...], columns: tuple[str, ...], row: Mapping[str, Any]) -> Mapping[str, str]:
    """Map fields to columns as `resolve` does, and to the fields that the row's conversation offers.

    If the answer is in the conversation, the conversation's fields come first, and only a column with exactly a field's
    name overrides them. Otherwise columns come first, and the conversation provides the remaining fields.
    """
    chat = messages_of(row)
    if chat is None and TURN not in row:
        return resolve(wanted, columns)
    if is_answered(row):
        found = dict(resolve(wanted, columns))
    else:
        taken = OFFERED if chat is None else chat[:1]
        columns = tuple(column for column in columns if column not in taken)
        found = {field: field for field in wanted if field in columns}
    own = offered(row) if any(READ_AS.get(field) for field in wanted if field not in found) else {}
    found |= {field: READ_AS[field] for field in wanted if field not in found and READ_AS.get(field) in own}
    rest = tuple(field for field in wanted if field not in found)
    free = tuple(column for column in columns if column not in found.values())
    return {**found, **resolve(rest, free)} if rest else found


def paths_of(wanted: Sequence[str], row: Mapping[str, Any], mapping: Mapping[str, str]) -> Mapping[str, str]:
    """Map fields to the columns that they are read from: as `mapping` says, else as `resolve_row` finds them."""
    mapped = {name: mapping[name] for name in wanted if name in mapping}
    if not mapped:
        return resolve_row(tuple(wanted), tuple(row), row)
    taken = set(mapped.values())
    free = tuple(name for name in wanted if name not in mapped)
    return {**mapped, **resolve_row(free, tuple(column for column in row if column not in taken), row)}


def _walk(value: Any, parts: Sequence[str], default: Any) -> Any:
    for place, part in enumerate(parts):
        value = decoded_json(value)
        # Names may have dots: the longest beginning that is one.
        own = range(len(parts), place, -1) if isinstance(value, Mapping) else ()
        name = next((end for end in own if ".".join(parts[place:end]) in value), 0)
        if name:
            return _walk(value[".".join(parts[place:name])], parts[name:], default)
        if part == EVERY and isinstance(value, Mapping | list | tuple):
            rest = parts[place + 1 :]
            children = list(value.values() if isinstance(value, Mapping) else value)
            found = [one for child in children if (one := _walk(child, rest, ABSENT)) is not ABSENT]
            if EVERY in rest:
                found = list(chain.from_iterable(found))
            return found or default
        if isinstance(value, list | tuple) and part.removeprefix("-").isdecimal() and len(part) < 10:
            index = int(part)
            if not -len(value) <= index < len(value):
                return default
            value = value[index]
        elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
            return _walk(value, (EVERY, *parts[place:]), default)  # in every object of the list
        else:
            return default
    return value


def without(row: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return a row without the value at a path of names; the rest of a nested column stays."""
    if path in row:
        return {name: value for name, value in row.items() if name != path}
    parts = path.split(".")
    for place in range(len(parts) - 1, 0, -1):
        column = ".".join(parts[:place])
        if isinstance(held := decoded_json(row.get(column)), Mapping):
            return {**row, column: without(held, ".".join(parts[place:]))}
    return dict(row)


def unwrapped(value: Any, *, texts: bool = True) -> Any:
    """Read a cell or an object as what it is: messages, the text of one message, a list of texts (if `texts`).

    Known are a message, an object with ``messages``, and an answer of a server with ``choices`` or ``candidates``; JSON
    and Python's form of them in a text are decoded. Every other value stays unchanged.
    """
    held = decoded_json(value)
    for name, inner in (("choices", "message"), ("candidates", "content")):
        if isinstance(held, Mapping) and isinstance(chosen := held.get(name), list) and chosen:
            first = chosen[0] if isinstance(chosen[0], Mapping) else {}
            if isinstance(text := first.get("text"), str):
                return text
            held = first.get(inner)
    if isinstance(held, Mapping) and is_messages(held.get("messages")):
        held = held["messages"]
    if is_messages(held):  # an answer of OpenAI's responses begins with its reasoning
        held = [one for one in held if is_message(one) or not (isinstance(one, Mapping) and "summary" in one)]
    if is_message(held):
        if len(parted(held)) > 1:
            return [held]
        with suppress(UnscorableError):
            turn = turn_of(held, "the message")
            return turn.text if turn.lost is None else value
    is_list = texts and isinstance(held, list) and all(one is None or isinstance(one, str) for one in held)
    return held if is_messages(held) or is_list else value


#: Words in the names of columns that hint at a field, in addition to its aliases.
_HINTS: Mapping[str, tuple[str, ...]] = {
    "output": ("bot", "agent", "assistant", "ai", "model", "generated", "translation"),
    "question": ("customer", "user", "message", "request", "ask", "asked"),
    "source": ("original", "message", "ticket"),
    "context": ("retrieved", "source", "sources", "knowledge", "evidence"),
    "reference": ("correct", "truth", "human", "best"),
}


def guess_columns(fields: Iterable[str], columns: Iterable[str]) -> dict[str, str]:
    """Guess columns for fields without a column of their name, as suggestions that the user confirms.

    It looks for a column whose words include those of the field or an alias (``bot reply`` for output), else for a
    similar spelling.
    """
    free, found = list(columns), dict[str, str]()
    fields = list(fields)
    for is_near in (_shares_words, _is_spelt_alike):
        for field in fields:
            names = (field, *ALIASES.get(field, ()), *_HINTS.get(field, ()))
            near = None if field in found else next((one for name in names for one in free if is_near(name, one)), None)
            if near is not None:
                found[field] = near
                free.remove(near)
    return {field: found[field] for field in fields if field in found}


def words_of(name: str) -> list[str]:
    """Split a column's name into its words."""
    return re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", str(name)).casefold())


def _shares_words(name: str, column: str) -> bool:
    words = set(words_of(column))
    return bool(words) and words.issuperset(words_of(name))


def _is_spelt_alike(name: str, column: str) -> bool:
    return difflib.SequenceMatcher(None, name.casefold(), str(column).casefold()).ratio() >= 0.8


def field_options(fields: Iterable[str], guesses: Mapping[str, str]) -> str:
    """Write a mapping of fields for a message, see `geval_local.wording`, with a shell's quotes."""
    return " ".join(
        f"`fields={field}={shlex.quote(guesses[field]) if field in guesses else 'COLUMN'}`" for field in fields
    )


def counted(count: int, noun: str) -> str:
    """Write a count with its noun: ``1 page``, ``2 pages``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[object], most: int) -> str:
    """List the first names: ``a, b, ...``."""
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")


# --- placeholders of prompt files -------------------------------------------------------------------------------------


def placeholder_field(placeholder: str, fields: Container[str] = ()) -> str:
    """Return the field that a placeholder refers to: the metric's field of that name, else by the published aliases."""
    key = re.sub(r"\W+", "_", placeholder.strip()).lower()
    own = next((name for name in (placeholder.strip(), key) if name in fields), None)
    if own is None and key in _PUBLISHED:
        own = next(field for field, others in ALIASES.items() if key in others)
    return own or key


def split_cue(template: str) -> tuple[str, str]:
    """Split a template into its body and its last line, the form's cue, without trailing white space."""
    head, newline, cue = template.rstrip().rpartition("\n")
    return head + newline, cue


# --- user-defined mappings ---------------------------------------------------------------------------------------


def read_mapping(pairs: Iterable[str], option: str = "fields") -> dict[str, str]:
    """Parse a mapping from an option of the command line, ``output=answer``."""
    mapping: dict[str, str] = {}
    for pair in pairs:
        field, equals, column = (part.strip() for part in pair.partition("="))
        if not (field and equals and column):
            raise ConfigurationError(
                f"`{option}={pair!r}` is not a mapping", hint=f"Write NAME=COLUMN, such as `{option}=output=answer`."
            )
        if mapping.get(field, column) != column:
            raise ConfigurationError(f"`{option}` maps {field!r} twice: to {mapping[field]!r} and to {column!r}")
        mapping[field] = column
    return mapping


def check_mapping(mapping: object, fields: Iterable[str]) -> None:
    """Check that `mapping` is a mapping of texts, and that its fields are fields of the metrics."""
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) for name in chain(mapping, mapping.values())):
        raise TypeError('fields is a mapping of fields to columns, such as {"output": "answer"}')
    known = list(dict.fromkeys(fields))
    for field in mapping:
        if field not in known:
            raise ConfigurationError(
                f"no metric here has a field {field!r}{nearest(field, known)}",
                hint=f"The fields are: {', '.join(known)}. The field comes before its column: `fields=FIELD=COLUMN`.",
            )


# --- values -----------------------------------------------------------------------------------------------------------


#: Line before several references.
ALTERNATIVES = "Any one of these may serve:"


def text_of(value: Any, what: str, *, alternatives: bool = False) -> str:
    """Convert a field's value to text.

    A text stays unchanged. The function numbers the texts of a list, with blank lines between them; for several
    references (`alternatives`), a line says that any one may serve. A list of one text becomes that text. A chat (a
    list of objects with ``role`` and ``content``) becomes one paragraph per turn with its role, ``User: ...``; a
    content may be a list of text parts. One message becomes its content. A NumPy array counts as a list.
    """
    text = _text(value, what, alternatives=alternatives)
    if len(text) > MAX_CHARACTERS:
        raise UnscorableError(
            f"{what} has {len(text):,} characters, more than the {MAX_CHARACTERS:,} that are read of one text",
            ErrorCode.TOO_LONG,
            hint="Shorten it, or score it in parts.",
        )
    return text


def _text(value: Any, what: str, *, numbered: bool = True, alternatives: bool = False) -> str:
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        value = unwrapped(value)
    if isinstance(value, list | tuple):
        if not value:
            raise UnscorableError(f"{what} is an empty list", ErrorCode.EMPTY_FIELD, hint="Give at least one text.")
        parts = [
            _turn(item, f"{what}, item {index}")
            if isinstance(item, Mapping)
            else _text(item, f"{what}, item {index}", numbered=False)
            for index, whole in enumerate(value, start=1)
            for item in parted(whole)
        ]
        if numbered and len(parts) > 1 and not any(isinstance(item, Mapping) for item in value):
            parts = [f"{index}. {part}" for index, part in enumerate(parts, start=1)]
            parts = [ALTERNATIVES, *parts] if alternatives else parts
        return "\n\n".join(parts)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise UnscorableError(
            f"{what} is {'null' if value is None else 'NaN'}",
            ErrorCode.EMPTY_FIELD,
            hint="Fill it in, or leave the row out.",
        )
    if not isinstance(value, str):
        found = _JSON_TYPES.get(type(value), f"of type {type(value).__name__}")
        inner = f" A path leads to its keys: {', '.join(map(str, value))}." if isinstance(value, Mapping) else ""
        raise FieldError(f"{what} is {found}, not text", ErrorCode.NOT_TEXT, hint=_SHAPES + inner)
    if not value.strip():
        raise UnscorableError(
            f"{what} is empty" if not value else f"{what} is only white space",
            ErrorCode.EMPTY_FIELD,
            hint="Fill it in, or leave the row out.",
        )
    if not is_unicode(value):
        raise UnscorableError(f"{what} {NOT_UNICODE}", ErrorCode.NOT_UNICODE, hint="Convert the text to UTF-8.")
    return value


def _turn(message: Mapping[str, Any], what: str) -> str:
    """Format one message of a chat with its role."""
    turn = turn_of(message, what)
    if turn.lost is not None:
        raise turn.lost
    return f"{turn.speaker}: {_text(turn.text, f'{what}, content', numbered=False)}"


def is_unicode(value: Any) -> bool:
    """Whether every text in a value is free of lone surrogates, which mark bytes that are not UTF-8."""
    if isinstance(value, str):
        try:
            return value.isascii() or bool(value.encode())
        except UnicodeEncodeError:
            return False
    if isinstance(value, Mapping):
        return all(map(is_unicode, chain(value, value.values())))
    return not isinstance(value, list | tuple) or all(map(is_unicode, value))


def visible(text: str) -> str:
    r"""Escape characters that could control a terminal, such as ``\x1b``; line ends and tabs stay."""
    return text if text.isprintable() else _COMMANDS.sub(lambda match: ascii(match[0])[1:-1], text)


def shortened(text: str, most: int) -> str:
    """Shorten a name in its middle, since its end may tell it from others: ``a-long-na…answer#2``."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: (most - 1) // 2]}…{line[len(line) - most // 2 :]}"


def beginning(text: str, most: int) -> str:
    """Return the beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def output_text(row: Mapping[str, Any], mapping: Mapping[str, str] | None = None) -> str | None:
    """Return the text of a row's output, by the rules of scoring; None if there is none."""
    try:
        path = (mapping or {}).get("output") or resolve_row(("output",), tuple(row), row).get("output")
        return None if path is None else text_of(field_value(row, path), "the output")
    except UnscorableError:
        return None
