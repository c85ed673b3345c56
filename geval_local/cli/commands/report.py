"""``geval-local report``: a run as one page that opens anywhere, and what such a page is told of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geval_local.cli import options
from geval_local.cli.output.console import note
from geval_local.errors import ConfigurationError, UnscorableError

if TYPE_CHECKING:
    from geval_local.analysis.tables import Table
    from geval_local.cli.scored_runs import ScoredRun
    from geval_local.report.overview import MetricNotes

__all__ = ["facts_of", "notes_of", "report", "signatures_of"]

#: Draws of the sampled row of the ablation, as many as the paper had.
DRAWS = 20


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A result file of `score`, or a run directory.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PAGE", help="The .html file to write.")],
    human: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[METRIC=]FIELD", help="Field of the human rating, of all metrics or of one; may be repeated."
        ),
    ] = None,
    group_by: options.GroupBy = None,
    field: options.Fields = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page; absent: the file's name.")] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a run as one self-contained HTML page: no network, no server, opens from any disk."""
    from geval_local.cli.scored_runs import ScoredRun
    from geval_local.fields import read_mapping
    from geval_local.files import check_replaceable
    from geval_local.report.page import check_target, is_own_page
    from geval_local.report.run_page import write_report

    scored = ScoredRun(run, read_mapping(field or []))
    target = check_target(output, scored.path)
    check_replaceable(target, is_own=is_own_page(target), overwrite=overwrite)
    ratings = _ratings(human or [], scored.metrics)
    page = write_report(
        scored.path,
        output,
        metrics=notes_of(scored),
        human=ratings,
        group_by=group_by,
        signature=signatures_of(scored),
        manifest=facts_of(scored),
        ablation=_ablation(scored, ratings, group_by),
        title=title or scored.name if scored.path != run else title,
        fields=scored.mapping,
    )
    note(f"wrote {page}; open it in any browser")


def _ratings(given: list[str], metrics: list[str]) -> str | dict[str, str] | None:
    """Read ``FIELD`` or ``METRIC=FIELD``.

    Raises
    ------
    ConfigurationError
        If a metric is not in the run, or a field for all metrics stands beside others.
    """
    pairs = [item.rpartition("=") for item in given]
    if len(pairs) == 1 and not pairs[0][0]:
        return pairs[0][2]
    unknown = [name for name, _, _ in pairs if name not in metrics]
    if unknown:
        raise ConfigurationError(
            f"--human: {unknown[0] or given[0]!r} names no metric of the run",
            hint=f"Write --human FIELD once, or METRIC=FIELD for each of: {', '.join(metrics)}.",
        )
    return {name: field for name, _, field in pairs} or None


def _ablation(run: ScoredRun, ratings: str | dict[str, str] | None, group_by: str | None) -> Table | None:
    """Estimate otherwise from the run's own distributions: the paper's ablation, as far as no judge is needed.

    All three estimates are correlated on the documents that all of them keep. None where nobody rated anything, or no
    manifest says what the scales are.
    """
    from geval_local.analysis.records import usable
    from geval_local.analysis.statistics.correlation import correlate
    from geval_local.analysis.statistics.significance import common_ground
    from geval_local.analysis.studies.ablation import mode_items, sampled_items
    from geval_local.analysis.tables import correlation_table
    from geval_local.cli.scored_runs import level_for
    from geval_local.grouping import documents_of

    found = {}
    documents = documents_of(run.rows, group_by)[0]
    level = level_for(documents)
    for name in run.metrics:
        field = ratings if ratings is None or isinstance(ratings, str) else ratings.get(name)
        if field is None or not run.is_described(name):
            continue
        scale = run.origin(name).definition.scale
        items = run.items(name, human=field, group_by=documents)
        estimates = {
            "exact expectation": items,
            "likeliest label (- Probs)": mode_items(items, scale),
            f"mean of {DRAWS} draws": sampled_items(items, scale, DRAWS),
        }
        if not usable(items)[0]:
            continue
        shared = common_ground(list(estimates.values()), level)[0]
        for estimator, estimated in zip(estimates, shared, strict=True):
            if estimated:
                found[f"{name}: {estimator}"] = correlate(estimated, level)
    return correlation_table(found) if found else None


def notes_of(run: ScoredRun) -> dict[str, MetricNotes]:
    """Give every metric that the manifest describes its steps, its scale, and the form as the first row fills it."""
    from geval_local.io.samples import Sample
    from geval_local.prompt import render_form

    notes: dict[str, MetricNotes] = {}
    for name in run.metrics:
        if not run.is_described(name):
            continue
        metric = run.origin(name).definition
        notes[name] = {"scale": metric.scale, "steps": list(metric.steps or ())}
        for row in run.rows:
            try:
                notes[name]["prompt"] = render_form(metric, Sample(row, mapping=run.mapping).texts(metric.fields)).text
            except UnscorableError:
                continue
            break
    return notes


def signatures_of(run: ScoredRun) -> dict[str, str] | None:
    """Give the signature of every metric that the manifest describes; None if it describes none."""
    found = {name: run.origin(name).signature for name in run.metrics if run.is_described(name)}
    return found or None


def facts_of(run: ScoredRun) -> Mapping[str, Any] | None:
    """Give the other facts of a run that the manifest holds; None without a manifest."""
    manifest = run.manifest
    if manifest is None:
        return None
    return {"judge": manifest.judge, "input": manifest.input, "input sha256": manifest.input_sha256}
