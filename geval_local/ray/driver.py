"""The driver of a distributed run: it lists files and parts, assigns blocks, and adds up their reports.

No row passes through it. Workers read blocks of the input, score them, and write one part each; the driver receives a
report of a few kilobytes per block. The existing parts are the record of finished blocks, so resuming a run or scoring
a block twice neither loses nor repeats a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.errors import DataError, GevalError, Interrupted, JudgeError, OutputError
from geval_local.io.parts import part_names, remove_parts
from geval_local.io.result_manifest import PARTS_MANIFEST, ScoredMetric, manifest_text, read_manifest
from geval_local.io.result_manifest import Manifest as Description
from geval_local.metric import Metric
from geval_local.ray.blocks import SourceFile, Survey, find_files, is_unchanged
from geval_local.ray.cluster import cluster_share, score_blocks, survey_files
from geval_local.ray.gather import gather_blocks
from geval_local.ray.input_blocks import as_before, changed_files, choose_cut, input_of, limited, rows_in, tasks_of
from geval_local.ray.messages import Job, PartReport, Task, Totals, error_of
from geval_local.ray.own_cluster import connected
from geval_local.ray.parts_directory import PartsDirectory
from geval_local.ray.steps import steps_by_worker
from geval_local.ray.worker import is_whole
from geval_local.runs.events import Calibrator, RunEvents
from geval_local.runs.manifest import JudgeRecord, Manifest, definition, now
from geval_local.runs.run import meet, steps_names
from geval_local.summary import Summary

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

#: Number of footers of parts read in parallel.
_READERS = 16
#: Number of failed blocks that are named.
_NAMED = 5


class PartsRun:
    """A distributed run."""

    def __init__(
        self,
        wanted: Manifest,
        output: str,
        load: Callable[[JudgeRecord], Judge],
        calibrations: Mapping[str, Calibrator],
        events: RunEvents,
    ) -> None:
        self.manifest = wanted
        self.directory = PartsDirectory(output)
        self.load = load
        self.calibrations = calibrations
        self.events = events
        self.metrics = [Metric.model_validate(one) for one in wanted.settings.metrics]
        self.totals = Totals(
            [metric.name for metric in self.metrics], wanted.settings.group_by, wanted.settings.gather_by
        )
        self.seconds = 0.0
        #: Outcomes that an earlier run had finished.
        self.there = 0
        self._several = False
        self._cluster = ExitStack()

    def run(self, *, retry_errors: bool = False, overwrite: bool = False) -> list[Summary]:
        """Score every block that has no part."""
        begin = time.perf_counter()
        with self.directory.held(), self._cluster:
            try:
                surveys = self._open(overwrite=overwrite)
                if self.manifest.settings.gather_by is not None:
                    surveys = self._gathered(surveys, retry_errors=retry_errors)
                self._score(surveys, retry_errors=retry_errors)
                self._finish(surveys)
            except BaseException as error:
                if self.manifest.run and self._is_there() and self.directory.is_empty():
                    self.directory.remove(self.manifest)
                elif isinstance(error, KeyboardInterrupt):
                    local = self.directory.place.local
                    raise Interrupted(local if local is not None else self.directory.place.address) from error
                raise
        self.seconds = time.perf_counter() - begin
        return self.totals.summaries()

    def _is_there(self) -> bool:
        """Whether the directory contains this run."""
        try:
            found = self.directory.read()
        except OutputError:
            return False
        return found is not None and found.run == self.manifest.run

    def _connect(self) -> None:
        """Connect to the cluster until the run ends."""
        self._cluster.enter_context(connected(self.manifest.settings.address, self.manifest.settings.workers))
        self._connect = lambda: None  # type: ignore[method-assign]

    # --- the blocks of the input --------------------------------------------------------------------------------------

    def _open(self, *, overwrite: bool) -> list[Survey]:
        """Start the run, or continue the existing one if nothing has changed; return the surveys."""
        directory, wanted = self.directory, self.manifest
        files = find_files(wanted.settings.inputs)
        on_record = directory.read()
        other: list[str] = []
        if on_record is not None and on_record.has_begun:
            other = on_record.model_copy(update={"input": wanted.input}).differences(wanted)
            if other and not overwrite:
                raise self._refused(other, "replaces that run")
        if on_record is None or not on_record.has_begun or other:
            surveys = self._surveyed(files, {})
            if on_record is not None:
                directory.remove(on_record)
            self._describe(surveys)
            self.manifest.made = {}
            directory.save(self.manifest)
            directory.write_surveys(surveys, self.manifest)
            return surveys
        known = {one.file.address: one for one in directory.surveys(on_record)}
        surveys = self._surveyed(files, known)
        changed = changed_files(list(known.values()), surveys)
        if changed and not overwrite:
            raise self._refused(changed, "replaces the parts of what has changed")
        self.manifest = on_record.model_copy(deep=True, update={"settings": wanted.settings, "ended": None})
        self._describe(surveys)
        if surveys != list(known.values()):
            directory.write_surveys(surveys, self.manifest)
        else:
            directory.save(self.manifest)
        return surveys

    def _refused(self, differences: Sequence[str], remedy: str) -> OutputError:
        return OutputError(
            f"{self.directory.place} holds a run of another configuration: {'; '.join(differences)}",
            hint=f"Restore that configuration, score into another directory, or add `overwrite=True`, which {remedy}.",
        )

    def _describe(self, surveys: Sequence[Survey]) -> None:
        self._several = len(surveys) > 1
        files = [one.file for one in surveys]
        self.manifest.input = input_of(self.manifest.settings.inputs, files, rows_in(surveys))

    def _surveyed(self, files: Sequence[SourceFile], known: Mapping[str, Survey]) -> list[Survey]:
        """Have workers survey the files that are new or may have changed."""
        found: dict[str, Survey] = {}
        for file in files:
            before = known.get(file.address)
            if before is not None and (before.file.bytes, before.file.changed) == (file.bytes, file.changed):
                found[file.address] = before
        new = [file for file in files if file.address not in found]
        limit = self.manifest.settings.limit
        if new:
            self._connect()
            settings, judge = self.manifest.settings, self.manifest.judges[0]
            size = sum(file.bytes for file in files)
            cut = choose_cut(
                settings, judge.choice.get("batch_tokens"), size, lambda: cluster_share(None, judge).workers
            )
            # With --limit, files beyond the limit are not read.
            step = len(new) if limit is None else 1
            for first in range(0, len(new), step):
                if limit is not None and rows_in(found.values()) >= limit:
                    break
                for one in survey_files(new[first : first + step], cut):
                    found[one.file.address] = as_before(one, known)
                    self._stop_if_asked()
        surveys = [found[file.address] for file in files if file.address in found]
        return surveys if limit is None else limited(surveys, limit)

    def _gathered(self, surveys: Sequence[Survey], *, retry_errors: bool) -> list[Survey]:
        """Bring the rows of a document into one block, unless that is done already; list these blocks."""
        settings, directory = self.manifest.settings, self.directory
        there, known = set(part_names(directory.place)), directory.gathered(self.manifest)
        if known and all(
            (task.part in there and not retry_errors) or is_unchanged(task.file)
            for task in tasks_of(known, gathered=True)
        ):
            return known
        self._connect()
        self.events.on_load(None)
        directory.make_buckets()
        tasks = tasks_of(surveys)
        job = replace(self._job(self.manifest.judges[0], self.metrics), output=directory.buckets.address)
        assert settings.gather_by is not None
        found = []
        with closing(gather_blocks(tasks, job, settings.gather_by, len(tasks))) as buckets:
            for one in buckets:
                found.append(one)
                self._stop_if_asked()
        found.sort(key=lambda one: one.file.place.name)
        if rows_in(found) != rows_in(surveys):
            raise OutputError(
                f"gathering kept {rows_in(found)} of {rows_in(surveys)} rows",
                hint="This is a defect: please report it.",
            )
        directory.write_gathered(found, self.manifest)
        return found

    # --- scoring ------------------------------------------------------------------------------------------------------

    def _score(self, surveys: Sequence[Survey], *, retry_errors: bool) -> None:
        """Have workers score the blocks without a part."""
        record = self.manifest.judges[0]
        gathered = self.manifest.settings.gather_by is not None
        tasks = tasks_of(surveys, again=retry_errors, gathered=gathered)
        results, rows = len(self.metrics), sum(task.block.rows for task in tasks)
        remove_parts(self.directory.place, self.manifest.run, {task.part for task in tasks})
        missing = self._missing(tasks, record)
        there = self.totals.rows
        self.there = there * results
        if there:
            self.events.on_resume(there * results, rows * results)
        if not missing:
            return
        self._connect()
        self.events.on_load(None)
        metrics = self._with_steps(record)
        failures: list[tuple[Task, str]] = []
        for alone in (False, True):  # the second pass has only blocks over which workers died
            failures += self._pass(missing, record, metrics, (there, rows), alone=alone)
            if not missing:
                break
        if failures:
            raise _undone(failures, len(tasks))
        if missing:
            raise JudgeError(f"the cluster lost {len(missing)} blocks", hint="Resume the run: it scores them.")

    def _missing(self, tasks: Sequence[Task], record: JudgeRecord) -> dict[str, Task]:
        """Read the reports of existing parts; return the tasks without one."""
        if record.fingerprint is None:
            # Without the judge's identity no part can be checked.
            return {task.part: task for task in tasks}
        job, there = self._job(record, self.metrics), set(part_names(self.directory.place))
        waiting = [task for task in tasks if task.part in there]
        with ThreadPoolExecutor(_READERS) as readers:
            found = dict(
                zip((task.part for task in waiting), readers.map(partial(is_whole, job), waiting), strict=True)
            )
        for report in found.values():
            if report is not None:
                self.totals.add(report)
        return {task.part: task for task in tasks if found.get(task.part) is None}

    def _job(self, record: JudgeRecord, metrics: Sequence[Metric]) -> Job:
        settings = self.manifest.settings
        return Job(
            run=self.manifest.run,
            output=self.directory.place.address,
            judge=record.model_dump(mode="json"),
            metrics=[definition(metric) for metric in metrics],
            estimator=settings.estimator,
            threshold=settings.threshold,
            fields=settings.fields,
            columns=settings.columns,
            window=settings.window,
            group_by=settings.group_by,
            gathered=settings.gather_by is not None,
            several=self._several,
            calibrations=self.calibrations,
        )

    def _pass(
        self,
        missing: dict[str, Task],
        record: JudgeRecord,
        metrics: Sequence[Metric],
        known: tuple[int, int],
        *,
        alone: bool,
    ) -> list[tuple[Task, str]]:
        """Assign all missing blocks once; remove those that are finished or have failed."""
        failures: list[tuple[Task, str]] = []
        results, (there, rows), is_met = len(metrics), known, False
        job = replace(self._job(record, metrics), alone=alone)
        with closing(
            score_blocks(list(missing.values()), self.load, job, self.manifest.settings.workers, alone=alone)
        ) as reports:
            for told in reports:
                task = missing.get(told["part"])
                if task is None:
                    continue  # scored twice, which is one part
                if told.get("killed") and not alone:
                    continue  # over this block, or the one that the worker scored beside it
                if "message" in told:
                    error = error_of(told)
                    if isinstance(error, GevalError) and not isinstance(error, DataError):
                        raise error
                    failures.append((missing.pop(task.part), told["message"]))
                    continue
                report = PartReport.from_record(told)
                if report.judge is not None:
                    self._meet(record, report, metrics)
                del missing[task.part]
                self.totals.add(report)
                if not is_met:
                    self.events.on_score(record.name, rows * results, there * results, self.totals.rows * results)
                    is_met = True
                self.events.on_progress(self.totals.rows * results)
                self._stop_if_asked()
        return failures

    def _stop_if_asked(self) -> None:
        if self.events.should_stop():
            raise Interrupted

    def _meet(self, record: JudgeRecord, report: PartReport, metrics: Sequence[Metric]) -> None:
        """Check that all workers have the same judge; record its identity from the first report."""
        assert report.judge is not None
        is_new = record.fingerprint is None
        meet(record, report.judge)
        if is_new or not record.definitions:
            record.definitions = {metric.name: definition(metric) for metric in metrics}
            self.directory.save(self.manifest)
            self._write_steps(record, metrics)

    def _write_steps(self, record: JudgeRecord, metrics: Sequence[Metric]) -> None:
        names = steps_names(self.manifest)
        local = self.directory.place.local
        for metric in metrics if local is not None else ():
            if metric.steps and local is not None:
                (local / "steps").mkdir(mode=0o700, exist_ok=True)
                self.directory.write(names[record.name, metric.name], metric.to_yaml().encode(), self.manifest)

    def _with_steps(self, record: JudgeRecord) -> list[Metric]:
        """Return the metrics with the steps that this run started with, or new ones."""
        if record.definitions:
            return [
                metric.with_steps(used.steps, used.steps_provenance) if metric.needs_steps else metric
                for metric in self.metrics
                for used in (Metric.model_validate(record.definitions[metric.name]),)
            ]
        if not any(metric.needs_steps for metric in self.metrics):
            return self.metrics
        return steps_by_worker(self.load, record, self.metrics, self.manifest.settings.workers, self.events.on_steps)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, surveys: Sequence[Survey]) -> None:
        """Record that every block has its part, and the counts."""
        self.events.on_write()
        record, manifest, totals = self.manifest.judges[0], self.manifest, self.totals
        expected = rows_in(surveys)
        if totals.rows != expected:
            raise OutputError(
                f"the parts in {self.directory.place} hold {totals.rows} rows, and the input has {expected}",
                hint="This is a defect: please report it.",
            )
        record.complete = True
        manifest.columns = totals.columns
        summaries = totals.summaries()
        manifest.results = {
            metric.name: {
                "signature": record.signatures[metric.name],
                "definition": record.definitions[metric.name],
                "rows": totals.rows,
                "unscored": summary.unscored,
                "prompt_tokens": tokens[0],
                "planned_tokens": tokens[1],
                "reasons": summary.to_dict()["reasons"],
            }
            for metric, summary, tokens in zip(self.metrics, summaries, totals.tokens, strict=True)
        }
        manifest.ended = now()
        earlier = self._earlier()
        scored = {
            metric.name: ScoredMetric(
                record.signatures[metric.name],
                Metric.model_validate(record.definitions[metric.name]),
                summary.unscored,
                self.calibrations[metric.name].record() if metric.name in self.calibrations else None,
            )
            for metric, summary in zip(self.metrics, summaries, strict=True)
        }
        file = manifest.input
        description = Description(
            record.name, file.name, file.sha256, totals.rows, earlier | scored, fields=manifest.settings.fields
        )
        self.directory.write(PARTS_MANIFEST, manifest_text(description).encode(), manifest)
        # What workers that were killed have left half-written, and the buckets, which every part now holds.
        remove_parts(self.directory.place, manifest.run, set(part_names(self.directory.place)))
        self.directory.remove_buckets(manifest.run)

    def _earlier(self) -> dict[str, ScoredMetric]:
        """Return the metrics of an input that was scored before; parts keep these scores."""
        (given, *more) = self.manifest.settings.inputs
        local = SourceFile(given, 0, 0).place.local
        found = None if more or local is None or not local.exists() else read_manifest(Path(local))
        return {} if found is None else found.metrics


def _undone(failures: Sequence[tuple[Task, str]], count: int) -> GevalError:
    """Describe the blocks that could not be scored."""
    lines = [f"{task.where}: {reason}" for task, reason in failures[:_NAMED]]
    if len(failures) > _NAMED:
        lines.append(f"and {len(failures) - _NAMED} more")
    return JudgeError(
        f"{len(failures)} of {count} blocks could not be scored; the others are done\n  " + "\n  ".join(lines),
        hint="Correct or remove these rows. A killed worker has often run out of memory: "
        "smaller `batch_tokens`, or fewer `workers`, may help.",
    )
