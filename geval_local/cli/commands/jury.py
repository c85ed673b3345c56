"""``geval-local jury``: several judges' runs over the same rows merged by the mean of their distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from geval_local.cli import options
from geval_local.cli.options import takes_options
from geval_local.cli.output.console import note
from geval_local.errors import OutputError


@takes_options()
def jury(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN RUN ...", help="Result files, or run directories, over the same rows.")
    ],
    *,
    metric: Annotated[
        str | None, typer.Option("--metric", "-m", metavar="NAME", help="Which metric, where the runs have several.")
    ] = None,
    weights: Annotated[
        Literal["equal", "human"],
        typer.Option(help="Alike, or by agreement with people on other documents."),
    ] = "equal",
    human: options.Human = None,
    group_by: options.GroupBy = None,
    agreement: options.Agreement,
    fields: options.Fields = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="A .jsonl, .csv or .parquet file.")
    ] = None,
    count: Annotated[int, typer.Option("--largest", metavar="N", min=0, help="Disagreements to list.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds.")] = 0,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Average several judges' label distributions, item by item, and show where they disagree."""
    from geval_local.analysis.juries import jury as deliberate
    from geval_local.analysis.juries import save_jury
    from geval_local.cli.output.tables import show_study
    from geval_local.fields import read_mapping
    from geval_local.runs.directory import result_file

    mapping = read_mapping(fields or [])
    if output is not None:
        _check_output(output, [result_file(path) for path in runs], overwrite=overwrite)
    study = deliberate(
        runs,
        metric=metric,
        weights=weights,
        human=human,
        group_by=group_by,
        fields=mapping,
        largest=count,
        seed=seed,
        **asdict(agreement),
    )
    if output is not None:
        save_jury(study, output)
    show_study(study, as_json=as_json)
    if output is not None:
        note(f"wrote {output}")


def _check_output(output: Path, inputs: Sequence[Path], *, overwrite: bool) -> None:
    """Reject an output that cannot be written, is one of the runs, or is a user's file."""
    from geval_local.io.result_manifest import check_results
    from geval_local.io.writer import ResultWriter

    target = ResultWriter.check(output)
    if target in [path.resolve() for path in inputs]:
        raise OutputError(f"cannot write {output}: it is one of the runs", hint="Name another file.")
    check_results(output, overwrite=overwrite)
