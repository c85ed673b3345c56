"""Summaries scored in MLflow, with the traces and figures in a SQLite store; exit code 1 if one fails.

Run it with ``python examples/mlflow/evaluate.py``, then look at the result with
``mlflow ui --backend-store-uri sqlite:///mlflow.db``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mlflow

from geval_local.hosts.mlflow import geval

lines = (Path(__file__).parents[1] / "summaries.jsonl").read_text("utf-8").splitlines()
rows = [row for row in map(json.loads, lines) if row["id"].endswith("-good")]
data = [{"inputs": {"source": row["source"]}, "outputs": row["output"]} for row in rows]

mlflow.set_tracking_uri("sqlite:///mlflow.db")
mlflow.set_experiment("summaries")
result = mlflow.genai.evaluate(
    data=data,
    scorers=[
        geval("summarization/relevance", "nano", threshold=2),
        geval("summarization/coherence", "nano", threshold=2),
    ],
)
for name, value in sorted(result.metrics.items()):
    print(f"{name}: {value:.3f}")
if not result.passed:
    sys.exit(f"the summaries fail: {result.reason}")
