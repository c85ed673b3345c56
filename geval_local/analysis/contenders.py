"""Contenders of a meta-evaluation: scored runs, others' outputs, reference metrics."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from geval_local.analysis.good_enough import (
    GoodEnough,
    alternative_annotators,
    judge_probabilities,
    judge_verdicts,
)
from geval_local.analysis.meta_evaluation import Contender, MetaEvaluation, evaluate, human_ceiling
from geval_local.analysis.overlap import BASELINES, baseline_scores, references
from geval_local.analysis.ratings.benchmarks import benchmark as benchmark_layout
from geval_local.analysis.ratings.benchmarks import published_table
from geval_local.analysis.ratings.metrics import benchmark_metrics, own_metrics
from geval_local.analysis.ratings.rated import OwnRatings, PublishedRatings, Rated, read_benchmark, read_own
from geval_local.analysis.ratings.responses import PREDICTIONS, ParsedResponses, geval_items, unieval_items
from geval_local.analysis.results import HumanFields, estimate_name, estimated_items, figures_of, ratings_of
from geval_local.errors import ConfigurationError, DataError, UnscorableError
from geval_local.grouping import EVERY_ROW
from geval_local.io.result_manifest import read_manifest
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.runs.directory import result_file
from geval_local.score import Estimator
from geval_local.signature import judge_name
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem
from geval_local.statistics.resampling import Target

logger = logging.getLogger("geval_local")


def from_results(
    rated: Rated, path: Path, metrics: Mapping[str, Metric], taken: Sequence[str], limit_groups: int | None
) -> Contender:
    """Read a kept run: a result file over the same rows, or its run directory."""
    own: Rated
    given, path = path, result_file(path)
    if isinstance(rated, OwnRatings):
        own = read_own(
            path,
            rated.human,
            group_by=rated.group_by or EVERY_ROW,
            system=rated.system,
            limit_groups=limit_groups,
            fields=rated.fields,
        )
    else:
        own = read_benchmark(path, rated.benchmark.name, limit_groups=limit_groups)
    held = own.rows[0].get("geval")
    present = {
        dimension: metric for dimension, metric in metrics.items() if isinstance(held, Mapping) and metric.name in held
    }
    if not present:
        raise DataError(
            f"{path} holds no scores of {', '.join(metric.name for metric in metrics.values())}",
            hint="Expected a result file of `geval-local score` over the rated rows.",
        )
    manifest = read_manifest(path)
    judge = path.stem if manifest is None else judge_name(manifest.judge)
    return Contender(
        judge if judge not in taken else given.stem if given == path else given.resolve().name,
        "judge",
        {d: own.items(d, figures_of(own.rows, metric.name, path)) for d, metric in present.items()},
    )


def ablations(judge: Contender, metrics: Mapping[str, Metric], estimators: Sequence[Estimator]) -> list[Contender]:
    """Estimate otherwise from the same distributions; empty, with a note, where a run kept none."""
    try:
        found = [
            (one, {d: estimated_items(items, metrics[d].scale, one) for d, items in judge.items.items()})
            for one in estimators
        ]
    except DataError as error:
        logger.info("no ablations of %s: %s", judge.name, error.message)
        return []
    return [Contender(estimate_name(judge.name, one), "ablation", items, judge.name) for one, items in found]


def from_responses(
    named: Sequence[str], benchmark: str, dimensions: Sequence[str], *, metrics: Mapping[str, Metric]
) -> tuple[list[Contender], dict[str, ParsedResponses]]:
    """Read result files of G-Eval's scripts, and predictions in UniEval's format."""
    found: dict[str, dict[str, list[ScoredItem]]] = {}
    kinds: dict[str, str] = {}
    parsed: dict[str, ParsedResponses] = {}
    for name in named:
        prefix, equals, rest = name.partition("=")
        path = Path(rest if equals else name)
        everything = tuple(benchmark_layout(benchmark).dimensions)
        if equals and prefix not in everything:
            raise ConfigurationError(f"there is no dimension {prefix!r}", hint=f"There are: {', '.join(everything)}.")
        data = read_benchmark(path, benchmark)
        if "all_responses" not in data.rows[0] and PREDICTIONS in data.rows[0]:
            found[path.stem] = {d: unieval_items(data, d) for d in dimensions if d in data.rows[0][PREDICTIONS]}
            kinds[path.stem] = "predictions"
            continue
        dimension, contender = (prefix, path.stem) if equals else _dimension_of(path, everything)
        if dimension not in dimensions:
            continue
        if dimension in found.get(contender, {}):
            raise ConfigurationError(f"two files hold responses of {contender} for {dimension}")
        items, counts = geval_items(
            path,
            benchmark,
            dimension,
            scale=metrics[dimension].scale if dimension in metrics else None,
        )
        found.setdefault(contender, {})[dimension] = items
        kinds[contender] = "responses"
        parsed[f"{contender}, {dimension}"] = counts
    return [
        Contender(name, "predictions" if kinds[name] == "predictions" else "responses", items)
        for name, items in found.items()
    ], parsed


def predictions(data: PublishedRatings, dimensions: Sequence[str]) -> list[Contender]:
    """Read UniEval's own predictions, if the benchmark file contains them."""
    held = data.rows[0].get(PREDICTIONS)
    there = [dimension for dimension in dimensions if isinstance(held, Mapping) and dimension in held]
    if not there:
        return []
    return [Contender(f"UniEval ({PREDICTIONS})", "predictions", {d: unieval_items(data, d) for d in there})]


def baselines(rated: Rated, dimensions: Sequence[str]) -> tuple[list[Contender], list[str]]:
    """Score with length, ROUGE, BLEU and chrF; missing packages or references become notes."""
    outputs, compared = _texts(rated)
    found: list[Contender] = []
    notes: list[str] = []
    for name in BASELINES:
        if name != "length" and not any(compared):
            notes.append(f"no {name} and other reference metrics: the rows have no reference text")
            break
        try:
            scores = baseline_scores(name, outputs, compared)
        except ConfigurationError as error:
            notes.append(f"no {name}: {error.message}; {error.hint}")
            continue
        figures = [
            {"score": score} if math.isfinite(score) else {"score": None, "error": "no reference"} for score in scores
        ]
        found.append(Contender(name, "baseline", {d: rated.items(d, figures) for d in dimensions}))
    return found, notes


def _texts(rated: Rated) -> tuple[list[str], list[str | None]]:
    if isinstance(rated, PublishedRatings):
        field = rated.benchmark.fields["output"]
        return [str(row[field]) for row in rated.rows], references(rated)
    outputs, compared = ([_text(row, name, rated.fields) for row in rated.rows] for name in ("output", "reference"))
    return [output or "" for output in outputs], compared


def _text(row: Mapping[str, Any], field: str, mapping: Mapping[str, str]) -> str | None:
    try:
        return Sample(row, mapping=mapping).texts((field,))[field]
    except UnscorableError:
        return None


def _dimension_of(path: Path, dimensions: Sequence[str]) -> tuple[str, str]:
    """Find the dimension in a name such as ``gpt4_coh_detailed.json``, and the name without it."""
    parts = re.split(r"([_\s-])", path.stem)
    hits = [(i, d) for i, part in enumerate(parts) for d in dimensions if part.lower() in (d, d[:3])]
    if len(hits) != 1:
        raise ConfigurationError(
            f"the name of {path} does not tell which dimension its responses rate",
            hint=f"Say it: `responses=DIMENSION={path}`, one of {', '.join(dimensions)}.",
        )
    index, dimension = hits[0]
    rest = "".join(parts[: max(index - 1, 0)] + parts[index + 1 :])
    return dimension, rest.strip("_- ") or path.stem


@dataclass(frozen=True)
class RatedMetrics:
    """Rated rows, with the metric of each dimension."""

    #: The rows and their ratings.
    rated: Rated
    #: Dimension -> metric.
    metrics: dict[str, Metric]
    #: All rated dimensions, also those without a metric, unless metrics were named.
    dimensions: tuple[str, ...]
    #: The paper's; spearman for your own rows.
    coefficient: str
    #: How many documents were read.
    limit_groups: int | None = None
    #: Fields of single people's ratings.
    raters: tuple[str, ...] = ()


def read_rated(
    file: str | Path,
    *,
    benchmark: str | None = None,
    metrics: Sequence[str] = (),
    human: HumanFields = (),
    raters: Sequence[str] = (),
    group_by: str | None = None,
    system: str | None = None,
    fields: Mapping[str, str] | None = None,
    limit_groups: int | None = None,
    steps: bool = True,
) -> RatedMetrics:
    """Read rated rows: a published benchmark file, unmodified, or rows of your own.

    With two or more `raters`, fields of single people's ratings, there is a human ceiling.
    """
    rated: Rated
    if benchmark is not None:
        if human or raters or group_by or system or fields:
            raise ConfigurationError(
                "`human`, `fields`, `raters`, `group_by` and `system` are for your own rows; `benchmark` brings them"
            )
        rated = read_benchmark(file, benchmark, limit_groups=limit_groups)
        chosen = benchmark_metrics(rated.benchmark, metrics)
        coefficient = published_table(benchmark).coefficient
        dimensions = tuple(chosen if metrics else rated.benchmark.dimensions)
    else:
        chosen, ratings = own_metrics(metrics, human)
        rated = read_own(
            file, ratings, group_by=group_by, system=system, limit_groups=limit_groups, fields=fields or {}
        )
        coefficient, dimensions = "spearman", tuple(chosen)
        if raters and len(chosen) != 1:
            raise ConfigurationError("`raters` is about one metric", hint="Name it with `metrics`, and no other.")
    if not steps:
        chosen = {dimension: one.with_steps(()) for dimension, one in chosen.items()}
    for dimension in chosen:
        # Find ratings that are not numbers now, and not after an hour of scoring.
        rated.items(dimension, [{}] * len(rated.rows))
    return RatedMetrics(rated, chosen, dimensions, coefficient, limit_groups, tuple(raters))


def meta_evaluate(
    rows: RatedMetrics,
    results: Sequence[str | Path] = (),
    *,
    judged: Callable[[Sequence[str]], Sequence[Contender]] | None = None,
    responses: Sequence[str] = (),
    estimators: Sequence[Estimator] = (),
    overlap: bool = True,
    level: Level | None = None,
    coefficient: str | None = None,
    target: Target | None = None,
    seed: int = 0,
) -> MetaEvaluation:
    """Hold scores against people, and against each other.

    Parameters
    ----------
    rows : RatedMetrics
        The rated rows, see `read_rated`.
    results : sequence of path
        Results of `score` over these rows, or run directories.
    judged : callable, optional
        Lets judges score the rows; called with the names that are taken, after everything else was read and checked.
    responses : sequence of str
        G-Eval's raw responses, or UniEval's predictions: ``[DIMENSION=]FILE``; for a benchmark.
    estimators : sequence of Estimator
        Other estimates from the distributions of `results`, as rows of their own.
    overlap : bool
        Whether length, ROUGE, BLEU and chrF stand beside the scores.
    level, coefficient, target
        What is compared first, by which coefficient, and what intervals generalise to.
    seed : int
        Seed of the permutations.

    Raises
    ------
    ConfigurationError, DataError
        If results belong to other rows, or the rows have no such level.
    """
    rated, metrics, dimensions = rows.rated, rows.metrics, list(rows.metrics)
    if level is not None and level not in rated.levels:
        raise ConfigurationError(
            f"these rows have no {level} level", hint=f"They have: {', '.join(rated.levels)}; see `group_by`, `system`."
        )
    others: list[Contender] = []
    parsed: dict[str, ParsedResponses] = {}
    if responses:
        if not isinstance(rated, PublishedRatings):
            raise ConfigurationError("`responses` needs `benchmark`: the files hold a benchmark's rows")
        others, parsed = from_responses(responses, rated.name, rows.dimensions, metrics=metrics)
    found: list[Contender] = []
    for path in results:
        run = from_results(rated, Path(path), metrics, [one.name for one in found], rows.limit_groups)
        found += [run, *ablations(run, metrics, estimators)]
    if judged is not None:
        found += judged([one.name for one in found if one.kind == "judge"])
    found += others
    if isinstance(rated, PublishedRatings):
        found += predictions(rated, rows.dimensions)
    notes: list[str] = []
    if overlap:
        reference, notes = baselines(rated, dimensions)
        found += reference
    level = level or rated.levels[0]
    compared = coefficient or rows.coefficient
    agreements = evaluate(found, level, compared, target=target, seed=seed)
    judges = {f"{d}: {one.name}": items for one in found if one.kind == "judge" for d, items in one.items.items()}
    ceiling, ratings, alternative = None, None, {}
    if rows.raters:
        people = ratings_of(rated.rows, rows.raters, rated.path)
        ratings = np.array(list(people.values()))
        named = {one.name: own for one in found if one.kind == "judge" for own in one.items.values() if len(own) > 1}
        ceiling = human_ceiling(people, named, level, compared, target=target)
        alternative = {key: alternative_annotators(items, ratings) for key, items in judges.items()}
    good = GoodEnough(
        _known({key: judge_verdicts(items) for key, items in judges.items()}),
        _known({key: judge_probabilities(items, ratings) for key, items in judges.items()}),
        _known(alternative),
    )
    return MetaEvaluation(rated, metrics, agreements, level, compared, parsed, tuple(notes), ceiling, good)


_Figures = TypeVar("_Figures")


def _known(found: Mapping[str, _Figures | None]) -> dict[str, _Figures]:
    return {key: one for key, one in found.items() if one is not None}
