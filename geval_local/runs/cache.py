"""Cache of outcomes by prompt, judge, labels and read-out, and of thoughts, kept across runs.

Scoring a file that has grown computes only the new rows and reuses the old figures unchanged; a judge that thinks draws
only the thoughts that are new. The cache is never
required: if it cannot be read or written, the run continues without it and logs this once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.errors import OutputError, telling
from geval_local.files import home_directory, home_folder, network_disk
from geval_local.runs.store import (
    connect,
    from_columns,
    make_tables,
    plain_errors,
    seal,
    thought_columns,
    thought_of,
    to_columns,
    transaction,
)
from geval_local.score import Outcome

if TYPE_CHECKING:
    from geval_local.engine.backend import Draw
    from geval_local.thinking import Thought
    from geval_local.tokens.requests import Request

logger = logging.getLogger("geval_local")

#: Incremented whenever the computation from hidden states to label log-probabilities changes.
READOUT_VERSION = 1
#: Incremented whenever the same settings, prompt and number give another thought.
THOUGHT_VERSION = 1
_AT_ONCE = 500
#: Incremented whenever the tables change.
_SCHEMA = 4
_STATEMENTS = (
    """CREATE TABLE entries (key BLOB PRIMARY KEY, logprobs BLOB NOT NULL, other TEXT, sample_key INTEGER
        NOT NULL, checksum INTEGER) WITHOUT ROWID""",
    """CREATE TABLE thoughts (key BLOB PRIMARY KEY, tokens BLOB NOT NULL, text TEXT NOT NULL,
        ending TEXT NOT NULL, checksum INTEGER) WITHOUT ROWID""",
)


def cache_path() -> Path:
    """Return the path of the cache file; it need not exist."""
    return home_directory() / "cache" / "outcomes.sqlite"


class OutcomeCache:
    """Outcomes and thoughts of earlier runs."""

    def __init__(self, *, in_use: bool = True) -> None:
        self.in_use = in_use
        self._connection: sqlite3.Connection | None = None
        #: Keys of entries that are not as they were stored, and whether that was said.
        self._damaged: set[bytes] = set()
        self._told = False

    @property
    def path(self) -> Path:
        """The file."""
        return cache_path()

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

    def thought_keys(self, draws: Sequence[Draw], judge: str, settings: str) -> list[bytes]:
        """Derive the keys of thoughts; `settings` is how they are drawn, see `Thinker.drawing`."""
        text = json.dumps([THOUGHT_VERSION, judge, settings])
        start = hashlib.blake2b(text.encode(), digest_size=16).digest()
        contents = (draw.seed.to_bytes(8, "little") + draw.ids.astype("<i4").tobytes() for draw in draws)
        return [hashlib.blake2b(content, key=start, digest_size=16).digest() for content in contents]

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Outcome]:
        """Look up outcomes; the caller fills in their token counts."""
        found = self._find("entries", "logprobs, other, sample_key", keys)
        return {
            key: from_columns((logprobs, other, 0, 0, sample_key, None))
            for key, (logprobs, other, sample_key) in found.items()
        }

    def find_thoughts(self, keys: Sequence[bytes]) -> dict[bytes, Thought]:
        """Look up thoughts."""
        found = self._find("thoughts", "tokens, text, ending", keys)
        return {key: thought_of(*columns) for key, columns in found.items()}

    def add(self, outcomes: Mapping[bytes, Outcome]) -> None:
        """Store outcomes that have a score."""
        rows = []
        for key, outcome in sorted(outcomes.items()):
            logprobs, other, _, _, sample_key, _ = to_columns(outcome)
            if logprobs is not None:
                rows.append((key, logprobs, other, sample_key))
        self._add("entries", rows)

    def add_thoughts(self, thoughts: Mapping[bytes, Thought]) -> None:
        """Store thoughts."""
        self._add("thoughts", [(key, *thought_columns(thought)) for key, thought in sorted(thoughts.items())])

    def _find(self, table: str, columns: str, keys: Sequence[bytes]) -> dict[bytes, tuple[Any, ...]]:
        """Read entries of a table that are as they were stored."""
        found: dict[bytes, tuple[Any, ...]] = {}
        if not self._has_place() or not self.path.exists():
            return found
        try:
            connection = self._open()
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(part))
                for key, *values, sealed in connection.execute(
                    f"SELECT key, {columns}, checksum FROM {table} WHERE key IN ({marks})", part
                ):
                    if seal(key, *values) != sealed:
                        self._damaged.add(key)
                    else:
                        found[key] = tuple(values)
        except Exception as error:
            self._give_up(error)
            return {}
        if self._damaged and not self._told:
            self._told = True
            logger.warning("the cache %s has damaged entries: their figures are computed again", self.path)
        return found

    def _add(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Write entries, the key first, in place of damaged ones."""
        if not rows or not self._has_place():
            return
        try:
            connection = self._open()
            with transaction(connection):
                damaged = [(key,) for key, *_ in rows if key in self._damaged]
                connection.executemany(f"DELETE FROM {table} WHERE key = ?", damaged)
                sealed = [(*values, seal(*values)) for values in rows]
                connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?, ?, ?)", sealed)
            self._damaged -= {key for (key,) in damaged}
        except Exception as error:
            self._give_up(error)

    def size(self) -> tuple[int, int]:
        """Return the number of entries and of bytes on disk."""
        with telling(OutputError, f"cannot read {self.path}", "Set GEVAL_LOCAL_HOME to a directory of your own."):
            if not self.path.exists():
                return 0, 0
        with plain_errors(self.path):
            asked = "SELECT (SELECT COUNT(*) FROM entries) + (SELECT COUNT(*) FROM thoughts)"
            entries = int(self._open().execute(asked).fetchone()[0])
        return entries, sum(file.stat().st_size for file in self._files())

    def clear(self) -> int:
        """Delete everything, also what cannot be read; return the number of bytes."""
        self.close()
        files = [(file, file.stat().st_size) for file in self._files()]
        for file, _ in files:
            file.unlink()
        return sum(size for _, size in files)

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _has_place(self) -> bool:
        """Create the directory of a cache that is in use; a failure has been logged."""
        self.in_use = self.in_use and home_folder("cache") is not None
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
            make_tables(connection, _STATEMENTS, _SCHEMA, self.path)
            self._connection = connection
        return self._connection

    def _give_up(self, error: Exception) -> None:
        if self.in_use:
            told = str(error).split("\n", 1)[0].replace(str(self.path), "it")
            # Other failures, such as a lock or a full disk, are those of an operation.
            cure = (
                "" if isinstance(error, sqlite3.OperationalError) else "; `geval-local cache --clear` starts a new one"
            )
            logger.warning("the cache %s is left out of this run: %s%s", self.path, told, cure)
        self.in_use = False
        self.close()
