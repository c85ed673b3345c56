"""Durable runs: rows of a file in, results on disk, resumable. The command line is a thin caller of this module.

::

    result = score_file("data.jsonl", ["summarization/coherence"], "nano", "runs/first/", estimator="mode")
    result = decide_file("tickets.jsonl", "questions.yaml", "nano", "runs/tickets/", state="message")
    result = resume("runs/first/")              # after an interruption, or to apply another threshold

A run checks its input and output before it loads a judge, commits finished units, and writes the
results when every row has its outcome. `RunEvents` reports progress to the caller and lets it stop the run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.engine.window import THOUGHTS_AT_ONCE, WINDOW
from geval_local.errors import ConfigurationError, DataError
from geval_local.grouping import DocumentRule
from geval_local.io.columns import check_chosen, decision_layout, renamed_columns
from geval_local.io.input_checks import (
    DEFAULT_STATE,
    ROWS_CHECKED,
    check_columns,
    check_evidence,
    check_input,
    check_rows,
    check_shape,
    load_metrics,
    read_state,
    told_files,
)
from geval_local.io.input_files import find_files, read_input
from geval_local.io.pairs import PLAIN, PairPlan, pair_samples
from geval_local.io.places import File, Place, file_at, is_address
from geval_local.io.result_manifest import read_manifest as read_description
from geval_local.io.samples import Sample, id_hash
from geval_local.metric import Metric
from geval_local.models.registry import labels_of
from geval_local.options import JudgeOptions, RunOptions
from geval_local.questions.pair import compared_field, pair_metric
from geval_local.questions.question import Question, load_questions, named_questions
from geval_local.runs.completion import Completion, RunResult, complete
from geval_local.runs.directory import SHARES_NAME, input_of, shares_in
from geval_local.runs.events import Calibrator, RunEvents
from geval_local.runs.forms import question_metrics
from geval_local.runs.input_file import fingerprint_inputs
from geval_local.runs.manifest import JudgeRecord, RunManifest, definition, read_manifest
from geval_local.runs.reasons import ROWS_IN_HAND, holds_reasons
from geval_local.runs.settings import EvaluationRecord, QuestionSettings, ReasonSettings, Settings
from geval_local.runs.spread import Spread
from geval_local.runs.target import Target, find_run, find_target

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

logger = logging.getLogger("geval_local")

#: Reads a file of a calibration: its metric, and the map.
LoadCalibration = Callable[[Path], tuple[str, Calibrator]]


def score_file(
    file: str | os.PathLike[str] | Place | Sequence[str | os.PathLike[str] | Place],
    metrics: Metric | str | Sequence[Metric | str],
    judges: Judge | JudgeOptions | str | Sequence[Judge | JudgeOptions | str | None] | None = None,
    output: str | os.PathLike[str] | None = None,
    options: RunOptions | None = None,
    *,
    pairs: PairPlan | None = None,
    metric_names: Sequence[str] = (),
    evaluation: EvaluationRecord | None = None,
    load: Callable[[JudgeOptions], Judge] | None = None,
    load_calibration: LoadCalibration | None = None,
    events: RunEvents | None = None,
    **named: Any,
) -> RunResult:
    """Score a file; the figures are those of `Judge.score_many`, to the bit without the cache.

    A row that an earlier run computed among other rows, and that the cache gives, differs by rounding.

    Parameters
    ----------
    file : path, or sequence of path
        JSONL, JSON, CSV, Excel or Parquet; one sample per row. Directories and patterns stand for their data files, and
        rows of several files carry their file's name as the column ``file``. Each may be an address, such as
        ``s3://bucket/data.jsonl``.
    metrics : Metric, str, or sequence of them
        The metrics, or their names or files as for `Metric.load`.
    judges : Judge, JudgeOptions, str, None, or sequence of them
        The judges: loaded ones, ones to load, or their names. None is the default judge.
    output : path, optional
        A .jsonl, .csv or .parquet file; or a directory for the run: new, empty, or of the same run, which is then
        continued. None keeps nothing. If it is an address, the results are uploaded when they are complete, and the
        run's store stays on this machine.
    options : RunOptions, optional
        How it is scored, and what is written.
    pairs : PairPlan, optional
        Judge pairs of the file's rows on the metrics, which are asked as `geval_local.questions.pair.pair_metric` says:
        the score is the preference for the first of the two.
    metric_names : sequence of str
        The user's names of the metrics, for the record; taken from `metrics` when absent.
    evaluation : EvaluationRecord, optional
        The file of an evaluation that this run is part of, for the record.
    load : callable, optional
        Loads a judge that is not loaded yet; runs that ask the same judge may keep it.
    load_calibration : callable, optional
        Reads a calibration file into its metric and its map; required if the options name calibrations.
    events : RunEvents, optional
        Receives the progress of the run, and may stop it.
    **named
        Single options, as `RunOptions` names them: ``estimator="mode"``, ``limit=100``.

    Raises
    ------
    GevalError
        If the input, the output or a judge cannot be used. Input and output are checked before a judge is loaded.
    Interrupted
        If the run was stopped. Everything finished is kept; `resume` continues it.
    """
    options = _options(options, named)
    given = [file] if isinstance(file, str | os.PathLike | Place) else list(file)
    if options.workers is not None and _judges(judges)[1]:
        raise ConfigurationError(
            "a judge that is loaded here cannot work in other processes",
            hint="Give its name; every worker loads its own.",
        )
    if options.keep_thoughts and not any("think" in judge.choice for judge in _judges(judges)[0]):
        raise ConfigurationError("`keep_thoughts` is for judges that think", hint="Add `think=4`.")
    chosen = load_metrics(metrics)
    names = [one for one in ([metrics] if isinstance(metrics, Metric | str) else metrics) if isinstance(one, str)]
    maps = read_calibrations(options.calibrations, load_calibration, [metric.name for metric in chosen])
    paths = find_files(given)
    options = _with_known_fields(paths, chosen, options)
    settings = _settings(chosen, options, judges, list(metric_names or names), evaluation)
    target = find_target(output, options.formats, shard=options.shard)
    for path in paths:
        target.refuse_input(path)
    # What is wrong with the file as a whole is found here, before minutes go into a judge and its steps.
    if pairs is None:
        first = check_input(paths, chosen, options)
        _tell_of_ids(first, told_files(paths), events)
    else:
        first, chosen, pairs = _pairs(paths, chosen, pairs, options)
        check_chosen(options.columns, first, [metric.name for metric in chosen])
        update = {"metrics": [definition(metric) for metric in chosen], "pairs": pairs, "group_by": "document"}
        found = next((row.mapping for row in first if row.error is None), {})  # what is read is what is shown
        read = {name: found[name] for metric in chosen for name in metric.fields if name in found}
        settings = settings.model_copy(update=update | {"fields": read | options.fields})
    if "csv" in target.formats:
        _tell_of_names(first, chosen)
    return run_file(paths, settings, judges, target, options, events, given=given, maps=maps, load=load)


def _settings(
    metrics: Sequence[Metric],
    options: RunOptions,
    judges: Any,
    metric_names: Sequence[str] = (),
    evaluation: EvaluationRecord | None = None,
) -> Settings:
    """Give what a run on metrics is asked for."""
    return Settings(
        **_given(options),
        window=options.window or rows_at_once(judges),
        block_rows=options.window if options.workers or options.shard else None,
        metrics=[definition(metric) for metric in metrics],
        metric_names=list(metric_names),
        evaluation=evaluation,
    )


def wanted_run(
    file: str | File, metrics: Sequence[Metric], judges: Sequence[JudgeOptions], options: RunOptions
) -> RunManifest:
    """Describe the run that `score_file` would make, to tell whether a directory holds the same one."""
    records, _ = _judges(judges)
    paths = find_files([file])
    options = _with_known_fields(paths, metrics, options)
    return RunManifest.new(fingerprint_inputs(paths), _settings(metrics, options, judges), records)


def _with_known_fields(paths: Sequence[File], metrics: Sequence[Metric], options: RunOptions) -> RunOptions:
    """Read the fields of results from the columns that they were scored from, unless the options name others."""
    described = read_description(paths[0]) if len(paths) == 1 else None
    wanted = {name for metric in metrics for name in metric.fields}
    known = {} if described is None or not described.metrics else described.fields
    fields = {name: path for name, path in known.items() if name in wanted} | options.fields
    return options.model_copy(update={"fields": fields}) if fields != options.fields else options


def decide_file(
    file: str | os.PathLike[str],
    questions: str | os.PathLike[str] | Mapping[str, Any] | Sequence[Question | Mapping[str, Any]],
    judges: Judge | JudgeOptions | str | Sequence[Judge | JudgeOptions | str | None] | None = None,
    output: str | os.PathLike[str] | None = None,
    options: RunOptions | None = None,
    *,
    state: str | Sequence[str] | Mapping[str, str] = DEFAULT_STATE,
    rotations: int = 1,
    events: RunEvents | None = None,
    **named: Any,
) -> RunResult:
    """Answer questions about every row of a file; the figures are those of `Judge.decide_many`, to rounding.

    Parameters
    ----------
    file : path
        JSONL, JSON, CSV, Excel or Parquet; one evidence per row. Also an address.
    questions : path, mapping of str, or sequence
        A YAML or JSON file, or what `geval_local.questions.question.parse_questions` takes; questions without a name
        are called ``q1``, ``q2``, ... by their place.
    judges, output, options, events, named
        As for `score_file`.
    state : str, sequence of str, or mapping of str to str
        The columns that make the evidence, see `geval_local.io.input_checks.read_state`.
    rotations : int
        In how many orders the outcomes of a question are shown; its answer is the mean over them. A question's own
        `rotations` go before it.

    Returns
    -------
    RunResult
        With `answers`.

    Raises
    ------
    GevalError
        If the input, the questions, the output or a judge cannot be used; all but the judge before it is loaded.
    Interrupted
        If the run was stopped. Everything finished is kept; `resume` continues with it.
    """
    options = _options(options, named)
    path = file_at(file)
    target = find_target(output, options.formats, "decisions", options.shard)
    target.refuse_input(path)
    given = Path(questions) if isinstance(questions, str | os.PathLike) else questions
    asked = load_questions(given) if isinstance(given, Path) else named_questions(given)
    if rotations < 1:
        raise ConfigurationError(f"a question is shown in at least one order, not in {rotations}")
    metrics = question_metrics(asked, rotations)
    evidence = read_state(state)
    first = check_evidence(path, evidence, limit=options.limit, **options.reading)
    _tell_of_ids(first, path.name, events)
    types = {str(question.name): question.type for question in asked}
    check_chosen(options.columns, first, list(types), decision_layout(types))
    settings = Settings(
        **_given(options),
        # Prompts are held by the window, and a row has as many as there are forms.
        window=options.window or max(1, rows_at_once(judges) // len(metrics)),
        block_rows=options.window if options.workers or options.shard else None,
        metrics=[definition(metric) for metric in metrics],
        questions=QuestionSettings(
            asked=[question.model_dump(mode="json", exclude_none=True) for question in asked],
            state=evidence,
            rotations=rotations,
        ),
    )
    return run_file([path], settings, judges, target, options, events)


def reason_file(
    results: Path,
    metric: Metric,
    chosen: Sequence[int],
    judge: JudgeOptions,
    output: Path,
    *,
    asked: ReasonSettings,
    fields: Mapping[str, str],
    load: Callable[[JudgeOptions], Judge],
    events: RunEvents,
    overwrite: bool = False,
) -> RunResult | None:
    """Let a judge write why chosen rows of a result file got their scores on a metric, as JSON lines.

    `asked` says of which results, and how; `metric` is the one with the steps of the scores. None if the output holds
    just these reasons already; with `overwrite` they are written again.
    """
    settings = Settings(
        window=ROWS_IN_HAND,
        fields=dict(fields),
        metrics=[definition(metric)],
        chosen=list(chosen),
        reasons=asked,
    )
    target = find_target(output)
    # A run that was killed at its very end is there still, and goes on to be cleared away.
    left = None if target.directory is None else read_manifest(target.directory)
    is_left = left is not None and not left.settings.differences(settings) and left.judges[0].choice == judge.record()
    if not overwrite and not is_left and holds_reasons(output, results, settings, judge.record()):
        return None
    return run_file([results], settings, judge, target, RunOptions(overwrite=overwrite), events, load=load)


def run_file(
    paths: Sequence[File],
    settings: Settings,
    judges: Judge | JudgeOptions | str | Sequence[Judge | JudgeOptions | str | None] | None,
    target: Target,
    options: RunOptions | None = None,
    events: RunEvents | None = None,
    *,
    given: Sequence[str | os.PathLike[str] | Place] = (),
    maps: Mapping[str, Calibrator] | None = None,
    load: Callable[[JudgeOptions], Judge] | None = None,
) -> RunResult:
    """Run what the settings ask of files that were checked: scores, answers, preferences, or reasons.

    `given` are the directories and patterns that the files were found by.
    """
    output = None if target.output is None else target.output.name
    inputs = [] if settings.shard is None else [_whole(one) for one in (given or paths)]
    update = {"formats": list(target.formats), "output": output, "address": target.address, "inputs": inputs}
    settings = settings.model_copy(update=update)
    options = options or RunOptions()
    records, loaded = _judges(judges)
    return complete(
        target,
        RunManifest.new(input_of(paths, settings), settings, records),
        maps or {},
        loaded,
        events or RunEvents(),
        load=load,
        spread=_spread(target, settings, options.retry_errors),
        retry_errors=options.retry_errors,
        overwrite=options.overwrite,
    )


def _spread(target: Target, settings: Settings, retry_errors: bool) -> Callable[[Completion], object] | None:
    """Say how a run is spread; one that was once goes on with its shares, by one worker if no number is given."""
    has_shares = target.directory is not None and bool(shares_in(target.directory / SHARES_NAME))
    if settings.workers is None and not has_shares:
        return None
    spread = Spread(settings.workers or "1", retry_errors)
    if settings.on_ray:
        start = import_module("geval_local.ray.scheduler").ray_workers  # by name: other runs import nothing of it
        spread = replace(spread, start=partial(start, address=settings.cluster))
    return spread.score


def _whole(given: str | os.PathLike[str] | Place) -> str:
    """Return a file, directory or pattern as it is found from any working directory."""
    text = str(given) if isinstance(given, Place) else os.fspath(given)
    return text if is_address(text) else os.path.abspath(text)


def rows_at_once(judges: Any) -> int:
    """Return the rows of a window, however judges are given: those that wait for thoughts are few."""
    records, _ = _judges(judges)
    most = max(judge.thoughts for judge in records)
    return max(1, THOUGHTS_AT_ONCE // most) if any("think" in judge.choice for judge in records) else WINDOW


def _options(options: RunOptions | None, named: Mapping[str, Any]) -> RunOptions:
    """Join options and single ones; the single ones go before."""
    if options is None:
        return RunOptions(**named)
    return RunOptions(**{**_given(options, window=True), **named}) if named else options


def _given(options: RunOptions, *, window: bool = False) -> dict[str, Any]:
    """List the options that were set, as values for another group."""
    given = {name: getattr(options, name) for name in options.model_fields_set if window or name != "window"}
    if not given.get("formats"):
        given.pop("formats", None)
    return given | {"calibrations": [file.resolve() for file in options.calibrations]}


def _judges(given: Any) -> tuple[list[JudgeRecord], dict[str, Judge]]:
    """Describe judges, however they are given, and list those that are loaded already by their names in results."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    options: list[JudgeOptions] = []
    loaded: dict[int, Judge] = {}
    for place, one in enumerate(listed or [None]):
        if isinstance(one, JudgeOptions):
            options.append(one)
        elif one is None or isinstance(one, str | os.PathLike):
            options.append(JudgeOptions(name=one))  # type: ignore[arg-type]  # a path becomes its name
        else:
            loaded[place] = one
            # By the path that it was given by, if it was: `resume` has to find it again.
            entry = one.backend.entry
            name = one.name if entry.adapter is not None else entry.name
            options.append(JudgeOptions(name=name, **one.thinking))
    labels = labels_of(options)
    records = [JudgeRecord(name=label, choice=one.record()) for label, one in zip(labels, options, strict=True)]
    return records, {labels[place]: judge for place, judge in loaded.items()}


def read_calibrations(
    files: Sequence[Path], load_calibration: LoadCalibration | None, metrics: Sequence[str]
) -> dict[str, Calibrator]:
    """Read the calibrations of a run: metric -> map."""
    found: dict[str, Calibrator] = {}
    for file in files:
        if load_calibration is None:
            raise ConfigurationError(
                f"this run applies calibrations: {', '.join(map(str, files))}",
                hint="Give `load_calibration`, or use the command line.",
            )
        metric, calibrator = load_calibration(file)
        if metric not in metrics:
            raise ConfigurationError(
                f"{file} is a calibration of {metric}, and this run scores {', '.join(metrics)}",
                hint="Name that metric, or leave the calibration out.",
            )
        if metric in found:
            raise ConfigurationError(f"{file} is the second calibration of {metric}")
        found[metric] = calibrator
    return found


def _tell_of_ids(first: Sequence[Sample], where: str, events: RunEvents | None) -> None:
    """Tell that ids are not those of rows, if they repeat and no row has an error for that."""
    ids = [key for row in first if row.error is None and (key := id_hash(row.fields.get("id"))) is not None]
    if events is not None and len(set(ids)) < len(ids):
        events.on_document_ids(where)


def _tell_of_names(first: Sequence[Sample], metrics: Sequence[Metric]) -> None:
    """Tell before scoring which input columns get another name in a CSV file."""
    names = dict.fromkeys(str(name) for row in first for name in row.fields)
    results = [metric.name for metric in metrics]
    results += [one for name in names if "@" in (one := name.rpartition(".")[0]) and one.partition("@")[0] in results]
    for old, new in renamed_columns(names, results).items():
        logger.warning("the input column %r is called like a result: the CSV file holds it as %r", old, new)


def resume(
    run: str | os.PathLike[str],
    *,
    retry_errors: bool = False,
    load_calibration: LoadCalibration | None = None,
    events: RunEvents | None = None,
) -> RunResult:
    """Continue an interrupted run with the settings of its manifest.

    On the same machine, the results equal those of an uninterrupted run byte for byte, unless vLLM computes (see
    `BackendFacts.is_reproducible`) or memory ran out:
    then figures agree to rounding.

    Parameters
    ----------
    run : path
        The run directory or the run's output file, by path or address.
    retry_errors : bool
        Whether rows without a score are scored again.
    load_calibration : callable, optional
        As for `score_file`.
    events : RunEvents, optional
        Receives the progress of the run, and may stop it.

    Raises
    ------
    GevalError
        If there is no run, its manifest was edited, or its input or a judge has changed.
    Interrupted
        If the run was stopped again.
    """
    manifest = read_run(run)
    settings = manifest.settings
    maps = read_calibrations(settings.calibrations, load_calibration, [str(one["name"]) for one in settings.metrics])
    directory = find_run(run)
    # A run writes next to its own directory, even if the directory was moved.
    output = None if settings.output is None else directory.parent / settings.output
    target = Target(directory, output, tuple(settings.formats), settings.stem, settings.address)
    return complete(
        target,
        None,
        maps,
        {},
        events or RunEvents(),
        spread=_spread(target, settings, retry_errors),
        retry_errors=retry_errors,
        overwrite=False,
    )


def read_run(run: str | os.PathLike[str]) -> RunManifest:
    """Read the manifest of a run, by its directory, its output file or its address."""
    found = read_manifest(find_run(run))
    assert found is not None  # checked by `find_run`
    return found


def _pairs(
    paths: Sequence[File], metrics: list[Metric], plan: PairPlan, options: RunOptions
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
    rule = DocumentRule.of([tuple(metric.fields) for metric in asked], mapping=options.fields)
    rows: Iterable[Sample] = read_input(paths, options)
    if plan.given is None:
        check_input(paths, metrics, options.model_copy(update={"columns": None}))  # those of pairs are others
        first = list(islice(pair_samples(rows, plan, rule), ROWS_CHECKED))
    else:
        rows, own = list(islice(rows, ROWS_CHECKED)), PLAIN if plan.given == "plain" else ()
        check_shape(paths, options)
        check_columns(rows, {name: path for name, path in options.fields.items() if name in own})
        first = list(pair_samples(rows, plan, rule))
        mapping = {name: path for name, path in options.fields.items() if name not in own}
        check_rows(first, asked, told_files(paths), mapping)
    if all(sample.error is not None for sample in first):
        raise DataError(str(first[0].error))
    return first, asked, plan
