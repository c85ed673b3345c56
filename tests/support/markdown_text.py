"""Markdown as the documents use it: fenced blocks with the comment before them, links, headings, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Block", "anchors", "blocks", "commands", "links", "marked_table"]

_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->")
_FENCE = re.compile(r"^```(\w*)\s*$")


class Block(NamedTuple):
    """One fenced block."""

    document: Path
    line: int
    language: str
    mark: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.document.name}, line {self.line}"


def blocks(document: Path) -> Iterator[Block]:
    """Every fenced block of a document; its mark is the HTML comment on the line before, if there is one."""
    inner: list[str] | None = None
    language, mark, begin, before = "", "", 0, ""
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if inner is not None:
            if fence:
                yield Block(document, begin, language, mark, "\n".join(inner) + "\n")
                inner = None
            else:
                inner.append(line)
        elif fence:
            comment = _COMMENT.fullmatch(before.strip())
            inner, language, begin, mark = [], fence[1], number, comment[1] if comment else ""
        before = line
    assert inner is None, f"{document.name}: the block of line {begin} has no end"


def commands(block: Block) -> list[str]:
    """Commands of a bash block, one a line, without comments; a backslash goes on with the next line."""
    lines = re.sub(r"\\\n\s*", " ", block.text).splitlines()
    return [line for line in (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines) if line]


def _prose(document: Path) -> str:
    """Text outside fenced blocks and code."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def links(document: Path) -> list[str]:
    """Targets of links and pictures, those of other sites left out."""
    found = re.findall(r"\]\(([^)\s]+)\)", _prose(document))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(document: Path) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#{1,6}\s+(.*?)\s*$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def marked_table(document: Path, name: str) -> list[list[str]]:
    """Body of the table between ``<!-- name -->`` and ``<!-- /name -->``: for every row its cells."""
    text = document.read_text(encoding="utf-8")
    inner = text.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]
    rows = [line for line in inner.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
