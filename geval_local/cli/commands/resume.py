"""``geval-local resume``: continue an interrupted run."""

from __future__ import annotations

from typing import Annotated

import typer

from geval_local.cli import options


def resume(
    context: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run directory, by path or address, or the output file that a run was to write."
        ),
    ],
    retry_errors: options.RetryErrors = False,
    fail_under: options.FailUnder = None,
    max_unscored: options.MaxUnscored = None,
    as_json: options.Json = False,
) -> None:
    """Continue an interrupted run with the settings of its manifest.

    On the same machine, the results equal those of an uninterrupted run byte for byte.
    """
    from geval_local.analysis.calibration import read_calibration
    from geval_local.cli.scoring import follow, read_gates
    from geval_local.metric import Metric
    from geval_local.runs import run_file

    gates = read_gates(fail_under, max_unscored)
    manifest = run_file.read_run(run)
    follow(
        lambda events: run_file.resume(
            run, retry_errors=retry_errors, load_calibration=read_calibration, events=events
        ),
        manifest.input.name,
        gates,
        results=sum(Metric.model_validate(one).forms for one in manifest.settings.metrics) * len(manifest.judges),
        judges=len(manifest.judges),
        as_json=as_json,
        command=str(context.find_root().obj),
    )
