"""``geval-local meta-eval``: agreement of the judge with human ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geval_local.cli import options
from geval_local.cli.loading import Loading, takes_loading
from geval_local.errors import ConfigurationError
from geval_local.runs.judge_choice import JudgeChoice, labels_of

if TYPE_CHECKING:
    from geval_local.analysis.meta_evaluation import Contender
    from geval_local.analysis.ratings.rated import Rated
    from geval_local.analysis.ratings.responses import ParsedResponses
    from geval_local.cli.meta_eval.kept_runs import KeptRuns
    from geval_local.metric import Metric
    from geval_local.score import Estimator

__all__ = ["meta_eval"]


@takes_loading()
def meta_eval(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A published benchmark file, or rows of your own.")],
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="summeval, topical-chat, qags (or qags-cnn, qags-xsum): what FILE is, unmodified."
        ),
    ] = None,
    judge: Annotated[
        list[str] | None, typer.Option("--judge", "-j", metavar="NAME", help="A judge; may be repeated.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric", "-m", metavar="NAME", help="Only this dimension, or DIMENSION=METRIC (YAML, or prompt .txt)."
        ),
    ] = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="RUN",
            help="A result file of `score` over FILE, or a run directory; may be repeated. Nothing is scored.",
        ),
    ] = None,
    from_responses: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="G-Eval's raw responses, or UniEval's predictions: [DIMENSION=]FILE."),
    ] = None,
    human: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Field of the human rating, for rows of your own; one for each --metric."),
    ] = None,
    field: options.Fields = None,
    rater: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Field of one person's rating; two or more give the human ceiling."),
    ] = None,
    group_by: options.GroupBy = None,
    system: Annotated[str | None, typer.Option(metavar="FIELD", help="Field that says who wrote the output.")] = None,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Also without steps, and by other estimators than the expectation.")
    ] = False,
    estimator: options.Estimators = None,
    no_steps: Annotated[bool, typer.Option("--no-steps", help="Leave the evaluation steps out of the forms.")] = False,
    no_baselines: Annotated[bool, typer.Option("--no-baselines", help="Leave reference metrics out.")] = False,
    limit_groups: Annotated[
        int | None, typer.Option(metavar="N", help="The first N documents only, for a quick look.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Keep the scored files here, and reuse them.")
    ] = None,
    level: options.Level = None,
    coefficient: Annotated[
        options.CoefficientName | None,
        typer.Option(help="What to compare. Absent: the paper's; spearman for your own rows.", show_default=False),
    ] = None,
    new: options.New = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    as_json: options.Json = False,
    models: options.ModelsFile = None,
    *,
    loading: Loading,
) -> None:
    """Correlate scores with human ratings: the paper's tables for published files, the same for your own.

    Without --judge, --results or --from-responses the default judge scores FILE.
    """
    from geval_local.analysis import contenders as sources
    from geval_local.analysis.meta_evaluation import evaluate
    from geval_local.analysis.ratings.benchmarks import published_table
    from geval_local.analysis.ratings.rated import OwnRatings, PublishedRatings, read_own, read_published
    from geval_local.cli.meta_eval.kept_runs import KeptRuns, check_directory
    from geval_local.cli.meta_eval.metrics import benchmark_metrics, own_metrics
    from geval_local.cli.output.meta_evaluation import Report, show_report
    from geval_local.fields import read_mapping
    from geval_local.io.checks import ROWS_CHECKED, check_rows

    estimators = options.read_estimators(estimator, others=ablations)
    rated: Rated
    if benchmark is not None:
        if human or group_by or system or rater or field:
            raise ConfigurationError(
                "--human, --field, --rater, --group-by and --system are for your own rows; --benchmark brings them"
            )
        rated = read_published(file, benchmark, limit_groups=limit_groups)
        metrics = benchmark_metrics(rated.data.benchmark, metric or [])
        compared = coefficient or published_table(benchmark).coefficient
    else:
        if from_responses:
            raise ConfigurationError("--from-responses needs --benchmark: the files hold a benchmark's rows")
        metrics, fields = own_metrics(metric or [], human or [])
        if rater and len(metrics) != 1:
            raise ConfigurationError("--rater is about one metric", hint="Name it with --metric, and no other.")
        rated = read_own(
            file,
            fields,
            group_by=group_by,
            system=system,
            limit_groups=limit_groups,
            fields=read_mapping(field or []),
        )
        compared = coefficient or "spearman"
    if no_steps:
        metrics = {dimension: one.with_steps(()) for dimension, one in metrics.items()}
    for dimension in metrics:
        # Find ratings that are not numbers now, and not after an hour of scoring.
        rated.items(dimension, [{}] * len(rated.rows))
    choices = loading.all_of(judge, models) if judge or not (results or from_responses) else []
    labels = labels_of(choices)
    for choice in choices:
        choice.entry()
    if len(choices) > 1:
        for choice in choices:
            choice.check()
    dimensions = list(metrics)
    responses: list[Contender] = []
    parsed: dict[str, ParsedResponses] = {}
    if benchmark is not None and from_responses:
        responses, parsed = sources.from_responses(
            from_responses, benchmark, _all_dimensions(rated, dimensions, metric), metrics=metrics
        )
    check_directory(output)

    found: list[Contender] = []
    mapping = rated.fields if isinstance(rated, OwnRatings) else {}
    part = "" if limit_groups is None else f"first{limit_groups}"
    runs = KeptRuns(file, rated.rows, output, part, mapping)
    if choices:
        check_rows(runs.samples[:ROWS_CHECKED], metrics.values(), str(file), mapping)
    for path in results or []:
        run = sources.from_results(rated, path, metrics, [one.name for one in found], limit_groups)
        found += [run, *sources.ablations(run, metrics, estimators)]
    for choice, label in zip(choices, labels, strict=True):
        taken = [one.name for one in found]
        # One judge with two sets of options has two files.
        own = "--".join(filter(None, [part, label.removeprefix(choice.label())]))
        found += _judged(
            rated,
            replace(runs, part=own),
            choice,
            label,
            metrics,
            taken,
            estimators=estimators,
            steps_too=ablations,
        )
    found += responses
    notes: list[str] = []
    if isinstance(rated, PublishedRatings):
        found += sources.predictions(rated.data, _all_dimensions(rated, dimensions, metric))
    if not no_baselines:
        reference, notes = sources.baselines(rated, dimensions)
        found += reference
    if level is not None and level not in rated.levels:
        raise ConfigurationError(
            f"these rows have no {level} level", hint=f"They have: {', '.join(rated.levels)}; see --group-by, --system."
        )
    levels = rated.levels if level is None else (level, *(one for one in rated.levels if one != level))
    evaluation = evaluate(found, levels, compared, target=new, seed=seed)
    ceiling = None
    if rater:
        from geval_local.analysis.meta_evaluation import human_ceiling
        from geval_local.analysis.results import each_place, number_at

        ratings = {
            name: [number_at(row, name, f"{file}, row {place}") for place, row in enumerate(rated.rows, start=1)]
            for name in (one for path in rater for one in each_place(rated.rows, path))
        }
        judges = {
            one.name: items for one in found if one.kind == "judge" for items in one.items.values() if len(items) > 1
        }
        ceiling = human_ceiling(ratings, judges, levels[0], compared, target=new)
    report = Report(rated, metrics, evaluation, levels, compared, benchmark, parsed, tuple(notes), ceiling)
    show_report(report, as_json=as_json)


def _judged(
    rated: Rated,
    runs: KeptRuns,
    choice: JudgeChoice,
    label: str,
    metrics: dict[str, Metric],
    taken: list[str],
    *,
    estimators: Sequence[Estimator],
    steps_too: bool,
) -> list[Contender]:
    """Load one judge, let it score, and release it before the next one is loaded."""
    from geval_local.analysis import contenders as sources
    from geval_local.cli.meta_eval.kept_runs import from_judge, without_steps
    from geval_local.cli.progress import load_shown
    from geval_local.signature import judge_name

    judge = load_shown(choice)
    name = judge_name(judge.name)
    name = name if name not in taken else label
    if name in taken:
        raise ConfigurationError(f"two judges are called {name}; name each of them once")
    no_steps = all(metric.steps == () for metric in metrics.values())
    full = from_judge(rated, runs, judge, metrics, name)
    found = [full, *sources.ablations(full, metrics, estimators)]
    if steps_too and not no_steps:
        found.append(without_steps(rated, runs, judge, metrics, name))
    return found


def _all_dimensions(rated: Rated, dimensions: list[str], named: list[str] | None) -> list[str]:
    """Return all rated dimensions, also those without a preset (for others' outputs), unless metrics were named."""
    from geval_local.analysis.ratings.rated import PublishedRatings

    if named or not isinstance(rated, PublishedRatings):
        return dimensions
    return list(rated.data.benchmark.dimensions)
