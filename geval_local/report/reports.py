"""Reports in one call: a run as one page, or many runs as one folder with an overview.

A folder opens from any disk: links are relative, and every page contains its own data. The module only replaces pages
of this tool that nobody has changed since, and only removes those that the earlier overview links to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from typing_extensions import Unpack

from geval_local.analysis.ratings.values import HumanFields, rating_fields
from geval_local.analysis.results import (
    ABLATIONS,
    Reading,
    ResultsGiven,
    ScoredRun,
    each_given,
    system_of_columns,
)
from geval_local.analysis.tables import interval, number
from geval_local.errors import ConfigurationError, DataError, OutputError
from geval_local.io.ownership import check_replaceable, owned
from geval_local.io.result_manifest import manifest_path
from geval_local.report.headline import tab_title
from geval_local.report.overview import facts, signatures
from geval_local.report.page import PAGE, check_estimator, check_target, render, write_page
from geval_local.report.run_page import MOST_ROWS, RunPage
from geval_local.report.sections import interval_chart
from geval_local.report.written_reasons import read_reasons
from geval_local.score import Estimator
from geval_local.signature import LIBRARIES, judge_name, signature_parts
from geval_local.statistics.correlation import Correlation
from geval_local.summary import Summary

INDEX = "index.html"
#: How an overview links to the page of a run.
_LINK = re.compile(r'<th scope="row"><a href="([^"]+[.]html)">')


@dataclass(frozen=True)
class WrittenReport:
    """The written report."""

    #: The page, or the overview of the folder.
    path: Path
    #: Number of pages of runs.
    pages: int
    #: Run that could not be shown -> reason.
    failed: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {"path": str(self.path), "pages": self.pages, "failed": self.failed}


def write_report(
    results: ResultsGiven | Sequence[ResultsGiven],
    output: str | Path,
    *,
    human: HumanFields | None = None,
    estimators: Sequence[Estimator] = ABLATIONS,
    reasons: Sequence[str | Path] = (),
    rows: int = MOST_ROWS,
    by: Sequence[str] = (),
    title: str | None = None,
    overwrite: bool = False,
    system_columns: Sequence[str] | None = None,
    **reading: Unpack[Reading],
) -> WrittenReport:
    """Write a run as one self-contained HTML page, or many as one folder.

    Parameters
    ----------
    results : path, RunResult, rows or data frame, or sequence of them
        The runs.
    output : path
        The ``.html`` file; for several runs a directory.
    human : str, sequence or mapping of str, optional
        Field of the human rating; with several metrics ``METRIC=FIELD`` for each, or a mapping.
    estimators : sequence of Estimator
        Other estimators, applied to the stored distributions and tested against the scores; the page shows the tests
        next to the agreement with people.
    reasons : sequence of path
        Files that `reasons` wrote for the run; the page shows the reasons next to the rows.
    rows : int
        Most rows in the charts and the list of a page.
    by : sequence of str
        Columns whose slices get a table, such as ``language``.
    title : str, optional
        Heading of the page; by default the name of the scored file.
    overwrite : bool
        Whether to replace a file that this tool did not write.
    system_columns : sequence of str, optional
        The `system_columns` with which the runs were scored, instead of `system`.
    **reading
        Fields of the document and of the system, and how results are read: see `Reading`.

    Raises
    ------
    ConfigurationError, DataError
        If the runs cannot be shown, or (`OutputError`) the output cannot be written.
    """
    check_estimator(reading.get("estimator"))
    written = [reason for path in reasons for reason in read_reasons(path)]
    results = each_given(results)
    place, many = Path(output), len(results) > 1
    if many and place.suffix.lower() in (".html", ".htm"):
        raise ConfigurationError(
            f"{len(results)} runs are a folder of pages, and {place} is the name of one page",
            hint="Write `output=site/`.",
        )

    def page(run: ScoredRun, human: HumanFields | None) -> RunPage:
        ratings = rating_fields(human, run.metrics)
        if system_columns:
            run = replace(run, system=system_of_columns([run], system_columns, run.system))
        return RunPage(
            run,
            human=ratings,
            estimators=estimators,
            rows=rows,
            by=by or (() if run.manifest is None else run.manifest.by),
            facts=facts(run),
        )

    if many or str(output).endswith("/") or place.is_dir():
        if written:
            raise ConfigurationError(
                "`reasons` belong to one run, and this is a folder of pages", hint="Write `output=PAGE.html`."
            )
        return _write_site(results, place, reading, human, page, title, overwrite=overwrite)
    run = ScoredRun.of(results[0], **reading)
    target = check_target(place, run.path)
    check_replaceable(target, PAGE, overwrite=overwrite)
    heading = title or (run.name if run.manifest is None else run.manifest.input)
    return WrittenReport(replace(page(run, human), reasons=written, title=heading).write(place), 1, {})


def _write_site(
    results: Sequence[ResultsGiven],
    folder: Path,
    reading: Reading,
    human: HumanFields | None,
    page: Callable[[ScoredRun, HumanFields | None], RunPage],
    title: str | None,
    *,
    overwrite: bool,
) -> WrittenReport:
    """Write a page for every run, and an overview that links to them."""
    # A shell's `runs/*` also matches the manifests of result files.
    beside = {manifest_path(path) for path in results if isinstance(path, Path)}
    failed: dict[str, str] = {}
    hint: str | None = None
    found: list[ScoredRun] = []
    metrics: dict[str, None] = {}
    for one in results:
        try:
            runs = [] if isinstance(one, Path) and one in beside else [ScoredRun.of(one, **reading)]
            metrics |= dict.fromkeys(metric for run in runs for metric in run.metrics)
            found += runs
        except DataError as error:
            failed[str(one)] = error.message
    ratings = rating_fields(human, list(metrics))
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"cannot write {folder}: it is a file", hint="Name a directory for the pages.")
    names = _page_names([run.name for run in found])
    for name in (INDEX, *names):
        check_replaceable(folder / name, PAGE, overwrite=overwrite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot use the directory {folder}: {error.strerror}") from error
    # The pages of runs that an earlier overview links to; none if a person has changed it.
    links = _LINK.findall((folder / INDEX).read_text(encoding="utf-8")) if owned(folder / INDEX, PAGE) else []
    former = {name for name in map(unquote, links) if Path(name).name == name}
    shown: list[RunOfSite] = []
    for run, name in zip(found, names, strict=True):
        try:
            own = {metric: field for metric, field in ratings.items() if metric in run.metrics}
            shown.append(_add(replace(page(run, own), title=run.name, up=INDEX), run.name, folder / name))
        except DataError as error:
            failed[str(run.path)], hint = error.message, error.hint
    if not shown:
        raise DataError(f"none of the {len(failed)} runs can be shown: {'; '.join(failed.values())}", hint=hint)
    title = title or folder.resolve().name
    overview = render(
        "site.html.j2",
        None,
        title=title,
        tab=tab_title(title),
        runs=shown,
        metrics=[metric_overview(metric, shown) for metric in dict.fromkeys(m for run in shown for m in run.summaries)],
        failed=failed,
    )
    index = write_page((folder / INDEX).resolve(), overview)
    for name in former - {run.page for run in shown}:
        if owned(folder / name, PAGE):
            (folder / name).unlink(missing_ok=True)
    return WrittenReport(index, len(shown), failed)


# --- a folder ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunOfSite:
    """One run in the overview."""

    name: str
    page: str
    input: str
    summaries: Mapping[str, Summary]
    correlations: Mapping[str, Correlation]
    signatures: Mapping[str, str]


def _add(page: RunPage, name: str, path: Path) -> RunOfSite:
    """Write the page of a run."""
    page.write(path)
    run, summaries = page.run.manifest, {one.metric: one for one in page.summaries}
    correlations = {name: next(iter(one.levels.values())) for name, one in page.people.items() if one.levels}
    source = "" if run is None else f"{run.input} ({run.input_sha256[:8]})"
    return RunOfSite(name, path.name, source, summaries, correlations, signatures(page.run, page.metrics))


def metric_overview(metric: str, runs: Sequence[RunOfSite]) -> dict[str, Any]:
    """Return the runs with a metric side by side for the template, with the settings in which they differ."""
    own = [run for run in runs if metric in run.summaries]
    found, agreed = [run.summaries[metric] for run in own], [run.correlations.get(metric) for run in own]
    levels = " / ".join(dict.fromkeys(one.level for one in agreed if one is not None))
    parts = [signature_parts(run.signatures.get(metric, "")) for run in own]
    keys = [key for key in dict.fromkeys(key for one in parts for key in one) if key not in (*LIBRARIES, "tokenizer")]
    settings = {
        key: [_short(key, one.get(key, "-")) for one in parts]
        for key in keys
        if len({one.get(key, "-") for one in parts}) > 1
    }
    if len({run.input for run in own}) > 1:
        settings["input"] = [run.input or "-" for run in own]
    cells = {"mean score": [interval(one.shown) for one in found]}
    if levels:
        cells[f"{levels} spearman"] = ["-" if one is None else interval(one.spearman) for one in agreed]
    cells |= settings | {
        "std": [number(one.std) for one in found],
        "label mass": [number(one.label_mass) for one in found],
        "scored": [f"{one.scored:,} of {one.rows:,}" for one in found],
    }
    notes = [f"95 % intervals over documents; {told}" for told in dict.fromkeys(one.grouping for one in found)]
    notes += [f"{run.name}: {one.doubt}" for run, one in zip(own, found, strict=True) if one.doubt]
    if settings:
        notes.append(f"the runs differ in {', '.join(settings)}: read their differences as the effect of that")
    people = {run.name: one.spearman for run, one in zip(own, agreed, strict=True) if one is not None}
    charts = [
        interval_chart("Mean score", {run.name: run.summaries[metric].shown for run in own}, "mean score"),
        interval_chart("Agreement with people", people, f"{levels} spearman"),
    ]
    return {
        "metric": metric,
        "headers": tuple(cells),
        "rows": [(run.page, run.name, [values[place] for values in cells.values()]) for place, run in enumerate(own)],
        "notes": notes,
        "charts": [chart for chart in charts if chart is not None],
    }


def _short(key: str, value: str) -> str:
    """Shorten a setting: a judge to its name, a hash to its beginning."""
    name, at, digest = value.rpartition("@")
    return f"{judge_name(name) if key == 'judge' else name}@{digest[:6]}" if at else value[:24]


def _page_names(names: Sequence[str]) -> list[str]:
    """Name the page of every run: distinct names that every file system accepts."""
    taken = {INDEX.casefold()}
    pages = []
    for name in names:
        stem = re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:80] or "run"
        page, count = f"{stem}.html", 1
        while page.casefold() in taken:
            count += 1
            page = f"{stem}-{count}.html"
        taken.add(page.casefold())
        pages.append(page)
    return pages
