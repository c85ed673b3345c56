"""The pipeline around the model, with a judge at no cost: speed, memory, tokens saved.

    python benchmarks/pipeline.py speed                       # rows/s, seconds by stage
    python benchmarks/pipeline.py memory --rows 10000 100000 1000000
    python benchmarks/pipeline.py window                      # share of tokens saved by --window, scattered candidates

Rows are SummEval's size: sixteen candidates of 64 words for every source of 412, drawn from SummEval's own words where
its file is there (`pipeline_load`). Packs are planned as for the engine that shares prefixes. Each run is a process of
its own. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline_load import SUMMEVAL, write_rows
from pipeline_run import TOKENIZERS, one_run


def one(file: Path, directory: Path, arguments: argparse.Namespace, *, stages: bool = False) -> dict[str, object]:
    """Run in a separate process."""
    command = [sys.executable, __file__, "one", "--file", str(file), "--directory", str(directory)]
    command += ["--window", *map(str, arguments.window), "--batch-tokens", str(arguments.batch_tokens)]
    command += ["--tokenizer", arguments.tokenizer, *["--cache"] * arguments.cache, *["--stages"] * stages]
    environment = os.environ | {"GEVAL_LOCAL_HOME": f"{directory}-home"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def speed(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Rows per second, then the same once more with every stage watched."""
    results = []
    for rows in arguments.rows:
        file = place / f"{rows}.jsonl"
        write_rows(file, rows, words=arguments.words)
        for number in range(arguments.repeat):
            results.append(one(file, place / f"run{rows}-{number}", arguments))
            show(results[-1])
        results.append(one(file, place / f"run{rows}-stages", arguments, stages=True))
        show(results[-1])
        for name, value in results[-1]["stages"].items():
            print(f"  {value:8.2f} s  {1e6 * value / rows:7.1f} us/row  {name}")
        file.unlink()
    return results


def memory(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Peak memory against rows."""
    results = []
    for rows in arguments.rows:
        file = place / f"{rows}.jsonl"
        write_rows(file, rows, words=arguments.words)
        results.append(one(file, place / f"run{rows}", arguments))
        show(results[-1])
        shutil.rmtree(place / f"run{rows}")
        file.unlink()
    for first, last in itertools.pairwise(results):
        grown = 1e6 * (last["peak_rss_mb"] - first["peak_rss_mb"]) / (last["rows"] - first["rows"])
        last["bytes_per_row"] = round(grown, 1)
        print(f"from {first['rows']} to {last['rows']} rows peak RSS grows by {grown:.1f} bytes per row")
    return results


def window(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Measure the share of common tokens that is shared, by window and by distance between candidates."""
    results = []
    (rows,) = arguments.rows
    print("share of prompt tokens saved; 16 candidates a source")
    print(f"{'candidates apart':>18}" + "".join(f"{f'window {size}':>15}" for size in arguments.window))
    for apart in arguments.apart:
        file = place / f"{apart}.jsonl"
        write_rows(file, rows, words=arguments.words, apart=0 if apart == 1 else apart)
        line = f"{apart:>18}"
        for size in arguments.window:
            options = argparse.Namespace(**vars(arguments) | {"window": [size]})
            result = one(file, place / f"run{apart}-{size}", options)
            saved = 1 - result["planned_tokens"] / result["prompt_tokens"]
            line += f"{saved:>15.1%}"
            results.append(
                {"apart": apart, "window": size, "saved": round(saved, 4), "peak_rss_mb": result["peak_rss_mb"]}
            )
        print(line, flush=True)
        file.unlink()
    return results


def show(result: dict[str, object]) -> None:
    """Print a result without its stages."""
    print({name: value for name, value in result.items() if name != "stages"}, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["speed", "memory", "window", "one"])
    parser.add_argument(
        "--rows", type=int, nargs="+", help="65536 for speed, 16000 for window, 10^4 to 10^6 for memory"
    )
    parser.add_argument("--repeat", type=int, default=3, help="runs of the speed benchmark that are not watched")
    parser.add_argument("--tokenizer", default="qwen" if (TOKENIZERS / "qwen").is_dir() else "bytes")
    parser.add_argument("--window", type=int, nargs="+", help="rows; 4096, and for window several")
    parser.add_argument("--apart", type=int, nargs="+", default=[1, 16, 100, 1000], help="how far candidates lie apart")
    parser.add_argument("--batch-tokens", type=int, default=8192)
    words = ["summeval", "made-up"]
    parser.add_argument("--words", choices=words, default=words[0] if SUMMEVAL.is_file() else words[1])
    parser.add_argument("--cache", action="store_true")
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--directory", type=Path, help="where inputs and runs go; a temporary one when absent")
    arguments = parser.parse_args()
    defaults = {"memory": [10_000, 100_000, 1_000_000], "window": [16_000]}
    arguments.rows = arguments.rows or defaults.get(arguments.what, [65_536])
    arguments.window = arguments.window or ([256, 1024, 4096, 16_384] if arguments.what == "window" else [4096])
    if arguments.what == "one":
        print(json.dumps(one_run(arguments.file, arguments.directory, arguments)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as place:
        work = {"speed": speed, "memory": memory, "window": window}[arguments.what]
        results = work(Path(place), arguments)
    record = {
        "benchmark": f"pipeline {arguments.what}",
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {name: importlib.metadata.version(name) for name in ("tokenizers", "numpy", "transformers")},
        "tokenizer": arguments.tokenizer,
        "window": arguments.window,
        "words": arguments.words,
        "batch_tokens": arguments.batch_tokens,
        "cache": arguments.cache,
        "results": results,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
