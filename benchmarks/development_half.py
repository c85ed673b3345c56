"""SummEval's development half as rows of a benchmark: options, directory, file, and metric."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

from geval_local import Metric
from geval_local.signature import judge_name

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "summeval_dev.json"


class Half(NamedTuple):
    """What a benchmark works on: where it keeps its runs, its rows, how many documents they are of, and the metric."""

    directory: Path
    rows: Path
    documents: int
    metric: Metric


def add_options(parser: argparse.ArgumentParser, directory: Path) -> None:
    """Add the options of every benchmark over this half; `directory` is the default of --directory."""
    parser.add_argument("--judge", default="nano")
    parser.add_argument("--style", choices=["completion", "chat", "chat-no-prefill"])
    parser.add_argument("--dimension", default="coherence")
    parser.add_argument("--documents", type=int, help="the first so many documents")
    parser.add_argument("--directory", type=Path, default=directory)
    parser.add_argument("--output", type=Path, required=True)


def prepare(options: argparse.Namespace) -> Half:
    """Write the rows; runs of different judges and data have directories of their own."""
    directory = options.directory / f"{judge_name(options.judge)}-{options.dimension}-{options.documents or 'all'}"
    directory.mkdir(parents=True, exist_ok=True)
    published = json.loads(DATA.read_text(encoding="utf-8"))
    kept = list(dict.fromkeys(row["doc_id"] for row in published))[: options.documents]
    rows = directory / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in published if row["doc_id"] in kept), encoding="utf-8")
    metric = Metric.load(f"summarization/{options.dimension}").with_steps(())
    return Half(directory, rows, len(kept), metric)
