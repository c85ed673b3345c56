"""Results as Parquet. Imported only for Parquet files, because it needs pyarrow."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from geval_local.errors import DataError, ReadError, first_line
from geval_local.figures import Kind
from geval_local.io.columns import SCORES, ColumnLayout, ResultRow, as_text, plain
from geval_local.io.places import File, parquet_source
from geval_local.io.rows import is_read_failure, parquet_batches

#: A row group is closed at this many rows or this many characters of text, whichever comes first.
GROUP_ROWS = 4096
GROUP_CHARACTERS = 16_000_000

_TYPES: dict[Kind, Any] = {
    "number": pa.float64(),
    "numbers": pa.list_(pa.float64()),
    "count": pa.int64(),
    "flag": pa.bool_(),
    "text": pa.string(),
    "distribution": pa.map_(pa.string(), pa.float64()),
    "texts": pa.list_(pa.string()),
    "tokens": pa.list_(pa.struct([("token", pa.string()), ("probability", pa.float64())])),
    "value": pa.string(),
    "outcomes": pa.list_(
        pa.struct([("value", pa.string()), ("label", pa.string()), ("probability", pa.float64())]),
    ),
}
# Columns of the spool by origin, so that an input column and a metric may bear the same name.
_INPUT, _EARLIER, _NEW = "input:", "earlier:", "new:"


class SourceColumns:
    """The columns of a Parquet input as Arrow has them, read again next to its rows.

    Python's values do not tell Arrow's types apart, nor hold all that they can: nanoseconds, the order of a map's keys,
    a null of an integer column. So what passes through a run never becomes Python's.

    Parameters
    ----------
    schema : pyarrow.Schema
        Types and metadata of the columns.
    batches : iterable of pyarrow.RecordBatch
        The rows, in order.
    first : int
        Number of the first of them.
    sizes : sequence of int
        Rows of each file, if there are several: in each of them numbers begin again.
    """

    def __init__(self, schema: Any, batches: Iterable[Any], first: int = 1, sizes: Sequence[int] = ()) -> None:
        self.schema = schema
        self._sizes = iter(sizes)
        self._before = self._last = 0
        self._batches = iter(batches)
        self._batch: Any = None
        self._next = first

    @classmethod
    @contextlib.contextmanager
    def of_files(cls, paths: Sequence[File], start: int = 0, without: Collection[str] = ()) -> Iterator[SourceColumns]:
        """Open those of Parquet files, as far as all files have them; `start` is the first row of the first file.

        The row that says why a file cannot be read, or not to its end, has nulls. Columns of the names in `without` are
        left out: a run has other values under these names.
        """
        sizes = {path: row_count(path) for path in paths}
        full = [path for path, size in sizes.items() if size != 0] or list(paths)
        there = [path for path in full if sizes[path] is not None]
        schema = reduce(_shared_schema, map(pq.read_schema, map(parquet_source, there))) if there else pa.schema([])
        schema = pa.schema([field for field in schema if field.name not in without], schema.metadata)
        with contextlib.closing(_batches(full, schema, start)) as batches:
            yield cls(schema, batches, start + 1, sizes=[1 if size is None else size for size in map(sizes.get, full)])

    def take(self, numbers: Sequence[int]) -> Any:
        """Return the rows with these numbers as a table; each call continues after the last one."""
        numbers, parts, place = list(map(self._position, numbers)), [], 0
        while place < len(numbers):
            while self._batch is None or numbers[place] >= self._next:
                self._batch = next(self._batches, None)
                if self._batch is None:
                    raise DataError("the input has fewer rows than before", hint="Restore its former content.")
                self._next += self._batch.num_rows
            start = self._next - self._batch.num_rows
            within = [number - start for number in numbers[place:] if number < self._next]
            is_run = len(within) == within[-1] - within[0] + 1
            parts.append(self._batch.slice(within[0], len(within)) if is_run else self._batch.take(pa.array(within)))
            place += len(within)
        # Files may differ in what they say of a column: whether it may be null, and its metadata.
        columns = [[part.column(name) for part in parts] for name in self._batch.schema.names]
        return pa.table(list(map(pa.chunked_array, columns)), self._batch.schema.names)

    def _position(self, number: int) -> int:
        if number <= self._last:
            self._before += next(self._sizes)
        self._last = number
        return self._before + number


def _shared_schema(one: Any, other: Any) -> Any:
    """Keep the columns of one Arrow schema that another has in the same type; nullable where either has it so."""
    if one.equals(other):
        return one
    fields = {field.name: field for field in other}
    both = [(field, fields[field.name]) for field in one if field.name in fields]
    shared = [field.with_nullable(field.nullable or its.nullable) for field, its in both if field.type == its.type]
    return pa.schema(shared, one.metadata)


def row_count(path: File) -> int | None:
    """Return the number of a file's rows; None if it cannot be read."""
    try:
        return int(pq.read_metadata(parquet_source(path)).num_rows)
    except (OSError, pa.ArrowException) as error:
        if is_read_failure(error, path):
            raise ReadError(f"cannot read {path}: {error}", hint="Try again.") from error
        return None


def _batches(paths: Sequence[File], schema: Any, start: int) -> Generator[Any, None, None]:
    for place, path in enumerate(paths):
        left = 1
        try:
            with pq.ParquetFile(parquet_source(path)) as file:
                left = file.metadata.num_rows - (0 if place else start)
                for batch in parquet_batches(file, first=0 if place else start):
                    left -= batch.num_rows
                    yield batch.select(schema.names)
        except (OSError, pa.ArrowException) as error:
            if is_read_failure(error, path):
                raise ReadError(f"cannot read {path}: {error}", hint="Try again.") from error
            # The first of the rows that are missing says why; none asks for the others.
            yield pa.record_batch({field.name: pa.nulls(left, field.type) for field in schema})


class ParquetSink:
    """Input columns, then ``geval``: a struct with one struct of figures per metric.

    Answers to questions stand under ``decisions`` in the same way; there the options are texts, booleans too.

    A Parquet file has one type per column, and rows may disagree about it in the last row only. So row groups wait in a
    nameless file in the target's directory until the types are known: numbers widen, objects get the union of their
    keys, and a column whose values have no common type becomes text (strings as they are, everything else as JSON).
    Memory holds one row group.

    Columns of a Parquet input keep their types, values and metadata: they are taken from `source`, not from the rows.
    """

    def __init__(
        self,
        file: BinaryIO,
        metrics: Sequence[str],
        directory: Path,
        layout: ColumnLayout = SCORES,
        source: SourceColumns | None = None,
    ) -> None:
        self._file = file
        self._layout = layout
        self._metrics = tuple(metrics)
        self._spool = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by `discard`
        self._groups: list[int] = []
        self._types: dict[str, Any] = {}
        self._rows: list[dict[str, Any]] = []
        self._characters = 0
        self._source = source
        self._numbers: list[int] = []
        described = None if source is None else source.schema
        # A column of results is no column that passes through.
        self._known = {_INPUT + field.name: field for field in described or () if field.name != layout.column}
        self._passing = list(self._known)
        self._metadata = {} if described is None else dict(described.metadata or {})

    def write(self, row: ResultRow) -> None:
        """Append a row to the current group."""
        cells = {_INPUT + as_text(name): value for name, value in row.columns.items()}
        cells |= {_EARLIER + as_text(metric): value for metric, value in row.earlier.items()}
        cells |= {_NEW + metric: self._figures(value) for metric, value in row.figures.items()}
        self._rows.append(cells)
        self._numbers.append(row.number)
        self._characters += sum(len(value) for value in row.columns.values() if isinstance(value, str))
        if len(self._rows) >= GROUP_ROWS or self._characters >= GROUP_CHARACTERS:
            self._close_group()

    def finish(self) -> None:
        """Determine the types, now that every row is there, and write the file."""
        self._close_group()
        self._types |= {_NEW + metric: self._type_of(metric) for metric in self._metrics}
        known = {name: field for name, field in self._known.items() if name in self._types}
        self._types = {name: field.type for name, field in known.items()} | {
            name: kind for name, kind in self._types.items() if name not in known
        }
        self._settle_types()
        inputs = [name for name in self._types if name.startswith(_INPUT)]
        results = [name for origin in (_EARLIER, _NEW) for name in self._types if name.startswith(origin)]
        geval = pa.struct([(_bare(name), self._types[name]) for name in results])
        columns = [self._known.get(name) or pa.field(_bare(name), self._types[name]) for name in inputs]
        columns.append(pa.field(self._layout.column, geval))
        schema = pa.schema(columns, metadata=self._metadata or None)
        with pq.ParquetWriter(self._file, schema) as writer:
            for group in self._read_groups():
                there = _columns_of(group)
                fitted = {name: self._fitted(there, name, group.num_rows) for name in self._types}
                figures = pa.StructArray.from_arrays([fitted[name] for name in results], fields=list(geval))
                arrays = [*(fitted[name] for name in inputs), figures]
                writer.write_batch(pa.record_batch(arrays, schema=schema))

    def discard(self) -> None:
        """Drop the spool."""
        with contextlib.suppress(OSError):  # buffered data that did not fit on a full disk is dropped with the file
            self._spool.close()

    def _close_group(self) -> None:
        if not self._rows:
            return
        # A value that Python cannot hold is no part of its row, and passes through all the same.
        names = list(dict.fromkeys(chain(self._passing, *self._rows)))
        new = {_NEW + metric: self._type_of(metric) for metric in self._metrics}
        passing = {} if self._source is None else self._taken(self._source)
        arrays = [passing[name] if name in passing else self._inferred(name, new.get(name)) for name in names]
        group = pa.record_batch(arrays, names=names)
        self._groups.append(self._spool.tell())
        with pa.ipc.new_stream(self._spool, group.schema) as stream:
            stream.write_batch(group)
        for name, array in zip(names, arrays, strict=True):
            self._types[name] = _common_type(self._types.get(name, pa.null()), array.type)
        self._rows.clear()
        self._numbers.clear()
        self._characters = 0

    def _taken(self, source: SourceColumns) -> dict[str, Any]:
        """Return the columns that pass through, for the rows of the group."""
        taken = source.take(self._numbers)
        found = {name: taken.column(_bare(name)).combine_chunks() for name in self._passing}
        for name, column in found.items():
            if column.null_count and not self._known[name].nullable:
                self._known[name] = self._known[name].with_nullable(True)
        return found

    def _inferred(self, name: str, kind: Any) -> Any:
        values = [row.get(name) for row in self._rows]
        if name in self._known:
            with contextlib.suppress(pa.ArrowException, ArithmeticError, TypeError, ValueError):
                return pa.array(values, self._known[name].type)
        return _array(values, kind)

    def _fitted(self, columns: Mapping[str, Any], name: str, rows: int) -> Any:
        """Cast a group's column to the file's type; a missing column is null."""
        if name not in columns:
            return pa.nulls(rows, self._types[name])
        try:
            return _fit(columns[name], self._types[name])
        except pa.ArrowException as error:
            raise DataError(
                f"the column {_bare(name)!r} has type {self._types[name]} in all files of the input together, and a "
                f"value here that it cannot hold: {first_line(error)}",
                hint="Give the column one type in all files.",
            ) from error

    def _read_groups(self) -> Iterator[Any]:
        for offset in self._groups:
            self._spool.seek(offset)
            with pa.ipc.open_stream(self._spool) as stream:
                yield stream.read_next_batch()

    def _settle_types(self) -> None:
        free = [name for name in self._types if name not in self._known]
        for name in free:
            if pa.types.is_null(self._types[name]):
                self._types[name] = pa.string()
        for group in self._read_groups():
            columns = _columns_of(group)
            for name in columns.keys() & free:
                try:
                    _fit(columns[name], self._types[name])
                except pa.ArrowException:  # an integer that a float cannot hold, or a missing cast
                    self._types[name] = pa.string()

    def _type_of(self, result: str) -> Any:
        return pa.struct([(name, _TYPES[one.kind]) for name, one in self._layout.figures_of(result).items()])

    def _figures(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = plain(figures)
        for name, one in self._layout.figures.items():
            if one.kind in _WRITTEN and row.get(name) is not None:
                row[name] = _WRITTEN[one.kind](row[name])
        return row


#: How values are written that Arrow takes in another form.
_WRITTEN: dict[Kind, Callable[[Any], Any]] = {
    "distribution": lambda value: list(value.items()),
    "tokens": lambda value: [{"token": token, "probability": p} for token, p in value],
    "value": as_text,
    "outcomes": lambda value: [{**one, "value": as_text(one["value"])} for one in value],
}


def _array(values: list[Any], kind: Any = None) -> Any:
    """Let Arrow infer a column's type unless it is known; without a common one the column is text."""
    if kind is not None:
        return pa.array(values, kind)
    try:
        array = pa.array(values)
        if not _holds_empty_struct(array.type):
            return array
    except UnicodeEncodeError:
        return _array([plain(value) for value in values])
    except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
        pass
    return _text_array(values)


def _text_array(values: list[Any]) -> Any:
    return pa.array([None if value is None else as_text(value) for value in values], pa.string())


def _holds_empty_struct(kind: Any) -> bool:
    """Whether a type holds an object without keys, which Parquet cannot store."""
    children = [kind.field(index).type for index in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not children) or any(map(_holds_empty_struct, children))


def _common_type(one: Any, other: Any) -> Any:
    if one == other or pa.types.is_null(one):
        return other
    schemas = [pa.schema([("column", kind)]) for kind in (one, other)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return pa.string()


def _columns_of(group: Any) -> dict[str, Any]:
    """Return a group's columns by name; to ask a group for one by its name is linear in the number of columns."""
    return dict(zip(group.schema.names, group.columns, strict=True))


def _fit(column: Any, kind: Any) -> Any:
    if column.type == kind:
        return column
    if kind == pa.string():  # not Arrow's cast, which formats numbers and dates differently from JSON
        return _text_array(column.to_pylist())
    return column.cast(kind)


def _bare(name: str) -> str:
    return name.partition(":")[2]
