"""Preference: two outputs for one document, and which is better, by a judge or by people; read from results.

Pairs are read from what ``geval-local pairs`` wrote, or made, without a model, from the label distributions of single
outputs: the first is better as often as a label drawn for it is higher than one drawn for the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from geval_local.analysis.reading import figures_of, number_at, read_rows
from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.distributions import probability_matrix
from geval_local.errors import DataError
from geval_local.io.results import decoded, numbered
from geval_local.scale import Scale

__all__ = [
    "Preference",
    "holds_pairs",
    "outputs_of",
    "preference_of",
    "preferences_from_scores",
    "read_preferences",
    "with_people",
]


@dataclass(frozen=True)
class Preference:
    """One comparison of two outputs.

    Attributes
    ----------
    document : str
        What both outputs are for.
    first, second : str
        Their systems; empty where they are not known.
    p : tuple of (float, float, float)
        Probability that the first is better, that the second is, and of a tie; sums to 1. NaN if it was not judged.
    orders : tuple of float
        Preference for the first by each form: shown first, shown second, and so on over the looks; empty where there
        are no orders.
    masses : tuple of float
        Label mass of each form, likewise.
    human : float
        Preference of people for the first, 0 to 1, a tie as 0.5; NaN if not known.
    people : tuple of float
        Of each person, where they are known.
    error : str or None
        Why it was not judged.
    """

    document: str
    first: str
    second: str
    p: tuple[float, float, float]
    orders: tuple[float, ...] = ()
    masses: tuple[float, ...] = ()
    human: float = math.nan
    people: tuple[float, ...] = ()
    error: str | None = None

    @property
    def value(self) -> float:
        """Preference for the first: its probability and half of the tie, 0 to 1; NaN if it was not judged."""
        return self.p[0] + self.p[2] / 2

    def turned(self) -> Preference:
        """Exchange the outputs: the same comparison from the other side."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            p=(self.p[1], self.p[0], self.p[2]),
            orders=tuple(
                1 - value
                for one, other in zip(self.orders[::2], self.orders[1::2], strict=True)
                for value in (other, one)
            ),
            masses=tuple(
                value for one, other in zip(self.masses[::2], self.masses[1::2], strict=True) for value in (other, one)
            ),
            human=1 - self.human,
            people=tuple(1 - value for value in self.people),
        )


def holds_pairs(row: Mapping[str, Any], metric: str) -> bool:
    """Whether a row of results is of a pair: its labels are A, B and tie."""
    figures = (row.get("geval") or {}).get(metric) or {}
    probabilities = decoded(figures.get("probabilities"))
    named = "system_a" in row or "output_a" in row
    return set(probabilities) == {"A", "B", "tie"} if isinstance(probabilities, Mapping) else named


def read_preferences(path: str | Path, metric: str) -> list[Preference]:
    """Read what ``geval-local pairs`` wrote.

    Raises
    ------
    DataError
        If a row holds no pair, with its number; rows that were not judged keep their reasons.
    """
    rows = read_rows(path)
    figures = figures_of(rows, metric, path)
    return [
        preference_of(row, own, f"{path}, row {number}")
        for (number, row), own in zip(numbered(rows), figures, strict=True)
    ]


def preference_of(row: Mapping[str, Any], figures: Mapping[str, Any], where: str) -> Preference:
    """Read one comparison from a row of results and its figures; `where` begins what an error says.

    Raises
    ------
    DataError
        If they hold no pair.
    """
    people = decoded(row.get("human"))
    found = Preference(
        str(row.get("document", where)),
        str(row.get("system_a") or ""),
        str(row.get("system_b") or ""),
        (math.nan, math.nan, math.nan),
        error=str(figures["error"]) if figures.get("error") else None,
    )
    if found.error is not None:
        return found  # what else is in the row may be what is wrong with it
    p = decoded(figures.get("probabilities"))
    if not isinstance(p, Mapping) or set(p) != {"A", "B", "tie"}:
        raise DataError(
            f"{where}: holds no probabilities of A, B and tie",
            hint="Expected the results of `geval-local pairs`, as JSONL or Parquet, or as CSV with --columns all.",
        )
    orders, masses = (decoded(figures.get(name)) or () for name in ("look_scores", "look_masses"))
    return replace(
        found,
        p=(float(p["A"]), float(p["B"]), float(p["tie"])),
        orders=tuple(map(float, orders)),
        masses=tuple(map(float, masses)),
        human=number_at(row, "human", where),
        people=tuple(map(float, people)) if isinstance(people, list) else (),
    )


def preferences_from_scores(items: Sequence[ScoredItem], scale: Scale, *, by_score: bool = False) -> list[Preference]:
    """Compare all outputs of a document by the scores that each got alone.

    Parameters
    ----------
    items : sequence of ScoredItem
        With label probabilities; those without a score make comparisons that carry the reason.
    scale : Scale
        The metric's.
    by_score : bool
        Whether the higher expected score is better for certain, instead of as often as its labels are.

    Returns
    -------
    list of Preference
        Of every two outputs of a document by different systems, in order. Without `by_score` ``p`` is
        ``P(label_i > label_j)``, ``P(label_i < label_j)`` and ``P(label_i = label_j)``, labels drawn independently.

    Raises
    ------
    DataError
        If a scored item has no probabilities.
    """
    values = scale.array
    above = (values[:, None] > values[None]).astype(np.float64)
    equal = (values[:, None] == values[None]).astype(np.float64)
    scored = [item for item in items if math.isfinite(item.predicted)]
    rows = (
        {id(item): row for item, row in zip(scored, probability_matrix(scored, scale), strict=True)} if scored else {}
    )
    documents: dict[str, list[ScoredItem]] = {}
    for item in items:
        documents.setdefault(item.group, []).append(item)
    found = []
    for document, own in documents.items():
        for one, other in combinations(own, 2):
            if one.system == other.system:
                continue
            human = _compared(one.human, other.human)
            error = one.error or other.error
            p = (math.nan, math.nan, math.nan)
            if id(one) in rows and id(other) in rows:
                if by_score:
                    better = _compared(one.predicted, other.predicted)
                    p = (float(better == 1), float(better == 0), float(better == 0.5))
                else:
                    first, second = rows[id(one)], rows[id(other)]
                    p = (float(first @ above @ second), float(second @ above @ first), float(first @ equal @ second))
            found.append(Preference(document, one.system, other.system, p, human=human, error=error))
    return found


def _compared(one: float, other: float) -> float:
    """1 for the higher first, 0 for the lower, 0.5 for a tie, NaN where one is not known."""
    if math.isnan(one) or math.isnan(other):
        return math.nan
    return 1.0 if one > other else 0.0 if one < other else 0.5


def with_people(found: Iterable[Preference], ratings: Mapping[tuple[str, str], float]) -> list[Preference]:
    """Add what people prefer: the output that they rated higher, by document and system."""
    return [
        replace(
            one,
            human=_compared(
                ratings.get((one.document, one.first), math.nan), ratings.get((one.document, one.second), math.nan)
            ),
        )
        for one in found
    ]


def outputs_of(found: Sequence[Preference], ratings: Mapping[tuple[str, str], float]) -> list[ScoredItem]:
    """Score every output by its mean preference over those that it was compared with in its document.

    So pairs can be held against people's ratings as scores are.

    Parameters
    ----------
    found : sequence of Preference
        With systems.
    ratings : mapping of (str, str) to float
        Document and system -> people's rating.
    """
    wins: dict[tuple[str, str], list[float]] = {}
    for one in found:
        for own, value in ((one.first, one.value), (one.second, 1 - one.value)):
            wins.setdefault((one.document, own), [])
            if math.isfinite(value):
                wins[one.document, own].append(value)
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
