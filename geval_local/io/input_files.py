"""The input of a run: one file or several, found by names, directories and patterns, and read as samples."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path

from geval_local.errors import DataError
from geval_local.io.columns import free_name
from geval_local.io.places import is_pattern
from geval_local.io.rows import FORMATS, format_of, read_rows
from geval_local.io.samples import Sample, ids_of_documents, read_samples, samples_of
from geval_local.io.shapes import Shape
from geval_local.options import RunOptions

#: Column that names the file of a row, if there are several.
FILE = "file"
#: Endings of files that stand beside results and hold no rows of their own.
_BESIDE = (".meta.json", ".rows.jsonl")

Given = str | os.PathLike[str]


def find_files(given: Given | Iterable[Given]) -> list[Path]:
    """List the files that are named: files, the data files of directories, and those that match patterns; each once."""
    listed = [given] if isinstance(given, str | os.PathLike) else list(given)
    if not listed:
        raise DataError("no file is named")
    return list(dict.fromkeys(path for one in listed for path in _found(Path(one))))


def _found(path: Path) -> list[Path]:
    if path.is_dir():
        found = [one for one in sorted(path.iterdir()) if _is_data(one)]
        if not found:
            raise DataError(
                f"{path} is a directory that holds no data files", hint=f"Known extensions: {', '.join(FORMATS)}."
            )
        return found
    if is_pattern(str(path)) and not path.exists():
        found = [one for name in sorted(glob.glob(str(path), recursive=True)) if _is_data(one := Path(name))]
        if not found:
            raise DataError(f"no data file matches {str(path)!r}", hint=f"Known extensions: {', '.join(FORMATS)}.")
        return found
    return [path]


def _is_data(path: Path) -> bool:
    name = path.name
    is_shown = not name.startswith((".", "_")) and not name.endswith(_BESIDE)
    return is_shown and format_of(name) is not None and path.is_file()


def names_of(paths: Sequence[Path]) -> list[str]:
    """Name files for messages and results: by their last part, or from the directory that they share."""
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    shared = os.path.commonpath([path.absolute().parent for path in paths])
    return [os.path.relpath(path, shared) for path in paths]


def read_input(paths: Sequence[Path], options: RunOptions) -> Iterator[Sample]:
    """Read the rows of a run's files in order, in the shape that its options say; see `read_samples`.

    Rows of several files carry their file's name as a column. An id is checked for repetition within its file.
    """
    shape = Shape(options.id, tuple(options.system_columns or ()), options.turns is not None)
    rows = _one(paths[0], options, shape) if len(paths) == 1 else _several(paths, options, shape)
    # The limit counts rows of files, which may become several samples.
    return (sample for row in islice(rows, options.limit) for sample in shape.samples(row))


def _one(path: Path, options: RunOptions, shape: Shape) -> Iterator[Sample]:
    if shape.id is None:
        return read_samples(path, fields=options.fields, encoding=options.encoding)
    return samples_of(shape.identified(read_rows(path, options.encoding)), path.name, options.fields)


def _several(paths: Sequence[Path], options: RunOptions, shape: Shape) -> Iterator[Sample]:
    # Opened first: a file that is not there is told before any other is read.
    opened = [
        (name, read_rows(path, options.encoding), cache(partial(ids_of_documents, path, options.encoding)))
        for name, path in zip(names_of(paths), paths, strict=True)
    ]
    is_empty = True
    for name, rows, name_documents in opened:
        known = (lambda: False) if shape.id is not None else name_documents
        for sample in samples_of(shape.identified(rows), name, options.fields, name_documents=known):
            is_empty = False
            yield replace(sample, fields={**sample.fields, free_name(FILE, sample.fields): name})
    if is_empty:
        raise DataError(f"none of the {len(paths)} files holds a row", hint="Were they written completely?")
