"""What scores are worth: ``geval-local meta-eval``, ``compare``, ``estimate``, ``bias``, ``calibrate`` and ``jury``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import AnalysisOptions, takes_options
from geval_local.cli.output.console import note
from geval_local.errors import ConfigurationError, OutputError
from geval_local.options import FIGURES, JudgeOptions, RatingOptions


@takes_options(
    *("human", "fields", "raters", "group_by", "system"),
    *("level", "coefficient", "coefficients", "target", "estimators", "seed"),
)
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
            metavar="FILE",
            help="G-Eval's raw responses, or UniEval's predictions: [DIMENSION=]FILE.",
            rich_help_panel=FIGURES,
        ),
    ] = None,
    asked: AnalysisOptions,
    ablations: Annotated[
        bool,
        typer.Option(
            "--ablations",
            help="Also without steps, and by other estimators than the expectation; of a judge that thinks also "
            "without thinking, and with 1 and 4 thoughts.",
            rich_help_panel=FIGURES,
        ),
    ] = False,
    no_steps: options.NoSteps = False,
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", help="Leave reference metrics out.", rich_help_panel=FIGURES)
    ] = False,
    limit_groups: Annotated[
        int | None,
        typer.Option(metavar="N", help="The first N documents only, for a quick look.", rich_help_panel=FIGURES),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Keep the scored files here, and reuse them.")
    ] = None,
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

    estimators = options.read_estimators(asked.estimators, others=ablations)
    rows = options.analyse(
        read_rated,
        file,
        asked=asked.only("human", "fields", "raters", "group_by", "system"),
        benchmark=benchmark,
        metrics=metrics or (),
        limit_groups=limit_groups,
        steps=not no_steps,
        results=results or (),
        **dict(rated_on),
    )
    is_named = any(one.name is not None for one in chosen_judges)
    chosen = chosen_judges if is_named or not (rows.results or responses) else []
    unused = [] if chosen else list(chosen_judges[0].model_dump(exclude_defaults=True))
    if unused:
        raise ConfigurationError(
            f"nothing is scored again, so `{unused[0]}` has no effect", hint="Name a --judge, or leave it out."
        )
    judges = RatedJudges(rows, file, chosen, output, load_shown, show_progress)
    study = options.analyse(
        meta_evaluate,
        rows,
        asked=asked.only("level", "coefficient", "coefficients", "target", "seed"),
        judged=lambda taken: judges.score(taken, estimators, ablate=ablations),
        responses=responses or (),
        estimators=estimators,
        baselines=not no_baselines,
    )
    show_study(study, as_json=as_json)


@takes_options(
    *("metrics", "system", "system_columns", "baseline", "tie", "across", "estimator", "human", "group_by", "fields"),
    *("level", "coefficient", "target", "largest", "seed"),
)
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
    asked: AnalysisOptions,
    plan: Annotated[
        float | None, typer.Option(metavar="X", help="Say how many documents a true difference of X needs to be found.")
    ] = None,
    page: Annotated[Path | None, typer.Option(metavar="PAGE", help="Also write the comparison as one .html page.")] = (
        None
    ),
    overwrite: options.Overwrite = False,
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

    if page is not None:
        check_replaceable(check_target(page, *map(result_file, runs)), PAGE, overwrite=overwrite)
    study = options.analyse(find, runs, asked=asked, plan=plan, **dict(rated_on))
    if page is not None:
        note(f"wrote {write_compared(study, page)}; open it in any browser")
    show_study(study, as_json=as_json)


@takes_options("human", "raters", "metric", "system", "baseline", "group_by", "fields", "seed")
def estimate(
    file: options.Results,
    *,
    asked: AnalysisOptions,
    share: Annotated[
        float | None, typer.Option(metavar="X", help="The share of rows that people would rate X or higher.")
    ] = None,
    wins: Annotated[
        bool, typer.Option("--wins", help="How often one system is rated above another on the same document.")
    ] = False,
    plan: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Draw N documents to rate, and say how short an interval they give."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="SHEET", help="With --plan: the rows to rate, a .csv or .jsonl file."),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(parser=options.here, metavar="SHEET", help="The sheet of --plan with ratings filled in."),
    ] = None,
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

    if plan is None:
        if output is not None:
            raise ConfigurationError("--output is the sheet to rate", hint="Say with --plan N how many documents.")
        asked = replace(asked, seed=None)  # it seeds the draw of a plan
        study = options.analyse(find, file, asked=asked, share=share, wins=wins, sheet=sheet, **dict(rated_on))
        show_study(study, as_json=as_json)
        return
    if share is not None or wins or asked.baseline is not None or sheet is not None:
        raise ConfigurationError(
            "--plan draws rows for every estimate; --share, --wins, --baseline and --sheet belong to a later one",
            hint="Leave them out here.",
        )
    drawn = options.analyse(plan_ratings, file, asked=asked, documents=plan, **dict(rated_on))
    if output is not None:
        save_sheet(drawn, output)
    show_study(drawn, as_json=as_json)
    if output is not None:
        again = f"type the command again with --sheet {output} in place of --plan {plan} -o {output}"
        note(f"wrote {output}; fill it in, and {again}")


@takes_options("metric", "human", "raters", "group_by", "fields", "between", "seed")
def bias(
    file: options.Results,
    side: Annotated[
        str, typer.Option(metavar="FIELD", help="Field of the side: who or what wrote the output, or any other.")
    ],
    *,
    asked: AnalysisOptions,
    as_json: options.Json = False,
    rated_on: RatingOptions,
) -> None:
    """Compare mean scores of sides with intervals and a test, the paper's Figure 2 for any grouping.

    With --human or --rater also the gap less people's own: a gap alone is not yet a bias, since one side may be better.
    """
    from geval_local.analysis.biases import bias as find
    from geval_local.cli.output.tables import show_study

    show_study(options.analyse(find, file, side, asked=asked, **dict(rated_on)), as_json=as_json)


@takes_options("metric", "group_by", "method", "folds", "seed")
def calibrate(
    file: options.Results,
    *,
    human: options.Rating,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The calibration, a small JSON file.")],
    asked: AnalysisOptions,
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

    if output.resolve() == result_file(file).resolve():
        raise OutputError(f"cannot write {output}: it is the run", hint="Name another file.")
    check_replaceable(output, FORMAT, overwrite=overwrite)
    study = options.analyse(fit, file, human, asked=asked, **dict(rated_on))
    save_calibration(study.calibration, output)
    show_study(study, as_json=as_json)
    if study.calibration.held_out.helps:
        note(f"next: geval-local score FILE --metric {study.calibration.metric} --calibration {output}")
    else:
        note("`score --calibration` refuses it: rate more documents, or use the scores as they are", "yellow")


@takes_options("metric", "human", "group_by", "level", "coefficient", "target", "fields", "largest")
def jury(
    runs: Annotated[
        list[Path],
        typer.Argument(
            parser=options.here, metavar="RUN RUN ...", help="Result files, or run directories, over the same rows."
        ),
    ],
    *,
    asked: AnalysisOptions,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="A .jsonl, .csv or .parquet file.")
    ] = None,
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
    study = options.analyse(deliberate, runs, asked=asked, **dict(rated_on))
    if output is not None:
        save_jury(study, output)
    show_study(study, as_json=as_json)
    if output is not None:
        note(f"wrote {output}")
