"""``geval-local resume``, ``merge``, ``export`` and ``cache``: what is done with runs that have begun or ended."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import takes_options
from geval_local.cli.output.console import note, print_json, say
from geval_local.errors import ConfigurationError
from geval_local.options import RunOptions


@takes_options()
def resume(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run directory, by path or address, or the output file that a run was to write."
        ),
    ],
    retry_errors: options.RetryErrors = False,
    *,
    gates: options.Gates,
    as_json: options.Json = False,
) -> None:
    """Continue an interrupted run with the settings of its manifest.

    On the same machine, the results equal those of an uninterrupted run byte for byte.
    """
    from geval_local.analysis.calibration import read_calibration
    from geval_local.cli.scoring import follow
    from geval_local.metric import Metric
    from geval_local.runs import run_file

    limits = gates.read()  # first: they may be wrong
    manifest = run_file.read_run(run)
    follow(
        lambda events: run_file.resume(
            run, retry_errors=retry_errors, load_calibration=read_calibration, events=events
        ),
        manifest.input.name,
        limits,
        results=sum(Metric.model_validate(one).forms for one in manifest.settings.metrics) * len(manifest.judges),
        judges=len(manifest.judges),
        as_json=as_json,
    )


def merge(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The directory of a distributed run, by path or address.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The .jsonl, .csv or .parquet file to write.")
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAMES",
            help="Columns of a CSV file, by commas, of those that the parts have: input columns, row, figures such as "
            "score or probabilities, METRIC.FIGURE, input for all input columns, all for everything. Absent: "
            "input,score,error.",
        ),
    ] = None,
    csv_safe: options.CsvSafe = False,
    overwrite: options.Overwrite = False,
) -> None:
    """Merge the parts of a distributed run into one file, in input order, with a manifest beside it."""
    from geval_local.ray.merge import merge_parts

    wanted = RunOptions(columns=columns).columns
    rows = merge_parts(run, output, columns=wanted, csv_safe=csv_safe, overwrite=overwrite)
    note(f"{rows} rows in {output}")


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A result file of `score`, or a run directory.")],
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Write it as an MLflow run (needs mlflow), the report among its artifacts.")
    ] = False,
    tracking_uri: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Where MLflow keeps runs: sqlite:///mlflow.db. Absent: as MLflow is set up."),
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="MLflow's experiment. Absent: as MLflow is set up.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The MLflow run's name. Absent: the run's own.")
    ] = None,
    fields: options.Fields = None,
) -> None:
    """Hand a finished run over to another tool: summaries, signatures, result file, and the report as a page."""
    from geval_local.analysis.results import ScoredRun
    from geval_local.fields import read_mapping
    from geval_local.report.reports import report

    if not mlflow:
        raise ConfigurationError("nothing says where the run is to go", hint="Write --mlflow.")
    scored = ScoredRun(run, read_mapping(fields or []))
    _ = scored.metrics  # there are scores
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from geval_local.hosts.mlflow import log_results
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"mlflow cannot be imported: {error}", hint="Install it: pip install 'geval-local[mlflow]'"
        ) from error
    with TemporaryDirectory() as directory:
        page = report([run], Path(directory) / "report.html", fields=scored.mapping).path
        number = log_results(
            scored.path,
            fields=scored.mapping,
            artifacts=[page],
            tracking_uri=tracking_uri,
            experiment=experiment,
            name=name or scored.name,
        )
    note(f"wrote the MLflow run {number}")


def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Forget everything.")] = False, as_json: options.Json = False
) -> None:
    """Show the cache of judges' figures, or clear it.

    Scoring a prompt that the same judge has read before takes its figures from here; `score --no-cache` does not.
    """
    from geval_local.runs.cache import OutcomeCache

    kept = OutcomeCache()
    entries, size = kept.size()
    if clear:
        kept.clear()
    kept.close()
    if as_json:
        print_json({"path": str(kept.path), "entries": entries, "bytes": size, "cleared": clear})
        return
    verb = "cleared" if clear else "kept"
    say(f"{entries} figures {verb}, {size / 1e6:.1f} MB in {kept.path}")
    if entries and not clear:
        note("forget them with: geval-local cache --clear")
