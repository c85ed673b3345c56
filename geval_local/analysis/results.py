"""The input of analyses: result files, runs, rows or data frames, read into scored items."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import Unpack

from geval_local.analysis.example_rows import without_examples
from geval_local.analysis.ratings.merged import rated_rows
from geval_local.analysis.ratings.values import (
    ANY_NUMBER,
    AS_SCORED,
    HumanFields,
    RatingReading,
    RatingScale,
    no_values,
    rating_fields,
    ratings_of,
    read_ratings,
)
from geval_local.direction import Direction
from geval_local.errors import ConfigurationError, DataError, ScaleError
from geval_local.fields import SYSTEM_FIELDS, check_mapping, field_value, listed, nearest
from geval_local.grouping import DocumentRule, Documents
from geval_local.io.input_checks import check_columns
from geval_local.io.result_manifest import ResultManifest, ScoredMetric, document_rule, manifest_path, read_manifest
from geval_local.io.results import MetricFigures, ResultRows, numbered, read_result_rows, with_figures
from geval_local.io.samples import Sample
from geval_local.options import RatingOptions
from geval_local.runs.addresses import local_results
from geval_local.runs.directory import result_file
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, Score, estimate, silence
from geval_local.signature import rounding_of, signature_parts, written_signature
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem, probability_matrix, usable
from geval_local.wording import say_once

#: Rated documents of several systems from which on equal ratings of all systems are hardly chance.
_FEWEST_EQUAL = 5
#: Name of a document whose outputs were columns of one row, see `RunOptions.system_columns`.
_OF_WIDE = re.compile(r"(?:.*, )?row \d+")
#: Alternatives to the expectation: the paper's two, and those of Wang, Zhang and Choi (2025, arXiv:2503.03064).
ABLATIONS = (
    Estimator("mode"),
    Estimator("sample", n=20),
    Estimator("median"),
)

#: Results that the public functions accept: a path, a run, rows, or a data frame of pandas or polars.
ResultsGiven = Any


def each_given(results: ResultsGiven | Sequence[ResultsGiven]) -> Sequence[ResultsGiven]:
    """Return several results as they are, and single ones, which may be rows, as a list of one."""
    is_several = isinstance(results, Sequence) and not isinstance(results, str)
    return results if is_several and not (results and isinstance(results[0], Mapping)) else [results]


def read_rows(path: str | Path) -> ResultRows:
    """Read all rows of a JSONL, JSON, CSV, Excel or Parquet file; figures of a scored file are always under ``geval``.

    For a run directory it reads the results of that run.
    """
    return read_result_rows(result_file(path))


def has_ids(rows: ResultRows) -> bool:
    """Whether all rows that could be read have distinct ids."""
    return len({str(name) for name in rows.column("id") if name is not None}) == len(rows) - len(rows.unread)


def row_keys(rows: ResultRows) -> list[str]:
    """Return a key for each row: its ``id`` if all rows have distinct ones, else its number."""
    named = zip(rows.column("id") if has_ids(rows) else rows.numbers, rows.numbers, strict=True)
    return [f"row {number}" if name is None else str(name) for name, number in named]


def figures_of(rows: ResultRows, metric: str, path: str | Path) -> MetricFigures:
    """Return the figures of one metric, which every row has."""
    own = rows.figures.get(metric) or MetricFigures(metric)
    known = own.known(len(rows))
    if not known.all():
        place = int(known.argmin())
        held = [name for name, one in rows.figures.items() if one.has(place)]
        what, hint = f"score of the metric {metric!r}", f"The row has: {', '.join(held)}."
        if not held:
            what, hint = "scores", "Expected a result file of `geval-local score`."
        raise DataError(f"{path}, row {rows.numbers[place]}: no {what}", hint=hint)
    return own


def rated_items(
    rows: ResultRows,
    figures: MetricFigures | None,
    path: str | Path,
    *,
    human: str | None = None,
    groups: Sequence[str] | None = None,
    system: str | None = None,
    keys: Sequence[str] | None = None,
    scale: RatingScale = ANY_NUMBER,
) -> list[ScoredItem]:
    """Join figures, one per row, with the rows' human ratings, documents and systems.

    `groups` are the documents; by default each row is one. `scale` is the ratings' scale.
    """
    count = len(rows)
    ratings = [math.nan] * count
    if human is not None:
        held, file = rows.holding(human, path)
        ratings = read_ratings(held, human, file, scale)
        if all(map(math.isnan, ratings)):
            raise no_values(rows, human, path)
    keys = keys or row_keys(rows)
    own = MetricFigures("") if figures is None else figures
    values, masses = (own.number(name, count).tolist() for name in ("score", "label_mass"))
    systems, documents = writers(rows, path, system), groups or keys
    items = [
        ScoredItem(
            documents[place],
            systems[place],
            ratings[place],
            values[place],
            own.probabilities(place),
            None,
            keys[place],
            own.cause(place) if values[place] != values[place] else None,
            masses[place],
        )
        for place in range(count)
    ]
    if human is not None and figures is not None:
        check_sides(items, human, path)
    return items


def check_sides(items: Sequence[ScoredItem], human: str, path: str | Path, *, is_of_pairs: bool = False) -> None:
    """Doubt ratings that all systems of every document share, although scores differ.

    Those of pairs, and of documents that were one wide row, are refused; of few others they may be equal by chance.
    """
    documents: dict[str, dict[str, ScoredItem]] = {}
    for item in items:
        documents.setdefault(item.group, {})[item.system] = item
    several = [own.values() for own in documents.values() if len(own) > 1]
    several = [own for own in several if not all(math.isnan(one.human) for one in own)]
    shared = [{one.human for one in own} for own in several]
    if any(len(own) > 1 for own in shared) or len(set().union(*shared)) < 2:
        return
    told = f"{path}: {human!r} is the same for all systems of every document"
    way = f"Judge the pairs with `pairs`, and read it there: geval-local rank PAIRS --human {human}."
    if is_of_pairs or all(_OF_WIDE.fullmatch(one.group) for own in several for one in own):
        raise DataError(f"{told}: it rates a pair, not each output", hint=way)
    if len(several) >= _FEWEST_EQUAL and any(len({one.predicted for one in own}) > 1 for own in several):
        say_once(f"{told}: if it rates a pair, it is no rating of each output. {way}", level=logging.WARNING)


def check_named(names: Iterable[Any], rows: ResultRows, field: str, path: str | Path, purpose: str = "") -> None:
    """Refuse a row that was read and has no name in a field."""
    for place, name in enumerate(names):
        if name is None and place not in rows.unread:
            columns = [str(one) for one in rows.columns_of(place)]
            told = f"{path}, row {rows.numbers[place]}: the field {field!r} {purpose}is missing"
            raise DataError(told + nearest(field, columns), hint=f"Columns: {', '.join(columns)}.")


class Grouped(NamedTuple):
    """The documents of rows."""

    #: The document of each row; None if every row is one.
    names: list[str] | None
    #: Which rows are one document, in words.
    told: str
    #: Whether all rows of a document have the same texts, and so the same score.
    is_of_texts: bool = False

    @property
    def level(self) -> Level:
        """The default level of correlations: within documents if rows of other texts share them, else pooled."""
        return "pooled" if self.names is None or self.is_of_texts else "summary"


def level_of_rated(first: Level, given: Iterable[Sequence[ScoredItem]]) -> Level:
    """Return the default level of rated items: pooled where no document has two rows with a score and a rating."""
    kept = [usable(items)[0] for items in given]
    is_within = any(len({item.group for item in own}) < len(own) for own in kept)
    return "pooled" if first == "summary" and any(kept) and not is_within else first


def grouped(
    documents: Documents, rows: ResultRows, path: str | Path, *, alone: bool = False, first: int = 0
) -> Grouped:
    """Name the document of each row, also if there is only one, `alone`; rows are those from the `first` on.

    A row without the column that the user named is refused; one that could not be read is a document of its own.
    """
    counts = documents.counts
    if not (alone or counts.is_grouped):
        return Grouped(None, counts.told)
    names = documents.names[first : first + len(rows)]
    if counts.given is not None:
        check_named(names, rows, counts.given, path, "to group by ")
    own = [f"row {number}" if name is None else name for name, number in zip(names, rows.numbers, strict=True)]
    return Grouped(own, counts.told, counts.is_of_texts)


def writers(rows: ResultRows, path: str | Path, field: str | None = None) -> list[str]:
    """Return the system that wrote each row's output, from this column or the usual ones; empty if none has it.

    A row without the column that the user named is refused.
    """
    named = [[field_value(row, field) for row in rows.inputs()]] if field else [*map(rows.column, SYSTEM_FIELDS)]
    found = [next((str(one) for one in own if one is not None), "") for own in zip(*named, strict=True)]
    if field is not None:
        check_named([name or None for name in found], rows, field, path)
    return found


def shared_columns(run: ScoredRun, runs: Sequence[ScoredRun]) -> Iterable[Mapping[str, Any]]:
    """Yield the rows of a run with the columns that all runs have, since CSV results may have fewer."""
    common = set.intersection(*(set(one.rows.first) for one in runs))
    if run.group_by is not None or common.issuperset(run.rows.names):
        return run.rows.known_inputs()
    return ({name: value for name, value in row.items() if name in common} for row in run.rows.known_inputs())


def documents_of(runs: Sequence[ScoredRun]) -> list[Documents]:
    """Collect the documents of runs over the same rows, as the first of them decides."""
    first = Documents.of(runs[0].rule, shared_columns(runs[0], runs))
    rule = replace(runs[0].rule, used=first.counts.used)
    return [first, *(Documents.of(rule, shared_columns(run, runs)) for run in runs[1:])]


def together(runs: Sequence[ScoredRun]) -> list[Grouped]:
    """Name the documents of runs over the same rows, as the first of them decides."""
    collected = documents_of(runs)
    if not collected[0].counts.is_grouped:
        return [Grouped(None, collected[0].counts.told)] * len(runs)
    return [grouped(own, run.rows, run.path) for own, run in zip(collected, runs, strict=True)]


class Reading(RatingReading, total=False):
    """How to read results; every analysis accepts these keyword arguments, and those of `RatingReading`.

    Attributes
    ----------
    group_by : str
        Field of the document, or ``row`` if every row is its own document; by default guessed.
    system : str
        Field that names the system; by default the usual columns.
    fields : mapping of str to str
        Field of a metric -> its column.
    estimator : Estimator or str
        Recompute the scores from the stored distributions.
    """

    group_by: str | None
    system: str | None
    fields: Mapping[str, str] | None
    estimator: Estimator | str | None


#: Column of results with the system of a row that comes from a wide row, see `RunOptions.system_columns`.
_MADE_SYSTEM = "system"


def system_of_columns(runs: Sequence[ScoredRun], columns: Sequence[str], system: str | None) -> str:
    """Return the field of the system in results scored with `system_columns`; check that it has every column."""
    if system is not None:
        raise ConfigurationError("`system` and `system_columns` both name the systems", hint="Take one of them.")
    for run in runs:
        found = dict.fromkeys(str(name or "") for name in run.rows.column(_MADE_SYSTEM))
        for name in columns:
            if name not in found:
                told = ", ".join(filter(None, found)) or "not named"
                raise DataError(
                    f"{run.path}: no row is of the system {name!r}{nearest(name, filter(None, found))}",
                    hint=f"Its systems are: {told}. Score the wide file with `system_columns={shlex.join(columns)}`.",
                )
    return _MADE_SYSTEM


#: Column of a rating sheet with the key of the rated row.
KEY = "key"


@dataclass(frozen=True)
class ScoredRun:
    """A result file of ``geval-local score``."""

    #: The file, or its run directory.
    path: Path
    #: Field of a metric -> its column, or the dotted path into one; overrides the manifest's mapping.
    fields: Mapping[str, str] = field(default_factory=dict)
    #: Recomputes the scores from the stored label distributions; None uses the stored scores.
    estimator: Estimator | None = None
    #: Rows that were not read from the file, and what is known of their origin.
    held: ResultRows | None = field(default=None, repr=False)
    described: ResultManifest | None = field(default=None, repr=False)
    #: Fields of the document and of the system, if named.
    group_by: str | None = None
    system: str | None = None
    #: How people's ratings are read.
    people: RatingOptions = AS_SCORED
    #: The file's name without its extension, or that of the directory.
    name: str = field(init=False)

    @classmethod
    def of(cls, given: ResultsGiven, **reading: Unpack[Reading]) -> ScoredRun:
        """Accept results in any form: as read, a path, the result of `score_file`, rows, or a data frame."""
        from geval_local.runs.completion import RunResult  # imports the registry of models

        named: dict[str, Any] = {name: value for name, value in reading.items() if value is not None}
        rating = {name: named.pop(name) for name in RatingReading.__annotations__ if name in named}
        if isinstance(estimator := named.get("estimator"), str):
            named["estimator"] = Estimator.parse(estimator)
        known = given.people if isinstance(given, ScoredRun) else AS_SCORED
        named["people"] = RatingOptions(**{name: getattr(known, name) for name in known.model_fields_set} | rating)
        if isinstance(given, ScoredRun):
            if all(value == getattr(given, name) for name, value in named.items()):
                return given
            other = replace(given, **named)
            object.__setattr__(other, "name", given.name)
            return other
        if isinstance(given, RunResult):
            given = str(given.files[0])
        if isinstance(given, str | os.PathLike):
            return cls(local_results(os.fspath(given)), **named)
        if hasattr(given, "to_dicts"):  # polars
            rows = given.to_dicts()
        elif hasattr(given, "to_dict"):  # pandas
            # Replaces pandas' values for an empty cell, in a column of any type.
            rows = given.astype(object).where(given.notna(), None).to_dict("records")
        else:
            rows = list(given)
        return cls(Path("results"), held=ResultRows.of(map(with_figures, rows)), **named)

    def __post_init__(self) -> None:
        given = self.path
        if self.held is not None:
            object.__setattr__(self, "name", "results")
            return
        object.__setattr__(self, "path", result_file(given))
        object.__setattr__(self, "name", given.stem if self.path == given else given.resolve().name)

    @property
    def source(self) -> Path | None:
        """The file; None if rows were given instead."""
        return self.path if self.held is None else None

    @cached_property
    def rows(self) -> ResultRows:
        """The rows, which are read once."""
        rows = read_rows(self.path) if self.held is None else self.held
        if self.manifest is not None:
            known = (name for one in self.manifest.metrics.values() for name in one.definition.fields)
            check_mapping(self.fields, ["output", *known])
        check_columns(map(Sample, rows.inputs()), self.fields)
        fields = self.rule.fields or ("output",)
        return rated_rows(rows, self.people, fields, self.mapping, self.path, self.system)

    @cached_property
    def documents(self) -> Grouped:
        """The document of every row: as named, else as the manifest records it, else as the metrics' fields decide."""
        return grouped(self.collected, self.rows, self.path)

    @cached_property
    def collected(self) -> Documents:
        """What decides which rows are one document."""
        return Documents.of(self.rule, self.rows.known_inputs())

    @cached_property
    def rule(self) -> DocumentRule:
        """How rows make documents: by the named column, else as recorded, else by the fields of the metrics."""
        return document_rule(self.manifest, self.group_by, self.fields)

    @cached_property
    def manifest(self) -> ResultManifest | None:
        """The file's manifest, if there is one."""
        return read_manifest(self.path) if self.held is None else self.described

    @cached_property
    def mapping(self) -> dict[str, str]:
        """Field of a metric -> its column: as given, else from the manifest."""
        return {**({} if self.manifest is None else self.manifest.fields), **self.fields}

    @cached_property
    def metrics(self) -> list[str]:
        """Names of the metrics."""
        if (bare := self.rows.bare) is not None:
            is_other = "geval" in self.rows.names
            told = "the column 'geval' does not hold one object per metric" if is_other else "no scores"
            if self.manifest is not None and self.manifest.questions:
                told = "answers of `decide`, and no scores"
            raise DataError(
                f"{self.path}, row {bare}: {told}",
                hint=f"Score it first: geval-local score {self.path} --metric NAME -o OUT",
            )
        return list(self.rows.figures)

    @property
    def file(self) -> str:
        """The file's name, or ``results``."""
        return self.path.name

    def score(self, metric: str, place: int) -> Score:
        """Return the score of a row on a metric, by its place from 0."""
        return self.rows.figures[metric].score(place, self.direction(metric))

    def scores(self, metric: str) -> list[Score]:
        """Return the scores of all rows on a metric."""
        return [self.score(metric, place) for place in range(len(self.rows))]

    def lowest(self, count: int) -> dict[str, list[tuple[Sample, Score]]]:
        """Give the worst rows of every metric that the judge answers, the worst first, by its direction."""
        found: dict[str, list[tuple[Sample, Score]]] = {}
        for metric in self.metrics if count else ():
            own = self.rows.figures[metric]
            values, masses = (own.number(name, len(self.rows)) for name in ("score", "label_mass"))
            known = masses[np.isfinite(masses)]
            if known.size and silence(math.fsum(known) / known.size):
                continue
            order = np.argsort(self.direction(metric).sign * values, kind="stable")
            places = [int(place) for place in order[:count] if np.isfinite(values[place])]
            rows = (self.rows.columns_of(place) for place in places)
            samples = (Sample(row, row.number, self.file, mapping=self.mapping) for row in rows)
            found[metric] = [(one, self.score(metric, at)) for one, at in zip(samples, places, strict=True)]
        return found

    def to_pandas(self) -> Any:
        """Return the rows as a data frame of pandas: their columns, and ``metric.figure`` for every figure."""
        return import_module("pandas").DataFrame(self._frame_rows())

    def to_polars(self) -> Any:
        """Return the rows as a data frame of polars, as `to_pandas` does."""
        return import_module("polars").DataFrame(self._frame_rows(), infer_schema_length=None)

    def _frame_rows(self) -> list[dict[str, Any]]:
        figures = self.rows.figures
        return [
            row | {f"{name}.{key}": value for name, own in figures.items() for key, value in own.at(place).items()}
            for place, row in enumerate(self.rows.inputs())
        ]

    def readable(self) -> ScoredRun:
        """Return the results without the rows that could not be read, of which nobody knows the system."""
        lost = self.rows.unread
        if len(lost) in (0, len(self.rows)):
            return self
        numbers = listed([self.rows.numbers[place] for place in sorted(lost)], 10)
        say_once(f"{self.path}: left out, as it could not be read: row {numbers}", level=logging.WARNING)
        other = replace(self)
        other.__dict__.update(name=self.name, rows=self.rows.without(lost))
        return other

    def one_metric(self, name: str | None) -> str:
        """Return the named metric, or the only one."""
        if name is None and len(self.metrics) > 1:
            raise ConfigurationError(
                f"{self.path} holds several metrics", hint=f"Name one with `metric`: {', '.join(self.metrics)}."
            )
        if name is not None and name not in self.metrics:
            raise ConfigurationError(
                f"{self.path} holds no scores of {name!r}", hint=f"It holds: {', '.join(self.metrics)}."
            )
        return name or self.metrics[0]

    def items(
        self,
        metric: str,
        *,
        human: HumanFields | None = None,
        documents: Grouped | None = None,
        against_people: bool = False,
        partly: bool = False,
    ) -> list[ScoredItem]:
        """Read the scores of a metric with their documents (by default the run's own), and ratings if they are named.

        A row that the metric shows as an example gets no rating, and with `against_people` no score either. Rows
        without any figure of the metric are refused, unless it may have scored them `partly`.
        """
        rating = rating_fields(human, [metric]).get(metric)
        items = rated_items(
            self.rows,
            self.rows.figures[metric] if partly else figures_of(self.rows, metric, self.path),
            self.path,
            human=rating,
            groups=(documents or self.documents).names,
            system=self.system,
            scale=ANY_NUMBER if rating is None else self.rating_scale(metric),
        )
        if (against_people or rating is not None) and self.is_described(metric):
            own, keep = self.origin(metric).definition, not against_people
            items = without_examples(items, self.rows.inputs(), own, self.mapping, self.path, keep_scores=keep)
        if self.estimator is None:
            return items
        return estimated_items(items, self.origin(metric).definition.scale, self.estimator)

    def rating_scale(self, metric: str) -> RatingScale:
        """Return the scale of a metric's human ratings: the named one, else that of the metric's labels."""
        return RatingScale.of_people(self.people, self._rated_on(metric), self.direction(metric))

    def _rated_on(self, metric: str) -> Scale | str | None:
        if self.people.human_scale is not None:
            return self.people.human_scale
        if self.is_described(metric):
            return self.origin(metric).definition.scale
        # Rows of a data frame have no manifest: numeric labels in their probabilities give the scale.
        own = self.rows.figures.get(metric)
        shares = (own.probabilities(place) for place in range(len(self.rows))) if own is not None else iter(())
        with suppress(ScaleError):
            return Scale.parse(list(next(filter(None, shares), {})))
        return None

    def ratings(self, metric: str, raters: Sequence[str], *, every: bool = False) -> dict[str, list[float]]:
        """Read the ratings of single people, see `ratings_of`."""
        return ratings_of(self.rows, raters, self.path, self.rating_scale(metric), every=every) if raters else {}

    def is_described(self, metric: str) -> bool:
        """Whether a manifest describes the scores of a metric."""
        return self.manifest is not None and metric in self.manifest.metrics

    def direction(self, metric: str) -> Direction:
        """Return which scores of a metric are good; high ones, unless its description says otherwise."""
        return self.origin(metric).definition.direction if self.is_described(metric) else Direction.HIGH

    def ends(self, metric: str) -> tuple[float, float] | None:
        """Return the lowest and highest value of a metric's scale; None without a description."""
        if not self.is_described(metric):
            return None
        scale = self.origin(metric).definition.scale
        return scale.low, scale.high

    def rounding(self, metric: str) -> float:
        """Return the largest difference between scores of a metric that rounding alone makes, see `rounding_of`."""
        if not self.is_described(metric):
            return rounding_of("")
        return rounding_of(self.origin(metric).signature, self.origin(metric).definition.scale)

    def origin(self, metric: str) -> ScoredMetric:
        """Return the origin of a metric's scores."""
        if self.manifest is None or metric not in self.manifest.metrics:
            raise ConfigurationError(
                f"nothing says under which signature {self.path} was scored on {metric}",
                hint=f"`geval-local score` writes {manifest_path(self.path).name} beside its output; carry it along.",
            )
        return self.manifest.metrics[metric]

    def signature(self, metric: str) -> str:
        """Return the signature of a metric's scores, with the estimator in use here."""
        written = self.origin(metric).signature
        if self.estimator is None:
            return written
        return written_signature(signature_parts(written) | {"estimator": self.estimator.text})

    def with_sheet(self, sheet: str | Path, fields: Sequence[str], *, metric: str) -> ScoredRun:
        """Add the ratings of a metric from a filled-in sheet, by field, to the results from which it was drawn."""
        places = {key: place for place, key in enumerate(self.blind_keys)}
        rows = list(self.rows)
        seen: dict[str, int] = {}
        filled = read_rows(sheet)
        ratings = {name: read_ratings(numbered(filled), name, sheet, self.rating_scale(metric)) for name in fields}
        for at, (number, row) in enumerate(numbered(filled)):
            key = str(row.get(KEY))
            if key not in places or key in seen:
                wrong = f"is also that of row {seen[key]}" if key in seen else f"belongs to no row of {self.path}"
                raise DataError(
                    f"{sheet}, row {number}: the {KEY} {key!r} {wrong}",
                    hint="Give the sheet that `plan` drew from these results, each key once.",
                )
            seen[key] = number
            rows[places[key]] |= {name: own[at] for name, own in ratings.items() if math.isfinite(own[at])}
        on = {"human_scale": self._rated_on(metric), "skip_outside": self.people.skip_outside}
        people = RatingOptions.model_validate(on)  # these ratings are read already
        return replace(self, held=ResultRows.of(rows, self.path), described=self.manifest, people=people)

    @cached_property
    def outputs(self) -> dict[str, str | None]:
        """The key of every row -> the text of its output; None if there is none."""
        return dict(zip(row_keys(self.rows), map(self.rule.output, self.rows.inputs()), strict=True))

    @property
    def blind_keys(self) -> list[str]:
        """A key for every row that does not reveal who wrote it, and is of no other text where rows were sorted."""
        texts = (f"{key}\n{text}".encode("utf-8", "replace") for key, text in self.outputs.items())
        return [blake2b(text, digest_size=6).hexdigest() for text in texts]


def read_results(given: ResultsGiven, **reading: Unpack[Reading]) -> ScoredRun:
    """Read results with all that they know: rows, scores, fields, documents and their manifest.

    Parameters
    ----------
    given : path, RunResult, rows or data frame
        A result file of any format, a run directory, the result of `score_file`, rows, or a data frame.
    **reading
        Fields of the document and of the system, and how scores are read: see `Reading`.

    Returns
    -------
    ScoredRun
        With `rows`, `scores` (a `Score` for each row), `metrics`, `manifest`, `mapping`, `documents`, `to_pandas` and
        `to_polars`.

    Raises
    ------
    ConfigurationError, DataError
        If there is no such file, or it cannot be read.
    """
    return ScoredRun.of(given, **reading)


def estimated_items(items: Sequence[ScoredItem], scale: Scale, estimator: Estimator) -> list[ScoredItem]:
    """Recompute scores with another estimator from the stored label distributions; unscored items stay unscored."""
    result = list(items)
    scored = [index for index, item in enumerate(items) if np.isfinite(item.predicted)]
    rows = probability_matrix([items[index] for index in scored], scale)
    with np.errstate(divide="ignore"):
        logs = np.log(rows)
    for index, row in zip(scored, logs, strict=True):
        key = int.from_bytes(blake2b(items[index].key.encode(), digest_size=8).digest(), "big")
        value = estimate(Distribution(scale, row), estimator, sample_key=key)
        # The estimator yields one number: whoever samples a score does not know its distribution.
        result[index] = replace(items[index], predicted=value, probabilities=None)
    return result


def estimate_name(judge: str, estimator: Estimator) -> str:
    """Name the row of another estimate by one judge: ``nano - probs``, ``nano n = 20``, ``nano median``."""
    return f"{judge} " + {"mode": "- probs", "sample": f"n = {estimator.n}"}.get(estimator.kind, estimator.text)
