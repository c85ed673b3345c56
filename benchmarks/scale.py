"""Runs over workers: processor time a row, memory of the command, and seconds until the first row is stored.

    python benchmarks/scale.py --rows 200000 --workers 0 2 ray:2     # 0: one process without workers
    python benchmarks/scale.py --rows 2000000 --workers 2 --lines    # JSONL

Rows are made up: sixteen candidates of about 50 words for every source of about 300. The judge is the mock, which costs
about what tokenizing and packing cost. Each run is a process of its own; `scale_faults.py` disturbs them. Those of Ray
need a cluster that runs here (`ray start --head`). The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ("ship", "river", "town", "night", "market", "bridge", "letter", "storm", "winter", "harbour", "people")
CANDIDATES = 16
METRIC = "summarization/coherence"
#: Seconds between two looks at a run.
WATCHED_SECONDS = 0.5


def write_files(directory: Path, rows: int, files: int, words: int = 300) -> None:
    """Write the rows as so many Parquet files."""
    rng = random.Random(1)
    directory.mkdir(parents=True)
    tails = [" ".join(rng.choices(WORDS, k=50)) for _ in range(997)]
    each = -(-rows // files)
    for number in range(files):
        first, stop = number * each, min(rows, (number + 1) * each)
        schema = pa.schema([("id", pa.int64()), ("source", pa.string()), ("output", pa.string())])
        with pq.ParquetWriter(directory / f"{number:05d}.parquet", schema) as writer:
            for start in range(first, stop, 4096):
                places = range(start, min(stop, start + 4096))
                sources = {row // CANDIDATES: " ".join(rng.choices(WORDS, k=words)) for row in places}
                columns = [
                    list(places),
                    [f"{row // CANDIDATES} {sources[row // CANDIDATES]}." for row in places],
                    [f"{tails[row % 997]} {row}." for row in places],
                ]
                writer.write_batch(pa.record_batch(columns, schema=schema))


def write_lines(source: Path, target: Path) -> None:
    """Write a Parquet file as JSONL."""
    target.write_text("".join(json.dumps(row) + "\n" for row in pq.read_table(source).to_pylist()))


def load_mock(record: object) -> object:
    """Load the mock on a worker."""
    from geval_local.testing import MockEngine, MockJudge

    return MockJudge(MockEngine(batch_tokens=32768), name="nano")


def one(given: Path, output: Path, workers: str) -> None:
    """Do one run in this process."""
    import scale  # workers import the judge by this name

    from geval_local import Metric
    from geval_local.ray import scheduler
    from geval_local.runs import run_file
    from geval_local.runs.spread import Spread
    from geval_local.runs.workers import LocalWorkers

    metric = Metric.load(METRIC).with_steps(())
    if workers == "0":
        run_file.score_file(given, metric, load_mock(None), output, use_cache=False)
        return
    count = int(workers.rpartition(":")[2])
    mine = [{"OMP_NUM_THREADS": "1"}] * count
    run_file.Spread = partial(Spread, start=lambda *_: LocalWorkers(mine, scale.load_mock))
    scheduler.ray_workers = lambda text, judges, address: scheduler.RayWorkers(count, judges, address, scale.load_mock)
    run_file.Spread = Spread if workers.startswith("ray") else run_file.Spread
    run_file.score_file(given, metric, "nano", output, use_cache=False, workers=workers)


def measure(given: Path, output: Path, workers: str) -> dict[str, object]:
    """Watch a run from outside."""
    here = str(Path(__file__).parent)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([here, *sys.path[1:]]),
        "GEVAL_LOCAL_HOME": str(output.parent / "home"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, "--one", str(given), str(output), workers]
    begin, cpu, peak, first = time.monotonic(), dict[int, float](), 0, None
    side = output.with_name(f".{output.name}.run")
    with subprocess.Popen(command, env=environment, start_new_session=True) as run:
        own = psutil.Process(run.pid)
        while run.poll() is None:
            for process in (own, *own.children(recursive=True)):
                try:
                    used = process.cpu_times()
                    cpu[process.pid] = used.user + used.system
                    peak = max(peak, process.memory_info().rss) if process.pid == run.pid else peak
                except psutil.Error:
                    continue
            if first is None and any(path.stat().st_size > 65536 for path in side.rglob("scores.sqlite-wal")):
                first = time.monotonic() - begin
            time.sleep(WATCHED_SECONDS)
    rows = sum(1 for _ in output.open()) if run.returncode == 0 else 0
    return {
        "workers": workers,
        "rows": rows,
        "seconds": round(time.monotonic() - begin, 1),
        "until_first_stored": first and round(first, 1),
        "us_a_row": round(1e6 * sum(cpu.values()) / max(1, rows), 1),
        "command_us_a_row": round(1e6 * cpu[run.pid] / max(1, rows), 1),
        "command_peak_mb": round(peak / 1e6),
    }


def main() -> None:
    if sys.argv[1] == "--one":
        one(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--lines", action="store_true", help="JSONL in place of Parquet")
    parser.add_argument("--workers", nargs="+", default=["0", "2"], help="N, ray:N, or 0 for a run without workers")
    parser.add_argument("--directory", type=Path, help="where inputs and runs go; a temporary one when absent")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="scale-") as place:
        write_files(Path(place) / "in", arguments.rows, arguments.files)
        for path in sorted((Path(place) / "in").iterdir()) if arguments.lines else ():
            write_lines(path, path.with_suffix(".jsonl"))
            path.unlink()
        for workers in arguments.workers:
            output = Path(place) / f"out-{workers.replace(':', '')}.jsonl"
            results.append(measure(Path(place) / "in", output, workers))
            print(results[-1], flush=True)
            output.unlink(missing_ok=True)
    record = {"benchmark": "scale", "date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count()}
    print(json.dumps(record | {"lines": arguments.lines, "results": results}))


if __name__ == "__main__":
    main()
