"""``geval-local report``: a run as one HTML page that opens anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from geval_local.cli import options
from geval_local.cli.output.console import note
from geval_local.errors import ConfigurationError

if TYPE_CHECKING:
    from geval_local.analysis.results import ScoredRun
    from geval_local.analysis.statistics.significance import Comparison
    from geval_local.analysis.tables import Table
    from geval_local.report.overview import MetricNotes
    from geval_local.score import Estimator

__all__ = ["facts_of", "notes_of", "report", "signatures_of"]


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
    human: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[METRIC=]FIELD", help="Field of the human rating, of all metrics or of one; may be repeated."
        ),
    ] = None,
    group_by: options.GroupBy = None,
    system: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="Field that names the system. Absent: system_id or system, if there is one."
        ),
    ] = None,
    estimator: options.Estimators = None,
    reasons: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="What `reasons` wrote for the run, shown beside its rows; may be repeated."),
    ] = None,
    field: options.Fields = None,
    rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most rows that charts and list of a page hold; tables are of all.")
    ] = 20_000,
    title: Annotated[str | None, typer.Option(help="Heading of the page; absent: the file's name.")] = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a run as one self-contained HTML page, or many as one folder; without a network, opens from any disk."""
    from geval_local.analysis.results import ScoredRun
    from geval_local.fields import read_mapping
    from geval_local.files import check_replaceable
    from geval_local.report.page import check_target, is_own_page
    from geval_local.report.run_page import write_report
    from geval_local.report.written_reasons import read_reasons

    mapping = read_mapping(field or [])
    written = [reason for path in reasons or [] for reason in read_reasons(path)]
    estimators = options.read_estimators(estimator, others=True)
    if len(runs) > 1 and output.suffix.lower() in (".html", ".htm"):
        raise ConfigurationError(
            f"{len(runs)} runs are a folder of pages, and {output} is the name of one page", hint="Write -o site/."
        )
    if len(runs) > 1 or str(output).endswith("/") or output.is_dir():
        if written:
            raise ConfigurationError(
                "--reasons belong to one run, and this is a folder of pages", hint="Write -o PAGE.html."
            )
        told = partial(_told, group_by=group_by, system=system, estimators=estimators, rows=rows)
        _write_site(runs, output, mapping, human or [], told, title, overwrite=overwrite)
        return
    scored = ScoredRun(runs[0], mapping)
    target = check_target(output, scored.path)
    check_replaceable(target, is_own=is_own_page(target), overwrite=overwrite)
    page = write_report(
        scored.path,
        output,
        **_told(scored, human or [], group_by=group_by, system=system, estimators=estimators, rows=rows),
        reasons=written,
        title=title or scored.name if scored.path != runs[0] else title,
    )
    note(f"wrote {page}; open it in any browser")


def _told(
    run: ScoredRun,
    human: list[str],
    *,
    group_by: str | None,
    system: str | None,
    estimators: Sequence[Estimator],
    rows: int,
) -> dict[str, Any]:
    """Gather what the page of a run is told beside its rows."""
    ratings = _ratings(human, run.metrics)
    return {
        "metrics": notes_of(run),
        "human": ratings,
        "group_by": group_by,
        "signature": signatures_of(run),
        "manifest": facts_of(run),
        "ablation": _ablation(run, ratings, group_by, estimators),
        "fields": run.mapping,
        "system": system,
        "rows": rows,
    }


def _write_site(
    runs: Sequence[Path],
    folder: Path,
    mapping: Mapping[str, str],
    human: list[str],
    told: Callable[[ScoredRun, list[str]], dict[str, Any]],
    title: str | None,
    *,
    overwrite: bool,
) -> None:
    """Write a page for every run, and an overview that leads to them.

    Raises
    ------
    DataError
        If none of the runs can be shown.
    """
    from geval_local.analysis.results import ScoredRun
    from geval_local.errors import DataError
    from geval_local.io.result_manifest import manifest_path
    from geval_local.report.site import RunOfSite, Site

    # A shell's `runs/*` names the manifests beside result files too.
    beside = {manifest_path(path) for path in runs}
    failed: dict[str, str] = {}
    found: list[ScoredRun] = []
    for path in runs:
        try:
            found += [] if path in beside else [ScoredRun(path, mapping)]
        except DataError as error:
            failed[str(path)] = error.message
    site = Site(folder, [run.name for run in found], overwrite=overwrite)
    shown: list[RunOfSite] = []
    for place, run in enumerate(found):
        try:
            own = [one for one in human if not one.rpartition("=")[0] or one.rpartition("=")[0] in run.metrics]
            shown.append(site.add(place, run.name, run.path, told(run, own)))
        except DataError as error:
            failed[str(run.path)] = error.message
    if not shown:
        raise DataError(f"none of the {len(failed)} runs can be shown: {'; '.join(failed.values())}")
    index = site.close(shown, title=title or folder.resolve().name, failed=failed)
    for path_text, reason in failed.items():
        note(f"not shown: {path_text}: {reason}", "yellow")
    note(f"wrote {index} and {len(shown)} pages; open it in any browser")


def _ratings(given: list[str], metrics: list[str]) -> str | dict[str, str] | None:
    """Parse ``FIELD`` or ``METRIC=FIELD``.

    Raises
    ------
    ConfigurationError
        If a metric is not in the run, or a field for all metrics is combined with others.
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


def _ablation(
    run: ScoredRun,
    ratings: str | dict[str, str] | None,
    group_by: str | None,
    estimators: Sequence[Estimator],
) -> Table | None:
    """Estimate otherwise from the run's own distributions: the paper's ablation, as far as no judge is needed.

    Every estimate is tested against the scores on the documents that both keep, as `meta-eval --ablations` does. None
    where nobody rated anything, or no manifest says what the scales are.
    """
    from geval_local.analysis.meta_evaluation import against_exact
    from geval_local.analysis.results import level_for
    from geval_local.analysis.statistics.significance import corrected
    from geval_local.analysis.tables import comparison_table, folded
    from geval_local.grouping import documents_of

    found: dict[str, Comparison] = {}
    documents = documents_of(run.rows, group_by)[0]
    for name in run.metrics:
        field = ratings if ratings is None or isinstance(ratings, str) else ratings.get(name)
        if field is None or not run.is_described(name):
            continue
        items = run.items(name, human=field, group_by=documents)
        scale = run.origin(name).definition.scale
        tests = against_exact(items, scale, "score", estimators, level=level_for(documents))
        found |= {f"{name}: {pair}": test for pair, test in tests.items()}
    folds = ("on", "items / documents", "kept by each")
    return folded(comparison_table(corrected(found)), folds) if found else None


def notes_of(run: ScoredRun) -> dict[str, MetricNotes]:
    """Give every metric that the manifest describes its steps, its scale, and the form as the first row fills it."""
    from geval_local.report.described import notes

    return notes(run.manifest, run.metrics, run.rows, run.mapping)


def signatures_of(run: ScoredRun) -> dict[str, str] | None:
    """Give the signature of every metric that the manifest describes; None if it describes none."""
    from geval_local.report.described import signatures

    return signatures(run.manifest, run.metrics)


def facts_of(run: ScoredRun) -> Mapping[str, Any] | None:
    """Give the other facts of a run that the manifest holds; None without a manifest."""
    from geval_local.report.described import facts

    return facts(run.manifest)
