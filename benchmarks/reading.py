"""What analyses of a large result file cost: processor time and memory of one command a process.

`python benchmarks/reading.py 100000` writes results of so many rows (documents of ten systems, a rating in every tenth
document), without a judge, and gives them to `estimate`, `compare`, `report` and `meta-eval`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from geval_local.io.result_manifest import ResultManifest, ScoredMetric, write_manifest
from geval_local.metric import Metric

SYSTEMS = 10
LABELS = ("1", "2", "3", "4", "5")
WORDS = "the order came late and the box was open so they sent it back to us".split()  # noqa: SIM905 - readable


def write(path: Path, rows: int, seed: int) -> None:
    """Write results of one metric, with their manifest."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for place in range(rows):
            document, system = divmod(place, SYSTEMS)
            p = rng.dirichlet(np.ones(5))
            score = float(p @ np.arange(1, 6))
            text = " ".join(rng.choice(WORDS, 40))
            row = {
                "id": f"row-{place}",
                "question": f"Question {document}: " + " ".join(WORDS[:12]),
                "output": text,
                "system": f"system-{system}",
                "rating": int(rng.integers(1, 6)) if document % 10 == 0 else None,
            }
            figures = {
                "score": score,
                "normalized": (score - 1) / 4,
                "probabilities": dict(zip(LABELS, p.tolist(), strict=True)),
                "label_mass": float(rng.uniform(0.9, 1)),
                "std": float(rng.uniform()),
                "entropy": float(rng.uniform()),
                "mode": LABELS[int(p.argmax())],
                "margin": float(rng.uniform()),
                "prompt_tokens": 260,
            }
            file.write(json.dumps({**row, "geval": {"quality": figures}}) + "\n")
    metric = Metric(
        name="quality", criteria="Is it good?", scale="1-5", fields={"question": "Question", "output": "Answer"}
    )
    described = ScoredMetric("judge:bench@0|metric:quality@0", metric, 0)
    write_manifest(path, ResultManifest("bench", "in.jsonl", "0", rows, {"quality": described}))


def cost(command: list[str]) -> tuple[int, float, int]:
    """Run a command; return its exit code, its processor time in seconds, and its peak of memory in MB."""
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-m", "geval_local", *command])
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss // 1024


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("rows", type=int, help="rows of a file")
    parser.add_argument("--only", nargs="*", help="commands")
    given = parser.parse_args()
    print(
        f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC, Python {platform.python_version()}, {os.cpu_count()} cores"
    )
    print(f"python benchmarks/reading.py {given.rows}")
    with tempfile.TemporaryDirectory() as place:
        one, other = Path(place) / "one.jsonl", Path(place) / "other.jsonl"
        write(one, given.rows, 1)
        write(other, given.rows, 2)
        print(f"{given.rows:,} rows, {one.stat().st_size / 1e6:.0f} MB a file")
        commands = {
            "estimate": ["estimate", one, "--human", "rating"],
            "compare": ["compare", one, other, "--across", "any", "--across", "input"],
            "report": ["report", one, "--human", "rating", "-o", Path(place) / "page.html"],
            "meta-eval": ["meta-eval", one, "--human", "rating", "--no-baselines"],
        }
        for name, command in commands.items():
            if given.only and name not in given.only:
                continue
            began = time.monotonic()
            with (Path(place) / "out.txt").open("w") as out:
                kept = os.dup(1), os.dup(2)
                os.dup2(out.fileno(), 1), os.dup2(out.fileno(), 2)
                code, seconds, memory = cost([*map(str, command)])
                os.dup2(kept[0], 1), os.dup2(kept[1], 2)
            wall = time.monotonic() - began
            print(
                f"{name:10} exit {code}: {seconds:6.1f} s of processor time, {wall:6.1f} s, {memory:5} MB", flush=True
            )
            if code:
                print((Path(place) / "out.txt").read_text()[-600:])


if __name__ == "__main__":
    main()
