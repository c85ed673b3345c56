"""``geval-local score``: the options, checked before anything expensive happens."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from geval_local.cli import options
from geval_local.cli.options import takes_options
from geval_local.errors import ConfigurationError
from geval_local.options import JudgeOptions, RunOptions


@takes_options()
def score(
    file: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="JSONL, JSON, CSV or Parquet; one sample per row. - reads JSONL from standard input. With "
            "--distributed also several, directories, patterns, and addresses such as s3://BUCKET/DIR.",
        ),
    ],
    *,
    rated: options.Rated,
    output: options.Output = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the first form, its tokens and the label trie; load no weights.")
    ] = False,
    no_steps: options.NoSteps = False,
    gates: options.Gates,
    lowest: options.Lowest = 3,
    as_json: options.Json = False,
    judges: list[JudgeOptions],
    run: RunOptions,
) -> None:
    """Score every row of a file on one or more metrics.

    Without -o only the closing table is printed. With it, finished work is always kept: the same command, or
    `geval-local resume`, continues after an interruption. A row that cannot be scored keeps its place, with the reason.
    """
    from geval_local.cli.scoring import follow
    from geval_local.cli.standard_input import input_file

    limits = gates.read()
    chosen = options.chosen_metrics(rated, no_steps=no_steps)
    for name, limit_value in (("--threshold", run.threshold), ("--fail-under", gates.fail_under)):
        options.check_on_scales(name, limit_value, chosen)
    if dry_run:
        from geval_local.cli.output.audits import show_forms

        with input_file(_one(file), keep=False) as path:
            show_forms(path, chosen, judges[0], run.fields, as_json=as_json)
        return

    from geval_local.analysis.calibration import read_calibration
    from geval_local.runs.run_file import cluster_room, score_file
    from geval_local.runs.target import find_target

    find = cluster_room().find_parts_target if run.distributed else find_target
    target = find(output, run.formats)
    options.check_csv(run, target.formats)
    given: list[str | Path] = [*file]
    with ExitStack() as stack:
        if run.distributed is None or file == ["-"]:
            keep = target.directory is not None
            given = [stack.enter_context(input_file(_one(file), keep=keep, keep_after=target.is_directory))]
        follow(
            lambda events: score_file(
                given,
                chosen,
                judges,
                output,
                run,
                metric_names=rated.metric or (),
                load_calibration=read_calibration,
                events=events,
            ),
            Path(given[0]).name,
            limits,
            results=len(chosen) * len(judges),
            judges=len(judges),
            as_json=as_json,
            lowest=lowest,
        )


def _one(file: list[str]) -> Path:
    """Return the only file."""
    if len(file) > 1:
        raise ConfigurationError(
            f"one file at a time is scored on one machine, not {len(file)}",
            hint="Several files, directories and addresses are for --distributed ray.",
        )
    return Path(file[0])
