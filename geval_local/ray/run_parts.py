"""A distributed run as its callers see it: the target, the manifest, and the way of a run to its result."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.errors import ConfigurationError, DataError, GevalError, OutputError
from geval_local.fields import lookup
from geval_local.grouping import EVERY_ROW
from geval_local.io.columns import FIGURES, check_chosen, holds_all_input
from geval_local.io.input_checks import ROWS_CHECKED, check_rows
from geval_local.io.places import Place, is_address
from geval_local.io.samples import samples_of
from geval_local.metric import Metric
from geval_local.options import JudgeOptions, RunOptions
from geval_local.ray.blocks import block_rows, find_files
from geval_local.ray.driver import PartsRun, input_of
from geval_local.ray.parts_directory import PartsDirectory
from geval_local.runs.completion import RunResult, add_resume_hint
from geval_local.runs.events import Calibrator, RunEvents
from geval_local.runs.exporter import EXPORT_FORMATS
from geval_local.runs.manifest import JudgeRecord, Manifest
from geval_local.runs.settings import Settings
from geval_local.runs.target import Target, checked_place

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge


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
    """Score files into a directory of parts; `geval_local.runs.run_file.score_file` documents what is taken."""
    target = find_parts_target(output, options.formats)
    wanted = wanted_parts(settings.model_copy(update={"use_cache": False}), files, judges, metrics)
    return _complete(target, wanted, calibrations, events, options.retry_errors, overwrite=options.overwrite)


def resume_parts(
    place: str | os.PathLike[str],
    manifest: Manifest,
    calibrations: Mapping[str, Calibrator],
    events: RunEvents,
    *,
    retry_errors: bool,
) -> RunResult:
    """Continue a distributed run with the settings of its manifest."""
    return _complete(find_parts_target(place), manifest.model_copy(deep=True), calibrations, events, retry_errors)


def read_parts_manifest(address: str) -> Manifest:
    """Read the manifest of a run at an address."""
    manifest = PartsDirectory(address).read()
    if manifest is None:
        raise OutputError(f"there is no run in {address}", hint="`geval-local score FILE ... -o DIR/` begins one.")
    return manifest


def find_parts_target(place: str | os.PathLike[str] | None, formats: Sequence[str] = ()) -> Target:
    """Read where the parts of a distributed run are to go: a directory, by path or address."""
    if place is None:
        raise ConfigurationError("a distributed run needs a directory for its parts", hint="Add `output=runs/NAME/`.")
    text = checked_place(os.fspath(place))
    suffix = Path(text.partition("?")[0].rstrip("/")).suffix.lower().removeprefix(".")
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
) -> Manifest:
    """Return the manifest of a requested run, after checking the first rows; before a judge is loaded."""
    if len(judges) > 1:
        raise ConfigurationError(
            "a distributed run has one judge",
            hint="Score once for every judge, each into a directory of its own; `compare` and `jury` take them all.",
        )
    inputs = [one if is_address(one) else os.path.abspath(one) for one in (os.fspath(path) for path in given)]
    files = find_files(inputs)
    first = files[0]
    rows = list(samples_of(block_rows(replace(first, rows=ROWS_CHECKED)), first.place.name, settings.fields))
    if not rows:
        raise DataError(f"{first.address} holds no rows", hint="Was the file written completely?")
    check_rows(rows, metrics, first.address, settings.fields)
    grouping = None if settings.group_by == EVERY_ROW else settings.group_by
    for field, what in ((grouping, "group"), (settings.gather_by, "gather")):
        if field is not None and not any(lookup(row.fields, field) is not None for row in rows):
            raise DataError(
                f"{first.address}: the field {field!r} to {what} by is missing",
                hint=f"Columns: {', '.join(map(str, rows[0].fields))}.",
            )
    columns = [name for name in settings.columns or () if name not in FIGURES]
    check_chosen(columns, rows, [metric.name for metric in metrics])
    keeps_all = settings.columns is None or holds_all_input(settings.columns)
    update = {
        "inputs": inputs,
        "columns": None if keeps_all else columns,
        "group_by": settings.group_by or settings.gather_by,
    }
    return Manifest.new(input_of(inputs, files), settings.model_copy(update=update), list(judges))


def _complete(
    target: Target,
    wanted: Manifest,
    calibrations: Mapping[str, Calibrator],
    events: RunEvents,
    retry_errors: bool,
    *,
    overwrite: bool = False,
) -> RunResult:
    """Follow a distributed run to its end; an error says how to continue it."""
    assert target.parts is not None
    run = PartsRun(wanted, target.parts, _load_on_worker, calibrations, events)
    try:
        summaries = run.run(retry_errors=retry_errors, overwrite=overwrite)
    except GevalError as error:
        if not run.directory.is_empty():
            add_resume_hint(error, target.parts)
        raise
    prompt_tokens, planned_tokens = map(sum, zip(*run.totals.tokens, strict=True))
    return RunResult(
        summaries=summaries,
        answers=[],
        signatures=[run.manifest.judges[0].signatures[metric.name] for metric in run.metrics],
        files=[Path(target.parts)] if target.directory is not None else [],
        lowest=[[] for _ in summaries],
        rows=run.totals.rows,
        there=run.there,
        load_seconds=0.0,
        steps_seconds=0.0,
        seconds=run.seconds,
        totals={
            "rows": run.totals.rows * len(run.metrics),
            "unscored": sum(summary.unscored for summary in summaries),
            "from_cache": 0,
            "prompt_tokens": prompt_tokens,
            "planned_tokens": planned_tokens,
        },
        precisions=[],
        manifest=run.manifest,
        target=target,
    )


def _load_on_worker(record: JudgeRecord) -> Judge:
    from geval_local.judge.judge import Judge

    return Judge.load(JudgeOptions(**record.choice))
