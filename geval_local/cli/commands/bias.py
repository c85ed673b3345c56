"""``geval-local bias``: favoured sides, and the effect of length on scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geval_local.cli import options
from geval_local.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from geval_local.analysis.differences import Gap
    from geval_local.analysis.records import ScoredItem

__all__ = ["bias"]

REST = "the others"


def bias(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A result file of `score`, or a run directory.")],
    side: Annotated[
        str, typer.Option(metavar="FIELD", help="Field of the side: who or what wrote the output, or any other.")
    ],
    metric: Annotated[
        str | None, typer.Option("--metric", "-m", metavar="NAME", help="Which metric, where the file has several.")
    ] = None,
    human: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Field of the human rating: gaps are split by preference.")
    ] = None,
    group_by: options.GroupBy = None,
    field: options.Fields = None,
    between: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Two sides to compare. Absent: both, or each with the others."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the permutations.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Compare mean scores of sides with intervals and a test, the paper's Figure 2 for any grouping.

    With --human also the gap minus people's gap: a gap alone is not yet a bias, since one side may be better.
    """
    from geval_local.analysis.bias import length_bias
    from geval_local.analysis.differences import side_means
    from geval_local.analysis.results import ScoredRun, level_for, missing_field
    from geval_local.fields import lookup, read_mapping
    from geval_local.grouping import documents_of
    from geval_local.io.results import numbered

    if between and len(between) != 2:
        raise ConfigurationError(f"a gap is between two sides, not {len(between)}", hint="Give --between twice.")
    run = ScoredRun(file, read_mapping(field or []))
    name = run.one_metric(metric)
    documents, grouping = documents_of(run.rows, group_by)
    items = run.items(name, human=human, group_by=documents)
    own = [lookup(row, side) for row in run.rows]
    for (number, row), found_side in zip(numbered(run.rows), own, strict=True):
        if found_side is None:
            raise missing_field(row, side, f"{file}, row {number}", "of the side ")
    members = [str(one) for one in own]
    gaps, unit = _gaps(items, members, between or [], rated=human is not None, seed=seed)
    found: dict[str, Any] = {
        "grouping": grouping,
        "sides": side_means(items, members),
        "gaps": gaps,
        "unit_against_people": unit,
        "length": None,
    }
    if any(item.length is not None for item in items):
        found["length"] = length_bias(items, level_for(documents))
    if as_json:
        from geval_local.cli.output.console import print_json
        from geval_local.cli.output.tables import as_record

        print_json(as_record({"file": file, "metric": name, "side": side, **found}))
        return
    _show(name, side, found)


def _gaps(
    items: Sequence[ScoredItem], members: Sequence[str], chosen: Sequence[str], *, rated: bool, seed: int
) -> tuple[dict[str, Gap], str | None]:
    """Compute gaps: two sides against each other, also by human preference; more than two, each against the others.

    With human ratings, every gap is followed by that of judge minus people; its unit is returned too.
    """
    from geval_local.analysis.bias import against_people, gaps_by_preference, preferences
    from geval_local.analysis.differences import gap
    from geval_local.analysis.statistics.significance import corrected

    names = list(dict.fromkeys(members))
    if len(names) < 2:
        raise DataError(f"all rows are of one side, {names[0]!r}: there is nothing to compare")
    excess, unit = (None, None)
    if rated:
        apart = _other_scale(items)
        excess = against_people(items, standardise=apart)
        unit = "standard deviations (ratings and scores have different scales)" if apart else "units of the scale"
    found: dict[str, Gap] = {}
    if not chosen and len(names) > 2:
        for name in names:
            two = [name if side == name else REST for side in members]
            found[name] = gap(items, two, name, REST, seed=seed)
            if excess is not None:
                found[f"{name}, judge less people"] = gap(excess, two, name, REST, seed=seed)
        return corrected(found), unit
    first, second = chosen or names
    found["all documents"] = gap(items, members, first, second, seed=seed)
    if excess is not None:
        found["judge less people"] = gap(excess, members, first, second, seed=seed)
        preferred = preferences(items, members, first, second)
        by_preference = gaps_by_preference(items, members, first, second, preferred, seed=seed)
        found |= {
            "people see no difference" if side == "equal" else f"people prefer {side}": own
            for side, own in by_preference.items()
        }
    return corrected(found), unit


def _other_scale(items: Sequence[ScoredItem]) -> bool:
    """Whether people apparently used another scale than the judge."""
    import math

    scores = [item.predicted for item in items if math.isfinite(item.predicted)]
    ratings = [item.human for item in items if math.isfinite(item.human)]
    labels = [float(label) for item in items for label in item.probabilities or () if _is_number(label)] or scores
    # Ratings beyond the labels, or within less than a third of their range, suggest another scale.
    width = max(labels) - min(labels)
    return not (
        min(labels) <= min(ratings) and max(ratings) <= max(labels) and max(ratings) - min(ratings) >= width / 3
    )


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _show(metric: str, side: str, found: dict[str, Any]) -> None:
    from geval_local.analysis.bias import length_table
    from geval_local.analysis.differences import gap_table, side_table
    from geval_local.cli.output.console import note
    from geval_local.cli.output.tables import show_table

    note(found["grouping"])
    show_table(side_table(found["sides"]), f"{metric}: mean score by {side}, with 95 % intervals over documents")
    show_table(gap_table(found["gaps"]), "gaps and their tests", fold=("gap", "test", "documents", "left out"))
    unit = found["unit_against_people"]
    if unit is None:
        note("note: a gap is not yet a bias, since one side may be better; --human FIELD takes that into account")
    else:
        note(
            f"judge less people: the gap that the judge adds to people's own, in {unit}; the only bias among these gaps"
        )
    if found["length"] is not None:
        show_table(length_table(found["length"]), "correlation with the length of the output")
