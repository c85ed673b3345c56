"""What is done with runs that have begun or ended: ``geval-local resume``, ``merge``, ``reasons``, ``report`` ..."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geval_local.cli import options
from geval_local.cli.options import AnalysisOptions, takes_options
from geval_local.cli.output.console import note, print_json, say
from geval_local.errors import ConfigurationError, JudgeError, OutputError
from geval_local.fields import read_mapping
from geval_local.options import JudgeOptions, RatingOptions, RunOptions

if TYPE_CHECKING:
    from geval_local.analysis.results import ScoredRun
    from geval_local.judge.judge import Judge


@takes_options()
def resume(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run directory, or the output file that a run was to write, by path or address."
        ),
    ],
    retry_errors: options.RetryErrors = False,
    *,
    gates: options.Gates,
    as_json: options.Json = False,
) -> None:
    """Continue an interrupted run with the settings of its manifest.

    On the same machine, the results equal those of an uninterrupted run byte for byte; to rounding where vLLM computes.
    """
    from geval_local.analysis.calibration import read_calibration
    from geval_local.cli.scoring import follow
    from geval_local.metric import Metric
    from geval_local.runs import run_file

    manifest = run_file.read_run(run)
    metrics = [Metric.model_validate(one) for one in manifest.settings.metrics]
    limits = gates.read(metrics, manifest.settings.by)
    follow(
        lambda events: run_file.resume(
            run, retry_errors=retry_errors, load_calibration=read_calibration, events=events
        ),
        manifest.input.name,
        limits,
        results=sum(metric.forms for metric in metrics) * sum(judge.thoughts for judge in manifest.judges),
        judges=len(manifest.judges),
        as_json=as_json,
    )


@takes_options("formats", "columns", "csv_style", "overwrite")
def merge(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN [RUN ...]",
            help="The directories of the shares of a run, or one that holds them.",
        ),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="The .jsonl, .csv or .parquet file to write, or a directory for the run, NAME/.",
        ),
    ],
    lowest: options.Lowest = 3,
    *,
    gates: options.Gates,
    as_json: options.Json = False,
    run_options: RunOptions,
) -> None:
    """Merge the shares of a run (`score --shard`) into one result in input order.

    Shares become the run that one process would have made: one result, one summary, one signature.
    """
    from geval_local.analysis.calibration import read_calibration
    from geval_local.cli.scoring import follow
    from geval_local.metric import Metric
    from geval_local.runs.merging import merge_shares, read_shares

    settings = read_shares(run)[0].manifest.settings
    limits = gates.read([Metric.model_validate(one) for one in settings.metrics], settings.by)
    follow(
        lambda events: merge_shares(run, output, run_options, load_calibration=read_calibration, events=events),
        output,
        limits,
        results=1,
        judges=1,
        as_json=as_json,
        lowest=lowest,
    )


@takes_options("fields", "overwrite")
def reasons(
    run: Annotated[
        Path, typer.Argument(parser=options.here, metavar="RUN", help="A result file of `score`, or a run directory.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="A .jsonl file: one reason per row.")],
    metric: options.OneMetric = None,
    lowest: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="The N worst rows: the lowest scores, or the highest where low is better."
        ),
    ] = None,
    entropy: Annotated[
        float | None,
        typer.Option(metavar="NATS", min=0.0, help="The rows whose probabilities have at least this entropy."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All scored rows.")] = False,
    tokens: Annotated[int, typer.Option(metavar="N", min=8, max=2**31, help="Most tokens of a reason.")] = 160,
    request: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Ask why in these words, for instance in the language of the rows; a last line that ends with a colon "
            "begins the reason. Absent: in English.",
        ),
    ] = None,
    as_json: options.Json = False,
    *,
    judge: JudgeOptions,
    run_options: RunOptions,
) -> None:
    """Let the judge of a run write why rows got their scores, citing the text; no score changes.

    The judge is asked about the label that it gave the most probability. Reasons are told to cite the text; whether
    they do is recorded. An interrupted command continues where it was when it is given again.
    """
    from geval_local.analysis.differences import doubt_of
    from geval_local.analysis.results import ScoredRun
    from geval_local.cli.output.run_summary import show_reasons
    from geval_local.cli.scoring import watch
    from geval_local.prompt import REASON_REQUEST
    from geval_local.runs.run_file import reason_file
    from geval_local.runs.settings import ReasonSettings

    scored = ScoredRun(run, run_options.fields)
    if output.suffix.lower() != ".jsonl":
        raise OutputError(f"cannot write {output}: reasons are JSON lines", hint="Give it a name that ends in .jsonl.")
    if output.resolve() == scored.path.resolve():
        raise OutputError(f"cannot write {output}: it is the run", hint="Name another file.")
    name = scored.one_metric(metric)
    chosen = _rows_to_explain(scored, name, lowest=lowest, entropy=entropy, everything=everything)
    if lowest is not None and (told := doubt_of(scored.items(name))):
        note(f"{name}: {told} The lowest scores are no worse than others.", "yellow")
    choice, load = _writer(run, scored, name, judge)
    result = watch(
        lambda events: reason_file(
            scored.path,
            scored.origin(name).definition,
            chosen,
            choice,
            output,
            asked=ReasonSettings(result=name, tokens=tokens, request=request or REASON_REQUEST),
            fields=scored.mapping,
            load=load,
            events=events,
            overwrite=run_options.overwrite,
        ),
        scored.path.name,
        unit="reasons",
    )
    show_reasons(output, name, as_json=as_json, is_new=result is not None)


def _rows_to_explain(
    scored: ScoredRun, name: str, *, lowest: int | None, entropy: float | None, everything: bool
) -> list[int]:
    """Choose the rows of a run whose scores are explained, and check that they have their texts."""
    from geval_local.analysis.preferences import holds_pairs
    from geval_local.analysis.results import figures_of
    from geval_local.io.input_checks import check_rows
    from geval_local.io.samples import Sample
    from geval_local.runs.reasons import chosen_places

    if holds_pairs(scored.rows.first, name) and "output_a" not in scored.rows.names:
        raise ConfigurationError(
            f"{scored.path} holds pairs, whose texts stay in their input: there is nothing to cite",
            hint="Reasons explain the scores of single outputs: score the input, and give that run.",
        )
    figures = figures_of(scored.rows, name, scored.path)
    metric = scored.origin(name).definition
    places = chosen_places(
        [figures.at(place) for place in range(len(scored.rows))],
        lowest=lowest,
        entropy=entropy,
        everything=everything,
        direction=metric.direction,
    )
    rows = map(scored.rows.columns_of, places)
    chosen = [Sample(row, row.number, scored.path.name, None, scored.mapping) for row in rows]
    check_rows(chosen, [metric], str(scored.path), scored.mapping)
    return [sample.row for sample in chosen]


def _writer(
    run: Path, scored: ScoredRun, name: str, judge: JudgeOptions
) -> tuple[JudgeOptions, Callable[[JudgeOptions], Judge]]:
    """Find who writes the reasons, the judge of the run unless another is named, and how to load it."""
    from geval_local.models.registry import entry_of, writes_reasons
    from geval_local.runs.directory import recorded_judge
    from geval_local.signature import judge_name, signature_differences, signature_parts

    origin = scored.origin(name)
    scorer = signature_parts(origin.signature)["judge"].rpartition("@")[0]
    choice = judge.model_copy(update={"name": judge.name or recorded_judge(run, scorer) or scorer})
    if (judge.name, judge.adapter, judge.models_file) == (None, None, None):
        try:
            entry_of(choice)
        except JudgeError as error:
            raise ConfigurationError(
                f"{scored.path} was scored by {scorer!r}, and no judge is found by this name: {error.message}",
                hint="Result files hold no paths. If the judge was given by its path, give it again: --judge PATH.",
            ) from error

    def load(given: JudgeOptions) -> Judge:
        from geval_local.judge.judge import Judge  # brings torch, which a file that is complete does not need

        loaded = Judge.load(given)
        differ = signature_differences(origin.signature, str(loaded.signature(origin.definition)))
        if "judge" in differ:
            if judge.name is None:
                raise ConfigurationError(
                    f"the judge {scorer!r} of {scored.path} is another one now",
                    hint="Name with --judge who is to write the reasons.",
                )
            told = f"the scores are those of {judge_name(scorer)}; the reasons are by {judge_name(loaded.name)}"
            note(told, "yellow")
        if not writes_reasons(given, loaded.fingerprint):
            note(f"warning: {loaded.name} can score but not write; name an instruct model by --judge", "yellow")
        return loaded

    return choice, load


def _judge_again(run: Path, metric: str) -> tuple[str | None, str, str | None]:
    """Return the judge of a run, its fingerprint, and how to name it again where its name alone does not find it."""
    from geval_local.analysis.results import ScoredRun
    from geval_local.models.registry import entry_of
    from geval_local.runs.directory import recorded_judge
    from geval_local.signature import signature_parts

    scored = ScoredRun(run)
    if not scored.is_described(metric):
        return None, "", None
    name, _, fingerprint = signature_parts(scored.origin(metric).signature)["judge"].rpartition("@")
    if recorded_judge(run, name) is not None:
        return name, fingerprint, None
    try:
        entry_of(JudgeOptions(name=name))
    except JudgeError:
        return name, fingerprint, f"PATH/TO/{name}"
    return name, fingerprint, None


@takes_options("human", "group_by", "system", "system_columns", "estimators", "fields", "by")
def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN [RUN ...]", help="Result files of `score`, or run directories.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="PAGE",
            help="The .html file to write; for several runs a directory, NAME/: a page for each, and an overview.",
        ),
    ],
    *,
    asked: AnalysisOptions,
    reasons: Annotated[
        list[Path] | None,
        typer.Option(
            parser=options.here,
            metavar="FILE",
            help="What `reasons` wrote for the run, shown beside its rows; may be repeated.",
        ),
    ] = None,
    lowest: options.Lowest = 3,
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most rows that charts and list of a page hold; tables are of all.")
    ] = 20_000,
    title: Annotated[
        str | None, typer.Option(help="Heading of the page; absent: the name of the file that was scored.")
    ] = None,
    overwrite: options.Overwrite = False,
    rated_on: RatingOptions,
) -> None:
    """Write a run as one self-contained HTML page, or many as one folder; without a network, opens from any disk."""
    from geval_local.analysis.results import read_results
    from geval_local.fields import counted
    from geval_local.report.reports import write_report as write

    is_folder = len(runs) > 1 or output.is_dir()
    read: list[Any] = list(map(options.here, runs))
    if not is_folder:
        mapping = read_mapping(asked.fields or [])
        read = [read_results(read[0], fields=mapping, group_by=asked.group_by, **dict(rated_on))]
    written = options.analyse(
        write,
        read,
        output,
        asked=replace(asked, estimators=None),
        estimators=options.read_estimators(asked.estimators, others=True),
        reasons=reasons or (),
        rows=rows,
        title=title,
        overwrite=overwrite,
        **dict(rated_on),
    )
    for name, reason in written.failed.items():
        note(f"not shown: {name}: {reason}", "yellow")
    if not is_folder:
        _show_worst(runs[0], read[0], lowest, has_reasons=bool(reasons))
    pages = f" and {counted(written.pages, 'page')}" if is_folder else ""
    note(f"wrote {written.path}{pages}; open it in any browser")


def _show_worst(run: str, shown: ScoredRun, lowest: int, *, has_reasons: bool) -> None:
    """Print the worst rows of a run, and how to learn why they are."""
    from geval_local.analysis.preferences import holds_pairs
    from geval_local.cli.output.run_summary import reasons_command, show_lowest, why_worst
    from geval_local.models.registry import writes_reasons
    from geval_local.runs.completion import LOWEST_KEPT

    found = shown.lowest(LOWEST_KEPT if lowest else 0)
    for metric, worst in found.items():
        show_lowest(metric, worst, lowest, shown.rule)
    first = next(((name, worst) for name, worst in found.items() if worst), None)
    if first is not None and not has_reasons and not holds_pairs(first[1][0][0].fields, first[0]):
        scorer, fingerprint, judge = _judge_again(options.here(run), first[0])
        if scorer is None or writes_reasons(JudgeOptions(name=scorer), fingerprint):
            note(f"{why_worst(first[1])}: {reasons_command(run, first[0], lowest, judge)}")


def export(
    run: Annotated[
        Path, typer.Argument(parser=options.here, metavar="RUN", help="A result file of `score`, or a run directory.")
    ],
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Write it as an MLflow run (needs mlflow), the report among its artifacts.")
    ] = False,
    tracking_uri: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Where MLflow keeps runs: sqlite:///mlflow.db. Absent: as MLflow is set up."),
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="MLflow's experiment. Absent: as MLflow is set up.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The MLflow run's name. Absent: the run's own.")
    ] = None,
    fields: options.Fields = None,
) -> None:
    """Hand a finished run over to another tool: summaries, signatures, result file, and the report as a page."""
    from geval_local.analysis.results import ScoredRun
    from geval_local.report.reports import write_report as write

    if not mlflow:
        raise ConfigurationError("nothing says where the run is to go", hint="Write --mlflow.")
    scored = ScoredRun(run, read_mapping(fields or []))
    _ = scored.metrics  # there are scores
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from geval_local.hosts.mlflow import log_results
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"mlflow cannot be imported: {error}", hint="Install it: pip install 'geval-local[mlflow]'"
        ) from error
    with TemporaryDirectory() as directory:
        page = write([run], Path(directory) / "report.html", fields=scored.mapping).path
        number = log_results(
            scored.path,
            fields=scored.mapping,
            artifacts=[page],
            tracking_uri=tracking_uri,
            experiment=experiment,
            name=name or scored.name,
        )
    note(f"wrote the MLflow run {number}")


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Forget everything.")] = False, as_json: options.Json = False
) -> None:
    """Show the cache of judges' figures, or clear it.

    Scoring a prompt that the same judge has read before takes its figures from here; `score --no-cache` does not.
    """
    from geval_local.runs.cache import OutcomeCache

    kept = OutcomeCache()
    entries, size = (0, kept.clear()) if clear else kept.size()
    kept.close()
    if as_json:
        print_json({"path": str(kept.path), "entries": entries, "bytes": size, "cleared": clear})
        return
    say(f"{'cleared' if clear else f'{entries} figures kept'}, {size / 1e6:.1f} MB in {kept.path}")
    if entries:
        note("forget them with: geval-local cache --clear")
