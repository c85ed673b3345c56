"""Chat templates: the text that a tokenizer's template writes around a prompt, rendered once and cached.

Sample text never goes through a template: the template is rendered with placeholders, replaced by the texts later.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.errors import TokenizerError
from geval_local.models.prompt_ending import MARK, Renderings, find_ending

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatFrame", "chat_frame"]

_SCRIPT = Path(__file__).with_name("render_template.py")
_PATIENCE = 30.0
#: All switches that turn off thinking in published templates. Templates ignore unknown ones.
_SWITCHES: dict[str, Any] = {"enable_thinking": False, "thinking": False, "reasoning": False, "thinking_budget": 0}
#: Names under which templates look for an assistant's thoughts before the answer.
_REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
#: Literals at which a template may split an answer.
_SEARCHED = re.compile(r"(?:split|partition)\(\s*(['\"])(.+?)\1")
_USER, _ANSWER, _THOUGHT, _NEXT = (f"\ue000{name}\ue001" for name in ("user", "answer", "thought", "next"))
_REMEDY = "Use --style completion (style: completion in a models file of your own), or correct the template: a file "
_REMEDY += "chat_template.jinja in the directory of a judge's safetensors takes precedence."


@dataclass(frozen=True)
class ChatFrame:
    """The text that a chat template writes around a user's message."""

    #: Text before the message.
    before: str
    #: Text from the message to the start of the answer.
    after: str
    #: Whether `after` contains an empty thinking block.
    closes_thinking: bool
    #: Why the model may think instead of answering all the same.
    warning: str | None = None


def chat_frame(tokenizer: PreTrainedTokenizerBase) -> ChatFrame:
    """Return the text that a tokenizer's template writes around a prompt, up to the start of the answer."""
    where = _whereabouts(tokenizer)
    template = tokenizer.chat_template
    if isinstance(template, dict):
        if "default" not in template:
            raise TokenizerError(
                f"{where} names chat templates ({', '.join(map(str, template))}), but none of them is the default",
                hint=_REMEDY,
            )
        template = template["default"]
    if not isinstance(template, str):
        raise TokenizerError(
            f"the chat template in {where} is not a text, but of type {type(template).__name__}", hint=_REMEDY
        )
    names = {key: str(value) for key, value in tokenizer.special_tokens_map.items() if isinstance(value, str)}
    try:
        return _frame(template, tuple(sorted(names.items())), tuple(sorted(map(str, tokenizer.get_added_vocab()))))
    except TokenizerError as error:
        raise TokenizerError(f"{where}: {error.message}", hint=_REMEDY) from error


@lru_cache(maxsize=64)
def _frame(template: str, special: tuple[tuple[str, str], ...], tokens: tuple[str, ...]) -> ChatFrame:
    # Only a text that occurs in the template can be one that it searches for in an answer.
    found = {text.replace("\\n", "\n") for _, text in _SEARCHED.findall(template)}.union(re.findall(MARK, template))
    marks = sorted(text for text in found.union(t for t in tokens if t in template) if len(text.strip()) > 1)
    results = _render(template, special, _conversations(str, marks))
    fault = _fault(results[0])
    if fault is not None:  # some templates take content only as a list of parts
        results = _render(template, special, _conversations(_parts, marks))
        if _fault(results[0]) is not None:
            raise TokenizerError(fault)
    before, prompt = results[0]["text"].split(_USER)
    unswitched = results[1].get("text", results[0]["text"]).partition(_USER)
    finished, continued, with_field, with_part, in_parts, *stripped = (
        result.get("text", "").partition(_USER)[2] for result in results[2:]
    )
    # A template that writes an answer in parts as it writes a plain one knows what parts are.
    thoughts = (with_field, with_part) if in_parts == finished else (with_field,)
    ending = find_ending(
        Renderings(
            before=before,
            prompt=prompt,
            unswitched=(unswitched[0], unswitched[2]),
            history=_up_to(finished, _ANSWER) if _ANSWER in finished else _up_to(continued, _ANSWER),
            thought=next(filter(None, map(_around_thought, thoughts)), None),
            closing=tuple(
                mark.strip()
                for mark, text in zip(marks, stripped, strict=True)
                if _ANSWER in text and _THOUGHT not in text
            ),
        ),
        frozenset(tokens),
    )
    return ChatFrame(before, ending.text, ending.closes_thinking, ending.warning)


def _conversations(put: Callable[[str], Any], marks: Sequence[str]) -> list[list[dict[str, Any]]]:
    """List what is rendered, with content in the form that `put` gives it; the first two are the prompt."""
    user, answer = ({"role": role, "content": put(text)} for role, text in (("user", _USER), ("assistant", _ANSWER)))
    follow_up = {"role": "user", "content": put(_NEXT)}
    parts = _parts(_ANSWER)
    return [
        [user],
        [user],
        [user, answer],
        [user, answer, follow_up],
        [user, answer | dict.fromkeys(_REASONING, _THOUGHT)],
        [user, answer | {"content": [{"type": "thinking", "thinking": _THOUGHT}, *parts]}],
        [user, answer | {"content": parts}],
        *([user, answer | {"content": put(f"{_THOUGHT}{mark}{_ANSWER}")}, follow_up] for mark in marks),
    ]


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _fault(result: dict[str, str]) -> str | None:
    if "error" in result:
        return f"the chat template fails: {result['error']}"
    is_shown = result["text"].count(_USER) == 1
    return None if is_shown else "the chat template does not show the user's message exactly once"


def _up_to(text: str, mark: str) -> str | None:
    return text.partition(mark)[0] if text.count(mark) == 1 else None


def _around_thought(text: str) -> tuple[str, str] | None:
    """Return the text before an assistant's thoughts, and between the thoughts and the answer."""
    before, found, rest = text.partition(_THOUGHT)
    between, answered, _ = rest.partition(_ANSWER)
    return (before, between) if found and answered and between.strip() and _THOUGHT not in between else None


def _render(
    template: str, special: tuple[tuple[str, str], ...], conversations: Sequence[list[dict[str, Any]]]
) -> list[dict[str, str]]:
    """Render in a separate process, see `render_template`; all but the second one with thinking switched off."""
    settings = {"tools": None, "documents": None, **dict(special)}
    calls = [
        {"messages": messages, "add_generation_prompt": len(messages) == 1} | settings for messages in conversations
    ]
    task = json.dumps({"template": template, "switches": _SWITCHES, "unswitched": 1, "calls": calls}).encode()
    try:
        done = subprocess.run(
            [sys.executable, str(_SCRIPT)], input=task, capture_output=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise TokenizerError("the chat template does not come to an end") from error
    if done.returncode < 0:
        raise TokenizerError("the chat template does not come to an end within the time and memory that one may take")
    try:
        results: list[dict[str, str]] = json.loads(done.stdout)
    except ValueError as error:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise TokenizerError(f"the chat template cannot be rendered: {said[-1] if said else 'no result'}") from error
    return results


def _whereabouts(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the file that contains a tokenizer's chat template."""
    directory = Path(str(tokenizer.name_or_path or "."))
    names = ("chat_template.jinja", "tokenizer_config.json", "chat_template.json")
    files = [directory, *(directory / name for name in names)]  # a GGUF file contains its own tokenizer
    try:
        found = next((str(file) for file in files if tokenizer.name_or_path and file.is_file()), None)
    except (OSError, ValueError):
        found = None
    return found or "the tokenizer"
