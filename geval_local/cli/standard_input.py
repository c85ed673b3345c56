"""``-``: rows from standard input, copied to a file, because a run reads them more than once and may be resumed."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from geval_local.cli.output.console import note
from geval_local.errors import DataError, GevalError
from geval_local.files import home_folder

_BLOCK = 1 << 20


@contextmanager
def _standard_input(*, keep: bool, keep_after: bool) -> Iterator[Path]:
    """Yield the path of a file with the JSONL of standard input.

    The same rows get the same file name, so a repeated command continues its run. The file is removed at the end,
    unless a run directory refers to it.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise DataError(
            "- reads JSONL from standard input, and that is a terminal", hint="cat FILE | geval-local ... -"
        )
    folder = home_folder("stdin") if keep else None
    with TemporaryDirectory(prefix="geval-local-") if folder is None else nullcontext(folder) as place:
        if keep and folder is None:
            note(f"standard input could only be kept in {place}: this run cannot be resumed", "yellow")
        path = _spool(sys.stdin.buffer, Path(place))
        needed = keep_after and folder is not None
        try:
            yield path
        except (GevalError, KeyboardInterrupt):
            needed = folder is not None
            raise
        finally:
            if not needed:
                path.unlink(missing_ok=True)


@contextmanager
def input_files(files: Sequence[str], *, keep: bool, keep_after: bool = False) -> Iterator[list[str | Path]]:
    """Yield the files as given; standard input, ``-``, becomes a file."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(_standard_input(keep=keep, keep_after=keep_after)) if one == "-" else one
            for one in files
        ]


def _spool(source: BinaryIO, folder: Path) -> Path:
    """Write the input to a file that only this user can read, named after its content."""
    handle, name = tempfile.mkstemp(dir=folder, suffix=".jsonl")
    digest = hashlib.sha256()
    try:
        with os.fdopen(handle, "wb") as file:
            while block := source.read(_BLOCK):
                digest.update(block)
                file.write(block)
        path = folder / f"stdin-{digest.hexdigest()[:16]}.jsonl"
        os.replace(name, path)
    except OSError as error:
        raise DataError(f"cannot keep standard input in {folder}: {error.strerror or error}") from error
    finally:
        Path(name).unlink(missing_ok=True)
    return path
