"""Progress display: a bar on a terminal, otherwise occasional lines on stderr."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from geval_local.cli.output.console import message_console, note
from geval_local.models.progress import watch_reading

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from geval_local.judge.judge import Judge
    from geval_local.metric import Metric
    from geval_local.options import JudgeOptions

#: Seconds between lines if stderr is not a terminal: at most half a minute, even on a busy machine.
HEARTBEAT = 20.0
_BYTES = "bytes"


@dataclass
class _Phase:
    """One phase of the work."""

    #: Description of the phase.
    label: str
    #: Total number of items.
    total: int | None = None
    #: Unit of the count; empty for a phase that is not counted.
    unit: str = ""
    #: Items per unit.
    each: int = 1
    #: Items done before the phase started.
    there: int = 0
    #: Items done.
    done: int = 0
    #: Start time, monotonic, seconds.
    start: float = field(default_factory=lambda: time.monotonic())

    def figures(self) -> str:
        """Describe the progress, the rate and the remaining time."""
        seconds = time.monotonic() - self.start
        told, rate = [], 0.0
        if self.unit == _BYTES:
            told.append(f"{self.done / 1e9:.1f} of {(self.total or 0) / 1e9:.1f} GB")
            rate = self.done / max(seconds, 1e-9)
        elif self.unit:
            of = "" if self.total is None else f" of {self.total // self.each}"
            told.append(f"{self.done // self.each}{of} {self.unit}")
            rate = max(0, self.done - self.there) / self.each / max(seconds, 1e-9)
            told += [f"{rate:.3g} {self.unit}/s"] if rate else []
        if rate and self.total is not None:
            told.append(f"{_clock(max(0, self.total - self.done) / self.each / rate)} left")
        else:
            told.append(f"{_clock(seconds)} so far")
        return ", ".join(told)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """The current phase, for `show_progress`."""

    def __init__(self, bar: Bar | None = None) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._phase: _Phase | None = None

    def begin(
        self,
        label: str,
        total: int | None = None,
        *,
        unit: str = "",
        each: int = 1,
        there: int = 0,
        done: int = 0,
    ) -> None:
        """Start the next phase."""
        # What was there, or done before the clock starts, is not part of the rate.
        self._phase = _Phase(label, total, unit, each, max(there, done), done)
        if self._bar is not None:
            if self._task is not None:
                self.fill()
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(label, total=total, completed=done)

    def fill(self) -> None:
        """Fill the bar of a phase that is done, whether its total was known or not."""
        phase = self._phase
        if self._bar is not None and self._task is not None and phase is not None and phase.done:
            self._bar.update(self._task, total=phase.done, completed=phase.done, refresh=True)

    def advance(self, count: int) -> None:
        """Add to the number of items done."""
        if self._phase is not None:
            self.reach(self._phase.done + count)

    def reach(self, count: int) -> None:
        """Set the number of items done."""
        if self._phase is not None:
            self._phase.done = count
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=count)

    def read(self, done: int, total: int) -> None:
        """Show how much of a judge's weights has been read while it is loaded."""
        phase = self._phase
        if phase is None or phase.unit not in ("", _BYTES):
            return
        if not phase.unit:
            self.begin(phase.label, total, unit=_BYTES)
        self.reach(done)
        if done >= total:  # what is left is no reading: checks, and a probe of the precision
            self.begin(f"checking what was read, {total / 1e9:.1f} GB")

    def show_steps(self, metric: Metric, tokens: int) -> None:
        """Announce the writing of steps, then count their tokens, see `geval_local.judge.steps.OnSteps`."""
        if tokens:
            self.reach(tokens)
            return
        label = f"writing the evaluation steps of {metric.name}"
        note(f"{label} ...", "dim")
        self.begin(label, unit="tokens")

    def line(self) -> str | None:
        """Describe the current phase in one line; None without one."""
        phase = self._phase
        return None if phase is None else f"{phase.label}: {phase.figures()}"

    def figures(self) -> str:
        """Describe the progress of the current phase."""
        return "" if self._phase is None else self._phase.figures()


@contextmanager
def show_progress(label: str | None = None, total: int | None = None, *, unit: str = "rows") -> Iterator[Progress]:
    """Show progress on stderr while the context is open."""
    shown = _shown_as_bar() if message_console().is_terminal else _shown_as_lines()
    with shown as progress, watch_reading(progress.read):
        if label is not None:
            progress.begin(label, total, unit=unit)
        yield progress


@contextmanager
def _shown_as_bar() -> Iterator[Progress]:
    from rich import progress

    class Figures(progress.ProgressColumn):
        max_refresh = 0.5

        def render(self, task: progress.Task) -> str:
            return own.figures()

    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=20),
        Figures(),
        console=message_console(),
        transient=True,
    )
    own = Progress(bar)
    with bar:
        yield own


@contextmanager
def _shown_as_lines() -> Iterator[Progress]:
    progress, over = Progress(), threading.Event()

    def tell() -> None:
        while not over.wait(HEARTBEAT):
            if line := progress.line():
                note(line)

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield progress
    finally:
        over.set()
        teller.join()


def load_shown(options: JudgeOptions) -> Judge:
    """Load a judge while showing progress."""
    note("loading the judge ...", "dim")
    with show_progress("loading the judge", unit=""):
        from geval_local.judge.judge import Judge

        return Judge.load(options)
