"""One run of the pipeline benchmark, optionally with every stage timed."""

from __future__ import annotations

import argparse
import os
import queue
import resource
import threading
import time
from pathlib import Path

from pipeline_load import FreeEngine

from geval_local.io import samples

TOKENIZERS = Path(__file__).resolve().parents[2] / "shared" / "tokenizers"


def tokenizer(name: str):
    if name == "bytes":
        return None
    import transformers

    return transformers.AutoTokenizer.from_pretrained(str(TOKENIZERS / name), local_files_only=True)


def busy_seconds() -> float:
    """Processor seconds that everything on this machine has used, and what its host took; 0 if unknown."""
    try:
        times = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    return sum(int(ticks) for place, ticks in enumerate(times) if place not in (3, 4)) / os.sysconf("SC_CLK_TCK")


class Stages:
    """Seconds spent in functions, by stage; stages of the reading thread run beside the others."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner, name: str, stage: str, only: threading.Thread | None = None) -> None:
        """Time every call of a method, or those from one thread."""
        inner = getattr(owner, name)

        def timed(*arguments, **settings):
            if only is not None and threading.current_thread() is not only:
                return inner(*arguments, **settings)
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
    from geval_local.io.writer import ResultWriter
    from geval_local.metric import Metric
    from geval_local.runs.directory import open_run
    from geval_local.runs.executor import Worker
    from geval_local.runs.exporter import Exporter, deliver
    from geval_local.runs.input_file import fingerprint_input
    from geval_local.runs.manifest import JudgeRecord, RunManifest, definition
    from geval_local.runs.settings import Settings
    from geval_local.runs.store import Store
    from geval_local.score import Outcome
    from geval_local.testing import MockJudge
    from geval_local.tokens.encoder import PromptEncoder
    from geval_local.tokens.requests import RequestMaker

    metric = Metric.load("summarization/coherence").with_steps(())
    settings = Settings(window=arguments.window[0], metrics=[definition(metric)], use_cache=arguments.cache)
    start = time.perf_counter()
    manifest = RunManifest.new(fingerprint_input(file), settings, [JudgeRecord(name="mock", choice={})])
    hashed = time.perf_counter() - start
    judge = MockJudge(FreeEngine(arguments.batch_tokens), tokenizer=tokenizer(arguments.tokenizer))
    assert judge.encoder.shared_texts.is_shared  # probed once per judge, not per row
    if arguments.stages:
        stages.watch(Outcome, "score", "derive scores")
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
        stages.watch(queue.Queue, "get", "wait for the reader", threading.main_thread())
    begin, cpu, busy = time.perf_counter(), time.process_time(), busy_seconds()
    with open_run(directory, manifest) as run:
        with Exporter(run) as exporter:
            for sample, scores in run.rows(lambda record: judge):
                exporter.write(sample, scores)
        deliver(run, exporter.files)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        others = max(0.0, busy_seconds() - busy - cpu) / (seconds * (os.cpu_count() or 1))
        totals = run.store.totals(0, 0)
    rows = int(manifest.input.rows or run.manifest.input.rows or 0)
    return {
        "rows": rows,
        "input_mb": round(file.stat().st_size / 1e6, 1),
        "seconds": round(seconds, 2),
        "rows_per_second": round(rows / seconds),
        "cpu_us_per_row": round(1e6 * cpu / rows, 1),
        "machine_share_of_others": round(others, 2),
        "hash_input_seconds": round(hashed, 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "prompt_tokens": totals["prompt_tokens"],
        "planned_tokens": totals["planned_tokens"],
        "store_mb": round((directory / "scores.sqlite").stat().st_size / 1e6, 1),
        "stages": {name: round(value, 2) for name, value in sorted(stages.seconds.items(), key=lambda one: -one[1])},
    }
