"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = ["temporary_path", "write_atomically"]


def temporary_path(path: Path, mark: str | None = None) -> Path:
    """Name the file in which the content of `path` is gathered, in the same directory.

    Parameters
    ----------
    path : Path
        The target.
    mark : str, optional
        What tells whose it is, such as the identifier of a run; random when absent.
    """
    # The mark keeps it apart from any file of the user's; the name is cut because it grows by the mark.
    return path.with_name(f".{path.name[:60]}.{mark or secrets.token_hex(8)}.tmp")


def write_atomically(path: Path, text: str, *, private: bool, mark: str | None = None) -> None:
    """Write a text file so that there is either the old one or the new one, on the disk, whatever happens.

    Parameters
    ----------
    path : Path
        The target. A link is replaced and not followed.
    text : str
        The content, written as UTF-8.
    private : bool
        Whether only the user may read it; otherwise who may is up to the user's umask.
    mark : str, optional
        See `temporary_path`.

    Raises
    ------
    OSError
        If it cannot be written; nothing is left behind then.
    """
    partial = temporary_path(path, mark)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
