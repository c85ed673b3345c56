"""Whether the judge favours somebody: a gap between two sides less people's own, and gaps by what people prefer.

A gap between sides is not yet a bias: one side may be better. With human ratings the difference in differences, judge
minus people on the same texts, shows how much of the gap the judge adds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from geval_local.analysis.differences import Gap, SideMean, gap, gap_table, side_means, side_table
from geval_local.analysis.results import ResultsGiven, ScoredRun, level_for, missing_field
from geval_local.analysis.tables import Study, Table, interval
from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import lookup
from geval_local.grouping import documents_of
from geval_local.io.results import numbered
from geval_local.statistics.coefficients import COEFFICIENTS
from geval_local.statistics.correlation import Correlation, correlate, within
from geval_local.statistics.interval import Interval
from geval_local.statistics.jackknife import Replicates
from geval_local.statistics.levels import Level, level_figures
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.significance import corrected

REST = "the others"

Floats = NDArray[np.float64]


def against_people(items: Sequence[ScoredItem], *, standardise: bool = False) -> list[ScoredItem]:
    """Copy the rated items with the score minus the human rating as their score, for the difference in differences."""
    both = [item for item in items if math.isfinite(item.predicted) and math.isfinite(item.human)]
    if not both:
        raise DataError("no item has both a human rating and a score", hint="Check the field of the human ratings.")
    centres, spreads = (0.0, 0.0), (1.0, 1.0)
    if standardise:
        columns = [np.array([item.predicted for item in both]), np.array([item.human for item in both])]
        if any(np.unique(column).size < 2 for column in columns):
            raise DataError("scores or ratings are all equal: they cannot be brought to standard deviations")
        centres = (float(columns[0].mean()), float(columns[1].mean()))
        spreads = (float(columns[0].std()), float(columns[1].std()))
    return [
        replace(
            item,
            predicted=(item.predicted - centres[0]) / spreads[0] - (item.human - centres[1]) / spreads[1],
            probabilities=None,
        )
        for item in items
    ]


def preferences(items: Sequence[ScoredItem], sides: Sequence[str], first: str, second: str) -> dict[str, str]:
    """Find the side that people prefer in each document, by mean ratings: a side's name, or ``equal``.

    Documents without ratings of both sides are left out.
    """
    rated: dict[str, dict[str, list[float]]] = defaultdict(lambda: {first: [], second: []})
    for item, side in zip(items, sides, strict=True):
        if side in (first, second) and math.isfinite(item.human):
            rated[item.group][side].append(item.human)
    result = {}
    for group, ratings in rated.items():
        if ratings[first] and ratings[second]:
            difference = round(float(np.mean(ratings[first]) - np.mean(ratings[second])), 12)
            result[group] = first if difference > 0 else second if difference < 0 else "equal"
    return result


def gaps_by_preference(
    items: Sequence[ScoredItem],
    sides: Sequence[str],
    first: str,
    second: str,
    preferred: dict[str, str],
    *,
    seed: int = 0,
) -> dict[str, Gap]:
    """Compute the gap within the documents of each human preference: the paper's Figure 2.

    Gaps of an unbiased judge follow the preference. A judge that favours the first side keeps a positive gap
    if people prefer the second.
    """
    result = {}
    for preference in dict.fromkeys(preferred.values()):
        chosen = [
            (item, side) for item, side in zip(items, sides, strict=True) if preferred.get(item.group) == preference
        ]
        result[preference] = gap([item for item, _ in chosen], [side for _, side in chosen], first, second, seed=seed)
    return result


@dataclass(frozen=True)
class LengthBias:
    """Correlation of scores, and of human ratings, with the length of the output in words."""

    #: Scores against length, on the rated items if there are any; its field for human ratings contains the length.
    score: Correlation
    #: Human ratings against length on the same items: the value for a fair judge. None without ratings.
    human: Correlation | None
    #: Coefficient -> partial correlation of score and length with the human rating held fixed, on the same items; empty
    #: without ratings. Above 0 if the judge rewards length more than people do. Random error in the ratings pulls it
    #: towards the plain correlation.
    partial: dict[str, Interval]
    #: Number of items that all figures are computed from.
    n: int


def length_bias(items: Sequence[ScoredItem], level: Level = "pooled") -> LengthBias:
    """Correlate scores, and human ratings if there are any, with the output's length in words."""
    known = [item for item in items if item.length is not None and math.isfinite(item.predicted)]
    rated = [item for item in known if math.isfinite(item.human)]
    chosen = rated or known
    against = [replace(item, human=float(item.length or 0)) for item in chosen]
    score = correlate(against, level)
    if not rated:
        return LengthBias(score, None, {}, len(chosen))
    ratings = [replace(item, human=float(item.length or 0), predicted=item.human) for item in rated]
    return LengthBias(score, correlate(ratings, level), _partial(rated, against, ratings, level, score), len(chosen))


def _partial(
    rated: Sequence[ScoredItem],
    against: Sequence[ScoredItem],
    ratings: Sequence[ScoredItem],
    level: Level,
    score: Correlation,
) -> dict[str, Interval]:
    """Compute partial correlations from three plain ones; at summary level per document, then their mean."""
    parts = [level_figures(items, level, score.target) for items in (against, ratings, rated)]
    count = len(COEFFICIENTS)
    if level == "summary":
        names = [name for name in parts[0].per_group if all(name in part.per_group for part in parts)]
        each = [np.array([part.per_group[name][:count] for name in names]).reshape(-1, count) for part in parts]
        values = _partialled(*each)
        kept = np.flatnonzero(np.isfinite(values).all(axis=1))
        values, names = values[kept], [names[place] for place in kept]
        if not names:
            return {}
        without = (values.sum(axis=0) - values) / max(1, len(names) - 1)
        figures = Replicates(values.mean(axis=0), {"documents": (tuple(names), without)})
    else:
        point = _partialled(*(part.replicates.value[None, :count] for part in parts))[0]
        axes = parts[0].replicates.without
        figures = Replicates(
            point,
            {
                axis: (names, _partialled(*(part.replicates.without[axis][1][:, :count] for part in parts)))
                for axis, (names, _) in axes.items()
            },
        )
    target = "documents" if level == "summary" else score.target
    return {
        name: within(figures.interval(index, target, correlation=level != "summary"), -1.0, 1.0)
        for index, name in enumerate(COEFFICIENTS)
    }


def _partialled(with_length: Floats, of_people: Floats, of_judge: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (with_length - of_people * of_judge) / np.sqrt((1 - of_people**2) * (1 - of_judge**2))
    return np.where(np.isfinite(found) & (np.abs(found) <= 1 + 1e-9), np.clip(found, -1, 1), np.nan)


def length_table(bias: LengthBias) -> Table:
    """Build a table of scores against length, with the human ratings of the same items."""
    rows = [_against_length("scores", bias.score)]
    if bias.human is not None:
        rows.append(_against_length("human ratings", bias.human))
    if bias.partial:
        partial = (interval(bias.partial[coefficient]) for coefficient in COEFFICIENTS)
        rows.append(("scores, ratings held fixed", *partial, str(bias.n)))
    notes = (
        f"{bias.score.level}: correlation with the number of words of the output",
        f"95 % intervals hold for {bias.score.holds_for}",
    )
    return Table(("", *COEFFICIENTS, "n"), tuple(rows), notes)


def _against_length(name: str, result: Correlation) -> tuple[str, ...]:
    return (name, *(interval(getattr(result, coefficient)) for coefficient in COEFFICIENTS), str(result.n))


@dataclass(frozen=True)
class Bias(Study):
    """Whom the judge favours, and what length does."""

    #: The results, the metric, and the field of the side.
    file: str
    metric: str
    side: str
    #: How rows are grouped into documents, in words.
    grouping: str
    #: Mean score of every side.
    sides: list[SideMean]
    #: Two sides against each other, also by what people prefer; of more than two, each against the others. With ratings
    #: every gap is followed by that of judge less people.
    gaps: dict[str, Gap]
    #: Unit of those; None without ratings.
    unit_against_people: str | None
    #: Scores against the length of outputs; None where the results hold no outputs.
    length: LengthBias | None

    def tables(self) -> list[Table]:
        """Give means, gaps, and the correlation with length."""
        title = f"{self.metric}: mean score by {self.side}, with 95 % intervals over documents"
        found = [side_table(self.sides).titled(title)]
        fold = ("gap", "test", "documents", "left out")
        found.append(gap_table(self.gaps).titled("gaps and their tests", fold=fold))
        if self.length is not None:
            found.append(length_table(self.length).titled("correlation with the length of the output"))
        return found

    def remarks(self) -> list[tuple[str, bool]]:
        """Say how rows were grouped, and what a gap is."""
        told = "note: a gap is not yet a bias, since one side may be better; --human FIELD takes that into account"
        if self.unit_against_people is not None:
            told = "judge less people: the gap that the judge adds to people's own, in "
            told += f"{self.unit_against_people}; the only bias among these gaps"
        return [(self.grouping, False), (told, False)]


def bias(
    results: ResultsGiven,
    side: str,
    *,
    metric: str | None = None,
    human: str | None = None,
    group_by: str | None = None,
    between: Sequence[str] = (),
    fields: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Bias:
    """Compare the mean scores of sides: systems, or the values of any other column.

    Parameters
    ----------
    results : path, RunResult, sequence of mapping, or data frame
        Results of `score`.
    side : str
        Field of the side: who or what wrote the output, or any other.
    metric : str, optional
        Which metric, where there are several.
    human : str, optional
        Field of the human rating: gaps are split by preference, and held against people's own.
    group_by : str, optional
        Field of the document, by which sides are paired, or ``row`` for none; by default guessed.
    between : sequence of str
        Two sides to compare; by default both, or each with the others.
    fields : mapping of str to str, optional
        Field of a metric -> its column.
    seed : int
        Seed of the permutations.

    Raises
    ------
    ConfigurationError, DataError
        If the results cannot be used, a row lacks its side, or there are not two sides.
    """
    if between and len(between) != 2:
        raise ConfigurationError(f"a gap is between two sides, not {len(between)}", hint="Give --between twice.")
    run = ScoredRun.of(results, fields)
    name = run.one_metric(metric)
    documents, grouping = documents_of(run.rows, group_by)
    items = run.items(name, human=human, group_by=documents)
    members = []
    for number, row in numbered(run.rows):
        own = lookup(row, side)
        if own is None:
            raise missing_field(row, side, f"{run.path}, row {number}", "of the side ")
        members.append(str(own))
    gaps, unit = _gaps(items, members, between, rated=human is not None, seed=seed)
    length = length_bias(items, level_for(documents)) if any(item.length is not None for item in items) else None
    return Bias(str(run.path), name, side, grouping, side_means(items, members), gaps, unit, length)


def _gaps(
    items: Sequence[ScoredItem], members: Sequence[str], chosen: Sequence[str], *, rated: bool, seed: int
) -> tuple[dict[str, Gap], str | None]:
    """Compute gaps: two sides against each other, also by human preference; more than two, each against the others.

    With human ratings, every gap is followed by that of judge minus people; its unit is returned too.
    """
    names = list(dict.fromkeys(members))
    if len(names) < 2:
        raise DataError(f"all rows are of one side, {names[0]!r}: there is nothing to compare")
    excess, unit = None, None
    if rated:
        apart = _other_scale(items)
        excess = against_people(items, standardise=apart)
        unit = "standard deviations (ratings and scores have different scales)" if apart else "units of the scale"
    found: dict[str, Gap] = {}
    if not chosen and len(names) > 2:
        for name in names:
            two = [name if side == name else REST for side in members]
            found[name] = gap(items, two, name, REST, seed=seed)
            if excess is not None:
                found[f"{name}, judge less people"] = gap(excess, two, name, REST, seed=seed)
        return corrected(found), unit
    first, second = chosen or names
    found["all documents"] = gap(items, members, first, second, seed=seed)
    if excess is not None:
        found["judge less people"] = gap(excess, members, first, second, seed=seed)
        preferred = preferences(items, members, first, second)
        by_preference = gaps_by_preference(items, members, first, second, preferred, seed=seed)
        found |= {
            "people see no difference" if side == "equal" else f"people prefer {side}": own
            for side, own in by_preference.items()
        }
    return corrected(found), unit


def _other_scale(items: Sequence[ScoredItem]) -> bool:
    """Whether people apparently used another scale than the judge."""
    scores = [item.predicted for item in items if math.isfinite(item.predicted)]
    ratings = [item.human for item in items if math.isfinite(item.human)]
    labels = [float(label) for item in items for label in item.probabilities or () if _is_number(label)] or scores
    # Ratings beyond the labels, or within less than a third of their range, suggest another scale.
    width = max(labels) - min(labels)
    return not (
        min(labels) <= min(ratings) and max(ratings) <= max(labels) and max(ratings) - min(ratings) >= width / 3
    )


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True
