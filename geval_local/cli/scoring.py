"""The run behind ``score``: rows stream through every metric, window by window, into the output."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.cli.calibrated import apply_calibration, calibration_record, check_calibration
from geval_local.cli.console import note, show_progress
from geval_local.cli.gates import Gates
from geval_local.cli.options import JudgeChoice
from geval_local.errors import OutputError
from geval_local.manifest import Manifest, ScoredMetric, file_sha256, manifest_path, read_manifest, write_manifest
from geval_local.metric import Metric
from geval_local.outputs import ResultWriter
from geval_local.samples import Sample, read_samples
from geval_local.score import Estimator, Score
from geval_local.summary import Summary, Tally

if TYPE_CHECKING:
    from geval_local.analysis.calibration import Calibration
    from geval_local.judge import Judge

__all__ = ["Result", "Task", "score_file"]

#: Rows that are shown with their label probabilities.
FIRST_ROWS = 8


@dataclass(frozen=True)
class Task:
    """What a run was asked for; `metric_names` are the metrics' names or files as given, none for a prompt file.

    `calibrations` are by metric.
    """

    file: Path
    metrics: Sequence[Metric]
    metric_names: Sequence[str]
    judge: JudgeChoice
    estimator: Estimator
    output: Path | None
    limit: int | None
    threshold: float | None
    gates: Gates
    calibrations: Mapping[str, Calibration] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes
    ----------
    judge : str
        Name of the judge.
    summaries : list of Summary
        One per metric.
    first_rows : list of (Sample, list of Score)
        The first `FIRST_ROWS` rows with their scores, one per metric, to be shown.
    signatures : list of str
        One per metric.
    failures : list of str
        The gates that were failed.
    rows : int
        Rows of the input.
    load_seconds, seconds : float
        Time of loading, and of scoring and writing.
    """

    judge: str
    summaries: list[Summary]
    first_rows: list[tuple[Sample, list[Score]]]
    signatures: list[str]
    failures: list[str]
    rows: int
    load_seconds: float
    seconds: float


def score_file(task: Task) -> Result:
    """Score a file; the figures are those of `Judge.score_many` to the last bit.

    Raises
    ------
    GevalError
        If the input, the output or the judge cannot be used; input and output are found out before the judge is loaded.
    """
    if task.output is not None and task.output.resolve() == task.file.resolve():
        raise OutputError(f"cannot write {task.output}: it is the input", hint="Name another file.")
    samples = read_samples(task.file, limit=task.limit)
    # The first row shows whether the file holds any; loading a judge for an empty one would be a waste.
    first = list(islice(samples, 1))
    with ExitStack() as stack:
        writer = None
        if task.output is not None:
            names = [metric.name for metric in task.metrics]
            writer = stack.enter_context(ResultWriter.open(task.output, names))
        start = time.perf_counter()
        note("loading the judge ...", "dim")
        judge = task.judge.load()
        note(f"engine: {judge.engine_report.text}", "dim")
        loaded = time.perf_counter()
        metrics = [judge.with_steps(metric) for metric in task.metrics]
        signatures = [str(judge.signature(metric, task.estimator)) for metric in metrics]
        for metric, signature in zip(metrics, signatures, strict=True):
            if metric.name in task.calibrations:
                check_calibration(task.calibrations[metric.name], signature)
        begin = time.perf_counter()
        tallies, first_rows = _score(task, judge, metrics, _chain(first, samples), writer)
        if task.output is not None:
            # From here to the end the results have no manifest rather than another run's.
            manifest_path(task.output).unlink(missing_ok=True)
    summaries = [tally.summary(seed=task.estimator.seed) for tally in tallies]
    if task.output is not None:
        write_manifest(task.output, _manifest(task, judge.name, metrics, signatures, summaries))
    return Result(
        judge=judge.name,
        summaries=summaries,
        first_rows=first_rows,
        signatures=signatures,
        failures=task.gates.failures(summaries),
        rows=summaries[0].rows,
        load_seconds=loaded - start,
        seconds=time.perf_counter() - begin,
    )


def _manifest(
    task: Task, judge: str, metrics: Sequence[Metric], signatures: Sequence[str], summaries: Sequence[Summary]
) -> Manifest:
    earlier = read_manifest(task.file)
    scored = {
        metric.name: ScoredMetric(
            signature,
            metric,
            summary.unscored,
            calibration_record(task.calibrations[metric.name]) if metric.name in task.calibrations else None,
        )
        for metric, signature, summary in zip(metrics, signatures, summaries, strict=True)
    }
    # The results of other metrics in an input that was scored before are kept in the output, so their origin is too.
    return Manifest(
        judge,
        task.file.name,
        file_sha256(task.file),
        summaries[0].rows,
        ({} if earlier is None else earlier.metrics) | scored,
    )


def _chain(first: list[Sample], rest: Iterator[Sample]) -> Iterator[Sample]:
    yield from first
    yield from rest


def _score(
    task: Task, judge: Judge, metrics: list[Metric], samples: Iterator[Sample], writer: ResultWriter | None
) -> tuple[list[Tally], list[tuple[Sample, list[Score]]]]:
    from geval_local.judge import LOW_LABEL_MASS, WINDOW

    first_rows: list[tuple[Sample, list[Score]]] = []
    tallies = [Tally(metric.name, low_mass=LOW_LABEL_MASS) for metric in metrics]
    window = list(islice(samples, WINDOW))
    total = _count(task, len(window), WINDOW) * len(metrics)
    with show_progress(f"scoring {task.file.name}", total) as advance:
        while window:
            columns = [
                list(
                    judge.iter_scores(
                        metric, window, estimator=task.estimator, threshold=task.threshold, advance=advance
                    )
                )
                for metric in metrics
            ]
            for place, sample in enumerate(window):
                scores = [
                    apply_calibration(task.calibrations.get(metric.name), column[place])
                    for metric, column in zip(metrics, columns, strict=True)
                ]
                if len(first_rows) < FIRST_ROWS:
                    first_rows.append((sample, scores))
                for tally, score in zip(tallies, scores, strict=True):
                    tally.add(sample, score)
                if writer is not None:
                    writer.write(sample, {score.metric: score for score in scores})
            window = list(islice(samples, WINDOW))
    return tallies, first_rows


def _count(task: Task, first: int, window: int) -> int:
    """Count the rows for the progress bar; a file of more than one window is read once more for it."""
    if first < window:
        return first
    return sum(1 for _ in read_samples(task.file, limit=task.limit))
