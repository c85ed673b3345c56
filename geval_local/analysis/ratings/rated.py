"""Rated rows: a published benchmark file or a user's own, with the metric of each dimension."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from geval_local.analysis.example_rows import without_examples
from geval_local.analysis.ratings.benchmarks import BENCHMARKS, QAGS_HALVES, Benchmark, benchmark, published_table
from geval_local.analysis.ratings.merged import rated_rows
from geval_local.analysis.ratings.values import (
    ANY_NUMBER,
    AS_SCORED,
    HumanFields,
    RatingReading,
    RatingScale,
    members_of,
    number_at,
    rating_fields,
    ratings_of,
)
from geval_local.analysis.results import Grouped, grouped, rated_items, read_rows, row_keys, writers
from geval_local.errors import ConfigurationError, DataError
from geval_local.grouping import EVERY_ROW, DocumentRule, Documents
from geval_local.io.result_manifest import ResultManifest, document_rule, read_manifest
from geval_local.io.results import MetricFigures, ResultRows, numbered
from geval_local.metric import Metric
from geval_local.options import RatingOptions
from geval_local.prompt import metric_from_prompt_file
from geval_local.runs.directory import result_file
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem

#: What to do with the file that SummEval's authors released, which is not the one that later papers evaluate on.
_OWN_RELEASE = (
    "This is SummEval's own release. `benchmark=summeval` reads the form of UniEval and G-Eval: doc_id, system_id, "
    "source, system_output, reference, scores. Use this file as rows of your own:\n"
    "  geval-local score {path} -m summarization/coherence -o scored.jsonl\n"
    "  geval-local meta-eval {path} --results scored.jsonl --human expert_annotations.coherence"
)


@dataclass(frozen=True)
class Rated:
    """Rated rows of a file, with the metric of each dimension."""

    path: str
    rows: ResultRows
    #: Dimension -> field of its human rating.
    human: Mapping[str, str]
    #: The documents of the rows.
    documents: Grouped
    #: Field of the system; None where the usual columns name it.
    system: str | None
    #: Field of a metric -> its column.
    fields: Mapping[str, str]
    #: What decides which rows are one document.
    rule: DocumentRule
    #: How many documents were read; None for all.
    limit_groups: int | None = None
    #: The published benchmark that the rows are of, and what it was called by; QAGS has two halves.
    benchmark: Benchmark | None = None
    name: str | None = None
    #: Dimension -> metric; and all rated dimensions, also those without a metric, unless metrics were named.
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    dimensions: tuple[str, ...] = ()
    #: Fields of single people's ratings.
    raters: tuple[str, ...] = ()
    #: Results over these rows: the file itself, if it holds scores, and those that were named.
    results: tuple[Path, ...] = ()
    #: How the ratings are read.
    people: RatingOptions = AS_SCORED

    @property
    def coefficient(self) -> str:
        """The paper's; spearman for your own rows."""
        return "spearman" if self.name is None else published_table(self.name).coefficient

    @cached_property
    def keys(self) -> list[str]:
        """A key for every row: of a benchmark its system and document, so that incomplete files can be paired."""
        if self.benchmark is None:
            return row_keys(self.rows)
        if self.documents.names is None:
            return [str(place) for place in range(1, len(self.rows) + 1)]
        documents = [hashlib.sha256(name.encode()).hexdigest()[:12] for name in self.documents.names]
        return [f"{row.get('system_id', '')}/{own}" for row, own in zip(self.rows.inputs(), documents, strict=True)]

    @cached_property
    def is_rated(self) -> list[bool]:
        """Whether each row has a rating on one of the metrics."""
        rated = [self.items(dimension) for dimension in self.metrics]
        return [any(math.isfinite(item.human) for item in own) for own in zip(*rated, strict=True)]

    @property
    def levels(self) -> tuple[Level, ...]:
        """The paper's level, or ``summary`` if the rows are grouped, else ``pooled``; then the others they allow."""
        systems = all(writers(self.rows, self.path, self.system))
        first = self.documents.level
        if self.benchmark is not None:  # QAGS numbers its one system 0
            first, systems = self.benchmark.level, all(self.rows.column("system_id"))
        grouped: tuple[Level, ...] = () if self.documents.names is None else ("summary",)
        return tuple(dict.fromkeys((first, *grouped, "pooled", *(("system",) if systems else ()))))

    def items(
        self, dimension: str, figures: MetricFigures | None = None, scored_by: Metric | None = None
    ) -> list[ScoredItem]:
        """Join figures, one per row, to the ratings of a dimension.

        Rows that the dimension's metric shows as examples have neither, nor those of the metric that they are from.
        """
        if dimension not in self.human:
            raise ConfigurationError(
                f"{self.name or self.path} has no ratings of {dimension!r}", hint=f"It has: {', '.join(self.human)}."
            )
        items = rated_items(
            self.rows,
            figures,
            self.path,
            human=self.human[dimension],
            groups=self.documents.names,
            system=self.system,
            keys=self.keys,
            scale=self.rating_scale(dimension),
        )
        for metric in (self.metrics.get(dimension), scored_by):
            items = without_examples(items, self.rows.inputs(), metric, self.fields, self.path)
        return items

    def rating_scale(self, dimension: str) -> RatingScale:
        """Return the scale of a dimension's ratings: the one named, else that of its preset, else the metric's."""
        metric, scale = self.metrics.get(dimension), None
        if self.benchmark is not None:
            scale, preset = self.benchmark.rated_on.get(dimension), self.benchmark.dimensions.get(dimension)
            metric = metric if preset is None else Metric.load(preset)
        if metric is not None:
            return RatingScale.of_people(self.people, scale or metric.scale, metric.direction)
        if scale is None and self.people.human_scale is None:
            return ANY_NUMBER  # nothing is compared with a dimension without a metric
        return RatingScale.of_people(self.people, scale)

    def ratings(self) -> dict[str, list[float]]:
        """Read the ratings of single people, of the only dimension."""
        return ratings_of(self.rows, self.raters, self.path, self.rating_scale(self.dimensions[0]))

    def beside(self, path: str | Path) -> Rated:
        """Read another file over the same rows; the file of the rows themselves is known."""
        if result_file(path).resolve() == result_file(self.path).resolve():
            return self
        if self.name is not None:
            own = read_benchmark(path, self.name, limit_groups=self.limit_groups)
            return replace(own, metrics=self.metrics, people=self.people)
        rows = rated_rows(read_rows(path), self.people, self.rule.fields, self.fields, path, self.system)
        chosen, documents = _first_groups(rows, path, self.rule, self.limit_groups)
        return replace(self, path=str(path), rows=chosen, documents=documents)


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
    results: Sequence[str | Path] = (),
    **reading: Unpack[RatingReading],
) -> Rated:
    """Read rated rows: a published benchmark file, unmodified, or rows of your own.

    With two or more `raters`, fields of single people's ratings, there is a human ceiling. If the field of the ratings
    leads into a list of objects, these are the raters. `RatingReading` says how ratings are read. A file that holds
    scores is one of its own `results`. Metrics, mapping and documents are those of the results, as far as they are not
    given; without `metrics`, those that have a rating.
    """
    people = RatingOptions.model_validate(reading)
    if benchmark is not None:
        if human or raters or group_by or system or fields or people.rater_column or people.ratings:
            raise ConfigurationError(
                "`human`, `fields`, `raters`, `rater_column`, `ratings`, `group_by` and `system` are for your own "
                "rows; `benchmark` brings them"
            )
        own = tuple(dict.fromkeys(map(Path, results)))
        rated = replace(read_benchmark(file, benchmark, limit_groups=limit_groups), results=own)
        chosen = _benchmark_metrics(rated, metrics)
        dimensions = tuple(chosen if metrics else rated.human)
    else:
        rows = read_rows(file)
        held = rows.figures
        paths = [Path(file), *map(Path, results)] if held else [*map(Path, results)]
        manifests = [found for path in paths if (found := read_manifest(result_file(path))) is not None]
        chosen, ratings = _own_metrics(metrics, human, manifests)
        if {name.partition("@")[0] for name in held}.isdisjoint(one.name for one in chosen.values()):
            paths = [*map(Path, results)]  # other metrics than those that it holds are asked for
        scored = manifests[0] if manifests else None
        rule = document_rule(scored, group_by, fields, [tuple(one.fields) for one in chosen.values()])
        rows = rated_rows(rows, people, rule.fields, rule.mapping, file, system)
        kept, documents = _first_groups(rows, file, rule, limit_groups)
        own = tuple(dict.fromkeys(paths))
        rated = Rated(str(file), kept, ratings, documents, system, rule.mapping, rule, limit_groups, results=own)
        dimensions = tuple(chosen)
        if raters and len(chosen) != 1:
            raise ConfigurationError("`raters` is about one metric", hint="Name it with `metrics`, and no other.")
        if not raters and len(chosen) == 1:
            raters = members_of([*rated.rows.inputs()], *ratings.values())
    if not steps:
        chosen = {dimension: one.with_steps(()) for dimension, one in chosen.items()}
    rated = replace(rated, metrics=chosen, people=people)
    for dimension in chosen:
        # Find ratings that are not numbers, or off the scale, now, and not after an hour of scoring.
        rated.items(dimension)
    return replace(rated, dimensions=dimensions, raters=tuple(raters))


def read_benchmark(path: str | Path, name: str, *, limit_groups: int | None = None) -> Rated:
    """Read a published benchmark file, unmodified, or the first `limit_groups` of its documents."""
    layout = benchmark(name)
    rows = read_rows(path)
    needed = dict.fromkeys([*layout.fields.values(), *filter(None, [layout.group_field])])
    problems: list[str] = []
    for number, row in numbered(rows):
        problems += [f"row {number}: no text in {field!r}" for field in needed if not isinstance(row.get(field), str)]
        ratings = row.get("scores")
        if not isinstance(ratings, Mapping):
            problems.append(f"row {number}: no ratings in 'scores'")
            continue
        absent = [dimension for dimension in layout.dimensions if dimension not in ratings]
        problems += [f"row {number}: no rating of {dimension!r} in 'scores'" for dimension in absent]
        for dimension in layout.dimensions:
            number_at(ratings, dimension, f"{path}, row {number}")
    if problems:
        more = f" (and {len(problems) - 1} more problems)" if len(problems) > 1 else ""
        raise DataError(
            f"{path} is not a {name} file: {problems[0]}{more}",
            hint=_OWN_RELEASE.format(path=path)
            if name == "summeval" and {"decoded", "expert_annotations"} <= set(rows[0])
            else "Benchmark files are read as their authors published them; for your own ratings use `human=FIELD`.",
        )
    if name == "qags":
        layout = BENCHMARKS[f"qags-{_qags_half(Path(path), rows)}"]
    human = {dimension: f"scores.{dimension}" for dimension in layout.dimensions}
    rule = DocumentRule.of(group_by=layout.group_field or EVERY_ROW)
    chosen, documents = _first_groups(rows, path, rule, limit_groups)
    return Rated(str(path), chosen, human, documents, None, layout.fields, rule, limit_groups, layout, name)


def _qags_half(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Tell the half of QAGS by the file's name, else by its summaries: XSum's are one sentence, CNN's several."""
    named = [half for half in QAGS_HALVES if half in path.name.lower()]
    if len(named) == 1:
        return named[0]
    sentences = sorted(len(re.findall(r"[.!?](?=\s|$)", str(row["system_output"]))) for row in rows)
    return "xsum" if sentences[len(sentences) // 2] < 2 else "cnn"


def _first_groups(
    rows: ResultRows, path: str | Path, rule: DocumentRule, limit: int | None
) -> tuple[ResultRows, Grouped]:
    """Take the rows of the first documents, after every row was found to name one."""
    documents = grouped(Documents.of(rule, rows.known_inputs()), rows, path)
    if limit is None:
        return rows, documents
    if limit < 1:
        raise ConfigurationError(f"the limit of groups must be at least 1, not {limit}")
    groups = documents.names or [str(place) for place in range(len(rows))]
    kept = set(list(dict.fromkeys(groups))[:limit])
    chosen = [place for place, group in enumerate(groups) if group in kept]
    names = None if documents.names is None else [groups[place] for place in chosen]
    return ResultRows.of(map(rows.__getitem__, chosen), path), documents._replace(names=names)


def _benchmark_metrics(rated: Rated, names: Sequence[str]) -> dict[str, Metric]:
    """Choose the metrics of a benchmark's dimensions."""
    assert rated.benchmark is not None
    presets = {dimension: preset for dimension, preset in rated.benchmark.dimensions.items() if preset is not None}
    if not names:
        return {dimension: Metric.load(preset) for dimension, preset in presets.items()}
    chosen: dict[str, Metric] = {}
    for name in names:
        dimension, equals, given = name.partition("=")
        if equals and dimension not in presets:
            raise ConfigurationError(f"there is no dimension {dimension!r}", hint=f"There are: {', '.join(presets)}.")
        given = given if equals else presets.get(name, name)
        if dimension not in presets:
            dimension, metric = _match(given, rated.benchmark.name, presets)
        elif Path(given).suffix == ".txt":
            stands_for = Metric.load(presets[dimension])
            metric = metric_from_prompt_file(given, stands_for.scale, name=f"{stands_for.name}.{Path(given).stem}")
        else:
            metric = Metric.load(given)
        if dimension in chosen:
            raise ConfigurationError(f"two metrics rate {dimension}; name one of them")
        chosen[dimension] = metric
    return {dimension: chosen[dimension] for dimension in presets if dimension in chosen}


def _match(given: str, name: str, presets: Mapping[str, str]) -> tuple[str, Metric]:
    """Find the dimension of a metric, by preset or by name."""
    metric = Metric.load(given)
    last = metric.name.rsplit("/", 1)[-1]
    for dimension, preset in presets.items():
        if metric.name == preset or last == dimension:
            return dimension, metric
    raise ConfigurationError(
        f"{name} has no ratings for {metric.name}",
        hint=f"Say which it rates: `metrics=DIMENSION={given}`, one of {', '.join(presets)}.",
    )


def _own_metrics(
    names: Sequence[str], human: HumanFields, results: Sequence[ResultManifest]
) -> tuple[dict[str, Metric], dict[str, str]]:
    """Pair metrics with the fields of their human ratings; without names those that were scored and rated."""
    scored = {one.definition.name: one.definition for found in results for one in found.metrics.values()}
    if not names and human and scored:
        rated = rating_fields(human, list(scored))
        return {name: metric for name, metric in scored.items() if name in rated}, rated
    if not names or not human:
        raise ConfigurationError(
            "your own ratings need `metrics` and the `human` field that each is to agree with",
            hint="For a published file say `benchmark=summeval`, topical-chat or qags instead.",
        )
    metrics = {metric.name: metric for metric in (scored.get(name) or Metric.load(name) for name in names)}
    if len(metrics) < len(names):
        raise ConfigurationError("two metrics have the same name", hint="Change the name in one of the YAML files.")
    fields = rating_fields(human, list(metrics))
    unrated = [name for name in metrics if name not in fields]
    if unrated:
        raise ConfigurationError(
            f"no human rating is named for {', '.join(unrated)}", hint="Write `human=METRIC=FIELD` for each metric."
        )
    return metrics, fields
