"""The input of analyses: result files, runs, rows or data frames, read into scored items."""

from __future__ import annotations

import heapq
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    no_ratings,
    number_at,
    rating_fields,
    ratings_of,
    read_ratings,
)
from geval_local.direction import Direction
from geval_local.errors import Cause, ConfigurationError, DataError, ErrorCode, ScaleError
from geval_local.fields import SYSTEM_FIELDS, check_mapping, lookup, nearest, output_text
from geval_local.grouping import DocumentRule, Documents
from geval_local.io.input_checks import check_columns
from geval_local.io.result_manifest import ResultManifest, ScoredMetric, document_rule, manifest_path, read_manifest
from geval_local.io.results import (
    FileRows,
    Record,
    Records,
    ResultsInput,
    decoded,
    figures_in,
    numbered,
    read_result_rows,
    row_number,
    with_figures,
)
from geval_local.io.rows import Row
from geval_local.io.samples import Sample
from geval_local.options import RatingOptions
from geval_local.runs.addresses import local_results
from geval_local.runs.directory import result_file
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, Score, estimate, silence
from geval_local.signature import rounding_of, signature_parts, written_signature
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem, probability_matrix, word_count

#: Alternatives to the expectation: the paper's two, and those of Wang, Zhang and Choi (2025, arXiv:2503.03064).
ABLATIONS = (
    Estimator("mode"),
    Estimator("sample", n=20),
    Estimator("median"),
)

#: Results that the public functions accept: a path, a run, rows, or a data frame of pandas or polars.
ResultsGiven = Any


def read_rows(path: str | Path) -> Sequence[Row]:
    """Read all rows of a JSONL, JSON, CSV or Parquet file; figures of a scored file are always under ``geval``.

    For a run directory it reads the results of that run.
    """
    return read_result_rows(result_file(path))


def row_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a key for each row: its ``id`` if all rows have distinct ones, else its number from 1."""
    ids = [str(row["id"]) for row in rows if row.get("id") is not None]
    if len(ids) == len(rows) == len(set(ids)):
        return ids
    return [str(number) for number in range(1, len(rows) + 1)]


def blind_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a key for each row that does not reveal who wrote its output, unlike `row_keys`."""
    return [blake2b(key.encode(), digest_size=6).hexdigest() for key in row_keys(rows)]


def figures_of(rows: Sequence[Mapping[str, Any]], metric: str, path: str | Path) -> list[Mapping[str, Any]]:
    """Return the figures of one metric from scored rows."""
    found: list[Mapping[str, Any]] = []
    for number, row in numbered(rows):
        scores = row.get("geval")
        if not isinstance(scores, Mapping):
            raise DataError(f"{path}, row {number}: no scores", hint="Expected a result file of `geval-local score`.")
        if not isinstance(scores.get(metric), Mapping):
            raise DataError(
                f"{path}, row {number}: no score of the metric {metric!r}", hint=f"The row has: {', '.join(scores)}."
            )
        found.append(scores[metric])
    return found


def rated_items(
    rows: Sequence[Mapping[str, Any]],
    figures: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    human: str | None = None,
    groups: Sequence[str] | None = None,
    system: str | None = None,
    fields: Mapping[str, str] | None = None,
    keys: Sequence[str] | None = None,
    scale: RatingScale = ANY_NUMBER,
) -> list[ScoredItem]:
    """Join figures, one per row, with the rows' human ratings, documents and systems.

    `groups` are the documents; by default each row is one. `fields` maps ``output`` to its column if the name differs;
    `scale` is the ratings' scale.
    """
    items = []
    ratings = [math.nan] * len(rows) if human is None else read_ratings(numbered(rows), human, path, scale)
    keys = keys or row_keys(rows)
    both = zip(rows, figures, keys, ratings, keys if groups is None else groups, strict=True)
    for place, (row, own, key, rating, group) in enumerate(both, start=1):
        where = f"{path}, row {row_number(row, place)}"
        value, mass = (number_at(own, name, where) for name in ("score", "label_mass"))
        reason = Cause(str(own.get("error") or "unscored"), ErrorCode.read(own.get("error_code")))
        error = reason if math.isnan(value) else None
        probabilities = own.get("probabilities") or None
        item = ScoredItem(group, "", rating, value, probabilities, key=key, error=error, label_mass=mass)
        items.append(joined(item, row, where, system, fields))
    if human is not None and all(map(math.isnan, ratings)):
        raise no_ratings(rows, human, path)
    return items


def missing_field(row: Mapping[str, Any], field: str, where: str, purpose: str = "") -> DataError:
    """Return the error for a missing field, with the row's columns."""
    columns = [str(name) for name in row if name != "geval"]
    return DataError(
        f"{where}: the field {field!r} {purpose}is missing{nearest(field, columns)}",
        hint=f"Columns: {', '.join(columns)}.",
    )


def joined(
    item: ScoredItem,
    row: Mapping[str, Any],
    where: str,
    system: str | None,
    fields: Mapping[str, str] | None,
) -> ScoredItem:
    """Join one score with its row's system and length; error messages begin with `where`."""
    writer = writer_of(row, system)
    if system is not None and not writer:
        raise missing_field(row, system, where)
    output = output_text(row, fields)
    length = None if output is None else word_count(output)
    return replace(item, system=writer, length=length)


class Grouped(NamedTuple):
    """The documents of rows."""

    #: The document of each row; None if every row is one.
    names: list[str] | None
    #: Which rows are one document, in words.
    told: str

    @property
    def level(self) -> Level:
        """The default level of correlations: within documents if rows share them, else pooled."""
        return "pooled" if self.names is None else "summary"


def grouped(
    documents: Documents, rows: Iterable[Mapping[str, Any]], path: str | Path, *, alone: bool = False
) -> Grouped:
    """Name the document of each row, also if there is only one, `alone`.

    A row without the column that the user named is refused.
    """
    counts = documents.counts
    if not (alone or counts.is_grouped):
        return Grouped(None, counts.told)
    names = []
    for name, (number, row) in zip(documents.names, numbered(rows), strict=True):
        if name is None and counts.given is not None:
            raise missing_field(row, counts.given, f"{path}, row {number}", "to group by ")
        names.append(f"row {number}" if name is None else name)
    return Grouped(names, counts.told)


def writer_of(row: Mapping[str, Any], field: str | None = None) -> str:
    """Return the system that wrote a row's output, from this column or the usual ones; empty if none has it."""
    named = (lookup(row, name) for name in ((field,) if field is not None else SYSTEM_FIELDS))
    return next((str(name) for name in named if name is not None), "")


def shared_columns(run: ScoredRun, runs: Sequence[ScoredRun]) -> Iterable[Mapping[str, Any]]:
    """Yield the rows of a run with the columns that all runs have, since CSV results may have fewer."""
    if run.group_by is not None:
        return run.rows
    common = set.intersection(*(set(one.rows[0]) for one in runs))
    return ({name: value for name, value in row.items() if name in common} for row in run.rows)


def together(runs: Sequence[ScoredRun]) -> list[Grouped]:
    """Name the documents of runs over the same rows, as the first of them decides."""
    first = Documents.of(runs[0].rule, shared_columns(runs[0], runs))
    if not first.counts.is_grouped:
        return [Grouped(None, first.counts.told) for _ in runs]
    rule = replace(runs[0].rule, used=first.counts.used)
    others = [Documents.of(rule, shared_columns(run, runs)) for run in runs[1:]]
    found = [grouped(own, run.rows, run.path) for own, run in zip((first, *others), runs, strict=True)]
    return [one._replace(told=first.counts.told) for one in found]


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
        found = dict.fromkeys(writer_of(row, _MADE_SYSTEM) for row in run.rows)
        for name in columns:
            if name not in found:
                told = ", ".join(filter(None, found)) or "not named"
                raise DataError(
                    f"{run.path}: no row is of the system {name!r}{nearest(name, filter(None, found))}",
                    hint=f"Its systems are: {told}. Score the wide file with `system_columns={' '.join(columns)}`.",
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
    held: Sequence[Mapping[str, Any]] | None = field(default=None, repr=False)
    #: Fields of the document and of the system, if named.
    group_by: str | None = None
    system: str | None = None
    #: How people's ratings are read.
    people: RatingOptions = AS_SCORED
    #: The file's name without its extension, or that of the directory.
    name: str = field(init=False)

    @classmethod
    def of(cls, given: ResultsGiven, **reading: Unpack[Reading]) -> ScoredRun:
        """Accept results in any form: a path, the result of `score_file`, rows, or a data frame."""
        from geval_local.runs.completion import RunResult  # imports the registry of models

        named: dict[str, Any] = {**reading, "fields": reading.get("fields") or {}}
        named["people"] = RatingOptions(
            **{name: named.pop(name) for name in RatingReading.__annotations__ if name in named}
        )
        if isinstance(estimator := reading.get("estimator"), str):
            named["estimator"] = Estimator.parse(estimator)
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
        if not rows:
            raise DataError("the results hold no rows")
        return cls(Path("results"), held=[with_figures(row) for row in rows], **named)

    def __post_init__(self) -> None:
        given = self.path
        if self.held is not None:
            object.__setattr__(self, "name", "results")
            return
        object.__setattr__(self, "path", result_file(given))
        object.__setattr__(self, "name", given.stem if self.path == given else given.resolve().name)

    @property
    def given(self) -> ResultsInput:
        """The file, or the rows that were given instead."""
        if self.held is None and self.people.rater_column is None and self.people.ratings is None:
            return self.path
        return self.rows

    @cached_property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows."""
        rows = read_rows(self.path) if self.held is None else self.held
        if self.manifest is not None:
            known = (name for one in self.manifest.metrics.values() for name in one.definition.fields)
            check_mapping(self.fields, ["output", *known])
        check_columns((Sample(row) for row in rows), self.fields)
        fields = self.rule.fields or ("output",)
        return rated_rows(rows, self.people, fields, self.mapping, self.path, self.system)

    @cached_property
    def documents(self) -> Grouped:
        """The document of every row: as named, else as the manifest records it, else as the metrics' fields decide."""
        return grouped(self.collected, self.rows, self.path)

    @cached_property
    def collected(self) -> Documents:
        """What decides which rows are one document."""
        return Documents.of(self.rule, self.rows)

    @property
    def rule(self) -> DocumentRule:
        """How rows make documents: by the named column, else as recorded, else by the fields of the metrics."""
        return document_rule(self.manifest, self.group_by, self.fields)

    @cached_property
    def manifest(self) -> ResultManifest | None:
        """The file's manifest, if there is one."""
        return None if self.held is not None else read_manifest(self.path)

    @cached_property
    def mapping(self) -> dict[str, str]:
        """Field of a metric -> its column: as given, else from the manifest."""
        return {**({} if self.manifest is None else self.manifest.fields), **self.fields}

    @cached_property
    def metrics(self) -> list[str]:
        """Names of the metrics; of a large file those in its first row."""
        shown = [self.rows[0]] if isinstance(self.rows, FileRows) else self.rows
        named = numbered(shown)
        found = dict.fromkeys(name for number, row in named for name in figures_in(row, f"{self.path}, row {number}"))
        if not found:
            raise DataError(
                f"{self.path} holds no scores",
                hint=f"Score it first: geval-local score {self.path} --metric NAME -o OUT",
            )
        return list(found)

    @property
    def file(self) -> str:
        """The file's name, or ``results``."""
        return self.path.name

    @cached_property
    def records(self) -> Collection[Record]:
        """The rows with their scores; those of a large file are read as they are asked for."""
        turned = {name: found for name in self.metrics if (found := self.direction(name)) is not Direction.HIGH}
        records = Records(self.rows, str(self.path), self.metrics, turned)
        return records if isinstance(self.rows, FileRows) else tuple(records)

    def lowest(self, count: int) -> dict[str, list[tuple[Sample, Score]]]:
        """Give the worst rows of every metric that the judge answers, the worst first, by its direction."""
        found: dict[str, list[tuple[Sample, Score]]] = {}
        for metric in self.metrics if count else ():
            known = [mass for one in self.records if math.isfinite(mass := one.scores[metric].label_mass)]
            if known and silence(math.fsum(known) / len(known)):
                continue
            scored = (record for record in self.records if record.scores[metric].is_scored)
            worst = heapq.nsmallest(
                count, scored, key=lambda one: self.direction(metric).sign * one.scores[metric].value
            )
            found[metric] = [
                (Sample(one.columns, one.number, self.file, mapping=self.mapping), one.scores[metric]) for one in worst
            ]
        return found

    @property
    def ids(self) -> list[str] | None:
        """The rows' ``id`` values if all rows have distinct ones, else None."""
        keys = row_keys(self.rows)
        return keys if keys and str(self.rows[0].get("id")) == keys[0] and "id" in self.rows[0] else None

    def frame_rows(self) -> list[dict[str, Any]]:
        """Return a flat row for each row: its columns, and ``metric.figure`` for every figure."""
        return [
            one.columns
            | {f"{name}.{key}": value for name, own in one.scores.items() for key, value in own.to_dict().items()}
            for one in self.records
        ]

    def to_pandas(self) -> Any:
        """Return the rows as a data frame of pandas, see `frame_rows`."""
        return import_module("pandas").DataFrame(self.frame_rows())

    def to_polars(self) -> Any:
        """Return the rows as a data frame of polars, see `frame_rows`."""
        return import_module("polars").DataFrame(self.frame_rows(), infer_schema_length=None)

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
    ) -> list[ScoredItem]:
        """Read the scores of a metric with their documents (by default the run's own), and ratings if they are named.

        A row that the metric shows as an example gets no rating, and with `against_people` no score either.
        """
        figures = figures_of(self.rows, metric, self.path)
        rating = rating_fields(human, [metric]).get(metric)
        items = rated_items(
            self.rows,
            figures,
            self.path,
            human=rating,
            groups=(documents or self.documents).names,
            system=self.system,
            fields=self.mapping,
            scale=ANY_NUMBER if rating is None else self.rating_scale(metric),
        )
        if (against_people or rating is not None) and self.is_described(metric):
            own, keep = self.origin(metric).definition, not against_people
            items = without_examples(items, self.rows, own, self.mapping, self.path, keep_scores=keep)
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
        figures = (decoded((row.get("geval") or {}).get(metric)) or {} for row in self.rows)
        labels = next((found for own in figures if (found := decoded(own.get("probabilities")))), None) or ()
        with suppress(ScaleError):
            return Scale.parse(list(labels))
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
        places = {key: place for place, key in enumerate(blind_keys(self.rows))}
        rows: list[dict[str, Any]] = [{**row} for row in self.rows]
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
        return replace(self, held=rows, fields=self.mapping, people=people)

    def outputs(self) -> dict[str, str | None]:
        """Return the key of every row -> the text of its output; None if there is none."""
        texts = (output_text(row, self.mapping) for row in self.rows)
        return dict(zip(row_keys(self.rows), texts, strict=True))


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
        With `rows`, `records` (rows with their `Score`), `metrics`, `manifest`, `mapping`, `documents`, `to_pandas` and
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
