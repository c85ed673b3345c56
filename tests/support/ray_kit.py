"""Judges for workers of a real cluster: they record their work, and one of them is killed midway."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from geval_local.judge import Judge
from geval_local.runs.manifest import JudgeRecord


@dataclass(frozen=True)
class LoggedLoad:
    """Loads the embedded judge on a worker.

    Attributes
    ----------
    log : Path
        Takes a line per judge loaded, and one per metric and shard begun.
    killed : Path or None
        Where it is noted that a worker was killed: the first one to be within its second shard, once. None: nobody is.
    together : int
        Workers that are waited for, for two minutes at most, before one begins: else the first may have done all of
        the little there is by the time that the others are there.
    """

    log: Path
    killed: Path | None = None
    together: int = 1

    def __call__(self, record: JudgeRecord) -> Judge:
        judge = Judge.load("nano")
        self._write("loaded", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        prepare, outcome, done = judge.prepare, judge.outcome, []

        def logged(metric, samples):
            end = time.monotonic() + 120
            while not done and len(self.lines("loaded")) < self.together and time.monotonic() < end:
                time.sleep(0.05)
            self._write("scores", metric.name, *(str(sample.fields["id"]) for sample in samples))
            done.append(0)
            return prepare(metric, samples)

        def deadly(entry, readout):
            done[-1] += 1
            if self.killed is not None and len(done) > 2 and done[-1] == 3:
                try:
                    self.killed.touch(exist_ok=False)
                except FileExistsError:
                    return outcome(entry, readout)
                os.kill(os.getpid(), signal.SIGKILL)
            return outcome(entry, readout)

        judge.prepare, judge.outcome = logged, deadly
        return judge

    def _write(self, *words: str) -> None:
        # One write to a file opened for appending: lines of two processes do not mix.
        with self.log.open("ab", buffering=0) as file:
            file.write((" ".join([str(os.getpid()), *words]) + "\n").encode())

    def lines(self, kind: str) -> list[list[str]]:
        """What was written of a kind, without the kind: ``[process, word, ...]``."""
        found = [line.split(" ") for line in self.log.read_text().splitlines()]
        return [[pid, *rest] for pid, word, *rest in found if word == kind]
