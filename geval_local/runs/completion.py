"""The way of a run to its end: judges are loaded, what is missing is computed, results are written and summed up."""

from __future__ import annotations

import heapq
import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from geval_local.errors import ConfigurationError, DataError, ErrorCode, GevalError, Interrupted, OutputError, ReadError
from geval_local.grouping import DocumentRule, Documents
from geval_local.io.places import File, file_at
from geval_local.io.result_manifest import AskedQuestion, ResultManifest, ScoredMetric, document_rule, read_manifest
from geval_local.io.rows import read_rows, rows_and_failure
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.models.registry import entry_of
from geval_local.notebook import figure, table_html
from geval_local.options import JudgeOptions
from geval_local.runs.addresses import upload
from geval_local.runs.directory import open_run
from geval_local.runs.events import Calibrator, RunEvents
from geval_local.runs.exporter import Exporter, clear_away, deliver, describe
from geval_local.runs.forms import Result
from geval_local.runs.input_file import check_unchanged
from geval_local.runs.manifest import JudgeRecord, RunManifest, is_run_directory
from geval_local.runs.reasons import reason_record
from geval_local.runs.run import Run
from geval_local.runs.target import Target
from geval_local.score import Score
from geval_local.slices import Slicing, find_slicings
from geval_local.summary import QuestionSummary, Summary, Tally

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

logger = logging.getLogger("geval_local")
#: Tables up to this size are counted first, in about a second; of larger ones progress has no total.
COUNTED_BYTES = 1 << 27
#: Rows of a metric that are handed out with the result, to be shown.
LOWEST_KEPT = 100


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes
    ----------
    summaries : list of Summary
        One per judge and metric; empty where questions were asked.
    answers : list of QuestionSummary
        One per judge and question; empty where metrics were scored.
    signatures : list of str
        One per judge and metric, or question.
    files : list of Path or Place
        The result files, by path or address; empty if nothing was kept.
    lowest : list of list of (Sample, Score)
        The rows with the worst scores, worst first, at most `LOWEST_KEPT` per judge and metric: the lowest scores, or
        the highest of a metric whose low scores are good.
    rows, there : int
        Rows of the input, and outcomes that an earlier run had finished.
    load_seconds, steps_seconds, seconds : float
        Time of loading, of writing evaluation steps, and of scoring and writing results.
    totals : dict of str to int
        Over all judges and metrics: outcomes from the cache, tokens of prompts, tokens that went through a model.
    precisions : list of str
        For every judge that was loaded here, in what dtype it ran, why, and how far that moves a score.
    manifest : RunManifest
        What was asked for, and what judged it.
    target : Target
        Where results were to go.
    unreadable : list of str
        Files of several that could not be read, or not to their end, and why.
    rule : DocumentRule
        What decided which rows are one document.
    slicings : list of Slicing
        How columns cut the rows, where slices were asked for; their figures are in the summaries.
    """

    summaries: list[Summary]
    answers: list[QuestionSummary]
    signatures: list[str]
    files: list[File]
    lowest: list[list[tuple[Sample, Score]]]
    rows: int
    there: int
    load_seconds: float
    steps_seconds: float
    seconds: float
    totals: dict[str, int]
    precisions: list[str]
    manifest: RunManifest
    target: Target
    unreadable: list[str] = field(default_factory=list)
    rule: DocumentRule = field(default_factory=DocumentRule)
    slicings: list[Slicing] = field(default_factory=list)

    @property
    def judges(self) -> list[str]:
        """Names of the judges."""
        return [judge.name for judge in self.manifest.judges]

    def __repr__(self) -> str:
        named = ", ".join([one.metric for one in self.summaries] + [one.name for one in self.answers])
        return f"RunResult({named}: {self.rows} rows, {self.target.results or 'nothing kept'})"

    def _repr_html_(self) -> str:
        """Show the means, or the answers, in a notebook."""
        title = str(self.target.results or "a run whose rows were not kept")
        if self.answers:
            answers = [(one.name, f"{one.answered}/{one.rows}", figure(one.label_mass)) for one in self.answers]
            return table_html(title, ("question", "answered", "label mass"), answers)
        rows = [
            (
                *(one.metric, f"{one.scored}/{one.rows}", one.doubt or figure(one.mean)),
                *(f"{figure(one.low, 2)} to {figure(one.high, 2)}", figure(one.label_mass)),
            )
            for one in self.summaries
        ]
        return table_html(title, ("metric", "scored", "mean", "95 % interval", "label mass"), rows)


def complete(
    target: Target,
    wanted: RunManifest | None,
    calibrations: Mapping[str, Calibrator],
    loaded: Mapping[str, Judge],
    events: RunEvents,
    *,
    load: Callable[[JudgeOptions], Judge] | None = None,
    fill: Callable[[Run], object] | None = None,
    spread: Callable[[Completion], object] | None = None,
    retry_errors: bool,
    overwrite: bool,
) -> RunResult:
    """Open a run and follow it to its end; an interruption or an error says how to continue with it.

    `fill` brings outcomes into the run before anything else is done; `spread` has workers compute them.
    """
    directory = target.directory
    began = is_lost = False
    if target.address is not None:
        logger.info("the store of this run is in %s; its results go to %s at the end", directory, target.address)
    try:
        with open_run(directory, wanted, retry_errors=retry_errors, overwrite=overwrite) as run:
            if fill is not None:
                fill(run)
            began = True
            try:
                return Completion(run, target, calibrations, loaded, load, events, spread).result()
            except GevalError:
                # Before the run is closed: an empty one is removed then.
                is_lost = directory is not None and not directory.is_dir()
                raise
    except KeyboardInterrupt as stop:
        if began and directory is not None and is_run_directory(directory):
            raise Interrupted(target.address or directory) from stop
        raise
    except GevalError as error:
        if began and directory is not None:
            if is_lost:  # whatever failed first, failed for this
                raise OutputError(
                    f"{directory} was deleted or moved while its run was going on ({error.message})",
                    hint="What was moved goes on where it is now, by `geval-local resume DIR`; what was deleted has to "
                    "be scored again: figures already computed come from the cache where that is in use.",
                ) from error
            if is_run_directory(directory) and _may_go_on(error, run.manifest):
                command = shlex.join(["geval-local", "resume", str(target.address or directory)])
                kept = f"What is finished is kept; go on with:\n  {command}"
                error.hint = kept if error.hint is None else f"{error.hint}\n{kept}"
        raise
    finally:
        if target.address is not None and directory is not None:
            with suppress(OSError):
                directory.parent.rmdir()  # stays if the run does


def _may_go_on(error: GevalError, manifest: RunManifest) -> bool:
    """Whether a run may go on after an error: not where it is the content of the input, which would be another one."""
    if not isinstance(error, DataError) or isinstance(error, ReadError):
        return True
    try:
        check_unchanged(manifest.input)
    except DataError:  # it may be put back
        return True
    return False


@dataclass
class Completion:
    """One run, followed to its end."""

    run: Run
    target: Target
    calibrations: Mapping[str, Calibrator]
    loaded: Mapping[str, Judge]
    load: Callable[[JudgeOptions], Judge] | None
    events: RunEvents
    spread: Callable[[Completion], object] | None = None
    load_seconds: float = 0.0
    there: int = 0
    done: int = 0
    steps_seconds: float = 0.0
    loaded_at: float | None = None
    is_scoring: bool = False
    is_writing: bool = False
    #: The judge at work, if this run has loaded it.
    own: Judge | None = None
    precisions: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.choices = {judge.name: JudgeOptions(**judge.choice) for judge in self.run.manifest.judges}
        settings, file = self.run.manifest.settings, self.run.manifest.input
        self.rule = documents = settings.documents
        # Results of other metrics in an input that was scored before are kept in the output, as is what they know.
        self.earlier = None if settings.reasons is not None else read_manifest(file_at(file.path))
        if self.earlier is not None and self.earlier.metrics and settings.pairs is None:
            known = [*(one.definition for one in self.earlier.metrics.values()), *self.run.metrics]
            metrics = [tuple(one.fields) for one in known]
            documents = replace(document_rule(self.earlier, settings.group_by, settings.fields, metrics), used=None)
        self.documents = Documents(documents)
        self.rows = 0
        tallies = {key: self.run.asked.tally(key, place) for key, _, place in self.run.results()}
        self.tallies = {key: tally for key, tally in tallies.items() if tally is not None}
        self.unreadable: list[str] = []
        self.slicings: list[Slicing] = []
        #: Heaps of the worst rows: how bad the score is, and the negative place, so that the first of equals stays.
        self.lowest: dict[str, list[tuple[float, int, Sample, Score]]] = {
            key: [] for key, tally in self.tallies.items() if isinstance(tally, Tally)
        }

    def result(self) -> RunResult:
        """Compute what is missing, write the results, and sum up."""
        run, begin = self.run, time.perf_counter()
        if self.calibrations and len(run.manifest.judges) > 1:
            raise ConfigurationError("a calibration goes with one judge: the one whose scores it was made from")
        self._check_judges()
        self._slice()
        self.there = sum(counts["rows"] for counts in self._totals())
        if self.there:
            self.tell_of_resuming()
        if self.spread is not None:
            self.spread(self)
        with Exporter(run) as exporter:
            for sample, raw in run.rows(
                self._load,
                advance=self._advance,
                should_stop=self.events.should_stop,
                on_judge=self.begin,
                on_steps=self.events.on_steps,
                on_write=self.write,
                close=self._close,
            ):
                results = {
                    key: self.calibrations[key].calibrate(result)
                    if key in self.calibrations and isinstance(result, Score)
                    else result
                    for key, result in raw.items()
                }
                self._count(sample, results)
                exporter.write(sample, results)
            self.write()
        counts = self._totals()
        summaries = {key: tally.summary(self.documents) for key, tally in self.tallies.items()}
        # First: the description of the input may be that of a result which now is replaced.
        description = self._description(summaries)
        files = deliver(run, exporter.files)
        for file in files:
            describe(run, file, description)
        places: list[File] = [*files]
        if run.manifest.settings.address is not None:
            places = [*upload(run, files)]
        clear_away(run)
        return RunResult(
            summaries=[one for one in summaries.values() if isinstance(one, Summary)],
            answers=[one for one in summaries.values() if isinstance(one, QuestionSummary)],
            signatures=list(self._signatures()),
            files=places,
            lowest=[
                [(sample, score) for *_, sample, score in sorted(heap, reverse=True)] for heap in self.lowest.values()
            ],
            rows=self.rows,
            there=self.there,
            load_seconds=self.load_seconds,
            steps_seconds=self.steps_seconds,
            seconds=time.perf_counter() - begin - self.load_seconds - self.steps_seconds,
            totals={name: sum(one[name] for one in counts) for name in counts[0]},
            precisions=self.precisions,
            manifest=run.manifest,
            target=self.target,
            unreadable=self.unreadable,
            rule=replace(self.rule, used=self.documents.counts.used),
            slicings=self.slicings,
        )

    def _slice(self) -> None:
        """Read the input once to find its slices, before a judge is loaded."""
        settings = self.run.manifest.settings
        if not settings.by:
            return
        rows = (sample.fields for sample in self.run.samples())
        self.slicings = find_slicings(rows, settings.by, self.rule)
        for tally in self.tallies.values():
            if isinstance(tally, Tally):
                tally.cut(self.slicings)

    def _totals(self) -> list[dict[str, int]]:
        judges, metrics = range(len(self.run.manifest.judges)), range(len(self.run.metrics))
        return [self.run.store.totals(judge, metric) for judge in judges for metric in metrics]

    def _check_judges(self) -> None:
        """Check every judge that is to work before the first is loaded; a single judge is checked while it loads."""
        waiting = [
            self.choices[record.name]
            for record in self.run.manifest.judges
            if not record.complete and record.name not in self.loaded
        ]
        for choice in waiting:
            entry_of(choice)
        if len(waiting) > 1:
            from geval_local.engine.open import check_backend

            self.events.on_check()
            for choice in waiting:
                check_backend(choice)

    def _expected(self) -> int | None:
        """How many outcomes there will be, as far as that can be told before the file is read."""
        file, settings = self.run.manifest.input, self.run.manifest.settings
        rows, limit = file.rows, settings.limit
        if settings.pairs is not None or settings.system_columns or settings.turns:
            limit = None  # a row of the file is not one of the run
        elif settings.chosen:
            rows = len(settings.chosen)
        elif rows is None and all(path.name.lower().endswith((".jsonl", ".ndjson")) for path in file.paths):
            rows = max(1, file.lines)
        elif rows is None and file.share is None and file.bytes <= COUNTED_BYTES:
            rows = sum(1 for path in file.paths for _ in rows_and_failure(read_rows(path, **settings.reading)))
        if rows is not None and limit is not None:
            rows = min(rows, limit)
        judges = range(len(self.run.manifest.judges))
        return None if rows is None else rows * sum(sum(self.run.outcomes(judge)) for judge in judges)

    def _load(self, record: JudgeRecord) -> Judge:
        start = time.perf_counter()
        self.is_scoring = False
        self.events.on_load(record.name)
        judge = self._find(record)
        self.loaded_at = time.perf_counter()
        self.load_seconds += self.loaded_at - start
        return judge

    def _find(self, record: JudgeRecord) -> Judge:
        """Load a judge, or one whose weights wait for the first row that is not in the cache."""
        if record.name in self.loaded:
            return self._read(record, lambda: self.loaded[record.name])
        choice, load = self.choices[record.name], self.load
        if load is not None:
            return self._read(record, lambda: load(choice))
        from geval_local.judge.judge import Judge

        read = partial(self._read, record)
        is_lazy = self.run.manifest.settings.use_cache
        self.own = Judge.load(choice, on_read=read) if is_lazy else read(lambda: Judge.load(choice))
        return self.own

    def _close(self, judge: Judge) -> None:
        """Give back the memory of a judge that this run has loaded."""
        if judge is self.own:
            judge.close()
            self.own = None

    def _read(self, record: JudgeRecord, load: Callable[[], Judge]) -> Judge:
        start = time.perf_counter()
        if self.is_scoring:
            self.events.on_load(record.name)
        judge = load()
        self.events.on_loaded(judge)
        self._note_precision(record, judge.precision)
        if self.is_scoring:
            self.load_seconds += time.perf_counter() - start
            self._score(record)
        return judge

    def tell_of_resuming(self) -> None:
        """Tell how much an earlier run had finished."""
        self.events.on_resume(self.there, self._expected())

    def begin(self, judge: JudgeRecord, precision: str | None = None) -> None:
        """Check what depends on the judge, once it is known what it is, before it is put to work.

        The precision is that of a judge which workers have loaded.
        """
        if precision is not None:
            self._note_precision(judge, precision)
        for name, calibration in self.calibrations.items():
            calibration.check(judge.signatures[name])
        if self.loaded_at is not None:  # steps are written between loading and scoring
            self.steps_seconds += time.perf_counter() - self.loaded_at
            self.loaded_at = None
        self.is_scoring = True
        self._score(judge)

    def _note_precision(self, record: JudgeRecord, precision: object) -> None:
        whose = "" if len(self.run.manifest.judges) == 1 else f"{record.name}: "
        self.precisions.append(f"{whose}{precision}")

    def _score(self, judge: JudgeRecord) -> None:
        if not self.is_writing:
            self.events.on_score(judge.name, self._expected(), self.there, self.done)

    def write(self) -> None:
        """Tell once that nothing is computed any more."""
        if not self.is_writing:
            self.is_writing = True
            self.events.on_write()

    def _advance(self, count: int) -> None:
        if not self.is_writing:
            self.reach(self.done + count)

    def reach(self, done: int) -> None:
        """Tell how many outcomes are finished."""
        self.done = done
        self.events.on_progress(done)

    def _count(self, sample: Sample, results: Mapping[str, Result]) -> None:
        self.rows += 1
        if sample.error is not None and sample.error.code is ErrorCode.UNREADABLE_FILE:
            self.unreadable.append(sample.error)
        # A row that could not be read says nothing of its document, and has no score.
        place = self.documents.add(sample.fields) if sample.error is None else 0
        slices = {one.column: one.slice_of(sample.fields, self.rule) for one in self.slicings}
        for key, tally in self.tallies.items():
            result = results[key]
            tally.add(sample.where, sample.row, result, place, slices)
            if isinstance(result, Score) and result.is_scored:
                heap = self.lowest[key]
                entry = (-result.direction.sign * result.value, -self.rows, sample, result)
                (heapq.heappush if len(heap) < LOWEST_KEPT else heapq.heappushpop)(heap, entry)

    def _signatures(self) -> Iterator[str]:
        for _, judge, place in self.run.results():
            signature = self.run.asked.signature(place, judge.signatures)
            assert signature is not None  # every judge has been met
            yield signature

    def _description(self, summaries: Mapping[str, Summary | QuestionSummary]) -> ResultManifest:
        """Describe the results for the manifest next to them."""
        run, settings = self.run, self.run.manifest.settings
        file = run.manifest.input
        if settings.reasons is not None:
            (judge,) = run.manifest.judges
            asked = reason_record(settings, judge.choice)
            return ResultManifest(judge.name, file.name, file.sha256, self.rows, fields=settings.fields, reasons=asked)
        metrics = {} if self.earlier is None else dict(self.earlier.metrics)
        questions = {} if self.earlier is None else dict(self.earlier.questions)
        for (key, judge, place), signature in zip(run.results(), self._signatures(), strict=True):
            unscored = summaries[key].unscored
            if settings.questions is not None:
                questions[key] = AskedQuestion(signature, settings.questions.asked[place], unscored)
                continue
            metrics[key] = ScoredMetric(
                signature,
                Metric.model_validate(judge.definitions[run.metrics[place].name]),
                unscored,
                self.calibrations[key].record() if key in self.calibrations else None,
            )
        fields = settings.fields if settings.questions is None else settings.questions.state
        if self.earlier is not None and self.earlier.metrics and settings.questions is None:  # its scores are of these
            fields = {**self.earlier.fields, **fields}
        return ResultManifest(
            run.manifest.judges[-1].name,
            file.name,
            file.sha256,
            self.rows,
            metrics,
            fields=fields,
            group_by=None if settings.pairs is not None else self.documents.counts.given,
            documents=self.documents.counts.used,
            by=tuple(settings.by),
            questions=questions,
        )
