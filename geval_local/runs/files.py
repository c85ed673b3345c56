"""Files of a run: what identifies its input, and how its own are written."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from geval_local.errors import DataError, OutputError

__all__ = ["InputFile", "Record", "check_unchanged", "fingerprint_input", "write_atomically"]

_BLOCK = 1 << 20


class Record(BaseModel):
    """A part of a manifest: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class InputFile(Record):
    """The file that is scored, by its content.

    Attributes
    ----------
    path : str
        Absolute path.
    name : str
        Its last part.
    sha256 : str
        Hash of the content.
    bytes, lines : int
        Size, and number of line ends, which for JSONL is about the number of rows.
    changed : int
        Time of the last change, nanoseconds: tells at no cost that a file was written to during a run.
    rows : int or None
        Rows read; None until the first pass is through.
    """

    path: str
    name: str
    sha256: str
    bytes: int
    lines: int
    changed: int
    rows: int | None = None


def fingerprint_input(path: Path) -> InputFile:
    """Fingerprint an input file by its content.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    digest, lines = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            while block := file.read(_BLOCK):
                digest.update(block)
                lines += block.count(b"\n")
    except FileNotFoundError:
        raise DataError(f"there is no file {path}", hint="Check the path, and the directory it starts from.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a directory", hint="Give the path of one file.") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}", hint="Check the file's permissions.") from error
    return InputFile(
        path=str(path.resolve()),
        name=path.name,
        sha256=digest.hexdigest(),
        bytes=status.st_size,
        lines=lines,
        changed=status.st_mtime_ns,
    )


def check_unchanged(known: InputFile, *, through: bool = False) -> None:
    """Make sure that nobody has written to an input since its fingerprint was taken.

    Parameters
    ----------
    known : InputFile
        What was found then.
    through : bool
        Whether it has been read to its end, so that it may be gone.

    Raises
    ------
    DataError
        If it is gone, cannot be looked at, or has another size or time.
    """
    try:
        status = Path(known.path).stat()
    except FileNotFoundError:
        if through:
            return
        raise DataError(
            f"there is no file {known.path}", hint="Put the input back; what is scored already is kept."
        ) from None
    except OSError as error:
        raise DataError(f"cannot read {known.path}: {error.strerror}") from error
    if (status.st_size, status.st_mtime_ns) != (known.bytes, known.changed):
        raise DataError(
            f"{known.path} was changed while it was scored",
            hint="Put the former content back, or score the new one into another directory.",
        )


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that there is either the old one or the new one, on the disk, whatever happens.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    partial = path.with_name(f".{path.name}.tmp")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}",
            hint="Is the disk full? Make room and resume; what was committed is kept.",
        ) from error
