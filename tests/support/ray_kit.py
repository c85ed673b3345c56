"""Judges for workers of a real cluster: they record their work, and some of them are killed midway."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from geval_local.judge.judge import Judge
from geval_local.ray import cluster
from geval_local.runs.manifest import JudgeRecord
from geval_local.testing import MockEngine, MockJudge


@dataclass(frozen=True)
class WaitingSurvey:
    """A survey that reads one file only after the first part is there, or after two minutes.

    Attributes
    ----------
    name : str
        Name of the file.
    parts : Path
        The directory of parts.
    log : Path
        Takes the number of parts at that time.
    """

    name: str
    parts: Path
    log: Path

    def __call__(self, row, cut, job, tally):
        for file in row["item"]:
            if file.place.name == self.name:
                end = time.monotonic() + 120
                while not (count := len(list(self.parts.glob("part-*")))) and time.monotonic() < end:
                    time.sleep(0.05)
                self.log.write_text(str(count))
            yield from cluster._survey({"item": [file]}, cut, job, tally)


@dataclass(frozen=True)
class LoggedLoad:
    """Loads a judge on a worker.

    Attributes
    ----------
    log : Path
        Takes a line per judge loaded, and one per metric and window begun.
    judge : str
        ``nano`` or ``mock``.
    killed : Path or None
        Where it is noted that a worker was killed: the first one to be within its second block, once. None: nobody is.
    deadly : str
        Id of a row that kills every worker that scores it; empty for none.
    together : int
        Workers that are waited for, for two minutes at most, before one begins: else the first may have done all of
        the little there is by the time that the others are there.
    """

    log: Path
    judge: str = "mock"
    killed: Path | None = None
    deadly: str = ""
    together: int = 1

    def __call__(self, record: JudgeRecord) -> Judge:
        judge = Judge.load("nano") if self.judge == "nano" else MockJudge(MockEngine(batch_tokens=6000))
        self._write("loaded", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        prepare, done = judge.prepare, []

        def logged(metric, samples):
            end = time.monotonic() + 120
            while not done and len(self.lines("loaded")) < self.together and time.monotonic() < end:
                time.sleep(0.05)
            ids = [str(sample.fields["id"]) for sample in samples]
            self._write("scores", metric.name, *ids)
            done.append(0)
            if self.deadly in ids or (self.killed is not None and len(done) > 2 and self._is_first()):
                os.kill(os.getpid(), signal.SIGKILL)
            return prepare(metric, samples)

        judge.prepare = logged
        return judge

    def _is_first(self) -> bool:
        try:
            self.killed.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _write(self, *words: str) -> None:
        # One write to a file opened for appending: lines of two processes do not mix.
        with self.log.open("ab", buffering=0) as file:
            file.write((" ".join([str(os.getpid()), *words]) + "\n").encode())

    def lines(self, kind: str) -> list[list[str]]:
        """What was written of a kind, without the kind: ``[process, word, ...]``."""
        found = [line.split(" ") for line in self.log.read_text().splitlines()]
        return [[pid, *rest] for pid, word, *rest in found if word == kind]
