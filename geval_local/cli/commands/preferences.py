"""``geval-local preferences``: what comparisons say of systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options


def preferences(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Results of `pairs`, or of `score`, whose outputs are then compared."),
    ],
    metric: options.OneMetric = None,
    human: options.Human = None,
    ratings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows that hold the ratings; results of `score` hold them themselves."),
    ] = None,
    group_by: options.GroupBy = None,
    system: options.System = None,
    coefficient: options.Coefficient = "spearman",
    new: options.New = None,
    every_pair: Annotated[bool, typer.Option("--every-pair", help="Also show every pair of systems.")] = False,
    as_json: options.Json = False,
) -> None:
    """Rank systems by comparisons, side by side where several runs are given; with ratings also against people.

    Results of `score` cost nothing more: the first of two outputs is better as often as a label drawn for it is higher.
    """
    from geval_local.analysis.pairs import rank
    from geval_local.cli.output.tables import show_study

    found = rank(
        runs,
        metric=metric,
        human=human,
        ratings=ratings,
        group_by=group_by,
        system=system,
        coefficient=coefficient,
        target=new,
        every_pair=every_pair,
    )
    show_study(found, as_json=as_json)
