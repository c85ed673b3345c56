"""Calibration: a temperature on the label distribution and a monotone map, measured on held-out groups only.

`fit_calibration` fits the map on all items, but never reports the gain on them. It reports figures from
cross-validation over groups: each item's map is fitted without the item's document.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from typing_extensions import Unpack

from geval_local.analysis.example_rows import examples_told
from geval_local.analysis.ratings.values import HumanFields, rating_fields
from geval_local.analysis.results import Reading, ResultsGiven, ScoredRun, level_of_rated
from geval_local.analysis.tables import Study, Table, as_record, interval, interval_warnings
from geval_local.errors import ConfigurationError, DataError, ScaleError
from geval_local.files import save_text
from geval_local.io.ownership import checksummed
from geval_local.scale import Scale
from geval_local.score import Score
from geval_local.signature import LIBRARIES, signature_differences, told_differences
from geval_local.statistics.coefficients import COEFFICIENTS
from geval_local.statistics.interval import Interval, mean_interval
from geval_local.statistics.levels import Level, level_figures
from geval_local.statistics.records import ScoredItem, expectations, heat, probability_matrix, usable
from geval_local.statistics.resampling import group_folds

Floats = NDArray[np.float64]
Knots = tuple[tuple[float, float], ...]
# From nearly the mode (1/20) to nearly uniform (20); beyond these the expectation hardly moves.
_LOG_TEMPERATURES = (-3.0, 3.0)
logger = logging.getLogger("geval_local")

FORMAT = "geval-local calibration"
VERSION = 3
Method = Literal["temperature", "isotonic", "both"]


def fit_temperature(p: Floats, scale: Scale, human: Floats) -> float:
    """Find the temperature, 0.05 to 20, whose expectation has the smallest squared error against the ratings."""
    from scipy import optimize

    def error(log_temperature: float) -> float:
        expected = expectations(heat(p, float(np.exp(log_temperature))), scale)
        return float(((expected - human) ** 2).mean())

    found = optimize.minimize_scalar(error, bounds=_LOG_TEMPERATURES, method="bounded")
    # The error may have several minima; never return one worse than temperature 1.
    return float(np.exp(found.x)) if error(float(found.x)) < error(0.0) else 1.0


def fit_isotonic(scores: Floats, human: Floats) -> Knots:
    """Fit the increasing map from score to rating by least squares; equal scores map to equal values."""
    from scipy import optimize

    x, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    means = np.bincount(inverse.reshape(-1), weights=human) / counts
    y = np.asarray(optimize.isotonic_regression(means, weights=counts.astype(np.float64)).x)
    # Only the ends of each constant stretch matter for linear interpolation.
    ends = np.ones(x.size, dtype=bool)
    ends[1:-1] = (np.diff(y)[:-1] > 0) | (np.diff(y)[1:] > 0)
    return tuple(zip(x[ends].tolist(), y[ends].tolist(), strict=True))


def fit_line(scores: Floats, human: Floats) -> tuple[float, float]:
    """Fit slope and intercept of the straight line by least squares; the slope is never negative."""
    if np.unique(scores).size < 2:
        return 0.0, float(human.mean())
    slope = max(0.0, float(np.cov(scores, human, ddof=0)[0, 1] / scores.var()))
    return slope, float(human.mean() - slope * scores.mean())


def follow(knots: Knots, scores: Floats) -> Floats:
    """Map scores through knots: linear between them, flat beyond them; unchanged without knots."""
    if not knots:
        return scores
    x, y = np.array(knots).T
    return np.asarray(np.interp(scores, x, y))


@dataclass(frozen=True)
class ScoreQuality:
    """Quality of a set of scores against human ratings."""

    error: float
    pearson: float
    spearman: float
    kendall: float


_UNKNOWN, _NO_GAIN = ScoreQuality(math.nan, math.nan, math.nan, math.nan), Interval(math.nan)


@dataclass(frozen=True)
class HeldOut:
    """Gain of a calibration on held-out documents."""

    #: Number of items, of documents, and of folds of documents.
    n: int
    groups: int
    folds: int
    #: Level of the correlations.
    level: Level
    #: Quality of the raw scores, and of each item's score under the map fitted on the other folds.
    before: ScoreQuality
    after: ScoreQuality
    #: Quality under a straight line fitted on the other folds: the effect of rescaling alone.
    rescaled: ScoreQuality
    #: Error of always predicting the other folds' mean.
    constant_error: float
    #: Mean loss of the raw scores minus that of the calibrated ones, in squared units of the ratings, with an interval
    #: over documents.
    gain: Interval
    #: Mean loss of the straight line, and of the constant, minus that of the calibrated scores.
    over_rescaled: Interval
    over_constant: Interval
    #: Sentence that says whether the calibration helps.
    verdict: str
    #: Quality and gain of maps fitted without the item's document and without its system, if systems repeat over
    #: documents: a map may know systems, not texts.
    new_systems: ScoreQuality = _UNKNOWN
    new_systems_gain: Interval = _NO_GAIN

    @property
    def helps(self) -> bool:
        """Whether it is significantly better than raw scores and than a constant on held-out documents."""
        return self.gain.low > 0 and self.over_constant.low > 0

    @property
    def beats_rescaling(self) -> bool:
        """Whether it helps, and helps more than a straight line."""
        return self.helps and self.over_rescaled.low > 0


@dataclass(frozen=True)
class Calibration:
    """A fitted calibration; a `runs.events.Calibrator` of scores with the signature that it was fitted on."""

    #: Training data: the metric, the field of the ratings and the signature of the run.
    metric: str
    human: str
    signature: str
    #: The metric's scale.
    scale: Scale
    #: Kind of map.
    method: Method
    #: ``p'(l)`` is proportional to ``p(l) ** (1 / temperature)``; above 1 flattens, 1 changes nothing.
    temperature: float
    #: Score -> rating, increasing in both; linear between the knots and flat beyond them. Empty for no map.
    knots: Knots
    #: Its quality on held-out documents.
    held_out: HeldOut

    def apply(self, score: float, probabilities: Mapping[str, float] | None = None) -> float:
        """Calibrate one score."""
        if not math.isfinite(score):
            return score
        item = ScoredItem("", "", math.nan, score, probabilities=probabilities, key="to be calibrated")
        p = None if self.method == "isotonic" else probability_matrix([item], self.scale)
        return float(_scores(np.array([score]), p, self.scale, self.temperature, self.knots)[0])

    def check(self, signature: str) -> None:
        """Reject scores with another signature than the fitted ones; another library version only gives a note."""
        differ = signature_differences(self.signature, signature)
        serious = {key: pair for key, pair in differ.items() if key not in LIBRARIES}
        if serious:
            raise ConfigurationError(
                f"the calibration of {self.metric} was fitted on other scores: {told_differences(serious)}",
                hint="Score the rated rows as this run does, and fit it again with `geval-local calibrate`.",
            )
        for key, (fitted, own) in differ.items():
            logger.warning(f"the calibration of {self.metric} was fitted with {key} {fitted}, now it is {own}")

    def calibrate(self, score: Score) -> Score:
        """Add the calibrated value to a score; all other figures stay raw."""
        value = self.apply(score.value, score.probabilities) if score.is_scored else math.nan
        return replace(score, calibrated=value) if math.isfinite(value) else score

    def record(self) -> dict[str, Any]:
        """Describe the calibration for the manifest of the results."""
        told = {"human": self.human, "method": self.method, "temperature": self.temperature}
        return {**told, "knots": [list(knot) for knot in self.knots]}


def fit_calibration(
    items: Sequence[ScoredItem],
    scale: Scale,
    method: Method = "both",
    *,
    level: Level = "summary",
    folds: int = 5,
    seed: int = 0,
    metric: str = "",
    human: str = "",
    signature: str = "",
) -> Calibration:
    """Fit a calibration on human ratings and measure it on held-out groups."""
    if method not in ("temperature", "isotonic", "both"):
        raise ConfigurationError(f"unknown method {method!r}", hint="Choose temperature, isotonic or both.")
    kept = usable(items)[0]
    if not kept:
        raise DataError("no item has both a human rating and a score", hint="Check the field of the human ratings.")
    ratings = np.array([item.human for item in kept])
    p = None if method == "isotonic" else probability_matrix(kept, scale)
    if p is not None and not (scale.low <= ratings.min() and ratings.max() <= scale.high):
        raise ConfigurationError(
            f"the ratings run from {ratings.min():g} to {ratings.max():g}, outside the scale {scale.text}",
            hint="No temperature reaches them: take `method=isotonic`, or bring the ratings onto the scale.",
        )
    groups = [item.group for item in kept]
    before = np.array([item.predicted for item in kept])
    fold = group_folds(groups, folds, seed)

    def held(others: NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
        """Return what is fitted without an item's fold of documents, and without its fold of `others`."""
        after, constant, rescaled = np.full((3, len(kept)), np.nan)
        for one, other in np.unique(np.stack([fold, others]), axis=1).T:
            inside, outside = (fold == one) & (others == other), (fold != one) & ((others != other) | (other < 0))
            if not outside.any():
                continue
            own, rest = (None if p is None else p[chosen] for chosen in (inside, outside))
            fitted = _fit(before[outside], rest, scale, method, ratings[outside])
            after[inside] = _scores(before[inside], own, scale, *fitted)
            constant[inside] = ratings[outside].mean()
            slope, shift = fit_line(before[outside], ratings[outside])
            rescaled[inside] = slope * before[inside] + shift
        return after, constant, rescaled

    after, constant, rescaled = held(np.full(len(kept), -1))
    systems = [item.system for item in kept]
    anew, repeat = np.full(len(kept), np.nan), len(set(zip(groups, systems, strict=True)))
    if all(systems) and repeat > max(len(set(groups)), len(set(systems))) > 1 < len(set(systems)):
        anew = held(group_folds(systems, folds, seed))[0]
    temperature, knots = _fit(before, p, scale, method, ratings)

    def gain(of: Floats, over: Floats) -> Interval:
        return mean_interval((over - ratings) ** 2 - (of - ratings) ** 2, groups)

    gains = [gain(after, over) for over in (before, rescaled, constant)]
    known = bool(np.isfinite(anew).all())
    held_out = HeldOut(
        n=len(kept),
        groups=len(set(groups)),
        folds=int(fold.max()) + 1,
        level=level,
        before=_figures(kept, before, level),
        after=_figures(kept, after, level),
        rescaled=_figures(kept, rescaled, level),
        constant_error=math.sqrt(float(((constant - ratings) ** 2).mean())),
        gain=gains[0],
        over_rescaled=gains[1],
        over_constant=gains[2],
        verdict=_verdict(*gains),
        new_systems=_figures(kept, anew, level) if known else _UNKNOWN,
        new_systems_gain=gain(anew, before) if known else _NO_GAIN,
    )
    return Calibration(metric, human, signature, scale, method, temperature, knots, held_out)


def _verdict(gain: Interval, over_rescaled: Interval, over_constant: Interval) -> str:
    """Describe whether calibration helps: against the raw scores first, then against simpler maps."""
    if any(math.isnan(one.error) for one in (gain, over_rescaled, over_constant)):
        return "cannot be judged: too few documents"
    if gain.high < 0:
        return "does harm: held out, the calibrated scores are further from the ratings than the raw ones"
    if not gain.low > 0:
        return "does not help beyond chance: held out, the interval of the gain over the raw scores contains 0"
    if not over_constant.low > 0:
        return "does not help: held out, always answering one constant does as well"
    if over_rescaled.high < 0:
        return "helps, but a straight line, that is rescaling alone, does better on held-out documents"
    if not over_rescaled.low > 0:
        return "helps, as far as rescaling goes: held out, a straight line does as well"
    return "helps, beyond what rescaling achieves"


def _fit(raw: Floats, p: Floats | None, scale: Scale, method: Method, human: Floats) -> tuple[float, Knots]:
    temperature = 1.0 if p is None else fit_temperature(p, scale, human)
    is_map = method != "temperature"
    return temperature, fit_isotonic(_scores(raw, p, scale, temperature, ()), human) if is_map else ()


def _scores(raw: Floats, p: Floats | None, scale: Scale, temperature: float, knots: Knots) -> Floats:
    return follow(knots, raw if p is None else expectations(heat(p, temperature), scale))


def _figures(items: Sequence[ScoredItem], scores: Floats, level: Level) -> ScoreQuality:
    scored = [replace(item, predicted=float(value)) for item, value in zip(items, scores, strict=True)]
    pearson, spearman, kendall = level_figures(scored, level, None, accuracy=False).figures.value[:3].tolist()
    lost = (scores - np.array([item.human for item in items])) ** 2
    return ScoreQuality(math.sqrt(float(lost.mean())), pearson, spearman, kendall)


def save_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration that `load_calibration` reads back to an equal one."""
    scale = calibration.scale
    record = {"format": FORMAT, "version": VERSION, **as_record(asdict(calibration))}
    record["scale"] = [list(scale.labels), list(scale.values)]
    save_text(Path(path), json.dumps(checksummed(record), indent=1, allow_nan=False) + "\n")


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read the calibration {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        record = None  # not JSON, or truncated
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise ConfigurationError(f"{path} is not a calibration", hint="Make one with `geval-local calibrate`.")
    if record.get("version") != VERSION:
        raise ConfigurationError(
            f"{path} has version {record.get('version')!r}, this package reads version {VERSION}",
            hint="Fit it again with `geval-local calibrate`.",
        )
    try:
        read = {"scale": Scale(*map(tuple, record["scale"])), "held_out": _with_nan(record["held_out"])}
        calibration = TypeAdapter(Calibration).validate_python(record | read)
    except (KeyError, TypeError, ValueError, ScaleError) as error:
        raise ConfigurationError(
            f"the calibration {path} is damaged", hint="Fit it again with `geval-local calibrate`."
        ) from error
    x, y = ([knot[side] for knot in calibration.knots] for side in (0, 1))
    rising = all(a < b for a, b in pairwise(x)) and y == sorted(y)
    numbers = [calibration.temperature, *x, *y]
    if not (rising and calibration.temperature > 0 and all(map(math.isfinite, numbers))):
        raise ConfigurationError(f"the calibration {path} is damaged: its map does not rise, or a number is not finite")
    return calibration


def _with_nan(value: Any) -> Any:
    """Replace null by NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _with_nan(part) for key, part in value.items()}
    return math.nan if value is None else value


def calibration_table(calibration: Calibration) -> Table:
    """Build a table of before and after on held-out groups, next to a straight line and a constant prediction."""
    held = calibration.held_out

    sides = {"before": held.before, "after": held.after, "after, new systems": held.new_systems}
    sides["rescaled only"] = held.rescaled
    anew = math.isfinite(held.new_systems_gain.value)
    rows: list[Sequence[Any]] = [(name, *astuple(one)) for name, one in sides.items() if math.isfinite(one.error)]
    rows.append(("constant (mean)", held.constant_error, "-", "-", "-"))
    notes = (
        f"held out: {held.folds} folds over {held.groups} groups, {held.n} items, {held.level}-level correlations",
        f"gain in mean squared error over raw scores {interval(held.gain)}, "
        f"over rescaling {interval(held.over_rescaled)}, over the constant {interval(held.over_constant)}",
        *anew
        * (
            "new systems: maps fitted without the item's system too, as they may know systems instead of texts; gain "
            f"over raw scores {interval(held.new_systems_gain)}",
        ),
        "rank figures after calibration are of one map per fold; its flat stretches tie scores, which alone moves them",
        f"verdict: {held.verdict}",
        *interval_warnings({"": held.gain}),
    )
    return Table.of(("", "RMSE", *COEFFICIENTS), rows, notes)


def read_calibration(path: Path) -> tuple[str, Calibration]:
    """Read the calibration of a run, with its metric, if it helps on documents that it was not fitted on."""
    calibration = load_calibration(path)
    held = calibration.held_out
    if not held.helps:
        gained = f"{held.gain.value:.3f} [{held.gain.low:.3f}, {held.gain.high:.3f}]"
        raise ConfigurationError(
            f"{path} is not applied: the calibration {held.verdict} (gain in mean squared error {gained}, "
            f"{held.groups} documents)",
            hint="Fit it on more rated documents or by another `method`, or leave it out: the scores as they are do "
            "better, or as well.",
        )
    return calibration.metric, calibration


@dataclass(frozen=True)
class CalibrationStudy(Study):
    """A calibration with its held-out figures, and how rows were grouped."""

    #: The fitted calibration; `save_calibration` writes it.
    calibration: Calibration
    #: How rows are grouped into documents, in words.
    grouping: str
    #: Notes on the rows that were left out as the metric's examples.
    left_out: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values."""
        fitted = self.calibration
        found = {"metric": fitted.metric, "human": fitted.human, "method": fitted.method, "grouping": self.grouping}
        notes = {"notes": list(self.left_out)} if self.left_out else {}
        return found | notes | fitted.record() | {"held_out": as_record(fitted.held_out)}

    def shown(self) -> Iterator[Table]:
        """Give figures before and after, on held-out documents."""
        fitted = self.calibration
        yield calibration_table(fitted).titled(f"{fitted.metric} against {fitted.human}, on held-out documents")

    def remarks(self) -> list[tuple[str, bool]]:
        """Say how rows were grouped, and whether the calibration helps."""
        held = self.calibration.held_out
        notes = [(one, False) for one in self.left_out]
        return [(self.grouping, False), *notes, (f"the calibration {held.verdict}", not held.beats_rescaling)]


def calibrate(
    results: ResultsGiven,
    human: HumanFields,
    *,
    metric: str | None = None,
    method: Method = "both",
    folds: int = 5,
    seed: int = 0,
    **reading: Unpack[Reading],
) -> CalibrationStudy:
    """Fit a map from scores to human ratings, and measure what it gains on held-out documents.

    Parameters
    ----------
    results : path or RunResult
        Results of `score` with their manifest in the same directory, and with human ratings.
    human : str
        Field of the human rating.
    metric : str, optional
        The metric, if the results have several.
    method : {"both", "temperature", "isotonic"}
        A temperature on the label distribution, an increasing map of scores, or one after the other.
    folds, seed : int
        Folds of documents, which are never split, and their seed.
    **reading
        Fields of the document and of the system, and how scores are read: see `Reading`.

    Raises
    ------
    ConfigurationError, DataError
        If the results cannot be used, or nothing can be held out.
    """
    run = ScoredRun.of(results, **reading).readable()
    name = run.one_metric(metric)
    origin = run.origin(name)
    items = run.items(name, human=human, against_people=True)
    fitted = fit_calibration(
        items,
        origin.definition.scale,
        method=method,
        metric=name,
        human=rating_fields(human, [name])[name],
        signature=origin.signature,
        level=level_of_rated(run.documents.level, [items]),
        folds=folds,
        seed=seed,
    )
    return CalibrationStudy(fitted, run.documents.told, examples_told(name, items))
