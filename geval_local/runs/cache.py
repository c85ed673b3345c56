"""Cache of outcomes by prompt, judge, labels and read-out, kept across runs.

Scoring a file that has grown computes only the new rows and reuses the old figures unchanged. The cache is never
required: if it cannot be read or written, the run continues without it and logs this once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.errors import OutputError
from geval_local.files import home_directory, home_folder, network_disk
from geval_local.runs.store import (
    Migration,
    checksum,
    connect,
    from_columns,
    migrate,
    plain_errors,
    to_columns,
    transaction,
)
from geval_local.score import Outcome

if TYPE_CHECKING:
    from geval_local.tokens.requests import Request

logger = logging.getLogger("geval_local")

#: Incremented whenever the computation from hidden states to label log-probabilities changes.
READOUT_VERSION = 1
_AT_ONCE = 500
_MIGRATIONS: tuple[Migration, ...] = (
    (
        """CREATE TABLE entries (key BLOB PRIMARY KEY, logprobs BLOB NOT NULL, other TEXT, sample_key INTEGER
            NOT NULL) WITHOUT ROWID""",
    ),
    (  # what an earlier version kept is sealed as it is found
        "ALTER TABLE entries ADD COLUMN checksum INTEGER",
        "UPDATE entries SET checksum = entry_checksum(key, logprobs, other, sample_key)",
    ),
)


def cache_path() -> Path:
    """Return the path of the cache file; it need not exist."""
    return home_directory() / "cache" / "outcomes.sqlite"


def entry_checksum(key: bytes, logprobs: bytes, other: str | None, sample_key: int) -> int | None:
    """Return the checksum of an entry, its key included; None for values of types that none has."""
    values = (0, 0, 0, 0, logprobs, other, 0, 0, sample_key, None)
    try:
        seal = checksum(*values)
        return None if seal is None else zlib.crc32(key, seal)
    except (AttributeError, TypeError):
        return None


class OutcomeCache:
    """Outcomes of earlier runs."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or cache_path()
        self.in_use = True
        self._connection: sqlite3.Connection | None = None
        #: Keys of entries that are not as they were stored, and whether that was said.
        self._damaged: set[bytes] = set()
        self._told = False

    def keys(self, requests: Sequence[Request], judge: str) -> list[bytes]:
        """Derive the keys of requests."""
        tries: dict[int, bytes] = {}
        keys = []
        for request in requests:
            start = tries.get(id(request.trie))
            if start is None:
                forms = [[form.label, list(form.token_ids)] for form in request.trie.forms]
                text = json.dumps([READOUT_VERSION, judge, request.trie.labels, forms])
                start = tries[id(request.trie)] = hashlib.blake2b(text.encode(), digest_size=16).digest()
            keys.append(hashlib.blake2b(request.ids.tobytes(), key=start, digest_size=16).digest())
        return keys

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Outcome]:
        """Look up outcomes; the caller fills in their token counts."""
        found: dict[bytes, Outcome] = {}
        if not self._has_place() or not self.path.exists():
            return found
        try:
            connection = self._open()
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(part))
                for *values, seal in connection.execute(
                    f"SELECT key, logprobs, other, sample_key, checksum FROM entries WHERE key IN ({marks})", part
                ):
                    key, logprobs, other, sample_key = values
                    if seal is None or entry_checksum(*values) != seal:
                        self._damaged.add(key)
                    else:
                        found[key] = from_columns((logprobs, other, 0, 0, sample_key, None))
        except Exception as error:
            self._give_up(error)
            return {}
        if self._damaged and not self._told:
            self._told = True
            logger.warning("the cache %s has damaged entries: their figures are computed again", self.path)
        return found

    def add(self, outcomes: Mapping[bytes, Outcome]) -> None:
        """Store outcomes that have a score."""
        rows = []
        for key, outcome in sorted(outcomes.items()):
            logprobs, other, _, _, sample_key, _ = to_columns(outcome)
            if logprobs is not None:
                values = (key, logprobs, other, sample_key)
                rows.append((*values, entry_checksum(*values)))
        if not rows or not self.in_use or not self._has_place():
            return
        try:
            connection = self._open()
            with transaction(connection):
                damaged = [(key,) for key, *_ in rows if key in self._damaged]
                connection.executemany("DELETE FROM entries WHERE key = ?", damaged)
                connection.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?, ?, ?, ?)", rows)
            self._damaged -= {key for (key,) in damaged}
        except Exception as error:
            self._give_up(error)

    def size(self) -> tuple[int, int]:
        """Return the number of entries and of bytes on disk."""
        try:
            if not self.path.exists():
                return 0, 0
        except OSError as error:
            raise OutputError(
                f"cannot read {self.path}: {error.strerror}", hint="Set GEVAL_LOCAL_HOME to a directory of your own."
            ) from error
        with plain_errors(self.path):
            entries = int(self._open().execute("SELECT COUNT(*) FROM entries").fetchone()[0])
        return entries, sum(file.stat().st_size for file in self._files())

    def clear(self) -> None:
        """Delete everything."""
        self.close()
        for file in self._files():
            file.unlink()

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _has_place(self) -> bool:
        """Create the cache's directory; a failure has been logged."""
        if self.path == cache_path() and home_folder("cache") is None:
            self.in_use = False
        disk = network_disk(self.path) if self.in_use else None
        if disk is not None:  # many machines would write one file, whose locks and log need one machine
            logger.warning(
                "the cache %s is left out of this run: it is on a network disk (%s), and SQLite needs a local one. Set "
                "GEVAL_LOCAL_HOME to a directory on a local disk, or leave it out by `use_cache=False`",
                self.path,
                disk,
            )
            self.in_use = False
        return self.in_use

    def _files(self) -> Iterable[Path]:
        names = (self.path, *(self.path.with_name(self.path.name + end) for end in ("-wal", "-shm")))
        return [path for path in names if path.exists()]

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            connection = connect(self.path)
            connection.create_function("entry_checksum", 4, entry_checksum, deterministic=True)
            migrate(connection, _MIGRATIONS, self.path)
            self._connection = connection
        return self._connection

    def _give_up(self, error: Exception) -> None:
        if self.in_use:
            logger.warning("the cache %s is left out of this run: %s", self.path, str(error).split("\n", 1)[0])
        self.in_use = False
        self.close()
