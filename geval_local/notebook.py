"""Views of results in notebooks: small HTML tables, without scripts and without a style of their own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

#: Width of the bar of a probability of 1, in characters.
_BAR = 20


def facts_html(title: str, facts: Mapping[str, object]) -> str:
    """Write facts as a table of two columns under a title."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def table_html(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write rows as a table under a title."""
    head = "".join(f"<th>{escape(one)}</th>" for one in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>"


def figure(value: float, digits: int = 3) -> str:
    """Write a figure, or a dash for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def share_bar(share: float) -> str:
    """Draw a share, 0-1, as a bar of characters."""
    return "\u2588" * round(share * _BAR)
