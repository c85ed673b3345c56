"""What scores are worth: ``geval-local meta-eval``, ``compare``, ``estimate``, ``bias``, ``calibrate`` and ``jury``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from geval_local.cli import options
from geval_local.cli.options import takes_options
from geval_local.cli.output.console import note
from geval_local.errors import ConfigurationError, OutputError
from geval_local.options import FIGURES, JudgeOptions, RatingOptions


@dataclass(frozen=True)
class PeopleOptions:
    """The ratings of your own rows, and what they are about."""

    human: options.Human = None
    fields: options.Fields = None
    raters: options.Raters = None
    group_by: options.GroupBy = None
    system: options.System = None


@dataclass(frozen=True)
class Beside:
    """What stands next to the scores."""

    ablations: Annotated[
        bool,
        typer.Option(
            "--ablations",
            help="Also without steps, and by other estimators than the expectation; of a judge that thinks also "
            "without thinking, and with 1 and 4 thoughts.",
            rich_help_panel=FIGURES,
        ),
    ] = False
    estimator: options.Estimators = None
    no_steps: options.NoSteps = False
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", help="Leave reference metrics out.", rich_help_panel=FIGURES)
    ] = False


@dataclass(frozen=True)
class Compared:
    """What is compared."""

    level: options.Level = None
    coefficient: Annotated[
        options.CoefficientName | None,
        typer.Option(help="What to compare. Absent: the paper's; spearman for your own rows.", show_default=False),
    ] = None
    coefficients: options.Coefficients = "one"
    target: options.New = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0


@takes_options()
def meta_eval(
    file: Annotated[
        Path,
        typer.Argument(parser=options.here, metavar="FILE", help="A published benchmark file, or rows of your own."),
    ],
    *,
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="summeval, topical-chat, qags (or qags-cnn, qags-xsum): what FILE is, unmodified."
        ),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "-m",
            metavar="NAME",
            help="Only this dimension, or DIMENSION=METRIC (YAML, or prompt .txt). For your own rows absent: those "
            "that were scored.",
        ),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            parser=options.here,
            metavar="RUN",
            help="A result file of `score` over FILE, or a run directory; may be repeated. A FILE that holds scores is "
            "one.",
        ),
    ] = None,
    responses: Annotated[
        list[str] | None,
        typer.Option(
            "--from-responses",
            metavar="FILE",
            help="G-Eval's raw responses, or UniEval's predictions: [DIMENSION=]FILE.",
            rich_help_panel=FIGURES,
        ),
    ] = None,
    people: PeopleOptions,
    beside: Beside,
    limit_groups: Annotated[
        int | None,
        typer.Option(metavar="N", help="The first N documents only, for a quick look.", rich_help_panel=FIGURES),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Keep the scored files here, and reuse them.")
    ] = None,
    compared: Compared,
    as_json: options.Json = False,
    rated_on: RatingOptions,
    chosen_judges: list[JudgeOptions],
) -> None:
    """Correlate scores with human ratings: the paper's tables for published files, the same for your own.

    Results are read with the judge, metric, fields and documents that they were scored with. Nothing is scored again
    unless you name a --judge, which scores the rated rows only. The default judge scores rows without any scores.
    """
    from geval_local.analysis.meta_evaluation import meta_evaluate
    from geval_local.analysis.ratings.rated import read_rated
    from geval_local.cli.output.tables import show_study
    from geval_local.cli.progress import load_shown, show_progress
    from geval_local.evaluation.kept_scores import RatedJudges
    from geval_local.fields import read_mapping

    estimators = options.read_estimators(beside.estimator, others=beside.ablations)
    rows = read_rated(
        file,
        benchmark=benchmark,
        metrics=metrics or (),
        human=people.human or (),
        raters=people.raters or (),
        group_by=people.group_by,
        system=people.system,
        fields=read_mapping(people.fields or []),
        limit_groups=limit_groups,
        steps=not beside.no_steps,
        results=results or (),
        **dict(rated_on),
    )
    is_named = any(one.name is not None for one in chosen_judges)
    chosen = chosen_judges if is_named or not (rows.results or responses) else []
    judges = RatedJudges(rows, file, chosen, output, load_shown, show_progress)
    study = meta_evaluate(
        rows,
        judged=lambda taken: judges.score(taken, estimators, ablate=beside.ablations),
        responses=responses or (),
        estimators=estimators,
        overlap=not beside.no_baselines,
        **asdict(compared),
    )
    show_study(study, as_json=as_json)


@dataclass(frozen=True)
class Systems:
    """How systems are compared."""

    system: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field that names the system. Absent: system_id or system, or one a file."),
    ] = None
    system_columns: options.SystemColumns = None
    baseline: options.Baseline = None
    tie: Annotated[
        float, typer.Option(metavar="X", min=0, help="Documents whose scores differ by no more are counted as ties.")
    ] = 0.0


@dataclass(frozen=True)
class Rows:
    """What the rows hold."""

    human: options.Human = None
    group_by: options.GroupBy = None
    fields: options.Fields = None


@dataclass(frozen=True)
class Page:
    """Where the comparison is also written."""

    page: Annotated[Path | None, typer.Option(metavar="PAGE", help="Also write the comparison as one .html page.")] = (
        None
    )
    overwrite: options.Overwrite = False


@takes_options()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            parser=options.here,
            metavar="RUN [RUN ...]",
            help="Result files of `score`, or run directories: one with the systems in a column, one for each system, "
            "or two runs over the same rows.",
        ),
    ],
    *,
    metric: options.SharedMetrics = None,
    systems: Systems,
    across: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Allowed differences: judge, steps, estimator, style, ..., versions, input, or any; may be repeated.",
        ),
    ] = None,
    estimator: options.Estimated = None,
    rows: Rows,
    agreement: options.AgreementOptions,
    count: Annotated[int, typer.Option("--largest", metavar="N", min=0, help="Disagreements to list.")] = 10,
    plan: Annotated[
        float | None, typer.Option(metavar="X", help="Say how many documents a true difference of X needs to be found.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the permutations.")] = 0,
    written: Page,
    rated_on: RatingOptions,
    as_json: options.Json = False,
) -> None:
    """Say which system is better, or how two runs over the same rows differ.

    Runs whose signatures differ in keys not named by --across are rejected. `gate` fails if a run is worse.
    """
    from geval_local.analysis.comparison import compare as find
    from geval_local.cli.output.tables import show_study
    from geval_local.io.ownership import check_replaceable
    from geval_local.report.comparison_page import write_compared
    from geval_local.report.page import PAGE, check_target
    from geval_local.runs.directory import result_file

    if written.page is not None:
        target = check_target(written.page, *map(result_file, runs))
        check_replaceable(target, PAGE, overwrite=written.overwrite)
    study = options.analyse(
        find,
        runs,
        metrics=metric,
        across=across,
        estimator=estimator,
        largest=count,
        plan=plan,
        seed=seed,
        **asdict(systems),
        **asdict(rows),
        **asdict(agreement),
        **dict(rated_on),
    )
    if written.page is not None:
        note(f"wrote {write_compared(study, written.page)}; open it in any browser")
    show_study(study, as_json=as_json)


@dataclass(frozen=True)
class Sheet:
    """The rows that people rate."""

    plan: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Draw N documents to rate, and say how short an interval they give."),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="SHEET", help="With --plan: the rows to rate, a .csv or .jsonl file."),
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0
    filled: Annotated[
        Path | None,
        typer.Option(
            "--sheet", parser=options.here, metavar="SHEET", help="The sheet of --plan with ratings filled in."
        ),
    ] = None


@takes_options()
def estimate(
    file: Annotated[
        Path, typer.Argument(parser=options.here, metavar="FILE", help="A result file of `score`, or a run directory.")
    ],
    *,
    human: options.Human = None,
    raters: options.Raters = None,
    metric: options.OneMetric = None,
    share: Annotated[
        float | None, typer.Option(metavar="X", help="The share of rows that people would rate X or higher.")
    ] = None,
    wins: Annotated[
        bool, typer.Option("--wins", help="How often one system is rated above another on the same document.")
    ] = False,
    sheet: Sheet,
    system: options.System = None,
    baseline: options.Baseline = None,
    group_by: options.GroupBy = None,
    fields: options.Fields = None,
    as_json: options.Json = False,
    rated_on: RatingOptions,
) -> None:
    """Estimate the mean rating of every system from many scores and a few dozen ratings, with a valid interval.

    The rated rows have to be a random sample of all. Where the judge agrees with people, its scores of the other rows
    make the interval shorter; where it does not, only the ratings count, and the output says so.
    """
    from geval_local.analysis.estimates import estimate as find
    from geval_local.analysis.rating_plans import plan_ratings, save_sheet
    from geval_local.cli.output.tables import show_study

    people = {"raters": raters or (), "metric": metric, "system": system, "group_by": group_by, "fields": fields}
    people |= dict(rated_on)
    if sheet.plan is None:
        if sheet.output is not None:
            raise ConfigurationError("--output is the sheet to rate", hint="Say with --plan N how many documents.")
        study = options.analyse(
            find, file, human or None, share=share, wins=wins, baseline=baseline, sheet=sheet.filled, **people
        )
        show_study(study, as_json=as_json)
        return
    if share is not None or wins or baseline is not None or sheet.filled is not None:
        raise ConfigurationError(
            "--plan draws rows for every estimate; --share, --wins, --baseline and --sheet belong to a later one",
            hint="Leave them out here.",
        )
    plan = options.analyse(plan_ratings, file, human or None, documents=sheet.plan, seed=sheet.seed, **people)
    if sheet.output is not None:
        save_sheet(plan, sheet.output)
    show_study(plan, as_json=as_json)
    if sheet.output is not None:
        note(f"wrote {sheet.output}; once it is filled in: geval-local estimate {file} ... --sheet {sheet.output}")


@takes_options()
def bias(
    file: Annotated[
        Path, typer.Argument(parser=options.here, metavar="FILE", help="A result file of `score`, or a run directory.")
    ],
    side: Annotated[
        str, typer.Option(metavar="FIELD", help="Field of the side: who or what wrote the output, or any other.")
    ],
    *,
    metric: options.OneMetric = None,
    human: options.Human = None,
    raters: options.Raters = None,
    group_by: options.GroupBy = None,
    fields: options.Fields = None,
    between: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Two sides to compare. Absent: both, or each with the others."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the permutations.")] = 0,
    as_json: options.Json = False,
    rated_on: RatingOptions,
) -> None:
    """Compare mean scores of sides with intervals and a test, the paper's Figure 2 for any grouping.

    With --human or --rater also the gap less people's own: a gap alone is not yet a bias, since one side may be better.
    """
    from geval_local.analysis.biases import bias as find
    from geval_local.cli.output.tables import show_study

    study = options.analyse(
        find,
        file,
        side,
        metric=metric,
        human=human,
        raters=raters,
        group_by=group_by,
        between=between,
        fields=fields,
        seed=seed,
        **dict(rated_on),
    )
    show_study(study, as_json=as_json)


@takes_options()
def calibrate(
    run: Annotated[
        Path,
        typer.Argument(
            parser=options.here, metavar="RUN", help="A result file of `score`, or a run directory, with human ratings."
        ),
    ],
    *,
    human: options.Human,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The calibration, a small JSON file.")],
    metric: options.OneMetric = None,
    group_by: options.GroupBy = None,
    method: Annotated[
        Literal["both", "temperature", "isotonic"],
        typer.Option(help="A temperature on the label distribution, a rising map of scores, or one after the other."),
    ] = "both",
    folds: Annotated[int, typer.Option(metavar="N", min=2, help="Folds of documents, which are never split.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds.")] = 0,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    rated_on: RatingOptions,
) -> None:
    """Fit a calibration and report what it gains on held-out documents; the gain in-sample is not reported.

    `score --calibration OUT` applies it if it helps, to scores under the same signature only.
    """
    from geval_local.analysis.calibration import FORMAT, save_calibration
    from geval_local.analysis.calibration import calibrate as fit
    from geval_local.cli.output.tables import show_study
    from geval_local.io.ownership import check_replaceable
    from geval_local.runs.directory import result_file

    if output.resolve() == result_file(run).resolve():
        raise OutputError(f"cannot write {output}: it is the run", hint="Name another file.")
    check_replaceable(output, FORMAT, overwrite=overwrite)
    study = options.analyse(
        fit,
        run,
        human or (),
        metric=metric,
        group_by=group_by,
        method=method,
        folds=folds,
        seed=seed,
        **dict(rated_on),
    )
    save_calibration(study.calibration, output)
    show_study(study, as_json=as_json)
    if study.calibration.held_out.helps:
        note(f"next: geval-local score FILE --metric {study.calibration.metric} --calibration {output}")
    else:
        note("`score --calibration` refuses it: rate more documents, or use the scores as they are", "yellow")


@takes_options()
def jury(
    runs: Annotated[
        list[Path],
        typer.Argument(
            parser=options.here, metavar="RUN RUN ...", help="Result files, or run directories, over the same rows."
        ),
    ],
    *,
    metric: options.OneMetric = None,
    human: options.Human = None,
    group_by: options.GroupBy = None,
    agreement: options.AgreementOptions,
    fields: options.Fields = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="A .jsonl, .csv or .parquet file.")
    ] = None,
    count: Annotated[int, typer.Option("--largest", metavar="N", min=0, help="Disagreements to list.")] = 10,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    rated_on: RatingOptions,
) -> None:
    """Average several judges' label distributions, item by item, and show where they disagree."""
    from geval_local.analysis.juries import jury as deliberate
    from geval_local.analysis.juries import save_jury
    from geval_local.cli.output.tables import show_study
    from geval_local.io.result_manifest import check_results
    from geval_local.io.writer import ResultWriter
    from geval_local.runs.directory import result_file

    if output is not None:
        if ResultWriter.check(output) in [result_file(path).resolve() for path in runs]:
            raise OutputError(f"cannot write {output}: it is one of the runs", hint="Name another file.")
        check_results(output, overwrite=overwrite)
    study = options.analyse(
        deliberate,
        runs,
        metric=metric,
        human=human,
        group_by=group_by,
        fields=fields,
        largest=count,
        **asdict(agreement),
        **dict(rated_on),
    )
    if output is not None:
        save_jury(study, output)
    show_study(study, as_json=as_json)
    if output is not None:
        note(f"wrote {output}")
