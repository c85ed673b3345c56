"""Scores of rated rows, kept in a directory under their signature to avoid scoring twice."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.analysis.contenders import RatedMetrics, ablations
from geval_local.analysis.meta_evaluation import Contender
from geval_local.analysis.ratings.rated import Rated
from geval_local.analysis.results import read_rows
from geval_local.cli.output.console import note
from geval_local.cli.progress import load_shown, show_progress
from geval_local.errors import ConfigurationError, OutputError
from geval_local.io.input_checks import ROWS_CHECKED, check_rows
from geval_local.io.ownership import file_sha256
from geval_local.io.result_manifest import (
    Manifest,
    ScoredMetric,
    check_manifest,
    is_own_result,
    manifest_path,
    read_manifest,
    write_manifest,
)
from geval_local.io.results import numbered
from geval_local.io.samples import Sample
from geval_local.io.writer import ResultWriter
from geval_local.metric import Metric
from geval_local.models.registry import entry_of, label_of, labels_of
from geval_local.options import JudgeOptions
from geval_local.score import Estimator
from geval_local.signature import judge_name, signature_differences, told_differences

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge
    from geval_local.score import Score

NO_STEPS = "no-steps"

Figures = Mapping[str, Any]


def check_directory(directory: Path | None) -> None:
    """Create the directory, before any other work."""
    if directory is None:
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot use the directory {directory}: {error.strerror}") from error


def kept_name(source: Path, *parts: str, suffix: str) -> str:
    """Return the name of a score file: the scored file's name and distinguishing parts; empty parts are skipped."""
    named = [source.name.removesuffix(".gz").rsplit(".", 1)[0], *parts]
    return "--".join(re.sub(r"[^\w.+-]+", "-", part).strip("-") for part in named if part) + suffix


@dataclass(frozen=True)
class KeptRuns:
    """Scoring of rows with judges, with kept result files."""

    source: Path
    rows: Sequence[Mapping[str, Any]]
    directory: Path | None
    part: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> list[Sample]:
        """The rows as samples."""
        return [Sample(row, number, self.source.name, None, self.fields) for number, row in numbered(self.rows)]

    def figures(self, judge: Judge, metrics: Sequence[Metric], variant: str = "") -> dict[str, list[Figures]]:
        """Score the rows, or read kept scores with the same signature."""
        with show_progress() as progress:
            complete = [judge.with_steps(metric, on_steps=progress.show_steps) for metric in metrics]
        signatures = {metric.name: str(judge.signature(metric)) for metric in complete}
        path = self._path(judge.name, variant)
        kept: Sequence[Mapping[str, Any]] | None = None
        manifest = None
        if path is not None and path.exists():
            manifest = self._checked(path, signatures)
            kept = read_rows(path)
        known = set() if manifest is None else set(manifest.metrics)
        missing = [metric for metric in complete if metric.name not in known]
        if known & set(signatures):
            note(f"{judge_name(judge.name)}{variant and ', ' + variant}: taken from {path}, under the same signature")
        scores = self._score(judge, missing, variant) if missing else {}
        if path is not None and missing:
            self._write(path, judge.name, missing, signatures, scores, kept, manifest)
        rows = kept or []
        return {
            metric.name: [score.to_dict() for score in scores[metric.name]]
            if metric.name in scores
            else [row["geval"][metric.name] for row in rows]
            for metric in complete
        }

    def _path(self, judge: str, variant: str) -> Path | None:
        if self.directory is None:
            return None
        # With other columns, the same rows have other scores under the same signature.
        read = ",".join(f"{name}={column}" for name, column in sorted(self.fields.items()))
        if read:
            read = f"{read}-{hashlib.sha256(read.encode()).hexdigest()[:8]}"
        return self.directory / kept_name(self.source, judge_name(judge), variant, self.part, read, suffix=".jsonl")

    def _checked(self, path: Path, signatures: Mapping[str, str]) -> Manifest:
        manifest = read_manifest(path)
        remedy = f"Choose another directory with -o, or delete {path}."
        if manifest is None:
            raise ConfigurationError(
                f"{path} exists but lacks {manifest_path(path).name}, so its scores cannot be verified", hint=remedy
            )
        if (manifest.input_sha256, manifest.rows) != (file_sha256(self.source), len(self.rows)):
            raise ConfigurationError(f"{path} holds scores of other rows than those of {self.source}", hint=remedy)
        if not is_own_result(path):
            raise ConfigurationError(f"{path} was changed after it was scored", hint=remedy)
        for name, signature in signatures.items():
            if name in manifest.metrics and (
                differ := signature_differences(manifest.metrics[name].signature, signature)
            ):
                told = told_differences(differ)
                raise ConfigurationError(f"{path} holds scores of {name} under another signature: {told}", hint=remedy)
        return manifest

    def _score(self, judge: Judge, metrics: Sequence[Metric], variant: str) -> dict[str, list[Score]]:
        samples = self.samples
        label = f"{judge_name(judge.name)}{variant and ', ' + variant}: scoring {self.source.name}"
        with show_progress(label, len(samples) * len(metrics), unit="scores") as progress:
            return {
                metric.name: list(judge.iter_scores(metric, samples, advance=progress.advance)) for metric in metrics
            }

    def _write(
        self,
        path: Path,
        judge: str,
        metrics: Sequence[Metric],
        signatures: Mapping[str, str],
        scores: Mapping[str, list[Score]],
        kept: Sequence[Mapping[str, Any]] | None,
        manifest: Manifest | None,
    ) -> None:
        check_manifest(path)
        with ResultWriter.open(path, list(scores)) as writer:
            for index, row in enumerate(kept or self.rows):
                sample = Sample(row, index + 1, self.source.name)
                writer.write(sample, {name: column[index] for name, column in scores.items()})
            manifest_path(path).unlink(missing_ok=True)
        fresh = {
            metric.name: ScoredMetric(
                signatures[metric.name], metric, sum(not score.is_scored for score in scores[metric.name])
            )
            for metric in metrics
        }
        earlier = {} if manifest is None else manifest.metrics
        source = self.source
        description = Manifest(
            judge, source.name, file_sha256(source), len(self.rows), earlier | fresh, file_sha256(path), self.fields
        )
        write_manifest(path, description)


def from_judge(rated: Rated, runs: KeptRuns, judge: Judge, metrics: Mapping[str, Metric], name: str) -> Contender:
    """Let a judge score the rows."""
    variant = NO_STEPS if all(metric.steps == () for metric in metrics.values()) else ""
    figures = runs.figures(judge, list(metrics.values()), variant)
    return Contender(
        name,
        "judge",
        {dimension: rated.items(dimension, figures[metric.name]) for dimension, metric in metrics.items()},
    )


def without_steps(rated: Rated, runs: KeptRuns, judge: Judge, metrics: Mapping[str, Metric], name: str) -> Contender:
    """Score again without evaluation steps, the paper's "- CoT" row."""
    bare = {dimension: metric.with_steps(()) for dimension, metric in metrics.items()}
    figures = runs.figures(judge, list(bare.values()), NO_STEPS)
    items = {dimension: rated.items(dimension, figures[metric.name]) for dimension, metric in bare.items()}
    return Contender(f"{name} - steps", "ablation", items, name)


def judge_all(
    rows: RatedMetrics,
    runs: KeptRuns,
    choices: Sequence[JudgeOptions],
    *,
    estimators: Sequence[Estimator],
    steps_too: bool,
    taken: Sequence[str],
) -> list[Contender]:
    """Let judges score rated rows, each released before the next one is loaded; `taken` are names of others."""
    rated, metrics = rows.rated, rows.metrics
    if len(choices) > 1:
        from geval_local.models.load import check_judge

        for choice in choices:
            check_judge(entry_of(choice), choice)
    if choices:
        check_rows(runs.samples[:ROWS_CHECKED], metrics.values(), str(runs.source), runs.fields)
    names = list(taken)
    found: list[Contender] = []
    for choice, label in zip(choices, labels_of(choices), strict=True):
        # One judge with two sets of options has two files.
        own = replace(runs, part="--".join(filter(None, [runs.part, label.removeprefix(label_of(choice))])))
        judge = load_shown(choice)
        name = judge_name(judge.name)
        name = name if name not in names else label
        if name in names:
            raise ConfigurationError(f"two judges are called {name}; name each of them once")
        names.append(name)
        full = from_judge(rated, own, judge, metrics, name)
        found += [full, *ablations(full, metrics, estimators)]
        if steps_too and not all(metric.steps == () for metric in metrics.values()):
            found.append(without_steps(rated, own, judge, metrics, name))
        del judge
    return found
