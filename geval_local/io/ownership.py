"""Is this file ours, and unchanged? Every verb that replaces or removes a file asks this; other files are the user's.

A file, on this machine or at an address, is ours if a digest of its content is on record: in another file of this tool
(the manifest of a run, a site or results), or in the file itself, as the checksum of a JSON record or as the last line
of a text. A link, a file with a second name (a hard link), a directory and a pipe are never ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from geval_local.errors import OutputError
from geval_local.files import kind_of_special
from geval_local.io.places import File, Place

_KEY = "checksum"


def file_sha256(path: str | File) -> str:
    """Hash a file's content, 64 hex digits."""
    with path.lines_file() if isinstance(path, Place) else Path(path).open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def checksummed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Add the checksum of a record (a JSON object with its ``format``) as its first key."""
    return {_KEY: _checksum(record), **record}


def is_unedited(record: Mapping[str, Any]) -> bool:
    """Whether the checksum of a record matches the rest of it."""
    return record.get(_KEY) == _checksum({key: value for key, value in record.items() if key != _KEY})


def _checksum(record: Mapping[str, Any]) -> str:
    """Hash the canonical form: keys sorted, no white space, ASCII."""
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(text: str, form: str) -> str:
    """Append the digest of a markup text to it, in a comment."""
    text = f"{text.rstrip()}\n"
    return f"{text}{_seal(text.encode(), form).decode()}"


def _seal(content: bytes, form: str) -> bytes:
    return f"<!-- {form} {hashlib.sha256(content).hexdigest()} -->\n".encode()


def is_lone_file(path: Path) -> bool:
    """Whether a path is a regular file, no link, with a single name: writing to it then changes no other file."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_nlink <= 1  # some file systems do not count names


def digest_of(file: File) -> str | None:
    """Hash a file's content; None if there is none."""
    try:
        return file_sha256(file)
    except FileNotFoundError:
        return None


def owned(path: File, form: str | None = None, *, digests: Collection[str | None] = ()) -> bool:
    """Whether this tool wrote a file, and nobody has changed it since; an address has no other form than `digests`."""
    if isinstance(path, Place):
        return digest_of(path) in digests
    if not is_lone_file(path):
        return False
    try:
        if digests and file_sha256(path) in digests:
            return True
        return form is not None and (read_own_record(path, form) is not None or _is_sealed(path, form))
    except OSError:
        return False


def read_own_record(path: Path, form: str) -> dict[str, Any] | None:
    """Read a JSON record that this tool wrote and nobody has edited; None if there is none."""
    with suppress(OSError, ValueError, RecursionError):
        record = json.loads(path.read_bytes())
        if isinstance(record, dict) and record.get("format") == form and is_unedited(record):
            return record
    return None


def _is_sealed(path: Path, form: str) -> bool:
    content = path.read_bytes()
    start = content.rfind(b"\n", 0, -1) + 1
    return content[start:] == _seal(content[:start], form)


def check_place(path: File) -> None:
    """Check that a path is free or a file with one name; no verb replaces a link, a directory or a pipe."""
    if isinstance(path, Place):
        return
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            # Writing through it would replace a file that the user did not name; replacing the link would lose it.
            raise OutputError(
                f"cannot write {path}: it is a link to {os.readlink(path)}", hint="Name the file that it leads to."
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot write {path}: {reason}", hint="Choose another name.") from error
    if (kind := kind_of_special(mode)) is not None:
        hint = "Give the name of a file in it." if kind == "a directory" else "Choose another name."
        raise OutputError(f"cannot write {path}: it is {kind}", hint=hint)
    if not is_lone_file(path):
        raise OutputError(
            f"cannot write {path}: the file has another name as well (a hard link)",
            hint="Name another file, or remove this name of it.",
        )


def check_replaceable(
    path: File, form: str | None = None, *, digests: Collection[str | None] = (), overwrite: bool = False
) -> None:
    """Check that a file may be written: there is none, or it is ours, or the user allows it with `overwrite`."""
    check_place(path)
    is_there = path.exists() if isinstance(path, Place) else os.path.lexists(path)
    if not is_there or overwrite or owned(path, form, digests=digests):
        return
    raise OutputError(
        f"{path} exists, and is not an unchanged result of this tool",
        hint="Name another file, or add `overwrite=True` to replace it.",
    )


def check_own(path: File, digests: Collection[str | None]) -> None:
    """Check that a file may be written whatever the user allows: there is none, or it is as this tool made it."""
    check_place(path)
    if path.exists() and not owned(path, digests=digests):
        raise OutputError(
            f"{path} exists, and is not as this tool made it",
            hint="Move it to another place, then try again; nothing was changed.",
        )
