"""Preference: which of two outputs for one document is better, according to a judge or to people.

The module reads preferences from results of ``geval-local pairs``, or computes them, without a model, from the label
distributions of single outputs: the probability that a label drawn for the first is higher than one drawn for the
second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from geval_local.analysis.ratings.values import ByRater
from geval_local.analysis.results import ScoredRun, figures_of
from geval_local.direction import Better, Direction
from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import field_value
from geval_local.io.pairs import SIDES, sides_of
from geval_local.io.results import decoded
from geval_local.scale import Scale
from geval_local.statistics.records import ScoredItem, probability_matrix

_Row = Mapping[str, Any]
#: Document and system -> people's rating.
Ratings = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class Preference:
    """One comparison of two outputs."""

    #: The document of both outputs.
    document: str
    #: Their systems; empty if unknown.
    first: str
    second: str
    #: Probability that the first is better, that the second is, and of a tie; sums to 1. NaN if it was not judged.
    p: tuple[float, float, float]
    #: Preference for the first by each form: shown first, shown second; empty without orders.
    orders: tuple[float, ...] = ()
    #: Label mass of each form, likewise.
    masses: tuple[float, ...] = ()
    #: Standard error that thoughts leave in the mean over both orders, and so in half of their difference; NaN if none.
    thought_error: float = math.nan
    #: Preference of people for the first, 0 to 1, a tie as 0.5; NaN if not known.
    human: float = math.nan
    #: The same for each person, if known.
    people: tuple[float, ...] = ()
    #: How many of them say that both are bad, which counts as a tie.
    both_bad: int = 0
    #: Why it was not judged.
    error: str | None = None

    @property
    def value(self) -> float:
        """Preference for the first: its probability plus half of the tie's, 0 to 1; NaN if it was not judged."""
        return self.value_for(self.first)

    def value_for(self, system: str) -> float:
        """Preference for one of the two systems."""
        return self.p[0 if system == self.first else 1] + self.p[2] / 2


def holds_pairs(row: Mapping[str, Any], metric: str) -> bool:
    """Whether a row of results is a comparison of a pair: its labels are A, B and tie."""
    probabilities = ((row.get("geval") or {}).get(metric) or {}).get("probabilities")
    named = "system_a" in row or "output_a" in row
    return set(probabilities) == {"A", "B", "tie"} if isinstance(probabilities, Mapping) else named


def read_preferences(
    run: ScoredRun, metric: str, human: str | None = None, words: Mapping[str, str] | None = None
) -> list[Preference]:
    """Read results of ``geval-local pairs``, with people's preference from a field; see `sides_of` for `words`."""
    figures = figures_of(run.rows, metric, run.path)
    read = partial(_preference, human=human, words=words, better=run.people.human_better)
    held, file = run.rows.holding(human or "", run.path)
    return [
        read(row, figures.at(place), f"{run.path}, row {row.number}", rated=f"{file}, row {number}")
        for place, (number, row) in enumerate(held)
    ]


def _preference(
    row: _Row,
    figures: _Row,
    where: str,
    rated: str,
    human: str | None,
    words: Mapping[str, str] | None,
    better: Better | None,
) -> Preference:
    """Read one comparison from a row of results and its figures; messages begin with its place, or the rating's."""
    found = Preference(
        str(row.get("document", where)),
        str(row.get("system_a") or ""),
        str(row.get("system_b") or ""),
        (math.nan, math.nan, math.nan),
        error=str(figures["error"]) if figures.get("error") else None,
    )
    if found.error is not None:
        return found  # the other fields may be the reason for the error
    p = figures.get("probabilities")
    if not isinstance(p, Mapping) or set(p) != {"A", "B", "tie"}:
        raise DataError(
            f"{where}: holds no probabilities of A, B and tie",
            hint="Expected the results of `geval-local pairs`, as JSONL or Parquet, or as CSV with `columns=all`.",
        )
    orders, masses = (figures.get(name) or () for name in ("order_scores", "order_masses"))
    if human is not None and isinstance(said := row.get(human), ByRater):
        row = {**row, human: list(said.values())}
    try:
        sides = sides_of(row, human or "human", words, None if human is None else better)
    except (ValueError, ConfigurationError) as error:
        if human is not None:
            told = getattr(error, "message", error)
            raise DataError(f"{rated}: {told}", hint=getattr(error, "hint", None)) from error
        sides = []  # a column of the input, that nobody asked for
    people = [float(SIDES.get(str(one), one)) for one in sides]
    return replace(
        found,
        p=(float(p["A"]), float(p["B"]), float(p["tie"])),
        orders=tuple(map(float, orders)),
        masses=tuple(map(float, masses)),
        thought_error=float(figures.get("thought_error") or math.nan),
        human=sum(people) / len(people) if people else math.nan,
        people=tuple(people) if isinstance(decoded(field_value(row, human or "human")), list) and not better else (),
        both_bad=sides.count("both_bad"),
    )


def preferences_from_scores(
    items: Sequence[ScoredItem], scale: Scale, *, by_score: bool = False, direction: Direction = Direction.HIGH
) -> list[Preference]:
    """Compare all outputs of a document by their single scores; ratings have the direction of the scores."""
    sign = direction.sign
    values = sign * scale.array
    above = (values[:, None] > values[None]).astype(np.float64)
    equal = (values[:, None] == values[None]).astype(np.float64)
    scored = [item for item in items if math.isfinite(item.predicted)]
    rows = dict(zip(map(id, scored), probability_matrix(scored, scale), strict=True))
    documents: dict[str, list[ScoredItem]] = {}
    for item in items:
        documents.setdefault(item.group, []).append(item)
    found = []
    for document, own in documents.items():
        for one, other in combinations(own, 2):
            if one.system == other.system:
                continue
            human = _compared(sign * one.human, sign * other.human)
            error = one.error or other.error
            p = (math.nan, math.nan, math.nan)
            if id(one) in rows and id(other) in rows:
                if by_score:
                    better = _compared(sign * one.predicted, sign * other.predicted)
                    p = (float(better == 1), float(better == 0), float(better == 0.5))
                else:
                    first, second = rows[id(one)], rows[id(other)]
                    p = (float(first @ above @ second), float(second @ above @ first), float(first @ equal @ second))
            found.append(Preference(document, one.system, other.system, p, human=human, error=error))
    return found


def _compared(one: float, other: float) -> float:
    """Return 1 if the first is higher, 0 if it is lower, 0.5 for a tie, NaN if one is unknown."""
    if math.isnan(one) or math.isnan(other):
        return math.nan
    return 1.0 if one > other else 0.0 if one < other else 0.5


def with_people(found: Iterable[Preference], ratings: Ratings) -> list[Preference]:
    """Add what people prefer: the output that they rated higher, by document and system."""

    def rated(document: str, system: str) -> float:
        return ratings.get((document, system), math.nan)

    return [
        replace(one, human=_compared(rated(one.document, one.first), rated(one.document, one.second))) for one in found
    ]


def outputs_of(found: Sequence[Preference], ratings: Ratings) -> list[ScoredItem]:
    """Score every output by its mean preference over the other compared outputs of its document.

    Pairs can then be compared with people's ratings in the same way as scores.
    """
    wins: dict[tuple[str, str], list[float]] = {}
    for one in found:
        for own, value in ((one.first, one.value), (one.second, 1 - one.value)):
            wins.setdefault((one.document, own), []).extend([value] if math.isfinite(value) else [])
    return [
        ScoredItem(
            group=document,
            system=system,
            human=ratings.get((document, system), math.nan),
            predicted=float(np.mean(values)) if values else math.nan,
            key=f"{document}/{system}",
            error=None if values else "no comparison of it was judged",
        )
        for (document, system), values in wins.items()
    ]
