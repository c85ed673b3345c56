"""``geval-local meta-eval``: agreement of the judge with human ratings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import takes_options
from geval_local.options import JudgeOptions


@dataclass(frozen=True)
class People:
    """The ratings of your own rows, and what they are about."""

    human: options.Human = None
    fields: options.Fields = None
    raters: options.Raters = None
    group_by: options.GroupBy = None
    system: options.System = None


@dataclass(frozen=True)
class Beside:
    """What stands beside the scores."""

    ablations: Annotated[
        bool, typer.Option("--ablations", help="Also without steps, and by other estimators than the expectation.")
    ] = False
    estimator: options.Estimators = None
    no_steps: options.NoSteps = False
    no_baselines: Annotated[bool, typer.Option("--no-baselines", help="Leave reference metrics out.")] = False


@dataclass(frozen=True)
class Compared:
    """What is compared."""

    level: options.Level = None
    coefficient: Annotated[
        options.CoefficientName | None,
        typer.Option(help="What to compare. Absent: the paper's; spearman for your own rows.", show_default=False),
    ] = None
    target: options.New = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0


@takes_options()
def meta_eval(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A published benchmark file, or rows of your own.")],
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
    people: People,
    beside: Beside,
    limit_groups: Annotated[
        int | None, typer.Option(metavar="N", help="The first N documents only, for a quick look.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Keep the scored files here, and reuse them.")
    ] = None,
    compared: Compared,
    as_json: options.Json = False,
    chosen_judges: list[JudgeOptions],
) -> None:
    """Correlate scores with human ratings: the paper's tables for published files, the same for your own.

    Without --judge, --results or --from-responses the default judge scores FILE.
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
    )
    is_named = any(one.name is not None for one in chosen_judges)
    chosen = chosen_judges if is_named or not (results or responses) else []
    judges = RatedJudges(rows, file, chosen, output, load_shown, show_progress)
    study = meta_evaluate(
        rows,
        results or (),
        judged=lambda taken: judges.score(taken, estimators, steps_too=beside.ablations),
        responses=responses or (),
        estimators=estimators,
        overlap=not beside.no_baselines,
        **asdict(compared),
    )
    show_study(study, as_json=as_json)
