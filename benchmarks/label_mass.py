"""A judge's total probability of the labels: every packaged metric, and scales of words.

    python benchmarks/label_mass.py DIRECTORY --style chat     # a model directory, or a name of models.yaml
    python benchmarks/label_mass.py smol --words Red/Amber/Green Cold/Warm/Hot     # scales of your own alone

The rows are the built-in neutral examples of `judges check`; metrics go without evaluation steps, so that none have
to be written.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from machine import save
from rich.console import Console
from rich.table import Table

from geval_local import Judge, Metric
from geval_local.judge.audit import example_samples
from geval_local.metric_file import preset_names
from geval_local.scale import Scale

RESULTS = Path(__file__).resolve().parent / "results"
WORDS: list[Any] = [
    {"poor": 1, "fair": 2, "good": 3},
    {"very bad": 1, "bad": 2, "okay": 3, "good": 4, "very good": 5},
    {"never": 1, "sometimes": 2, "always": 3},
    {"Strongly disagree": 1, "Disagree": 2, "Neutral": 3, "Agree": 4, "Strongly agree": 5},
    {"low": 1, "medium": 2, "high": 3},
    {"Excellent": 4, "Good": 3, "Fair": 2, "Poor": 1},
    {"Terrible": 1, "Poor": 2, "Acceptable": 3, "Great": 4, "Perfect": 5},
    {"Not at all": 1, "A little": 2, "Somewhat": 3, "Very much": 4},
    # training/wordings.py keeps the words of these two out of all scales: they can only be read.
    {"Broken": 1, "Usable": 2, "Polished": 3},
    {"Bronze": 1, "Silver": 2, "Gold": 3},
    "True/False",
    "0-10",
]


def ordered(text: str) -> dict[str, int]:
    """Read labels from the worst to the best, A/B/C."""
    labels = text.split("/")
    if len(labels) < 2 or len(set(labels)) < len(labels) or not all(labels):
        raise argparse.ArgumentTypeError(f"{text!r}: two or more labels that differ, like Poor/Fair/Good")
    return {label: value for value, label in enumerate(labels, 1)}


def metrics(own: list[Any] | None = None) -> list[Metric]:
    presets = [Metric.load(name).with_steps(()) for name in preset_names()]
    coherence = next(metric for metric in presets if metric.name == "summarization/coherence")
    scales = [Scale.parse(labels) for labels in own or WORDS]
    return ([] if own else presets) + [
        coherence.model_copy(update={"name": "words: " + "/".join(scale.labels), "scale": scale}) for scale in scales
    ]


def mass(judge: Judge, metric: Metric, rows: int) -> float:
    judge.makers.clear()
    scores = judge.score_many(metric, example_samples(metric)[:rows])
    return float(np.mean([score.label_mass for score in scores]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge")
    parser.add_argument("--style", choices=["completion", "chat", "chat-no-prefill"])
    parser.add_argument("--rows", type=int, default=5, help="built-in examples per metric, 1 to 5")
    parser.add_argument(
        "--words", nargs="+", type=ordered, metavar="A/B/C", help="these scales alone, from the worst label to the best"
    )
    parser.add_argument("--output", type=Path, help="results file (benchmarks/results/label-mass-DATE.json)")
    options = parser.parse_args()
    judge = Judge.load(options.judge, style=options.style, dtype="float32")
    console = Console(width=120, record=True)
    label = f"{judge.name.rpartition('/')[2]}@{judge.fingerprint}"
    table = Table(title=f"Label mass, {label}, style {judge.encoder.style}, {options.rows} rows each")
    for column in ("metric", "scale", "label mass"):
        table.add_column(column)
    records = []
    for metric in metrics(options.words):
        found = mass(judge, metric, options.rows)
        records.append({"judge": label, "metric": metric.name, "scale": metric.scale.text, "mass": found})
        table.add_row(metric.name, metric.scale.text, f"{found:.3f}")
        print(json.dumps(records[-1]), flush=True)
    console.print(table)
    save(console, options.output or RESULTS / f"label-mass-{time.strftime('%Y%m%d-%H%M%S')}.json", records)


if __name__ == "__main__":
    main()
