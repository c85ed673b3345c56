"""``geval-local resume``: go on with a run that was interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.errors import OutputError

__all__ = ["resume"]


def resume(
    context: typer.Context,
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run directory, or the output file that a run was to write.")
    ],
    retry_errors: options.RetryErrors = False,
    fail_under: options.FailUnder = None,
    max_unscored: options.MaxUnscored = None,
    as_json: options.Json = False,
) -> None:
    """Go on with a run where it was interrupted; everything else is as its manifest says.

    The results are byte for byte those of a run that was not interrupted, on the same machine.
    """
    from geval_local.cli.gates import EXIT_GATE, Gates
    from geval_local.cli.output.run_summary import show_result
    from geval_local.cli.scoring import score_file
    from geval_local.cli.task import Task
    from geval_local.runs.directory import is_run_directory, side_directory
    from geval_local.runs.manifest import read_manifest

    gates = Gates.parse(fail_under, max_unscored)
    try:
        # A directory holds its run itself; only a file has one beside it.
        directory = run if run.is_dir() else side_directory(run)
        manifest = read_manifest(directory) if is_run_directory(directory) else None
    except (OSError, RuntimeError, ValueError) as error:
        raise OutputError(f"cannot use {str(run)!r}: {error}", hint="Give the path of a run directory.") from error
    if manifest is None:
        raise OutputError(f"there is no run in {run}", hint="`geval-local score FILE ... -o DIR/` begins one.")
    task = Task.from_manifest(directory, manifest, gates, retry_errors=retry_errors)
    result = score_file(task)
    show_result(result, task, as_json=as_json, command=str(context.find_root().obj))
    if result.failures:
        raise typer.Exit(EXIT_GATE)
