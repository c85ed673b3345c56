"""A run of ``score``, ``decide`` or ``resume`` on a terminal: messages go to stderr, signals stop it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from geval_local.analysis.gates import Gate, outcomes
from geval_local.cli.output.console import detail, note
from geval_local.cli.output.run_summary import LOWEST_SHOWN, show_reasons, show_result
from geval_local.cli.progress import Progress, clock, show_progress
from geval_local.io.shares import EmptyShareError
from geval_local.runs.completion import RunResult
from geval_local.runs.events import RunEvents

if TYPE_CHECKING:
    from geval_local.cli.options import GateReports
    from geval_local.judge.judge import Judge
    from geval_local.metric import Metric

_Result = TypeVar("_Result")

#: Seconds of clean-up after an immediate stop, during which further signals are ignored.
ENDING_SECONDS = 5.0


class Stopper:
    """Signal handler, active within its context.

    A signal stops immediately, as usual, except while `is_working`: then it is recorded, and the run checks `wanted`
    after every pack. A second signal stops immediately. Further ones within `ENDING_SECONDS` are ignored:
    they would interrupt the removal of partial files.
    """

    def __init__(self) -> None:
        self.is_working = False
        self._noted = False
        self._stopped: float | None = None

    def wanted(self) -> bool:
        """Whether a stop was requested."""
        return self._noted

    @contextmanager
    def listening(self) -> Iterator[Stopper]:
        """Handle SIGINT and SIGTERM."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        taken = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, before in taken.items():
                signal.signal(number, before)

    def _take(self, number: int, frame: Any) -> None:
        if not self.is_working or self._noted:
            now = time.monotonic()
            if self._stopped is not None and now - self._stopped < ENDING_SECONDS:
                return
            self._stopped = now
            raise KeyboardInterrupt
        self._noted = True
        note("stopping after the current batch; press Ctrl-C again to stop at once", "yellow")


EXIT_GATE = 1


WORKERS_LOAD = "workers load the judge"
#: Seconds from which a run is long: its user may want to know what else it could take.
LONG_RUN = 600.0
#: Of a resumed run whose judge does not give the same bits again.
ROUNDED = "; figures equal those of an uninterrupted run to rounding, not to the byte"


def follow(
    run: Callable[[RunEvents], RunResult],
    file: str,
    gates: Sequence[Gate],
    *,
    results: int,
    judges: int,
    as_json: bool,
    lowest: int = LOWEST_SHOWN,
    reports: GateReports | None = None,
    title: str = "",
) -> None:
    """Execute a run, show its figures, and exit with 1 if a gate failed."""
    try:
        result = watch(run, file, results=results, judges=judges)
    except EmptyShareError as empty:
        note(f"{empty.message}; nothing is to be done")
        return
    if (reasons := result.manifest.settings.reasons) is not None:
        show_reasons(Path(str(result.files[0])), reasons.result, as_json=as_json)
        return
    found = outcomes(gates, result.summaries, answers=result.answers)
    show_result(result, found, lowest=lowest, as_json=as_json)
    if reports is not None:
        reports.write(found, title, {file: result.summaries})
    if not all(one.passed for one in found):
        raise typer.Exit(EXIT_GATE)


def watch(
    run: Callable[[RunEvents], _Result], file: str, *, results: int = 1, judges: int = 1, unit: str = "rows"
) -> _Result:
    """Follow a run to its end as `follow` does, and show nothing of its figures."""
    stopper = Stopper()
    with stopper.listening(), show_progress() as progress:
        return run(shown_run(stopper, progress, file, results, judges, unit))


def shown_run(
    stopper: Stopper, progress: Progress, file: str, results: int, judges: int, unit: str = "rows"
) -> RunEvents:
    """Give what shows on stderr what a run is doing, and hands on the wish to stop it."""
    return _Shown(stopper, progress, file, results, judges, unit)


@dataclass
class _Shown(RunEvents):
    """Shows what a run is doing."""

    stopper: Stopper
    progress: Progress
    file: str
    results: int
    judges: int
    unit: str = "rows"
    _on_workers: bool = False
    _is_scoring: bool = False
    _loading: str = ""
    _is_resumed: bool = False
    _may_tell: bool = False

    @property
    def _items(self) -> str:
        """What is counted: a row is one score, unless there are several judges or metrics."""
        return self.unit if self.results == 1 else "scores"

    def on_resume(self, there: int, total: int | None) -> None:
        unit = self._items
        self._is_resumed = there != total
        of = "" if total is None else f" of {total}"
        note(f"complete: all {total} {unit} are there" if there == total else f"resuming: {there}{of} {unit} are there")

    def on_document_ids(self, file: str) -> None:
        note(f"{file}: nearly every id occurs in several rows, so ids name documents here; rows have their numbers")

    def on_check(self) -> None:
        note("checking the judges' files ...", "dim")

    def on_load(self, judge: str | None) -> None:
        self.stopper.is_working = self._is_scoring = False
        self._on_workers = judge is None
        named = "the judge" if self.judges == 1 else judge
        label = WORKERS_LOAD if judge is None else f"loading {named}"
        if label != self._loading:  # a judge may be loaded in two steps
            note(f"{label} ...", "dim")
        self._loading = label
        self.progress.begin(label)

    def on_loaded(self, judge: Judge) -> None:
        # The speed of a served judge is its server's.
        self._may_tell = self.unit == "rows" and judge.backend.facts.is_here
        if self.unit == "rows":  # what is written is no read-out of an engine
            is_rounded = self._is_resumed and not judge.backend.facts.is_reproducible
            report = judge.engine_report
            detail(f"engine: {report.text}{ROUNDED * is_rounded}", unusual=is_rounded or not report.is_usual)

    def on_steps(self, metric: Metric, tokens: int) -> None:
        self.progress.show_steps(metric, tokens)

    def on_score(self, judge: str, total: int | None, there: int, done: int) -> None:
        self._is_scoring = True
        # From now on a stop waits for the current batch.
        self.stopper.is_working = not self._on_workers
        label = f"scoring {self.file}" if self.unit == "rows" else f"writing {self.unit}"
        label += f" by {judge}" if self.judges > 1 else ""
        self.progress.begin(label, total, unit=self._items, there=there, done=done)

    def on_progress(self, done: int) -> None:
        if self._is_scoring:
            self.progress.reach(done)
            self._tell_of_long_run()
        elif self._on_workers:  # shards are assigned, and their workers start by loading
            self.progress.begin(WORKERS_LOAD)

    def _tell_of_long_run(self) -> None:
        """Say once how long a long run by a judge of this process takes, and what shows the alternatives."""
        left = self.progress.seconds_left
        if self._may_tell and left >= LONG_RUN:
            self._may_tell = False
            note(f"about {clock(left)} at this rate; `geval-local judges check JUDGE --speed` times other settings")

    def on_write(self) -> None:
        self.stopper.is_working = False

    def should_stop(self) -> bool:
        return self.stopper.wanted()
