"""The runs of an evaluation, one after the other, each durable; then its reports and its gates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.analysis.results import ScoredRun
from geval_local.errors import ConfigurationError, GevalError
from geval_local.evaluation.document import EvaluationFile, Problems, read_evaluation, told_in_yaml
from geval_local.evaluation.gates import EVERY_METRIC, Gate, checked, failures, parse_limit
from geval_local.evaluation.model import GateSpec
from geval_local.fields import nearest
from geval_local.io.input_checks import check_distinct
from geval_local.io.ownership import check_replaceable
from geval_local.metric import Metric
from geval_local.models.registry import entry_of, labels_of
from geval_local.options import JudgeOptions
from geval_local.report.overview import describe
from geval_local.report.page import PAGE, check_target
from geval_local.report.run_page import RunPage
from geval_local.runs.completion import RunResult
from geval_local.runs.events import RunEvents
from geval_local.runs.run_file import check_file, score_file
from geval_local.runs.target import find_target

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge


@dataclass(frozen=True)
class DataRun:
    """What is to be done with a data file."""

    #: Its name in the file.
    name: str
    #: Its path.
    path: Path
    #: Its run directory.
    directory: Path
    #: Its report, if one is wanted.
    page: Path | None
    #: What its figures must reach.
    gates: list[Gate]


@dataclass(frozen=True)
class Plan:
    """What an evaluation is to do; everything in it exists, as far as that shows without weights."""

    #: What asks for it.
    file: EvaluationFile
    #: What is rated.
    metrics: list[Metric]
    #: Who rates.
    judges: list[JudgeOptions]
    #: In the order of the file.
    data: list[DataRun]


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation came to."""

    #: What asked for it.
    file: EvaluationFile
    #: Name of the data file -> its run.
    runs: dict[str, RunResult]
    #: Name of the data file -> its page.
    reports: dict[str, Path]
    #: The gates that failed, and metrics without any score; each begins with the name of its data file.
    failures: list[str]
    #: How many limits the figures were held against.
    gates: int = 0

    @property
    def passed(self) -> bool:
        """Whether no gate failed, and every metric has a score."""
        return not self.failures


@told_in_yaml()
def run_evaluation(
    file: str | PathLike[str] | Plan,
    *,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    retry_errors: bool = False,
    events: Callable[[DataRun], RunEvents] = lambda run: RunEvents(),
) -> EvaluationResult:
    """Do all that the file of an evaluation asks for. Called again, it goes on where it was interrupted.

    Parameters
    ----------
    file : path or Plan
        The YAML file, or what `make_plan` made of it.
    overrides : sequence of str
        ``KEY.PATH=VALUE``, see `geval_local.evaluation.document.read_evaluation`.
    overwrite : bool
        Leave to replace runs of another configuration, and pages that this tool did not write.
    retry_errors : bool
        Whether rows without a score are scored again.
    events : callable
        Gives what is told of each run, and may stop it.

    Returns
    -------
    EvaluationResult

    Raises
    ------
    GevalError
        If the file, or anything that it names, cannot be used. Data, metrics, judges and outputs are all checked before
        the first judge is loaded.
    Interrupted
        If a run was stopped. Everything finished is kept.
    """
    plan = file if isinstance(file, Plan) else make_plan(read_evaluation(file, overrides), overwrite=overwrite)
    settings, record = plan.file.settings, plan.file.record
    keeper = _JudgeKeeper()
    runs: dict[str, RunResult] = {}
    reports: dict[str, Path] = {}
    failed: list[str] = []
    gates = 0
    for run in plan.data:
        options = settings.run_options(run.name)
        result = score_file(
            run.path,
            plan.metrics,
            plan.judges,
            f"{run.directory}/",
            options.model_copy(update={"retry_errors": retry_errors, "overwrite": overwrite}),
            metric_names=[one.name for one in settings.metrics],
            evaluation=record,
            load=keeper.load,
            events=events(run),
        )
        runs[run.name] = result
        metrics = [metric.name for _ in result.judges for metric in plan.metrics]
        own = failures(run.gates, result.summaries, metrics)
        failed += [f"{run.name}: {one}" for one in own]
        held = checked(run.gates, result.summaries, metrics)
        gates += held
        if run.page is not None:
            reports[run.name] = _write_page(run, result, own or [f"{held} of {held} hold"] if held else own)
    return EvaluationResult(plan.file, runs, reports, failed, gates)


@told_in_yaml()
def make_plan(file: EvaluationFile, *, overwrite: bool = False) -> Plan:
    """Find everything that an evaluation names, and check it; all problems are told at once."""
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
    if settings.threshold is not None:
        _check_on_scales(settings.threshold, metrics, ("threshold",), problems)
    shared = _gates(file, ("gates",), settings.gates, metrics, labels, problems)
    directory = file.resolved(settings.outputs.directory)
    data = []
    for name, one in settings.data.items():
        run = DataRun(
            name,
            file.resolved(one.file),
            directory / name,
            directory / f"{name}.html" if settings.report else None,
            [*shared, *_gates(file, ("data", name, "gates"), one.gates, metrics, labels, problems)],
        )
        data.append(run)
        with problems.at("data", name):
            check_file(run.path, metrics, settings.run_options(name))
        with problems.at("outputs"):
            find_target(f"{run.directory}/", settings.run_options(name).formats)
        if run.page is not None and directory.is_dir():
            with problems.at("report"):
                check_target(run.page)
                check_replaceable(run.page, PAGE, overwrite=overwrite)
    if settings.outputs.columns and "csv" not in settings.outputs.formats:
        problems.add(("outputs", "columns"), "columns are about CSV results, and csv is not among the formats")
    problems.check()
    return Plan(file, metrics, judges, data)


def _metrics(file: EvaluationFile, problems: Problems) -> list[Metric]:
    metrics = []
    for place, use in enumerate(file.settings.metrics):
        with problems.at("metrics", place, "name"):
            is_file = use.name.endswith((".yaml", ".yml"))
            metric = Metric.load(file.resolved(use.name) if is_file else use.name)
            if use.threshold is not None:
                _check_on_scales(use.threshold, [metric], ("metrics", place, "threshold"), problems)
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
                # A path that is there is meant from where the file is; anything else is a name.
                with suppress(OSError, GevalError):
                    path = file.resolved(use.name)
                    update["name"] = str(path) if path.exists() else use.name
            judge = use.model_copy(update=update)
            entry_of(judge)
            judges.append(judge)
    return judges


def _check_on_scales(value: float, metrics: Sequence[Metric], place: tuple[int | str, ...], problems: Problems) -> None:
    """Refuse a limit that no score of a metric can miss, or none can reach: it was meant on another scale."""
    for metric in metrics:
        if not metric.scale.low <= value <= metric.scale.high:
            problems.add(place, f"{value:g} is outside the scale {metric.scale.text} of {metric.name}")


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
    found = []
    for name, spec in specs.items():
        concerned = list(metrics) if name == EVERY_METRIC else known.get(name)
        if concerned is None:
            problems.add(
                (*place, name),
                f"a gate of {name!r}, and no metric here has that name{nearest(name, [*names, EVERY_METRIC])}",
                f"The metrics are: {', '.join(names)}; {EVERY_METRIC} means every one.",
            )
            continue
        for figure, text in spec.model_dump(exclude_none=True).items():
            limit = parse_limit(figure, text)
            if figure in ("mean", "mean_low"):
                _check_on_scales(limit.value, concerned, (*place, name, figure), problems)
            if figure == "passed":
                without = [one.name for one in concerned if one.threshold is None and file.settings.threshold is None]
                if without:
                    problems.add((*place, name, figure), f"passed needs a threshold, and {without[0]} has none")
            # Results are named by their metric alone where there is one judge.
            found.append(Gate(figure, limit, name.partition("@")[0] if len(labels) == 1 and "@" in name else name))
    return found


class _JudgeKeeper:
    """Keeps the judge that was loaded last, for the next data file."""

    def __init__(self) -> None:
        self._options: JudgeOptions | None = None
        self._judge: Judge | None = None
        self._budget = (0, 0)

    def load(self, options: JudgeOptions) -> Judge:
        """Load a judge, or give it once more as it was loaded."""
        if self._judge is not None and self._options == options:
            # A run that is resumed has set the token budget that it began with.
            self._judge.engine.batch_tokens, self._judge.engine.limit = self._budget
            return self._judge
        if self._judge is not None:
            self._judge.close()
            self._judge = None
        from geval_local.judge.judge import Judge

        self._judge, self._options = Judge.load(options), options
        self._budget = self._judge.engine.batch_tokens, self._judge.engine.limit
        return self._judge


def _write_page(run: DataRun, result: RunResult, gates: Sequence[str]) -> Path:
    """Write the report of a data file's run, with what became of its gates."""
    assert run.page is not None
    results = result.target.results
    if results is None:
        raise ConfigurationError("a run without results has no report")
    scored = ScoredRun(sorted(result.files, key=lambda file: file.suffix == ".csv")[0])
    told = describe(scored)
    page = RunPage(
        scored.path,
        replace(told, facts={**({"gates": "; ".join(gates)} if gates else {}), **told.facts}),
        group_by=result.manifest.settings.group_by,
        title=run.name,
        fields=scored.mapping,
    )
    return page.write(run.page)
