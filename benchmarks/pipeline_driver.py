"""The driver of a distributed run by itself: its memory use, without a cluster and without workers.

Tasks are packed, given away and taken back as the driver does it, through files in the place of Ray's object store;
what Ray keeps of every task in the driver's process is not in the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import pickle
import resource
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from geval_local.metric import Metric
from geval_local.runs.directory import open_run
from geval_local.runs.export import Exporter, deliver
from geval_local.runs.files import fingerprint_input
from geval_local.runs.manifest import JudgeRecord, Manifest, Settings, definition
from geval_local.runs.ray import driver as distributed
from geval_local.runs.ray.part_records import PartRow
from geval_local.runs.ray.worker import ShardResult, ShardTask, pack
from geval_local.runs.run import Identity
from geval_local.runs.store import PlanRecord
from geval_local.score import Outcome


def driver_run(file: Path, directory: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Drive a run over a file; peak resident memory after every stage, in MB."""
    metric = Metric.load("summarization/coherence").with_steps(())
    settings = Settings(window=arguments.window[0], metrics=[definition(metric)], use_cache=False, distributed="ray")
    manifest = Manifest.new(fingerprint_input(file), settings, [JudgeRecord(name="mock", choice={})])
    store = directory.with_name(f"{directory.name}-store")
    store.mkdir()
    peaks = {"begun": _peak_mb()}

    def score_shards(tasks: Iterable[ShardTask], *others: object) -> Iterator[ShardResult]:
        kept = []
        for number, task in enumerate(tasks):
            kept.append(store / str(number))
            kept[-1].write_bytes(pack(task).column("content")[0].as_py())
        peaks["tasks given out"] = _peak_mb()
        for path in kept:
            yield _scored(pickle.loads(path.read_bytes()), metric.name)
            path.unlink()
        peaks["parts written"] = _peak_mb()

    distributed.score_shards = score_shards
    distributed.connected = lambda *settings: contextlib.nullcontext()
    begin, cpu = time.perf_counter(), time.process_time()
    with open_run(directory, manifest) as run:
        with Exporter(run) as exporter:
            for sample, scores in run.rows(lambda record: None):
                exporter.write(sample, scores)
        deliver(run, exporter.files)
        rows = int(run.manifest.input.rows or 0)
    return {
        "rows": rows,
        "seconds": round(time.perf_counter() - begin, 2),
        "cpu_us_per_row": round(1e6 * (time.process_time() - cpu) / rows, 1),
        "peak_rss_mb": _peak_mb(),
        "peak_rss_mb_by_stage": peaks,
    }


def _scored(task: ShardTask, metric: str) -> ShardResult:
    """Make a worker's result, the same for every row."""
    outcome = Outcome(np.log(np.full(5, 0.2)), (), 700, 0, 1, None)
    rows = [
        PartRow(task.shard.rows[place], number, 0, outcome)
        for number, places in enumerate(task.places)
        for place in places
    ]
    plan = PlanRecord(700 * len(task.samples), 300 * len(task.samples))
    return ShardResult(task.shard, Identity("0" * 16, "mock", 8192, {metric: "mock"}), rows, [plan])


def _peak_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
