"""Durable scoring: rows of a file in, results on disk, resumable. The command line is a thin caller of this module.

::

    result = score_file("data.jsonl", ["summarization/coherence"], "nano", "runs/first/")
    result = resume("runs/first/")              # after an interruption, or to apply another threshold

A run checks its input and output before it loads a judge, commits finished units, and writes the
results when every row has its outcome. `RunEvents` reports progress to the caller and lets it stop the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import lookup
from geval_local.grouping import EVERY_ROW
from geval_local.io.checks import ROWS_CHECKED, check_input, check_rows, load_metrics
from geval_local.io.columns import check_chosen
from geval_local.io.pairs import PairPlan, pair_samples
from geval_local.io.samples import Sample, read_samples
from geval_local.judging.windows import full_window
from geval_local.metric import Metric
from geval_local.questions.pair import compared_field, pair_metric
from geval_local.runs.completion import RunResult, complete, complete_parts
from geval_local.runs.events import Calibrator, RunEvents
from geval_local.runs.files import fingerprint_input
from geval_local.runs.judge_choice import JudgeChoice, choices_of, labels_of
from geval_local.runs.manifest import JudgeRecord, Manifest, definition
from geval_local.runs.ray.input_blocks import wanted_parts
from geval_local.runs.settings import EvaluationRecord, Settings
from geval_local.runs.target import Target, find_manifest, find_parts_target, find_run, find_target
from geval_local.score import Estimator

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["RunResult", "check_file", "resume", "score_file"]


def score_file(
    file: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
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
    gather_by: str | None = None,
    metric_names: Sequence[str] = (),
    group_by: str | None = None,
    pairs: PairPlan | None = None,
    evaluation: EvaluationRecord | None = None,
    load: Callable[[JudgeChoice], Judge] = lambda choice: choice.load(),
    events: RunEvents | None = None,
) -> RunResult:
    """Score a file; the figures are bit-identical to those of `Judge.score_many`.

    Parameters
    ----------
    file : path, or sequence of path
        JSONL, JSON, CSV or Parquet; one sample per row. A distributed run takes several, and directories, patterns and
        addresses.
    metrics : Metric, str, or sequence of them
        The metrics, or their names or files as for `Metric.load`.
    judges : Judge, JudgeChoice, str, None, or sequence of them
        The judges: loaded ones, ones to load, or their names. None is the default judge.
    output : path, optional
        A .jsonl, .csv or .parquet file; or a directory for the run: new, empty, or of the same run, which is then
        continued. None keeps nothing. A distributed run needs a directory, by path or address, for its parts.
    formats : sequence of str
        Export formats of a run directory: jsonl (the default), csv, parquet.
    estimator : Estimator, optional
        Exact expectation when absent.
    threshold : float, optional
        The score that passes, on the metrics' scale; overrides the metrics' own.
    limit : int, optional
        Number of rows to score; all when absent.
    fields : mapping of str to str, optional
        Field of a metric -> the column, or the dotted path into one, that it is read from.
    columns : sequence of str, optional
        Columns of CSV results; see `geval_local.io.writer.ResultWriter.open`. In a distributed run, the input columns
        that its parts keep.
    csv_safe : bool
        Whether texts in CSV results that a spreadsheet would execute are neutralised.
    window : int, optional
        Rows that are planned together to share their texts; 4096 when absent. If given, blocks of a distributed run
        have as many rows.
    use_cache : bool
        Whether figures of earlier runs are reused.
    retry_errors : bool
        Whether rows without a score are scored again.
    overwrite : bool
        Whether to replace a file that this tool did not write, or a run with another configuration.
    calibrations : mapping of Path to (str, Calibrator), optional
        File of a calibration -> its metric, and the map.
    distributed : {"ray"}, optional
        Distribute the run over a Ray cluster with `workers` workers, at `address`.
    gather_by : str, optional
        Field whose rows a distributed run brings into one block first, so that they share their text.
    metric_names : sequence of str
        The user's names of the metrics, for the record; taken from `metrics` when absent.
    group_by : str, optional
        Field of the document, for the interval of the mean; ``row``: every row is independent. Guessed when absent.
    pairs : PairPlan, optional
        Judge pairs of the file's rows on the metrics, which are asked as `geval_local.questions.pair.pair_metric` says:
        the score is the preference for the first of the two.
    evaluation : EvaluationRecord, optional
        The file of an evaluation that this run is part of, for the record.
    load : callable
        Loads a judge that is not loaded yet; runs that ask the same judge may keep it.
    events : RunEvents, optional
        Receives the progress of the run, and may stop it.

    Returns
    -------
    RunResult

    Raises
    ------
    GevalError
        If the input, the output or a judge cannot be used. Input and output are checked before a judge is loaded.
    Interrupted
        If the run was stopped. Everything finished is kept; `resume` continues it.
    """
    given = [file] if isinstance(file, str | os.PathLike) else list(file)
    chosen_metrics = load_metrics(metrics)
    names = [one for one in ([metrics] if isinstance(metrics, Metric | str) else metrics) if isinstance(one, str)]
    choices, loaded = choices_of(judges)
    records = [
        JudgeRecord(name=name, choice=choice.record()) for name, choice in zip(labels_of(choices), choices, strict=True)
    ]
    settings = Settings(
        window=full_window(window),
        limit=limit,
        estimator=asdict(estimator or Estimator()),
        threshold=threshold,
        use_cache=use_cache and distributed is None,
        formats=list(formats) or ["jsonl"],
        metrics=[definition(metric) for metric in chosen_metrics],
        metric_names=list(metric_names or names),
        calibrations=[str(one.resolve()) for one in calibrations or ()],
        distributed=distributed,
        workers=workers,
        address=address,
        block_rows=None if distributed is None else window,
        gather_by=gather_by,
        fields=dict(fields or {}),
        columns=None if columns is None else list(columns),
        csv_safe=csv_safe,
        group_by=group_by,
        pairs=pairs,
        evaluation=evaluation,
    )
    maps = dict(calibrations.values()) if calibrations else {}
    if distributed is not None:
        if pairs is not None:
            raise ConfigurationError(
                "pairs are judged on one machine: the two rows of a pair may lie in different blocks",
                hint="Leave --distributed out.",
            )
        target = find_parts_target(output, formats)
        if loaded:
            raise ConfigurationError(
                "a judge that is loaded here cannot work on a cluster",
                hint="Give its name; every worker loads its own.",
            )
        wanted = wanted_parts(settings, given, records, chosen_metrics)
        return complete_parts(
            target, wanted, maps, events or RunEvents(), retry_errors=retry_errors, overwrite=overwrite
        )
    if gather_by is not None:
        raise ConfigurationError("gathering is for distributed runs", hint="Add distributed='ray', or leave it out.")
    if len(given) != 1:
        raise ConfigurationError(
            f"one file at a time is scored on one machine, not {len(given)}",
            hint="Several files, directories and addresses are for --distributed ray.",
        )
    path = Path(given[0])
    target = find_target(output, formats)
    target.refuse_input(path)
    # What is wrong with the file as a whole is found here, before minutes go into a judge and its steps.
    if pairs is None:
        check_file(path, chosen_metrics, limit=limit, fields=fields, group_by=group_by, columns=columns)
    else:
        first, chosen_metrics, pairs = _pairs(path, chosen_metrics, pairs, limit, fields or {})
        check_chosen(columns, first, [metric.name for metric in chosen_metrics])
        settings = settings.model_copy(
            update={
                "metrics": [definition(metric) for metric in chosen_metrics],
                "pairs": pairs,
                "group_by": "document",
            }
        )
    output_name = None if target.output is None else target.output.name
    settings = Settings.model_validate(settings.model_dump() | {"formats": list(target.formats), "output": output_name})
    wanted = Manifest.new(fingerprint_input(path), settings, records)
    return complete(
        target,
        wanted,
        maps,
        {records[place].name: judge for place, judge in loaded.items()},
        events or RunEvents(),
        load=load,
        retry_errors=retry_errors,
        overwrite=overwrite,
    )


def check_file(
    file: str | os.PathLike[str],
    metrics: Sequence[Metric],
    *,
    limit: int | None = None,
    fields: Mapping[str, str] | None = None,
    group_by: str | None = None,
    columns: Sequence[str] | None = None,
) -> None:
    """Check that a file can be scored, by its first rows; parameters as in `score_file`.

    Raises
    ------
    ConfigurationError, DataError
        If it cannot be read, no row can be scored on a metric, or a field or column that is named is missing.
    """
    first = check_input(file, metrics, limit=limit, mapping=fields or {})
    if group_by not in (None, EVERY_ROW) and not any(lookup(sample.fields, group_by) is not None for sample in first):
        raise DataError(
            f"{file}: the field {group_by!r} to group by is missing", hint=f"Columns: {', '.join(first[0].fields)}."
        )
    check_chosen(columns, first, [metric.name for metric in metrics])


def resume(
    run: str | os.PathLike[str],
    *,
    retry_errors: bool = False,
    load_calibration: Callable[[Path], tuple[str, Calibrator]] | None = None,
    events: RunEvents | None = None,
) -> RunResult:
    """Continue an interrupted run with the settings of its manifest.

    On the same machine, the results equal those of an uninterrupted run byte for byte, unless memory ran out:
    then figures agree to rounding.

    Parameters
    ----------
    run : path
        The run directory, by path or, for a distributed run, address; or the run's output file.
    retry_errors : bool
        Whether rows without a score are scored again.
    load_calibration : callable, optional
        Reads a calibration file into its metric and its map; required if the run applies calibrations.
    events : RunEvents, optional
        Receives the progress of the run, and may stop it.

    Raises
    ------
    GevalError
        If there is no run, its manifest was edited, or its input or a judge has changed.
    Interrupted
        If the run was stopped again.
    """
    manifest = find_manifest(run)
    settings = manifest.settings
    if settings.calibrations and load_calibration is None:
        raise ConfigurationError(
            f"this run applies calibrations: {', '.join(settings.calibrations)}",
            hint="Give `load_calibration`, or use `geval-local resume`.",
        )
    calibrations: dict[str, Calibrator] = {}
    if load_calibration is not None:
        calibrations = dict(load_calibration(Path(one)) for one in settings.calibrations)
    if settings.distributed is not None:
        wanted = manifest.model_copy(deep=True)
        target = find_parts_target(run)
        return complete_parts(target, wanted, calibrations, events or RunEvents(), retry_errors=retry_errors)
    directory = find_run(run)
    # A run writes beside its own directory, even if the directory was moved.
    output = None if settings.output is None else directory.parent / settings.output
    target = Target(directory, output, tuple(settings.formats), settings.stem)
    return complete(target, None, calibrations, {}, events or RunEvents(), retry_errors=retry_errors, overwrite=False)


def _pairs(
    path: Path, metrics: list[Metric], plan: PairPlan, limit: int | None, fields: Mapping[str, str]
) -> tuple[list[Sample], list[Metric], PairPlan]:
    """Check a file whose rows are judged in pairs; give the first pairs, and the metrics that compare them."""
    compared = {compared_field(metric) for metric in metrics}
    if plan.given is None and len(compared) > 1:
        raise ConfigurationError(
            f"these metrics rate different fields: {', '.join(sorted(compared))}",
            hint="Judge them in runs of their own.",
        )
    asked = [pair_metric(metric) for metric in metrics]
    plan = plan.model_copy(update={"compared": compared.pop()})
    if plan.given is None:
        check_input(path, metrics, limit=limit, mapping=fields)
    first = list(islice(pair_samples(read_samples(path, limit=limit, fields=fields), plan), ROWS_CHECKED))
    if plan.given is not None:
        check_rows(first, asked, str(path), fields)
    if all(sample.error is not None for sample in first):
        raise DataError(str(first[0].error))
    return first, asked, plan
