"""``geval-local score``: the options, checked before anything expensive happens."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geval_local.cli import options
from geval_local.cli.completion import complete_metric
from geval_local.cli.loading import Loading, takes_loading
from geval_local.errors import ConfigurationError

if TYPE_CHECKING:
    from geval_local.metric import Metric

__all__ = ["score"]


@takes_loading()
def score(
    context: typer.Context,
    file: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="JSONL, JSON, CSV or Parquet; one sample per row. - reads JSONL from standard input. With "
            "--distributed also several, directories, patterns, and addresses such as s3://BUCKET/DIR.",
        ),
    ],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            "--metric",
            "-m",
            metavar="NAME",
            help="A preset or a metric's YAML file; may be repeated.",
            autocompletion=complete_metric,
        ),
    ] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A published prompt with {{placeholders}}, used verbatim.")
    ] = None,
    scale: Annotated[str | None, typer.Option(help="The scale of --prompt-file, such as 1-5.")] = None,
    judge: options.JudgeNames = None,
    models: options.ModelsFile = None,
    output: options.Output = None,
    overwrite: options.OverwriteRun = False,
    export: options.Formats = None,
    window: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Rows planned together to share their texts. Absent: 4096.", show_default=False
        ),
    ] = None,
    field: options.Fields = None,
    columns: options.Columns = None,
    csv_safe: options.CsvSafe = False,
    retry_errors: options.RetryErrors = False,
    no_cache: options.NoCache = False,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Score the first N rows only.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first form, its tokens and the label trie; load no weights.")
    ] = False,
    estimator: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="exact: the expectation; mode: the likeliest label's value; sample: the mean of n draws; median.",
        ),
    ] = "exact",
    n: Annotated[int, typer.Option("--n", metavar="N", help="Draws per row, for --estimator sample.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    group_by: options.GroupBy = None,
    no_steps: Annotated[bool, typer.Option("--no-steps", help="Leave the evaluation steps out of the form.")] = False,
    looks: options.Looks = None,
    threshold: Annotated[
        float | None, typer.Option(metavar="X", help="The score that passes, on the metric's scale.")
    ] = None,
    calibration: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Add calibrated scores, by a file of `calibrate`; may be repeated."),
    ] = None,
    fail_under: options.FailUnder = None,
    max_unscored: options.MaxUnscored = None,
    as_json: options.Json = False,
    distributed: options.Distributed = None,
    workers: options.Workers = None,
    address: options.Address = None,
    gather_by: options.GatherBy = None,
    *,
    loading: Loading,
) -> None:
    """Score every row of a file on one or more metrics.

    Without -o only the closing table is printed. With it, finished work is always kept: the same command, or
    `geval-local resume`, continues after an interruption. A row that cannot be scored keeps its place, with the reason.
    """
    from geval_local.cli.gates import read_gates
    from geval_local.fields import read_mapping
    from geval_local.io.columns import read_columns
    from geval_local.score import Estimator

    gates = read_gates(fail_under, max_unscored)
    estimated = Estimator.parse(estimator, n=n, seed=seed)
    _check_spread(distributed, workers, address, gather_by)
    chosen = [options.with_looks(one, looks) for one in _metrics(metric or [], prompt_file, scale, no_steps)]
    for name, limit_value in (("--threshold", threshold), ("--fail-under", fail_under)):
        _check_on_scales(name, limit_value, chosen)
    choices = loading.all_of(judge, models)
    mapping = read_mapping(field or [])
    if dry_run:
        from geval_local.cli.output.forms import show_forms
        from geval_local.cli.standard_input import input_file

        with input_file(_one(file), keep=False) as path:
            show_forms(path, chosen, choices[0], mapping, as_json=as_json)
        return

    from geval_local.analysis.calibration import load_calibrations
    from geval_local.cli.scoring import follow
    from geval_local.cli.standard_input import input_file
    from geval_local.runs.events import RunEvents
    from geval_local.runs.score_file import RunResult, score_file
    from geval_local.runs.target import find_parts_target, find_target

    target = (find_target if distributed is None else find_parts_target)(output, export or [])
    options.check_csv(columns if distributed is None else None, csv_safe, target.formats)
    calibrations = load_calibrations(calibration or [], chosen)
    is_directory = target.directory is not None and target.output is None
    given: list[str | Path] = [*file]
    with ExitStack() as stack:
        if distributed is None or file == ["-"]:
            keep = target.directory is not None
            given = [stack.enter_context(input_file(_one(file), keep=keep, keep_after=is_directory))]

        def run(events: RunEvents) -> RunResult:
            return score_file(
                given,
                chosen,
                choices,
                output,
                formats=export or (),
                estimator=estimated,
                threshold=threshold,
                limit=limit,
                fields=mapping,
                columns=read_columns(columns),
                csv_safe=csv_safe,
                window=window,
                use_cache=not no_cache,
                retry_errors=retry_errors,
                overwrite=overwrite,
                calibrations=calibrations,
                distributed=distributed,
                workers=workers,
                address=address,
                gather_by=gather_by,
                metric_names=metric or (),
                group_by=group_by,
                events=events,
            )

        results = sum(one.forms for one in chosen) * len(choices)
        command = str(context.find_root().obj)
        follow(run, Path(given[0]).name, gates, results=results, judges=len(choices), as_json=as_json, command=command)


def _check_spread(distributed: str | None, workers: int | None, address: str | None, gather_by: str | None) -> None:
    for name, value in (("--workers", workers), ("--address", address), ("--gather-by", gather_by)):
        if distributed is None and value is not None:
            raise ConfigurationError(f"{name} belongs to --distributed", hint="Add --distributed ray.")


def _one(file: list[str]) -> Path:
    """Return the only file."""
    if len(file) > 1:
        raise ConfigurationError(
            f"one file at a time is scored on one machine, not {len(file)}",
            hint="Several files, directories and addresses are for --distributed ray.",
        )
    return Path(file[0])


def _metrics(names: list[str], prompt_file: Path | None, scale: str | None, no_steps: bool) -> list[Metric]:
    from geval_local.metric import Metric
    from geval_local.prompt import metric_from_prompt_file

    if prompt_file is None:
        if scale is not None:
            raise ConfigurationError("--scale belongs to --prompt-file; a metric brings its own scale")
        if not names:
            raise ConfigurationError(
                "no metric is named", hint="Add --metric NAME; `geval-local metrics list` shows the names."
            )
        metrics = [Metric.load(name) for name in names]
    elif names or scale is None or no_steps:
        raise ConfigurationError(
            "--prompt-file is a metric by itself: it goes with --scale, and with neither --metric nor --no-steps",
            hint=f"geval-local score FILE --prompt-file {prompt_file} --scale 1-5",
        )
    else:
        metrics = [metric_from_prompt_file(prompt_file, scale)]
    doubled = sorted({metric.name for metric in metrics if [other.name for other in metrics].count(metric.name) > 1})
    if doubled:
        raise ConfigurationError(
            f"two metrics have the same name: {', '.join(doubled)}", hint="Change the `name` in one of the YAML files."
        )
    return [metric.with_steps(()) for metric in metrics] if no_steps else metrics


def _check_on_scales(option: str, value: float | None, metrics: list[Metric]) -> None:
    """Reject a limit that every score of the metric reaches, or none can: it was meant for another scale."""
    for metric in metrics:
        if value is not None and not metric.scale.low <= value <= metric.scale.high:
            raise ConfigurationError(
                f"{option} {value:g} is outside the scale {metric.scale.text} of {metric.name}",
                hint="It is meant on the metric's own scale; metrics with different scales need runs of their own.",
            )
