"""Calibration: a temperature on the label distribution and a monotone map, judged on held-out groups only.

The gain on the fitted items is never reported: `calibrate` fits the map on everything
and reports figures from cross-validation over groups, with a map fitted without the item's document.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.records import ScoredItem, usable
from geval_local.analysis.statistics.distributions import expectations, probability_matrix
from geval_local.analysis.statistics.levels import Level, level_figures
from geval_local.analysis.statistics.resampling import group_folds
from geval_local.analysis.studies.calibration_maps import (
    Knots,
    fit_isotonic,
    fit_line,
    fit_temperature,
    follow,
    heat,
)
from geval_local.errors import ConfigurationError, DataError, ScaleError
from geval_local.files import save_text
from geval_local.interval import Interval, mean_interval
from geval_local.scale import Scale

__all__ = [
    "Calibration",
    "Figures",
    "HeldOut",
    "calibrate",
    "is_calibration",
    "load_calibration",
    "save_calibration",
]

FORMAT = "geval-local calibration"
VERSION = 3

Method = Literal["temperature", "isotonic", "both"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """Quality of a set of scores against human ratings.

    Attributes
    ----------
    error : float
        Root of the mean squared error, in units of the ratings.
    pearson, spearman, kendall : float
        Correlation at the requested level; NaN where undefined.
    """

    error: float
    pearson: float
    spearman: float
    kendall: float


@dataclass(frozen=True)
class HeldOut:
    """Gain of a calibration on held-out documents.

    Attributes
    ----------
    n, groups, folds : int
        Items, documents, and folds of documents.
    level : {"summary", "pooled", "system"}
        Level of the correlations.
    before, after : Figures
        Raw scores, and each item under the map fitted on the other folds.
    rescaled : Figures
        Each item under a straight line fitted on the other folds: the effect of rescaling to the ratings' units
        and spread alone.
    constant_error : float
        Error of always answering the other folds' mean.
    gain : Interval
        Mean loss of the raw scores minus that of the calibrated ones, in squared units of the ratings, with
        an interval over documents.
    over_rescaled, over_constant : Interval
        The same for the straight line, and for the constant, minus the calibrated scores.
    verdict : str
        Whether it helps, in a sentence.
    """

    n: int
    groups: int
    folds: int
    level: Level
    before: Figures
    after: Figures
    rescaled: Figures
    constant_error: float
    gain: Interval
    over_rescaled: Interval
    over_constant: Interval
    verdict: str

    @property
    def helps(self) -> bool:
        """Whether it is better than raw scores and a constant on held-out documents, beyond chance."""
        return self.gain.low > 0 and self.over_constant.low > 0

    @property
    def beats_rescaling(self) -> bool:
        """Whether it helps, and more than a straight line does."""
        return self.helps and self.over_rescaled.low > 0


@dataclass(frozen=True)
class Calibration:
    """A fitted calibration.

    Attributes
    ----------
    metric, human, signature : str
        Training data: the metric, the field of the ratings and the signature of the run.
    scale : Scale or None
        The metric's scale; None for an isotonic map of scores without label probabilities.
    method : {"temperature", "isotonic", "both"}
        Kind of map.
    temperature : float
        ``p'(l)`` is proportional to ``p(l) ** (1 / temperature)``; above 1 flattens, 1 changes nothing.
    knots : tuple of (float, float)
        Score -> rating, increasing in both; linear between the knots and flat beyond them. Empty for no map.
    held_out : HeldOut
        Its quality.
    """

    metric: str
    human: str
    signature: str
    scale: Scale | None
    method: Method
    temperature: float
    knots: Knots
    held_out: HeldOut

    def apply(
        self, score: float, probabilities: Mapping[str, float] | None = None
    ) -> tuple[float, dict[str, float] | None]:
        """Calibrate one score.

        Parameters
        ----------
        score : float
            The raw score; NaN stays NaN.
        probabilities : mapping of str to float, optional
            The label distribution; required if a temperature was fitted.

        Returns
        -------
        value : float
            The calibrated score.
        probabilities : dict of str to float or None
            The distribution after the temperature. The map acts on the score, not on the distribution.

        Raises
        ------
        DataError
            If a temperature needs a distribution and there is none over the scale's labels.
        """
        if not np.isfinite(score):
            return score, None if probabilities is None else dict(probabilities)
        item = ScoredItem("", "", np.nan, score, probabilities=probabilities, key="to be calibrated")
        p = None if self.method == "isotonic" else probability_matrix([item], _need(self.scale))
        value = float(_scores([item], p, self.scale, self.temperature, self.knots)[0])
        if p is None:
            return value, None if probabilities is None else dict(probabilities)
        return value, dict(zip(_need(self.scale).labels, heat(p, self.temperature)[0].tolist(), strict=True))


def calibrate(
    items: Sequence[ScoredItem],
    scale: Scale | None,
    method: Method = "both",
    *,
    level: Level = "summary",
    folds: int = 5,
    seed: int = 0,
    metric: str = "",
    human: str = "",
    signature: str = "",
) -> Calibration:
    """Fit a calibration on human ratings and measure it on held-out groups.

    Parameters
    ----------
    items : sequence of ScoredItem
        The scores; unscored and unrated items are left out.
    scale : Scale or None
        The metric's scale; may be None for ``isotonic``.
    method : {"temperature", "isotonic", "both"}
        ``both`` maps the scores after the temperature.
    level : {"summary", "pooled", "system"}
        Level of the reported correlations.
    folds, seed : int
        Folds and seed of the cross-validation over groups.
    metric, human, signature : str
        Recorded in the result.

    Raises
    ------
    ConfigurationError
        If there are fewer than two groups, or a temperature is requested without a scale or with
        ratings outside it.
    DataError
        If no item has a rating and a score, or one has no label probabilities where a temperature needs them.
    """
    if method not in ("temperature", "isotonic", "both"):
        raise ConfigurationError(f"unknown method {method!r}", hint="Choose temperature, isotonic or both.")
    kept = usable(items)[0]
    if not kept:
        raise DataError("no item has both a human rating and a score", hint="Check the field of the human ratings.")
    ratings = np.array([item.human for item in kept])
    p = None if method == "isotonic" else probability_matrix(kept, _need(scale))
    if p is not None and scale is not None and not (scale.low <= ratings.min() and ratings.max() <= scale.high):
        raise ConfigurationError(
            f"the ratings run from {ratings.min():g} to {ratings.max():g}, outside the scale {scale.text}",
            hint="No temperature reaches them: use the isotonic method, or bring the ratings onto the scale.",
        )
    groups = [item.group for item in kept]
    before = np.array([item.predicted for item in kept])
    fold = group_folds(groups, folds, seed)
    after, constant, rescaled = np.empty(len(kept)), np.empty(len(kept)), np.empty(len(kept))
    for number in np.unique(fold):
        inside, outside = fold == number, fold != number
        temperature, knots = _fit(kept, p, scale, method, outside)
        own = [item for item, held in zip(kept, inside, strict=True) if held]
        after[inside] = _scores(own, None if p is None else p[inside], scale, temperature, knots)
        constant[inside] = ratings[outside].mean()
        slope, shift = fit_line(before[outside], ratings[outside])
        rescaled[inside] = slope * before[inside] + shift
    temperature, knots = _fit(kept, p, scale, method, np.ones(len(kept), dtype=bool))
    lost = {
        name: (values - ratings) ** 2
        for name, values in (("before", before), ("after", after), ("constant", constant), ("rescaled", rescaled))
    }
    gains = [mean_interval(lost[name] - lost["after"], groups) for name in ("before", "rescaled", "constant")]
    held_out = HeldOut(
        n=len(kept),
        groups=len(set(groups)),
        folds=int(fold.max()) + 1,
        level=level,
        before=_figures(kept, before, level),
        after=_figures(kept, after, level),
        rescaled=_figures(kept, rescaled, level),
        constant_error=_error(lost["constant"]),
        gain=gains[0],
        over_rescaled=gains[1],
        over_constant=gains[2],
        verdict=_verdict(*gains),
    )
    return Calibration(metric, human, signature, scale, method, temperature, knots, held_out)


def _verdict(gain: Interval, over_rescaled: Interval, over_constant: Interval) -> str:
    """Describe whether calibration helps: against the raw scores first, then against simpler maps."""
    if any(math.isnan(one.low) for one in (gain, over_rescaled, over_constant)):
        return "cannot be judged: too few documents"
    if gain.high < 0:
        return "does harm: held out, the calibrated scores are further from the ratings than the raw ones"
    if gain.low <= 0:
        return "does not help beyond chance: held out, the interval of the gain over the raw scores holds 0"
    if over_constant.low <= 0:
        return "does not help: held out, always answering one constant does as well"
    if over_rescaled.high < 0:
        return "helps, but a straight line, that is rescaling alone, does better on held-out documents"
    if over_rescaled.low <= 0:
        return "helps, as far as rescaling goes: held out, a straight line does as well"
    return "helps, beyond what rescaling achieves"


def _fit(
    items: Sequence[ScoredItem],
    p: Floats | None,
    scale: Scale | None,
    method: Method,
    chosen: NDArray[np.bool_],
) -> tuple[float, Knots]:
    own = [item for item, wanted in zip(items, chosen, strict=True) if wanted]
    human = np.array([item.human for item in own])
    part = None if p is None else p[chosen]
    temperature = 1.0 if part is None else fit_temperature(part, _need(scale), human)
    if method == "temperature":
        return temperature, ()
    return temperature, fit_isotonic(_scores(own, part, scale, temperature, ()), human)


def _scores(
    items: Sequence[ScoredItem],
    p: Floats | None,
    scale: Scale | None,
    temperature: float,
    knots: Knots,
) -> Floats:
    raw = np.array([i.predicted for i in items]) if p is None else expectations(heat(p, temperature), _need(scale))
    return follow(knots, raw)


def _figures(items: Sequence[ScoredItem], scores: Floats, level: Level) -> Figures:
    scored = [replace(item, predicted=float(value)) for item, value in zip(items, scores, strict=True)]
    pearson, spearman, kendall = level_figures(scored, level, None).replicates.value[:3].tolist()
    lost = (scores - np.array([item.human for item in items])) ** 2
    return Figures(_error(lost), pearson, spearman, kendall)


def _error(lost: Floats) -> float:
    return math.sqrt(float(lost.mean()))


def _need(scale: Scale | None) -> Scale:
    if scale is None:
        raise ConfigurationError(
            "a temperature needs the metric's scale", hint="Give the metric, or use the isotonic method."
        )
    return scale


# The calibration file: small, versioned JSON with the training data's identity and the held-out quality.


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
    save_text(Path(path), json.dumps(record, indent=1, allow_nan=False) + "\n")


def is_calibration(path: str | Path) -> bool:
    """Whether a file is a calibration of any version."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.get("format") == FORMAT


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, is of another format or version, or is inconsistent.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the calibration {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        record = None  # no JSON, or cut off
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
                    **{name: Figures(**held_out[name]) for name in ("before", "after", "rescaled")},
                    **{name: Interval(**held_out[name]) for name in ("gain", "over_rescaled", "over_constant")},
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
    """Replace NaN by null, since JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _without_nan(part) for key, part in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_nan(part) for key, part in value.items()}
    return math.nan if value is None else value
