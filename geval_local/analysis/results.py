"""Results as analyses take them: result files, runs, rows or data frames, read into scored items."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import TypedDict, Unpack

from geval_local.direction import Direction
from geval_local.errors import ConfigurationError, DataError
from geval_local.fields import EVERY, SYSTEM_FIELDS, check_mapping, lookup, nearest, output_text
from geval_local.grouping import documents_of
from geval_local.io.input_checks import check_columns
from geval_local.io.result_manifest import ResultManifest, ScoredMetric, manifest_path, read_manifest
from geval_local.io.results import ResultsInput, decoded, numbered, read_result_rows, row_number, with_figures
from geval_local.io.rows import Row
from geval_local.io.samples import Sample
from geval_local.runs.directory import result_file
from geval_local.scale import Scale
from geval_local.score import Distribution, Estimator, estimate
from geval_local.signature import signature_parts, written_signature
from geval_local.statistics.levels import Level
from geval_local.statistics.records import ScoredItem, probability_matrix, word_count

#: What stands beside the expectation: the paper's two, and those of Wang, Zhang and Choi (2025, arXiv:2503.03064).
ABLATIONS = (
    Estimator("mode"),
    Estimator("sample", n=20),
    Estimator("median"),
)

#: Results as the public functions take them: a path, a run, rows, or a data frame of pandas or polars.
ResultsGiven = Any

logger = logging.getLogger("geval_local")
#: How JSON, Python and CSV files write the ratings yes and no.
_YES_AND_NO = {"true": 1.0, "false": 0.0}


def read_rows(path: str | Path) -> Sequence[Row]:
    """Read all rows of a JSONL, JSON, CSV or Parquet file; figures of a scored file are always under ``geval``.

    A run directory stands for the results of its run.
    """
    return read_result_rows(result_file(path))


def number_at(row: Mapping[str, Any], field: str, where: str) -> float:
    """Read a number from a row: NaN if the field is absent or empty, 1 and 0 of yes and no; the mean of a list."""
    value = decoded(lookup(row, field))
    value = value.tolist() if isinstance(value, np.ndarray) else value
    read = [*map(_number, value)] if isinstance(value, list | tuple) else [_number(value)]
    given = [number for number in read if not math.isnan(number)]
    number = sum(given) / len(given) if given else math.nan
    if math.isinf(number):
        inner = f"; its keys are: {', '.join(map(str, value))}" if isinstance(value, Mapping) and value else ""
        shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:77]}..."
        raise DataError(
            f"{where}: {field} is not a number: {shown}{inner}",
            hint="A rating is a number, or a list of numbers; a dotted path leads into a column: scores.coherence. "
            "Leave it empty where nobody rated.",
        )
    if isinstance(value, list | tuple) and given:
        _say_averaged(field)
    return number


def each_place(rows: Sequence[Mapping[str, Any]], path: str) -> list[str]:
    """Spell out the last ``*`` of a path: ``ratings.*`` is ``ratings.0``, ``ratings.1``, ... as far as any row goes."""
    before, star, after = path.rpartition(f".{EVERY}")
    if not star:
        return [path]
    keys: dict[str, None] = {}
    for row in rows:
        held = decoded(lookup(row, before))
        if isinstance(held, Mapping):
            keys |= dict.fromkeys(map(str, held))
        elif isinstance(held, list | tuple):
            keys |= dict.fromkeys(map(str, range(len(held))))
    return [f"{before}.{key}{after}" for key in keys] or [path]


def ratings_of(
    rows: Sequence[Mapping[str, Any]], raters: Sequence[str], path: str | Path, *, every: bool = False
) -> dict[str, list[float]]:
    """Read the ratings of single people: field -> one per row, NaN where there is none; `every` field must have one."""
    fields = [one for given in raters for one in each_place(rows, given)]
    found = {name: [number_at(row, name, f"{path}, row {at}") for at, row in numbered(rows)] for name in fields}
    if every and (empty := next((name for name, own in found.items() if all(map(math.isnan, own))), None)) is not None:
        raise no_ratings(rows, empty, path)
    return found


def _number(value: Any) -> float:
    """Read one number: NaN for an empty value, infinity for what is none."""
    if value is None or value == "":
        return math.nan
    try:
        return abs(number) if math.isinf(number := float(_YES_AND_NO.get(str(value).lower(), value))) else number
    except (TypeError, ValueError, OverflowError):
        return math.inf


@cache
def _say_averaged(field: str) -> None:
    logger.info("%s holds lists of ratings: the mean of each is taken", field)


#: Field of the human ratings of one metric, as a dotted path; ``METRIC=FIELD`` for some of several; or a mapping.
HumanFields = str | Sequence[str] | Mapping[str, str]


def rating_fields(human: HumanFields | None, metrics: Sequence[str]) -> dict[str, str]:
    """Return the field of the human ratings of every metric that has one."""
    if isinstance(human, Mapping):
        return dict(human)
    found: dict[str, str] = {}
    for one in [human] if isinstance(human, str) else human or ():
        metric = next((name for name in metrics if one.startswith(f"{name}=")), None)
        if metric is None and (len(metrics) > 1 or "=" in one):
            raise ConfigurationError(
                f"`human={one!r}` does not say which metric it rates{nearest(one.partition('=')[0], metrics)}",
                hint=f"Write `human=METRIC=FIELD`, once for each metric that people rated, of: {', '.join(metrics)}.",
            )
        name = metric or metrics[0]
        if name in found:
            raise ConfigurationError(f"`human` names two fields for {name}: {found[name]!r} and {one!r}")
        found[name] = one if metric is None else one[len(metric) + 1 :]
    return found


def no_ratings(rows: Sequence[Mapping[str, Any]], field: str, path: str | Path) -> DataError:
    """Return the error for a field that holds no human rating in any row."""
    columns = list(dict.fromkeys(str(name) for row in rows for name in row))
    return DataError(
        f"{path}: no row has a human rating in {field!r}{nearest(field, columns)}",
        hint=f"Columns: {', '.join(columns)}.",
    )


def row_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a key for each row: its ``id`` if all rows have distinct ones, else its number from 1."""
    ids = [str(row["id"]) for row in rows if row.get("id") is not None]
    if len(ids) == len(rows) == len(set(ids)):
        return ids
    return [str(number) for number in range(1, len(rows) + 1)]


def blind_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a key for each row that does not say who wrote its output, as `row_keys` may."""
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
    group_by: str | None = None,
    system: str | None = None,
    fields: Mapping[str, str] | None = None,
    keys: Sequence[str] | None = None,
) -> list[ScoredItem]:
    """Join figures, one per row, to the rows' human ratings, documents and systems, by the names of their fields.

    `fields` maps ``output`` to its column if the name differs.
    """
    items = []
    for place, (row, own, key) in enumerate(zip(rows, figures, keys or row_keys(rows), strict=True), start=1):
        where = f"{path}, row {row_number(row, place)}"
        value, mass = (number_at(own, name, where) for name in ("score", "label_mass"))
        error = (own.get("error") or "unscored") if math.isnan(value) else None
        probabilities = own.get("probabilities") or None
        item = ScoredItem("", "", math.nan, value, probabilities, key=key, error=error, label_mass=mass)
        items.append(joined(item, row, where, human, group_by, system, fields))
    if human is not None and all(math.isnan(item.human) for item in items):
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
    human: str | None,
    group_by: str | None,
    system: str | None,
    fields: Mapping[str, str] | None,
) -> ScoredItem:
    """Join one score to its row: document, system, rating and length; `where` begins what an error says."""
    group = item.key if group_by is None else lookup(row, group_by)
    if group is None:
        raise missing_field(row, group_by or "", where, "to group by ")
    writer = writer_of(row, system)
    if system is not None and not writer:
        raise missing_field(row, system, where)
    output = output_text(row, fields)
    length = None if output is None else word_count(output)
    rating = math.nan if human is None else number_at(row, human, where)
    return replace(item, group=str(group), system=writer, human=rating, length=length)


def writer_of(row: Mapping[str, Any], field: str | None = None) -> str:
    """Name the system that wrote a row's output, by this column or the usual ones; empty where none says it."""
    named = (lookup(row, name) for name in ((field,) if field is not None else SYSTEM_FIELDS))
    return next((str(name) for name in named if name is not None), "")


def level_for(group_by: str | None) -> Level:
    """Return the default level: within groups if rows are grouped, else pooled."""
    return "pooled" if group_by is None else "summary"


class Reading(TypedDict, total=False):
    """How results are read: every analysis takes these by name.

    Attributes
    ----------
    group_by : str
        Field of the document, or ``row`` for none; by default guessed.
    system : str
        Field that names the system; by default the usual columns.
    fields : mapping of str to str
        Field of a metric -> its column.
    estimator : Estimator or str
        Estimate the scores anew from the stored distributions.
    """

    group_by: str | None
    system: str | None
    fields: Mapping[str, str] | None
    estimator: Estimator | str | None


#: Column of a sheet of ratings that says which row was rated.
KEY = "key"


@dataclass(frozen=True)
class ScoredRun:
    """A result file of ``geval-local score``."""

    #: The file; may be given as its run directory.
    path: Path
    #: Field of a metric -> its column, or the dotted path into one; comes before the manifest's mapping.
    fields: Mapping[str, str] = field(default_factory=dict)
    #: Estimates the scores anew from the stored label distributions; None takes them as they are.
    estimator: Estimator | None = None
    held: Sequence[Mapping[str, Any]] | None = field(default=None, repr=False)
    #: Fields of the document and of the system, where they were named.
    group_by: str | None = None
    system: str | None = None
    #: The file's name without its extension, or that of the directory.
    name: str = field(init=False)

    @classmethod
    def of(cls, given: ResultsGiven, **reading: Unpack[Reading]) -> ScoredRun:
        """Take results as they are given: a path, what `score_file` returned, rows, or a data frame."""
        from geval_local.runs.completion import RunResult  # brings the registry of models with it

        named: dict[str, Any] = {**reading, "fields": reading.get("fields") or {}}
        if isinstance(estimator := reading.get("estimator"), str):
            named["estimator"] = Estimator.parse(estimator)
        if isinstance(given, RunResult):
            return cls(given.files[0], **named)
        if isinstance(given, str | os.PathLike):
            return cls(Path(given), **named)
        if hasattr(given, "to_dicts"):  # polars
            rows = given.to_dicts()
        elif hasattr(given, "to_dict"):  # pandas
            # What pandas makes of an empty cell, in a column of whatever kind.
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
        """The file, or the rows that were given in its place."""
        return self.path if self.held is None else self.held

    @cached_property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows."""
        rows = read_rows(self.path) if self.held is None else self.held
        described = {} if self.manifest is None else self.manifest.metrics
        check_mapping(self.fields, ["output", *(name for one in described.values() for name in one.definition.fields)])
        check_columns((Sample(row) for row in rows), self.fields)
        return rows

    @cached_property
    def documents(self) -> tuple[str | None, str]:
        """Field that groups the rows into documents, None where each is its own; and how they are grouped, in words."""
        return documents_of(self.rows, self.group_by)

    @cached_property
    def manifest(self) -> ResultManifest | None:
        """The manifest beside the file, if there is one."""
        return None if self.held is not None else read_manifest(self.path)

    @cached_property
    def mapping(self) -> dict[str, str]:
        """Field of a metric -> its column: as given, else as scored."""
        return {**({} if self.manifest is None else self.manifest.fields), **self.fields}

    @cached_property
    def metrics(self) -> list[str]:
        """Names of the metrics in the first row."""
        held = self.rows[0].get("geval")
        if not isinstance(held, Mapping) or not held:
            raise DataError(
                f"{self.path} holds no scores",
                hint=f"Score it first: geval-local score {self.path} --metric NAME -o OUT",
            )
        return list(held)

    def one_metric(self, name: str | None) -> str:
        """Choose one metric: the one named, or the only one."""
        if name is None and len(self.metrics) > 1:
            raise ConfigurationError(
                f"{self.path} holds several metrics", hint=f"Name one with `metric`: {', '.join(self.metrics)}."
            )
        if name is not None and name not in self.metrics:
            raise ConfigurationError(
                f"{self.path} holds no scores of {name!r}", hint=f"It holds: {', '.join(self.metrics)}."
            )
        return name or self.metrics[0]

    def items(self, metric: str, *, human: HumanFields | None = None, group_by: str | None = None) -> list[ScoredItem]:
        """Read the scores of a metric, with ratings and groups if they are named."""
        figures = figures_of(self.rows, metric, self.path)
        rating = rating_fields(human, [metric]).get(metric)
        items = rated_items(
            self.rows,
            figures,
            self.path,
            human=rating,
            group_by=group_by,
            system=self.system,
            fields=self.mapping,
        )
        if self.estimator is None:
            return items
        return estimated_items(items, self.origin(metric).definition.scale, self.estimator)

    def is_described(self, metric: str) -> bool:
        """Whether a manifest describes the scores of a metric."""
        return self.manifest is not None and metric in self.manifest.metrics

    def direction(self, metric: str) -> Direction:
        """Which scores of a metric are good; high ones, unless its description says otherwise."""
        return self.origin(metric).definition.direction if self.is_described(metric) else Direction.HIGH

    def origin(self, metric: str) -> ScoredMetric:
        """Return the origin of a metric's scores."""
        if self.manifest is None or metric not in self.manifest.metrics:
            raise ConfigurationError(
                f"nothing says under which signature {self.path} was scored on {metric}",
                hint=f"`geval-local score` writes {manifest_path(self.path).name} beside its output; carry it along.",
            )
        return self.manifest.metrics[metric]

    def signature(self, metric: str) -> str:
        """Signature of a metric's scores, with the estimator that is in use here."""
        written = self.origin(metric).signature
        if self.estimator is None:
            return written
        return written_signature(signature_parts(written) | {"estimator": self.estimator.text})

    def with_sheet(self, sheet: str | Path, fields: Sequence[str]) -> ScoredRun:
        """Add the ratings of a filled-in sheet, by field, to the results that it was drawn from."""
        places = {key: place for place, key in enumerate(blind_keys(self.rows))}
        rows: list[dict[str, Any]] = [{**row} for row in self.rows]
        seen: dict[str, int] = {}
        for number, row in numbered(read_rows(sheet)):
            key = str(row.get(KEY))
            if key not in places or key in seen:
                wrong = f"is also that of row {seen[key]}" if key in seen else f"belongs to no row of {self.path}"
                raise DataError(
                    f"{sheet}, row {number}: the {KEY} {key!r} {wrong}",
                    hint="Give the sheet that `plan` drew from these results, each key once.",
                )
            seen[key] = number
            rating = {name: number_at(row, name, f"{sheet}, row {number}") for name in fields}
            rows[places[key]] |= {name: value for name, value in rating.items() if math.isfinite(value)}
        return replace(self, held=rows, fields=self.mapping)

    def outputs(self) -> dict[str, str | None]:
        """Key of every row -> the text of its output; None if there is none."""
        texts = (output_text(row, self.mapping) for row in self.rows)
        return dict(zip(row_keys(self.rows), texts, strict=True))


def estimated_items(items: Sequence[ScoredItem], scale: Scale, estimator: Estimator) -> list[ScoredItem]:
    """Score by another estimate from the stored label distributions; unscored items stay as they are."""
    result = list(items)
    scored = [index for index, item in enumerate(items) if np.isfinite(item.predicted)]
    rows = probability_matrix([items[index] for index in scored], scale)
    with np.errstate(divide="ignore"):
        logs = np.log(rows)
    for index, row in zip(scored, logs, strict=True):
        key = int.from_bytes(blake2b(items[index].key.encode(), digest_size=8).digest(), "big")
        value = estimate(Distribution(scale, row), estimator, sample_key=key)
        # What the estimate has in hand is one number; its distribution is not known to whoever sampled it.
        result[index] = replace(items[index], predicted=value, probabilities=None)
    return result


def estimate_name(judge: str, estimator: Estimator) -> str:
    """Name the row of another estimate by one judge: ``nano - probs``, ``nano n = 20``, ``nano median``."""
    return f"{judge} " + {"mode": "- probs", "sample": f"n = {estimator.n}"}.get(estimator.kind, estimator.text)
