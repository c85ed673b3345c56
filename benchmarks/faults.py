"""Kill a run at random moments and resume it: the final file must be that of an uninterrupted run, byte for byte.

    python benchmarks/faults.py                       # 50 trials over 400 rows, the embedded judge, both engines
    python benchmarks/faults.py --trials 5 --rows 60 --judge mock

Every trial is a run in a directory of its own, killed (SIGKILL) at a moment drawn from the length of a whole run, as
often as `--kills` says, and then resumed to its end. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # its threads would not survive the fork

from geval_local import Judge, Metric
from geval_local.runs.directory import open_run
from geval_local.runs.exporter import Exporter, deliver
from geval_local.runs.input_file import fingerprint_input
from geval_local.runs.manifest import JudgeRecord, RunManifest, definition
from geval_local.runs.settings import Settings
from geval_local.testing import MockEngine, MockJudge


def write_rows(path: Path, rows: int) -> None:
    """Write sources of eight candidates each, some of which cannot be scored."""
    rng = random.Random(1)
    words = ["ship", "river", "town", "night", "market", "bridge", "letter", "storm", "winter", "harbour"]
    with path.open("w", encoding="utf-8") as file:
        source = ""
        for row in range(rows):
            if row % 8 == 0:
                source = " ".join(rng.choices(words, k=rng.randint(30, 120))) + "."
            output = "" if row % 37 == 11 else " ".join(rng.choices(words, k=rng.randint(5, 20))) + "."
            file.write(json.dumps({"id": row, "source": source, "output": output}) + "\n")


def execute(directory: Path, file: Path, make_judge: Callable[[], Judge], window: int) -> bytes:
    """Run to the end from the current state."""
    metrics = [Metric.load(f"summarization/{name}").with_steps(()) for name in ("coherence", "fluency")]
    settings = Settings(window=window, metrics=[definition(metric) for metric in metrics], use_cache=False)
    manifest = RunManifest.new(fingerprint_input(file), settings, [JudgeRecord(name="judge", choice={})])
    with open_run(directory, manifest) as run:
        with Exporter(run) as exporter:
            for sample, scores in run.rows(lambda record: make_judge()):
                exporter.write(sample, scores)
        return deliver(run, exporter.files)[0].read_bytes()


def rows_in(directory: Path) -> int:
    """Count committed outcomes; 0 while there is no store."""
    try:
        with sqlite3.connect(f"file:{directory / 'scores.sqlite'}?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT COUNT(*) FROM outcomes").fetchone()[0])
    except sqlite3.Error:
        return 0


def child(work: Callable[[], object]) -> int:
    """Run a command in a separate process."""
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(f"child failed: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
    return process


def trial(directory: Path, arguments: argparse.Namespace, work: Callable[[], object], seconds: float, rng) -> list[int]:
    """Kill a run a given number of times; return how many outcomes were committed at each kill."""
    committed = []
    for _ in range(arguments.kills):
        process = child(work)
        time.sleep(rng.uniform(0, seconds))
        os.kill(process, signal.SIGKILL)
        _, status = os.waitpid(process, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                raise SystemExit("a run failed by itself")
            break
        committed.append(rows_in(directory))
    if committed != sorted(committed):
        raise SystemExit(f"committed outcomes were lost: {committed}")
    return committed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--kills", type=int, default=1, help="kills per trial, before it may come to its end")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--window", type=int, default=150)
    parser.add_argument("--judge", default="nano", help="a judge's name, or mock")
    parser.add_argument("--engine", nargs="+", default=["padded", "trie"])
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    results = []
    for engine in arguments.engine:

        def mock(engine: str = engine) -> Judge:
            return MockJudge(
                MockEngine(
                    batch_tokens=arguments.batch_tokens,
                    sensitive=True,
                    unit_packs=1 if engine == "padded" else 3,
                    seconds=0.005,
                )
            )

        judge = None
        if arguments.judge != "mock":
            judge = Judge.load(arguments.judge, engine=engine, batch_tokens=arguments.batch_tokens, device="cpu")
        rng = random.Random(arguments.seed)
        equal, moments = 0, []
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "rows.jsonl"
            write_rows(file, arguments.rows)

            def work(
                directory: Path, file: Path = file, judge: Judge | None = judge, mock: Callable[[], Judge] = mock
            ) -> bytes:
                return execute(directory, file, mock if judge is None else lambda: judge, arguments.window)

            begin = time.perf_counter()
            whole = Path(place) / "whole"
            os.waitpid(child(lambda whole=whole: work(whole)), 0)
            seconds = time.perf_counter() - begin
            expected = (whole / "scores.jsonl").read_bytes()
            for number in range(arguments.trials):
                directory = Path(place) / f"trial{number}"
                moments += trial(directory, arguments, lambda path=directory: work(path), seconds, rng)
                os.waitpid(child(lambda path=directory: work(path)), 0)
                same = (directory / "scores.jsonl").read_bytes() == expected
                equal += same
                if not same:
                    print(f"{engine}, trial {number}: the files differ", flush=True)
        results.append(
            {
                "engine": engine,
                "trials": arguments.trials,
                "kills": len(moments),
                "equal": equal,
                "whole_run_seconds": round(seconds, 2),
                "outcomes_committed_at_kills": sorted(moments),
            }
        )
        print(f"{engine}: {equal} of {arguments.trials} files equal after {len(moments)} kills", flush=True)
    record = {
        "benchmark": "faults",
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "judge": arguments.judge,
        "rows": arguments.rows,
        "metrics": 2,
        "results": results,
    }
    print(json.dumps(record))
    if any(one["equal"] < one["trials"] for one in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
