"""What the program is doing: a bar on a terminal, elsewhere a line on stderr now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from geval_local.cli.output.console import message_console, note

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from geval_local.judge import Judge
    from geval_local.metric import Metric
    from geval_local.runs.judge_choice import JudgeChoice

__all__ = ["Progress", "load_shown", "show_progress"]

#: Seconds between two lines where stderr is no terminal: half a minute at most, whatever else the machine does.
HEARTBEAT = 20.0


@dataclass
class _Phase:
    """One thing that is being done.

    Attributes
    ----------
    label : str
        What it is.
    total : int or None
        How much of it there is.
    unit : str
        Of what; empty for a thing that is not counted.
    each : int
        How many are counted for one unit.
    there : int
        How many were done before it began.
    done : int
        How many are done.
    start : float
        When it began, monotonic, seconds.
    """

    label: str
    total: int | None = None
    unit: str = ""
    each: int = 1
    there: int = 0
    done: int = 0
    start: float = field(default_factory=lambda: time.monotonic())

    def figures(self) -> str:
        """Say how far it is, how fast, and how long it will still take."""
        seconds = time.monotonic() - self.start
        told, rate = [], 0.0
        if self.unit:
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
    """What is being done, for `show_progress`.

    Parameters
    ----------
    bar : rich.progress.Progress or None
        The bar, where stderr is a terminal.
    """

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
        """Begin something else.

        Parameters
        ----------
        label : str
            What it is.
        total : int, optional
            How much there is to be counted.
        unit : str
            Of what; empty for a thing that is not counted.
        each : int
            How many are counted for one unit, such as scores for a row.
        there : int
            How many were done by an earlier run: they tell nothing about the rate.
        done : int
            How many are done.
        """
        self._phase = _Phase(label, total, unit, each, there, done)
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(label, total=total, completed=done)

    def advance(self, count: int) -> None:
        """Count more."""
        if self._phase is not None:
            self.reach(self._phase.done + count)

    def reach(self, count: int) -> None:
        """Count so many in all."""
        if self._phase is not None:
            self._phase.done = count
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=count)

    def show_steps(self, metric: Metric, tokens: int) -> None:
        """Take `geval_local.steps.OnSteps`: announce the writing of a metric's steps, then count their tokens."""
        if tokens:
            self.reach(tokens)
            return
        label = f"writing the evaluation steps of {metric.name}"
        note(f"{label} ...", "dim")
        self.begin(label, unit="tokens")

    def line(self) -> str | None:
        """Say in one line what is being done; None if nothing is."""
        phase = self._phase
        return None if phase is None else f"{phase.label}: {phase.figures()}"

    def figures(self) -> str:
        """Say how far it is."""
        return "" if self._phase is None else self._phase.figures()


@contextmanager
def show_progress(label: str | None = None, total: int | None = None, *, unit: str = "rows") -> Iterator[Progress]:
    """Show on stderr what is being done while the context is open.

    Parameters
    ----------
    label : str, optional
        What is being done at first.
    total : int, optional
        How much of it there is.
    unit : str
        Of what; empty for a thing that is not counted.

    Yields
    ------
    Progress
        To be told what is being done and how far it is.
    """
    shown = _shown_as_bar() if message_console().is_terminal else _shown_as_lines()
    with shown as progress:
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


def load_shown(choice: JudgeChoice) -> Judge:
    """Load a judge, and say so for as long as it takes."""
    note("loading the judge ...", "dim")
    with show_progress("loading the judge", unit=""):
        return choice.load()
