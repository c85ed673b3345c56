"""Results on disk: rows in input order, input columns kept, one object of figures per metric, written atomically."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol

from geval_local.errors import OutputError
from geval_local.files import replacing
from geval_local.io.columns import SCORES, Layout
from geval_local.io.ownership import check_place
from geval_local.io.samples import Sample
from geval_local.io.text_formats import CsvSink, JsonlSink, ResultRow, Sink, free_name
from geval_local.score import Score


class Figures(Protocol):
    """What is written of a row: a `Score`, or an answer to a question."""

    def to_dict(self) -> dict[str, Any]:
        """Give the figures as plain JSON values."""


def _parquet_sink(file: BinaryIO, metrics: Sequence[str], directory: Path, layout: Layout) -> Sink:
    try:
        from geval_local.io.parquet import ParquetSink
    except ImportError:
        raise OutputError(
            "writing Parquet needs pyarrow, the `parquet` extra",
            hint="Install it with `pip install 'geval-local[parquet]'`, or write .jsonl or .csv.",
        ) from None
    return ParquetSink(file, metrics, directory, layout)


_FORMATS = (".jsonl", ".csv", ".parquet")


class ResultWriter:
    r"""Writer of scored samples, one row per sample, in the order of the calls; a context manager.

    JSONL: the input columns and ``geval``, an object ``{metric: figures}`` with the figures of `Score.to_dict`. CSV: a
    column ``metric.figure`` for every figure that is asked for, see `CsvSink`. Parquet: a struct column ``geval`` with
    one struct per metric, see `ParquetSink`. Answers to questions stand under ``decisions`` instead (`layout`).

    - An unscored sample has its reason under ``error`` and no other figures. An unreadable row has the
      readable part, its ``row`` number, and the reason.
    - Results of other metrics in an input that was scored before are kept; those of the same metrics are replaced. An
      input column ``geval`` that is something else is kept under the name ``geval_input``.
    - Values that JSON lacks: NaN and infinities in input columns become null; lone surrogates (text that was not UTF-8,
      whose row is marked as bad) become visible escapes such as ``\udce9``.
    """

    def __init__(self, path: Path, file: ExitStack, sink: Sink, metrics: Sequence[str], column: str) -> None:
        self.path = path
        self._file = file
        self._sink = sink
        self._metrics = tuple(metrics)
        self._column = column

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        metrics: Sequence[str],
        *,
        layout: Layout = SCORES,
        columns: Sequence[str] | None = None,
        csv_safe: bool = False,
        private: bool = False,
        mark: str | None = None,
        before_replacing: Callable[[Path], object] = lambda whole: None,
    ) -> ResultWriter:
        """Check that `path` can be written, before any work is done for it, and start the file."""
        given, path = path, cls.check(path)
        with ExitStack() as stack:
            try:
                file = stack.enter_context(
                    replacing(path, private=private, mark=mark, before_replacing=before_replacing)
                )
            except OSError as error:
                raise OutputError(
                    f"cannot write {given}: {error.strerror}",
                    hint=f"Choose a directory that you may write to, not {path.parent}.",
                ) from error
            suffix = path.suffix.lower()
            if suffix == ".csv":
                sink: Sink = CsvSink(file, metrics, columns, layout, safe=csv_safe)
            else:
                jsonl = suffix == ".jsonl"
                sink = JsonlSink(file, layout) if jsonl else _parquet_sink(file, metrics, path.parent, layout)
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

    def write(self, sample: Sample, scores: Mapping[str, Figures]) -> None:
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
        try:
            self._sink.write(ResultRow(columns, earlier, figures, sample.error is not None, sample.row))
        except OSError as error:
            raise self._failure(error) from error

    def __enter__(self) -> ResultWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._file.__exit__(kind, error, traceback)
        except OSError as problem:
            raise self._failure(problem) from problem

    def _failure(self, error: OSError) -> OutputError:
        return OutputError(
            f"cannot write {self.path}: {error.strerror or error}",
            hint=f"Is the disk full? Make room in {self.path.parent} and run again; nothing was left under that name.",
        )


def _take_earlier_results(columns: dict[str, Any], metrics: Sequence[str], place: str) -> dict[str, Any]:
    """Move the results of other metrics out of the columns of an input that was scored before."""
    if place not in columns:
        return {}
    value = columns.pop(place)
    if isinstance(value, Mapping) and all(isinstance(figures, Mapping) for figures in value.values()):
        return {metric: figures for metric, figures in value.items() if metric not in metrics}
    columns[free_name(f"{place}_input", columns)] = value
    return {}
