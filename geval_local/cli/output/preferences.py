"""What ``pairs`` and ``preferences`` print: systems, the judge's consistency, and agreement with people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from geval_local.analysis.pairs import (
    PairStudy,
    Preference,
    Source,
    consistency_table,
    pair_agreement_table,
    rank_table,
    read_preferences,
    study_pairs,
    system_pair_table,
)
from geval_local.analysis.statistics.coefficients import Coefficient
from geval_local.analysis.statistics.correlation import Correlation, correlate
from geval_local.analysis.statistics.jackknife import Target
from geval_local.analysis.statistics.significance import Comparison, compare, corrected
from geval_local.analysis.tables import comparison_table, correlation_table
from geval_local.cli.output.tables import as_record, show_table
from geval_local.errors import DataError

__all__ = ["preference_record", "show_preferences", "show_sources", "source_records"]


def preference_record(path: Path, metric: str) -> dict[str, Any]:
    """Give all figures of a run of pairs as plain JSON values."""
    return _record(read_preferences(path, metric))


def show_preferences(path: Path, metric: str) -> None:
    """Print the systems and the consistency of a run of pairs."""
    study = study_pairs(read_preferences(path, metric))
    _show_ranks(metric, study, {})
    _show_studies({metric: study})


def show_sources(
    sources: Sequence[Source], coefficient: Coefficient, target: Target | None, *, every_pair: bool
) -> None:
    """Print several ways to compare side by side."""
    studies = {source.name: study_pairs(source.found) for source in sources}
    for source in sources:
        _show_ranks(source.name, studies[source.name], source.human)
        if every_pair:
            show_table(system_pair_table(studies[source.name].pairs), f"{source.name}: every pair of systems")
    _show_studies(studies)
    correlations, tests = _against_people(sources, coefficient, target)
    if correlations:
        title = "outputs against people's ratings: each by its mean preference in its document, or by its score"
        show_table(correlation_table(correlations), title, fold=("n", "groups skipped", "items left out"))
    if tests:
        fold = ("on", "items / documents", "kept by each")
        show_table(comparison_table(tests), "which way agrees better with people?", fold=fold)


def source_records(sources: Sequence[Source], coefficient: Coefficient, target: Target | None) -> dict[str, Any]:
    """Give several ways to compare as plain JSON values."""
    correlations, tests = _against_people(sources, coefficient, target)
    records = {source.name: {**_record(source.found), "human_means": source.human or None} for source in sources}
    return {"sources": records, "against_people": as_record(correlations), "tests": as_record(tests)}


def _record(found: Sequence[Preference]) -> dict[str, Any]:
    study = study_pairs(found)
    return {
        "systems": as_record(study.ranks),
        "warning": study.warning or None,
        "groups": as_record(study.groups),
        "told": study.told,
        "pairs": as_record(study.pairs),
        "consistency": as_record(study.consistency),
        "agreement": None if study.agreement is None else as_record(study.agreement),
    }


def _show_ranks(name: str, study: PairStudy, human: dict[str, float]) -> None:
    if study.ranks:
        show_table(rank_table(study, human), f"{name}: the systems")


def _show_studies(studies: Mapping[str, PairStudy]) -> None:
    figures = {name: study.consistency for name, study in studies.items()}
    show_table(consistency_table(figures), "how far the judge agrees with itself")
    agreements = {name: study.agreement for name, study in studies.items() if study.agreement is not None}
    if agreements:
        show_table(pair_agreement_table(agreements), "comparisons against people's")


def _against_people(
    sources: Sequence[Source], coefficient: Coefficient, target: Target | None
) -> tuple[dict[str, Correlation], dict[str, Comparison]]:
    correlations: dict[str, Correlation] = {}
    tests: dict[str, Comparison] = {}
    rated = [source for source in sources if any(math.isfinite(item.human) for item in source.items)]
    for level in ("summary", "system"):
        for source in rated:
            correlations[f"{level}: {source.name}"] = correlate(source.items, level, target=target)
        for one, other in combinations(rated, 2):
            name = f"{level}: {one.name} less {other.name}"
            try:
                tests[name] = compare(one.items, other.items, level, coefficient, target=target)
            except DataError:
                continue  # no common ground, which the counts beside show
    return correlations, corrected(tests)
