"""``geval-local report``: a run as one HTML page that opens anywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.output.console import note


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN [RUN ...]", help="Result files of `score`, or run directories.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="PAGE",
            help="The .html file to write; for several runs a directory, NAME/: a page for each, and an overview.",
        ),
    ],
    human: options.Human = None,
    group_by: options.GroupBy = None,
    system: options.System = None,
    estimator: options.Estimators = None,
    reasons: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="What `reasons` wrote for the run, shown beside its rows; may be repeated."),
    ] = None,
    fields: options.Fields = None,
    lowest: options.Lowest = 3,
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most rows that charts and list of a page hold; tables are of all.")
    ] = 20_000,
    title: Annotated[str | None, typer.Option(help="Heading of the page; absent: the file's name.")] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a run as one self-contained HTML page, or many as one folder; without a network, opens from any disk."""
    from geval_local.analysis.preferences import holds_pairs
    from geval_local.cli.output.run_summary import reasons_command, show_lowest
    from geval_local.fields import counted, read_mapping
    from geval_local.io.results import load_results, lowest_rows
    from geval_local.report.reports import report as write
    from geval_local.runs.directory import result_file

    mapping = read_mapping(fields or [])
    is_folder = len(runs) > 1 or output.is_dir()
    written = write(
        runs,
        output,
        human=human or (),
        group_by=group_by,
        system=system,
        estimators=options.read_estimators(estimator, others=True),
        reasons=reasons or (),
        fields=mapping,
        rows=rows,
        title=title,
        overwrite=overwrite,
    )
    for name, reason in written.failed.items():
        note(f"not shown: {name}: {reason}", "yellow")
    for run in [] if is_folder else runs:
        found = lowest_rows(load_results(result_file(run), mapping), lowest)
        for metric, worst in found.items():
            show_lowest(metric, worst, lowest)
        shown = [(name, worst[0][0]) for name, worst in found.items() if worst]
        if shown and not reasons and not holds_pairs(shown[0][1].fields, shown[0][0]):
            note(f"why the lowest are low: {reasons_command(run, shown[0][0], lowest)}")
    pages = f" and {counted(written.pages, 'page')}" if is_folder else ""
    note(f"wrote {written.path}{pages}; open it in any browser")
