"""Shares of a run against one run, with a judge that costs nothing: rows per second, memory, and a resume at half.

    python benchmarks/shards.py --rows 200000 --shards 4

Every step is a process of its own. Times are processor seconds, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from geval_local.metric import Metric
from geval_local.runs.merging import merge_shares
from geval_local.runs.run_file import score_file
from geval_local.testing import MockEngine, MockJudge

METRIC = Metric.load("summarization/fluency").with_steps(())


def write_rows(path: Path, rows: int) -> None:
    """Rows of some 20 words, four of them to a document."""
    with path.open("w", encoding="utf-8") as file:
        for row in range(rows):
            source = f"Ferry {row // 4} stops for {row // 4 % 9 + 2} days, and two boats carry the passengers."
            record = {
                "id": row,
                "doc_id": row // 4,
                "source": source,
                "output": f"It stops at {row} for a while, they say.",
            }
            file.write(json.dumps(record) + "\n")


class Dying(MockEngine):
    """Kills its process after some rows."""

    def __init__(self, rows: int) -> None:
        super().__init__(batch_tokens=16_384)
        self.left = rows

    def read(self, requests):  # type: ignore[no-untyped-def]
        """See `MockEngine.read`."""
        self.left -= len(requests)
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(requests)


def measured(name: str, rows: int, work: Callable[[], object]) -> None:
    """Do some work in a process of its own, and print what it took."""
    begin = time.perf_counter()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    ended = "killed" if os.WIFSIGNALED(status) else f"code {os.waitstatus_to_exitcode(status)}"
    told = f"{1e6 * seconds / rows:8.0f} us CPU/row {rows / seconds:8.0f} rows/CPU s" if ended == "code 0" else " " * 44
    print(
        f"{name:28} {rows:8} rows {seconds:8.1f} CPU s {time.perf_counter() - begin:8.1f} s {told} "
        f"{used.ru_maxrss / 1024:6.0f} MB  {ended}",
        flush=True,
    )


def main() -> None:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=4)
    given = parser.parse_args()
    rows, count = given.rows, given.shards
    with tempfile.TemporaryDirectory() as place:
        file, here = Path(place) / "in.jsonl", Path(place)
        write_rows(file, rows)
        print(
            f"{rows} rows, {file.stat().st_size / 1e6:.1f} MB; Python {sys.version.split()[0]}, "
            f"load {os.getloadavg()[0]:.1f}"
        )

        def score(out: Path, engine: MockEngine | None = None, **options: object) -> None:
            judge = MockJudge(engine or MockEngine(batch_tokens=16_384))
            score_file(file, METRIC, judge, out, use_cache=False, window=4096, **options)

        measured("one run", rows, lambda: score(here / "once/"))
        for number in range(1, count + 1):
            if number == 2:
                measured(
                    "share 2, killed at half",
                    rows // count,
                    lambda: score(here / "out", Dying(rows // count // 2), shard=f"2/{count}"),
                )
            name = f"share {number}" + (" resumed" if number == 2 else "")
            measured(name, rows // count, lambda number=number: score(here / "out", shard=f"{number}/{count}"))
        measured("merge", rows, lambda: merge_shares([here / "out"], here / "merged/"))
        same = [hashlib.sha256((here / one / "scores.jsonl").read_bytes()).hexdigest() for one in ("once", "merged")]
        print("the same bytes" if len(set(same)) == 1 else "OTHER BYTES")


if __name__ == "__main__":
    main()
