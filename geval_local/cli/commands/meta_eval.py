"""``geval-local meta-eval``: agreement of the judge with human ratings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geval_local.cli import options
from geval_local.cli.option_groups import takes_options
from geval_local.errors import ConfigurationError
from geval_local.models.registry import entry_of, label_of, labels_of
from geval_local.options import JudgeOptions

if TYPE_CHECKING:
    from geval_local.analysis.ratings.rated import Rated
    from geval_local.analysis.ratings.responses import ParsedResponses
    from geval_local.analysis.studies.evaluation import Contender
    from geval_local.cli.meta_eval.kept_columns import KeptColumns
    from geval_local.cli.meta_eval.kept_runs import KeptRuns
    from geval_local.metric import Metric
    from geval_local.score import Estimator

__all__ = ["meta_eval"]


@takes_options()
def meta_eval(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A published benchmark file, or rows of your own.")],
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="summeval, topical-chat, qags (or qags-cnn, qags-xsum): what FILE is, unmodified."
        ),
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
    geval_parity: Annotated[
        bool, typer.Option("--geval-parity", help="Count responses without a number as 0, as G-Eval's script does.")
    ] = False,
    human: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Field of the human rating, for rows of your own; one for each --metric."),
    ] = None,
    field: options.Fields = None,
    rater: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="Field of one person's rating; two or more give the human ceiling."),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Where a record of FILE holds several outputs: the path to them, such as gen.{system}; see the docs.",
        ),
    ] = None,
    merge: Annotated[
        str | None,
        typer.Option(
            metavar="FIELDS", help="Rows alike in these fields, by commas, are one output, rated several times."
        ),
    ] = None,
    group_by: options.GroupBy = None,
    system: Annotated[str | None, typer.Option(metavar="FIELD", help="Field that says who wrote the output.")] = None,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Also without steps, and by other estimators than the expectation.")
    ] = False,
    estimator: options.Estimators = None,
    no_steps: Annotated[bool, typer.Option("--no-steps", help="Leave the evaluation steps out of the forms.")] = False,
    gptscore: Annotated[
        bool, typer.Option("--gptscore", help="Also each judge's GPTScore: its likelihood of the outputs.")
    ] = False,
    reference_model: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND=NAME", help="bertscore, bartscore or unieval, on weights that you have."),
    ] = None,
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
    constant: options.Constant = "skip",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    digits: Annotated[int, typer.Option(min=1, max=15, help="Decimals shown.")] = 3,
    as_json: options.Json = False,
    *,
    chosen_judges: list[JudgeOptions],
) -> None:
    """Correlate scores with human ratings: the paper's tables for published files, the same for your own.

    Without --judge, --results or --from-responses the default judge scores FILE.
    """
    from geval_local.analysis.ratings.published import published_table
    from geval_local.analysis.ratings.rated import OwnRatings, PublishedRatings, read_own, read_published
    from geval_local.analysis.studies.evaluation import evaluate
    from geval_local.cli.meta_eval import participants as sources
    from geval_local.cli.meta_eval.kept_columns import KeptColumns
    from geval_local.cli.meta_eval.kept_runs import KeptRuns, check_directory
    from geval_local.cli.meta_eval.metrics import benchmark_metrics, own_metrics
    from geval_local.cli.output.meta_evaluation import Report, show_report
    from geval_local.fields import read_mapping
    from geval_local.io.checks import ROWS_CHECKED, check_rows

    estimators = options.read_estimators(estimator, others=ablations)
    rated: Rated
    if benchmark is not None:
        if human or group_by or system or rater or field or rows or merge:
            raise ConfigurationError(
                "--human, --field, --rater, --rows, --merge, --group-by and --system are for your own rows; "
                "--benchmark brings them"
            )
        rated = read_published(file, benchmark, limit_groups=limit_groups)
        metrics = benchmark_metrics(rated.data.benchmark, metric or [])
        compared = coefficient or published_table(benchmark).coefficient
    else:
        if reference_model:
            raise ConfigurationError("--reference-model needs --benchmark: it asks what the benchmark rates")
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
            rows_at=rows,
            merge=[name.strip() for name in merge.split(",")] if merge else (),
        )
        compared = coefficient or "spearman"
    if no_steps:
        metrics = {dimension: one.with_steps(()) for dimension, one in metrics.items()}
    if geval_parity and not from_responses:
        raise ConfigurationError("--geval-parity is about --from-responses: here nothing is parsed")
    for dimension in metrics:
        # Find ratings that are not numbers now, and not after an hour of scoring.
        rated.items(dimension, [{}] * len(rated.rows))
    judge = [one.name for one in chosen_judges if one.name is not None]
    choices = chosen_judges if judge or not (results or from_responses) else []
    labels = labels_of(choices)
    for choice in choices:
        entry_of(choice)
    if len(choices) > 1:
        from geval_local.models.load import check_judge

        for choice in choices:
            check_judge(entry_of(choice), choice)
    dimensions = list(metrics)
    responses: list[Contender] = []
    parsed: dict[str, ParsedResponses] = {}
    if benchmark is not None and from_responses:
        responses, parsed = sources.from_responses(
            from_responses, benchmark, _all_dimensions(rated, dimensions, metric), metrics=metrics, parity=geval_parity
        )
    check_directory(output)

    found: list[Contender] = []
    mapping = rated.fields if isinstance(rated, OwnRatings) else {}
    # The same file read in another way has other rows.
    way = f"{rows or ''}|{merge or ''}"
    part = "--".join(
        [
            *([] if limit_groups is None else [f"first{limit_groups}"]),
            *([f"rows-{hashlib.sha256(way.encode()).hexdigest()[:8]}"] if rows or merge else []),
        ]
    )
    runs = KeptRuns(file, rated.rows, output, part, mapping)
    columns = KeptColumns(file, output, part)
    if choices:
        check_rows(runs.samples[:ROWS_CHECKED], metrics.values(), str(file), mapping)
    for path in results or []:
        run = sources.from_results(rated, path, metrics, [one.name for one in found], limit_groups)
        found += [run, *sources.ablations(run, metrics, estimators)]
    for choice, label in zip(choices, labels, strict=True):
        taken = [one.name for one in found]
        # One judge with two sets of options has two files.
        own = "--".join(filter(None, [part, label.removeprefix(label_of(choice))]))
        found += _judged(
            rated,
            replace(runs, part=own),
            replace(columns, part=own),
            choice,
            label,
            metrics,
            taken,
            estimators=estimators,
            steps_too=ablations,
            gptscore=gptscore,
        )
    found += responses
    notes: list[str] = []
    if isinstance(rated, PublishedRatings):
        found += sources.predictions(rated.data, _all_dimensions(rated, dimensions, metric))
        for asked in reference_model or []:
            from geval_local.cli.meta_eval.model_baselines import from_reference_model

            found.append(
                from_reference_model(
                    rated,
                    columns,
                    asked,
                    dimensions,
                    models_file=chosen_judges[0].models_file,
                    device=chosen_judges[0].device,
                )
            )
    if not no_baselines:
        reference, notes = sources.baselines(rated, dimensions)
        found += reference
    if level is not None and level not in rated.levels:
        raise ConfigurationError(
            f"these rows have no {level} level", hint=f"They have: {', '.join(rated.levels)}; see --group-by, --system."
        )
    levels = rated.levels if level is None else (level, *(one for one in rated.levels if one != level))
    evaluation = evaluate(found, levels, compared, target=new, constant=constant, seed=seed)
    ceiling = None
    if rater:
        from geval_local.analysis.reading import each_place, number_at
        from geval_local.analysis.studies.ceiling import human_ceiling

        ratings = {
            name: [number_at(row, name, f"{file}, row {place}") for place, row in enumerate(rated.rows, start=1)]
            for name in (one for path in rater for one in each_place(rated.rows, path))
        }
        judges = {
            one.name: items for one in found if one.kind == "judge" for items in one.items.values() if len(items) > 1
        }
        ceiling = human_ceiling(ratings, judges, levels[0], compared, target=new)
    report = Report(
        rated, metrics, evaluation, levels, compared, benchmark, parsed, tuple(notes), digits, ablations, ceiling
    )
    show_report(report, as_json=as_json)


def _judged(
    rated: Rated,
    runs: KeptRuns,
    columns: KeptColumns,
    choice: JudgeOptions,
    label: str,
    metrics: dict[str, Metric],
    taken: list[str],
    *,
    estimators: Sequence[Estimator],
    steps_too: bool,
    gptscore: bool,
) -> list[Contender]:
    """Load one judge, let it score, and release it before the next one is loaded."""
    from geval_local.cli.meta_eval import participants as sources
    from geval_local.cli.progress import load_shown
    from geval_local.signature import judge_name

    judge = load_shown(choice)
    name = judge_name(judge.name)
    name = name if name not in taken else label
    if name in taken:
        raise ConfigurationError(f"two judges are called {name}; name each of them once")
    no_steps = all(metric.steps == () for metric in metrics.values())
    full = sources.from_judge(rated, runs, judge, metrics, name)
    found = [full, *sources.ablations(full, metrics, estimators)]
    if steps_too and not no_steps:
        found.append(sources.without_steps(rated, runs, judge, metrics, name))
    if gptscore:
        from geval_local.cli.meta_eval.model_baselines import gptscore as gptscore_row

        found.append(gptscore_row(rated, columns, judge, metrics, name))
    return found


def _all_dimensions(rated: Rated, dimensions: list[str], named: list[str] | None) -> list[str]:
    """Return all rated dimensions, also those without a preset (for others' outputs), unless metrics were named."""
    from geval_local.analysis.ratings.rated import PublishedRatings

    if named or not isinstance(rated, PublishedRatings):
        return dimensions
    return list(rated.data.benchmark.dimensions)
