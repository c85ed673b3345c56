"""``geval-local compare``: which system is better, or how two runs differ, after what differs in them has been said."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import takes_options


@dataclass(frozen=True)
class Systems:
    """How systems are compared."""

    system: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field that names the system. Absent: system_id or system, or one a file."),
    ] = None
    baseline: options.Baseline = None
    tie: Annotated[
        float, typer.Option(metavar="X", min=0, help="Documents whose scores differ by no more are counted as ties.")
    ] = 0.0


@dataclass(frozen=True)
class Rows:
    """What the rows hold."""

    human: options.Human = None
    group_by: options.GroupBy = None
    fields: options.Fields = None


@dataclass(frozen=True)
class Page:
    """Where the comparison is also written."""

    page: Annotated[Path | None, typer.Option(metavar="PAGE", help="Also write the comparison as one .html page.")] = (
        None
    )
    overwrite: options.Overwrite = False


@takes_options()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN [RUN ...]",
            help="Result files of `score`, or run directories: one with the systems in a column, one for each system, "
            "or two runs over the same rows.",
        ),
    ],
    *,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", metavar="NAME", help="Only this metric; may be repeated. Absent: all shared."),
    ] = None,
    systems: Systems,
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
    rows: Rows,
    agreement: options.Agreement,
    count: Annotated[int, typer.Option("--largest", metavar="N", min=0, help="Disagreements to list.")] = 10,
    plan: Annotated[
        float | None, typer.Option(metavar="X", help="Say how many documents a true difference of X needs to be found.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the permutations.")] = 0,
    written: Page,
    as_json: options.Json = False,
) -> None:
    """Say which system is better, or how two runs over the same rows differ.

    Runs whose signatures differ in keys not named by --across are rejected.
    """
    from geval_local.analysis.comparison import compare as find
    from geval_local.cli.output.console import note
    from geval_local.cli.output.tables import show_study
    from geval_local.fields import read_mapping
    from geval_local.io.ownership import check_replaceable
    from geval_local.report.comparison_page import write_compared
    from geval_local.report.page import PAGE, check_target
    from geval_local.runs.directory import result_file

    mapping = read_mapping(rows.fields or [])
    if written.page is not None:
        target = check_target(written.page, *map(result_file, runs))
        check_replaceable(target, PAGE, overwrite=written.overwrite)
    study = find(
        runs,
        metrics=metric or (),
        across=across or (),
        human=rows.human,
        group_by=rows.group_by,
        fields=mapping,
        estimator=estimator,
        largest=count,
        plan=plan,
        seed=seed,
        **asdict(systems),
        **asdict(agreement),
    )
    if written.page is not None:
        note(f"wrote {write_compared(study, written.page)}; open it in any browser")
    show_study(study, as_json=as_json)
