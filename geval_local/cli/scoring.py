"""A run of ``score``, ``decide`` or ``resume`` on a terminal: messages go to stderr, signals stop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import typer

from geval_local.cli.gates import EXIT_GATE
from geval_local.cli.output.console import note
from geval_local.cli.output.decisions import show_decisions
from geval_local.cli.output.run_summary import show_result
from geval_local.cli.progress import Progress, show_progress
from geval_local.cli.stopping import Stopper
from geval_local.evaluation.gates import Gate, failures
from geval_local.runs.completion import RunResult
from geval_local.runs.events import RunEvents

if TYPE_CHECKING:
    from geval_local.judge import Judge
    from geval_local.metric import Metric

__all__ = ["follow", "shown_run", "watch"]

WORKERS_LOAD = "workers load the judge"


def follow(
    run: Callable[[RunEvents], RunResult],
    file: str,
    gates: Sequence[Gate],
    *,
    results: int,
    judges: int,
    as_json: bool,
    command: str,
) -> None:
    """Execute a run, show its figures, and exit with 1 if a gate failed."""
    result = watch(run, file, results=results, judges=judges)
    failed = failures(gates, result.summaries, answers=result.answers)
    show = show_decisions if result.answers else show_result
    show(result, failed, as_json=as_json, command=command)
    if failed:
        raise typer.Exit(EXIT_GATE)


def watch(run: Callable[[RunEvents], RunResult], file: str, *, results: int, judges: int) -> RunResult:
    """Follow a run to its end as `follow` does, and show nothing of its figures."""
    stopper = Stopper()
    with stopper.listening(), show_progress() as progress:
        return run(shown_run(stopper, progress, file, results, judges))


def shown_run(stopper: Stopper, progress: Progress, file: str, results: int, judges: int) -> RunEvents:
    """Give what shows on stderr what a run is doing, and hands on the wish to stop it."""
    return _Shown(stopper, progress, file, results, judges)


class _Shown(RunEvents):
    """Shows what a run is doing."""

    def __init__(self, stopper: Stopper, progress: Progress, file: str, results: int, judges: int) -> None:
        self._stopper = stopper
        self._progress = progress
        self._file = file
        self._results = results
        self._judges = judges
        self._on_workers = False
        self._is_scoring = False

    def on_resume(self, there: int, total: int | None) -> None:
        of = "" if total is None else f" of {total}"
        note(f"resuming: {there}{of} {'rows' if self._results == 1 else 'scores'} are there")

    def on_check(self) -> None:
        note("checking the judges' files ...", "dim")

    def on_load(self, judge: str | None) -> None:
        self._stopper.is_working = self._is_scoring = False
        self._on_workers = judge is None
        named = "the judge" if self._judges == 1 else judge
        label = WORKERS_LOAD if judge is None else f"loading {named}"
        note(f"{label} ...", "dim")
        self._progress.begin(label)

    def on_loaded(self, judge: Judge) -> None:
        note(f"engine: {judge.engine_report.text}", "dim")

    def on_steps(self, metric: Metric, tokens: int) -> None:
        self._progress.show_steps(metric, tokens)

    def on_score(self, judge: str, total: int | None, there: int, done: int) -> None:
        self._is_scoring = True
        # From now on a stop waits for the current batch.
        self._stopper.is_working = not self._on_workers
        label = f"scoring {self._file}"
        self._progress.begin(label, total, unit="rows", each=self._results, there=there, done=done)

    def on_progress(self, done: int) -> None:
        if self._is_scoring:
            self._progress.reach(done)
        elif self._on_workers:  # shards are assigned, and their workers start by loading
            self._progress.begin(WORKERS_LOAD)

    def on_write(self) -> None:
        self._stopper.is_working = False

    def should_stop(self) -> bool:
        return self._stopper.wanted()
