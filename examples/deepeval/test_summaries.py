"""The same gate in DeepEval, beside whatever other metrics it has.

Run it with ``deepeval test run examples/deepeval/test_summaries.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deepeval import assert_test
from deepeval.test_case import LLMTestCase

from geval_local.hosts.deepeval import GEvalLocal

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "summaries.jsonl").read_text("utf-8").splitlines()]
CASES = [
    LLMTestCase(name=row["id"], input=row["source"], actual_output=row["output"])
    for row in ROWS
    if row["id"].endswith("-good")
]
# DeepEval's thresholds are on 0 to 1: 0.25 is 2 on the metrics' scale, 1-5.
METRICS = [
    GEvalLocal("summarization/relevance", "nano", threshold=0.25),
    GEvalLocal("summarization/coherence", "nano", threshold=0.25),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_summary(case):
    assert_test(case, METRICS)
