"""``geval-local preferences``: what comparisons say of systems, and whether people say the same. No model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.errors import ConfigurationError

__all__ = ["preferences"]


def preferences(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Results of `pairs`, or of `score`, whose outputs are then compared."),
    ],
    metric: Annotated[
        str | None, typer.Option("--metric", "-m", metavar="NAME", help="Which metric, where the runs have several.")
    ] = None,
    human: Annotated[str | None, typer.Option(metavar="FIELD", help="Field of the human rating.")] = None,
    ratings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows that hold the ratings; results of `score` hold them themselves."),
    ] = None,
    group_by: options.GroupBy = None,
    system: Annotated[str | None, typer.Option(metavar="FIELD", help="Field that says who wrote the output.")] = None,
    coefficient: options.Coefficient = "spearman",
    new: options.New = None,
    every_pair: Annotated[bool, typer.Option("--every-pair", help="Also show every pair of systems.")] = False,
    as_json: options.Json = False,
) -> None:
    """Rank systems by comparisons, side by side where several runs are given; with ratings also against people.

    Results of `score` cost nothing more: the first of two outputs is better as often as a label drawn for it is higher.
    """
    from geval_local.cli.output.console import print_json
    from geval_local.cli.output.preferences import show_sources, source_records
    from geval_local.cli.preferences import Asked, sources_of

    if ratings is not None and human is None:
        raise ConfigurationError("--ratings needs --human: the field of it that holds the rating")
    asked = Asked(metric=metric, human=human, ratings=ratings, group_by=group_by, system=system)
    sources = sources_of(runs, asked)
    if as_json:
        print_json(source_records(sources, coefficient, new))
        return
    show_sources(sources, coefficient, new, every_pair=every_pair)
