"""The calibration file: small, versioned JSON that says what it was fitted on and how good it is on held-out groups."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from geval_local.analysis.statistics.resampling import Interval
from geval_local.analysis.studies.calibration import Calibration, Figures, HeldOut
from geval_local.errors import ConfigurationError, OutputError, ScaleError
from geval_local.scale import Scale

__all__ = ["load_calibration", "save_calibration"]

FORMAT = "geval-local calibration"
VERSION = 1


def save_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration that `load_calibration` reads back to an equal one.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    record = {
        "format": FORMAT,
        "version": VERSION,
        "metric": calibration.metric,
        "human": calibration.human,
        "signature": calibration.signature,
        "scale": None if calibration.scale is None else _scale_record(calibration.scale),
        "method": calibration.method,
        "temperature": calibration.temperature,
        "knots": [list(knot) for knot in calibration.knots],
        "held_out": _without_nan(asdict(calibration.held_out)),
    }
    try:
        Path(path).write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the calibration {path}: {error}") from error


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is of another format or version, or does not hold together.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise ConfigurationError(f"cannot read the calibration {path}: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ConfigurationError(f"{path} is not a calibration", hint="Make one with `geval-local calibrate`.")
    if record.get("version") != VERSION:
        raise ConfigurationError(
            f"{path} has version {record.get('version')!r}, this package reads version {VERSION}",
            hint="Fit it again with `geval-local calibrate`.",
        )
    try:
        held_out = _with_nan(record["held_out"])
        calibration = Calibration(
            metric=str(record["metric"]),
            human=str(record["human"]),
            signature=str(record["signature"]),
            scale=None if record["scale"] is None else Scale(*(tuple(part) for part in record["scale"])),
            method=record["method"],
            temperature=float(record["temperature"]),
            knots=tuple((float(x), float(y)) for x, y in record["knots"]),
            held_out=HeldOut(
                **held_out
                | {
                    "before": Figures(**held_out["before"]),
                    "after": Figures(**held_out["after"]),
                    "gain": Interval(**held_out["gain"]),
                }
            ),
        )
    except (KeyError, TypeError, ValueError, ScaleError) as error:
        raise ConfigurationError(f"the calibration {path} is damaged: {error!r}") from error
    x, y = ([knot[side] for knot in calibration.knots] for side in (0, 1))
    rising = all(a < b for a, b in pairwise(x)) and y == sorted(y)
    numbers = [calibration.temperature, *x, *y]
    if not (rising and calibration.temperature > 0 and all(map(math.isfinite, numbers))):
        raise ConfigurationError(f"the calibration {path} is damaged: its map does not rise, or a number is not finite")
    return calibration


def _scale_record(scale: Scale) -> list[list[Any]]:
    return [list(scale.labels), list(scale.values)]


def _without_nan(value: Any) -> Any:
    """JSON has no NaN; an undefined figure is null."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nan(part) for key, part in value.items()}
    return math.nan if value is None else value
