"""A distributed run: the entry points, and the driver, which assigns blocks and adds up their reports.

No row passes through the driver. Workers read blocks of the input, score them, and write one part each; the driver
receives a report of a few kilobytes per block. The existing parts are the record of finished blocks, so resuming a run
or scoring a block twice neither loses nor repeats a row.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from geval_local.errors import ConfigurationError, DataError, GevalError, Interrupted, JudgeError, OutputError
from geval_local.io.columns import FIGURES, holds_all_input
from geval_local.io.input_checks import ROWS_CHECKED, check_first_rows, check_rows
from geval_local.io.parts import part_names, remove_parts, remove_windows
from geval_local.io.places import Place, is_address
from geval_local.io.result_manifest import PARTS_MANIFEST, ResultManifest, ScoredMetric, manifest_text, read_manifest
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.options import JudgeOptions, RunOptions
from geval_local.ray.block_list import BlockList, changed_files, kept_blocks, numbered, rows_in, touched_files
from geval_local.ray.blocks import Block, block_samples, find_files, first_schema, kept_schema, schema_hash
from geval_local.ray.cluster import cluster_share, gather_blocks, score_blocks, steps_by_worker, survey_files
from geval_local.ray.connection import connected
from geval_local.ray.job import Counts, Job, PartReport, is_whole
from geval_local.ray.parts_directory import BLOCKS_NAME, PartsDirectory
from geval_local.ray.survey import Cut, choose_cut
from geval_local.ray.worker import KilledError
from geval_local.runs.completion import RunResult, add_resume_hint
from geval_local.runs.events import Calibrator, RunEvents
from geval_local.runs.exporter import EXPORT_FORMATS
from geval_local.runs.input_file import InputFile
from geval_local.runs.manifest import JudgeRecord, RunManifest, definition, now
from geval_local.runs.run import Run, meet
from geval_local.runs.settings import Settings
from geval_local.runs.store import MemoryStore
from geval_local.runs.target import Target, checked_place

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

_Item = TypeVar("_Item")

#: Number of footers of parts read in parallel.
_READERS = 16
#: Least seconds between two writings of the list of blocks, and how many times as long as one takes.
_LIST_SECONDS, _LIST_SHARE = 10.0, 20.0
#: Most failed blocks that an error names.
_NAMED = 20


class PartsRun:
    """A distributed run."""

    def __init__(
        self,
        manifest: RunManifest,
        output: str,
        load: Callable[[JudgeRecord], Judge],
        calibrations: Mapping[str, Calibrator],
        events: RunEvents,
    ) -> None:
        self.manifest = manifest
        self.output = output
        self.directory = PartsDirectory(output)
        self.metrics = [Metric.model_validate(one) for one in manifest.settings.metrics]
        self.totals = Counts.none([metric.name for metric in self.metrics], manifest.settings.group_by)
        for sums, metric in zip(self.totals.sums, self.metrics, strict=True):
            sums.ends = metric.scale.low, metric.scale.high
        #: Number of scores that an earlier run had finished.
        self.there = 0
        self._load = load
        self._calibrations = calibrations
        self._events = events
        self._retry_errors = False
        #: The known blocks of the input, and the blocks to score: the same, unless rows are gathered.
        self._list = self._work = BlockList([])
        self._is_surveyed = False
        #: Number of rows of the input, if it became known during the survey; the total that was reported last.
        self._rows: int | None = None
        self._shown: tuple[int | None] | None = None
        #: Parts that are counted -> hash of the schema that they were written with.
        self._counted: dict[str, str] = {}
        #: Blocks for the next pass, by the names of their parts.
        self._left: dict[str, Block] = {}
        self._schema: Any = None
        #: When the list was written last, and how many seconds that took.
        self._listed, self._listing_seconds = 0.0, 0.0
        #: Whether the directory holds this run, and nothing else.
        self._has_begun = False
        self._cluster = ExitStack()

    def run(self, *, retry_errors: bool = False, overwrite: bool = False) -> RunResult:
        """Score every block that has no part; an error says how to continue."""
        begin = time.perf_counter()
        self._retry_errors = retry_errors
        with self.directory.held(), self._cluster:
            try:
                self._open(overwrite=overwrite)
                self._score()
                self._finish()
            except BaseException as error:
                if not self._has_begun:
                    raise
                if self.directory.is_empty():
                    self.directory.remove(self.manifest)
                    raise
                with suppress(OutputError):
                    self._write_list()
                if isinstance(error, GevalError):
                    add_resume_hint(error, self.output)
                elif isinstance(error, KeyboardInterrupt):
                    raise Interrupted(self.output) from error
                raise
        return self._result(time.perf_counter() - begin)

    def _connect(self) -> None:
        """Connect to the cluster until the run ends; does nothing if connected."""
        self._cluster.enter_context(connected(self.manifest.settings.address, self.manifest.settings.ray_workers))

    def _until_stopped(self, items: Generator[_Item, None, None]) -> Iterator[_Item]:
        """Yield what workers return; stop if the caller asks for it."""
        with closing(items):
            for item in items:
                yield item
                if self._events.should_stop():
                    raise Interrupted

    # --- the blocks of the input --------------------------------------------------------------------------------------

    def _open(self, *, overwrite: bool) -> None:
        """Start the run, or continue the existing one if nothing has changed."""
        directory, wanted = self.directory, self.manifest
        files = find_files(wanted.settings.inputs)
        before = directory.read()
        begun = before if before is not None and before.has_begun else None
        if begun is not None and (differences := _differences(begun, wanted)):
            self._refuse(differences, overwrite, "replaces that run")
            begun = None
        known = [] if begun is None else directory.blocks(begun)
        files = numbered(files, known)
        self._list = BlockList(files)
        hashes = self._hashes(touched_files(files, known))
        if begun is not None:
            changed = changed_files(files, known, hashes, is_whole=wanted.settings.limit is None)
            self._refuse(changed, overwrite, "replaces the parts of what has changed")
            self.manifest = begun.model_copy(deep=True, update={"settings": wanted.settings, "ended": None})
        else:
            self.manifest.made = {}
            if before is not None:
                directory.remove(before)
        self._list = BlockList(files, kept_blocks(files, known, hashes))
        if wanted.settings.limit is not None or wanted.settings.gather_by is not None:
            self._survey()
        self._describe()
        self._has_begun = True

    def _refuse(self, differences: Sequence[str], overwrite: bool, remedy: str) -> None:
        if differences and not overwrite:
            raise OutputError(
                f"{self.directory.place} holds a run of another configuration: {'; '.join(differences)}",
                hint="Restore that configuration, score into another directory, or add `overwrite=True`, which "
                f"{remedy}.",
            )

    def _cut(self) -> Cut:
        settings, judge = self.manifest.settings, self.manifest.judges[0]
        return choose_cut(settings, self._list.files, lambda: cluster_share(None, judge).workers)

    def _hashes(self, files: Sequence[Block]) -> dict[str, str]:
        """Have workers hash files; a file that cannot be read has none."""
        if not files:
            return {}
        self._connect()
        blocks = list(self._until_stopped(survey_files(files, self._cut())))
        return {block.address: block.sha256 for block in blocks if block.sha256 or block.error}

    def _survey(self) -> None:
        """Have workers survey the files before the first one is scored; with a limit, no files beyond it."""
        limit = self.manifest.settings.limit
        while (waiting := self._list.waiting) and (limit is None or self._list.rows < limit):
            self._connect()
            for block in self._until_stopped(survey_files(waiting if limit is None else waiting[:1], self._cut())):
                self._list.note(block)
        if limit is not None:
            self._list = self._list.limited(limit)

    def _describe(self) -> None:
        """Record what is known of the input."""
        listed = self._list
        self._is_surveyed = not listed.waiting
        self._schema = listed.schema(None if self._is_surveyed else first_schema(listed.files, ROWS_CHECKED))
        if self._is_surveyed:
            self.manifest.input = input_of(self.manifest.settings.inputs, listed.described, listed.rows)
        self.directory.save(self.manifest)
        self._write_list()

    def _write_list(self) -> None:
        """Write the list of blocks: what is surveyed and in the list is not surveyed again after an interruption."""
        begin = time.monotonic()
        self.directory.write(BLOCKS_NAME, self._list.to_lines(), self.manifest)
        self._listed = time.monotonic()
        self._listing_seconds = self._listed - begin

    def _gathered(self) -> list[Block]:
        """Move the rows of a document into one block, unless all rows have been gathered already; list these blocks."""
        found, blocks = self.directory.gathered(self.manifest), self._list.blocks
        if rows_in(found) != rows_in(blocks) or self._retry_errors:
            self._connect()
            self._events.on_load(None)
            found = list(self._until_stopped(gather_blocks(blocks, self._job(self.metrics))))
        return sorted(found, key=attrgetter("part"))

    # --- scoring ------------------------------------------------------------------------------------------------------

    def _score(self) -> None:
        """Have workers score the blocks without a part, and survey the files that are not surveyed yet."""
        self._work = self._list if self.manifest.settings.gather_by is None else BlockList([], self._gathered())
        self._tidy(part_names(self.directory.place))
        self._left, waiting = self._missing(self._work.blocks), self._list.waiting
        self.there = self.totals.rows * len(self.metrics)
        if self.there:
            self._events.on_resume(self.there, self._total())
        failures = [(block, block.error) for block in self._list.failed]
        if self._left or waiting:
            self._connect()
            self._events.on_load(None)
            failures += self._passes(waiting, self._with_steps())
        if self._is_surveyed:
            self._tidy(block.part for block in self._work.blocks)
        failures += self._rewritten()
        if failures:
            raise _undone(failures, len(self._work.blocks) + len(self._list.failed))
        if self.totals.rows != self._work.rows or not self._is_surveyed:
            raise JudgeError(
                f"the parts in {self.directory.place} have {self.totals.rows} rows, and the input {self._work.rows}",
                hint="Resume the run: it scores what is missing.",
            )

    def _tidy(self, parts: Iterable[str]) -> None:
        """Remove the run's parts except these, and half-written files and marks of killed workers."""
        remove_parts(self.directory.place, self.manifest.run, set(parts))

    def _total(self) -> int | None:
        """Return the number of scores; None before the survey has ended."""
        rows = self._work.rows if self._is_surveyed else self._rows
        return None if rows is None else rows * len(self.metrics)

    def _missing(self, blocks: Sequence[Block]) -> dict[str, Block]:
        """Add up the existing parts; return the blocks without one, by the names of their parts."""
        missing = {block.part: block for block in blocks}
        if self.manifest.judges[0].fingerprint is None:
            return missing  # without the judge's identity no part can be checked
        waiting = [missing[name] for name in part_names(self.directory.place) if name in missing]
        is_whole_of = partial(is_whole, self._job(self.metrics))
        with ThreadPoolExecutor(_READERS) as readers:
            for block, counts in zip(waiting, readers.map(is_whole_of, waiting), strict=True):
                if counts is not None:
                    self._count(missing.pop(block.part), counts)
        return missing

    def _count(self, block: Block, counts: Counts) -> None:
        self.totals.add(counts)
        self._counted[block.part] = counts.schema

    def _job(self, metrics: Sequence[Metric], *, alone: bool = False) -> Job:
        settings = self.manifest.settings.model_copy(update={"metrics": list(map(definition, metrics))})
        return Job(
            self.manifest.model_copy(update={"settings": settings}),
            self.directory.place,
            self._calibrations,
            several=len(self._list.files) > 1,
            again=self._retry_errors,
            alone=alone,
            schema=self._schema,
            is_surveyed=self._is_surveyed,
        )

    def _passes(self, files: Sequence[Block], metrics: Sequence[Metric]) -> list[tuple[Block, str]]:
        """Have all blocks scored that have no part, and those of the files; return what failed.

        The second pass has only blocks whose workers died, and files that failed next to others in their block.
        """
        failures = self._pass(files, metrics, alone=False)
        if files:
            self._describe()
        return [*failures, *(self._pass([], metrics, alone=True) if self._left else [])]

    def _pass(self, files: Sequence[Block], metrics: Sequence[Metric], *, alone: bool) -> list[tuple[Block, str]]:
        items, self._left, failures = [*self._left.values(), *files], {}, list[tuple[Block, str]]()
        job, known = replace(self._job(metrics, alone=alone), cut=self._cut() if files else None), self._work.rows
        for report in self._until_stopped(score_blocks(items, self._load, job)):
            if reason := self._take(report, metrics, alone=alone):
                failures.append((report.block, reason))
            self._rows = self._rows if report.surveyed is None else known + report.surveyed
            self._show()
            if time.monotonic() > self._listed + max(_LIST_SECONDS, _LIST_SHARE * self._listing_seconds):
                self._write_list()
        return failures

    def _take(self, report: PartReport, metrics: Sequence[Metric], *, alone: bool) -> str:
        """Count what a worker did; return why its block cannot be scored, empty if it can."""
        block = report.block
        if (block.part in self._counted and not block.error) or not self._work.note(block):
            return ""  # scored twice, or of a file that failed or a block that was split in the meantime
        if report.counts is not None:
            self._meet(report, metrics)
            self._count(block, report.counts)
        elif block.more:
            self._left.update((one.part, one) for one in self._work.split(block))
            self._write_list()
        elif isinstance(report.error, KilledError) and not alone:
            # A worker died, either because of this block or of the other block that it was scoring.
            self._left[block.part] = block
        else:
            return block.error or str(report.error and report.error.message)
        return ""

    def _show(self) -> None:
        """Report the progress; begin again when the total is known."""
        done, total = self.totals.rows * len(self.metrics), self._total()
        if done > self.there and self._shown != (total,):
            self._events.on_score(self.manifest.judges[0].name, total, done if self._shown else self.there, done)
            self._shown = (total,)
        self._events.on_progress(done)

    def _rewritten(self) -> list[tuple[Block, str]]:
        """Have workers write parts again that were written before the types of all files were known."""
        final = schema_hash(kept_schema(self._schema, self.manifest.settings.columns))
        odd = [block for block in self._work.blocks if self._counted.get(block.part, final) != final]
        if not odd or not self._is_surveyed:
            return []
        self._connect()
        job = replace(self._job(self._with_steps()), again=False)
        reports = self._until_stopped(score_blocks(odd, self._load, job))
        return [(report.block, report.error.message) for report in reports if report.error is not None]

    def _meet(self, report: PartReport, metrics: Sequence[Metric]) -> None:
        """Check that all workers have the same judge; record its identity and its steps from the first report."""
        if report.judge is None:
            return
        record = self.manifest.judges[0]
        meet(record, report.judge)
        if record.definitions:
            return
        record.definitions = {metric.name: definition(metric) for metric in metrics}
        self.directory.save(self.manifest)
        Run(self.manifest, MemoryStore(), self.directory.local).write_steps(record, metrics)

    def _with_steps(self) -> list[Metric]:
        """Return the metrics with the steps that this run started with, or new ones."""
        record, settings = self.manifest.judges[0], self.manifest.settings
        if record.definitions:
            return [Metric.model_validate(record.definitions[metric.name]) for metric in self.metrics]
        if not any(metric.needs_steps for metric in self.metrics):
            return self.metrics
        return steps_by_worker(self._load, record, self.metrics, settings.ray_workers, self._events.on_steps)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Record the counts, and describe the results."""
        self._events.on_write()
        record, manifest, totals = self.manifest.judges[0], self.manifest, self.totals
        record.complete = True
        types = {field.name: str(field.type) for field in kept_schema(self._schema, manifest.settings.columns) or ()}
        manifest.columns = totals.columns | {name: types[name] for name in totals.columns if name in types}
        manifest.results, manifest.ended = {}, now()
        (given, *more), scored = manifest.settings.inputs, dict[str, ScoredMetric]()
        local = Place(given).local
        if not more and local is not None and (found := read_manifest(local)) is not None:
            scored = dict(found.metrics)  # parts keep scores that the input already has
        for metric, summary, tokens in zip(self.metrics, totals.summaries(None), totals.tokens, strict=True):
            signature, used = record.signatures[metric.name], record.definitions[metric.name]
            manifest.results[metric.name] = {
                "signature": signature,
                "definition": used,
                "rows": totals.rows,
                "unscored": summary.unscored,
                "prompt_tokens": tokens[0],
                "planned_tokens": tokens[1],
                "reasons": summary.to_dict()["reasons"],
            }
            calibration = self._calibrations.get(metric.name)
            applied = None if calibration is None else calibration.record()
            scored[metric.name] = ScoredMetric(signature, Metric.model_validate(used), summary.unscored, applied)
        file = manifest.input
        description = ResultManifest(
            record.name,
            file.name,
            file.sha256,
            totals.rows,
            scored,
            fields=manifest.settings.fields,
            group_by=manifest.settings.group_by,
            documents=totals.documents.recorded,
        )
        self.directory.write(PARTS_MANIFEST, manifest_text(description).encode(), manifest)
        remove_windows(self.directory.place, manifest.run)
        self._tidy(part_names(self.directory.place))

    def _result(self, seconds: float) -> RunResult:
        totals, target = self.totals, find_parts_target(self.output)
        summaries = totals.summaries(self.manifest.settings.gather_by)
        prompt_tokens, planned_tokens = map(sum, zip(*totals.tokens, strict=True))
        return RunResult(
            summaries=summaries,
            answers=[],
            signatures=[self.manifest.judges[0].signatures[metric.name] for metric in self.metrics],
            files=[] if target.directory is None else [Path(self.output)],
            lowest=[[] for _ in summaries],
            rows=totals.rows,
            there=self.there,
            load_seconds=0.0,
            steps_seconds=0.0,
            seconds=seconds,
            totals={
                "rows": totals.rows * len(self.metrics),
                "unscored": sum(summary.unscored for summary in summaries),
                "from_cache": 0,
                "prompt_tokens": prompt_tokens,
                "planned_tokens": planned_tokens,
            },
            precisions=[],
            manifest=self.manifest,
            target=target,
        )


def _differences(before: RunManifest, wanted: RunManifest) -> list[str]:
    """List the differences of another configuration that would change the parts, without the input's content."""
    found = before.model_copy(update={"input": wanted.input}).differences(wanted)
    # A local run applies thresholds to stored scores; parts already contain their effect.
    old, new = ([metric.get("threshold") for metric in run.settings.metrics] for run in (before, wanted))
    return found if found or old == new else [f"the metrics' thresholds were {old}, are {new}"]


def input_of(given: Sequence[str], files: Iterable[Block], rows: int | None = None) -> InputFile:
    """Describe many input files as one, by the hash of their hashes; before the survey, by their sizes."""
    files = list(files)
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.sha256 or file.address} {file.bytes}\n".encode())
    name = given[0] if len(given) == 1 else f"{given[0]} and {len(given) - 1} more"
    return InputFile(
        path=name,
        name=name.rstrip("/").rpartition("/")[2] or name,
        sha256=digest.hexdigest(),
        bytes=sum(file.bytes for file in files),
        lines=0,
        changed=max((file.changed for file in files), default=0),
        rows=rows,
    )


def _undone(failures: Sequence[tuple[Block, str]], count: int) -> GevalError:
    """Describe the blocks that could not be scored."""
    lines = [reason if block.error else f"{block.where}: {reason}" for block, reason in failures[:_NAMED]]
    if len(failures) > _NAMED:
        lines.append(f"and {len(failures) - _NAMED} more")
    return JudgeError(
        f"{len(failures)} of {count} blocks could not be scored; the others are done\n  " + "\n  ".join(lines),
        hint="Correct or remove these files or rows; where a file was read before, add `overwrite=True`. "
        "A killed worker has often run out of memory: smaller `batch_tokens`, or fewer `workers`, may help.",
    )


# --- entry points -----------------------------------------------------------------------------------------------------


def score_parts(
    files: Sequence[str | os.PathLike[str]],
    metrics: Sequence[Metric],
    judges: Sequence[JudgeRecord],
    output: str | os.PathLike[str] | None,
    options: RunOptions,
    settings: Settings,
    calibrations: Mapping[str, Calibrator],
    events: RunEvents,
) -> RunResult:
    """Score files into a directory of parts; `geval_local.runs.run_file.score_file` documents the parameters."""
    place = str(find_parts_target(output, options.formats).parts)
    wanted = wanted_parts(settings.model_copy(update={"use_cache": False}), files, judges, metrics)
    run = PartsRun(wanted, place, _load_on_worker, calibrations, events)
    return run.run(retry_errors=options.retry_errors, overwrite=options.overwrite)


def resume_parts(
    place: str | os.PathLike[str],
    manifest: RunManifest,
    calibrations: Mapping[str, Calibrator],
    events: RunEvents,
    *,
    retry_errors: bool,
) -> RunResult:
    """Continue a distributed run with the settings of its manifest."""
    address = str(find_parts_target(place).parts)
    run = PartsRun(manifest.model_copy(deep=True), address, _load_on_worker, calibrations, events)
    return run.run(retry_errors=retry_errors)


def read_parts_manifest(address: str) -> RunManifest:
    """Read the manifest of a run at an address."""
    manifest = PartsDirectory(address).read()
    if manifest is None:
        raise OutputError(f"there is no run in {address}", hint="`geval-local score FILE ... -o DIR/` begins one.")
    return manifest


def find_parts_target(place: str | os.PathLike[str] | None, formats: Sequence[str] = ()) -> Target:
    """Check the output of a distributed run: a directory, by path or address."""
    if place is None:
        raise ConfigurationError("a distributed run needs a directory for its parts", hint="Add `output=runs/NAME/`.")
    text = checked_place(os.fspath(place))
    suffix = Path(Place(text).name).suffix.lower().removeprefix(".")
    if formats or (suffix in EXPORT_FORMATS and not text.endswith("/")):
        raise ConfigurationError(
            "a distributed run writes a directory of Parquet parts: one file would have to pass one machine",
            hint=f"Add `output=runs/NAME/`, and merge the parts afterwards: geval-local merge runs/NAME -o scores."
            f"{(formats[0] if formats else suffix)}",
        )
    return Target(Place(text).local, None, ("parquet",), parts=text)


def wanted_parts(
    settings: Settings,
    given: Sequence[str | os.PathLike[str]],
    judges: Sequence[JudgeRecord],
    metrics: Sequence[Metric],
) -> RunManifest:
    """Return the manifest of a requested run, after checking the first rows; before a judge is loaded."""
    if len(judges) > 1:
        raise ConfigurationError(
            "a distributed run has one judge",
            hint="Score once for every judge, each into a directory of its own; `compare` and `jury` take them all.",
        )
    inputs = [one if is_address(one) else os.path.abspath(one) for one in (os.fspath(path) for path in given)]
    files = find_files(inputs)
    first, rows = _first_rows(files, settings.model_copy(update={"columns": None}))
    check_rows(rows, metrics, first.address, settings.fields)
    columns = [name for name in settings.columns or () if name not in FIGURES]
    check_first_rows(rows, first.address, metrics, settings.model_copy(update={"columns": columns}))
    keeps_all = settings.columns is None or holds_all_input(settings.columns)
    update = {
        "inputs": inputs,
        "columns": None if keeps_all else columns,
        "group_by": settings.group_by or settings.gather_by,
    }
    return RunManifest.new(input_of(inputs, files), settings.model_copy(update=update), list(judges))


def _first_rows(files: Sequence[Block], settings: Settings) -> tuple[Block, list[Sample]]:
    """Read the first rows of the first readable file; if there is none, raise the error of the first file."""
    errors: list[DataError] = []
    for file in files:
        try:
            rows = list(block_samples(replace(file, rows=ROWS_CHECKED), settings))
            if rows:
                return file, rows
            errors.append(DataError(f"{file.address} holds no rows", hint="Was the file written completely?"))
        except DataError as error:
            errors.append(error)
    raise errors[0]


def _load_on_worker(record: JudgeRecord) -> Judge:
    from geval_local.judge.judge import Judge

    return Judge.load(JudgeOptions(**record.choice))
