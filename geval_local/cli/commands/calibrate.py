"""``geval-local calibrate``: a map from scores to human ratings, with what it gains on documents it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from geval_local.cli import options
from geval_local.errors import OutputError

__all__ = ["calibrate"]


def calibrate(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A result file of `score`, or a run directory, with human ratings.")
    ],
    human: Annotated[str, typer.Option(metavar="FIELD", help="Field of the human rating; a dotted path will do.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The calibration, a small JSON file.")],
    metric: Annotated[
        str | None, typer.Option("--metric", "-m", metavar="NAME", help="Which metric, where the run has several.")
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Field of the document, which is never split between folds.")
    ] = None,
    method: Annotated[
        Literal["both", "temperature", "isotonic"],
        typer.Option(help="A temperature on the label distribution, a rising map of scores, or one after the other."),
    ] = "both",
    folds: Annotated[int, typer.Option(metavar="N", min=2, help="Folds of documents.")] = 5,
    resamples: Annotated[int, typer.Option(metavar="N", min=0, help="Bootstrap draws of documents.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of folds and draws.")] = 0,
    as_json: options.Json = False,
) -> None:
    """Fit a calibration and report what it gains on held-out documents; the gain in-sample is not reported.

    `score --calibration OUT` applies it, to scores under the same signature only.
    """
    from geval_local.analysis.studies.calibration import calibrate as fit
    from geval_local.analysis.studies.calibration_file import save_calibration
    from geval_local.analysis.tables import calibration_table
    from geval_local.cli.output.console import note, print_json
    from geval_local.cli.output.tables import as_record, show_table
    from geval_local.cli.scored_runs import ScoredRun, level_for

    scored = ScoredRun(run)
    if output.resolve() == scored.path.resolve():
        raise OutputError(f"cannot write {output}: it is the run", hint="Name another file.")
    name = scored.one_metric(metric)
    origin = scored.origin(name)
    fitted = fit(
        scored.items(name, human=human, group_by=group_by),
        origin.definition.scale,
        method=method,
        metric=name,
        human=human,
        signature=origin.signature,
        level=level_for(group_by),
        folds=folds,
        seed=seed,
        resamples=resamples,
    )
    save_calibration(fitted, output)
    held = fitted.held_out
    if as_json:
        print_json(
            {
                "metric": name,
                "human": human,
                "method": method,
                "temperature": fitted.temperature,
                "knots": [list(knot) for knot in fitted.knots],
                "held_out": as_record(held),
                "output": str(output),
            }
        )
    else:
        show_table(calibration_table(fitted), f"{name} against {human}, on held-out documents")
    if group_by is None:
        note("note: without --group-by rows of one document may stand on both sides of a fold", "yellow")
    if not held.after.mae < held.constant_mae:
        note("warning: held out, always answering the mean rating is as good as the calibrated scores", "yellow")
    if held.gain.high < 0:
        note("warning: held out, the calibrated scores are further from the ratings than the raw ones", "yellow")
    if held.gain.low <= 0 <= held.gain.high:
        note("warning: the gain's interval holds 0: on new documents the calibration may change nothing", "yellow")
    note(f"next: geval-local score FILE --metric {name} --calibration {output}")
