"""Runs as comparisons: what `pairs` wrote, and what `score` wrote, compared output by output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from geval_local.analysis.preferences import (
    Preference,
    holds_pairs,
    outputs_of,
    preferences_from_scores,
    read_preferences,
    with_people,
)
from geval_local.analysis.reading import missing_field, number_at, read_rows
from geval_local.analysis.records import ScoredItem
from geval_local.cli.scored_runs import ScoredRun
from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import SYSTEM_FIELDS, lookup
from geval_local.grouping import document_field
from geval_local.io.results import numbered

__all__ = ["Asked", "Source", "sources_of"]

Ratings = dict[tuple[str, str], float]


@dataclass(frozen=True)
class Asked:
    """What the user asked for; see the options of ``preferences``."""

    metric: str | None = None
    human: str | None = None
    ratings: Path | None = None
    group_by: str | None = None
    system: str | None = None


@dataclass(frozen=True)
class Source:
    """One way to compare.

    Attributes
    ----------
    name : str
        To be shown.
    found : list of Preference
        The comparisons.
    items : list of ScoredItem
        Every output with its score by this way, and people's rating; empty without ratings or systems.
    human : dict of str to float
        System -> mean rating by people, where known.
    """

    name: str
    found: list[Preference]
    items: list[ScoredItem] = field(default_factory=list)
    human: dict[str, float] = field(default_factory=dict)


def sources_of(paths: Sequence[Path], asked: Asked) -> list[Source]:
    """Read runs as comparisons; a run of single scores gives two, by its distributions and by its scores.

    Raises
    ------
    ConfigurationError
        If a run does not hold the metric, or holds several and none is named.
    DataError
        If a file cannot be used.
    """
    runs = [ScoredRun(path) for path in paths]
    pairwise = {id(run): _pair_metric(run, asked.metric) for run in runs}
    ratings: Ratings = {}
    if asked.ratings is not None:
        ratings = _ratings(read_rows(asked.ratings), asked, asked.ratings)
    elif asked.human is not None:
        for run in runs:
            if pairwise[id(run)] is None:
                ratings |= _ratings(run.rows, asked, run.path)
    sources: list[Source] = []
    for run in runs:
        name = run.name if [other.name for other in runs].count(run.name) == 1 else str(run.path)
        key = pairwise[id(run)]
        if key is not None:
            found = read_preferences(run.path, key)
            found = with_people(found, ratings) if ratings else found
            sources.append(Source(name, found, outputs_of(found, ratings) if ratings else []))
            continue
        metric = run.one_metric(asked.metric)
        documents = document_field(run.rows, asked.group_by)
        items = run.items(metric, group_by=documents, system=asked.system)
        if documents is None:
            raise DataError(
                f"{run.path}: nothing says which outputs are for the same document", hint="Name it by --group-by FIELD."
            )
        if not all(item.system for item in items):
            raise missing_field(run.rows[0], SYSTEM_FIELDS[0], str(run.path), "of the system ")
        scale = run.origin(metric).definition.scale
        rated = [_rated(item, ratings) for item in items]
        for told, by_score in (("distributions", False), ("scores", True)):
            found = preferences_from_scores(rated, scale, by_score=by_score)
            own = rated if by_score else outputs_of(found, ratings)
            sources.append(Source(f"{name}, {told}", found, own if ratings else []))
    return [_with_means(source, ratings) for source in sources]


def _pair_metric(run: ScoredRun, metric: str | None) -> str | None:
    """Name the metric of a run that compares pairs; None for a run of single scores."""
    wanted = [name for name in (metric, f"{metric}/pairs") if name in run.metrics] if metric else run.metrics
    pairs = [name for name in wanted if holds_pairs(run.rows[0], name)]
    if len(pairs) > 1:
        raise ConfigurationError(
            f"{run.path} holds several metrics", hint=f"Name one with --metric: {', '.join(pairs)}."
        )
    return pairs[0] if pairs else None


def _ratings(rows: Sequence[Mapping[str, Any]], asked: Asked, path: Path) -> Ratings:
    """Read people's ratings by document and system."""
    assert asked.human is not None
    documents = document_field(rows, asked.group_by)
    if documents is None:
        raise DataError(f"{path}: nothing says which outputs are for the same document", hint="Name it by --group-by.")
    found: Ratings = {}
    for number, row in numbered(rows):
        where = f"{path}, row {number}"
        names = (asked.system,) if asked.system is not None else SYSTEM_FIELDS
        writer = next((value for name in names if (value := lookup(row, name)) is not None), None)
        if writer is None:
            raise missing_field(row, names[0], where, "of the system ")
        key = (str(lookup(row, documents)), str(writer))
        if key in found:
            raise DataError(f"{where}: the system {key[1]!r} has two outputs for the document {key[0]!r}")
        found[key] = number_at(row, asked.human, where)
    if all(map(math.isnan, found.values())):
        raise DataError(f"{path}: no row has a human rating in {asked.human!r}")
    return found


def _rated(item: ScoredItem, ratings: Ratings) -> ScoredItem:
    key = f"{item.group}/{item.system}"  # as `outputs_of` has it
    return replace(item, human=ratings.get((item.group, item.system), math.nan), key=key)


def _with_means(source: Source, ratings: Ratings) -> Source:
    by_system: dict[str, list[float]] = {}
    for (_, system), rating in ratings.items():
        if math.isfinite(rating):
            by_system.setdefault(system, []).append(rating)
    means = {system: sum(values) / len(values) for system, values in by_system.items()}
    return Source(source.name, source.found, source.items, means)
