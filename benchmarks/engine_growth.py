"""How the cost of a run grows: ten times the candidates, the documents, the length, and a scale of digits."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from typing import Any

import torch
from engine_arms import Bench
from rich.console import Console
from rich.table import Table
from throughput import synchronize
from workloads import SHAPES, digit_trie, prompt_tokens, random_model, synthetic, trie_tokens

from geval_local.tokens.requests import Request

#: What grows -> the workload before and after.
GROWTHS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "candidates": ({"documents": 4, "candidates": 4}, {"documents": 4, "candidates": 40}),
    "documents": ({"documents": 2, "candidates": 8}, {"documents": 20, "candidates": 8}),
    "length": ({"documents": 2, "candidates": 8}, {"documents": 2, "candidates": 8, "document": 4700}),
    "scale": (
        {"documents": 4, "candidates": 8, "trie": digit_trie(5, range(20, 30))},
        {"documents": 4, "candidates": 8, "trie": digit_trie(100, range(20, 30))},
    ),
}


def run(console: Console, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every growth on the first chosen model and print a table; return one record each."""
    name = options.models[0]
    bench = Bench(random_model(name, options.device, getattr(torch, options.dtype)), SHAPES[name].batch_rows)
    vocabulary = bench.model.config.vocab_size
    table = Table(title=f"{name} {options.dtype}: how cost grows (seconds ~ factor ^ exponent)")
    for column in ("10x", "prompt tokens", "trie tokens", "seconds", "exponent in seconds", "in trie tokens"):
        table.add_column(column, justify="right")
    records = []
    for what, (before, after) in GROWTHS.items():
        pair = [synthetic(vocabulary=vocabulary, **sizes) for sizes in (before, after)]
        seconds = [median_seconds(bench, requests, options.rounds) for requests in pair]
        tokens = [trie_tokens(requests) for requests in pair]
        # Twenty times the labels, but that is no length: ten is the factor of every row.
        record = {
            "what": what,
            "seconds": seconds,
            "prompt_tokens": [prompt_tokens(requests) for requests in pair],
            "trie_tokens": tokens,
            "exponent": round(math.log10(seconds[1] / seconds[0]), 3),
            "exponent_tokens": round(math.log10(tokens[1] / tokens[0]), 3),
        }
        records.append(record)
        table.add_row(
            what,
            " -> ".join(f"{count:,}" for count in record["prompt_tokens"]),
            " -> ".join(f"{count:,}" for count in tokens),
            " -> ".join(f"{value:.2f}" for value in seconds),
            f"{record['exponent']:.2f}",
            f"{record['exponent_tokens']:.2f}",
        )
    console.print(table)
    return records


def median_seconds(bench: Bench, requests: list[Request], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        synchronize(bench.model.device)
        start = time.perf_counter()
        for _ in bench.trie.execute(requests, bench.trie.plan(requests)):
            pass
        synchronize(bench.model.device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
