"""What tests of judges that other programs compute share: a tiny model, metrics of every kind of scale, and rows."""

from __future__ import annotations

from functools import cache
from typing import Any

from tiny import byte_tokenizer, tiny_model

from geval_local import Metric

FIELDS = {"source": "Source", "output": "Output"}
BASE: dict[str, Any] = {"criteria": "How well it ends.", "fields": FIELDS, "steps": ("Read.",)}
METRICS = [
    Metric(name="five", scale="1-5", **BASE),
    Metric(name="digits", scale="0-100", **BASE),
    Metric(name="yes", scale={"Yes": 1, "No": 0}, **BASE),
    Metric(name="words", scale={"poor": 1, "fair": 2, "good": 3}, **BASE),
]
FIVE, DIGITS = METRICS[:2]
ROWS = [{"source": f"Tale {number // 2}.", "output": f"Ending {number}."} for number in range(6)]


@cache
def served_model() -> Any:
    """Return the model of all of them; no test changes its weights."""
    return tiny_model("llama", len(byte_tokenizer()))
