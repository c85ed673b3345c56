"""What a tokenizer's own description says about how it cuts texts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

__all__ = ["described", "kinds", "looks_around", "patterns"]

#: Groups, and the one look ahead, by one character, that tokenizers have. Anything else that looks around is refused.
_HARMLESS = re.compile(r"\(\?:|\(\?i:|\(\?!\\S\)|\[\^|\\[\^$]")
_LOOKS_AROUND = re.compile(r"\(\?|\^|\$|\\[bBAGKzZ]")


def described(part: Any) -> Any:
    """Describe a normalizer or pre-tokenizer as plain values; None if there is none."""
    return None if part is None else json.loads(part.__getstate__())


def kinds(record: Any, parts: str) -> set[str]:
    """Types of a normalizer or pre-tokenizer and of all its parts; `parts` is what it calls them."""
    if record is None:
        return set()
    return {record["type"]}.union(*(kinds(part, parts) for part in record.get(parts, ())))


def patterns(record: Any) -> Iterator[str]:
    """Regular expressions of a pre-tokenizer and of all its parts."""
    if record is not None:
        pattern = record.get("pattern") or {}
        if "Regex" in pattern:
            yield pattern["Regex"]
        for part in record.get("pretokenizers", ()):
            yield from patterns(part)


def looks_around(pattern: str) -> bool:
    """Whether a pattern looks at more than what it matches and the one character behind it."""
    return bool(_LOOKS_AROUND.search(_HARMLESS.sub("", pattern)))
