"""Judges for worker processes: quick, slow, or deadly to the process that scores a certain row."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from geval_local.options import JudgeOptions
from geval_local.runs.manifest import JudgeRecord
from geval_local.runs.spread import Spread
from geval_local.runs.workers import Command, LocalWorkers, Told
from geval_local.testing import MockEngine, MockJudge


def load(record: JudgeRecord, log: Path, seconds: float, deadly: str, once: bool) -> MockJudge:
    """Load a judge that writes down who scores what.

    Parameters
    ----------
    log : Path
        Takes a line for every window: process and ids.
    seconds : float
        Duration of a pack.
    deadly : str
        Id of a row that kills its process; empty for none.
    once : bool
        Whether only the first process is killed.
    """
    judge = MockJudge(MockEngine(batch_tokens=1500, seconds=seconds), name=record.name)
    prepare = judge.prepare

    def logged(metric, samples):
        ids = [str(sample.fields["id"]) for sample in samples]
        with log.open("ab", buffering=0) as file:
            file.write((" ".join([str(os.getpid()), *ids]) + "\n").encode())
        killed = log.with_suffix(".killed")
        if deadly in ids and not (once and killed.exists()):
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return prepare(metric, samples)

    judge.prepare = logged
    return judge


def start(workers: str, judges: Sequence[JudgeOptions], log: Path, seconds: float, deadly: str, once: bool):
    """Start processes with such judges."""
    judge = partial(load, log=log, seconds=seconds, deadly=deadly, once=once)
    return LocalWorkers([{"PLACE": str(place)} for place in range(int(workers))], judge)


def spread(log: Path, *, seconds: float = 0.0, deadly: str = "", once: bool = True):
    """Return what stands for `Spread`."""
    return partial(Spread, start=partial(start, log=log, seconds=seconds, deadly=deadly, once=once))


def workers_of(log: Path) -> dict[int, list[str]]:
    """Read who scored what."""
    found: dict[int, list[str]] = {}
    for line in log.read_text().splitlines():
        pid, *ids = line.split(" ")
        found.setdefault(int(pid), []).extend(ids)
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pids: Sequence[int], seconds: float = 60.0) -> bool:
    """Whether processes end in this time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(map(is_alive, pids)):
        time.sleep(0.05)
    return not any(map(is_alive, pids))


def dying(command: Command) -> None:
    """Stand for a process that Ray ends."""
    command.tell(Told("size", 2))
    command.asked.get()  # the first task
    os.kill(os.getpid(), signal.SIGKILL)


def hanging(command: Command) -> None:
    """Stand for a process whose cluster hangs."""
    command.tell(Told("size", 2))
    time.sleep(600)


def mute(command: Command) -> None:
    """Stand for a process that waits for a cluster."""
    time.sleep(600)
