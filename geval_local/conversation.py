"""Conversations: lists of messages in OpenAI's or ShareGPT's format, read as turns, and the fields found in them.

A row with a conversation offers fields in addition to its columns: the last answer as ``output``, and what it answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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

#: ShareGPT's names of speakers, and their variants -> OpenAI's.
_SPEAKERS = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bing", "bard", "claude", "bot", "ai", "model", "function_call"), "assistant"),
    **dict.fromkeys(("function", "observation", "function_response", "tool_response", "ipython"), "tool"),
}
_SHAPE = "A message is an object with role and content, or with from and value."


class Turn(NamedTuple):
    """One message."""

    #: user, assistant, system, tool, or any other name, unchanged.
    role: str
    #: The role as the form shows it.
    speaker: str
    #: The content; a text, unless the message contains something else.
    text: Any


def turn_of(message: Mapping[str, Any], what: str) -> Turn:
    """Read one message; tool calls are appended to its content."""
    role = message.get("role", message.get("from"))
    content = message["content"] if "content" in message else message.get("value")
    calls = message.get("tool_calls") or [one for one in (message.get("function_call"),) if one]
    has_content = bool({"content", "value"} & message.keys())
    if not isinstance(role, str) or not role.strip() or not (has_content or calls):
        raise FieldError(f"{what} is an object without a role and a content, not text", ErrorCode.NOT_TEXT, hint=_SHAPE)
    if isinstance(content, list | tuple) and any(isinstance(part, Mapping) for part in content):
        content = "\n".join(_part(part, f"{what}, part {index}") for index, part in enumerate(content, start=1))
    if calls and (content is None or isinstance(content, str)):
        written = [_call(one, what) for one in (calls if isinstance(calls, list | tuple) else [calls])]
        content = "\n".join([*([content] if content else []), *written])
    name = role.strip()
    role = _SPEAKERS.get(name.lower(), name.lower())
    shown = role if "from" in message and "role" not in message else name
    return Turn(role, f"{shown[:1].upper()}{shown[1:]}", content)


def _part(part: Any, what: str) -> str:
    text = part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        kind = part.get("type", "an object") if isinstance(part, Mapping) else type(part).__name__
        raise FieldError(f"{what} of the content is {kind!s}, not text", ErrorCode.NOT_TEXT, hint=_SHAPE)
    return text


def _call(call: Any, what: str) -> str:
    """Write a tool call as code: ``get_weather({"city": "Oslo"})``."""
    asked = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(asked, Mapping) or not isinstance(asked.get("name"), str):
        raise FieldError(
            f"{what} calls a tool without a name",
            ErrorCode.NOT_TEXT,
            hint="A call has a function with name and arguments.",
        )
    given = asked.get("arguments", {})
    written = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    return f"[calls {asked['name']}({written})]"


def messages_of(row: Mapping[str, Any]) -> tuple[str, Sequence[Any]] | None:
    """Find the conversation of a row: its column, and its messages; None if there is none."""
    for column in CHATS:
        value = row.get(column)
        if isinstance(value, str) and value.startswith("["):  # in a CSV cell
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                continue
        if value is not None and hasattr(value, "tolist"):  # in a cell of a frame
            value = value.tolist()
        if isinstance(value, list | tuple) and (column in _MEANT or is_messages(value)):
            return column, value
    return None


def is_messages(value: Any) -> bool:
    """Whether a value is a list that contains a message."""
    return isinstance(value, list | tuple) and any(
        isinstance(one, Mapping) and ("role" in one or {"from", "value"} <= one.keys()) for one in value
    )


def turns_of(column: str, messages: Sequence[Any], where: str) -> list[Turn]:
    """Read all messages; an error names the first invalid one."""
    turns = []
    for number, message in enumerate(messages, start=1):
        what = f"{where}: the column {column!r}, message {number}"
        if not isinstance(message, Mapping):
            raise FieldError(f"{what} is no object", ErrorCode.NOT_TEXT, hint=_SHAPE)
        turn = turn_of(message, what)
        if not isinstance(turn.text, str):
            kind = "null" if turn.text is None else f"of type {type(turn.text).__name__}"
            raise FieldError(f"{what}: the content is {kind}, not text", ErrorCode.NOT_TEXT, hint=_SHAPE)
        turns.append(turn)
    if not turns:
        raise FieldError(
            f"{where}: the column {column!r} holds no message", ErrorCode.EMPTY_FIELD, hint="Leave the row out."
        )
    return turns


def offered_by(row: Mapping[str, Any], where: str, *, is_answered: bool) -> dict[str, Any]:
    """Return the fields that the conversation of a row offers, without those that it lacks.

    If a column of the row has the answer (`is_answered`), then all turns come before it.
    """
    found = messages_of(row)
    if found is None:
        return {}
    turns = turns_of(*found, where)
    answers = [place for place, turn in enumerate(turns) if turn.role == "assistant"]
    wanted = row.get(TURN)
    if isinstance(wanted, str) and wanted.isdecimal():  # in a CSV cell
        wanted = int(wanted)
    if isinstance(wanted, int) and 0 < wanted <= len(answers):
        answers = answers[:wanted]
        turns = turns[: answers[-1] + 1]
    end = len(turns) if is_answered or not answers else answers[-1]
    before = turns[:end]
    tools = [turn.text for turn in before if turn.role == "tool"]
    offered = {
        "question": next((turn.text for turn in reversed(before) if turn.role == "user"), None),
        "output": turns[end].text if end < len(turns) else None,
        "history": _written(before) or None,
        "conversation": _written(turns),
        "system_prompt": "\n\n".join(turn.text for turn in turns if turn.role in ("system", "developer")) or None,
        "context": tools if len(tools) > 1 else (tools or [None])[0],
    }
    return {name: value for name, value in offered.items() if value is not None}


def _written(turns: Sequence[Turn]) -> str:
    return "\n\n".join(f"{turn.speaker}: {turn.text}" for turn in turns)
