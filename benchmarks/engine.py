"""Benchmark of the engines: what sharing prefixes saves, on one machine, in one interleaved run.

    python benchmarks/engine.py --quick      # the small model and the embedded judge, a few minutes
    python benchmarks/engine.py              # all models that the machine holds, SummEval and synthetic prompts
    python benchmarks/engine.py --growth     # how cost grows with candidates, documents, lengths and scales

Prints a table for people; the last line is one JSON object. Raw figures go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import engine_growth
import numpy as np
import torch
from engine_arms import ARMS, Bench
from machine import machine, matmul_rate, operations, synchronize
from rich.console import Console
from rich.table import Table
from workloads import (
    SHAPES,
    SUMMEVAL,
    prompt_tokens,
    random_model,
    summeval_for_judge,
    summeval_for_qwen,
    synthetic,
    trie_tokens,
)

from geval_local import Judge
from geval_local.errors import GevalError
from geval_local.inference.engine import Request

RESULTS = Path(__file__).resolve().parent / "results"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small model and embedded judge on few prompts")
    parser.add_argument("--growth", action="store_true", help="measure how cost grows instead")
    parser.add_argument("--models", nargs="*", choices=[*SHAPES, "nano"], help="default: all that suit the device")
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--workloads", nargs="*", choices=["summeval", "synthetic"], default=["summeval", "synthetic"])
    parser.add_argument("--rounds", type=int, help="interleaved rounds (3; 2 with --quick)")
    parser.add_argument("--documents", type=int, help="documents of 16 candidates each (8; 2 with --quick)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", help="float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--output", type=Path, help="results file (benchmarks/results/engine-DATE.json)")
    chosen = parser.parse_args()
    chosen.rounds = chosen.rounds or (2 if chosen.quick else 3)
    chosen.documents = chosen.documents or (2 if chosen.quick else 8)
    chosen.dtype = chosen.dtype or ("bfloat16" if chosen.device.startswith("cuda") else "float32")
    if chosen.models is None:
        large = ["qwen2.5-0.5b", *(["llama-8b"] if chosen.device.startswith("cuda") else [])]
        chosen.models = ["llama-26m", *([] if chosen.quick else large), "nano"]
    return chosen


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, Bench, list[Request]]]:
    """Go through model name, workload name, model and prompts; one model is in memory at a time."""
    dtype = getattr(torch, options.dtype)
    real = SUMMEVAL.exists() and "summeval" in options.workloads
    for name in options.models:
        judge = embedded_judge(options) if name in ("nano", "llama-26m") and real else None
        if name == "nano":
            if judge is not None:
                yield name, "summeval", Bench(judge.loaded.model, 16), summeval_for_judge(judge, options.documents)
            continue
        bench = Bench(random_model(name, options.device, dtype), SHAPES[name].batch_rows)
        vocabulary = bench.model.config.vocab_size
        if judge is not None and len(judge.loaded.tokenizer) <= vocabulary:
            # Random weights read any tokens; those of the embedded judge fit into the small vocabulary.
            yield name, "summeval", bench, summeval_for_judge(judge, options.documents)
        if name.startswith("qwen") and real:
            yield name, "summeval", bench, summeval_for_qwen(options.documents)
        if "synthetic" in options.workloads:
            yield name, "synthetic", bench, synthetic(documents=options.documents, vocabulary=vocabulary)
        del bench
        gc.collect()


def embedded_judge(options: argparse.Namespace) -> Judge | None:
    """Load the embedded judge; None, with a word about it, where it is not there."""
    try:
        return Judge.load(device=options.device, dtype=options.dtype, engine="trie")
    except GevalError as error:
        print(f"the embedded judge is left out: {error.message}", file=sys.stderr)
        return None


def measure(bench: Bench, requests: Sequence[Request], names: Sequence[str], rounds: int) -> dict[str, Any]:
    """Time the arms in turns, each round in another order, after one short warm-up."""
    times: dict[str, list[float]] = {name: [] for name in names}
    processor: dict[str, list[float]] = {name: [] for name in names}
    results: dict[str, np.ndarray] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            ARMS[name](bench, requests[:2])
        except Exception as error:  # an arm that this machine or installation cannot run is reported, not fatal
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    running = [name for name in names if name not in missing]
    for number in range(rounds):
        for name in running[number % len(running) :] + running[: number % len(running)]:
            synchronize(bench.model.device)
            start, begun = time.perf_counter(), time.process_time()
            found = ARMS[name](bench, requests)
            synchronize(bench.model.device)
            times[name].append(time.perf_counter() - start)
            # Of all threads: what is left to compare by where other work shares the processor.
            processor[name].append(time.process_time() - begun)
            if found is not None:
                results[name] = found
    reference = next((name for name in ("one at a time", "padded", "left-padded") if name in results), None)
    scores = {name: expected_score(found) for name, found in results.items()}
    return {
        "seconds": {name: times[name] for name in running},
        "ratios": {
            name: [slow / fast for slow, fast in zip(times[name], times["trie"], strict=True)]
            for name in running
            if "trie" in running
        },
        "processor_seconds": {name: processor[name] for name in running},
        "score_reference": reference,
        "score_difference": {}
        if reference is None
        else {name: float(np.abs(found - scores[reference]).max()) for name, found in scores.items()},
        "computed": dict(bench.computed),
        "missing": missing,
    }


def expected_score(logprobs: np.ndarray) -> np.ndarray:
    """Scores on 1-5 from label log-probabilities."""
    weights = np.exp(logprobs - logprobs.max(axis=1, keepdims=True))
    return weights @ np.arange(1, logprobs.shape[1] + 1) / weights.sum(axis=1)


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f}-{max(values):.1f})"


def show(console: Console, record: dict[str, Any]) -> None:
    table = Table(title=f"{record['model']} {record['dtype']}, {record['workload']}: {record['prompts']} prompts")
    for column in ("engine", "seconds", "times the trie's", "in processor time", "tokens computed", "score difference"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    work = record["processor_seconds"]
    for name, seconds in record["seconds"].items():
        difference = record["score_difference"].get(name)
        table.add_row(
            name,
            f"{statistics.median(seconds):.2f}",
            spread(record["ratios"][name]) if record["ratios"] else "",
            spread([one / other for one, other in zip(work[name], work["trie"], strict=True)])
            if record["ratios"]
            else "",
            f"{record['computed'].get(name, 0):,}",
            "" if difference is None else f"{difference:.1e}",
        )
    for name, reason in record["missing"].items():
        table.add_row(name, "-", reason)
    console.print(table)
    console.print(
        f"prompts {record['prompt_tokens']:,} tokens, trie {record['trie_tokens']:,}; "
        f"{record['flops'] / 1e9:,.0f} GFLOP/s, {100 * record['utilization']:.0f} % of the measured matmul rate\n"
    )


def main() -> None:
    options = arguments()
    console = Console(width=110)
    if options.growth:
        records = engine_growth.run(console, options)
        summary: dict[str, Any] = {f"exponent_{record['what']}": record["exponent"] for record in records}
    else:
        records = []
        for model, workload, bench, requests in cases(options):
            record = {"model": model, "workload": workload, "dtype": options.dtype, "prompts": len(requests)}
            record |= {"documents": options.documents}
            record |= measure(bench, requests, options.arms, options.rounds)
            record |= {"prompt_tokens": prompt_tokens(requests), "trie_tokens": trie_tokens(requests)}
            if "trie" in record["seconds"]:
                rate = matmul_rate(bench.model, bench.trie.batch_tokens)
                flops = operations(bench.model, requests) / statistics.median(record["seconds"]["trie"])
                record |= {"matmul_flops": rate, "flops": flops, "utilization": flops / rate}
                show(console, record)
            records.append(record)
        summary = summarize(records)
    output = options.output or RESULTS / f"engine-{time.strftime('%Y%m%d-%H%M%S')}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"machine": machine(), "records": records}, indent=1), encoding="utf-8")
    console.print(f"raw figures: {output}")
    print(json.dumps(summary))


def summarize(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of the first model in one object, the others' ratios beside them."""

    def ratio(record: dict[str, Any], arm: str) -> float | None:
        values = record["ratios"].get(arm)
        return round(statistics.median(values), 2) if values else None

    first = records[0]
    return {
        "model": first["model"],
        "workload": first["workload"],
        "ratio_left_padded": ratio(first, "left-padded"),
        "ratio_lm_eval": ratio(first, "lm-eval"),
        "tokens_computed": first["computed"].get("trie"),
        "tokens_trie": first["trie_tokens"],
        "max_score_difference": max(
            (record["score_difference"]["trie"] for record in records if "trie" in record["score_difference"]),
            default=None,
        ),
        "utilization": round(first.get("utilization", 0.0), 3),
        "all": {
            f"{record['model']}/{record['workload']}": {arm: ratio(record, arm) for arm in record["ratios"]}
            for record in records
        },
    }


if __name__ == "__main__":
    main()
