"""``score --calibration``: a fitted map, applied only to scores with the signature that it was fitted on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from geval_local.analysis.studies.calibration import Calibration, load_calibration
from geval_local.cli.output.console import note
from geval_local.errors import ConfigurationError
from geval_local.metric import Metric
from geval_local.score import Score
from geval_local.signature import LIBRARIES, signature_differences, told_differences

__all__ = ["ScoreCalibrator", "load_calibrations", "read_calibration"]


def load_calibrations(paths: Sequence[Path], metrics: Sequence[Metric]) -> dict[Path, tuple[str, ScoreCalibrator]]:
    """Read calibration files, at most one per metric.

    Returns
    -------
    dict of Path to (str, ScoreCalibrator)
        File -> its metric, and its calibrator.

    Raises
    ------
    ConfigurationError
        If a file is none, does not help on held-out documents, belongs to a metric that is not scored, or two belong to
        one metric.
    """
    found: dict[Path, tuple[str, ScoreCalibrator]] = {}
    names = [metric.name for metric in metrics]
    for path in paths:
        calibration = load_calibration(path)
        if calibration.metric not in names:
            raise ConfigurationError(
                f"{path} is a calibration of {calibration.metric}, and this run scores {', '.join(names)}",
                hint="Name that metric with --metric, or leave the calibration out.",
            )
        if calibration.metric in {metric for metric, _ in found.values()}:
            raise ConfigurationError(f"{path} is the second calibration of {calibration.metric}")
        found[path] = calibration.metric, ScoreCalibrator(_helpful(calibration, path))
    return found


def read_calibration(path: Path) -> tuple[str, ScoreCalibrator]:
    """Read the calibration of a run that is resumed: its metric, and what applies it."""
    calibration = _helpful(load_calibration(path), path)
    return calibration.metric, ScoreCalibrator(calibration)


def _helpful(calibration: Calibration, path: Path) -> Calibration:
    """Let pass what brings scores nearer to the ratings of documents that it was not fitted on.

    Raises
    ------
    ConfigurationError
        If it does not, by its own figures.
    """
    held = calibration.held_out
    if not held.helps:
        gained = f"{held.gain.value:.3f} [{held.gain.low:.3f}, {held.gain.high:.3f}]"
        raise ConfigurationError(
            f"{path} is not applied: the calibration {held.verdict} (gain in mean squared error {gained}, "
            f"{held.groups} documents)",
            hint="Fit it on more rated documents or by another --method, or leave it out: the scores as they are do "
            "better, or as well.",
        )
    return calibration


@dataclass(frozen=True)
class ScoreCalibrator:
    """Applies a calibration to scores with the signature that it was fitted on; a `runs.events.Calibrator`."""

    calibration: Calibration

    def check(self, signature: str) -> None:
        """Reject a calibration fitted on scores with another signature; another library version is only reported.

        Raises
        ------
        ConfigurationError
            If judge, metric, steps, scale, style, estimator or anything else except library versions differs.
        """
        calibration = self.calibration
        differ = signature_differences(calibration.signature, signature)
        serious = {key: pair for key, pair in differ.items() if key not in LIBRARIES}
        if serious:
            told = told_differences(serious)
            raise ConfigurationError(
                f"the calibration of {calibration.metric} was fitted on other scores: {told}",
                hint="Score the rated rows as this run does, and fit it again with `geval-local calibrate`.",
            )
        for key, (fitted, own) in differ.items():
            note(
                f"warning: the calibration of {calibration.metric} was fitted with {key} {fitted}, now it is {own}",
                "yellow",
            )

    def calibrate(self, score: Score) -> Score:
        """Add the calibrated value to a score; all other figures stay raw."""
        if not score.is_scored:
            return score
        value = self.calibration.apply(score.value, score.probabilities)[0]
        return replace(score, calibrated=value) if math.isfinite(value) else score

    def record(self) -> dict[str, Any]:
        """Describe the calibration for the manifest of the results."""
        calibration = self.calibration
        return {
            "human": calibration.human,
            "method": calibration.method,
            "temperature": calibration.temperature,
            "knots": [list(knot) for knot in calibration.knots],
        }
