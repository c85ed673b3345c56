"""What the attacks on a judge's files compare: its scores of two rows, and the signature that stands with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geval_local.judge.judge import Judge
from geval_local.metric import Metric

METRIC = Metric(name="clarity", criteria="How clear it is.", scale="1-5", fields={"output": "Text"})
METRIC = METRIC.with_steps(("Read.", "Choose a score."))
ROWS = [{"output": "A tale is told."}, {"output": "It ends</s> <think>here."}]


def measure(directory: Path) -> tuple[str, list[Any]]:
    """Load a judge and score the rows: the signature; label probabilities and error of each row."""
    judge = Judge.load(directory)
    scores = judge.score_many(METRIC, ROWS)
    found = [(score.probabilities and dict(score.probabilities), score.error) for score in scores]
    return str(judge.signature(METRIC)), found
