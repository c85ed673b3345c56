"""Common code for the package's SQLite files: opening, append-only migrations, plain error messages."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from geval_local.errors import OutputError

__all__ = ["Migration", "connect", "migrate", "plain_errors", "transaction"]

#: A readable name, and the statements. Migrations are only ever appended: ``user_version`` counts those applied.
Migration = tuple[str, tuple[str, ...]]

#: Seconds to wait for another program's writes.
BUSY_SECONDS = 10.0


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into `OutputError` with the file and a remedy."""
    try:
        yield
    except sqlite3.Error as error:
        message, hint = _explained(error)
        raise OutputError(f"{path}: {message} ({error})", hint=hint) from error


def _explained(error: sqlite3.Error) -> tuple[str, str]:
    text = str(error).lower()
    if "locked" in text or "busy" in text:
        return (
            "another program is writing to it",
            "Close what has the file open (a database browser, a backup) and resume; what was committed is kept.",
        )
    if "full" in text or "disk i/o" in text:
        return (
            "the disk accepts no more data",
            "Make room on that disk and resume; what was committed before is kept.",
        )
    if "malformed" in text or "not a database" in text:
        return (
            "the file is damaged or cut off",
            "Restore it from a backup, or delete the directory and run again: figures already computed come from the "
            "cache where that is in use.",
        )
    if "readonly" in text or "unable to open" in text:
        return "it cannot be written", "Check the permissions of the directory and its files."
    return "the store failed", "What was committed before is kept; resume to try again."


def connect(path: Path | None) -> sqlite3.Connection:
    """Open or create a database in WAL mode; None creates a temporary one that is deleted with the connection.

    Only the user may read it: SQLite gives its side files the permissions of the database.

    A commit survives the death of the process at any moment. It survives a power cut once the log has been synced,
    see `Store.sync`.
    """
    if path is not None:
        _make_private(path)
    connection = sqlite3.connect(
        "" if path is None else path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _make_private(path: Path) -> None:
    """Create the file for the user alone, or remove others' permissions; SQLite reports any errors."""
    with suppress(OSError):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            # By name: opening and closing a database would release the locks of its other connections.
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a block as one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite rolls back by itself if the disk is full
            connection.execute("ROLLBACK")
        raise


def migrate(connection: sqlite3.Connection, migrations: Sequence[Migration], path: Path) -> None:
    """Upgrade a database to the current schema, one transaction per migration."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(migrations):
        raise OutputError(
            f"{path} has schema {version}, this version of geval-local knows {len(migrations)}",
            hint="Use the version that wrote it, or a newer one; nothing was changed.",
        )
    for number, (_, statements) in enumerate(migrations[version:], start=version + 1):
        with transaction(connection):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
