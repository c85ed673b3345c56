"""Durable scoring: the rows of a file in, results on disk, resumable. The command line is a thin caller of this.

::

    result = score_file("data.jsonl", ["summarization/coherence"], "nano", "runs/first/")
    result = resume("runs/first/")              # after an interruption, or to apply another threshold

A run checks its input and its output before it loads a judge, commits what is finished unit by unit, and writes the
results when every row has its outcome. `RunEvents` tells a caller what it is doing and asks whether to stop.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from geval_local.errors import ConfigurationError, DataError, GevalError, Interrupted, OutputError
from geval_local.fields import lookup
from geval_local.grouping import EVERY_ROW, Documents
from geval_local.io.checks import check_input
from geval_local.io.columns import check_chosen
from geval_local.io.result_manifest import Manifest as Description
from geval_local.io.result_manifest import ScoredMetric, read_manifest
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.runs.directory import is_run_directory, open_run
from geval_local.runs.events import Calibrator, RunEvents
from geval_local.runs.export import Exporter, clear_away, deliver, describe
from geval_local.runs.files import fingerprint_input
from geval_local.runs.judge_choice import JudgeChoice, labels_of
from geval_local.runs.manifest import JudgeRecord, Manifest, Settings, definition
from geval_local.runs.manifest import read_manifest as read_run_manifest
from geval_local.runs.run import Run
from geval_local.runs.target import Target, find_run, find_target
from geval_local.score import LOW_LABEL_MASS, Estimator, Score
from geval_local.summary import Summary, Tally

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["RunResult", "resume", "score_file"]

#: Rows whose scores are handed out with the result, to be shown.
FIRST_ROWS = 8


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes
    ----------
    summaries : list of Summary
        One per judge and metric.
    signatures : list of str
        One per judge and metric.
    files : list of Path
        The result files; empty if nothing was kept.
    first_rows : list of (Sample, list of Score)
        The first rows with their scores, one per judge and metric.
    rows : int
        Rows of the input.
    load_seconds, seconds : float
        Time of loading, and of scoring and writing.
    totals : dict of str to int
        Over all judges and metrics: outcomes from the cache, tokens of prompts, tokens that went through a model.
    precisions : list of str
        For every judge that was loaded here, in what dtype it ran, why, and how far that moves a score.
    manifest : Manifest
        What was asked for, and what judged it.
    target : Target
        Where results were to go.
    """

    summaries: list[Summary]
    signatures: list[str]
    files: list[Path]
    first_rows: list[tuple[Sample, list[Score]]]
    rows: int
    load_seconds: float
    seconds: float
    totals: dict[str, int]
    precisions: list[str]
    manifest: Manifest
    target: Target

    @property
    def judges(self) -> list[str]:
        """Names of the judges."""
        return [judge.name for judge in self.manifest.judges]


def score_file(
    file: str | os.PathLike[str],
    metrics: Metric | str | Sequence[Metric | str],
    judges: Judge | JudgeChoice | str | Sequence[Judge | JudgeChoice | str | None] | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    formats: Sequence[str] = (),
    estimator: Estimator | None = None,
    threshold: float | None = None,
    limit: int | None = None,
    fields: Mapping[str, str] | None = None,
    columns: Sequence[str] | None = None,
    csv_safe: bool = False,
    window: int | None = None,
    use_cache: bool = True,
    retry_errors: bool = False,
    overwrite: bool = False,
    calibrations: Mapping[Path, tuple[str, Calibrator]] | None = None,
    distributed: Literal["ray"] | None = None,
    workers: int | None = None,
    address: str | None = None,
    metric_names: Sequence[str] = (),
    group_by: str | None = None,
    events: RunEvents | None = None,
) -> RunResult:
    """Score a file; the figures are those of `Judge.score_many`, to the last bit.

    Parameters
    ----------
    file : path
        JSONL, JSON, CSV or Parquet; one sample per row.
    metrics : Metric, str, or sequence of them
        What to rate: metrics, or the names and files that `Metric.load` takes.
    judges : Judge, JudgeChoice, str, None, or sequence of them
        Who rates: loaded judges, judges to be loaded, or their names. None is the default judge.
    output : path, optional
        A .jsonl, .csv or .parquet file; or a directory for the run, new, empty, or that of the same run, which is then
        gone on with. None keeps nothing.
    formats : sequence of str
        What a run directory exports: jsonl (the default), csv, parquet.
    estimator : Estimator, optional
        Exact expectation when absent.
    threshold : float, optional
        The score that passes, on the metrics' scale; overrides the metrics' own.
    limit : int, optional
        Score the first rows only.
    fields : mapping of str to str, optional
        Field of a metric -> the column, or the dotted path into one, that it is read from.
    columns : sequence of str, optional
        Columns of CSV results; see `geval_local.io.writer.ResultWriter.open`.
    csv_safe : bool
        Whether texts in CSV results that a spreadsheet would execute are neutralised.
    window : int, optional
        Rows that are gathered to share their texts; 4096 when absent.
    use_cache : bool
        Whether figures of earlier runs are taken over.
    retry_errors : bool
        Whether rows without a score are scored again.
    overwrite : bool
        Leave to replace a file that is no result of this tool, or a run of another configuration.
    calibrations : mapping of Path to (str, Calibrator), optional
        File of a calibration -> its metric, and the map.
    distributed : {"ray"}, optional
        Spread the run over a Ray cluster, with so many `workers`, at that `address`.
    metric_names : sequence of str
        How the metrics were named by the user, for the record; taken from `metrics` when absent.
    group_by : str, optional
        Field of the document, for the interval of the mean; ``row``: every row is independent. Guessed when absent.
    events : RunEvents, optional
        Is told what the run is doing, and may stop it.

    Returns
    -------
    RunResult

    Raises
    ------
    GevalError
        If the input, the output or a judge cannot be used. Input and output are checked before a judge is loaded.
    Interrupted
        If the run was stopped. Everything finished is kept; `resume` goes on with it.
    """
    from geval_local.judging import scorer

    path = Path(file)
    target = find_target(output, formats)
    chosen_metrics, names = _metrics(metrics)
    choices, loaded = _judges(judges)
    if loaded and distributed is not None:
        raise ConfigurationError(
            "a judge that is loaded here cannot work on a cluster", hint="Give its name; every worker loads its own."
        )
    if target.results is not None and target.results.resolve() == path.resolve():
        raise OutputError(f"cannot write {target.results}: it is the input", hint="Name another file.")
    # What is wrong with the file as a whole is found here, before minutes go into a judge and its steps.
    first = check_input(path, chosen_metrics, limit=limit, mapping=fields or {})
    if group_by not in (None, EVERY_ROW) and not any(lookup(sample.fields, group_by) is not None for sample in first):
        raise DataError(
            f"{path}: the field {group_by!r} to group by is missing", hint=f"Columns: {', '.join(first[0].fields)}."
        )
    check_chosen(columns, first, [metric.name for metric in chosen_metrics])
    settings = Settings(
        window=window or scorer.WINDOW,
        limit=limit,
        estimator=asdict(estimator or Estimator()),
        threshold=threshold,
        use_cache=use_cache and distributed is None,
        formats=list(target.formats),
        output=None if target.output is None else target.output.name,
        metrics=[definition(metric) for metric in chosen_metrics],
        metric_names=list(metric_names or names),
        calibrations=[str(one.resolve()) for one in calibrations or ()],
        distributed=distributed,
        workers=workers,
        address=address,
        fields=dict(fields or {}),
        columns=None if columns is None else list(columns),
        csv_safe=csv_safe,
        group_by=group_by,
    )
    records = [
        JudgeRecord(name=name, choice=choice.record()) for name, choice in zip(labels_of(choices), choices, strict=True)
    ]
    wanted = Manifest.new(fingerprint_input(path), settings, records)
    return _run(
        target,
        wanted,
        dict(calibrations.values()) if calibrations else {},
        {records[place].name: judge for place, judge in loaded.items()},
        events or RunEvents(),
        retry_errors=retry_errors,
        overwrite=overwrite,
    )


def resume(
    run: str | os.PathLike[str],
    *,
    retry_errors: bool = False,
    load_calibration: Callable[[Path], tuple[str, Calibrator]] | None = None,
    events: RunEvents | None = None,
) -> RunResult:
    """Go on with a run where it was interrupted; everything else is as its manifest says.

    The results are byte for byte those of a run that was not interrupted, on the same machine, unless memory ran out:
    then figures agree to rounding.

    Parameters
    ----------
    run : path
        The run directory, or the file that the run was to write.
    retry_errors : bool
        Whether rows without a score are scored again.
    load_calibration : callable, optional
        Reads a calibration file into its metric and its map; needed where the run applies calibrations.
    events : RunEvents, optional
        Is told what the run is doing, and may stop it.

    Raises
    ------
    GevalError
        If there is no run, its manifest was edited, or its input or a judge has changed.
    Interrupted
        If the run was stopped again.
    """
    directory = find_run(run)
    manifest = read_run_manifest(directory)
    assert manifest is not None  # as `find_run` has seen
    settings = manifest.settings
    if settings.calibrations and load_calibration is None:
        raise ConfigurationError(
            f"this run applies calibrations: {', '.join(settings.calibrations)}",
            hint="Give `load_calibration`, or use `geval-local resume`.",
        )
    calibrations: dict[str, Calibrator] = {}
    if load_calibration is not None:
        calibrations = dict(load_calibration(Path(one)) for one in settings.calibrations)
    # A run writes beside its own directory, wherever that may have been moved to.
    output = None if settings.output is None else directory.parent / settings.output
    target = Target(directory, output, tuple(settings.formats))
    return _run(target, None, calibrations, {}, events or RunEvents(), retry_errors=retry_errors, overwrite=False)


def _metrics(given: Metric | str | Sequence[Metric | str]) -> tuple[list[Metric], list[str]]:
    """Load the metrics that are named, and list the names."""
    listed = [given] if isinstance(given, Metric | str) else list(given)
    if not listed:
        raise ConfigurationError("no metric is named", hint="`geval-local metrics list` shows the presets.")
    metrics = [one if isinstance(one, Metric) else Metric.load(one) for one in listed]
    doubled = sorted({metric.name for metric in metrics if [other.name for other in metrics].count(metric.name) > 1})
    if doubled:
        raise ConfigurationError(
            f"two metrics have the same name: {', '.join(doubled)}", hint="Change the `name` of one of them."
        )
    return metrics, [one for one in listed if isinstance(one, str)]


def _judges(given: Any) -> tuple[list[JudgeChoice], dict[int, Judge]]:
    """List the judges as choices, and those that are loaded already by their place."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    choices: list[JudgeChoice] = []
    loaded: dict[int, Judge] = {}
    for place, one in enumerate(listed or [None]):
        if isinstance(one, JudgeChoice):
            choices.append(one)
        elif one is None or isinstance(one, str | os.PathLike):
            choices.append(JudgeChoice(name=None if one is None else os.fspath(one)))
        else:
            loaded[place] = one
            choices.append(JudgeChoice(name=one.name))
    return choices, loaded


def _run(
    target: Target,
    wanted: Manifest | None,
    calibrations: Mapping[str, Calibrator],
    loaded: Mapping[str, Judge],
    events: RunEvents,
    *,
    retry_errors: bool,
    overwrite: bool,
) -> RunResult:
    """Open a run and follow it to its end; an interruption or an error says how to go on with it."""
    directory = target.directory
    began = False
    try:
        with open_run(directory, wanted, retry_errors=retry_errors, overwrite=overwrite) as run:
            began = True
            return _Scoring(run, target, calibrations, loaded, events).result()
    except KeyboardInterrupt as stop:
        if began and directory is not None and is_run_directory(directory):
            raise Interrupted(directory) from stop
        raise
    except GevalError as error:
        if began and directory is not None and is_run_directory(directory):
            command = shlex.join(["geval-local", "resume", str(directory)])
            kept = f"What is finished is kept; go on with:\n  {command}"
            error.hint = kept if error.hint is None else f"{error.hint}\n{kept}"
        raise


def _load_on_worker(choices: Mapping[str, JudgeChoice], record: JudgeRecord) -> Judge:
    return choices[record.name].load()


@dataclass
class _Scoring:
    """One run, followed to its end."""

    run: Run
    target: Target
    calibrations: Mapping[str, Calibrator]
    loaded: Mapping[str, Judge]
    events: RunEvents
    load_seconds: float = 0.0
    there: int = 0
    done: int = 0
    first_rows: list[tuple[Sample, list[Score]]] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.choices = {judge.name: JudgeChoice.from_record(judge.choice) for judge in self.run.manifest.judges}
        self.documents = Documents(self.run.manifest.settings.group_by)
        self.tallies = [Tally(key, low_mass=LOW_LABEL_MASS) for key in self.run.keys]

    def result(self) -> RunResult:
        """Score what is missing, write the results, and sum up."""
        run, begin = self.run, time.perf_counter()
        if self.calibrations and len(run.manifest.judges) > 1:
            raise ConfigurationError("a calibration goes with one judge: the one whose scores it was made from")
        self._check_judges()
        self.there = sum(counts["rows"] for counts in self._totals())
        if self.there:
            self.events.on_resume(self.there, self._expected())
        with Exporter(run) as exporter:
            for sample, raw in run.rows(
                self._loader(),
                advance=self._advance,
                should_stop=self.events.should_stop,
                on_judge=self._begin,
                on_steps=self.events.on_steps,
            ):
                scores = {key: self._calibrated(key, score) for key, score in raw.items()}
                self._count(sample, list(scores.values()))
                exporter.write(sample, scores)
            self.events.on_write()
        totals: dict[str, int] = {}
        for counts in self._totals():
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
        told, grouped = self.documents.told, self.documents.field is not None
        summaries = [tally.summary(told, grouped=grouped) for tally in self.tallies]
        files = deliver(run, exporter.files)
        for file in files:
            describe(run, file, self._description(summaries))
        clear_away(run)
        return RunResult(
            summaries=summaries,
            signatures=[judge.signatures[metric.name] for judge in run.manifest.judges for metric in run.metrics],
            files=files,
            first_rows=self.first_rows,
            rows=summaries[0].rows,
            load_seconds=self.load_seconds,
            seconds=time.perf_counter() - begin - self.load_seconds,
            totals=totals,
            precisions=self.precisions,
            manifest=run.manifest,
            target=self.target,
        )

    def _totals(self) -> list[dict[str, int]]:
        judges, metrics = range(len(self.run.manifest.judges)), range(len(self.run.metrics))
        return [self.run.store.totals(judge, metric) for judge in judges for metric in metrics]

    def _check_judges(self) -> None:
        """Check every judge that is to work, before the first one is loaded.

        Workers of a cluster have their own files. A single judge is checked as it is loaded.
        """
        if self.run.manifest.settings.distributed is not None:
            return
        waiting = [
            self.choices[record.name]
            for record in self.run.manifest.judges
            if not record.complete and record.name not in self.loaded
        ]
        for choice in waiting:
            choice.entry()
        if len(waiting) > 1:
            self.events.on_check()
            for choice in waiting:
                choice.check()

    def _expected(self) -> int | None:
        """How many outcomes there will be, as far as that can be told before the file is read."""
        file, limit = self.run.manifest.input, self.run.manifest.settings.limit
        rows = file.rows
        if rows is None and file.name.lower().endswith((".jsonl", ".ndjson")):
            rows = max(1, file.lines)
        if rows is not None and limit is not None:
            rows = min(rows, limit)
        return None if rows is None else rows * len(self.tallies)

    def _loader(self) -> Callable[[JudgeRecord], Judge]:
        """Say how judges are loaded: here, or, without a word to this process, on the workers of a cluster."""
        if self.run.manifest.settings.distributed is None:
            return self._load
        self.events.on_load(None)
        return partial(_load_on_worker, self.choices)

    def _load(self, record: JudgeRecord) -> Judge:
        start = time.perf_counter()
        self.events.on_load(record.name)
        judge = self.loaded[record.name] if record.name in self.loaded else self.choices[record.name].load()
        self.events.on_loaded(judge)
        whose = "" if len(self.run.manifest.judges) == 1 else f"{record.name}: "
        self.precisions.append(f"{whose}{judge.precision}")
        self.load_seconds += time.perf_counter() - start
        return judge

    def _begin(self, judge: JudgeRecord) -> None:
        """Check what depends on the judge, once it is known what it is, before it is put to work."""
        for name, calibration in self.calibrations.items():
            calibration.check(judge.signatures[name])
        self.events.on_score(judge.name, self._expected(), self.there, self.done)

    def _advance(self, count: int) -> None:
        self.done += count
        self.events.on_progress(self.done)

    def _calibrated(self, key: str, score: Score) -> Score:
        return self.calibrations[key].calibrate(score) if key in self.calibrations else score

    def _count(self, sample: Sample, scores: list[Score]) -> None:
        if len(self.first_rows) < FIRST_ROWS:
            self.first_rows.append((sample, scores))
        # A row that could not be read says nothing of its document, and has no score.
        document = self.documents.add(sample.fields) if sample.error is None else None
        for tally, score in zip(self.tallies, scores, strict=True):
            tally.add(sample.where, sample.row, score, document)

    def _description(self, summaries: list[Summary]) -> Description:
        """Describe the results for the manifest beside them."""
        run = self.run
        file = run.manifest.input
        earlier = read_manifest(Path(file.path))
        unscored = {summary.metric: summary.unscored for summary in summaries}
        scored = {
            key: ScoredMetric(
                judge.signatures[metric.name],
                Metric.model_validate(judge.definitions[metric.name]),
                unscored[key],
                self.calibrations[key].record() if key in self.calibrations else None,
            )
            for key, judge, metric in run.results()
        }
        # Results of other metrics in an input that was scored before are kept in the output, so their origin is too.
        metrics = ({} if earlier is None else earlier.metrics) | scored
        judge, fields = run.manifest.judges[-1].name, run.manifest.settings.fields
        return Description(judge, file.name, file.sha256, summaries[0].rows, metrics, fields=fields)
