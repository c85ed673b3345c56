"""A gate: the summaries that a system has written must reach a score, or the session fails.

Run it with ``pytest examples/pytest --geval-local-judge nano``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "summaries.jsonl").read_text("utf-8").splitlines()]
# Here the summaries are in a file; yours may be written by the system under test, one in each test.
GOOD = [pytest.param(row["source"], row["output"], id=row["id"]) for row in ROWS if row["id"].endswith("-good")]


# The tests of a group are scored together when the last of them has run, so that their prompts share computation.
@pytest.mark.geval_local_group
@pytest.mark.parametrize(("metric", "at_least"), [("summarization/relevance", 2), ("summarization/coherence", 2)])
@pytest.mark.parametrize(("source", "summary"), GOOD)
def test_summary(assert_score, metric, at_least, source, summary):
    assert_score(metric, at_least=at_least, source=source, output=summary)
