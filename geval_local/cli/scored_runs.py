"""Result files for the analysis verbs: rows, manifest, and requested metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from geval_local.analysis.reading import figures_of, rated_items, read_rows
from geval_local.analysis.records import ScoredItem
from geval_local.analysis.statistics.levels import Level
from geval_local.analysis.studies.ablation import estimated_items
from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import check_mapping, output_text
from geval_local.io.checks import check_columns
from geval_local.io.result_manifest import Manifest, ScoredMetric, manifest_path, read_manifest
from geval_local.io.samples import Sample
from geval_local.runs.directory import result_file
from geval_local.score import Estimator
from geval_local.signature import signature_parts

__all__ = ["ScoredRun", "level_for"]


def level_for(group_by: str | None) -> Level:
    """Return the default level: within groups if rows are grouped, else pooled."""
    return "pooled" if group_by is None else "summary"


@dataclass(frozen=True)
class ScoredRun:
    """A result file of ``geval-local score``.

    Attributes
    ----------
    path : Path
        The file; may be given as its run directory.
    fields : mapping of str to str
        Field of a metric -> its column, or the dotted path into one; comes before the manifest's mapping.
    estimator : Estimator or None
        Estimates the scores anew from the stored label distributions; None takes them as they are.
    name : str
        The file's name without its extension, or that of the directory.

    Raises
    ------
    DataError
        If a directory without a finished run is given.
    """

    path: Path
    fields: Mapping[str, str] = field(default_factory=dict)
    estimator: Estimator | None = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        given = self.path
        object.__setattr__(self, "path", result_file(given))
        object.__setattr__(self, "name", given.stem if self.path == given else given.resolve().name)

    @cached_property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows."""
        rows = read_rows(self.path)
        described = {} if self.manifest is None else self.manifest.metrics
        check_mapping(self.fields, ["output", *(name for one in described.values() for name in one.definition.fields)])
        check_columns([Sample(row) for row in rows], self.fields)
        return rows

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest beside the file, if there is one."""
        return read_manifest(self.path)

    @cached_property
    def mapping(self) -> dict[str, str]:
        """Field of a metric -> its column: as given, else as scored."""
        return {**({} if self.manifest is None else self.manifest.fields), **self.fields}

    @cached_property
    def metrics(self) -> list[str]:
        """Names of the metrics in the first row.

        Raises
        ------
        DataError
            If there are none.
        """
        held = self.rows[0].get("geval")
        if not isinstance(held, Mapping) or not held:
            raise DataError(
                f"{self.path} holds no scores",
                hint=f"Score it first: geval-local score {self.path} --metric NAME -o OUT",
            )
        return list(held)

    def one_metric(self, name: str | None) -> str:
        """Choose one metric: the one named, or the only one.

        Raises
        ------
        ConfigurationError
            If it is missing, or none is named and there are several.
        """
        if name is None and len(self.metrics) > 1:
            raise ConfigurationError(
                f"{self.path} holds several metrics", hint=f"Name one with --metric: {', '.join(self.metrics)}."
            )
        if name is not None and name not in self.metrics:
            raise ConfigurationError(
                f"{self.path} holds no scores of {name!r}", hint=f"It holds: {', '.join(self.metrics)}."
            )
        return name or self.metrics[0]

    def items(
        self, metric: str, *, human: str | None = None, group_by: str | None = None, system: str | None = None
    ) -> list[ScoredItem]:
        """Read the scores of a metric, with ratings and groups if they are named."""
        figures = figures_of(self.rows, metric, self.path)
        items = rated_items(
            self.rows, figures, self.path, human=human, group_by=group_by, system=system, fields=self.mapping
        )
        if self.estimator is None:
            return items
        return estimated_items(items, self.origin(metric).definition.scale, self.estimator)

    def is_described(self, metric: str) -> bool:
        """Whether a manifest describes the scores of a metric."""
        return self.manifest is not None and metric in self.manifest.metrics

    def origin(self, metric: str) -> ScoredMetric:
        """Return the origin of a metric's scores.

        Raises
        ------
        ConfigurationError
            If there is no manifest, or it lacks this metric.
        """
        if self.manifest is None or metric not in self.manifest.metrics:
            raise ConfigurationError(
                f"nothing says under which signature {self.path} was scored on {metric}",
                hint=f"`geval-local score` writes {manifest_path(self.path).name} beside its output; carry it along.",
            )
        return self.manifest.metrics[metric]

    def signature(self, metric: str) -> str:
        """Signature of a metric's scores, with the estimator that is in use here.

        Raises
        ------
        ConfigurationError
            As `origin`.
        """
        written = self.origin(metric).signature
        if self.estimator is None:
            return written
        parts = {**signature_parts(written), "estimator": self.estimator.text}
        return "|".join(f"{key}:{value}" for key, value in parts.items())

    def outputs(self) -> list[str | None]:
        """Text of every row's output; None if there is none."""
        return [output_text(row, self.mapping) for row in self.rows]
