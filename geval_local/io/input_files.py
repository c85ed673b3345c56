"""The input of a run: one or several files, found by names, directories and patterns, and read as samples."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from geval_local.errors import DataError
from geval_local.io.columns import free_name
from geval_local.io.places import RIGHTS, Entry, File, Place, file_at, is_address, is_hidden, is_pattern
from geval_local.io.rows import FORMATS, RawRow, format_of, read_rows, rows_and_failure
from geval_local.io.samples import INPUT_ROW, Sample, ids_of_documents, not_empty, samples_of
from geval_local.io.shapes import Shape
from geval_local.options import Quoting, RunOptions

#: Column with the name of a row's file, if there are several files.
FILE = "file"
#: Endings of files that accompany results and contain no input rows.
_BESIDE = (".meta.json", ".rows.jsonl")
#: A directory with this file is a run directory.
_RUN = "manifest.json"

Given = str | os.PathLike[str] | Place


def find_files(given: Given | Iterable[Given]) -> list[File]:
    """List the named files, each once; see `find_entries`."""
    listed = [given] if isinstance(given, str | os.PathLike | Place) else list(given)
    if not listed:
        raise DataError("no file is named")
    return list(dict.fromkeys(file for one in listed for file in _found(one)))


def _found(given: Given) -> list[File]:
    if isinstance(given, Place):  # found before
        return [given]
    text = os.fspath(given)
    if not is_address(text):
        path = Path(text)
        if not path.is_dir() and (not is_pattern(text) or path.exists()):
            return [path]  # the reader reports its problems
        text = str(path)
    return [file_at(entry.place) for entry in find_entries(Place(text))]


def find_entries(place: Place) -> list[Entry]:
    """List the data files of a path or address, sorted: the file itself, or those in a directory or matching a pattern.

    In a directory, the function finds files with a known extension at any depth. It skips hidden
    names (`is_hidden`, of the file or a directory above it), files that describe others, and the files of runs.
    Patterns are those of `Place.matches`.
    """
    known = f"Known extensions: {', '.join(FORMATS)}; quote a pattern."
    try:
        entry = place.entry()
        if entry is not None and entry.is_file:
            if format_of(place.name) is None:
                raise DataError(f"cannot tell the format of {place} by its extension", hint=known)
            return [entry]
        if entry is None and not is_pattern(place.address):
            raise DataError(
                f"there is no file {place}",
                hint="Check the bucket, and write names as they are: a space is a space, not %20."
                if is_address(place.address)
                else "Check the path, and the directory it starts from.",
            )
        found = place.matches() if entry is None else _in_directory(place)
    except OSError as error:
        raise DataError(f"cannot list {place}: {error}", hint=RIGHTS) from error
    names = ((one, one.place.name) for one in found if one.is_file)
    files = [one for one, name in names if format_of(name) and name != _RUN and not name.endswith(_BESIDE)]
    if not files:
        raise DataError(f"no data file {'matches' if entry is None else 'is in'} {place}", hint=known)
    return files


def _in_directory(place: Place) -> list[Entry]:
    base = len(place.path.rstrip("/"))
    # Skips hidden names; `Place.matches` skips them itself.
    shown = [one for one in place.entries(recursive=True) if not is_hidden(one.place.path[base:])]
    runs = {one.place.path.rpartition("/")[0] for one in shown if one.place.name == _RUN}
    runs.discard(place.path.rstrip("/"))
    return [one for one in shown if one.place.path.rpartition("/")[0] not in runs]


def names_of(paths: Sequence[File]) -> list[str]:
    """Name files for messages and results: by their last part, or relative to the directory that they share."""
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    whole = [f"/{path.path}" if isinstance(path, Place) else str(path.absolute()) for path in paths]
    shared = os.path.commonpath(map(os.path.dirname, whole))
    return [os.path.relpath(path, shared) for path in whole]


def read_samples(
    path: str | os.PathLike[str] | Place,
    *,
    limit: int | None = None,
    fields: Mapping[str, str] | None = None,
    encoding: str | None = None,
    rows: str | None = None,
    quoting: Quoting | None = None,
) -> Iterator[Sample]:
    """Read the rows of a file, one at a time and in order.

    The iterator yields unreadable rows (malformed, not UTF-8, wrong number of cells, an ``id`` that an earlier row has)
    in their place, with `Sample.error` set.

    Parameters
    ----------
    path : str, path or Place
        The path or the address of a ``.jsonl``, ``.ndjson``, ``.json`` (a list of objects), ``.csv``, ``.tsv`` or
        ``.parquet`` file; all but Parquet also compressed, with ``.gz`` at the end. All but ``.json`` are streamed.
    limit : int, optional
        Stop after this many rows, bad ones included.
    fields : mapping of str to str, optional
        Field of a metric -> its column, or the dotted path into one; see `Sample.mapping`.
    encoding : str, optional
        Encoding of a text file; `geval_local.io.rows.read_rows` describes the default.
    rows : str, optional
        Where the rows are, if a JSON file holds more than a list, such as ``results.results``.
    quoting : {"standard", "none"}, optional
        Whether quotes in a table enclose cells; by its lines if absent.

    Returns
    -------
    iterator of Sample

    Raises
    ------
    DataError
        If there is no readable file of a known format (at once), or the whole file is broken or has no rows (while
        iterating).
    ConfigurationError
        If `limit` is below 1.
    """
    options = RunOptions(limit=limit, fields=dict(fields or {}), encoding=encoding, rows=rows, quoting=quoting)
    return read_input([file_at(path)], options)


def read_input(paths: Sequence[File], options: RunOptions) -> Iterator[Sample]:
    """Read the rows of a run's files in order, in the shape of its options; see `read_samples`.

    Rows of several files have their file's name as a column. Ids must be distinct within a file only. One of several
    files that cannot be read, or not to its end, has a last sample that says why.
    """
    shape, names = Shape(options), names_of(paths) if len(paths) > 1 else [""]
    # Opens all files first, to report a missing one before reading any.
    opened = [(read_rows(path, **options.reading), path, name) for path, name in zip(paths, names, strict=True)]
    rows = not_empty((sample for one in opened for sample in file_samples(*one, options)), paths)
    # The limit counts rows of files, which may become several samples.
    return (sample for row in islice(rows, options.limit) for sample in shape.samples(row))


def file_samples(
    rows: Iterator[RawRow],
    path: File,
    name: str,
    options: RunOptions,
    *,
    before: int = 0,
    repeated: Mapping[int, int] | None = None,
) -> Iterator[Sample]:
    """Make samples of the rows of a file, after those `before` them; one of several has a `name`, which is a column.

    For `repeated` see `samples_of`.
    """
    rows = rows_and_failure(rows, alone=not name, before=before)
    # Only the first repeated id needs the answer: a file without repeated ids is read once.
    known = cache(partial(ids_of_documents, path, **options.reading)) if options.id is None else lambda: False
    shape = Shape(options)
    for sample in samples_of(shape.identified(rows), name or path.name, options.fields, repeated, name_documents=known):
        own: dict[str, Any] = {INPUT_ROW: sample.row} if name or shape.multiplies else {}
        own |= {free_name(FILE, sample.fields): name} if name else {}
        # Behind the columns of the input, of which one may have the name.
        yield replace(sample, fields={**sample.fields, **own, **sample.fields}) if own else sample
