"""How words are written out: plain, tokenised ("word , 's") or lower-cased, with the flag of every character kept."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from training.damage import Sentence

_SPLIT = re.compile(r"(n't|'s|'re|'ve|'ll|'d|'m|’s|’t|[.,;:!?\"“”()\[\]]|`)")


@dataclass(frozen=True)
class Style:
    """How one text is written out."""

    tokenised: bool = False
    lower: bool = False
    capital_start: bool = True


def draw(rng: random.Random) -> tuple[Style, Style]:
    """Draw a style for the source and one for the candidates: outputs are often lower-cased where sources are not."""
    tokenised = rng.random() < 0.5
    lower = rng.random() < 0.15
    own = lower or rng.random() < (0.45 if tokenised else 0.12)
    return Style(tokenised, lower), Style(tokenised, own, rng.random() < 0.7)


def word(text: str, style: Style) -> str:
    if style.lower:
        text = text.lower()
    if style.tokenised and not (text.endswith(".") and text.count(".") > 1):
        text = " ".join(_SPLIT.sub(r" \1 ", text).split())
    return text


def plain(text: str, style: Style) -> str:
    return " ".join(word(part, style) for part in text.split())


def render(sentences: list[Sentence], style: Style, separator: str = " ") -> tuple[str, list[int]]:
    """Write the sentences out, with one flag set per character."""
    pieces: list[str] = []
    flags: list[int] = []
    for number, sentence in enumerate(sentences):
        if number:
            pieces.append(separator)
            flags += [0] * len(separator)
        for i, item in enumerate(sentence):
            text = word(item.text, style)
            if i == 0 and style.lower and style.capital_start:
                text = text[:1].upper() + text[1:]
            if i:
                text = " " + text
            pieces.append(text)
            flags += [item.flags] * len(text)
    return "".join(pieces), flags
