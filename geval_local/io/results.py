"""Results of ``geval-local score``, read from any of its formats or given as rows.

Report and analysis share the rules for which CSV columns are figures and how rows are numbered.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, overload

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from geval_local.direction import Direction
from geval_local.errors import Cause, DataError, ErrorCode
from geval_local.fields import decoded_json
from geval_local.io.columns import FIGURES, as_text
from geval_local.io.ownership import file_sha256
from geval_local.io.result_manifest import ResultManifest, read_manifest, rows_path
from geval_local.io.rows import Row, read_rows
from geval_local.score import OrderFigures, Score
from geval_local.thinking import ThoughtFigures

#: A result file, or its rows: the input's columns and ``geval: {metric: figures}``.
ResultsInput = str | os.PathLike[str] | Sequence[Mapping[str, Any]]

logger = logging.getLogger("geval_local")
#: Rows of files above this size are not held in memory, see `FileRows`: some 130,000 rows of a thousand characters,
#: which take six times their size there.
STREAMED_BYTES = 1 << 27
#: How much larger the rows of a compressed file are, about.
_PACKED = 5
_HINT = "Expected a result file of `geval-local score`."
_ABSENT = "the row holds no figures of this metric"


def row_number(row: Mapping[str, Any], place: int) -> int:
    """Return a row's number in its file, or its position from 1 if it does not come from a file."""
    return (row.number if isinstance(row, Row) else 0) or place


def numbered(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield rows with their numbers."""
    return ((row_number(row, place), row) for place, row in enumerate(rows, start=1))


def read_result_rows(path: str | os.PathLike[str]) -> Sequence[Row]:
    """Read the rows of a data or result file; the figures of a result file come as ``geval`` from every format.

    Of a large file, rows are read as they are asked for.
    """
    path = Path(path)
    described = _described(path)
    if path.suffix.lower() == ".csv" and described is not None and described.rows_sha256 is not None:
        kept = rows_path(path)
        if kept.exists() and file_sha256(kept) == described.rows_sha256:
            if file_sha256(path) == described.results_sha256:
                return _held_or_streamed(kept, None)
            return _joined(list(_rows_of(path, described)), list(_rows_of(kept, None)))
        _say_lost(kept, path.name)
    rows = _held_or_streamed(path, described)
    if not rows:
        raise DataError(f"{path} holds no rows")
    return rows


class FileRows(Sequence[Row]):
    """Rows of a large result file, read again by every pass; asking for one in its middle keeps them in memory."""

    def __init__(self, path: Path, described: ResultManifest | None) -> None:
        self._path, self._described = path, described
        self._state = _state_of(path)
        self._kept: list[Row] | None = None
        self._count: int | None = None
        self._first = next(iter(self), None)
        if self._first is None:
            raise DataError(f"{path} holds no rows")

    def __iter__(self) -> Iterator[Row]:
        if self._kept is not None:
            yield from self._kept
            return
        count = 0
        for count, row in enumerate(_rows_of(self._path, self._described), start=1):  # noqa: B007 - counted
            yield row
        if _state_of(self._path) != self._state:
            raise DataError(f"{self._path} was changed while it was read", hint="Try again once nothing writes to it.")
        self._count = count

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        if self._count is None:
            self._count = sum(1 for _ in self)
        return self._count

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if index == 0 and self._first is not None:
            return self._first
        if self._kept is None:
            self._kept = list(self)
        return self._kept[index]


def _state_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _held_or_streamed(path: Path, described: ResultManifest | None) -> Sequence[Row]:
    """Read the rows of a small file; those of a large one as they are asked for."""
    packed = _PACKED if path.suffix.lower() in (".gz", ".parquet") else 1
    if path.stat().st_size * packed > STREAMED_BYTES:
        return FileRows(path, described)
    return list(_rows_of(path, described))


@cache
def _say_lost(kept: Path, table: str) -> None:
    logger.warning("%s is gone or changed: of %s only what the table itself holds is known", kept, table)


def _rows_of(path: Path, described: ResultManifest | None) -> Iterator[Row]:
    for raw in read_rows(path):
        if raw.error is not None:
            raise DataError(f"{path}, row {raw.number}: {raw.error}")
        row = Row(with_figures(raw.fields, () if described is None else described.metrics))
        row.number = raw.number
        yield row


def _joined(table: list[Row], kept: Sequence[Row]) -> list[Row]:
    """Give the rows of a table that was sorted, rated or saved by another program the figures that were kept of them.

    Rows are the same where the input's columns are; a score that differs was edited, and is the user's.
    """
    columns = [name for name in kept[0] if name in table[0] and name != "geval"] if table and kept else []
    waiting: dict[tuple[str, ...], deque[Row]] = {}
    for row in kept if columns else ():
        waiting.setdefault(tuple(_cell(row.get(name)) for name in columns), deque()).append(row)
    for row in table:
        found = waiting.get(tuple(_cell(row.get(name)) for name in columns))
        if found:
            given = row.get("geval", {})
            figures = found.popleft().get("geval", {})
            row["geval"] = given | {
                name: own for name, own in figures.items() if _is_same(given.get(name, {}).get("score"), own["score"])
            }
    return table


def _cell(value: Any) -> str:
    return "" if value is None else as_text(value).replace("\r\n", "\n").strip()


def _is_same(shown: Any, score: float | None) -> bool:
    """Whether a cell holds a score; spreadsheets may write a decimal comma and fewer digits."""
    if shown is None or score is None:
        return shown is None
    try:
        return abs(float(str(shown).replace(",", ".")) - score) < 1e-6
    except ValueError:
        return False


def _described(path: Path) -> ResultManifest | None:
    with suppress(DataError):
        return read_manifest(path)
    return None


def with_figures(row: Mapping[str, Any], metrics: Collection[str] = ()) -> Mapping[str, Any]:
    """Gather a CSV row's ``metric.figure`` columns into one object, as in the other formats.

    A column is a figure if the manifest names its metric, or if the metric has both a score and an error column.
    """
    if "geval" in row:
        return row
    names = [str(name)[: -len(".score")] for name in row if str(name).endswith(".score")]
    scored = {name for name in names if name and (name in metrics or f"{name}.error" in row)}
    columns: dict[str, Any] = {}
    scores: dict[str, dict[str, Any]] = {}
    for column, value in row.items():
        metric, _, figure = str(column).rpartition(".")
        if metric in scored and figure in FIGURES:
            scores.setdefault(metric, {})[figure] = decoded(value)
        else:
            columns[column] = value
    return {**columns, "geval": scores} if scores else row


def decoded(value: Any) -> Any:
    """Decode a cell of a CSV file; an empty one is None."""
    return None if value == "" else decoded_json(value)


@dataclass(frozen=True)
class Record:
    """One row of results."""

    #: The row's number in its file (the line for JSONL), from 1.
    number: int
    #: The input's columns.
    columns: dict[str, Any]
    #: Metric -> its score, for every metric of the results.
    scores: dict[str, Score]


class Records(Collection[Record]):
    """Records of result rows, made whenever they are asked for."""

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], where: str, metrics: Sequence[str], directions: Mapping[str, Direction]
    ) -> None:
        self._rows, self._where, self._metrics, self._directions = rows, where, metrics, directions

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, record: object) -> bool:
        return any(own == record for own in self)

    def __iter__(self) -> Iterator[Record]:
        for number, row in numbered(self._rows):
            place = f"{self._where}, row {number}"
            own = figures_in(row, place)
            scores = {metric: read_score(metric, own.get(metric), place) for metric in self._metrics}
            for metric, direction in self._directions.items():
                scores[metric] = replace(scores[metric], direction=direction)
            yield Record(number, _columns(row), scores)


def _columns(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input columns of a result row."""
    columns = {str(name): value for name, value in row.items() if name != "geval"}
    if columns.get("extra") == "":  # the CSV column for late columns
        del columns["extra"]
    return columns


def figures_in(row: Mapping[str, Any], where: str) -> dict[str, Mapping[str, Any]]:
    """Return the figures of every metric in a result row."""
    if "geval" not in row:
        raise DataError(f"{where}: no scores", hint=_HINT)
    found = row["geval"]
    if not (isinstance(found, Mapping) and all(isinstance(own, Mapping | None) for own in found.values())):
        raise DataError(f"{where}: the column 'geval' does not hold one object per metric", hint=_HINT)
    return {str(metric): figures for metric, figures in found.items() if figures is not None}


def _not_a_flag(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number is expected")
    return value


def _on_a_scale(value: float) -> float:
    if not -LARGEST <= value <= LARGEST:
        raise ValueError("a number beyond all scales")
    return value


def _pairs(value: object) -> object:
    """List tokens as pairs, which they are in JSON and CSV; in Parquet they are structs."""
    found = decoded_json(value)
    is_list = isinstance(found, list) and all(isinstance(item, Mapping) for item in found)
    return [tuple(item.values()) for item in found] if is_list else found


#: No scale has values beyond; the squares of larger numbers are no numbers.
LARGEST = 1e150
_Number = Annotated[float, BeforeValidator(_not_a_flag), Field(allow_inf_nan=False), AfterValidator(_on_a_scale)]
_Share = Annotated[_Number, Field(ge=-1e-9, le=1 + 1e-9)]
_Numbers = Annotated[list[_Number], BeforeValidator(decoded_json)]


_OF_THOUGHTS = ("thought_count", "thought_error", "thought_spread", "cut_thoughts", "thoughts")


class _Figures(BaseModel):
    """The figures of a score as any format gives them; a cell of a table is a text."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    score: _Number | None = None
    error: str | None = None
    error_code: str | None = None
    normalized: _Number = math.nan
    probabilities: Annotated[dict[str, _Share], BeforeValidator(decoded_json)] | None = None
    label_mass: _Number = math.nan
    std: _Number = math.nan
    entropy: _Number = math.nan
    mode: str | None = None
    margin: _Number = math.nan
    threshold: _Number | None = None
    threshold_probability: _Number | None = None
    passed: bool | None = None
    calibrated: _Number | None = None
    order_scores: _Numbers = []
    order_masses: _Numbers = []
    thought_count: int | None = None
    thought_error: _Number = math.nan
    thought_spread: _Number = math.nan
    cut_thoughts: int = 0
    thoughts: Annotated[tuple[str, ...], BeforeValidator(decoded_json)] = ()
    other_tokens: Annotated[tuple[tuple[str, _Number], ...], BeforeValidator(_pairs)] = ()
    prompt_tokens: int = 0
    dropped_tokens: int = 0


def read_score(metric: str, figures: Mapping[str, Any] | None, where: str) -> Score:
    """Read the score of a metric back from its figures; `where` names the row, for messages."""
    given = {name: value for name, value in (figures or {}).items() if value is not None and value != ""}
    try:
        found = _Figures.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        told = f"{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r:.80}"
        raise DataError(f"{where}: {metric}: {told}", hint=_HINT) from error
    if found.score is None:
        why = Cause(found.error or _ABSENT, ErrorCode.read(found.error_code))
        return Score.unscored(metric, why, prompt_tokens=found.prompt_tokens)
    if len(found.order_scores) != len(found.order_masses):
        raise DataError(f"{where}: {metric}: order_scores and order_masses are not equally many", hint=_HINT)
    return Score(
        metric=metric,
        value=found.score,
        orders=tuple(map(OrderFigures, found.order_scores, found.order_masses)),
        thoughts=None
        if found.thought_count is None
        else ThoughtFigures(
            found.thought_count, found.thought_error, found.thought_spread, found.cut_thoughts, found.thoughts
        ),
        **found.model_dump(exclude={"score", "error", "error_code", "order_scores", "order_masses", *_OF_THOUGHTS}),
    )
