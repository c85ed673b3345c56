"""The shell around the model, at work with a judge that costs nothing: rows per second, where the time goes, memory.

    python benchmarks/pipeline.py speed --rows 20000          # rows/s, seconds by stage
    python benchmarks/pipeline.py memory --rows 10000 100000 1000000

Rows are SummEval's size: sixteen candidates of 60 words for every source of 360. Each run is a process of its own. The
last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline_load import SUMMEVAL, FreeEngine, write_rows

from geval_local import derive, samples

TOKENIZERS = Path(__file__).resolve().parents[2] / "shared" / "tokenizers"


def tokenizer(name: str):
    if name == "bytes":
        return None
    import transformers

    return transformers.AutoTokenizer.from_pretrained(str(TOKENIZERS / name), local_files_only=True)


class Stages:
    """Seconds spent in functions, by stage; stages of the reading thread run beside the others."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner, name: str, stage: str) -> None:
        """Time every call of a method."""
        inner = getattr(owner, name)

        def timed(*arguments, **settings):
            start = time.perf_counter()
            try:
                return inner(*arguments, **settings)
            finally:
                self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

        setattr(owner, name, timed)

    def watch_rows(self, owner, name: str, stage: str) -> None:
        """Time every step of what a function iterates over."""
        inner = getattr(owner, name)

        def timed(*arguments, **settings):
            rows = inner(*arguments, **settings)
            while True:
                start = time.perf_counter()
                row = next(rows, None)
                self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
                if row is None:
                    return
                yield row

        setattr(owner, name, timed)


def one_run(file: Path, directory: Path, arguments: argparse.Namespace) -> dict[str, object]:
    stages = Stages()
    if arguments.stages:  # before anything imports the name
        stages.watch_rows(samples, "read_samples", "read (reader)")
        stages.watch(derive, "derive_scores", "derive scores")
    from geval_local.inference.encoding import PromptEncoder
    from geval_local.inference.prepare import RequestMaker
    from geval_local.metric import Metric
    from geval_local.outputs import ResultWriter
    from geval_local.runs.directory import open_run
    from geval_local.runs.export import Exporter, deliver
    from geval_local.runs.files import fingerprint_input
    from geval_local.runs.manifest import JudgeRecord, Manifest, Settings, definition
    from geval_local.runs.store import Store
    from geval_local.runs.work import Worker
    from geval_local.testing import MockJudge

    metric = Metric.load("summarization/coherence").with_steps(())
    settings = Settings(window=arguments.window, metrics=[definition(metric)], use_cache=arguments.cache)
    start = time.perf_counter()
    manifest = Manifest.new(fingerprint_input(file), settings, [JudgeRecord(name="mock", choice={})])
    hashed = time.perf_counter() - start
    judge = MockJudge(FreeEngine(arguments.batch_tokens), tokenizer=tokenizer(arguments.tokenizer))
    assert judge.encoder._segments.is_shared  # probed once per judge, not per row
    if arguments.stages:
        for owner, name, stage in (
            (RequestMaker, "prepare", "render and tokenize (reader)"),
            (PromptEncoder, "encode_texts", "of it: tokenize (reader)"),
            (Worker, "execute", "plan, store"),
            (FreeEngine, "plan", "of it: plan"),
            (Store, "add", "of it: store"),
            (Store, "outcomes", "read back"),
            (ResultWriter, "write", "write rows"),
        ):
            stages.watch(owner, name, stage)
    begin, cpu = time.perf_counter(), time.process_time()
    with open_run(directory, manifest) as run:
        with Exporter(run) as exporter:
            for sample, scores in run.rows(lambda record: judge):
                exporter.write(sample, scores)
        deliver(run, exporter.files)
    seconds = time.perf_counter() - begin
    rows = int(manifest.input.rows or run.manifest.input.rows or 0)
    return {
        "rows": rows,
        "input_mb": round(file.stat().st_size / 1e6, 1),
        "seconds": round(seconds, 2),
        "rows_per_second": round(rows / seconds),
        "cpu_us_per_row": round(1e6 * (time.process_time() - cpu) / rows, 1),
        "hash_input_seconds": round(hashed, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "store_mb": round((directory / "scores.sqlite").stat().st_size / 1e6, 1),
        "stages": {name: round(value, 2) for name, value in sorted(stages.seconds.items(), key=lambda one: -one[1])},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["speed", "memory", "one"])
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000])
    parser.add_argument("--tokenizer", default="qwen" if (TOKENIZERS / "qwen").is_dir() else "bytes")
    parser.add_argument("--window", type=int, default=4096)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    words = ["summeval", "made-up"]
    parser.add_argument("--words", choices=words, default=words[0] if SUMMEVAL.is_file() else words[1])
    parser.add_argument("--cache", action="store_true")
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--directory", type=Path, help="where inputs and runs go; a temporary one when absent")
    arguments = parser.parse_args()
    if arguments.what == "one":
        print(json.dumps(one_run(arguments.file, arguments.directory, arguments)))
        return
    results = []
    with tempfile.TemporaryDirectory(dir=arguments.directory) as place:
        for rows in arguments.rows:
            file = Path(place) / f"{rows}.jsonl"
            write_rows(file, rows, words=arguments.words)
            for stages in (False, True) if arguments.what == "speed" else (False,):
                command = [sys.executable, __file__, "one", "--file", str(file), "--window", str(arguments.window)]
                command += ["--batch-tokens", str(arguments.batch_tokens)]
                command += ["--directory", f"{place}/run{rows}{stages}", "--tokenizer", arguments.tokenizer]
                command += ["--cache"] * arguments.cache + ["--stages"] * stages
                environment = os.environ | {"GEVAL_LOCAL_HOME": f"{place}/home{stages}"}
                done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
                results.append(json.loads(done.stdout.splitlines()[-1]))
                print({name: value for name, value in results[-1].items() if name != "stages"}, flush=True)
                for name, value in results[-1]["stages"].items():
                    print(f"  {value:8.2f} s  {1e6 * value / rows:7.1f} us/row  {name}")
            file.unlink()
    record = {
        "benchmark": f"pipeline {arguments.what}",
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "tokenizer": arguments.tokenizer,
        "window": arguments.window,
        "words": arguments.words,
        "batch_tokens": arguments.batch_tokens,
        "cache": arguments.cache,
        "results": results,
    }
    if arguments.what == "memory" and len(results) > 1:
        first, last = results[0], results[-1]
        grown = 1e6 * (last["peak_rss_mb"] - first["peak_rss_mb"]) / (last["rows"] - first["rows"])
        record["bytes_per_row"] = round(grown, 1)
        print(f"peak RSS grows by {grown:.1f} bytes per row")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
