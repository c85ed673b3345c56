"""Reports in one call: a run as one page, or many runs as one folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geval_local.analysis.meta_evaluation import against_exact
from geval_local.analysis.results import ABLATIONS, HumanFields, ResultsGiven, ScoredRun, level_for, rating_fields
from geval_local.analysis.tables import FOLDED_TESTS, Table, comparison_table, folded
from geval_local.errors import ConfigurationError, DataError
from geval_local.grouping import documents_of
from geval_local.io.ownership import check_replaceable
from geval_local.io.result_manifest import manifest_path
from geval_local.report.described import described
from geval_local.report.page import PAGE, check_target
from geval_local.report.run_page import MOST_ROWS, write_report
from geval_local.report.site import RunOfSite, Site
from geval_local.report.written_reasons import read_reasons
from geval_local.score import Estimator
from geval_local.statistics.significance import Comparison, corrected


@dataclass(frozen=True)
class Written:
    """What was written."""

    #: The page, or the overview of the folder.
    path: Path
    #: Pages of runs.
    pages: int
    #: Runs that could not be shown, and why.
    failed: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Give it as plain JSON values."""
        return {"path": str(self.path), "pages": self.pages, "failed": self.failed}


def report(
    results: Sequence[ResultsGiven],
    output: str | Path,
    *,
    human: HumanFields | None = None,
    group_by: str | None = None,
    system: str | None = None,
    estimators: Sequence[Estimator] = ABLATIONS,
    reasons: Sequence[str | Path] = (),
    fields: Mapping[str, str] | None = None,
    rows: int = MOST_ROWS,
    title: str | None = None,
    overwrite: bool = False,
) -> Written:
    """Write a run as one self-contained HTML page, or many as one folder.

    Parameters
    ----------
    results : sequence of path or RunResult
        The runs.
    output : path
        The ``.html`` file; for several runs a directory.
    human : str, sequence or mapping of str, optional
        Field of the human rating; of several metrics ``METRIC=FIELD`` for each, or a mapping.
    group_by, system : str, optional
        Fields of the document and of the system.
    estimators : sequence of Estimator
        Other estimates from the stored distributions, shown beside the agreement with people.
    reasons : sequence of path
        What `reasons` wrote for the run, shown beside its rows.
    fields : mapping of str to str, optional
        Field of a metric -> its column.
    rows : int
        Most rows that charts and list of a page hold.
    title : str, optional
        Heading of the page.
    overwrite : bool
        Whether a file that this tool did not write may be replaced.

    Raises
    ------
    ConfigurationError, DataError
        If the runs cannot be shown, or (`OutputError`) the output cannot be written.
    """
    written = [reason for path in reasons for reason in read_reasons(path)]
    place, many = Path(output), len(results) > 1
    if many and place.suffix.lower() in (".html", ".htm"):
        raise ConfigurationError(
            f"{len(results)} runs are a folder of pages, and {place} is the name of one page",
            hint="Write `output=site/`.",
        )

    def told(run: ScoredRun, human: HumanFields | None) -> dict[str, Any]:
        found, ratings = described(run), rating_fields(human, run.metrics)
        return {
            "metrics": found.notes,
            "human": ratings,
            "group_by": group_by,
            "signature": found.signatures,
            "manifest": found.facts,
            "ablation": _ablation(run, ratings, group_by, estimators),
            "fields": run.mapping,
            "system": system,
            "rows": rows,
        }

    if many or str(output).endswith("/") or place.is_dir():
        if written:
            raise ConfigurationError(
                "`reasons` belong to one run, and this is a folder of pages", hint="Write `output=PAGE.html`."
            )
        return _write_site(results, place, fields or {}, human, told, title, overwrite=overwrite)
    run = ScoredRun.of(results[0], fields)
    target = check_target(place, run.path)
    check_replaceable(target, PAGE, overwrite=overwrite)
    given = run.path if run.held is None else run.held
    heading = title or run.name if str(run.path) != str(results[0]) else title
    return Written(write_report(given, place, **told(run, human), reasons=written, title=heading), 1, {})


def _write_site(
    results: Sequence[ResultsGiven],
    folder: Path,
    fields: Mapping[str, str],
    human: HumanFields | None,
    told: Callable[[ScoredRun, HumanFields | None], dict[str, Any]],
    title: str | None,
    *,
    overwrite: bool,
) -> Written:
    """Write a page for every run, and an overview that leads to them."""
    # A shell's `runs/*` names the manifests beside result files too.
    beside = {manifest_path(path) for path in results if isinstance(path, Path)}
    failed: dict[str, str] = {}
    found: list[ScoredRun] = []
    metrics: dict[str, None] = {}
    for one in results:
        try:
            runs = [] if isinstance(one, Path) and one in beside else [ScoredRun.of(one, fields)]
            metrics |= dict.fromkeys(metric for run in runs for metric in run.metrics)
            found += runs
        except DataError as error:
            failed[str(one)] = error.message
    ratings = rating_fields(human, list(metrics))
    site = Site(folder, [run.name for run in found], overwrite=overwrite)
    shown: list[RunOfSite] = []
    for place, run in enumerate(found):
        try:
            own = {metric: field for metric, field in ratings.items() if metric in run.metrics}
            shown.append(site.add(place, run.name, run.path, told(run, own)))
        except DataError as error:
            failed[str(run.path)] = error.message
    if not shown:
        raise DataError(f"none of the {len(failed)} runs can be shown: {'; '.join(failed.values())}")
    return Written(site.close(shown, title=title or folder.resolve().name, failed=failed), len(shown), failed)


def _ablation(
    run: ScoredRun,
    ratings: Mapping[str, str],
    group_by: str | None,
    estimators: Sequence[Estimator],
) -> Table | None:
    """Estimate otherwise from the run's own distributions: the paper's ablation, as far as no judge is needed.

    Every estimate is tested against the scores on the documents that both keep, as `meta-eval --ablations` does. None
    where nobody rated anything, or no manifest says what the scales are.
    """
    found: dict[str, Comparison] = {}
    documents = documents_of(run.rows, group_by)[0]
    for name in run.metrics:
        if name not in ratings or not run.is_described(name):
            continue
        items = run.items(name, human=ratings, group_by=documents)
        scale = run.origin(name).definition.scale
        tests = against_exact(items, scale, "score", estimators, level=level_for(documents))
        found |= {f"{name}: {pair}": test for pair, test in tests.items()}
    return folded(comparison_table(corrected(found)), FOLDED_TESTS) if found else None
