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
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import groupby
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
from geval_local.ray.blocks import (
    Block,
    block_samples,
    changed_files,
    choose_cut,
    find_files,
    joined,
    limited,
    named,
    rows_in,
    schema_of,
    single,
    to_lines,
)
from geval_local.ray.cluster import cluster_share, gather_blocks, score_blocks, steps_by_worker, survey_files
from geval_local.ray.connection import connected
from geval_local.ray.job import Counts, Job, PartReport, is_whole
from geval_local.ray.parts_directory import BLOCKS_NAME, PartsDirectory
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
        self._several = False
        self._schema: Any = None
        #: Whether the directory holds this run, and nothing else.
        self._has_begun = False
        self._cluster = ExitStack()

    def run(self, *, retry_errors: bool = False, overwrite: bool = False) -> RunResult:
        """Score every block that has no part; an error says how to continue."""
        begin = time.perf_counter()
        self._retry_errors = retry_errors
        with self.directory.held(), self._cluster:
            try:
                blocks = self._opened(overwrite=overwrite)
                failures = [(block, block.error) for block in blocks if block.error]
                blocks = [block for block in blocks if not block.error]
                self._score(blocks if self.manifest.settings.gather_by is None else self._gathered(blocks), failures)
                self._finish()
            except BaseException as error:
                if not self._has_begun:
                    raise
                if self.directory.is_empty():
                    self.directory.remove(self.manifest)
                elif isinstance(error, GevalError):
                    add_resume_hint(error, self.output)
                elif isinstance(error, KeyboardInterrupt):
                    raise Interrupted(self.output) from error
                raise
        return self._result(time.perf_counter() - begin)

    def _connect(self) -> None:
        """Connect to the cluster until the run ends; does nothing if connected."""
        self._cluster.enter_context(connected(self.manifest.settings.address, self.manifest.settings.workers))

    def _until_stopped(self, items: Generator[_Item, None, None]) -> Iterator[_Item]:
        """Yield what workers return; stop if the caller asks for it."""
        with closing(items):
            for item in items:
                yield item
                if self._events.should_stop():
                    raise Interrupted

    # --- the blocks of the input --------------------------------------------------------------------------------------

    def _opened(self, *, overwrite: bool) -> list[Block]:
        """Start the run, or continue the existing one if nothing has changed; return the blocks of the input."""
        directory, wanted = self.directory, self.manifest
        files = find_files(wanted.settings.inputs)
        before = directory.read()
        begun = before if before is not None and before.has_begun else None
        if begun is not None and (differences := _differences(begun, wanted)):
            self._refuse(differences, overwrite, "replaces that run")
            begun = None
        known = [] if begun is None else directory.blocks(begun)
        blocks = self._surveyed(files, known)
        if begun is not None:
            self._refuse(
                changed_files(single(known), single(blocks)), overwrite, "replaces the parts of what has changed"
            )
            self.manifest = begun.model_copy(deep=True, update={"settings": wanted.settings, "ended": None})
        else:
            if before is not None:
                directory.remove(before)
            self.manifest.made = {}
        described = {block.address: block for block in single(blocks)}.values()
        self._several = len(described) > 1
        self._schema = schema_of(single(blocks))
        self.manifest.input = input_of(wanted.settings.inputs, described, rows_in(blocks))
        directory.save(self.manifest)
        self._has_begun = True
        if blocks != known:
            directory.write(BLOCKS_NAME, to_lines(blocks), self.manifest)
        return blocks

    def _refuse(self, differences: Sequence[str], overwrite: bool, remedy: str) -> None:
        if differences and not overwrite:
            raise OutputError(
                f"{self.directory.place} holds a run of another configuration: {'; '.join(differences)}",
                hint="Restore that configuration, score into another directory, or add `overwrite=True`, which "
                f"{remedy}.",
            )

    def _surveyed(self, files: Sequence[Block], known: Sequence[Block]) -> list[Block]:
        """Have workers survey the files that are new or may have changed; list the blocks with the names of parts."""
        state = attrgetter("address", "bytes", "changed")
        before = {key: list(blocks) for key, blocks in groupby(single(known), state)}
        # Survey failed files again: permissions or a disk may have been repaired.
        before = {key: blocks for key, blocks in before.items() if not blocks[0].error}
        found = {file.address: before[state(file)] for file in files if state(file) in before}
        new = [file for file in files if file.address not in found]
        settings, judge = self.manifest.settings, self.manifest.judges[0]
        surveyed, cut = {file.address for file in new}, None
        while new and (settings.limit is None or sum(map(rows_in, found.values())) < settings.limit):
            self._connect()
            size = sum(file.bytes for file in files)
            cut = choose_cut(settings, size, lambda: cluster_share(None, judge).workers)
            # With a limit, do not read files beyond it.
            step = len(new) if settings.limit is None else 1
            some, new = new[:step], new[step:]
            for blocks in self._until_stopped(survey_files(some, cut)):
                found[blocks[0].address] = blocks
        blocks = named((found[file.address] for file in files if file.address in found), single(known))
        if settings.limit is not None:
            return limited(blocks, settings.limit)
        return joined(blocks, known, surveyed, cut)

    def _gathered(self, blocks: Sequence[Block]) -> list[Block]:
        """Move the rows of a document into one block, unless all rows have been gathered already; list these blocks."""
        found = self.directory.gathered(self.manifest)
        if rows_in(found) != rows_in(blocks) or self._retry_errors:
            self._connect()
            self._events.on_load(None)
            found = list(self._until_stopped(gather_blocks(blocks, self._job(self.metrics))))
        return sorted(found, key=attrgetter("part"))

    # --- scoring ------------------------------------------------------------------------------------------------------

    def _score(self, blocks: Sequence[Block], failures: list[tuple[Block, str]]) -> None:
        """Have workers score the blocks without a part; `failures` are those of the survey."""
        results, rows = len(self.metrics), self.manifest.input.rows or 0
        remove_parts(self.directory.place, self.manifest.run, {block.part for block in blocks})
        missing = self._missing(blocks)
        self.there = self.totals.rows * results
        if self.there:
            self._events.on_resume(self.there, rows * results)
        count = len(blocks) + len(failures)
        if missing:
            self._connect()
            self._events.on_load(None)
            metrics = self._with_steps()
            for alone in (False, True):  # the second pass has only blocks whose workers died
                if missing:
                    failures += self._pass(missing, metrics, alone=alone)
        if failures:
            raise _undone(failures, count)
        if self.totals.rows != rows:
            raise JudgeError(
                f"the parts in {self.directory.place} hold {self.totals.rows} rows, and the input has {rows}",
                hint="Resume the run: it scores what is missing.",
            )

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
                    self.totals.add(counts)
                    del missing[block.part]
        return missing

    def _job(self, metrics: Sequence[Metric], *, alone: bool = False) -> Job:
        settings = self.manifest.settings.model_copy(update={"metrics": list(map(definition, metrics))})
        return Job(
            self.manifest.model_copy(update={"settings": settings}),
            self.directory.place,
            self._calibrations,
            several=self._several,
            again=self._retry_errors,
            alone=alone,
            schema=self._schema,
        )

    def _pass(self, missing: dict[str, Block], metrics: Sequence[Metric], *, alone: bool) -> list[tuple[Block, str]]:
        """Assign all missing blocks once; remove those that are finished or have failed."""
        failures: list[tuple[Block, str]] = []
        results, is_met = len(metrics), False
        for report in self._until_stopped(
            score_blocks(list(missing.values()), self._load, self._job(metrics, alone=alone))
        ):
            if report.part not in missing:
                continue  # scored twice: both wrote the same part
            if report.error is not None and missing[report.part].more:
                self._split(missing, missing[report.part])  # the next pass scores each file by itself
                continue
            if report.error is not None:
                # A worker died, either because of this block or of the other block that it was scoring.
                if alone or not isinstance(report.error, KilledError):
                    failures.append((missing.pop(report.part), report.error.message))
                continue
            assert report.counts is not None
            if report.counts.rows != missing[report.part].all_rows:
                continue  # report of a block that was split in the meantime
            self._meet(report, metrics)
            del missing[report.part]
            self.totals.add(report.counts)
            done = self.totals.rows * results
            if not is_met:
                total = (self.manifest.input.rows or 0) * results
                self._events.on_score(self.manifest.judges[0].name, total, self.there, done)
                is_met = True
            self._events.on_progress(done)
        return failures

    def _split(self, missing: dict[str, Block], block: Block) -> None:
        """Replace a failed block by the blocks of its files, also in the recorded list."""
        del missing[block.part]
        missing.update((one.part, one) for one in block.members)
        blocks = self.directory.blocks(self.manifest)
        blocks = [own for one in blocks for own in (one.members if one.part == block.part else [one])]
        self.directory.write(BLOCKS_NAME, to_lines(blocks), self.manifest)

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
        return steps_by_worker(self._load, record, self.metrics, settings.workers, self._events.on_steps)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Record the counts, and describe the results."""
        self._events.on_write()
        record, manifest, totals = self.manifest.judges[0], self.manifest, self.totals
        record.complete = True
        manifest.columns = totals.columns
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
        )
        self.directory.write(PARTS_MANIFEST, manifest_text(description).encode(), manifest)
        remove_windows(self.directory.place, manifest.run)
        # Remove half-written files of killed workers.
        remove_parts(self.directory.place, manifest.run, set(part_names(self.directory.place)))

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
