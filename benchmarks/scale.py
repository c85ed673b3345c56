"""Distributed runs: what the driver costs, how workers add up, and what a run of any size would take.

    python benchmarks/scale.py measure --rows 200000 --workers 1 2 4   # rows/s, the driver's time and memory a row
    python benchmarks/scale.py measure --rows 10000000 --workers 2     # an hour
    python benchmarks/scale.py check                                   # the model, against runs at 1, 2 and 4 workers
    python benchmarks/scale.py predict                                 # the model: 8, 64 and 1,000 GPUs
    python benchmarks/scale.py survey --before CHECKOUT --rounds 5     # JSONL files: seconds until the first part

Rows are made up: sixteen candidates of about 50 words for every source of about 300, in Parquet files. The judge is
the mock, which costs about what tokenizing and packing cost. Each run is a process of its own with a cluster of its
own; `scale_faults.py` kills them. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scale_model import Costs, simulate

WORDS = ("ship", "river", "town", "night", "market", "bridge", "letter", "storm", "winter", "harbour", "people")
CANDIDATES = 16
METRIC = "summarization/coherence"
#: Seconds between two looks at the memory of a run.
WATCHED_SECONDS = 2.0


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

    return MockJudge(MockEngine(batch_tokens=32768))


def one(
    given: list[str], output: Path, workers: int, block: int | None, address: str | None, is_first_only: bool = False
) -> dict[str, object]:
    """Do one run in this process, to its end or its first part, and say what it took."""
    from geval_local.errors import Interrupted
    from geval_local.metric import Metric
    from geval_local.ray.driver import PartsRun, wanted_parts
    from geval_local.runs.events import RunEvents
    from geval_local.runs.manifest import JudgeRecord, definition
    from geval_local.runs.settings import Settings

    metrics = [Metric.load(METRIC).with_steps(())]

    class Events(RunEvents):
        first = cpu = 0.0

        def on_score(self, judge: str, total: int | None, there: int, done: int) -> None:
            if not self.first:
                self.first, self.cpu = time.perf_counter(), time.process_time()

        def should_stop(self) -> bool:
            return is_first_only and self.first > 0

    events = Events()
    settings = Settings(
        window=4096, metrics=[definition(one) for one in metrics], use_cache=False, workers=f"ray:{workers}",
        address=address, block_rows=block,
    )  # fmt: skip
    begin, cpu = time.perf_counter(), time.process_time()
    wanted = wanted_parts(settings, given, [JudgeRecord(name="mock", choice={"name": "mock"})], metrics)
    run = PartsRun(wanted, str(output), load_mock, {}, events)
    scored = None
    with suppress(Interrupted):
        scored = run.run().summaries[0].scored
    seconds = time.perf_counter() - begin
    tasks = run.totals.rows
    blocks = len(list(output.glob("part-*.parquet")))
    return {
        "rows": tasks,
        "scored": scored,
        "blocks": blocks,
        "workers": workers,
        "seconds": round(seconds, 2),
        "until_first_part": round(events.first - begin, 2) if events.first else None,
        "after_first_part": round(time.perf_counter() - events.first, 2) if events.first else None,
        "rows_per_second": round(tasks / seconds, 1),
        "driver_cpu_seconds": round(time.process_time() - cpu, 2),
        "driver_cpu_after_first_part": round(time.process_time() - events.cpu, 2) if events.first else None,
        "driver_us_per_row": round(1e6 * (time.process_time() - cpu) / max(tasks, 1), 3),
        "driver_ms_per_block": round(1e3 * (time.process_time() - cpu) / max(blocks, 1), 2),
    }


def in_process(arguments: argparse.Namespace, given: Path, output: Path, workers: int) -> dict[str, object]:
    """Do one run in a process of its own."""
    command = [sys.executable, __file__, "one", "--given", str(given), "--output", str(output)]
    command += ["--workers", str(workers), *([] if arguments.block is None else ["--block", str(arguments.block)])]
    command += ["--first"] if arguments.first else []
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment_of(output))
    watched = Watched(driver.pid)
    while driver.poll() is None:
        watched.look()
        with suppress(subprocess.TimeoutExpired):
            driver.wait(timeout=WATCHED_SECONDS)
    assert driver.stdout is not None
    lines = driver.stdout.read().splitlines()
    if driver.returncode:
        raise SystemExit(f"the run failed with exit code {driver.returncode}")
    result: dict[str, object] = json.loads(lines[-1])
    return result | watched.figures()


class Watched:
    """Memory of a run's driver, of its workers, and of the object store, in MB, looked at from outside.

    And the processor time of all its processes, but for what they take after the last look.
    """

    def __init__(self, driver: int) -> None:
        self._process = psutil.Process(driver)
        self._before = shutil.disk_usage("/dev/shm").used
        self._driver: list[float] = []
        self._worker: list[float] = []
        self._store: list[float] = []
        self._seconds: dict[int, float] = {}

    def look(self) -> None:
        """Take one sample."""
        with suppress(psutil.Error):
            self._driver.append(self._process.memory_info().rss / 1e6)
            self._store.append((shutil.disk_usage("/dev/shm").used - self._before) / 1e6)
            sizes = [0.0]
            for child in (self._process, *self._process.children(recursive=True)):
                with suppress(psutil.Error):
                    times = child.cpu_times()
                    self._seconds[child.pid] = times.user + times.system
                    if "BlockScorer" in " ".join(child.cmdline()):
                        memory = child.memory_info()
                        sizes.append((memory.rss - memory.shared) / 1e6)
            self._worker.append(max(sizes))

    def figures(self) -> dict[str, object]:
        """Say the most of each in every tenth of the run."""
        figures: dict[str, object] = {"cpu_seconds_of_all": round(sum(self._seconds.values()), 1)}
        for name, series in (("driver", self._driver), ("largest_worker", self._worker), ("store", self._store)):
            tenths = [max(series[len(series) * at // 10 : max(1, len(series) * (at + 1) // 10)], default=0)
                      for at in range(10)]  # fmt: skip
            figures[f"{name}_mb_by_tenths"] = [round(value) for value in tenths]
        return figures


def environment_of(output: Path) -> dict[str, str]:
    """Let a run find this module, and keep its files beside its output."""
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": here, "GEVAL_LOCAL_HOME": f"{output}-home"}


def ids_and_scores(output: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read the ids and scores of a file or of all parts, by id."""
    paths = sorted(output.glob("part-*.parquet")) if output.is_dir() else [output]
    ids, scores = [], []
    for path in paths:
        table = pq.ParquetFile(path).read(columns=["id", "geval"])
        ids.append(table.column("id").to_numpy())
        figures = pc.struct_field(table.column("geval"), [METRIC, "score"])
        scores.append(figures.to_numpy(zero_copy_only=False).astype(float))
    found = np.concatenate(ids) if ids else np.array([], dtype=int)
    order = np.argsort(found, kind="stable")
    return found[order], np.concatenate(scores)[order] if scores else np.array([])


def rows_in(output: Path) -> int:
    """Count the rows of the parts, by reading every id: each has to be there once."""
    ids, _ = ids_and_scores(output)
    if not np.array_equal(ids, np.arange(len(ids))):
        raise SystemExit("a row is there twice, or is lost")
    return len(ids)


def measure(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Rows per second, and the driver's time and memory, by workers; each in every round, one after the other."""
    results = []
    for rows in arguments.rows:
        write_files(place / f"in{rows}", rows, arguments.files)
    for number, rows, workers in itertools.product(range(arguments.rounds), arguments.rows, arguments.workers):
        given, output = place / f"in{rows}", place / f"out{rows}-{workers}"
        result = in_process(arguments, given, output, workers)
        if rows_in(output) != rows:
            raise SystemExit(f"{rows_in(output)} of {rows} rows came out")
        result["round"] = number
        result["bytes_in"] = sum(path.stat().st_size for path in given.iterdir())
        result["bytes_out"] = sum(path.stat().st_size for path in output.glob("part-*.parquet"))
        result["load_average"] = os.getloadavg()[0]
        shutil.rmtree(output)
        results.append(result)
        print(result, flush=True)
    return results


def check(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Take the model's costs from runs of two sizes with one worker; predict the others, and compare the medians.

    Start-up is a measured input for every number of workers, since here they load on the same cores.
    """
    small, large = sorted(arguments.rows)[:2]
    runs = measure(place, argparse.Namespace(**vars(arguments) | {"rows": [small, large]}))

    def own(rows: int, workers: int) -> list[dict[str, object]]:
        return [run for run in runs if (run["rows"], run["workers"]) == (rows, workers)]

    def median(figure: str, rows: int, workers: int) -> float:
        return statistics.median(run[figure] for run in own(rows, workers))

    def of_a_row(figure: str) -> float:
        return (median(figure, large, 1) - median(figure, small, 1)) / (large - small)

    results = []
    for workers in arguments.workers:
        begun = median("until_first_part", small, workers)
        for rows in (small, large):
            run = own(rows, workers)[0]
            costs = Costs(
                rows=rows,
                workers=workers,
                block_rows=-(-rows // run["blocks"]),
                row_seconds=of_a_row("seconds"),
                row_processor_seconds=of_a_row("cpu_seconds_of_all"),
                cores=os.cpu_count() or 1,
                bytes_in=run["bytes_in"] / rows,
                bytes_out=run["bytes_out"] / rows,
                survey_rate=1e12,  # in the seconds of a row
                driver_block=arguments.driver_ms / 1e3,
            )
            # Every worker's first block is done when the first part is there.
            first = small / own(small, workers)[0]["blocks"] * costs.seconds_of_row()
            predicted = 3600 * simulate(replace(costs, start_up=max(0.0, begun - first))).hours
            results.append(
                {
                    "rows": rows,
                    "workers": workers,
                    "measured_seconds": sorted(one["seconds"] for one in own(rows, workers)),
                    "predicted_seconds": round(predicted, 2),
                    "error": round(predicted / median("seconds", rows, workers) - 1, 3),
                    "fitted": workers == 1,
                }
            )
            print(results[-1], flush=True)
    return [*runs, *results]


def predict(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Ask the model for clusters and inputs that are not here."""
    results = []
    base = Costs(
        rows=10**9, workers=1, block_rows=1, planned_share=arguments.planned, row_seconds=200e-6, overlap=1.0,
        tokens_per_second=arguments.tokens, bandwidth=arguments.bandwidth, failures=0.01, slow_share=0.05,
        driver_block=arguments.driver_ms / 1e3,
    )  # fmt: skip
    print(f"{'rows':>14}{'GPUs':>6}{'blocks':>8}{'hours':>9}{'GPU-hours':>11}{'tokens':>10}{'TB read':>9}{'TB out':>8}"
          f"{'driver':>8}{'storage':>9}  first to break")  # fmt: skip
    for rows, gpus in itertools.product((10**7, 10**9), (8, 64, 1000)):
        each = block_rows(rows, gpus, base.bytes_in)
        start_up = 120.0 if gpus > 8 else 60.0
        found = simulate(replace(base, rows=rows, workers=gpus, block_rows=each, start_up=start_up))
        results.append({"rows": rows, "gpus": gpus, **found.to_record()})
        print(
            f"{rows:>14,}{gpus:>6}{found.blocks:>8}{found.hours:>9.2f}{found.worker_hours:>11.1f}"
            f"{found.model_tokens:>10.2e}{found.bytes_read / 1e12:>9.2f}{found.bytes_written / 1e12:>8.2f}"
            f"{found.driver_busy:>8.1%}{found.storage_busy:>9.1%}  {found.first_to_break}",
            flush=True,
        )
    return results


def block_rows(rows: int, workers: int, bytes_in: float) -> int:
    """Ask the package how many rows a block of such an input has."""
    from geval_local.metric import Metric
    from geval_local.ray.blocks import Block
    from geval_local.ray.survey import choose_cut
    from geval_local.runs.manifest import definition
    from geval_local.runs.settings import Settings

    settings = Settings(window=4096, metrics=[definition(Metric.load(METRIC).with_steps(()))], workers=workers)
    cut = choose_cut(settings, [Block("in", int(rows * bytes_in), 0)], lambda: workers)
    return min(cut.rows, int(cut.bytes // bytes_in))


def survey(place: Path, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Time JSONL files with this checkout and with one from before, in turns; compare seconds until the first part."""
    write_files(place / "parquet", arguments.rows[0], arguments.files)
    (place / "in").mkdir()
    for path in sorted((place / "parquet").iterdir()):
        write_lines(path, place / "in" / f"{path.stem}.jsonl")
        for copy in range(1, arguments.copies):
            os.link(place / "in" / f"{path.stem}.jsonl", place / "in" / f"{path.stem}-{copy}.jsonl")
    megabytes = round(sum(path.stat().st_size for path in (place / "in").iterdir()) / 1e6)
    checkouts, results = {"before": arguments.before, "after": Path(__file__).parents[1]}, []
    for number in range(arguments.rounds):
        for name, checkout in sorted(checkouts.items(), reverse=number % 2 == 0):
            os.environ["PYTHONPATH"] = str(checkout)
            os.chdir(checkout)  # workers import from there
            output = place / f"out-{name}"
            result = {"round": number, "checkout": name, "mb_in": megabytes}
            result |= in_process(arguments, place / "in", output, arguments.workers[0])
            if not arguments.first and rows_in(output) != arguments.rows[0]:
                raise SystemExit(f"{rows_in(output)} of {arguments.rows[0]} rows came out")
            result["load_average"] = os.getloadavg()[0]
            results.append(result)
            print(result, flush=True)
            shutil.rmtree(output)
    for what in ("until_first_part", "seconds", "cpu_seconds_of_all"):
        before, after = ([one[what] for one in results if one["checkout"] == name] for name in checkouts)
        ratios = sorted(round(one / other, 2) for one, other in zip(after, before, strict=True))  # type: ignore[operator]
        print(f"{what}: before {before}, after {after}; after / before {ratios}, median {statistics.median(ratios)}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["measure", "check", "predict", "survey", "one"])
    parser.add_argument("--rows", type=int, nargs="+", help="200000; 50000 and 200000 for check")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, help="times that each run is done; 1, for check 3")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--block", type=int, help="rows of a block; absent: as by default")
    parser.add_argument("--directory", type=Path, help="where inputs and runs go; a temporary one when absent")
    parser.add_argument(
        "--tokens", type=float, default=20_000, help="predict: tokens that a GPU's judge takes a second"
    )
    parser.add_argument("--planned", type=float, default=0.15, help="predict: share of prompt tokens left by sharing")
    parser.add_argument("--bandwidth", type=float, default=2e9, help="predict: bytes a second of the storage")
    parser.add_argument("--driver-ms", type=float, default=6.7, help="predict: what a block costs the driver")
    parser.add_argument("--before", type=Path, help="survey: a checkout of an earlier commit")
    parser.add_argument("--copies", type=int, default=1, help="survey: times that each file is there")
    parser.add_argument("--first", action="store_true", help="survey: stop after the first part")
    parser.add_argument("--given")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--address")
    arguments = parser.parse_args()
    if arguments.what == "one":
        print(
            json.dumps(
                one(
                    [arguments.given],
                    arguments.output,
                    arguments.workers[0],
                    arguments.block,
                    arguments.address,
                    arguments.first,
                )
            )
        )
        return
    defaults = {"check": [50_000, 200_000]}
    arguments.rows = arguments.rows or defaults.get(arguments.what, [200_000])
    arguments.rounds = arguments.rounds or (3 if arguments.what == "check" else 1)
    if arguments.what == "predict":
        results = predict(arguments)
    else:
        with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="scale-") as place:
            results = {"measure": measure, "check": check, "survey": survey}[arguments.what](Path(place), arguments)
    record = {
        "benchmark": f"scale {arguments.what}",
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "options": {name: value for name, value in vars(arguments).items() if not isinstance(value, Path)},
        "results": results,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
