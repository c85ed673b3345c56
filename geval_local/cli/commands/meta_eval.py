"""``geval-local meta-eval``: agreement of the judge with human ratings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import takes_options
from geval_local.options import JudgeOptions


@takes_options()
def meta_eval(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A published benchmark file, or rows of your own.")],
    benchmark: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="summeval, topical-chat, qags (or qags-cnn, qags-xsum): what FILE is, unmodified."
        ),
    ] = None,
    metrics: Annotated[
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
    responses: Annotated[
        list[str] | None,
        typer.Option(
            "--from-responses",
            metavar="FILE",
            help="G-Eval's raw responses, or UniEval's predictions: [DIMENSION=]FILE.",
        ),
    ] = None,
    human: options.Human = None,
    fields: options.Fields = None,
    raters: options.Raters = None,
    group_by: options.GroupBy = None,
    system: options.System = None,
    ablations: Annotated[
        bool, typer.Option("--ablations", help="Also without steps, and by other estimators than the expectation.")
    ] = False,
    estimator: options.Estimators = None,
    no_steps: options.NoSteps = False,
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
    target: options.New = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    as_json: options.Json = False,
    *,
    chosen_judges: list[JudgeOptions],
) -> None:
    """Correlate scores with human ratings: the paper's tables for published files, the same for your own.

    Without --judge, --results or --from-responses the default judge scores FILE.
    """
    from geval_local.analysis.contenders import meta_evaluate, read_rated
    from geval_local.cli.output.tables import show_study
    from geval_local.cli.progress import load_shown, show_progress
    from geval_local.evaluation.kept_scores import RatedJudges
    from geval_local.fields import read_mapping

    estimators = options.read_estimators(estimator, others=ablations)
    rows = read_rated(
        file,
        benchmark=benchmark,
        metrics=metrics or (),
        human=human or (),
        raters=raters or (),
        group_by=group_by,
        system=system,
        fields=read_mapping(fields or []),
        limit_groups=limit_groups,
        steps=not no_steps,
    )
    is_named = any(one.name is not None for one in chosen_judges)
    chosen = chosen_judges if is_named or not (results or responses) else []
    judges = RatedJudges(rows, file, chosen, output, load_shown, show_progress)
    study = meta_evaluate(
        rows,
        results or (),
        judged=lambda taken: judges.score(taken, estimators, steps_too=ablations),
        responses=responses or (),
        estimators=estimators,
        overlap=not no_baselines,
        level=level,
        coefficient=coefficient,
        target=target,
        seed=seed,
    )
    show_study(study, as_json=as_json)
