"""``geval-local compare``: which system is better, or how two runs differ, after what differs in them has been said."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [RUN ...]",
            help="Result files of `score`, or run directories: one with the systems in a column, one for each system, "
            "or two runs over the same rows.",
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", metavar="NAME", help="Only this metric; may be repeated. Absent: all shared."),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field that names the system. Absent: system_id or system, or one a file."),
    ] = None,
    baseline: options.Baseline = None,
    tie: Annotated[
        float, typer.Option(metavar="X", min=0, help="Documents whose scores differ by no more are counted as ties.")
    ] = 0.0,
    across: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="Allowed differences: judge, steps, estimator, style, ..., versions, input, or any; may be repeated.",
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Estimate the scores anew from the stored distributions: exact, mode or median.",
        ),
    ] = None,
    human: options.Human = None,
    group_by: options.GroupBy = None,
    fields: options.Fields = None,
    level: options.Level = None,
    coefficient: options.Coefficient = "spearman",
    target: options.New = None,
    count: Annotated[int, typer.Option("--largest", metavar="N", min=0, help="Disagreements to list.")] = 10,
    plan: Annotated[
        float | None, typer.Option(metavar="X", help="Say how many documents a true difference of X needs to be found.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the permutations.")] = 0,
    page: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Also write the comparison as one .html page.")
    ] = None,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Say which system is better, or how two runs over the same rows differ.

    Runs whose signatures differ in keys not named by --across are rejected.
    """
    from geval_local.analysis.comparison import compare as find
    from geval_local.analysis.results import ScoredRun
    from geval_local.cli.output.console import note
    from geval_local.cli.output.tables import show_study
    from geval_local.fields import read_mapping
    from geval_local.io.ownership import check_replaceable
    from geval_local.report.comparison_page import write_compared
    from geval_local.report.page import PAGE, check_target
    from geval_local.score import Estimator

    estimated = None if estimator is None else Estimator.parse(estimator)
    scored = [ScoredRun(path, read_mapping(fields or []), estimated) for path in runs]
    if page is not None:
        check_replaceable(check_target(page, *(run.path for run in scored)), PAGE, overwrite=overwrite)
    study = find(
        scored,
        metrics=metric or (),
        system=system,
        baseline=baseline,
        tie=tie,
        across=across or (),
        human=human,
        group_by=group_by,
        level=level,
        coefficient=coefficient,
        target=target,
        largest=count,
        plan=plan,
        seed=seed,
    )
    if page is not None:
        note(f"wrote {write_compared(study, page)}; open it in any browser")
    show_study(study, as_json=as_json)
