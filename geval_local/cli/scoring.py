"""The run behind ``score`` and ``resume``: rows stream through every judge and metric into the output."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.cli.calibrated import apply_calibration, calibration_record, check_calibration
from geval_local.cli.loading import JudgeChoice
from geval_local.cli.output.console import note
from geval_local.cli.progress import Progress, show_progress
from geval_local.cli.stopping import RunStopped, Stopper
from geval_local.cli.task import Task
from geval_local.errors import ConfigurationError, GevalError
from geval_local.io.checks import check_input
from geval_local.io.columns import check_chosen
from geval_local.io.result_manifest import Manifest, ScoredMetric, read_manifest
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.runs.directory import is_run_directory, open_run
from geval_local.runs.export import Exporter, clear_away, deliver, describe
from geval_local.runs.manifest import JudgeRecord
from geval_local.runs.run import Run
from geval_local.score import Score
from geval_local.summary import Summary, Tally

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["Result", "score_file"]

#: Rows that are shown with their label probabilities.
FIRST_ROWS = 8
WORKERS_LOAD = "workers load the judge"


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes
    ----------
    judges : list of str
        Names of the judges.
    summaries : list of Summary
        One per judge and metric.
    first_rows : list of (Sample, list of Score)
        The first `FIRST_ROWS` rows with their scores, one per judge and metric, to be shown.
    signatures : list of str
        One per judge and metric.
    failures : list of str
        The gates that were failed.
    rows : int
        Rows of the input.
    load_seconds, seconds : float
        Time of loading, and of scoring and writing.
    files : list of Path
        What was written.
    totals : dict of str to int
        Over all judges and metrics: outcomes from the cache, tokens of prompts, tokens that went through a model.
    """

    judges: list[str]
    summaries: list[Summary]
    first_rows: list[tuple[Sample, list[Score]]]
    signatures: list[str]
    failures: list[str]
    rows: int
    load_seconds: float
    seconds: float
    files: list[Path] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)

    @property
    def judge(self) -> str:
        """Names of the judges as one text."""
        return ", ".join(self.judges)


def score_file(task: Task) -> Result:
    """Score a file; the figures are those of `Judge.score_many` to the last bit.

    Raises
    ------
    GevalError
        If the input, the output or the judge cannot be used; input and output are found out before the judge is loaded.
    RunStopped
        If the run was interrupted and can be resumed.
    """
    directory = task.target.directory
    wanted = None
    if not task.is_resumed:
        # What is wrong with the file as a whole is found here, before minutes go into a judge and its steps.
        first = check_input(task.file, task.metrics, limit=task.limit, mapping=task.fields)
        check_chosen(task.columns, first, [metric.name for metric in task.metrics])
        wanted = task.manifest()
    began = False
    stopper = Stopper()
    try:
        opened = open_run(directory, wanted, retry_errors=task.retry_errors, overwrite=task.overwrite)
        with stopper.listening(), opened as run:
            began = True
            return _Scoring(task, run, stopper).result()
    except KeyboardInterrupt as stop:
        if began and directory is not None and is_run_directory(directory):
            raise RunStopped(_resume_command(directory)) from stop
        raise
    except GevalError as error:
        if began and directory is not None and is_run_directory(directory):
            kept = f"What is finished is kept; go on with:\n  {_resume_command(directory)}"
            error.hint = kept if error.hint is None else f"{error.hint}\n{kept}"
        raise


def _resume_command(directory: Path) -> str:
    return shlex.join(["geval-local", "resume", str(directory)])


def _load_on_worker(choices: Mapping[str, JudgeChoice], record: JudgeRecord) -> Judge:
    return choices[record.name].load()


class _Scoring:
    """One run, followed to its end."""

    def __init__(self, task: Task, run: Run, stopper: Stopper) -> None:
        from geval_local.engine.window import LOW_LABEL_MASS

        self._task = task
        self._run = run
        self._stopper = stopper
        self._load_seconds = 0.0
        self._progress = Progress()
        self._there = 0
        self._done = 0
        self._is_scoring = False
        self._first_rows: list[tuple[Sample, list[Score]]] = []
        self._tallies = [Tally(key, low_mass=LOW_LABEL_MASS) for key in run.keys]

    def result(self) -> Result:
        run, begin = self._run, time.perf_counter()
        self._check_judges()
        self._tell_what_is_there()
        with Exporter(run) as exporter, show_progress() as self._progress:
            for sample, raw in run.rows(
                self._loader(),
                advance=self._advance,
                should_stop=self._stopper.wanted,
                on_judge=self._put_to_work,
                on_steps=self._progress.show_steps,
            ):
                scores = {key: apply_calibration(self._task.calibrations.get(key), raw[key]) for key in raw}
                self._take(sample, list(scores.values()))
                exporter.write(sample, scores)
            self._stopper.is_working = False
        totals: dict[str, int] = {}
        for judge in range(len(run.manifest.judges)):
            for metric in range(len(run.metrics)):
                for name, count in run.store.totals(judge, metric).items():
                    totals[name] = totals.get(name, 0) + count
        summaries = [tally.summary(seed=self._task.estimator.seed) for tally in self._tallies]
        files = self._deliver(exporter, summaries)
        return Result(
            judges=[judge.name for judge in run.manifest.judges],
            summaries=summaries,
            first_rows=self._first_rows,
            signatures=[judge.signatures[metric.name] for judge in run.manifest.judges for metric in run.metrics],
            failures=self._task.gates.failures(summaries),
            rows=summaries[0].rows,
            load_seconds=self._load_seconds,
            seconds=time.perf_counter() - begin - self._load_seconds,
            files=files,
            totals=totals,
        )

    def _deliver(self, exporter: Exporter, summaries: list[Summary]) -> list[Path]:
        """Bring the results to their place, each with what says what its scores are."""
        files = deliver(self._run, exporter.files)
        for file in files:
            describe(self._run, file, self._description(summaries))
        clear_away(self._run)
        return files

    def _description(self, summaries: list[Summary]) -> Manifest:
        run, task = self._run, self._task
        earlier = read_manifest(task.file)
        unscored = {summary.metric: summary.unscored for summary in summaries}
        scored = {
            key: ScoredMetric(
                judge.signatures[metric.name],
                Metric.model_validate(judge.definitions[metric.name]),
                unscored[key],
                calibration_record(task.calibrations[key]) if key in task.calibrations else None,
            )
            for key, judge, metric in run.results()
        }
        file = run.manifest.input
        # Results of other metrics in an input that was scored before are kept in the output, so their origin is too.
        metrics = ({} if earlier is None else earlier.metrics) | scored
        return Manifest(run.manifest.judges[-1].name, file.name, file.sha256, summaries[0].rows, metrics)

    def _check_judges(self) -> None:
        """See that every judge that is to work can, before the first one is loaded.

        Workers of a cluster have their own files. What is asked of a single judge is asked as it is loaded.
        """
        if self._task.distributed is not None:
            return
        judges = zip(self._run.manifest.judges, self._task.judges, strict=True)
        waiting = [choice for record, choice in judges if not record.complete]
        for choice in waiting:
            choice.entry()
        if len(waiting) > 1:
            note("checking the judges' files ...", "dim")
            for choice in waiting:
                choice.check()

    def _tell_what_is_there(self) -> None:
        """Say how much an earlier run has left to go on from."""
        store, each = self._run.store, len(self._tallies)
        judges, metrics = range(len(self._run.manifest.judges)), range(len(self._run.metrics))
        self._there = sum(store.totals(judge, metric)["rows"] for judge in judges for metric in metrics)
        if not self._there:
            return
        total = self._total()
        unit = "rows" if each == 1 else "scores"
        of = "" if total is None else f" of {total}"
        note(f"resuming: {self._there}{of} {unit} are there")

    def _advance(self, count: int) -> None:
        """Count scores; they are shown while a judge is at work."""
        self._done += count
        if self._is_scoring:
            self._progress.reach(self._done)
        elif self._task.distributed is not None:  # shards are given out, and their workers begin by loading
            self._progress.begin(WORKERS_LOAD)

    def _put_to_work(self, judge: JudgeRecord) -> None:
        """Show the judge's scoring, once it is known what it is; from now on a pack is finished before a stop."""
        self._check_calibrations(judge)
        self._is_scoring = True
        self._stopper.is_working = self._task.distributed is None
        self._progress.begin(
            f"scoring {self._task.file.name}",
            self._total(),
            unit="rows",
            each=len(self._tallies),
            there=self._there,
            done=self._done,
        )

    def _check_calibrations(self, judge: JudgeRecord) -> None:
        if self._task.calibrations and len(self._run.manifest.judges) > 1:
            raise ConfigurationError("--calibration goes with one judge: the one whose scores it was made from")
        for name, calibration in self._task.calibrations.items():
            check_calibration(calibration, judge.signatures[name])

    def _total(self) -> int | None:
        """How many outcomes there will be, as far as that can be told beforehand; for the progress bar."""
        file, limit = self._run.manifest.input, self._task.limit
        rows = file.rows
        if rows is None and file.name.lower().endswith((".jsonl", ".ndjson")):
            rows = max(1, file.lines)
        if rows is not None and limit is not None:
            rows = min(rows, limit)
        return None if rows is None else rows * len(self._tallies)

    def _loader(self) -> Callable[[JudgeRecord], Judge]:
        """Say how judges are loaded: here, or, without a word to this process, on the workers of a cluster."""
        if self._task.distributed is None:
            return self._load
        note(f"{WORKERS_LOAD} ...", "dim")
        self._progress.begin(WORKERS_LOAD)
        judges = zip(self._run.manifest.judges, self._task.judges, strict=True)
        return partial(_load_on_worker, {record.name: choice for record, choice in judges})

    def _load(self, record: JudgeRecord) -> Judge:
        self._stopper.is_working = self._is_scoring = False
        start = time.perf_counter()
        number = [judge.name for judge in self._run.manifest.judges].index(record.name)
        label = "loading the judge" if len(self._task.judges) == 1 else f"loading {record.name}"
        note(f"{label} ...", "dim")
        self._progress.begin(label)
        judge = self._task.judges[number].load()
        note(f"engine: {judge.engine_report.text}", "dim")
        self._load_seconds += time.perf_counter() - start
        return judge

    def _take(self, sample: Sample, scores: list[Score]) -> None:
        if len(self._first_rows) < FIRST_ROWS:
            self._first_rows.append((sample, scores))
        for tally, score in zip(self._tallies, scores, strict=True):
            tally.add(sample.where, sample.row, score)
