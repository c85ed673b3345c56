"""Results on disk: rows in input order, input columns kept, one object of figures per metric, written atomically."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, get_args

import orjson

from geval_local.errors import OutputError, telling
from geval_local.files import replacing
from geval_local.io.columns import (
    EVERYTHING,
    INPUT,
    SCORES,
    ColumnLayout,
    ResultRow,
    as_text,
    figures_in,
    free_name,
    header_of,
    neutral,
    plain,
    renamed_columns,
    to_json,
)
from geval_local.io.ownership import check_place
from geval_local.io.samples import Sample
from geval_local.options import CsvStyle, Format
from geval_local.score import Score

#: Rows that determine the columns of a CSV file; later rows have to fit.
HEADER_ROWS = 1000
#: Same output as orjson, for values that orjson rejects.
_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
#: Values that `plain` converts itself are not passed to orjson.
_STRICT = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
#: Opens the `geval_local.io.parquet.SourceColumns` of a Parquet input; None for any other input.
Source = Callable[[], AbstractContextManager[Any]]
_FORMATS = tuple(f".{name}" for name in get_args(Format))


class Sink(Protocol):
    """One output format."""

    def write(self, row: ResultRow) -> None:
        """Append a row."""

    def finish(self) -> None:
        """Write the buffered rows, if there are any."""
        return

    def discard(self) -> None:
        """Release everything except the file itself; called once, after `finish` or instead of it."""
        return


class JsonlSink(Sink):
    """One object per line; equal rows give equal bytes."""

    def __init__(self, file: BinaryIO, layout: ColumnLayout = SCORES) -> None:
        self._file = file
        self._column = layout.column

    def write(self, row: ResultRow) -> None:
        """Append a row; NaN and infinities become null."""
        if not self._column:  # the figures are the whole row
            self._file.writelines(json.dumps(figures).encode() + b"\n" for figures in row.figures.values())
            return
        record = {**row.columns, self._column: {**row.earlier, **row.figures}}
        try:
            line = orjson.dumps(record, option=_STRICT)
        except TypeError:  # long integers, keys that are not texts, lone surrogates, dates, objects
            line = _COMPACT.encode(plain(record)).encode()
        self._file.write(line + b"\n")


class CsvSink:
    """The requested columns: input columns, ``row``, and ``metric.figure`` for every metric and figure.

    If an input column has the name of a figure, the file keeps it under another name, see `renamed_columns`.

    The sink writes texts unchanged, null and NaN as empty cells, and everything else as JSON. It makes the header from
    the first `HEADER_ROWS` readable rows. If all input columns are requested, columns that appear only later, or only
    in unreadable rows, go into ``extra`` as one JSON object, so that nothing is lost and memory stays bounded.
    """

    def __init__(
        self,
        file: BinaryIO,
        metrics: Sequence[str],
        columns: Sequence[str] | None = None,
        layout: ColumnLayout = SCORES,
        *,
        style: CsvStyle | None = None,
    ) -> None:
        encoding = "utf-8-sig" if style in ("excel", "excel-semicolons") else "utf-8"
        self._text = io.TextIOWrapper(file, encoding=encoding, newline="", write_through=True)
        self._writer = csv.writer(self._text, delimiter=";" if style == "excel-semicolons" else ",")
        self._metrics = metrics
        self._columns = columns
        self._layout = layout
        self._safe = style is not None
        self._figure_columns = {f"{metric}.{figure}" for metric in metrics for figure in layout.figures}
        self._header: list[str] | None = None
        self._extra: str | None = None
        self._waiting: list[tuple[dict[str, Any], int, bool]] = []
        self._present: set[str] = set()

    def write(self, row: ResultRow) -> None:
        """Append a row; the first rows are buffered until the header is known."""
        # A figure from an earlier run must not survive its replacement.
        given = {as_text(name): value for name, value in row.columns.items()}
        named = renamed_columns(given, self._metrics, self._layout) if self._figure_columns & given.keys() else {}
        cells = {
            named.get(name, name): value
            for name, value in given.items()
            if name in named or name not in self._figure_columns
        }
        for metric, values in {**row.earlier, **row.figures}.items():
            cells |= {as_text(f"{metric}.{figure}"): value for figure, value in values.items()}
        if self._header is None:
            self._present |= figures_in([row.figures])
            self._waiting.append((cells, row.number, row.is_bad))
            if len(self._waiting) >= HEADER_ROWS:
                self._start()
        else:
            self._put(cells, row.number)

    def finish(self) -> None:
        """Write the buffered rows, and the header if it is missing."""
        if self._header is None:
            self._start()
        self._text.flush()

    def discard(self) -> None:
        """Detach from the file, which belongs to the caller."""
        with suppress(OSError, ValueError):  # a full disk, or a file that is already closed
            self._text.detach()

    def _start(self) -> None:
        good = [one for one in self._waiting if not one[-1]] or self._waiting
        names = dict.fromkeys(name for cells, *_ in good for name in cells)
        self._header = header_of(self._columns, list(names), self._metrics, self._present, self._layout)
        # Where all input columns are asked for, late ones go there.
        is_whole = self._columns is not None and (EVERYTHING in self._columns or INPUT in self._columns)
        self._extra = free_name("extra", self._header) if is_whole else None
        header = [*self._header, *([] if self._extra is None else [self._extra])]
        self._writer.writerow(map(neutral, header) if self._safe else header)
        for cells, number, _ in self._waiting:
            self._put(cells, number)
        self._waiting.clear()

    def _put(self, cells: dict[str, Any], number: int) -> None:
        header = self._header or []
        if "row" in header and "row" not in cells:
            cells["row"] = number or None
        known = [self._cell(cells.pop(name, None)) for name in header]
        if self._extra is not None:
            known.append(to_json(cells) if cells else "")
        self._writer.writerow(known)

    def _cell(self, value: Any) -> str:
        cell = plain(value)
        text = "" if cell is None else as_text(cell)
        # Numbers keep their sign: spreadsheets execute only texts.
        return neutral(text) if self._safe and isinstance(value, str) else text


class RowFigures(Protocol):
    """The figures of a row: a `Score`, or an answer to a question."""

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain JSON values."""


@dataclass
class ResultWriter:
    r"""Writer of scored samples, one row per sample, in the order of the calls; a context manager.

    JSONL: the input columns and ``geval``, an object ``{metric: figures}`` with the figures of `Score.to_dict`. CSV: a
    column ``metric.figure`` for every requested figure, see `CsvSink`. Parquet: a struct column ``geval`` with one
    struct per metric, see `ParquetSink`. Answers to questions are under ``decisions`` instead (`layout`).

    - An unscored sample has its reason under ``error`` and no other figures. An unreadable row has the
      readable part, its ``row`` number, and the reason.
    - If the input was scored before, the writer keeps results of other metrics and replaces those of the same metrics.
      It keeps any other input column ``geval`` as ``geval_input``.
    - Values that JSON lacks: NaN and infinities in input columns become null; lone surrogates (text that was not UTF-8,
      whose row is marked as bad) become visible escapes such as ``\udce9``.
    """

    path: Path
    _file: ExitStack
    _sink: Sink
    _metrics: Sequence[str]
    _column: str

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        metrics: Sequence[str],
        *,
        layout: ColumnLayout = SCORES,
        columns: Sequence[str] | None = None,
        csv_style: CsvStyle | None = None,
        private: bool = False,
        mark: str | None = None,
        before_replacing: Callable[[Path], object] = lambda whole: None,
        source: Source = nullcontext,
    ) -> ResultWriter:
        """Check that `path` can be written, before any work, and start the file.

        `source` opens the Parquet columns of the samples' rows, by their numbers: from Parquet to Parquet, columns keep
        their types.
        """
        given, path = path, cls.check(path)
        with ExitStack() as stack:
            hint = f"Choose a directory that you may write to, not {path.parent}."
            with telling(OutputError, f"cannot write {given}", hint):
                file = stack.enter_context(
                    replacing(path, private=private, mark=mark, before_replacing=before_replacing)
                )
            suffix = path.suffix.lower()
            if suffix == ".csv":
                sink: Sink = CsvSink(file, metrics, columns, layout, style=csv_style)
            elif suffix == ".jsonl":
                sink = JsonlSink(file, layout)
            else:
                try:
                    from geval_local.io.parquet import ParquetSink
                except ImportError:
                    raise OutputError(
                        "writing Parquet needs pyarrow, the `parquet` extra",
                        hint="Install it with `pip install 'geval-local[parquet]'`, or write .jsonl or .csv.",
                    ) from None
                sink = ParquetSink(file, metrics, path.parent, layout, stack.enter_context(source()))
            stack.callback(sink.discard)
            stack.push(lambda kind, *_: sink.finish() if kind is None else None)
            return cls(path, stack.pop_all(), sink, metrics, layout.column)

    @staticmethod
    def check(path: str | os.PathLike[str]) -> Path:
        """Check that a file of this name could be written, without writing anything."""
        given, path = path, Path(path).resolve()
        check_place(Path(given))
        if path.suffix.lower() not in _FORMATS:
            raise OutputError(f"cannot write {given}: unknown format", hint=f"Known extensions: {', '.join(_FORMATS)}.")
        if not path.parent.is_dir():
            raise OutputError(
                f"cannot write {given}: there is no directory {path.parent}", hint=f"Create it: mkdir -p {path.parent}"
            )
        if path.exists() and not os.access(path, os.W_OK):
            raise OutputError(f"cannot write {given}: the file is read-only", hint="Choose another name.")
        return path

    def write(self, sample: Sample, scores: Mapping[str, RowFigures]) -> None:
        """Append one row."""
        figures = {
            metric: Score.unscored(metric, sample.error).to_dict()
            if sample.error is not None and metric not in scores
            else scores[metric].to_dict()
            for metric in self._metrics
        }
        columns = dict(sample.fields)
        if sample.error is not None and sample.row:
            columns.setdefault("row", sample.row)
        earlier = _take_earlier_results(columns, self._metrics, self._column)
        with self._telling():
            self._sink.write(ResultRow(columns, earlier, figures, sample.error is not None, sample.row))

    def __enter__(self) -> ResultWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._telling():
            self._file.__exit__(kind, error, traceback)

    def _telling(self) -> AbstractContextManager[None]:
        hint = f"Is the disk full? Make room in {self.path.parent} and run again; nothing was left under that name."
        return telling(OutputError, f"cannot write {self.path}", hint)


def _take_earlier_results(columns: dict[str, Any], metrics: Sequence[str], place: str) -> dict[str, Any]:
    """Move the results of other metrics out of the columns of an input that was scored before."""
    if place not in columns:
        return {}
    value = columns.pop(place)
    if isinstance(value, Mapping) and all(isinstance(figures, Mapping) for figures in value.values()):
        return {metric: figures for metric, figures in value.items() if metric not in metrics}
    columns[free_name(f"{place}_input", columns)] = value
    return {}
