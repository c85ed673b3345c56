"""Progress display: a bar on a terminal, otherwise occasional lines on stderr."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from geval_local.cli.output.console import message_console, note
from geval_local.models.progress import watch_work

if TYPE_CHECKING:
    from rich.progress import Task

    from geval_local.judge.judge import Judge
    from geval_local.metric import Metric
    from geval_local.options import JudgeOptions

#: Seconds between lines if stderr is not a terminal: at most half a minute, even on a busy machine.
HEARTBEAT = 20.0
_BYTES = "bytes"


def _figures(task: Task) -> str:
    """Describe the progress of a phase, its rate and the remaining time; `task.fields` are those of `begin`."""
    seconds, done, total = task.elapsed or 0.0, int(task.completed), task.total
    unit, moved = task.fields["unit"], task.fields["moved"]
    told, rate = [], 0.0
    if unit == _BYTES:
        told.append(f"{done / 1e9:.1f} of {(total or 0) / 1e9:.1f} GB")
        rate = max(0, done - task.fields["there"]) / max(moved, 1e-9)
    elif unit:
        of = "" if total is None else f" of {int(total)}"
        told.append(f"{done}{of} {unit}")
        rate = max(0, done - task.fields["there"]) / max(moved, 1e-9)
        told += [f"{rate:.3g} {unit}/s"] if rate else []
    if (drawn := task.fields["drawn"]) is not None:
        told.append(f"{drawn[0]} of {drawn[1]} thoughts")
    left = _seconds_left(task)
    return ", ".join([*told, f"{clock(left)} left" if left > 0 else f"{clock(seconds)} so far"])


def _seconds_left(task: Task) -> float:
    """Estimate the rest of a phase from its latest batch: during the next one the rate stays; 0 where nobody knows."""
    done, moved = task.completed, task.fields["moved"]
    rate = max(0, done - task.fields["there"]) / max(moved, 1e-9)
    return 0.0 if task.total is None or not rate else max(0, task.total - done) / rate - ((task.elapsed or 0) - moved)


def clock(seconds: float) -> str:
    """Write a time as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Progress:
    """The current phase, for `show_progress`: a bar on a terminal, and elsewhere `line`."""

    def __init__(self) -> None:
        from rich import progress

        class Figures(progress.ProgressColumn):
            max_refresh = 0.5

            def render(self, task: Task) -> str:
                return _figures(task)

        console = message_console()
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=20),
            Figures(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    @property
    def _phase(self) -> Task | None:
        return next(iter(self.bar.tasks), None)

    def begin(
        self,
        label: str,
        total: int | None = None,
        *,
        unit: str = "",
        there: int = 0,
        done: int = 0,
    ) -> None:
        """Start the next phase: its number of items, and how many are done already."""
        for task in self.bar.task_ids:
            self.bar.remove_task(task)
        # Items done before the clock starts are not part of the rate.
        self.bar.add_task(label, total=total, completed=done, unit=unit, there=max(there, done), moved=0.0, drawn=None)

    def advance(self, count: int) -> None:
        """Add to the number of items done."""
        for task in self.bar.tasks:
            self.reach(int(task.completed) + count)

    def reach(self, count: int) -> None:
        """Set the number of items done."""
        for task in self.bar.tasks:
            if count != task.completed:
                self.bar.update(task.id, completed=count, moved=task.elapsed or 0.0)

    @property
    def seconds_left(self) -> float:
        """Seconds that the phase will take, as far as its latest batch tells; 0 if nothing does."""
        return 0.0 if (phase := self._phase) is None else _seconds_left(phase)

    def read(self, done: int, total: int) -> None:
        """Show how much of a judge's weights has been read while it is loaded."""
        phase = self._phase
        if phase is None or phase.fields["unit"] not in ("", _BYTES):
            return
        if not phase.fields["unit"]:
            self.begin(phase.description, total, unit=_BYTES, done=done)
        self.reach(done)
        if done >= total:  # the rest of loading: checks, and a probe of the precision
            self.begin(f"checking what was read, {total / 1e9:.1f} GB")

    def draw(self, done: int, total: int) -> None:
        """Show how many thoughts of the rows in work are drawn, until all of them are."""
        for task in self.bar.tasks:
            self.bar.update(task.id, drawn=(done, total) if done < total else None)

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
        return None if phase is None else f"{phase.description}: {_figures(phase)}"


@contextmanager
def show_progress(label: str | None = None, total: int | None = None, *, unit: str = "rows") -> Iterator[Progress]:
    """Show progress on stderr while the context is open."""
    progress = Progress()
    shown = _told_in_lines(progress) if progress.bar.disable else progress.bar
    with shown, watch_work(progress.read, progress.draw):
        if label is not None:
            progress.begin(label, total, unit=unit)
        yield progress


@contextmanager
def _told_in_lines(progress: Progress) -> Iterator[None]:
    over = threading.Event()

    def tell() -> None:
        while not over.wait(HEARTBEAT):
            if line := progress.line():
                note(line)

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def load_shown(options: JudgeOptions) -> Judge:
    """Load a judge while showing progress."""
    note("loading the judge ...", "dim")
    with show_progress("loading the judge", unit=""):
        from geval_local.judge.judge import Judge

        return Judge.load(options)
