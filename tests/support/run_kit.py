"""Runs for tests: a mock judge whose last bits reveal any change of packs, and runs that stop at a chosen point."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from geval_local.metric import Metric
from geval_local.runs.directory import open_run
from geval_local.runs.exporter import Exporter, deliver
from geval_local.runs.input_file import fingerprint_input
from geval_local.runs.manifest import JudgeRecord, RunManifest, definition
from geval_local.runs.settings import Settings
from geval_local.testing import MockEngine, MockJudge

METRICS = [Metric.load(f"summarization/{name}").with_steps(()) for name in ("coherence", "fluency")]


def write_input(path: Path, rows: int, *, holes: bool = True) -> Path:
    """Rows of which four share a source; some cannot be scored."""
    with path.open("w", encoding="utf-8") as file:
        for row in range(rows):
            record = {"id": row, "source": f"Tale {row // 4}. " * (3 + row % 4), "output": f"It ends at {row}."}
            if holes and row % 17 == 5:
                record["output"] = ""
            file.write(json.dumps(record) + "\n")
    return path


def engine(**settings) -> MockEngine:
    return MockEngine(**({"batch_tokens": 6000, "sensitive": True} | settings))


def wanted(file: Path, judges: tuple[str, ...] = ("mock",), **settings) -> RunManifest:
    base = {"window": 50, "metrics": [definition(metric) for metric in METRICS], "use_cache": False}
    return RunManifest.new(
        fingerprint_input(file),
        Settings(**(base | settings)),
        [JudgeRecord(name=name, choice={"name": name}) for name in judges],
    )


def execute(
    directory: Path | None,
    manifest: RunManifest | None,
    make_engine: Callable[[], MockEngine] = engine,
    *,
    stop_after: int | None = None,
    retry_errors: bool = False,
) -> list[Path]:
    """Run to the end, or until so many packs are finished; return the files."""
    made: list[MockEngine] = []

    def load(record: JudgeRecord) -> MockJudge:
        made.append(make_engine())
        return MockJudge(made[-1], name=record.name)

    def should_stop() -> bool:
        return stop_after is not None and sum(one.executed_packs for one in made) >= stop_after

    with open_run(directory, manifest, retry_errors=retry_errors) as run:
        with Exporter(run) as exporter:
            for sample, scores in run.rows(load, should_stop=should_stop):
                exporter.write(sample, scores)
        return deliver(run, exporter.files)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def kills_itself(work: Callable[[], object]) -> bool:
    """Do some work in a fork; whether it was ended by SIGKILL, as the work does to itself in its middle."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def killed_after(seconds: float, work: Callable[[], object]) -> bool:
    """Do some work in a fork that gets SIGKILL; whether that came before its end, which has to be a good one."""
    return killed_when(partial(time.sleep, seconds), work)


def killed_when(wait: Callable[[], object], work: Callable[[], object]) -> bool:
    """Do some work in a fork that gets SIGKILL when the wait is over; see `killed_after`."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    wait()
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFEXITED(status)
