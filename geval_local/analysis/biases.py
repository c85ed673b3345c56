"""Whether the judge favours a side: its gap between two sides minus people's gap, and gaps by what people prefer.

A gap between sides is not yet a bias: one side may be better. With human ratings the difference in differences (judge
minus people on the same texts) shows how much of the gap the judge adds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from geval_local.analysis.differences import (
    Gap,
    SideMean,
    document_means,
    doubt_of,
    gap,
    gap_table,
    side_means,
    side_table,
)
from geval_local.analysis.ratings.values import HumanFields, members_of, rating_fields
from geval_local.analysis.results import Reading, ResultsGiven, ScoredRun, check_named
from geval_local.analysis.tables import Study, Table, number, raters_told
from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import field_value
from geval_local.statistics.coefficients import COEFFICIENTS
from geval_local.statistics.correlation import Correlation, correlate, within
from geval_local.statistics.interval import Interval, by_name, t_test
from geval_local.statistics.levels import Level
from geval_local.statistics.raters import fit_raters
from geval_local.statistics.records import ScoredItem, word_count
from geval_local.statistics.resampling import drawn_by_document
from geval_local.statistics.significance import corrected

REST = "the others"

Floats = NDArray[np.float64]


def judge_less_people(
    items: Sequence[ScoredItem], first: str, second: str, *, error: float | None = None, seed: int = 0
) -> Gap:
    """Test how much the judge adds to people's gap between two sides (systems of the items), on the judge's scale.

    A judge that compresses the scale shows only a part of people's gap. The slope of scores on ratings measures the
    compression, but noise in the ratings lowers that slope. So the function estimates the slope on noise-free ratings,
    within the sides, so that a bias for one side does not enter it. With several raters it uses the variance of the
    ratings' error (`error`). Otherwise two slopes bound the true one for any amount of noise: that of scores on
    ratings, and the inverse of that of ratings on scores (Frisch, 1934). Of the two resulting gaps, the function
    returns the one nearer to 0, with an interval that covers both and the larger p. The bootstrap draws documents and
    recomputes the slope in every draw.
    """
    rows = [i for i in items if i.system in (first, second) and math.isfinite(i.predicted) and math.isfinite(i.human)]
    if len({item.system for item in rows}) < 2:
        raise DataError("no item has both a human rating and a score", hint="Check the field of the human ratings.")
    columns = np.array([(item.predicted, item.human) for item in rows]).T
    shift = columns.mean(axis=1, keepdims=True)
    x, y = columns - shift
    powers = np.array([np.ones_like(x), x, y, x * x, x * y, y * y])
    on_side = np.array([[float(item.system == side) for item in rows] for side in (first, second)])

    def excess(sums: Floats) -> Floats:
        """Compute the gap minus slope times people's gap, for the lowest and the highest slope, shape (draws, 2)."""
        n, sx, sy, xx, xy, yy = np.moveaxis(sums.reshape(-1, 2, 6), -1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mx, my = sx / n, sy / n
            cross = (xy - n * mx * my).sum(axis=1)
            spread_x, spread_y = (xx - n * mx**2).sum(axis=1), (yy - n * my**2).sum(axis=1)
            true = spread_y - (0.0 if error is None else error) * n.sum(axis=1)
            low = np.where(true > 0, cross / true, np.nan)
            high = low if error is not None else spread_x / cross
        gaps = mx[:, 0] - mx[:, 1], my[:, 0] - my[:, 1]
        return np.stack([gaps[0] - slope * gaps[1] for slope in (low, high)], axis=1)

    columns = (on_side[:, None] * powers).reshape(12, -1)
    figures = drawn_by_document([item.group for item in rows], columns, excess, seed)
    value = figures.value
    ends = [figures.interval(index) for index in (0, 1)]
    p = max((t_test(one.value, one.error, one.units) for one in ends), key=lambda one: math.inf if one != one else one)
    nearer = min(ends, key=lambda one: abs(one.value))
    is_between = value[0] * value[1] < 0
    found = replace(
        nearer,
        value=0.0 if is_between else nearer.value,
        low=min(one.low for one in ends),
        high=max(one.high for one in ends),
        error=max(one.error for one in ends),
    )
    means = [float(np.mean([item.predicted for item in rows if item.system == one])) for one in (first, second)]
    return Gap(
        first,
        second,
        (means[0], means[1]),
        found,
        1.0 if is_between else p,
        math.nan,
        "t (judge less people)",
        figures.units,
        0,
    )


def gaps_by_preference(items: Sequence[ScoredItem], first: str, second: str) -> dict[str, Gap]:
    """Compute the gap by the side that people prefer in a document, or neither (``equal``): the paper's Figure 2.

    People prefer the side with the higher mean rating. Gaps of an unbiased judge follow that preference. A judge that
    favours the first side has a positive gap even if people prefer the second.
    """
    known = document_means(items, "human", scored=False)
    one, other = (known.get(side, {}) for side in (first, second))
    by_preference: dict[str, list[ScoredItem]] = {}
    for item in items:
        if item.group in one and item.group in other and item.system in (first, second):
            difference = round(one[item.group] - other[item.group], 12)
            preferred = first if difference > 0 else second if difference < 0 else "equal"
            by_preference.setdefault(preferred, []).append(item)
    return {preferred: gap(own, first, second) for preferred, own in by_preference.items()}


#: Share of ratings at an end of their scale from which a fair judge is called biased too often: .16 with a quarter.
CLIPPED = 0.1


@dataclass(frozen=True)
class LengthBias:
    """Correlation of scores, and of human ratings, with the logarithm of the output's length in words.

    Lengths are skewed: with their numbers instead, ratings at the ends of their scale make a fair judge look biased.
    """

    #: Scores against length, on the rated items if there are any. The length takes the place of the human rating.
    score: Correlation
    #: Human ratings against length on the same items: the value that a fair judge would have. None without ratings.
    human: Correlation | None
    #: Partial correlation (Pearson) of score and length on the same items, controlling for noise-free ratings; None
    #: without ratings. It is above 0 if the judge rewards length more than people do. Without several raters it is not
    #: corrected for the noise of the ratings, which alone moves it from 0; it then has no interval.
    partial: Interval | None
    #: Reliability of the ratings, 0 to 1; NaN without several raters.
    reliability: float
    #: Number of items behind all figures.
    n: int
    #: Share of the ratings that are the highest or the lowest of all; NaN without ratings. Where it is large, a fair
    #: judge has a partial correlation above 0 (docs/simulations.md).
    at_ends: float = math.nan


def length_bias(
    items: Sequence[ScoredItem], level: Level = "pooled", *, error: float | None = None, seed: int = 0
) -> LengthBias:
    """Correlate scores, and human ratings if there are any, with the logarithm of the output's length in words.

    `error` is the variance of a rating's error, from several raters.
    """
    known = [item for item in items if item.length is not None and math.isfinite(item.predicted)]
    rated = [item for item in known if math.isfinite(item.human)]
    chosen = rated or known
    score = correlate([replace(item, human=math.log(item.length or 1)) for item in chosen], level)
    if not rated:
        return LengthBias(score, None, None, math.nan, len(chosen))
    ratings = [replace(item, human=math.log(item.length or 1), predicted=item.human) for item in rated]
    documents = [item.group for item in rated]
    codes = by_name(documents)[1]
    count = np.bincount(codes)
    values = np.array([(item.predicted, math.log(item.length or 1), item.human) for item in rated])
    values -= values.mean(axis=0)
    freedom = np.ones(len(rated))
    if level == "summary":  # differences between documents do not count
        values -= (np.stack([np.bincount(codes, column) for column in values.T], axis=1) / count[:, None])[codes]
        freedom -= (1 / count)[codes]
    products = [values[:, i] * values[:, j] for i in range(3) for j in range(3)]

    def partial(sums: Floats) -> Floats:
        sums = sums / sums[:, :1]
        moments = sums[:, 5:].reshape(-1, 3, 3) - sums[:, 2:5, None] * sums[:, None, 2:5]
        # Noise only adds to the variance of the ratings.
        moments[:, 2, 2] -= 0.0 if error is None else error * sums[:, 1]
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = np.sqrt(np.diagonal(moments, axis1=1, axis2=2))
            r = moments / (spread[:, :, None] * spread[:, None])
            found = (r[:, 0, 1] - r[:, 1, 2] * r[:, 0, 2]) / np.sqrt((1 - r[:, 1, 2] ** 2) * (1 - r[:, 0, 2] ** 2))
        return np.where(np.abs(found) <= 1, found, np.nan)[:, None]

    columns = np.array([np.ones(len(rated)), freedom, *values.T, *products])
    figures = drawn_by_document(documents, columns, partial, seed)
    found = (figures if error is not None else replace(figures, draws=None)).interval(0)
    spread = float(products[8].mean())
    reliability = math.nan if error is None or spread == 0 else max(0.0, 1 - error / spread)
    given = np.array([item.human for item in rated])
    at_ends = float(((given == given.max()) | (given == given.min())).mean())
    return LengthBias(score, correlate(ratings, level), within(found, -1.0, 1.0), reliability, len(chosen), at_ends)


def length_table(bias: LengthBias) -> Table:
    """Build a table of scores against length, with the human ratings of the same items."""
    known = {"scores": bias.score} | ({} if bias.human is None else {"human ratings": bias.human})
    rows: list[Sequence[Any]] = [(name, *(getattr(r, c) for c in COEFFICIENTS), r.n) for name, r in known.items()]
    notes = [
        f"{bias.score.level}: correlation with the logarithm of the number of words of the output",
        f"95 % intervals hold for {bias.score.holds_for}",
    ]
    if bias.partial is not None:
        rows.append(("scores, ratings held fixed", bias.partial, "-", "-", bias.n))
        notes.append(
            f"ratings held fixed: corrected for their reliability of {number(bias.reliability)}"
            if math.isfinite(bias.reliability)
            else "ratings held fixed: noise in the ratings alone moves this from 0; `raters`, two or more, correct it"
        )
        if bias.at_ends >= CLIPPED:
            notes.append(
                f"{bias.at_ends:.0%} of the ratings are at an end of their scale, which moves this above 0 for a fair "
                "judge too, if better outputs are longer"
            )
    return Table.of(("", *COEFFICIENTS, "n"), rows, notes)


@dataclass(frozen=True)
class Bias(Study):
    """Whom the judge favours, and the effect of length."""

    #: The results, the metric, and the field of the side.
    file: str
    metric: str
    side: str
    #: How rows are grouped into documents, in words.
    grouping: str
    #: Mean score of every side.
    sides: list[SideMean]
    #: Gap between two sides, also by what people prefer; with more than two sides, of each against the others. With
    #: ratings, the gap of judge minus people follows every gap.
    gaps: dict[str, Gap]
    #: Variance of the error of a rating, from several raters; None if unknown.
    rating_error: float | None
    #: Rater -> mean rating, and number of rated rows.
    raters: dict[str, tuple[float, int]]
    #: Whether gaps are compared with people's.
    is_rated: bool
    #: Scores against the length of outputs; None if the results have no outputs.
    length: LengthBias | None
    #: Sentence that says why nothing can be concluded; empty if the judge answers.
    doubt: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give all figures as plain JSON values; those of a judge that does not answer are None."""
        hidden = ("sides", "gaps", "length") if self.doubt else ()
        return super().to_dict() | dict.fromkeys(hidden)

    def lines(self) -> list[str]:
        """Say why nothing can be concluded."""
        return [f"{self.metric}: {self.doubt}"] if self.doubt else []

    def shown(self) -> Iterator[Table]:
        """Give means, gaps, and the correlation with length."""
        if self.doubt:  # `lines` has the sentence
            return
        yield side_table(self.sides).titled(
            f"{self.metric}: mean score by {self.side}, with 95 % intervals over documents"
        )
        yield gap_table(self.gaps).titled("gaps and their tests", fold=("gap", "documents"))
        if self.length is not None:
            yield length_table(self.length).titled("correlation with the length of the output")

    def remarks(self) -> list[tuple[str, bool]]:
        """Say how rows were grouped, and what a gap is."""
        told = "note: a gap is not yet a bias, since one side may be better; `human=FIELD` takes that into account"
        if self.is_rated:
            told = "judge less people: what the judge adds to people's own gap, brought to the judge's scale; " + (
                "the noise of the ratings is known from their raters"
                if self.rating_error is not None
                else "it is the least that any noise of the ratings allows; two or more `raters` show that noise"
            )
        return [(self.grouping, False), (told, False), *((one, False) for one in raters_told(self.raters))]


def bias(
    results: ResultsGiven,
    side: str,
    *,
    metric: str | None = None,
    human: HumanFields | None = None,
    raters: Sequence[str] = (),
    between: Sequence[str] = (),
    seed: int = 0,
    **reading: Unpack[Reading],
) -> Bias:
    """Compare the mean scores of sides: systems, or the values of any other column.

    Parameters
    ----------
    results : path, RunResult, sequence of mapping, or data frame
        Results of `score`.
    side : str
        Field of the side: who or what wrote the output, or any other.
    metric : str, optional
        The metric, if the results have several.
    human : str, optional
        Field of the human rating; gaps are then split by preference and compared with people's. A path into a list of
        objects names their raters.
    raters : sequence of str
        Fields of single people's ratings. Their mean replaces `human`, and their spread gives its noise.
    between : sequence of str
        Two sides to compare. By default both, or with more than two each with the others.
    seed : int
        Seed of the draws.
    **reading
        Fields of the document and of the system, and how scores are read: see `Reading`.

    Raises
    ------
    ConfigurationError, DataError
        If the results cannot be used, a row lacks its side, or there are not two sides.
    """
    if between and len(between) != 2:
        raise ConfigurationError(f"a gap is between two sides, not {len(between)}", hint="Name two in `between`.")
    run = ScoredRun.of(results, **reading).readable()
    name = run.one_metric(metric)
    if raters and human is not None:
        raise ConfigurationError("`human` and `raters` are two ways to name the ratings", hint="Take one.")
    if human is not None and (members := members_of([*run.rows.inputs()], rating_fields(human, [name])[name])):
        human, raters = None, members
    outputs = map(run.rule.output, run.rows.inputs())
    lengths = [None if text is None else word_count(text) for text in outputs]
    items = [replace(item, length=own) for item, own in zip(run.items(name, human=human), lengths, strict=True)]
    error, people = None, {}
    if raters:
        ratings = run.ratings(name, raters, every=True)
        if len(ratings) < 2:
            raise ConfigurationError("the noise of ratings needs two raters", hint="Name a field for each of them.")
        fitted = fit_raters(np.array(list(ratings.values())))
        items, error = fitted.rated(items), fitted.error
        people = dict(zip(ratings, fitted.own, strict=True))
    rated = bool(raters) or human is not None
    sides = [field_value(row, side) for row in run.rows.inputs()]
    check_named(sides, run.rows, side, run.path, "of the side ")
    sided = [replace(item, system=str(own)) for item, own in zip(items, sides, strict=True)]
    gaps = _gaps(sided, between, rated=rated, error=error, seed=seed)
    has_length = any(item.length is not None for item in items)
    length = length_bias(items, run.documents.level, error=error, seed=seed) if has_length else None
    return Bias(
        str(run.path),
        name,
        side,
        run.documents.told,
        side_means(sided),
        gaps,
        error,
        people,
        rated,
        length,
        doubt_of(items),
    )


def _gaps(
    items: Sequence[ScoredItem], chosen: Sequence[str], *, rated: bool, error: float | None, seed: int
) -> dict[str, Gap]:
    """Compute the gap between two sides, also by human preference; with more sides, of each against the others.

    With human ratings, the gap of judge minus people follows every gap.
    """
    names = list(dict.fromkeys(item.system for item in items))
    if len(names) < 2:
        raise DataError(f"all rows are of one side, {names[0]!r}: there is nothing to compare")
    found: dict[str, Gap] = {}
    if not chosen and len(names) > 2:
        for name in names:
            two = [item if item.system == name else replace(item, system=REST) for item in items]
            found[name] = gap(two, name, REST)
            if rated:
                less = judge_less_people(two, name, REST, error=error, seed=seed)
                found[f"{name}, judge less people"] = less
        return corrected(found)
    first, second = chosen or names
    found["all documents"] = gap(items, first, second)
    if rated:
        found["judge less people"] = judge_less_people(items, first, second, error=error, seed=seed)
        found |= {
            "people see no difference" if side == "equal" else f"people prefer {side}": own
            for side, own in gaps_by_preference(items, first, second).items()
        }
    return corrected(found)
