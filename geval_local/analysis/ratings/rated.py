"""Rated rows, from a published benchmark file or a user's own, with one interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from geval_local.analysis.ratings.benchmarks import BenchmarkData, read_benchmark
from geval_local.analysis.ratings.responses import figure_items
from geval_local.analysis.results import check_ratings, missing_field, rated_items, read_rows
from geval_local.errors import ConfigurationError
from geval_local.fields import SYSTEM_FIELDS, lookup
from geval_local.grouping import EVERY_ROW, documents_of
from geval_local.io.results import numbered
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem


class Rated(Protocol):
    """Interface of rated rows for a meta-evaluation."""

    @property
    def path(self) -> str:
        """File that the rows come from."""
        ...

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows, unchanged."""
        ...

    @property
    def grouping(self) -> str:
        """Description of how rows are grouped into documents."""
        ...

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels at which these ratings can be correlated, the main one first."""
        ...

    def items(self, dimension: str, figures: Sequence[Mapping[str, Any]]) -> list[ScoredItem]:
        """Join figures in result-file form, one per row, to the ratings of a dimension."""
        ...


@dataclass(frozen=True)
class PublishedRatings:
    """A benchmark file; `name` is what it was called by, which may be of one half of QAGS."""

    data: BenchmarkData
    name: str

    @property
    def path(self) -> str:
        """File that the rows come from."""
        return self.data.path

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows, unchanged."""
        return self.data.rows

    @property
    def grouping(self) -> str:
        """Description of how rows are grouped into documents."""
        return documents_of((), self.data.benchmark.group_field or EVERY_ROW)[1]

    @property
    def levels(self) -> tuple[Level, ...]:
        """The paper's level, then the others that the file allows."""
        return _levels(
            self.data.benchmark.level,
            grouped=self.data.benchmark.group_field is not None,
            systems=all(row.get("system_id") for row in self.data.rows),
        )

    def items(self, dimension: str, figures: Sequence[Mapping[str, Any]]) -> list[ScoredItem]:
        """Join figures to the ratings of a dimension."""
        return figure_items(self.data, dimension, figures)


@dataclass(frozen=True)
class OwnRatings:
    """A user's own file."""

    path: str
    rows: tuple[Mapping[str, Any], ...]
    human: Mapping[str, str]
    group_by: str | None = None
    system: str | None = None
    grouping: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def levels(self) -> tuple[Level, ...]:
        """``summary`` first if the rows are grouped, else ``pooled``."""
        writers = (self.system,) if self.system is not None else SYSTEM_FIELDS
        systems = all(any(lookup(row, name) is not None for name in writers) for row in self.rows)
        first: Level = "pooled" if self.group_by is None else "summary"
        return _levels(first, grouped=self.group_by is not None, systems=systems)

    def items(self, dimension: str, figures: Sequence[Mapping[str, Any]]) -> list[ScoredItem]:
        """Join figures to the ratings of a dimension, which is the name of a metric here."""
        return rated_items(
            self.rows,
            figures,
            self.path,
            human=self.human[dimension],
            group_by=self.group_by,
            system=self.system,
            fields=self.fields,
        )


def read_published(path: str | Path, name: str, *, limit_groups: int | None = None) -> PublishedRatings:
    """Read a benchmark file, or the first `limit_groups` of its documents."""
    data = read_benchmark(path, name)
    chosen = _first_groups([data.group(index) for index in range(len(data.rows))], limit_groups)
    return PublishedRatings(replace(data, rows=tuple(data.rows[index] for index in chosen)), name)


def read_own(
    path: str | Path,
    human: Mapping[str, str],
    *,
    group_by: str | None = None,
    system: str | None = None,
    limit_groups: int | None = None,
    fields: Mapping[str, str] | None = None,
) -> OwnRatings:
    """Read a file with human ratings, or the first `limit_groups` of its documents (rows, if they are not grouped)."""
    rows = read_rows(path)
    for rating in dict.fromkeys(human.values()):
        check_ratings(rows, rating, path)
    group_by, grouping = documents_of(rows, group_by)
    groups = []
    for number, row in numbered(rows):
        group = number if group_by is None else lookup(row, group_by)
        if group is None:
            raise missing_field(row, group_by or "", f"{path}, row {number}", "to group by ")
        groups.append(str(group))
    chosen = _first_groups(groups, limit_groups)
    return OwnRatings(
        str(path), tuple(rows[index] for index in chosen), human, group_by, system, grouping, fields or {}
    )


def _first_groups(groups: Sequence[str], limit: int | None) -> list[int]:
    if limit is None:
        return list(range(len(groups)))
    if limit < 1:
        raise ConfigurationError(f"the limit of groups must be at least 1, not {limit}")
    kept = set(list(dict.fromkeys(groups))[:limit])
    return [index for index, group in enumerate(groups) if group in kept]


def _levels(first: Level, *, grouped: bool, systems: bool) -> tuple[Level, ...]:
    others: list[Level] = [*(["summary"] if grouped else []), "pooled", *(["system"] if systems else [])]  # type: ignore[list-item]
    return (first, *(level for level in others if level != first))
