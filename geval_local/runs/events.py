"""Interfaces between a run and its caller: events of the run, and calibrations of its scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from geval_local.metric import Metric
from geval_local.score import Score

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge


class Calibrator(Protocol):
    """A map from a metric's scores to the scale of human ratings, fitted by `geval_local.analysis`."""

    def check(self, signature: str) -> None:
        """Reject scores with a different signature from those that it was fitted on."""
        ...

    def calibrate(self, score: Score) -> Score:
        """Add the calibrated value to a score; all other figures stay raw."""
        ...

    def record(self) -> dict[str, Any]:
        """Describe the map for the manifest of the results."""
        ...


class RunEvents:
    """Callbacks of a run; override the ones you need. All are called in the thread of `score_file`."""

    def on_resume(self, there: int, total: int | None) -> None:
        """Handle a resumed run with `there` of `total` outcomes (None: unknown); one per row, metric and judge."""

    def on_document_ids(self, file: str) -> None:
        """Handle a file whose ids name documents: its rows have numbers, and no repeated id is an error."""

    def on_check(self) -> None:
        """Handle the check of several judges' files before the first one is loaded."""

    def on_load(self, judge: str | None) -> None:
        """Handle the start of loading a judge; None: the workers of a cluster load it."""

    def on_loaded(self, judge: Judge) -> None:
        """Handle a loaded judge."""

    def on_steps(self, metric: Metric, tokens: int) -> None:
        """Handle progress in writing a metric's evaluation steps: tokens so far, 0 at the start."""

    def on_score(self, judge: str, total: int | None, there: int, done: int) -> None:
        """Handle the start of scoring: `done` of `total` outcomes are finished, `there` of them by an earlier run."""

    def on_progress(self, done: int) -> None:
        """Handle progress: `done` outcomes are finished."""

    def on_write(self) -> None:
        """Handle the start of writing results, after every row has its outcome."""

    def should_stop(self) -> bool:
        """Return whether to stop after the current batch; called often."""
        return False


class ProgressEvents(RunEvents):
    """Hands on how many outcomes are finished, and nothing else."""

    def __init__(self, reach: Callable[[int], object]) -> None:
        self._reach = reach

    def on_progress(self, done: int) -> None:
        """See `RunEvents.on_progress`."""
        self._reach(done)
