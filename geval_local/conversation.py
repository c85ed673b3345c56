"""Conversations: lists of messages in OpenAI's or ShareGPT's format, read as turns, and the fields found in them.

A row with a conversation offers fields in addition to its columns: the last answer as ``output``, and what it answers.
"""

from __future__ import annotations

import ast
import json
import tokenize
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from geval_local.errors import ErrorCode, FieldError

#: Columns that may hold a conversation, best first.
CHATS = ("messages", "conversations", "conversation", "dialogue", "chat")
#: Columns that always count as a conversation, even if malformed.
_MEANT = ("messages", "conversations")
#: Fields that a conversation offers -> what they are.
OFFERED: Mapping[str, str] = {
    "question": "the last user turn before the output",
    "output": "the last assistant turn",
    "history": "the turns before the output, with their speakers",
    "conversation": "all turns, with their speakers",
    "system_prompt": "the system and developer turns",
    "context": "what tools returned before the output",
}
#: Field of a metric -> the offered field that provides it.
READ_AS: Mapping[str, str] = {**{name: name for name in OFFERED}, "source": "history"}
#: Column with the number, from 1, of the assistant's turn to judge; without it, the last one is judged.
TURN = "assistant_turn"
#: Column with the speaker of that turn, if it is not plainly the assistant.
SPEAKER = "speaker"

#: Names of speakers in ShareGPT's, LangChain's, Gemini's and other forms -> OpenAI's.
_SPEAKERS = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "claude", "bot", "ai", "model"), "assistant"),
    **dict.fromkeys(("function_call", "custom_tool_call", "aimessagechunk"), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response", "ipython"), "tool"),
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), "tool"),
}
#: Types of messages that name the speaker: LangChain's, and the items of OpenAI's responses.
_TYPES = (
    *("human", "ai", "system", "tool", "function", "AIMessageChunk"),
    *("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
)
_REASONING = ("reasoning", "thinking", "redacted_thinking")
#: Roles that ask and answer nothing.
_NO_PEOPLE = ("", "system", "developer", "tool", *_REASONING)
#: Keys of a message that hold its content, and of what a tool returned; the first is taken.
_CONTENTS = ("content", "parts", "value", "output", "refusal", "response", "result")
#: Types of parts that call a tool, or hold what a tool returned; Gemini's parts have them as keys.
_CALLS = ("tool_use", "tool_call", "function_call", "functionCall", "custom_tool_call")
_RETURNED = ("tool_result", "tool_call_response", "function_response", "functionResponse")
_UNTYPED = (*_CALLS, *_RETURNED, "inlineData", "fileData")
#: Longest cell that is read as Python, whose parser takes many times its memory.
MAX_LITERAL = 1 << 20
_SHAPE = "A message is an object with role and content, or with from and value."


def turn_name(row: Mapping[str, Any]) -> str | None:
    """Name the turn of a row that is one: ``turn 2 of late-fee``; None for other rows."""
    if row.get(TURN) in (None, ""):
        return None
    names = (row.get("conversation_id"), str(row.get("id") or "").rpartition("#")[0])
    return f"turn {row[TURN]} of {next((str(name) for name in names if name not in (None, '')), 'the conversation')}"


def row_name(row: Mapping[str, Any]) -> str:
    """Name a row by its turn, else by its id; empty if it has neither."""
    return turn_name(row) or ("" if row.get("id") is None else str(row["id"]))


def named_turns(rows: Iterable[Mapping[str, Any]], names: list[str]) -> list[str]:
    """Name rows that all are turns by them, if that tells them apart; keep their `names` otherwise."""
    turns = [*map(turn_name, rows)]
    return names if None in turns or len({*turns}) < len(turns) else [*map(str, turns)]


class Turn(NamedTuple):
    """One message."""

    #: user, assistant, system, tool, or any other name, unchanged; empty for a message that cannot be read at all.
    role: str
    #: The speaker as the form shows it: the message's own name, else the role.
    speaker: str
    #: The content as text; what is no text is named in brackets, ``[image]``.
    text: str
    #: Why a judge cannot see the whole content.
    lost: FieldError | None = None
    #: What the text does not show: ``image``, ``reasoning``, ...
    unseen: tuple[str, ...] = ()
    #: The message's place in its conversation, from 1.
    number: int = 0


def parted(message: Any) -> list[Any]:
    """Split a message of Anthropic or Gemini where it holds what a tool returned and more: several said it."""
    key = "content" if isinstance(message, Mapping) and "content" in message else "parts"
    parts = message.get(key) if isinstance(message, Mapping) else None
    kinds = [_kind_of(part) in _RETURNED for part in parts] if isinstance(parts, list) else []
    runs = [[*run] for _, run in groupby(range(len(kinds)), kinds.__getitem__)]
    if parts is None or len(runs) < 2:
        return [message]
    # Parts of others are left empty: every part keeps its number.
    return [{**message, key: [part if at in run else "" for at, part in enumerate(parts)]} for run in runs]


def turn_of(message: Any, what: str) -> Turn:
    """Read one message; tool calls are appended to its content.

    Raises
    ------
    FieldError
        If it is no message. A content that is not only text is no error, see `Turn.lost`.
    """
    if not isinstance(message, Mapping):
        raise FieldError(f"{what} is no object", ErrorCode.NOT_TEXT, hint=_SHAPE)
    inner = next((message[key] for key in ("kwargs", "data") if isinstance(message.get(key), Mapping)), None)
    message = message if inner is None or "role" in message else {"type": message.get("type"), **inner}
    kind = message.get("type")
    role = message.get("role", message.get("from", kind if kind in _TYPES else None))
    if kind in _REASONING and not isinstance(role, str):
        return Turn(str(kind), "Reasoning", "", None, ("reasoning",))
    if str(kind).endswith("_call") and kind not in _CALLS and not isinstance(role, str):  # what the server did itself
        return Turn("reasoning", "Assistant", f"[{kind}]", None, (str(kind),))
    key = next((one for one in _CONTENTS if message.get(one) is not None), None)
    calls = message.get("tool_calls") or [one for one in (message.get("function_call"),) if one]
    calls = [message] if kind in _CALLS else calls if isinstance(calls, list | tuple) else [calls]
    if not isinstance(role, str) or not role.strip() or not (set(_CONTENTS) & message.keys() or calls):
        told = f"{what} is an object without a role and a content, not text"
        raise FieldError(told, ErrorCode.NOT_TEXT, hint=f"{_SHAPE} Its keys are: {', '.join(map(str, message))}.")
    content = None if key is None else message[key]
    name = role.strip()
    role = _SPEAKERS.get(name.lower(), name.lower())
    kinds = {_kind_of(part) for part in content if part != ""} if isinstance(content, list | tuple) else set()
    if kinds and kinds <= {*_RETURNED}:
        role, name = "tool", "tool"  # Anthropic and Gemini let the user say what a tool returned
    shown = name if ("role" in message and key != "parts") or role not in ("user", "assistant", "tool") else role
    if role in ("user", "assistant") and isinstance(message.get("name"), str) and not calls:
        shown = message["name"].strip() or shown
    shown = f"{shown[:1].upper()}{shown[1:]}"
    try:
        written = [_call(one, what) for one in calls]
        text, lost, unseen = ("", None, ()) if content in (None, "") and written else _read(content, what)
    except FieldError as error:  # a call without a name
        return Turn(role, shown, "[call]", error, ("call",))
    return Turn(role, shown, "\n".join([*([text] if text else []), *written]), lost, unseen)


def _kind_of(part: Any) -> str:
    """Name the type of a part of a content, as its form calls it."""
    if not isinstance(part, Mapping):
        return "null" if part is None else f"of type {type(part).__name__}"
    kind = str(part.get("type") or next((key for key in _UNTYPED if key in part), "an object"))
    return "reasoning" if part.get("thought") is True else kind  # Gemini


def _read(content: Any, what: str, of: str = ": the content") -> tuple[str, FieldError | None, tuple[str, ...]]:
    """Read a content, or a part of one: its text, why that is not all of it, and what it does not show."""
    if isinstance(content, str):
        return content, None, ()
    if isinstance(content, list | tuple):
        read = [_read(part, what, f", part {place} of the content") for place, part in enumerate(content, start=1)]
        between = "\n" if any(isinstance(part, Mapping) for part in content) else "\n\n"
        unseen = tuple(kind for *_, kinds in read for kind in kinds)
        return (
            between.join(text for text, *_ in read if text),
            next((lost for _, lost, _ in read if lost), None),
            unseen,
        )
    part, kind = content if isinstance(content, Mapping) else {}, _kind_of(content)
    inner: Mapping[str, Any] = held if isinstance(held := part.get(kind), Mapping) else part
    if kind in _REASONING:
        return "", None, ("reasoning",)
    if kind in _CALLS:
        return _call(inner, what), None, ()
    if kind in _RETURNED:
        held = next((inner[key] for key in _CONTENTS if inner.get(key) is not None), "")
        return _read(json.dumps(held, ensure_ascii=False, default=str) if isinstance(held, Mapping) else held, what, of)
    # Other types may hold bytes as their content.
    keys = ("text", "refusal", "content") if kind in ("text", "an object") else ("text", "refusal")
    text = next((part[key] for key in keys if isinstance(part.get(key), str)), None)
    if text is not None:
        return text, None, ()
    media = str(inner.get("mimeType") or inner.get("modality") or kind).partition("/")[0]
    media = "no content" if content is None else media.removeprefix("input_").removesuffix("_url")
    return f"[{media}]", FieldError(f"{what}{of} is {kind}, not text", ErrorCode.NOT_TEXT, hint=_SHAPE), (media,)


def _call(call: Any, what: str) -> str:
    """Write a tool call as code: ``get_weather({"city": "Oslo"})``."""
    asked = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(asked, Mapping) or not isinstance(asked.get("name"), str):
        raise FieldError(
            f"{what} calls a tool without a name",
            ErrorCode.NOT_TEXT,
            hint="A call has a function with name and arguments.",
        )
    given: Any = next((asked[key] for key in ("arguments", "args", "input") if asked.get(key) is not None), {})
    written = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    return f"[calls {asked['name']}({written})]"


def decoded_json(value: Any) -> Any:
    """Decode an object or a list stored as JSON, or as Python writes it, in a CSV cell; others stay unchanged."""
    if isinstance(value, str) and value.startswith(("{", "[")):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return _python_literal(value)
    return value


def _python_literal(text: str) -> Any:
    """Read what Python's ``str`` made of a list or an object; any other text stays one."""
    if text[-1] not in "]}" or len(text) > MAX_LITERAL:
        return text
    try:
        found = ast.literal_eval(text)
        tokens = [one for one in tokenize.generate_tokens(StringIO(text).readline) if one.type != tokenize.NL]
    except (ValueError, SyntaxError, MemoryError, RecursionError, tokenize.TokenError):
        return text
    # NumPy prints ['a' 'b'] without commas, which Python would join.
    is_joined = any(one.type == other.type == tokenize.STRING for one, other in pairwise(tokens))
    return found if isinstance(found, list | dict) and not is_joined else text


def messages_of(row: Mapping[str, Any]) -> tuple[str, Sequence[Any]] | None:
    """Find the conversation of a row: its column, and its messages; None if there is none."""
    for column in CHATS:
        value = decoded_json(row.get(column))
        if value is not None and hasattr(value, "tolist"):  # in a cell of a frame
            value = value.tolist()
        if isinstance(value, list | tuple) and (column in _MEANT or is_messages(value)):
            return column, value
    return None


def is_messages(value: Any) -> bool:
    """Whether a value is a list that contains a message."""
    return isinstance(value, list | tuple) and any(map(is_message, value))


def is_message(value: Any) -> bool:
    """Whether a value is an object that a speaker said."""
    if not isinstance(value, Mapping):
        return False
    is_typed = value.get("type") in _TYPES and bool({"content", "data", "output", "arguments", "input"} & value.keys())
    return "role" in value or is_typed or {"from", "value"} <= value.keys() or isinstance(value.get("kwargs"), Mapping)


def given_role(message: Any) -> str:
    """Return the name of the speaker as a message gives it; empty if it names none."""
    named = message if isinstance(message, Mapping) else {}
    return str(next((named[key] for key in ("role", "from", "type") if key in named), "")).strip()


def names_of_roles(roles: Mapping[str, str]) -> dict[str, str]:
    """Read other names of roles, separated by commas: name -> role; all spellings of a name are one."""
    return {folded(name): role for role, names in roles.items() for name in names.split(",")}


def folded(name: str) -> str:
    """Fold the spellings of a name into one: of case, of a dotted capital I, and of accents."""
    return unicodedata.normalize("NFC", name.strip().casefold().replace("i\u0307", "i"))


def with_roles(messages: Sequence[Any], roles: Mapping[str, str]) -> list[Any]:
    """Give messages the usual names of roles, see `names_of_roles`."""
    known = names_of_roles(roles)
    given = [known.get(folded(given_role(message))) for message in messages]
    return [one if role is None else {**one, "role": role} for one, role in zip(messages, given, strict=True)]


def read_turns(column: str, messages: Sequence[Any], where: str) -> list[Turn]:
    """Read all messages; one that is none has no role, and the reason."""
    turns = []
    for number, message in enumerate(messages, start=1):
        try:
            what = f"{where}: the column {column!r}, message {number}"
            turns += [turn_of(part, what)._replace(number=number) for part in parted(message)]
        except FieldError as error:
            turns.append(Turn("", "", "", error))
    if not turns:
        raise FieldError(
            f"{where}: the column {column!r} holds no message", ErrorCode.EMPTY_FIELD, hint="Leave the row out."
        )
    return turns


def offered_by(row: Mapping[str, Any], where: str, *, answer: Any = None) -> dict[str, Any]:
    """Return the fields that the conversation of a row offers, without those that it lacks.

    If a column of the row has the `answer`, then all turns come before it, except a last one that is this answer.
    """
    found = messages_of(row)
    if found is None:
        own = {name: row[name] for name in OFFERED if row.get(name) is not None} if TURN in row else {}
        before = [own["history"]] if isinstance(own.get("history"), str) else []
        said = f"{row.get(SPEAKER) or 'Assistant'}: {own.get('output', '')}"
        return {**own, "conversation": "\n\n".join([*before, said])} if own else {}
    turns = read_turns(*found, where)
    if (lost := next((turn.lost for turn in turns if turn.lost is not None), None)) is not None:
        raise lost
    answers = [place for place, turn in enumerate(turns) if turn.role == "assistant"]
    wanted = row.get(TURN)
    if isinstance(wanted, str) and wanted.isdecimal():  # in a CSV cell
        wanted = int(wanted)
    if isinstance(wanted, int) and 0 < wanted <= len(answers):
        answers = answers[:wanted]
        turns = turns[: answers[-1] + 1]
    is_apart = answer is not None and not (turns[-1].role == "assistant" and turns[-1].text == answer)
    end = len(turns) if is_apart or not answers else answers[-1]
    return {**fields_at(turns, end), "conversation": written(turns)}


def fields_at(turns: Sequence[Turn], place: int) -> dict[str, Any]:
    """Return the fields that the turn at a place offers with those before it; there is none at the end."""
    before = turns[:place]
    tools: list[Any] = [turn.text for turn in before if turn.role == "tool"]
    asked = question_at(turns, place)
    offered = {
        "question": None if asked is None else before[asked].text,
        "output": turns[place].text if place < len(turns) else None,
        "history": written(before) or None,
        "system_prompt": "\n\n".join(turn.text for turn in turns if turn.role in ("system", "developer")) or None,
        "context": tools if len(tools) > 1 else (tools or [None])[0],
    }
    return {name: value for name, value in offered.items() if value is not None}


def question_at(turns: Sequence[Turn], place: int) -> int | None:
    """Find what the turn at a place answers: the last turn of somebody else; at the end, of a user."""
    own = turns[place] if place < len(turns) else None
    for earlier in range(place - 1, -1, -1):
        turn = turns[earlier]
        is_other = turn.role == "user" if own is None else turn.speaker != own.speaker
        if is_other and turn.role not in _NO_PEOPLE:
            return earlier
    return None


def written(turns: Sequence[Turn]) -> str:
    """Write turns with their speakers."""
    return "\n\n".join(f"{turn.speaker}: {turn.text}" for turn in turns if turn.text or turn.role not in _REASONING)
