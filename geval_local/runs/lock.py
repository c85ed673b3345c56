"""One process per run directory: a lock that the operating system takes back when the process dies, however it dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import IO

from geval_local.errors import OutputError

__all__ = ["DirectoryLock"]

LOCK_NAME = ".lock"


class DirectoryLock:
    """Hold a directory for this process; use it as a context manager.

    Parameters
    ----------
    directory : Path
        Must exist. The lock is on a file `LOCK_NAME` in it, which stays.

    Raises
    ------
    OutputError
        On entering, if another process holds the directory or it cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[str] | None = None

    def __enter__(self) -> DirectoryLock:
        path = self._directory / LOCK_NAME
        try:
            file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise OutputError(
                f"cannot write {path}: {error.strerror}", hint="Choose a directory that you may write to."
            ) from error
        if not _try_to_lock(file):
            file.seek(0)
            owner = file.read().strip()
            file.close()
            raise OutputError(
                f"{self._directory} is in use by another process" + (f", number {owner}" if owner else ""),
                hint="Wait for it, or give this run a directory of its own.",
            )
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        self._file = file
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


if sys.platform == "win32":
    import msvcrt

    def _try_to_lock(file: IO[str]) -> bool:
        try:
            # Far behind the content, so that the owner's number can still be read.
            file.seek(1 << 20)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_to_lock(file: IO[str]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
