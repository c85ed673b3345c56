"""Start of the answer: the text that must stand between a prompt and the form's last line.

A template's generation prompt does not always end there. It may open a thinking block, which precedes the answer, or
stop before a channel that the model would name by itself. No model is treated specially; the template decides. Where
it puts the answer of a finished conversation, there an answer starts. A block opened by the generation prompt but not
open at that place is closed with the template's own marks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from geval_local.errors import TokenizerError

__all__ = ["Ending", "Renderings", "find_ending"]

#: Patterns of marks: <x>, <|x|>, [X], ◁x▷. A tokenizer's added tokens are always marks.
_MARK = r"<[^<>\s]{1,80}>|\[/?[A-Z][A-Z0-9_]{1,40}\]|◁[^◁▷\s]{1,40}▷"
_THINKING = re.compile(
    r"think|thought|reason|reflect|analy[sz]|ponder|deliberat|rationale|scratchpad|monologue|(?<![a-z])(cot|inner)(?![a-z])",
    re.IGNORECASE,
)
_ANSWERING = re.compile(
    r"final|respon[sd]|answer|output|(?<![a-z])(text|content|message|outer)(?![a-z])", re.IGNORECASE
)
#: Marks for the absence of thinking.
_DENIAL = re.compile(r"(?<![a-z])(no|non|off|skip|without|disabled?)(?![a-z])|nothink", re.IGNORECASE)
_CLOSING = re.compile(r"^[<\[◁]+[|｜]?/|(?<![a-z])(end|close|suffix|stop)(?![a-z])|^<[^|｜].*[|｜]>$", re.IGNORECASE)
#: Rules that derive a closing mark's name from the opening mark's.
_PAIRS = [
    (r"^([<\[◁][|｜]?)", r"\1/"),
    (r"^([<\[◁])", r"\1/"),
    (r"^<([|｜])([^|｜]*)>$", r"<\2\1>"),
    ("START", "END"),
    ("start", "end"),
    ("BEGIN", "END"),
    ("begin", "end"),
    ("OPEN", "CLOSE"),
    ("open", "close"),
    ("PREFIX", "SUFFIX"),
    ("prefix", "suffix"),
]


@dataclass(frozen=True)
class Renderings:
    """The text that a template writes after the user's message, with all thinking switched off.

    Attributes
    ----------
    prompt : str
        The generation prompt.
    history : str or None
        Text up to an assistant's answer in a finished conversation; None if the template shows no answer.
    thought : tuple of str, or None
        Text up to an assistant's thoughts, and between thoughts and answer; None if the template does not show them.
    closing : tuple of str
        Marks after which the template expects the answer, dropping the text before them.
    """

    prompt: str
    history: str | None = None
    thought: tuple[str, str] | None = None
    closing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ending:
    """Text between the user's message and the answer; `closes_thinking`: with an empty thinking block."""

    text: str
    closes_thinking: bool


def find_ending(seen: Renderings, tokens: frozenset[str]) -> Ending:
    """Find the text after which an answer starts.

    Parameters
    ----------
    seen : Renderings
        Texts that the template writes.
    tokens : frozenset of str
        Added tokens of the tokenizer; only these may be added as closing marks.

    Raises
    ------
    TokenizerError
        If the answer would start inside a thinking block and no token is known to close it.
    """
    rule = _Rule(seen, tokens)
    text = rule.ending()
    inside = rule.still_open(text)
    if inside is not None:
        text = rule.closed(text, inside)
    return Ending(text, any(_THINKING.search(piece) for piece in rule.marks(text) + rule.channels(text)))


class _Rule:
    """The rule for one template and tokenizer."""

    def __init__(self, seen: Renderings, tokens: frozenset[str]) -> None:
        self.seen = seen
        self.tokens = tokens
        known = sorted((re.escape(token) for token in tokens if token.strip()), key=len, reverse=True)
        self._pieces = re.compile(f"({'|'.join([*known, _MARK])})")

    def ending(self) -> str:
        """Join the generation prompt with the place of an answer in a finished conversation."""
        prompt, history = self.seen.prompt, self.seen.history
        if history is None:
            return prompt
        if history.startswith(prompt):
            return history
        shared = self._shared(prompt, history)
        extra, place = prompt[len(shared) :], history[len(shared) :]
        is_apart = not set(self.marks(extra)) & set(self.marks(place))
        # The text that an answer's position adds to the prompt, unless it opens thinking.
        channel = place if is_apart and self.marks(place) and not self._thinks(place) else ""
        inside = self.still_open(extra, before=shared, strange=set(self.marks(place)))
        if inside is None:
            if not extra.strip() and self.marks(place):
                return prompt + place
            return prompt + channel
        if self._closing_token(inside) is not None:
            return self.closed(prompt, inside) + channel
        if self.marks(place):
            return history
        raise self._refusal(inside)

    def closed(self, text: str, opening: str) -> str:
        """Close the thinking block that `opening` opened at the end of a text."""
        if self.seen.thought is not None:
            start, end = self.seen.thought
            if start.rstrip() == text.rstrip() and self.marks(end) and set(self.marks(end)) <= self.tokens:
                return start + end
        token = self._closing_token(opening)
        if token is None:
            raise self._refusal(opening)
        return f"{text}\n{token}\n\n"

    def marks(self, text: str) -> list[str]:
        """List the marks in a text."""
        return self._pieces.split(text)[1::2]

    def channels(self, text: str) -> list[str]:
        """List the single words after a mark, such as channel names."""
        return [word.strip() for word in self._pieces.split(text)[2::2] if re.fullmatch(r"\s*\w+\s*", word)]

    def still_open(self, text: str, *, before: str = "", strange: set[str] | None = None) -> str | None:
        """Find the mark of a thinking block that a text opens and does not close.

        `before` is the preceding text. With `strange`, the marks that an answer has at this position, any other mark
        opens a block that must be closed.
        """
        stack: list[str] = []
        last = (self.marks(before) or [""])[-1]
        for number, piece in enumerate(self._pieces.split(text)):
            if number % 2 == 0:
                word = piece.strip()
                if last and re.fullmatch(r"\w+", word):
                    if _THINKING.search(word) and last not in stack:
                        stack.append(last)
                    elif _ANSWERING.search(word) and last in stack:
                        del stack[stack.index(last) :]
                continue
            last = piece
            opener = next((mark for mark in reversed(stack) if self._closes(piece, mark)), None)
            if opener is not None:
                del stack[stack.index(opener) :]
            elif self._opens(piece) or (
                strange is not None and not stack and piece not in strange and not self._is_harmless(piece)
            ):
                stack.append(piece)
        return stack[-1] if stack else None

    def _thinks(self, text: str) -> bool:
        return any(_THINKING.search(mark) for mark in self.marks(text))

    def _opens(self, mark: str) -> bool:
        return bool(_THINKING.search(mark)) and not self._is_harmless(mark)

    def _is_harmless(self, mark: str) -> bool:
        is_answer = _ANSWERING.search(mark) and not _THINKING.search(mark)
        return bool(_CLOSING.search(mark) or _DENIAL.search(mark) or is_answer) or mark in self.seen.closing

    def _closes(self, mark: str, opening: str) -> bool:
        return mark in self._closing_marks(opening)

    def _closing_token(self, opening: str) -> str | None:
        return next((mark for mark in self._closing_marks(opening) if mark in self.tokens), None)

    def _closing_marks(self, opening: str) -> list[str]:
        """List marks that close a block: by name, by the template's position of thoughts, by the text that it drops."""
        named = [re.sub(old, new, opening, count=1) for old, new in _PAIRS]
        shown = []
        if self.seen.thought is not None:
            start, end = (self.marks(text) for text in self.seen.thought)
            shown = end[:1] if opening in start[-2:] else []
        return [*(mark for mark in named if mark != opening), *shown, *self.seen.closing]

    def _shared(self, first: str, second: str) -> str:
        """Return the longest common prefix that cuts neither a mark nor a word."""
        shared = ""
        for one, other in zip(self._pieces.split(first), self._pieces.split(second), strict=False):
            if one == other:
                shared += one
                continue
            common = "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
            ends = (one[len(common) :], other[len(common) :])
            is_mark = any(self._pieces.fullmatch(piece) for piece in (one, other))
            if is_mark or any(end and not end[0].isspace() for end in ends):
                common = re.sub(r"\S*\Z", "", common) if not is_mark else ""
            return shared + common
        return shared

    def _refusal(self, opening: str) -> TokenizerError:
        return TokenizerError(
            f"the chat template leaves a prompt inside {opening}, and the tokenizer has no token that is known to "
            "close it: the next text would be a thought, not an answer"
        )
