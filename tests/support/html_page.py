"""An HTML page as a parser finds it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser


def as_shown(interval):
    """Write an interval of a JSON record as tables do: up to the second digit of its error, three at most."""
    ends = [interval[end] for end in ("value", "low", "high")]
    if None in ends:
        return f"{ends[0]:.3f}"
    exponent = int(f"{interval['error']:e}".split("e")[1]) if interval["error"] else -2
    decimals = min(3, max(0, 1 - exponent))
    texts = [f"{end:.{decimals}f}" for end in ends]
    value, low, high = (text if float(text) else text.lstrip("-") for text in texts)
    return f"{value} [{low}, {high}]"


class Page(HTMLParser):
    """Elements, attributes and texts as an HTML parser finds them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.comments: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._open = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self._open = tag
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        self._open = ""

    def handle_comment(self, data):
        self.comments.append(data)

    def handle_data(self, data):
        (self.scripts if self._open == "script" else self.texts).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    @property
    def data(self):
        return json.loads(self.scripts[0])
