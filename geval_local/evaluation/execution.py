"""The runs of an evaluation, one after the other, each durable; then its reports and its gates."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.analysis.gates import (
    EVERY_METRIC,
    MEANS,
    NOT_WORSE,
    ROWS_SHOWN,
    SCORED,
    Gate,
    GateOutcome,
    outcomes,
    parse_limit,
)
from geval_local.analysis.results import ScoredRun
from geval_local.analysis.tables import Table
from geval_local.analysis.worse import changes, check_own, each_slice, refused, shown_row
from geval_local.errors import ConfigurationError, GevalError
from geval_local.evaluation.document import EvaluationFile, Problems, read_evaluation, told_in_yaml
from geval_local.evaluation.gate_reports import ROW_HEADERS, row_cells
from geval_local.evaluation.history import (
    LAST,
    Earlier,
    claim,
    commit_of,
    filled,
    has_placeholder,
    last_good,
    next_directory,
    remove_record,
    write_record,
)
from geval_local.evaluation.model import Baseline, GateSpec, SliceGateSpec
from geval_local.fields import nearest
from geval_local.files import expanded
from geval_local.grouping import DocumentRule
from geval_local.io.input_checks import check_distinct, check_input
from geval_local.io.input_files import read_input
from geval_local.io.ownership import check_replaceable
from geval_local.io.places import File
from geval_local.metric import Metric
from geval_local.models.registry import entry_of, labels_of
from geval_local.options import JudgeOptions
from geval_local.report.overview import facts
from geval_local.report.page import PAGE, check_target
from geval_local.report.run_page import RunPage
from geval_local.runs.addresses import local_results
from geval_local.runs.completion import RunResult
from geval_local.runs.directory import check_configuration, look_at, result_file
from geval_local.runs.events import RunEvents
from geval_local.runs.manifest import RunManifest
from geval_local.runs.own_files import is_held
from geval_local.runs.run_file import score_file, wanted_run
from geval_local.runs.target import check_csv, find_target
from geval_local.slices import find_slicings

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

logger = logging.getLogger("geval_local")


@dataclass(frozen=True)
class DataRun:
    """The run of one data file, as planned."""

    #: Its name in the file.
    name: str
    #: Its path, or address.
    path: File
    #: Its run directory.
    directory: Path
    #: Path of its report; None for no report.
    page: Path | None
    #: Limits on its figures.
    gates: list[Gate]
    #: How it is compared with a baseline, and the run that this is; None if there is none.
    compared: Baseline | None = None
    baseline: Earlier | None = None
    #: Why there is no baseline yet; empty if none is needed.
    waits: str = ""


@dataclass(frozen=True)
class Plan:
    """The plan of an evaluation; everything that it names exists, as far as one can tell without loading weights."""

    #: The file of the evaluation.
    file: EvaluationFile
    #: The metrics.
    metrics: list[Metric]
    #: The judges.
    judges: list[JudgeOptions]
    #: The runs, in the order of the file.
    data: list[DataRun]
    #: The commit of the repository that holds the file, and whether the directory is to be made.
    commit: str
    is_new: bool

    @property
    def directory(self) -> Path:
        """The directory of the runs."""
        return self.data[0].directory.parent


@dataclass(frozen=True)
class EvaluationResult:
    """The result of an evaluation."""

    #: The file of the evaluation.
    file: EvaluationFile
    #: Name of the data file -> its run.
    runs: dict[str, RunResult]
    #: Name of the data file -> its page.
    reports: dict[str, Path]
    #: Outcome of every gate, with the name of its data file.
    outcomes: list[GateOutcome] = field(default_factory=list)
    #: Name of the data file -> the result file of its baseline.
    baselines: dict[str, Path] = field(default_factory=dict)

    @property
    def failures(self) -> list[str]:
        """Sentences on failed gates and on metrics without any score; each begins with the name of its data file."""
        return [one.sentence for one in self.outcomes if not one.passed]

    @property
    def gates(self) -> int:
        """Number of gates of the file, skipped ones included."""
        return sum(bool(one.gate.told) for one in self.outcomes)

    @property
    def passed(self) -> bool:
        """Whether no gate failed, and every metric has a score."""
        return not self.failures


@told_in_yaml()
def run_evaluation(
    file: str | PathLike[str] | Plan,
    *,
    overrides: Sequence[str] = (),
    against: str | PathLike[str] | None = None,
    overwrite: bool = False,
    retry_errors: bool = False,
    events: Callable[[DataRun], RunEvents] = lambda run: RunEvents(),
) -> EvaluationResult:
    """Run everything in the file of an evaluation. Called again, it continues where it was interrupted.

    Parameters
    ----------
    file : path or Plan
        The YAML file, or its plan from `make_plan`.
    overrides : sequence of str
        ``KEY.PATH=VALUE``, see `geval_local.evaluation.document.read_evaluation`.
    against : path, optional
        An earlier run to compare with, instead of the file's `baseline`; ``last`` is the newest good run.
    overwrite : bool
        Whether to replace runs of another configuration, and pages that this tool did not write.
    retry_errors : bool
        Whether to score rows without a score again.
    events : callable
        Returns the `RunEvents` of a run, which report its progress and may stop it.

    Returns
    -------
    EvaluationResult

    Raises
    ------
    GevalError
        If the file, or anything that it names, cannot be used. The function checks data, metrics, judges and outputs
        before it loads the first judge.
    Interrupted
        If a run was stopped. Everything finished is kept.
    """
    if isinstance(file, Plan):
        plan = file
    else:
        plan = make_plan(read_evaluation(file, [*overrides, *baseline_override(against)]), overwrite=overwrite)
    while plan.is_new and not claim(plan.directory):
        plan = make_plan(plan.file, overwrite=overwrite)  # another process was faster
    remove_record(plan.directory)
    try:
        return _run(plan, {"retry_errors": retry_errors, "overwrite": overwrite}, events)
    except BaseException:
        with suppress(OSError):  # it holds a run
            plan.directory.rmdir()
        raise


def _run(plan: Plan, update: Mapping[str, bool], events: Callable[[DataRun], RunEvents]) -> EvaluationResult:
    """Do the runs of a plan, check their gates, and write the verdict at the end."""
    settings, record = plan.file.settings, plan.file.record
    keeper = _JudgeKeeper()
    runs: dict[str, RunResult] = {}
    reports: dict[str, Path] = {}
    found: list[GateOutcome] = []
    for run in plan.data:
        options = settings.run_options(run.name)
        result = score_file(
            run.path,
            plan.metrics,
            plan.judges,
            f"{run.directory}/",
            options.model_copy(update=update),
            metric_names=[one.name for one in settings.metrics],
            evaluation=record,
            load=keeper.load,
            events=events(run),
        )
        runs[run.name] = result
        metrics = [metric.name for _ in result.judges for metric in plan.metrics]
        own = [*outcomes(run.gates, result.summaries, metrics), *_compared(run, result, metrics)]
        own = [replace(one, data=run.name) for one in _with_rows(run, result, own)]
        found += own
        if run.page is not None:
            reports[run.name] = _write_page(run, result, own)
    for name in dict.fromkeys(one for run in plan.data if run.baseline is not None for one in run.baseline.removed):
        told = "the baseline has these data and this file has not: nothing of them is compared"
        found.append(GateOutcome(Gate(NOT_WORSE), "skipped", told, data=name))
    baselines = {run.name: run.baseline.path for run in plan.data if run.baseline is not None}
    done = EvaluationResult(plan.file, runs, reports, found, baselines)
    identifiers = {name: one.manifest.run for name, one in runs.items()}
    write_record(plan.directory, record, plan.commit, identifiers, held=done.passed)
    return done


def _compared(run: DataRun, result: RunResult, metrics: Sequence[str]) -> Iterator[GateOutcome]:
    """Check the gates of a baseline; what cannot be compared fails once for a metric."""
    asked = [
        replace(gate, metric=summary.metric)
        for summary, metric in zip(result.summaries, metrics, strict=True)
        for gate in run.gates
        if gate.figure == NOT_WORSE and gate.concerns(summary.metric, metric) and summary.scored
    ]
    compared = run.compared
    if not asked or compared is None:
        return
    if run.baseline is None:
        if compared.require and not compared.accept:
            why = f"{run.waits}, and the evaluation requires one; the first run needs `accept: true` below `baseline`"
            yield from (GateOutcome(gate, "failed", why) for gate in asked)
        else:
            told = f"{run.waits}: the comparison begins with the next run"
            yield from (GateOutcome(gate, "skipped", told) for gate in asked)
        return
    new, old = ScoredRun(_result_of(result)), ScoredRun(run.baseline.path)
    slicings = {one.column: one for one in result.slicings}
    tests = sum(len(each_slice(gate, slicings)) for gate in asked if gate.margin is None)
    for metric in dict.fromkeys(gate.metric for gate in asked):
        own = [gate for gate in asked if gate.metric == metric]
        try:
            study = changes(new, old, own, compared, slicings=result.slicings, tests=tests)
            found = list(study.changes.values())
        except GevalError as error:
            found = [refused(Gate(NOT_WORSE, metric=metric), error, new, old)]
        for one in found:
            named = replace(one, baseline=run.baseline.told, next=compare_command(new.path, old.path, metric))
            if named.passed or not compared.accept:
                yield named
            else:
                yield replace(named, verdict="skipped", told=f"accepted as the next baseline: {named.told}")


def compare_command(new: Path, old: Path, metric: str) -> str:
    """Write the command that shows two runs side by side."""
    return (
        f"geval-local {shlex.join(['compare', str(new), str(old), '-m', metric])} --across input --page compared.html"
    )


def _with_rows(run: DataRun, result: RunResult, found: Iterable[GateOutcome]) -> Iterator[GateOutcome]:
    """Add to failed gates of a figure the lowest rows of their slice, and the page that shows them."""
    slicings = {one.column: one for one in result.slicings}
    new: ScoredRun | None = None
    for one in found:
        gate = one.gate
        if one.passed or gate.figure in (NOT_WORSE, SCORED, "unscored"):
            yield one
            continue
        new = new or ScoredRun(_result_of(result))
        items, slicing = new.items(gate.metric), slicings.get(gate.by or "")
        places = [
            at
            for at, item in enumerate(items)
            if item.predicted == item.predicted
            and (slicing is None or slicing.slice_of(new.rows[at], new.rule) == gate.value)
        ]
        sign = new.direction(gate.metric).sign
        lowest = sorted(places, key=lambda at: (sign * items[at].predicted, at))[:ROWS_SHOWN]
        page = "" if run.page is None else f"open {run.page}"
        yield replace(one, rows=tuple(shown_row(new, items, at) for at in lowest), next=page)


def baseline_override(against: str | PathLike[str] | None) -> list[str]:
    """Write a baseline as an override of the file, with an absolute path, since the file's paths are relative to it."""
    if against is None:
        return []
    run = LAST if str(against) == LAST else str(expanded(str(against)).resolve())
    return [f"baseline.run={json.dumps(run)}"]


@told_in_yaml()
def make_plan(file: EvaluationFile, *, overwrite: bool = False) -> Plan:
    """Find and check everything that an evaluation names; report all problems at once."""
    problems = Problems(file)
    settings = file.settings
    metrics = _metrics(file, problems)
    judges = _judges(file, problems)
    problems.check()
    with problems.at("metrics"):
        check_distinct(metrics)
    labels: list[str] = []
    with problems.at("judges"):
        labels = labels_of(judges)
    with problems.at("threshold"):
        for metric in metrics:
            metric.check_on_scale(settings.threshold, "the threshold")
    shared = _gates(file, ("gates",), settings.gates, metrics, labels, problems)
    for name, one in settings.data.items():
        with problems.at("data", name):
            path, options = file.data_file(one.file), settings.run_options(name)
            check_input(path, metrics, options)
            if options.by:  # columns that make no slices are refused
                rule = DocumentRule.of([tuple(one.fields) for one in metrics], mapping=options.fields)
                find_slicings((sample.fields for sample in read_input([path], options)), options.by, rule)
    commit = commit_of(file.path.parent)
    directory = _directory(file, metrics, judges, problems, commit, overwrite=overwrite)
    data = []
    for name, one in settings.data.items():
        gates = [*shared, *_gates(file, ("data", name, "gates"), one.gates, metrics, labels, problems)]
        run = _with_baseline(
            file,
            DataRun(
                name,
                file.data_file(one.file),
                directory / name,
                directory / f"{name}.html" if settings.report else None,
                gates,
            ),
            commit,
            problems,
        )
        data.append(run)
        options = settings.run_options(name)
        with problems.at("data", name):
            check_csv(options, find_target(f"{run.directory}/", options.formats).formats)
        if run.page is not None and directory.is_dir():
            with problems.at("report"):
                check_target(run.page)
                check_replaceable(run.page, PAGE, overwrite=overwrite)
    problems.check()
    is_new = has_placeholder(settings.outputs) and not directory.exists()
    return Plan(file, metrics, judges, data, commit, is_new)


def _directory(
    file: EvaluationFile,
    metrics: Sequence[Metric],
    judges: Sequence[JudgeOptions],
    problems: Problems,
    commit: str,
    *,
    overwrite: bool,
) -> Path:
    """Choose the directory of the runs, and refuse one with runs of another configuration."""
    settings = file.settings
    pattern = str(file.resolved(settings.outputs))
    when = datetime.now(timezone.utc)
    plain = Path(filled(pattern, when, commit))
    if problems.are_found or (overwrite and plain.is_dir()):
        return plain
    wanted: dict[str, RunManifest] = {}

    def check(directory: Path, another: str) -> int:
        begun = 0
        for name, one in settings.data.items():
            on_record = look_at(directory / name)
            if on_record is not None and on_record.has_begun:
                if name not in wanted:
                    options = settings.run_options(name)
                    wanted[name] = wanted_run(file.data_file(one.file), metrics, judges, options)
                check_configuration(directory / name, on_record, wanted[name], another=another)
                begun += not is_held(directory / name)
        return begun

    def fits(directory: Path) -> bool:
        try:
            return check(directory, "") > 0
        except (GevalError, OSError):
            return False

    def is_finished(directory: Path) -> bool:
        """Whether every run of the directory has ended, or the directory has no runs of ours."""
        ended = []
        for name in settings.data:
            with suppress(GevalError, OSError):
                manifest = look_at(directory / name)
                ended.append(None if manifest is None else manifest.ended is not None)
        return not any(one is not None for one in ended) or all(ended)

    if has_placeholder(pattern):
        return next_directory(pattern, when, commit, fits, is_finished)
    with problems.at("outputs"):
        check(plain, "give every run a directory of its own by `outputs: runs/{date}-{commit}`")
    return plain


def _with_baseline(file: EvaluationFile, run: DataRun, commit: str, problems: Problems) -> DataRun:
    """Find the baseline of a data file; if no gate uses it, add the gate that no metric is worse."""
    settings, own = file.settings, file.settings.data[run.name].baseline
    baseline = own or settings.baseline
    place: tuple[int | str, ...] = ("data", run.name, "baseline") if own else ("baseline",)
    asks = any(gate.figure == NOT_WORSE for gate in run.gates)
    if baseline is None:
        if asks:
            problems.add(
                ("gates",),
                "not_worse compares with a baseline, and none is named",
                "Add `baseline=last` to the file, or a path in the place of `last`.",
            )
        return run
    run = replace(run, gates=run.gates if asks else [*run.gates, Gate(NOT_WORSE)], compared=baseline)
    pattern = str(file.resolved(settings.outputs))
    with problems.at(*place):
        if baseline.run == LAST:
            if not has_placeholder(pattern):
                raise ConfigurationError(
                    f"the last run is replaced by this one: both lie in {settings.outputs}",
                    hint="Give every run a directory of its own: `outputs: runs/{date}-{commit}`.",
                )
            limit = settings.run_options(run.name).limit
            found, waits = last_good(
                pattern,
                file.path.name,
                run.name,
                list(settings.data),
                but=run.directory.parent,
                commit=commit,
                limit=limit,
            )
            run = replace(run, baseline=found, waits=waits)
        else:
            path = file.resolved(baseline.run)
            path = path / run.name if (path / run.name).is_dir() else path
            if path.resolve() == run.directory.resolve():
                raise ConfigurationError(
                    f"the baseline {path} is where this run writes", hint="Name an earlier run, or another directory."
                )
            run = replace(run, baseline=Earlier(result_file(path)))
        if run.baseline is not None:
            check_own(ScoredRun(run.baseline.path))
    return run


def _metrics(file: EvaluationFile, problems: Problems) -> list[Metric]:
    metrics = []
    for place, use in enumerate(file.settings.metrics):
        with problems.at("metrics", place, "name"):
            is_file = use.name.endswith((".yaml", ".yml"))
            metric = Metric.load(file.resolved(use.name) if is_file else use.name)
            with problems.at("metrics", place, "threshold"):
                metric.check_on_scale(use.threshold, "the threshold")
            if use.threshold is not None:
                metric = metric.model_copy(update={"threshold": use.threshold})
            metrics.append(metric if use.steps else metric.with_steps(()))
    return metrics


def _judges(file: EvaluationFile, problems: Problems) -> list[JudgeOptions]:
    judges = []
    for place, use in enumerate(file.settings.judges):
        with problems.at("judges", place, "name"):
            update: dict[str, object] = {
                key: file.resolved(str(path))
                for key in ("models_file", "adapter")
                if (path := getattr(use, key)) is not None
            }
            if use.name is not None:
                # An existing path is relative to the file's directory; anything else is a name.
                with suppress(OSError, GevalError):
                    path = file.resolved(use.name)
                    update["name"] = str(path) if path.exists() else use.name
            judge = use.model_copy(update=update)
            entry_of(judge)
            judges.append(judge)
    return judges


def _gates(
    file: EvaluationFile,
    place: tuple[str, ...],
    specs: Mapping[str, GateSpec],
    metrics: Sequence[Metric],
    labels: Sequence[str],
    problems: Problems,
) -> list[Gate]:
    names = [metric.name for metric in metrics]
    known = {name: [metric] for name, metric in zip(names, metrics, strict=True)}
    known |= {f"{metric.name}@{label}": [metric] for metric in metrics for label in labels}
    found: list[Gate] = []
    for name, spec in specs.items():
        concerned = list(metrics) if name == EVERY_METRIC else known.get(name)
        if concerned is None:
            problems.add(
                (*place, name),
                f"a gate of {name!r}, and no metric here has that name{nearest(name, [*names, EVERY_METRIC])}",
                f"The metrics are: {', '.join(names)}; {EVERY_METRIC} means every one.",
            )
            continue
        for column, one in [(None, spec), *spec.by.items()]:
            where = (*place, name) if column is None else (*place, name, "by", column)
            found += _limits(file, where, one, name, column, concerned, problems, is_alone=len(labels) == 1)
    return found


def _limits(
    file: EvaluationFile,
    place: tuple[int | str, ...],
    spec: SliceGateSpec,
    name: str,
    column: str | None,
    concerned: Sequence[Metric],
    problems: Problems,
    *,
    is_alone: bool,
) -> Iterator[Gate]:
    """Read the limits of one metric, for all rows or for the slices of a column."""
    # With one judge, results are named by their metric alone.
    metric = name.partition("@")[0] if is_alone and "@" in name else name
    for figure, text in spec.model_dump(exclude={"by"}, exclude_none=True).items():
        if figure == NOT_WORSE:
            for one in concerned if text is not True else ():
                span = one.scale.high - one.scale.low
                if text >= span:
                    problems.add((*place, figure), f"{text:g} is the whole scale {one.scale.text} of {one.name}")
            yield Gate(NOT_WORSE, metric=metric, by=column, margin=None if text is True else text)
            continue
        limit = parse_limit(figure, text)
        gate = Gate(figure, limit, metric, column)
        for one in concerned if figure in MEANS else ():
            with problems.at(*place, figure):
                one.check_on_scale(limit.value, "the limit")
                if gate.misses_good(one.direction):
                    logger.warning(
                        "%s: good means of %s fail `%s`: its %s scores are good",
                        *(file.where(*place, figure), one.name, gate.told, one.better),
                    )
        if figure == "passed":
            without = [one.name for one in concerned if one.threshold is None and file.settings.threshold is None]
            if without:
                problems.add((*place, figure), f"passed needs a threshold, and {without[0]} has none")
        yield gate


class _JudgeKeeper:
    """Keeps the judge that was loaded last, for the next data file."""

    def __init__(self) -> None:
        self._options: JudgeOptions | None = None
        self._judge: Judge | None = None
        self._budget = (0, 0)

    def load(self, options: JudgeOptions) -> Judge:
        """Load a judge, or return the one already loaded."""
        if self._judge is not None and self._options == options:
            # A resumed run may have set the token budget of its first start.
            self._judge.engine.batch_tokens, self._judge.engine.limit = self._budget
            return self._judge
        if self._judge is not None:
            self._judge.close()
            self._judge = None
        from geval_local.judge.judge import Judge

        self._judge, self._options = Judge.load(options), options
        self._budget = self._judge.engine.batch_tokens, self._judge.engine.limit
        return self._judge


def _result_of(result: RunResult) -> Path:
    """Choose the most complete result file: any but CSV, if there is one."""
    return local_results(min(map(str, result.files), key=lambda file: file.endswith(".csv")))


def _write_page(run: DataRun, result: RunResult, found: Sequence[GateOutcome]) -> Path:
    """Write the report of a data file's run, with the outcome of its gates."""
    assert run.page is not None
    scored = ScoredRun(_result_of(result))
    given = [one for one in found if one.gate.told]
    held = sum(one.verdict == "holds" for one in given)
    gates = [one.told_at for one in found if one.verdict != "holds"] or ([f"{held} of {held} hold"] if held else [])
    told = {"gates": "; ".join(gates) or None, "baseline": None if run.baseline is None else run.baseline.told}
    rows = [Table.of(ROW_HEADERS, map(row_cells, one.rows)).titled(f"failed: {one.name}") for one in found if one.rows]
    page = RunPage(
        scored,
        by=result.manifest.settings.by,
        title=run.name,
        gates=rows,
        facts=told | facts(scored),
    )
    return page.write(run.page)
