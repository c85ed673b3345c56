"""Chat templates: the text that a tokenizer's template writes around a prompt, rendered once and cached.

Sample text never goes through a template: the template is rendered with placeholders, replaced by the texts later.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.errors import TokenizerError
from geval_local.models.prompt_ending import Ending, Renderings, find_ending

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["ChatFrame", "chat_frame"]

_SCRIPT = Path(__file__).with_name("render_template.py")
_PATIENCE = 30.0
#: All switches that turn off thinking in published templates. Templates ignore unknown ones.
_SWITCHES: dict[str, Any] = {"enable_thinking": False, "thinking": False, "reasoning": False, "thinking_budget": 0}
#: Names under which templates look for an assistant's thoughts before the answer.
_REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
_USER, _ANSWER, _THOUGHT, _NEXT = (f"\ue000{name}\ue001" for name in ("user", "answer", "thought", "next"))
_REMEDY = "Use --style completion (style: completion in a models file of your own), or correct the template: a file "
_REMEDY += "chat_template.jinja in the directory of a judge's safetensors takes precedence."


@dataclass(frozen=True)
class ChatFrame:
    """The text that a chat template writes around a user's message.

    Attributes
    ----------
    before : str
        Text before the message.
    after : str
        Text from the message to the start of the answer.
    closes_thinking : bool
        Whether `after` contains an empty thinking block.
    """

    before: str
    after: str
    closes_thinking: bool


def chat_frame(tokenizer: PreTrainedTokenizerBase) -> ChatFrame:
    """Return the text that a tokenizer's template writes around a prompt, up to the start of the answer.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        A tokenizer with a chat template.

    Raises
    ------
    TokenizerError
        If there is no usable template, it fails, does not show the user's message once, or leaves the prompt inside
        thinking that cannot be closed with tokens of this tokenizer.
    """
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
    user, answer = {"role": "user", "content": _USER}, {"role": "assistant", "content": _ANSWER}
    follow_up = {"role": "user", "content": _NEXT}
    # Only a mark that occurs in the template can be one that it searches for in an answer.
    marks = [token for token in tokens if token.strip() and token in template]
    conversations: list[list[dict[str, str]]] = [
        [user],
        [user, answer],
        [user, answer, follow_up],
        [user, answer | dict.fromkeys(_REASONING, _THOUGHT)],
        *([user, answer | {"content": f"{_THOUGHT}{mark}{_ANSWER}"}, follow_up] for mark in marks),
    ]
    calls = [
        {
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": len(messages) == 1,
            **dict(special),
            **_SWITCHES,
        }
        for messages in conversations
    ]
    opened, *others = _render(template, calls)
    if "error" in opened:
        raise TokenizerError(f"the chat template fails: {opened['error']}")
    text = opened["text"]
    if text.count(_USER) != 1:
        raise TokenizerError("the chat template does not show the user's message exactly once")
    before, prompt = text.split(_USER)
    finished, continued, thought, *stripped = (_after_the_message(other.get("text", "")) for other in others)
    ending: Ending = find_ending(
        Renderings(
            prompt=prompt,
            history=_up_to(finished, _ANSWER) if _ANSWER in finished else _up_to(continued, _ANSWER),
            thought=_around_thought(thought),
            closing=tuple(
                mark for mark, text in zip(marks, stripped, strict=True) if _ANSWER in text and _THOUGHT not in text
            ),
        ),
        frozenset(tokens),
    )
    return ChatFrame(before, ending.text, ending.closes_thinking)


def _after_the_message(text: str) -> str:
    return text.partition(_USER)[2]


def _up_to(text: str, mark: str) -> str | None:
    return text.partition(mark)[0] if text.count(mark) == 1 else None


def _around_thought(text: str) -> tuple[str, str] | None:
    """Return the text before an assistant's thoughts, and between the thoughts and the answer."""
    before, found, rest = text.partition(_THOUGHT)
    between, answered, _ = rest.partition(_ANSWER)
    return (before, between) if found and answered and _THOUGHT not in between else None


def _render(template: str, calls: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Render in a separate process, see `render_template`."""
    task = json.dumps({"template": template, "calls": calls}).encode()
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
