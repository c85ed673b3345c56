"""Chat templates: the text that a tokenizer's template writes around a prompt, rendered once and cached.

Sample text never goes through a template: the template is rendered with placeholders, replaced by the texts later.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.errors import TokenizerError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Patterns of marks: <x>, <|x|>, [X], ◁x▷. A tokenizer's added tokens are always marks.
MARK = r"<[^<>\s]{1,80}>|\[/?[A-Z][A-Z0-9_]{1,40}\]|◁[^◁▷\s]{1,40}▷"
_THINKING = re.compile(
    r"(?<!no)(?<!no[-_])(think|thought|reason|reflect|analy[sz]|ponder|deliberat|rationale|scratchpad|monologue"
    r"|(?<![a-z])(cot|inner)(?![a-z]))",
    re.IGNORECASE,
)
_ANSWERING = re.compile(r"final|respon[sd]|answer|output", re.IGNORECASE)
_CLOSING = re.compile(r"^[<\[◁]+[|｜]?/|(?<![a-z])(end|close|suffix|stop)(?![a-z])|^<[^|｜].*[|｜]>$", re.IGNORECASE)
#: The parts of a mark that tell on which side of a block it stands.
_SIDE = re.compile(r"(?<![a-z])(start|begin|open|prefix|end|close|suffix|stop)(?![a-z])|[\W_]", re.IGNORECASE)


@dataclass(frozen=True)
class Renderings:
    """The text that a template writes around the user's message, with all thinking switched off."""

    #: Text before the message.
    before: str
    #: The generation prompt.
    prompt: str
    #: The same two texts without any switch.
    unswitched: tuple[str, str]
    #: The same two texts with all thinking switched on.
    switched_on: tuple[str, str]
    #: Text up to an assistant's answer in a finished conversation; None if the template shows no answer.
    history: str | None = None
    #: Text up to an assistant's thoughts, and between thoughts and answer; None if the template does not show them.
    thought: tuple[str, str] | None = None
    #: Marks after which the template expects the answer, dropping the text before them.
    closing: tuple[str, ...] = ()
    #: Mark at the end of an answer in a conversation that goes on; None if there is none.
    ending: str | None = None


@dataclass(frozen=True)
class ThoughtFrame:
    """The text that a chat template writes around a user's message and the thoughts about it."""

    #: Text before the message, with thinking switched on.
    before: str
    #: Text from the message to the first thought.
    opening: str
    #: Text between the last thought and the answer; it starts with white space or with `mark`.
    closing: str
    #: The mark by which the model ends its thoughts.
    mark: str


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
    #: The same for a judge that is to think; None if the template does not show where thoughts stand.
    thought: ThoughtFrame | None = None


def find_frame(seen: Renderings, tokens: frozenset[str]) -> ChatFrame:
    """Find the text after which an answer starts, and where a thought would stand before it."""
    frame = _answer_frame(seen, _Rule(seen, tokens))
    return replace(frame, thought=_Rule(seen, tokens).thought(frame))


def _answer_frame(seen: Renderings, rule: _Rule) -> ChatFrame:
    text = rule.ending()
    inside = rule.still_open(text)
    if inside is not None:
        text = rule.closed(text, inside)
    if rule.has_closed or rule.thinks(text):
        return ChatFrame(seen.before, text, closes_thinking=True)
    block = rule.unasked_block(text)
    if block is None:
        return ChatFrame(seen.before, text, False, rule.warning(text))
    return ChatFrame(seen.before, block, closes_thinking=True)


class _Rule:
    """The rule for one template and tokenizer.

    `has_closed`: it closed a block; `is_unlike_history`: the prompt ends with prose that stands before no answer.
    """

    def __init__(self, seen: Renderings, tokens: frozenset[str]) -> None:
        self.seen = seen
        self.tokens = tokens
        self.has_closed = False
        self.is_unlike_history = False
        known = sorted((re.escape(token) for token in tokens if token.strip()), key=len, reverse=True)
        pattern = "|".join([*known, MARK])
        self._pieces, self._words = re.compile(f"({pattern})"), re.compile(rf"({pattern}|\s)")
        # What the template writes only when thinking is switched off does not open it, whatever its name.
        self._harmless = set(self._marks(seen.prompt)) - set(self._marks(seen.unswitched[1])) | set(seen.closing)

    def ending(self) -> str:
        """Join the generation prompt with the place of an answer in a finished conversation."""
        prompt, history = self.seen.prompt, self.seen.history
        if history is None:
            return prompt
        if history.startswith(prompt):
            return history
        shared = self._shared(prompt, history)
        extra, place = prompt[len(shared) :], history[len(shared) :]
        if not extra.strip():
            return history if place.strip() else prompt
        if set(self._marks(extra)) & set(self._marks(place)):
            return history
        is_there = place.strip() in extra  # a header that a turn of the switches stands before
        channel = "" if self.thinks(place) or not place.strip() or is_there else place
        inside = self.still_open(extra, strange=self.seen.unswitched[1] == prompt)
        if inside is None:
            self.is_unlike_history = not (self._marks(extra) or _ANSWERING.search(extra))
            return prompt + channel
        if place.strip() and self._closer(inside) is None and self._shown(prompt) is None:
            return history
        return self.closed(prompt, inside, channel)

    def closed(self, text: str, opening: str, channel: str = "") -> str:
        """Close the block that `opening` opened at the end of a text: as shown in history, else with a mark."""
        self.has_closed = True
        shown, closer = self._shown(text), self._closer(opening)
        if shown is not None:
            return shown
        if closer is None:
            raise TokenizerError(
                f"the chat template leaves a prompt inside {opening}, and the tokenizer has no token that is known to "
                "close it: the next text would be a thought, not an answer"
            )
        return f"{text}\n{closer}\n\n{channel}"

    def unasked_block(self, text: str) -> str | None:
        """Return the text with the empty block that a model would otherwise begin by itself, if the template tells."""
        if not self._is_left_to_the_model(text):
            return None
        if self.seen.thought is not None:
            return self._shown(text)
        for mark in filter(_THINKING.search, self.seen.closing):
            others = self.tokens if mark in self.tokens else [mark.replace("/", "", 1)]
            opening = _nearest(mark, [other for other in others if _is_pair(other, mark)])
            if opening is not None:
                return f"{text}{opening}\n\n{mark}\n\n"
        return None

    def thought(self, frame: ChatFrame) -> ThoughtFrame | None:
        """Find where thoughts stand: as the template shows them, else where the frame has its empty block."""
        before, prompt = self.seen.switched_on
        shown, closing = self.seen.thought or ("", "")
        _, found, rest = shown.rpartition(prompt.strip()) if prompt.strip() else ("", "", "")
        if (inside := self.still_open(prompt)) is not None:
            opening = prompt
            closing = closing or frame.after.removeprefix(prompt) * frame.after.startswith(prompt)
            closing = closing or self._unseen_closing(inside, frame)
        elif closing and found:
            opening = prompt.rstrip() + rest
        elif frame.closes_thinking and frame.after.startswith(prompt.rstrip()):
            block = frame.after.removeprefix(prompt.rstrip())
            start = next(iter([one.start() for one in self._pieces.finditer(block)][1:2]), 0)
            # An empty block has an empty line where a thought is between two line ends.
            lines = "\n" * block[:start].endswith("\n\n")
            opening, closing = prompt.rstrip() + block[: start - len(lines)], lines + block[start:]
        else:
            return None
        marks = self._marks(closing)
        return ThoughtFrame(before, opening, closing, marks[0]) if marks else None

    def _unseen_closing(self, opening: str, frame: ChatFrame) -> str:
        """Return what ends a thought that no rendering shows: the opening's pair, or the end of a message."""
        if (closer := self._closer(opening)) is not None:
            return f"\n{closer}\n\n"
        # A channel is a message of its own: the answer follows its end as it follows that of the user's message.
        return frame.after if self.seen.ending and frame.after.startswith(self.seen.ending) else ""

    def warning(self, text: str) -> str | None:
        """Tell why the model may think after a text all the same."""
        marks = self._marks(self.seen.before)
        pairs = (f"{a} and {b}" for n, a in enumerate(marks) if _opens(a) for b in marks[n:] if _is_pair(a, b))
        told = next((f"the chat template's own system text asks for thoughts between {pair}" for pair in pairs), None)
        if told is None and self._is_left_to_the_model(text) and (self.seen.closing or self.seen.thought):
            told = " before ".join(("the chat template knows earlier answers with thoughts", *self.seen.closing[:1]))
        line = self._pieces.split(text.rstrip())[-1].rpartition("\n")[2]
        if told is None and (self.is_unlike_history or _THINKING.search(line)):
            told = f"the chat template ends a prompt with {line!r}"
        return told and f"{told}, and no empty block is known: it may think instead of answering; see the label mass"

    def still_open(self, text: str, *, strange: bool = False) -> str | None:
        """Find the mark of a thinking block that a text opens and does not close; if `strange`, of any block."""
        parts = self._pieces.split(text)
        if strange and len(parts) == 1 and (_THINKING.search(text) or self._shown(self.seen.prompt)):
            return text.strip()  # a line of prose
        stack: list[str] = []
        for mark, word in zip(parts[1::2], parts[2::2], strict=True):
            opening = next((old for old in reversed(stack) if old == mark or self._closes(mark, old)), None)
            if opening is not None:
                del stack[stack.index(opening) :]
            is_open = _thinking_word(word) or (mark not in self._harmless and _opens(mark, strange and not stack))
            if is_open and opening in (None, mark):
                stack.append(mark)
        return stack[-1] if stack else None

    def thinks(self, text: str) -> bool:
        """Tell whether a text contains a mark or a channel of thinking."""
        parts = self._pieces.split(text)
        return any(map(_THINKING.search, parts[1::2])) or any(map(_thinking_word, parts[2::2]))

    def _is_left_to_the_model(self, text: str) -> bool:
        """Tell whether neither the template's switches nor the place of its answers decide about thinking."""
        is_plain = text.strip() == self.seen.prompt.strip()
        seen = (self.seen.before, self.seen.prompt)
        return is_plain and seen == self.seen.unswitched == self.seen.switched_on

    def _marks(self, text: str) -> list[str]:
        return self._pieces.split(text)[1::2]

    def _shown(self, text: str) -> str | None:
        """Add to a text what the template writes before thoughts, and between thoughts and answer."""
        start, end = self.seen.thought or ("", "")
        if not end or not (start.startswith(text.rstrip()) or text.startswith(start.rstrip())):
            return None
        return (start if start.startswith(text.rstrip()) else text) + end

    def _closes(self, mark: str, opening: str) -> bool:
        shown = self._marks(self.seen.thought[1])[:1] if self.seen.thought else []
        return mark in (*shown, *self.seen.closing) or _is_pair(opening, mark)

    def _closer(self, opening: str) -> str | None:
        """Return the mark that closes a block; a token if the opening mark is one."""
        is_token = opening in self.tokens
        known = [mark for mark in (*self.tokens, *self.seen.closing) if mark in self.tokens or not is_token]
        named = _nearest(opening, [mark for mark in known if _is_pair(opening, mark)])
        plain = re.sub(r"^([<\[])(\w+[>\]])$", r"\1/\2", opening)
        dropped = (mark for mark in self.seen.closing if mark in known)
        return named or (plain if plain != opening and not is_token else next(dropped, None))

    def _shared(self, first: str, second: str) -> str:
        """Return the longest common prefix that cuts neither a mark nor a word."""
        pairs = zip(self._words.split(first), self._words.split(second), strict=False)
        return "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _opens(mark: str, is_strange: bool = False) -> bool:
    return not _CLOSING.search(mark) and bool(_THINKING.search(mark) or (is_strange and not _ANSWERING.search(mark)))


def _nearest(mark: str, others: Iterable[str]) -> str | None:
    """Return the mark whose characters are most like another's."""
    return min(others, key=lambda other: (len(set(other) ^ set(mark)), other), default=None)


def _is_pair(opening: str, closing: str) -> bool:
    """Tell whether two marks have one name and one kind of brackets, the second one as that of an end."""
    is_end = opening[:1] == closing[:1] and _CLOSING.search(closing) and not _CLOSING.search(opening)
    return bool(is_end) and _SIDE.sub("", opening.lower()) == _SIDE.sub("", closing.lower())


def _thinking_word(text: str) -> bool:
    """Tell whether a text is a single word for thinking, such as the name of a channel."""
    return bool(re.fullmatch(r"\s*\w+\s*", text) and _THINKING.search(text))


_SCRIPT = Path(__file__).with_name("render_template.py")
_PATIENCE = 30.0
#: All switches of thinking in published templates, off and on. Templates ignore unknown ones.
_OFF: dict[str, Any] = {"enable_thinking": False, "thinking": False, "reasoning": False, "thinking_budget": 0}
_ON: dict[str, Any] = {"enable_thinking": True, "thinking": True, "reasoning": True, "thinking_budget": -1}
#: Names under which templates look for an assistant's thoughts before the answer.
_REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
#: Literals at which a template may split an answer.
_SEARCHED = re.compile(r"(?:split|partition)\(\s*(['\"])(.+?)\1")
_USER, _ANSWER, _THOUGHT, _NEXT = (f"\ue000{name}\ue001" for name in ("user", "answer", "thought", "next"))
_REMEDY = "Use `style=completion` (style: completion in a models file of your own), or correct the template: a file "
_REMEDY += "chat_template.jinja in the directory of a judge's safetensors takes precedence."


def chat_frame(tokenizer: PreTrainedTokenizerBase) -> ChatFrame:
    """Return the text that a tokenizer's template writes around a prompt, up to the start of the answer."""
    where = _whereabouts(tokenizer)
    template = tokenizer.chat_template
    if not template:
        raise TokenizerError("a chat style needs a chat template, and the tokenizer has none", hint=_REMEDY)
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
    unswitched, switched_on = (result.get("text", results[0]["text"]).partition(_USER)[::2] for result in results[1:3])
    finished, continued, with_field, with_part, in_parts, *stripped = (
        result.get("text", "").partition(_USER)[2] for result in results[3:]
    )
    ending = re.match("|".join([*map(re.escape, tokens), MARK]), continued.partition(_ANSWER)[2])
    # A template that writes an answer in parts as it writes a plain one knows what parts are.
    thoughts = (with_field, with_part) if in_parts == finished else (with_field,)
    return find_frame(
        Renderings(
            before=before,
            prompt=prompt,
            unswitched=unswitched,
            switched_on=switched_on,
            history=_up_to(finished, _ANSWER) if _ANSWER in finished else _up_to(continued, _ANSWER),
            thought=next(filter(None, map(_around_thought, thoughts)), None),
            closing=tuple(
                mark.strip()
                for mark, text in zip(marks, stripped, strict=True)
                if _ANSWER in text and _THOUGHT not in text
            ),
            ending=ending and ending[0],
        ),
        frozenset(tokens),
    )


def _conversations(put: Callable[[str], Any], marks: Sequence[str]) -> list[list[dict[str, Any]]]:
    """List what is rendered, with content in the form that `put` gives it; the first three are the prompt."""
    user, answer = ({"role": role, "content": put(text)} for role, text in (("user", _USER), ("assistant", _ANSWER)))
    follow_up = {"role": "user", "content": put(_NEXT)}
    parts = _parts(_ANSWER)
    return [
        [user],
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
    """Render in a separate process, see `render_template`.

    Thinking is left to the template in the second one, switched on in the third, and switched off in all others.
    """
    settings = {"tools": None, "documents": None, **dict(special)}
    ways: list[str | None] = ["off", None, "on"]
    calls = [
        (way, {"messages": messages, "add_generation_prompt": len(messages) == 1} | settings)
        for way, messages in zip_longest(ways, conversations, fillvalue="off")
    ]
    task = json.dumps({"template": template, "off": _OFF, "on": _ON, "calls": calls}).encode()
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
