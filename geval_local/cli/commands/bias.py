"""``geval-local bias``: favoured sides, and the effect of length on scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options


def bias(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A result file of `score`, or a run directory.")],
    side: Annotated[
        str, typer.Option(metavar="FIELD", help="Field of the side: who or what wrote the output, or any other.")
    ],
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
) -> None:
    """Compare mean scores of sides with intervals and a test, the paper's Figure 2 for any grouping.

    With --human or --rater also the gap less people's own: a gap alone is not yet a bias, since one side may be better.
    """
    from geval_local.analysis.biases import bias as find
    from geval_local.cli.output.tables import show_study
    from geval_local.fields import read_mapping

    found = find(
        file,
        side,
        metric=metric,
        human=human,
        raters=raters or (),
        group_by=group_by,
        between=between or (),
        fields=read_mapping(fields or []),
        seed=seed,
    )
    show_study(found, as_json=as_json)
