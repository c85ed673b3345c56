"""Rated rows, from a published benchmark file or a user's own, with one interface."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from geval_local.analysis.ratings.benchmarks import BENCHMARKS, QAGS_HALVES, Benchmark, benchmark
from geval_local.analysis.results import check_ratings, missing_field, number_at, rated_items, read_rows
from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import SYSTEM_FIELDS, lookup
from geval_local.grouping import EVERY_ROW, documents_of
from geval_local.io.results import numbered
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem


@dataclass(frozen=True)
class PublishedRatings:
    """Rows of a published benchmark; `name` is what it was called by, which may be of one half of QAGS."""

    benchmark: Benchmark
    path: str
    rows: tuple[Mapping[str, Any], ...]
    name: str

    @cached_property
    def groups(self) -> list[str]:
        """The document of every row."""
        field = self.benchmark.group_field
        return [str(place if field is None else row[field]) for place, row in enumerate(self.rows, 1)]

    @cached_property
    def keys(self) -> list[str]:
        """A key for every row: its system and document, so that incomplete files can be paired."""
        if self.benchmark.group_field is None:
            return self.groups
        documents = [hashlib.sha256(group.encode()).hexdigest()[:12] for group in self.groups]
        return [f"{row.get('system_id', '')}/{own}" for row, own in zip(self.rows, documents, strict=True)]

    @property
    def grouping(self) -> str:
        """Description of how rows are grouped into documents."""
        return documents_of((), self.benchmark.group_field or EVERY_ROW)[1]

    @property
    def levels(self) -> tuple[Level, ...]:
        """The paper's level, then the others that the file allows."""
        return _levels(
            self.benchmark.level,
            grouped=self.benchmark.group_field is not None,
            systems=all(row.get("system_id") for row in self.rows),
        )

    def items(self, dimension: str, figures: Sequence[Mapping[str, Any]]) -> list[ScoredItem]:
        """Join figures in result-file form, one per row, to the ratings of a dimension."""
        if dimension not in self.benchmark.dimensions:
            raise ConfigurationError(
                f"{self.benchmark.name} has no ratings of {dimension!r}",
                hint=f"It has: {', '.join(self.benchmark.dimensions)}.",
            )
        return rated_items(
            self.rows,
            figures,
            self.path,
            human=f"scores.{dimension}",
            group_by=self.benchmark.group_field,
            fields=self.benchmark.fields,
            keys=self.keys,
        )


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


Rated = PublishedRatings | OwnRatings


def read_benchmark(path: str | Path, name: str, *, limit_groups: int | None = None) -> PublishedRatings:
    """Read a published benchmark file, unmodified, or the first `limit_groups` of its documents."""
    layout = benchmark(name)
    rows = read_rows(path)
    needed = dict.fromkeys([*layout.fields.values(), *filter(None, [layout.group_field])])
    problems: list[str] = []
    for number, row in numbered(rows):
        problems += [f"row {number}: no text in {field!r}" for field in needed if not isinstance(row.get(field), str)]
        ratings = row.get("scores")
        if not isinstance(ratings, Mapping):
            problems.append(f"row {number}: no ratings in 'scores'")
            continue
        absent = [dimension for dimension in layout.dimensions if dimension not in ratings]
        problems += [f"row {number}: no rating of {dimension!r} in 'scores'" for dimension in absent]
        for dimension in layout.dimensions:
            number_at(ratings, dimension, f"{path}, row {number}")
    if problems:
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise DataError(
            f"{path} is not a {name} file: {problems[0]}{more}",
            hint="Benchmark files are read as their authors published them; for your own ratings use `human=FIELD`.",
        )
    if name == "qags":
        layout = BENCHMARKS[f"qags-{_qags_half(Path(path), rows)}"]
    found = PublishedRatings(layout, str(path), tuple(rows), name)
    return replace(found, rows=tuple(rows[index] for index in _first_groups(found.groups, limit_groups)))


def _qags_half(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Tell the half of QAGS by the file's name, else by its summaries: XSum's are one sentence, CNN's several."""
    named = [half for half in QAGS_HALVES if half in path.name.lower()]
    if len(named) == 1:
        return named[0]
    sentences = sorted(len(re.findall(r"[.!?](?=\s|$)", str(row["system_output"]))) for row in rows)
    return "xsum" if sentences[len(sentences) // 2] < 2 else "cnn"


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
