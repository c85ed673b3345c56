"""Judges' scores of rated rows, kept in a directory under their signature to avoid scoring twice."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from geval_local.analysis.contenders import Contender, ablations
from geval_local.analysis.ratings.rated import Rated
from geval_local.analysis.results import read_rows
from geval_local.engine.window import WINDOW
from geval_local.errors import ConfigurationError, OutputError
from geval_local.io.input_checks import ROWS_CHECKED, check_rows
from geval_local.io.ownership import file_sha256
from geval_local.io.result_manifest import ScoredMetric, is_own_result, manifest_path, read_manifest
from geval_local.io.results import numbered
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.models.registry import entry_of, label_of, labels_of
from geval_local.options import JudgeOptions
from geval_local.runs.directory import result_file
from geval_local.runs.events import ProgressEvents
from geval_local.runs.manifest import definition
from geval_local.runs.run_file import run_file
from geval_local.runs.settings import Settings
from geval_local.runs.target import find_target
from geval_local.score import Estimator
from geval_local.signature import judge_name, signature_differences, told_differences

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

logger = logging.getLogger("geval_local")
NO_STEPS = "no-steps"

Figures = Mapping[str, Any]


class Progress(Protocol):
    """Told how far the work is."""

    def advance(self, count: int) -> None:
        """Add to the number of scores done."""

    def reach(self, count: int) -> None:
        """Set the number of scores done."""

    def show_steps(self, metric: Metric, tokens: int) -> None:
        """Take in the writing of steps, see `geval_local.judge.steps.OnSteps`."""


@dataclass(frozen=True)
class KeptScores:
    """Scoring of rows with judges, with kept result files."""

    #: The rated file, its rows, and where result files are kept; None keeps none.
    source: Path
    rows: Sequence[Mapping[str, Any]]
    directory: Path | None
    #: Shows progress of a phase with a label, a total and a unit.
    progress: Callable[..., AbstractContextManager[Progress]]
    #: What is scored of the file, in its name, and the numbers of its rows; none of them: all.
    part: str = ""
    chosen: Sequence[int] = ()
    #: Field of a metric -> its column.
    fields: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> list[Sample]:
        """The rows as samples."""
        return [Sample(row, number, self.source.name, None, self.fields) for number, row in numbered(self.rows)]

    def figures(
        self, judge: Judge, choice: JudgeOptions, metrics: Sequence[Metric], variant: str = ""
    ) -> dict[str, list[Figures]]:
        """Score the rows, or read kept scores with the same signature."""
        with self.progress() as progress:
            complete = [judge.with_steps(metric, on_steps=progress.show_steps) for metric in metrics]
        path = self._path(judge.name, variant)
        known = {} if path is None or not path.exists() else self._known(path, judge, complete)
        missing = [metric for metric in complete if metric.name not in known]
        who = f"{judge_name(judge.name)}{variant and ', ' + variant}"
        if len(missing) < len(complete):
            logger.info("%s: taken from %s, under the same signature", who, path)
        if missing:
            label = f"{who}: scoring {self.source.name}"
            with self.progress(label, len(self.rows) * len(missing), unit="scores") as progress:
                if path is None:
                    found = list(judge.iter_scores(missing, self.samples, advance=progress.advance))
                    return {one.name: [row[one.name].to_dict() for row in found] for one in missing}
                # Scores are added to a file that holds others.
                file, chosen = (path, []) if known else (result_file(self.source), self.chosen)
                settings = Settings(
                    window=WINDOW,
                    fields=dict(self.fields),
                    metrics=[definition(metric) for metric in missing],
                    chosen=list(chosen),
                )
                events = ProgressEvents(progress.reach)
                run_file(file, settings, choice, find_target(path), events=events, load=lambda given: judge)
        assert path is not None
        rows = read_rows(path)
        return {metric.name: [row["geval"][metric.name] for row in rows] for metric in complete}

    def _path(self, judge: str, variant: str) -> Path | None:
        if self.directory is None:
            return None
        # With other columns, the same rows have other scores under the same signature.
        read = ",".join(f"{name}={column}" for name, column in sorted(self.fields.items()))
        if read:
            read = f"{read}-{hashlib.sha256(read.encode()).hexdigest()[:8]}"
        named = [self.source.name.removesuffix(".gz").rsplit(".", 1)[0], judge_name(judge), variant, self.part, read]
        return self.directory / ("--".join(re.sub(r"[^\w.+-]+", "-", p).strip("-") for p in named if p) + ".jsonl")

    def _known(self, path: Path, judge: Judge, metrics: Sequence[Metric]) -> dict[str, ScoredMetric]:
        """Read which metrics a kept file holds beside those of its input; refuse it if these scores do not fit."""
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
        origin = read_manifest(self.source)
        others = {} if origin is None else origin.metrics
        known = {name: one for name, one in manifest.metrics.items() if others.get(name) != one}
        for metric in metrics:
            if metric.name in known and (
                differ := signature_differences(known[metric.name].signature, str(judge.signature(metric)))
            ):
                told = told_differences(differ)
                raise ConfigurationError(
                    f"{path} holds scores of {metric.name} under another signature: {told}", hint=remedy
                )
        return known


@dataclass(frozen=True)
class RatedJudges:
    """Judges that are to score rated rows; creating it checks what can be checked before any other work."""

    #: The rows, the file they are from, the judges, and where result files are kept; None keeps none.
    rows: Rated
    file: Path
    choices: Sequence[JudgeOptions]
    directory: Path | None
    #: Loads a judge, and shows progress of a phase with a label, a total and a unit.
    load: Callable[[JudgeOptions], Judge]
    progress: Callable[..., AbstractContextManager[Progress]]

    def __post_init__(self) -> None:
        for one in self.choices:
            entry_of(one)
        if self.directory is not None:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(f"cannot use the directory {self.directory}: {error.strerror}") from error

    def score(
        self, taken: Sequence[str], estimators: Sequence[Estimator] = (), *, steps_too: bool = False
    ) -> list[Contender]:
        """Let the judges score, each released before the next one is loaded; `taken` are names of others.

        `steps_too` also scores without evaluation steps, the paper's "- CoT" row.
        """
        rated, metrics, choices = self.rows, self.rows.metrics, self.choices
        part = "" if rated.limit_groups is None else f"first{rated.limit_groups}"
        fields = rated.fields if rated.benchmark is None else {}  # a benchmark's are found by their names
        chosen = [number for number, _ in numbered(rated.rows)] if part else []
        kept = KeptScores(self.file, rated.rows, self.directory, self.progress, part, chosen, fields)
        if len(choices) > 1:
            from geval_local.models.load import check_judge

            for choice in choices:
                check_judge(entry_of(choice), choice)
        if choices:
            check_rows(kept.samples[:ROWS_CHECKED], metrics.values(), str(self.file), fields)
        names = list(taken)
        found: list[Contender] = []

        def scored(judge: Judge, own: KeptScores, asked: Mapping[str, Metric], *, bare: bool) -> dict[str, Any]:
            figures = own.figures(judge, choice, list(asked.values()), NO_STEPS if bare else "")
            return {dimension: rated.items(dimension, figures[metric.name]) for dimension, metric in asked.items()}

        for choice, label in zip(choices, labels_of(choices), strict=True):
            # One judge with two sets of options has two files.
            own = replace(kept, part="--".join(filter(None, [part, label.removeprefix(label_of(choice))])))
            judge = self.load(choice)
            name = judge_name(judge.name)
            name = name if name not in names else label
            if name in names:
                raise ConfigurationError(f"two judges are called {name}; name each of them once")
            names.append(name)
            is_bare = all(metric.steps == () for metric in metrics.values())
            full = Contender(name, "judge", scored(judge, own, metrics, bare=is_bare))
            found += [full, *ablations(full, metrics, estimators)]
            if steps_too and not is_bare:
                bare = {dimension: metric.with_steps(()) for dimension, metric in metrics.items()}
                found.append(Contender(f"{name} - steps", "ablation", scored(judge, own, bare, bare=True), name))
            del judge
        return found
