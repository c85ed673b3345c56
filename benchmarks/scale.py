"""Distributed runs: what the driver costs, how workers add up, and what a run of any size would take.

    python benchmarks/scale.py measure --rows 200000 --workers 1 2 4   # rows/s, the driver's time and memory a row
    python benchmarks/scale.py measure --rows 10000000 --workers 2     # an hour or more
    python benchmarks/scale.py check                                   # the model, against runs at 1, 2 and 4 workers
    python benchmarks/scale.py predict                                 # the model: 8, 64 and 1,000 GPUs
    python benchmarks/scale.py faults --trials 20                      # workers, nodes and the driver killed

Rows are made up: sixteen candidates of about 50 words for every source of about 300, in Parquet files. The judge is
the mock, which costs about what tokenizing and packing cost. Each run is a process of its own with a cluster of its
own. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from scale_model import Costs, simulate

WORDS = ("ship", "river", "town", "night", "market", "bridge", "letter", "storm", "winter", "harbour", "people")
CANDIDATES = 16


def write_files(directory: Path, rows: int, files: int, words: int = 300) -> None:
    """Write the rows as so many Parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

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


def load_mock(record: object) -> object:
    """Load the mock on a worker."""
    from geval_local.testing import MockEngine, MockJudge

    return MockJudge(MockEngine(batch_tokens=32768))


def one(given: list[str], output: Path, workers: int, block: int | None, address: str | None) -> dict[str, object]:
    """Do one run in this process, and say what it took."""
    from geval_local.metric import Metric
    from geval_local.runs.events import RunEvents
    from geval_local.runs.manifest import JudgeRecord, definition
    from geval_local.runs.ray.driver import PartsRun
    from geval_local.runs.ray.input_blocks import wanted_parts
    from geval_local.runs.settings import Settings

    metrics = [Metric.load("summarization/coherence").with_steps(())]

    class Events(RunEvents):
        first = 0.0

        def on_score(self, judge: str, total: int | None, there: int, done: int) -> None:
            self.first = self.first or time.perf_counter()

    events = Events()
    settings = Settings(
        window=4096, metrics=[definition(one) for one in metrics], use_cache=False, distributed="ray", workers=workers,
        address=address, block_rows=block,
    )  # fmt: skip
    begin, cpu = time.perf_counter(), time.process_time()
    wanted = wanted_parts(settings, given, [JudgeRecord(name="mock", choice={"name": "mock"})], metrics)
    run = PartsRun(wanted, str(output), load_mock, {}, events)
    (summary,) = run.run()
    seconds = time.perf_counter() - begin
    tasks = run.totals.rows
    blocks = len(list(output.glob("part-*.parquet")))
    return {
        "rows": tasks,
        "scored": summary.scored,
        "blocks": blocks,
        "workers": workers,
        "seconds": round(seconds, 2),
        "until_first_part": round(events.first - begin, 2) if events.first else None,
        "after_first_part": round(time.perf_counter() - events.first, 2) if events.first else None,
        "rows_per_second": round(tasks / seconds, 1),
        "driver_cpu_seconds": round(time.process_time() - cpu, 2),
        "driver_us_per_row": round(1e6 * (time.process_time() - cpu) / max(tasks, 1), 3),
        "driver_ms_per_block": round(1e3 * (time.process_time() - cpu) / max(blocks, 1), 2),
        "driver_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def in_process(arguments: argparse.Namespace, given: Path, output: Path, workers: int) -> dict[str, object]:
    """Do one run in a process of its own."""
    command = [sys.executable, __file__, "one", "--given", str(given), "--output", str(output)]
    command += ["--workers", str(workers), *([] if arguments.block is None else ["--block", str(arguments.block)])]
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": here, "GEVAL_LOCAL_HOME": str(output) + "-home"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def rows_in(output: Path) -> int:
    """Count the rows of the parts, by reading every id: each has to be there once."""
    import numpy as np
    import pyarrow.parquet as pq

    found = [pq.ParquetFile(path).read(columns=["id"]).column(0).to_numpy() for path in output.glob("part-*.parquet")]
    ids = np.sort(np.concatenate(found)) if found else np.array([])
    if not np.array_equal(ids, np.arange(len(ids))):
        raise SystemExit("a row is there twice, or is lost")
    return len(ids)


def measure(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Rows per second, and the driver's time and memory, by workers."""
    results = []
    for rows in arguments.rows:
        write_files(place / f"in{rows}", rows, arguments.files)
        for workers in arguments.workers:
            output = place / f"out{rows}-{workers}"
            result = in_process(arguments, place / f"in{rows}", output, workers)
            if rows_in(output) != rows:
                raise SystemExit(f"{rows_in(output)} of {rows} rows came out")
            result["bytes_in"] = sum(path.stat().st_size for path in (place / f"in{rows}").iterdir())
            result["bytes_out"] = sum(path.stat().st_size for path in output.glob("part-*.parquet"))
            result["load_average"] = os.getloadavg()[0]
            results.append(result)
            print(result, flush=True)
    return results


def check(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Take the model's costs from runs of two sizes with one worker; predict the others, and compare."""
    small, large = sorted(arguments.rows)[:2]
    runs = measure(place, argparse.Namespace(**vars(arguments) | {"rows": [small, large]}))
    alone = {run["rows"]: run for run in runs if run["workers"] == 1}
    row_seconds = (alone[large]["seconds"] - alone[small]["seconds"]) / (large - small)
    start_up = max(0.0, alone[small]["seconds"] - small * row_seconds)
    results = []
    for run in runs:
        costs = Costs(
            rows=run["rows"],
            # Two cores do not do the work of four, however many workers there are.
            workers=min(run["workers"], os.cpu_count() or 1),
            block_rows=-(-run["rows"] // run["blocks"]),
            row_seconds=row_seconds,
            bytes_in=run["bytes_in"] / run["rows"],
            bytes_out=run["bytes_out"] / run["rows"],
            survey_rate=1e12,  # in the seconds of a row
            start_up=start_up,
            driver_block=run["driver_ms_per_block"] / 1e3,
        )
        predicted = 3600 * simulate(costs).hours
        results.append(
            {
                "rows": run["rows"],
                "workers": run["workers"],
                "measured_seconds": run["seconds"],
                "predicted_seconds": round(predicted, 2),
                "error": round(predicted / run["seconds"] - 1, 3),
                "fitted": run["workers"] == 1,
            }
        )
        print(results[-1], flush=True)
    return [*runs, *results]


def predict(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Ask the model for clusters and inputs that are not here."""
    results = []
    base = Costs(
        rows=10**9, workers=1, block_rows=3000, planned_share=arguments.planned, row_seconds=200e-6, overlap=1.0,
        tokens_per_second=arguments.tokens, bandwidth=arguments.bandwidth, failures=0.01, slow_share=0.05,
        driver_block=arguments.driver_ms / 1e3,
    )  # fmt: skip
    print(f"{'rows':>14}{'GPUs':>6}{'hours':>9}{'GPU-hours':>11}{'tokens':>10}{'TB read':>9}{'TB out':>8}"
          f"{'driver':>8}{'storage':>9}  first to break")  # fmt: skip
    for rows in (10**7, 10**9):
        for gpus in (8, 64, 1000):
            found = simulate(replace(base, rows=rows, workers=gpus, start_up=120.0 if gpus > 8 else 60.0))
            results.append({"rows": rows, "gpus": gpus, **found.to_record()})
            print(
                f"{rows:>14,}{gpus:>6}{found.hours:>9.2f}{found.worker_hours:>11.1f}{found.model_tokens:>10.2e}"
                f"{found.bytes_read / 1e12:>9.2f}{found.bytes_written / 1e12:>8.2f}{found.driver_busy:>8.1%}"
                f"{found.storage_busy:>9.1%}  {found.first_to_break}",
                flush=True,
            )
    return results


def faults(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Kill workers, nodes and the driver of a local cluster of several nodes; every row has to come out once."""
    from ray.cluster_utils import Cluster

    rng = random.Random(arguments.seed)
    (rows,) = arguments.rows[:1]
    write_files(place / "in", rows, arguments.files)
    results = []
    for number in range(arguments.trials):
        output = place / f"out{number}"
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
        killed: list[str] = []
        try:
            for _ in range(20):
                driver = _driver(arguments, place / "in", output, cluster.address)
                ends = time.monotonic() + rng.uniform(*arguments.pause)
                kind = rng.choice(["worker", "node", "driver"]) if len(killed) < arguments.kills else "none"
                while driver.poll() is None and (kind == "none" or time.monotonic() < ends):
                    time.sleep(0.05)
                if driver.poll() is None and kind == "driver":
                    driver.kill()
                    driver.wait()
                    killed.append(kind)
                    continue
                if driver.poll() is None and kind == "node":
                    cluster.remove_node(nodes.pop(0), allow_graceful=False)
                    nodes.append(cluster.add_node(num_cpus=1))
                    killed.append(kind)
                elif driver.poll() is None and kind == "worker":
                    for process in _workers_of(nodes)[:1]:
                        os.kill(process, signal.SIGKILL)
                        killed.append(kind)
                driver.wait()
                if driver.returncode == 0:
                    break
        finally:
            cluster.shutdown()
        found = rows_in(output)
        results.append({"trial": number, "kills": killed, "rows": found, "exact": found == rows})
        print(results[-1], flush=True)
    print(f"{sum(bool(one['exact']) for one in results)} of {len(results)} exact")
    return results


def _driver(arguments: argparse.Namespace, given: Path, output: Path, address: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "one", "--given", str(given), "--output", str(output), "--workers", "3"]
    command += ["--block", str(arguments.block or 500), "--address", address]
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": here, "GEVAL_LOCAL_HOME": f"{output}-home"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)


def _workers_of(nodes: list) -> list[int]:
    """List the processes that Ray's nodes have begun for actors."""
    import psutil

    found = []
    for node in nodes:
        raylet = node.all_processes.get("raylet", [])
        for process in raylet:
            children = psutil.Process(process.process.pid).children(recursive=True)
            found += [child.pid for child in children if "ray::" in " ".join(child.cmdline())]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["measure", "check", "predict", "faults", "one"])
    parser.add_argument("--rows", type=int, nargs="+", help="200000; 50000 and 200000 for check; 20000 for faults")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--block", type=int, help="rows of a block; absent: as by default")
    parser.add_argument("--directory", type=Path, help="where inputs and runs go; a temporary one when absent")
    parser.add_argument(
        "--tokens", type=float, default=20_000, help="predict: tokens that a GPU's judge takes a second"
    )
    parser.add_argument("--planned", type=float, default=0.15, help="predict: share of prompt tokens left by sharing")
    parser.add_argument("--bandwidth", type=float, default=2e9, help="predict: bytes a second of the storage")
    parser.add_argument("--driver-ms", type=float, default=5.0, help="predict: what a block costs the driver")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--pause", type=float, nargs=2, default=[2.0, 15.0], help="faults: seconds before a kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--given")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--address")
    arguments = parser.parse_args()
    if arguments.what == "one":
        print(
            json.dumps(
                one([arguments.given], arguments.output, arguments.workers[0], arguments.block, arguments.address)
            )
        )
        return
    defaults = {"check": [50_000, 200_000], "faults": [20_000]}
    arguments.rows = arguments.rows or defaults.get(arguments.what, [200_000])
    if arguments.what == "predict":
        results = predict(arguments)
    else:
        with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="scale-") as place:
            results = {"measure": measure, "check": check, "faults": faults}[arguments.what](Path(place), arguments)
    record = {
        "benchmark": f"scale {arguments.what}",
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "options": {
            name: value for name, value in vars(arguments).items() if name not in ("given", "output", "directory")
        },
        "results": results,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
