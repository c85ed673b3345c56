"""The identity of a run's input, and what all parts of its manifest are."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from geval_local.errors import DataError
from geval_local.io.input_checks import told_files
from geval_local.io.input_files import names_of
from geval_local.io.places import File, Place, address_of, check_is_there, file_at, state_of, unreachable
from geval_local.io.shares import Share, Stretch

_BLOCK = 1 << 20

Count = Annotated[int, Field(ge=0)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ManifestPart(BaseModel):
    """A part of a manifest: unknown keys and values of the wrong type are rejected."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True, strict=True)


class InputFile(ManifestPart):
    """The file that is scored, by its content."""

    #: Absolute path, or address.
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
    #: The files, if there are several; all else is then of all of them together, and the path their directory.
    files: list[InputFile] = Field(default_factory=list)
    #: The rows that are scored, if they are a share of those of an input; the files are those that have some of them.
    share: Share | None = None

    @property
    def paths(self) -> list[File]:
        """The files."""
        return [file_at(one.path) for one in self.files or [self]]


def fingerprint_inputs(paths: Sequence[File]) -> InputFile:
    """Fingerprint the files of a run, in their order."""
    files = [fingerprint_input(path) for path in paths]
    if len(files) == 1:
        return files[0]
    named = "\n".join(f"{file.sha256} {name}" for file, name in zip(files, names_of(paths), strict=True))
    return _together(files, named)


def _together(files: list[InputFile], told: str, share: Share | None = None) -> InputFile:
    """Describe files, or a share of them, by all that is told of their content."""
    return InputFile(
        path=files[0].path if len(files) == 1 else _directory(files),
        name=told_files([Path(file.name) for file in files]),
        sha256=hashlib.sha256(told.encode()).hexdigest(),
        bytes=sum(file.bytes for file in files),
        lines=sum(file.lines for file in files),
        changed=max(file.changed for file in files),
        files=files,
        share=share,
    )


def fingerprint_share(share: Share, hashes: dict[Stretch, InputFile] | None = None) -> InputFile:
    """Fingerprint a share of an input: what it reads of its files, and which files there are next to them.

    `hashes` keeps what is known of the files for other shares.
    """
    hashes, files = {} if hashes is None else hashes, []
    for stretch in share.stretches:
        read = stretch if stretch.by_bytes else Stretch(path=stretch.path)
        if read not in hashes:
            hashes[read] = fingerprint_input(file_at(read.path), read.start, read.stop)
        files.append(hashes[read])
    told = [
        share.listing,
        *(repr((file.sha256, one.start, one.stop)) for file, one in zip(files, share.stretches, strict=True)),
    ]
    told.append(repr((share.first, share.last, share.end, share.samples)))
    return _together(files, "\n".join(told), share)


def _directory(files: Sequence[InputFile]) -> str:
    """Return the directory that all files share; of addresses in several, that of the first."""
    if any(isinstance(file_at(file.path), Place) for file in files):
        return str(Place(files[0].path).directory)
    return os.path.commonpath([os.path.dirname(file.path) for file in files])


def fingerprint_input(path: File, start: int = 0, stop: int | None = None) -> InputFile:
    """Fingerprint an input file by its content, or by that of some of its bytes; size and time are the file's."""
    digest, lines = hashlib.sha256(), 0
    try:
        place = Place(address_of(path if isinstance(path, Place) else path.resolve()))
        place.address.encode()
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"cannot use {str(path)!r}: {error}", hint="Give the file a path of plain UTF-8.") from error
    check_is_there(path)
    try:
        size, changed = state_of(path)  # first: what is written while it is read is a change
        with place.seekable_file() as file:
            left = (size if stop is None else stop) - file.seek(start)
            while block := file.read(_BLOCK if stop is None else min(_BLOCK, left)):
                digest.update(block)
                lines += block.count(b"\n")
                left -= len(block)
    except OSError as error:
        if isinstance(path, Place):
            raise unreachable(path, error) from error
        raise DataError(f"cannot read {path}: {error.strerror}", hint="Check the file's permissions.") from error
    return InputFile(
        path=place.address,
        name=path.name,
        sha256=digest.hexdigest(),
        bytes=size,
        lines=lines,
        changed=changed,
    )


def check_unchanged(known: InputFile, *, through: bool = False) -> None:
    """Check that an input has not changed since its fingerprint was taken."""
    if known.files:
        for file in known.files:
            check_unchanged(file, through=through)
        return
    try:
        state = state_of(file_at(known.path))
    except FileNotFoundError:
        if through:
            return
        raise DataError(
            f"there is no file {known.path}", hint="Put the input back; finished scores are kept."
        ) from None
    except OSError as error:
        raise DataError(f"cannot read {known.path}: {error.strerror or error}") from error
    if state != (known.bytes, known.changed):
        raise DataError(
            f"{known.path} was changed while it was scored",
            hint="Put the former content back, or score the new one into another directory.",
        )
