"""What a run and its caller tell each other: events of the run, and maps that the caller lays over its scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from geval_local.metric import Metric
from geval_local.score import Score

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["Calibrator", "RunEvents"]


class Calibrator(Protocol):
    """Brings a metric's scores onto the scale of human ratings; `geval_local.analysis` fits such maps."""

    def check(self, signature: str) -> None:
        """Refuse scores of another kind than those that it was fitted on.

        Raises
        ------
        ConfigurationError
            If they are.
        """
        ...

    def calibrate(self, score: Score) -> Score:
        """Add the calibrated value to a score; all other figures stay raw."""
        ...

    def record(self) -> dict[str, Any]:
        """Describe the map for the manifest of the results."""
        ...


class RunEvents:
    """What a run tells its caller; override what you need. All methods are called in the thread of `score_file`."""

    def on_resume(self, there: int, total: int | None) -> None:
        """Hear that an earlier run left `there` of `total` outcomes (None: unknown); one per row, metric and judge."""

    def on_check(self) -> None:
        """Hear that the files of several judges are checked before the first one is loaded."""

    def on_load(self, judge: str | None) -> None:
        """Hear that a judge is loaded now; None: the workers of a cluster load it."""

    def on_loaded(self, judge: Judge) -> None:
        """Hear that a judge is there."""

    def on_steps(self, metric: Metric, tokens: int) -> None:
        """Hear how many tokens of a metric's evaluation steps a judge has written; 0 when it begins."""

    def on_score(self, judge: str, total: int | None, there: int, done: int) -> None:
        """Hear that a judge begins to score: `done` of `total` outcomes are finished, `there` by an earlier run."""

    def on_progress(self, done: int) -> None:
        """Hear how many outcomes are finished."""

    def on_write(self) -> None:
        """Hear that every row has its outcome, and that results are written now."""

    def should_stop(self) -> bool:
        """Say whether to stop after the current batch; asked often."""
        return False
