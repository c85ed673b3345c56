"""``geval-local calibrate``: a map from scores to human ratings, with its gain on held-out documents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from geval_local.cli import options
from geval_local.errors import OutputError


def calibrate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A result file of `score`, or a run directory, with human ratings.")
    ],
    human: options.Human,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The calibration, a small JSON file.")],
    metric: options.OneMetric = None,
    group_by: options.GroupBy = None,
    method: Annotated[
        Literal["both", "temperature", "isotonic"],
        typer.Option(help="A temperature on the label distribution, a rising map of scores, or one after the other."),
    ] = "both",
    folds: Annotated[int, typer.Option(metavar="N", min=2, help="Folds of documents, which are never split.")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds.")] = 0,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
) -> None:
    """Fit a calibration and report what it gains on held-out documents; the gain in-sample is not reported.

    `score --calibration OUT` applies it if it helps, to scores under the same signature only.
    """
    from geval_local.analysis.calibration import FORMAT, save_calibration
    from geval_local.analysis.calibration import calibrate as fit
    from geval_local.cli.output.console import note, print_json
    from geval_local.cli.output.tables import show_study
    from geval_local.io.ownership import check_replaceable
    from geval_local.runs.directory import result_file

    if output.resolve() == result_file(run).resolve():
        raise OutputError(f"cannot write {output}: it is the run", hint="Name another file.")
    check_replaceable(output, FORMAT, overwrite=overwrite)
    study = fit(run, human or (), metric=metric, group_by=group_by, method=method, folds=folds, seed=seed)
    save_calibration(study.calibration, output)
    if as_json:
        print_json(study.to_dict() | {"output": str(output)})
        for text, is_warning in study.remarks():
            note(text, "yellow" if is_warning else "")
    else:
        show_study(study, as_json=False)
    if study.calibration.held_out.helps:
        note(f"next: geval-local score FILE --metric {study.calibration.metric} --calibration {output}")
    else:
        note("`score --calibration` refuses it: rate more documents, or use the scores as they are", "yellow")
