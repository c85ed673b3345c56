"""Judges' scores of rated rows, kept in a directory under their signature to avoid scoring twice."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.analysis.contenders import Contender, ablations
from geval_local.analysis.ratings.rated import Rated
from geval_local.analysis.results import read_rows
from geval_local.errors import ConfigurationError, OutputError, telling
from geval_local.io.input_checks import ROWS_CHECKED, check_rows
from geval_local.io.ownership import file_sha256
from geval_local.io.result_manifest import is_own_result, read_manifest
from geval_local.io.results import MetricFigures, numbered
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.models.registry import entry_of, labels_of
from geval_local.options import JudgeOptions
from geval_local.runs.directory import result_file
from geval_local.runs.events import ProgressEvents
from geval_local.runs.manifest import definition
from geval_local.runs.run_file import rows_at_once, run_file
from geval_local.runs.settings import Settings
from geval_local.runs.target import find_target
from geval_local.score import Estimator
from geval_local.signature import judge_name, signature_differences, signature_parts, told_differences
from geval_local.statistics.records import NO_HUMAN, ScoredItem

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

logger = logging.getLogger("geval_local")
NO_STEPS = "no-steps"
#: Thoughts per row that a judge that thinks is asked for besides its own number; None is no thinking.
ABLATED_THOUGHTS = (None, 1, 4)
_WITHOUT = dict.fromkeys(name for name in JudgeOptions.model_fields if name.startswith("think"))


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
    progress: Callable[..., AbstractContextManager[Any]]

    def __post_init__(self) -> None:
        for one in self.choices:
            entry_of(one)
        if self.directory is not None:
            with telling(OutputError, f"cannot use the directory {self.directory}"):
                self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def fields(self) -> Mapping[str, str]:
        """Field of a metric -> its column."""
        return self.rows.fields if self.rows.benchmark is None else {}  # a benchmark's are found by their names

    @cached_property
    def asked(self) -> list[int]:
        """Places of the rows that judges score: those with a rating."""
        return [place for place, rated in enumerate(self.rows.is_rated) if rated]

    @property
    def samples(self) -> list[Sample]:
        """The rated rows as samples."""
        name, fields, rows = self.file.name, self.fields, list(numbered(self.rows.rows))
        return [Sample(row, number, name, None, fields) for number, row in map(rows.__getitem__, self.asked)]

    def score(
        self, taken: Sequence[str], estimators: Sequence[Estimator] = (), *, ablate: bool = False
    ) -> list[Contender]:
        """Let the judges score, each released before the next one is loaded; `taken` are names of others.

        `ablate` also scores without evaluation steps, the paper's "- CoT" row, and with other numbers of thoughts where
        a judge thinks.
        """
        metrics, choices = self.rows.metrics, self.choices
        if len(choices) > 1:
            from geval_local.engine.open import check_backend

            for choice in choices:
                check_backend(choice)
        if choices:
            check_rows(self.samples[:ROWS_CHECKED], metrics.values(), str(self.file), self.fields)
        names = list(taken)
        found: list[Contender] = []
        for choice, label in zip(choices, labels_of(choices), strict=True):
            judge = self.load(choice)
            name = judge_name(judge.name)
            name = name if name not in names else label
            if name in names:
                raise ConfigurationError(f"two judges are called {name}; name each of them once")
            names.append(name)
            scored = partial(self._scored, judge, choice)
            is_bare = all(metric.steps == () for metric in metrics.values())
            full = Contender(name, "judge", scored(metrics, NO_STEPS if is_bare else ""))
            found += [full, *ablations(full, metrics, estimators)]
            for count in ABLATED_THOUGHTS if ablate and choice.think is not None else ():
                if count == choice.think:
                    continue
                other = choice.model_copy(update={"think": count, **(_WITHOUT if count is None else {})})
                variant = "no thinking" if count is None else f"thinking, K = {count}"
                items = self._scored(judge.thinking_as(other), other, metrics, variant)
                found.append(Contender(f"{name}, {variant}", "ablation", items, name))
            if ablate and not is_bare:
                bare = {dimension: metric.with_steps(()) for dimension, metric in metrics.items()}
                found.append(Contender(f"{name} - steps", "ablation", scored(bare, NO_STEPS), name))
            del judge, scored
        return found

    def _scored(
        self, judge: Judge, choice: JudgeOptions, asked: Mapping[str, Metric], variant: str
    ) -> dict[str, list[ScoredItem]]:
        figures = self._figures(judge, choice, list(asked.values()), variant)
        return {name: self.rows.items(name, figures[metric.name]) for name, metric in asked.items()}

    def _figures(
        self, judge: Judge, choice: JudgeOptions, metrics: Sequence[Metric], variant: str
    ) -> dict[str, MetricFigures]:
        """Score the rows, or read kept scores with the same signature."""
        with self.progress() as progress:
            complete = [judge.with_steps(metric, on_steps=progress.show_steps) for metric in metrics]
        path = self._path(judge, variant, complete)
        kept = None
        if path is not None and path.exists():
            if not is_own_result(path):
                told = f"{path} cannot be verified: it is not an unchanged result of this tool"
                raise OutputError(told, hint="Choose another directory with -o, or delete the file.")
            kept = read_manifest(path)
        who = f"{judge_name(judge.name)}{variant and ', ' + variant}"
        if kept is not None:
            for metric in complete:
                if differ := signature_differences(kept.metrics[metric.name].signature, str(judge.signature(metric))):
                    raise ConfigurationError(
                        f"{path} holds scores of {metric.name} under another signature: {told_differences(differ)}",
                        hint=f"Choose another directory with -o, or delete {path}.",
                    )
            logger.info("%s: taken from %s, under the same signature", who, path)
        else:
            label = f"{who}: scoring {self.file.name}"
            with self.progress(label, len(self.asked) * len(complete), unit="scores") as progress:
                if path is None:
                    found = list(judge.iter_scores(complete, self.samples, advance=progress.advance))
                    return {one.name: self._of_all(one, [row[one.name].to_dict() for row in found]) for one in complete}
                limits = self.rows.people.rater_column, self.rows.limit_groups
                is_part = len(self.asked) < len(self.rows.rows) or limits != (None, None)
                settings = Settings(
                    window=rows_at_once([choice]),
                    fields=dict(self.fields),
                    metrics=[definition(metric) for metric in complete],
                    chosen=[sample.row for sample in self.samples] if is_part else [],
                )
                file, events = result_file(self.file), ProgressEvents(progress.reach)
                run_file([file], settings, choice, find_target(path), events=events, load=lambda given: judge)
        assert path is not None
        rows = read_rows(path)
        return {one.name: self._of_all(one, [row["geval"][one.name] for row in rows]) for one in complete}

    def _of_all(self, metric: Metric, asked: Sequence[Mapping[str, Any]]) -> MetricFigures:
        """Put figures of the rated rows at their places."""
        found = dict(zip(self.asked, asked, strict=True))
        unrated = {"error": NO_HUMAN}
        return MetricFigures.of(metric.name, (found.get(place, unrated) for place in range(len(self.rows.rows))))

    def _path(self, judge: Judge, variant: str, metrics: Sequence[Metric]) -> Path | None:
        """Name the file of scores, by a digest of all that they depend on."""
        if self.directory is None:
            return None
        asked: list[Any] = [file_sha256(self.file), self.asked, dict(self.fields)]
        for metric in metrics:
            parts = signature_parts(str(judge.signature(metric)))
            # The same judge has many paths, and canaries that differ by rounding: these are compared with the file's.
            asked.append({**parts, "judge": parts["judge"].rpartition("@")[2], "canary": ""})
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
        named = [self.file.name.removesuffix(".gz").rsplit(".", 1)[0], judge_name(judge.name), variant, digest]
        return self.directory / ("--".join(re.sub(r"[^\w.+-]+", "-", p).strip("-") for p in named if p) + ".jsonl")
