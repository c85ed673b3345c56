"""``-``: rows from standard input, kept in a file, because a run reads them more than once and may be resumed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from geval_local.cli.output.console import note
from geval_local.errors import DataError, GevalError
from geval_local.files import private_home

STANDARD_INPUT = Path("-")
_BLOCK = 1 << 20


@contextmanager
def input_file(file: Path, *, keep: bool, keep_after: bool = False) -> Iterator[Path]:
    """Yield the path of a file; ``-`` is JSONL from standard input, which is read into a file first.

    The same rows are kept under the same name, so a repeated command continues its run. The file is removed when the
    work is done, unless a run directory refers to it.
    """
    if file != STANDARD_INPUT:
        yield file
        return
    if sys.stdin is None or sys.stdin.isatty():
        raise DataError(
            "- reads JSONL from standard input, and that is a terminal", hint="cat FILE | geval-local ... -"
        )
    path, stays = _spool(sys.stdin.buffer, keep=keep)
    if keep and not stays:
        note(f"standard input could only be kept in {path.parent}: this run cannot be resumed", "yellow")
    needed = keep_after and stays
    try:
        yield path
    except (GevalError, KeyboardInterrupt):
        needed = keep and stays
        raise
    finally:
        if not needed:
            path.unlink(missing_ok=True)
            if not stays:
                with contextlib.suppress(OSError):
                    path.parent.rmdir()


def _spool(source: BinaryIO, *, keep: bool) -> tuple[Path, bool]:
    """Write the input to a file that only this user can read; return whether it can be found again."""
    try:
        if not keep:
            raise OSError
        folder = private_home("stdin")
        handle, name = tempfile.mkstemp(dir=folder, suffix=".jsonl")
        stays = True
    except OSError:
        folder, stays = Path(tempfile.mkdtemp(prefix="geval-local-")), False
        handle, name = tempfile.mkstemp(dir=folder, suffix=".jsonl")
    digest = hashlib.sha256()
    try:
        with os.fdopen(handle, "wb") as file:
            while block := source.read(_BLOCK):
                digest.update(block)
                file.write(block)
        path = folder / f"stdin-{digest.hexdigest()[:16]}.jsonl"
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if not stays:
            folder.rmdir()
        if isinstance(error, OSError):
            raise DataError(f"cannot keep standard input in {folder}: {error.strerror or error}") from error
        raise
    return path, stays
