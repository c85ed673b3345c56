"""Placeholders of published prompts: ``{{Document}}``, and which field of a metric each stands for."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

__all__ = ["PLACEHOLDER", "PLACEHOLDER_FIELDS", "placeholder_field", "split_cue"]

PLACEHOLDER = re.compile(r"\{\{\s*([A-Za-z_][\w ]*?)\s*\}\}")

#: What published prompt files call the fields of a sample.
PLACEHOLDER_FIELDS: Mapping[str, str] = {
    "document": "source",
    "article": "source",
    "source": "source",
    "summary": "output",
    "response": "output",
    "output": "output",
    "fact": "fact",
    "reference": "reference",
    "expected_output": "reference",
}


def placeholder_field(placeholder: str, fields: Container[str] = ()) -> str:
    """Name the field that a placeholder stands for: the metric's own of that name, else what published files mean."""
    key = re.sub(r"\W+", "_", placeholder.strip()).lower()
    own = next((name for name in (placeholder.strip(), key) if name in fields), None)
    return own or PLACEHOLDER_FIELDS.get(key, key)


def split_cue(template: str) -> tuple[str, str]:
    """Split a template into its body and its last line, the form's cue, without trailing white space."""
    head, newline, cue = template.rstrip().rpartition("\n")
    return head + newline, cue
