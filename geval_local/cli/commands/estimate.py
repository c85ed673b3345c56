"""``geval-local estimate``: what people would say of all rows, from scores of all and ratings of a few."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options


def estimate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A result file of `score`, or a run directory.")],
    human: options.Human,
    metric: options.OneMetric = None,
    share: Annotated[
        float | None, typer.Option(metavar="X", help="The share of rows that people would rate X or higher.")
    ] = None,
    wins: Annotated[
        bool, typer.Option("--wins", help="How often one system is rated above another on the same document.")
    ] = False,
    system: options.System = None,
    baseline: options.Baseline = None,
    group_by: options.GroupBy = None,
    fields: options.Fields = None,
    as_json: options.Json = False,
) -> None:
    """Estimate the mean rating of every system from many scores and a few dozen ratings, with a valid interval.

    The rated rows have to be a random sample of all. Where the judge agrees with people, its scores of the other rows
    make the interval shorter; where it does not, the ratings alone count, and that is said.
    """
    from geval_local.analysis.estimates import estimate as find
    from geval_local.cli.output.tables import show_study
    from geval_local.fields import read_mapping

    found = find(
        file,
        human or (),
        metric=metric,
        share=share,
        wins=wins,
        system=system,
        baseline=baseline,
        group_by=group_by,
        fields=read_mapping(fields or []),
    )
    show_study(found, as_json=as_json)
