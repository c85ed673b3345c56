"""The effect of half precision on a score, and the part of it that the float32 read-out removes.

    python benchmarks/noise.py               # the embedded judge and the 0.5 B shape of random weights
    python benchmarks/noise.py --judge DIR   # a real judge: what the probe of `--dtype auto` measures, and its choice

Scores in bfloat16 against float32, one prompt at a time: with the usual bfloat16 logits and with this project's float32
read-out, by either engine. Prints a table for people; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine_arms import run_engine
from machine import save
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel
from workloads import SHAPES, random_model, summeval_for_judge, synthetic

from geval_local import Judge
from geval_local.engine.batched import PaddedEngine
from geval_local.engine.interface import Engine
from geval_local.engine.prefix_sharing.engine import PrefixSharingEngine
from geval_local.errors import GevalError
from geval_local.models.head import Head
from geval_local.models.load import load_model
from geval_local.models.precision import HALF, decide, measure
from geval_local.models.registry import find_judge
from geval_local.options import JudgeOptions
from geval_local.tokens.requests import Request

RESULTS = Path(__file__).resolve().parent / "results"


class UsualHead(Head):
    """The model's own head in the model's own precision, as most scripts read it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model)
        self._whole = model

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits in the model's precision, widened afterwards."""
        return self._whole.get_output_embeddings()(hidden.to(self._whole.dtype)).float()


def expected_score(logprobs: np.ndarray) -> np.ndarray:
    weights = np.exp(logprobs - logprobs.max(axis=1, keepdims=True))
    return weights @ np.arange(1, logprobs.shape[1] + 1) / weights.sum(axis=1)


def compare(model: PreTrainedModel, requests: Sequence[Request]) -> dict[str, dict[str, float]]:
    """Mean and largest difference of the scores of a float32 model from those of its bfloat16 copy."""
    exact = expected_score(run_engine(PaddedEngine(model, Head(model), batch_tokens=1), requests))
    half = copy.deepcopy(model).to(torch.bfloat16)
    found: dict[str, dict[str, float]] = {}
    for reading, head in (("bfloat16 logits", UsualHead(half)), ("float32 read-out", Head(half))):
        padded = PaddedEngine(half, head)
        engines: list[Engine] = [padded, PrefixSharingEngine(half, head, padded=padded)]
        for engine in engines:
            difference = np.abs(expected_score(run_engine(engine, requests)) - exact)
            found[f"{reading}, {engine.name}"] = {"mean": float(difference.mean()), "max": float(difference.max())}
    return found


def probe(options: argparse.Namespace, console: Console) -> None:
    """Measure both half precisions on a real judge's own prompts, and let the rule of ``auto`` choose."""
    loaded = load_model(find_judge(options.judge), JudgeOptions(device=options.device, dtype="float32"))
    figures = measure(loaded.model, loaded.tokenizer, list(HALF), style=loaded.entry.style, most=options.prompts)
    table = Table(title=f"Scores on 1-5 against float32: {Path(options.judge).name}, style {loaded.entry.style}")
    for column in ("dtype", "mean", "largest", "prompts"):
        table.add_column(column)
    for name, noise in figures.noise.items():
        cells = (
            ("not finite", "", "") if noise is None else (f"{noise.mean:.5f}", f"{noise.largest:.5f}", noise.prompts)
        )
        table.add_row(name, *map(str, cells))
    dtype, reason = decide(figures)
    console.print(table)
    console.print(f"largest weight {figures.largest_weight:.4g}, largest activation {figures.largest_activation:.5g}")
    console.print(f"auto takes {dtype}: {reason}")
    record = {"judge": Path(options.judge).name, "choice": dtype, "reason": reason, **asdict(figures)}
    save(console, options.output or RESULTS / f"noise-{time.strftime('%Y%m%d-%H%M%S')}.json", [record])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=[*SHAPES, "nano"], default=["nano", "qwen2.5-0.5b"])
    parser.add_argument("--judge", help="a model directory or a name of models.yaml")
    parser.add_argument("--prompts", type=int, default=10, help="of the probe, the short ones first")
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, help="results file (benchmarks/results/noise-DATE.json)")
    options = parser.parse_args()
    console = Console(width=120, record=True)
    if options.judge is not None:
        probe(options, console)
        return
    table = Table(title="Scores on 1-5 in bfloat16 against float32")
    for column in ("model", "read-out, engine", "mean", "largest"):
        table.add_column(column)
    results: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for name in options.models:
        if name == "nano":
            try:
                judge = Judge.load(device=options.device, dtype="float32", engine="trie")
            except GevalError as error:
                console.print(f"the embedded judge is left out: {error.message}")
                continue
            model, requests = judge.backend.loaded.model, summeval_for_judge(judge, options.documents)
        else:
            model = random_model(name, options.device, torch.float32)
            requests = synthetic(documents=options.documents, vocabulary=model.config.vocab_size)
        counts[name], results[name] = len(requests), compare(model, requests)
        for how, figures in results[name].items():
            table.add_row(name, how, f"{figures['mean']:.4f}", f"{figures['max']:.4f}")
    console.print(table)
    records = [{"model": name, "prompts": counts[name], "noise": results[name]} for name in results]
    save(console, options.output or RESULTS / f"noise-{time.strftime('%Y%m%d-%H%M%S')}.json", records)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
