"""Files of a run: what identifies its input, and what is left of its own when a process dies."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from geval_local.errors import DataError

__all__ = ["Count", "InputFile", "Record", "Sha256", "check_unchanged", "fingerprint_input", "is_plain_file", "sweep"]

_BLOCK = 1 << 20

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Record(BaseModel):
    """A part of a manifest: unknown keys are refused, and so is a value of another type."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, strict=True)


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

    path: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    sha256: Sha256
    bytes: Count
    lines: Count
    changed: int
    rows: Count | None = None


def fingerprint_input(path: Path) -> InputFile:
    """Fingerprint an input file by its content.

    Raises
    ------
    DataError
        If it cannot be read.
    """
    digest, lines = hashlib.sha256(), 0
    try:
        str(path.resolve()).encode()
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"cannot use {str(path)!r}: {error}", hint="Give the file a path of plain UTF-8.") from error
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


def is_plain_file(path: Path) -> bool:
    """Whether there is a regular file of that name itself, and not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def sweep(directory: Path, run: str) -> None:
    """Remove files that a dead process of a run left half-written: their names carry the run's identifier."""
    if directory.is_symlink() or not directory.is_dir():
        return
    for path in directory.iterdir():
        if path.name.startswith(".") and path.name.endswith(f".{run}.tmp") and is_plain_file(path):
            path.unlink(missing_ok=True)
