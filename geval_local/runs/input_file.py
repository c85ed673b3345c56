"""The identity of a run's input, and what all parts of its manifest are."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from geval_local.errors import DataError
from geval_local.files import check_is_file

_BLOCK = 1 << 20

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ManifestPart(BaseModel):
    """A part of a manifest: unknown keys and values of the wrong type are rejected."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, strict=True)


class InputFile(ManifestPart):
    """The file that is scored, by its content."""

    #: Absolute path.
    path: Annotated[str, Field(min_length=1)]
    #: Last part of the path.
    name: Annotated[str, Field(min_length=1)]
    #: Hash of the content.
    sha256: Sha256
    #: Size, and number of line ends, which for JSONL is about the number of rows.
    bytes: Count
    lines: Count
    #: Time of the last change in nanoseconds: a cheap check for writes during a run.
    changed: int
    #: Rows read; None until the first pass is finished.
    rows: Count | None = None


def fingerprint_input(path: Path) -> InputFile:
    """Fingerprint an input file by its content."""
    digest, lines = hashlib.sha256(), 0
    try:
        str(path.resolve()).encode()
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"cannot use {str(path)!r}: {error}", hint="Give the file a path of plain UTF-8.") from error
    check_is_file(path)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            while block := file.read(_BLOCK):
                digest.update(block)
                lines += block.count(b"\n")
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
    """Check that an input has not changed since its fingerprint was taken."""
    try:
        status = Path(known.path).stat()
    except FileNotFoundError:
        if through:
            return
        raise DataError(
            f"there is no file {known.path}", hint="Put the input back; finished scores are kept."
        ) from None
    except OSError as error:
        raise DataError(f"cannot read {known.path}: {error.strerror}") from error
    if (status.st_size, status.st_mtime_ns) != (known.bytes, known.changed):
        raise DataError(
            f"{known.path} was changed while it was scored",
            hint="Put the former content back, or score the new one into another directory.",
        )
