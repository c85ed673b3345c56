"""The store of a run: every finished row, committed unit by unit, in one SQLite file.

Contract: a committed row is never changed, except that ``--retry-errors`` removes unscored rows. A
process may die at any moment; the store then contains exactly the committed rows. Rows are numbered from 0 in the order
of the input, judges and metrics in the order of the manifest.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from geval_local.errors import Cause, ErrorCode, OutputError, code_of, telling
from geval_local.files import network_disk
from geval_local.score import Outcome
from geval_local.thinking import Ending, Thought

logger = logging.getLogger("geval_local")

DAMAGE_REMEDY = (
    "Restore it from a backup, or delete the directory and run again: figures already computed come from the cache "
    "where that is in use."
)
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
    except UnicodeDecodeError as error:  # of SQLite's own message about a damaged name
        raise OutputError(f"{path}: the file is damaged ({error})", hint=DAMAGE_REMEDY) from error


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
            DAMAGE_REMEDY,
        )
    if "readonly" in text or "unable to open" in text:
        return "it cannot be written", "Check the permissions of the directory and its files."
    return "the store failed", "What was committed before is kept; resume to try again."


def connect(path: Path | None) -> sqlite3.Connection:
    """Open or create a database in WAL mode; None creates one in memory that ends with the connection.

    A write-ahead log needs memory that all its readers share, which a network disk has not: there the database belongs
    to this connection alone, and a journal takes the log's place. See https://www.sqlite.org/wal.html.

    Only the user may read it: SQLite gives its side files the permissions of the database.

    A commit survives the death of the process at any moment. It survives a power cut once the log has been synced,
    see `Store.sync`.
    """
    if path is not None:
        with suppress(OSError):  # which SQLite reports
            # By name: opening and closing a database would release the locks of its other connections.
            path.touch(0o600)
            if path.stat().st_mode & 0o077:
                path.chmod(0o600)
    connection = sqlite3.connect(
        ":memory:" if path is None else path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    if path is not None and network_disk(path) is not None:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # first: a log that exists is then read without sharing
        connection.execute("PRAGMA journal_mode = TRUNCATE")
    else:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def seal(*values: Any) -> int:
    """Return the CRC-32 of a stored record, its place included."""
    return zlib.crc32(repr(values).encode("utf-8", "backslashreplace"))


def thought_columns(thought: Thought) -> tuple[bytes, str, str]:
    """Return a thought as the columns of a table: tokens, text and ending; see `thought_of`."""
    text = thought.text.encode("utf-8", "backslashreplace").decode()
    return np.array(thought.ids, dtype="<i4").tobytes(), text, thought.ending


def thought_of(tokens: bytes, text: str, ending: Ending) -> Thought:
    """Return the thought of three columns."""
    return Thought(tuple(np.frombuffer(tokens, "<i4").tolist()), text, ending)


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


def make_tables(connection: sqlite3.Connection, statements: Sequence[str], version: int, path: Path) -> None:
    """Make the tables of a new database; refuse one whose tables are those of another version."""
    with transaction(connection):
        found = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if found not in (0, version):
            raise OutputError(
                f"{path} has schema {found}, this version of geval-local has {version}",
                hint="Use the version that wrote it; nothing was changed.",
            )
        if found == 0:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version}")


#: Incremented whenever the tables change.
_SCHEMA = 4
_STATEMENTS = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE outcomes (
        judge INTEGER NOT NULL, metric INTEGER NOT NULL, row INTEGER NOT NULL, origin INTEGER NOT NULL,
        logprobs BLOB, other TEXT, prompt_tokens INTEGER NOT NULL, dropped_tokens INTEGER NOT NULL,
        sample_key INTEGER NOT NULL, error TEXT, checksum INTEGER,
        PRIMARY KEY (judge, metric, row)) WITHOUT ROWID""",
    """CREATE TABLE plans (
        judge INTEGER NOT NULL, metric INTEGER NOT NULL, window INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL, planned_tokens INTEGER NOT NULL, checksum INTEGER,
        PRIMARY KEY (judge, metric, window)) WITHOUT ROWID""",
    """CREATE TABLE thoughts (
        judge INTEGER NOT NULL, metric INTEGER NOT NULL, row INTEGER NOT NULL,
        tokens BLOB NOT NULL, text TEXT NOT NULL, ending TEXT NOT NULL, checksum INTEGER,
        PRIMARY KEY (judge, metric, row)) WITHOUT ROWID""",
)


#: Table of what a run stores by judge, metric and place -> the column of the place; the last column seals the others.
#: All that looks at whole stores goes through the tables that a store has: a new one has its entry here or fails.
_PLACES = {"outcomes": "row", "plans": "window", "thoughts": "row"}
_RANGE = "WHERE judge = ? AND metric = ? AND row >= ? AND row < ?"
#: The columns of an outcome, in the order of `to_columns`.
_COLUMNS = "logprobs, other, prompt_tokens, dropped_tokens, sample_key, error"
#: A power cut loses the commits of this many last seconds; a dying process loses no commits.
SYNC_SECONDS = 1.0
#: Rows inserted per statement, if there are that many. SQLite allows at least 999 values.
_ROWS_AT_ONCE = 32
_SEALED = f"judge, metric, row, origin, {_COLUMNS}"
_INSERT = f"INSERT OR IGNORE INTO outcomes ({_SEALED}, checksum) VALUES"
_MARKS = "(?,?,?,?,?,?,?,?,?,?,?)"
#: Rows that are taken over together.
_TAKEN_AT_ONCE = 4096


class Origin:
    """Origin of an outcome."""

    MODEL = 0
    CACHE = 1
    INPUT = 2  # the row itself cannot be scored; no model saw it


class PlanRecord(NamedTuple):
    """Prompt tokens of a window, and tokens computed for them."""

    prompt_tokens: int
    planned_tokens: int


class Store:
    """Outcomes of a run.

    Parameters
    ----------
    path : Path, optional
        The file; without one, all is in memory.
    run : str
        The run's own identifier. It is written to a new file and must match an existing one.
    is_new : bool
        Whether to create the file.

    Raises
    ------
    OutputError
        If the file is missing, cut off, of a newer schema, or of another run; from any method if it cannot be read or
        written.
    """

    is_closed = False

    def __init__(self, path: Path | None, run: str, *, is_new: bool) -> None:
        self.path = path or Path(":memory:")
        self._synced = time.monotonic()
        if path is not None and not is_new and not (path.is_file() and path.stat().st_size):
            raise OutputError(
                f"{path} is {'empty' if path.is_file() else 'missing'}, although its run has begun", hint=DAMAGE_REMEDY
            )
        with plain_errors(self.path):
            self._connection = connect(path)
            try:
                self._open(run, is_new)
            except BaseException:
                self._connection.close()
                raise

    def _open(self, run: str, is_new: bool) -> None:
        if not is_new:
            for (problem,) in self._connection.execute("PRAGMA quick_check(1)"):
                if problem != "ok":
                    raise sqlite3.DatabaseError(f"database disk image is malformed: {problem}")
        make_tables(self._connection, _STATEMENTS, _SCHEMA, self.path)
        if is_new:
            self._connection.execute("INSERT INTO about VALUES ('run', ?)", (run,))
        if self._connection.execute("SELECT value FROM about WHERE key = 'run'").fetchone() != (run,):
            raise OutputError(
                f"{self.path} belongs to another run than the manifest beside it, or has lost its write-ahead log",
                hint="Put back the file, or the log, that belongs here; or delete the directory and run again.",
            )
        # Now the file itself says whose it is, whatever happens to the log.
        self._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()

    def close(self) -> None:
        """Close the file."""
        self.is_closed = True
        with suppress(sqlite3.Error):  # on a full disk the log cannot be merged; it stays next to the file
            self._connection.close()

    def begin_window(
        self, judge: int, window: int, plans: Mapping[int, PlanRecord], given: Iterable[tuple[int, int, int, Outcome]]
    ) -> None:
        """Write down that a window has been planned for some metrics, with what needs no model.

        From then on what is planned is fixed, whatever a cache may hold later.
        """
        with plain_errors(self.path), transaction(self._connection):
            self._insert(judge, given)
            self._connection.executemany(
                "INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?, ?)",
                [(judge, metric, window, *plan, seal(judge, metric, window, *plan)) for metric, plan in plans.items()],
            )

    def add(
        self, judge: int, outcomes: Iterable[tuple[int, int, Outcome]], more: tuple[int, int, int] = (0, 0, 0)
    ) -> None:
        """Commit the metrics and rows of a unit; a row that is there already stays as it is.

        `more` is a metric, a window, and the tokens that the unit computed beyond those planned.
        """
        with plain_errors(self.path):
            with transaction(self._connection):
                if more[-1]:
                    self._count(judge, *more)
                self._insert(judge, ((metric, row, Origin.MODEL, outcome) for metric, row, outcome in outcomes))
            if time.monotonic() - self._synced > SYNC_SECONDS:
                self.sync()

    def _count(self, judge: int, metric: int, window: int, more: int) -> None:
        """Add computed tokens to the plan of a window."""
        where = (judge, metric, window)
        (found,) = self._connection.execute(
            "SELECT prompt_tokens, planned_tokens FROM plans WHERE judge = ? AND metric = ? AND window = ?", where
        )
        plan = PlanRecord(found[0], found[1] + more)
        self._connection.execute(
            "INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?, ?)", (*where, *plan, seal(*where, *plan))
        )

    def _insert(self, judge: int, rows: Iterable[tuple[int, int, int, Outcome]]) -> None:
        records = []
        for metric, row, origin, outcome in rows:
            values = (judge, metric, row, origin, *to_columns(outcome))
            records.append((*values, seal(*values)))
        together = len(records) - len(records) % _ROWS_AT_ONCE
        # SQLite releases the interpreter lock at every step; with many rows per step the reader takes it less often.
        for start in range(0, together, _ROWS_AT_ONCE):
            together_values = [value for record in records[start : start + _ROWS_AT_ONCE] for value in record]
            self._connection.execute(f"{_INSERT} {', '.join([_MARKS] * _ROWS_AT_ONCE)}", together_values)
        self._connection.executemany(f"{_INSERT} {_MARKS}", records[together:])

    def add_thoughts(self, judge: int, metric: int, thoughts: Iterable[tuple[int, Thought]]) -> None:
        """Commit thoughts, by the number of the outcome that is to follow each; one that is there stays as it is."""
        records = []
        for row, thought in thoughts:
            values = (judge, metric, row, *thought_columns(thought))
            records.append((*values, seal(*values)))
        with plain_errors(self.path), transaction(self._connection):
            self._connection.executemany("INSERT OR IGNORE INTO thoughts VALUES (?, ?, ?, ?, ?, ?, ?)", records)

    def thoughts(self, judge: int, metric: int, first: int, stop: int) -> dict[int, Thought]:
        """Read the thoughts before the outcomes `first` up to, but not including, `stop`."""
        rows = self._read(f"SELECT row, tokens, text, ending FROM thoughts {_RANGE}", judge, metric, first, stop)
        return {row: thought_of(*columns) for row, *columns in rows}

    def _read(self, statement: str, *values: object) -> list[Any]:
        with plain_errors(self.path):
            return self._connection.execute(statement, values).fetchall()

    def sync(self) -> None:
        """Flush committed data to disk, so that it survives a power cut."""
        self._synced = time.monotonic()
        log = self.path.with_name(f"{self.path.name}-wal")
        if log.exists():
            hint = "Make room on that disk and resume; what was committed is kept."
            with telling(OutputError, str(log), hint), log.open("r+b", buffering=0) as file:
                os.fsync(file.fileno())

    def outcomes(self, judge: int, metric: int, first: int, stop: int) -> dict[int, Outcome]:
        """Read the outcomes of rows `first` up to, but not including, `stop`: ``{row: outcome}``."""
        rows = self._read(f"SELECT {_SEALED}, checksum FROM outcomes {_RANGE}", judge, metric, first, stop)
        return {values[2]: self._outcome(values, sealed) for *values, sealed in rows}

    def _outcome(self, values: Sequence[Any], sealed: Any) -> Outcome:
        if seal(*values) != sealed:
            judge, metric, row = (number + 1 for number in values[:3])
            raise OutputError(
                f"{self.path} is damaged: row {row}, judge {judge}, metric {metric} has a checksum of other figures",
                hint=DAMAGE_REMEDY,
            )
        return from_columns(tuple(values[4:]))

    def take_damage_back(self) -> list[tuple[Any, Any, Any]]:
        """Delete what is not as it was stored, so that it is computed again; return judge, metric and row of each."""
        damaged: dict[str, list[tuple[Any, Any, Any]]] = {}
        with plain_errors(self.path):
            for name in sorted({*_PLACES, *_tables(self._connection)}):  # one that is gone is an error
                rows = self._connection.execute(f"SELECT * FROM {name}")
                damaged[name] = [tuple(values[:3]) for *values, sealed in rows if seal(*values) != sealed]
            damaged["outcomes"] += damaged["thoughts"]  # what was read after them, too
            if any(damaged.values()):
                with transaction(self._connection):
                    for name, keys in damaged.items():
                        where = f"judge IS ? AND metric IS ? AND {_PLACES[name]} IS ?"
                        # Not by the index: a damaged key is not where the index looks for it.
                        self._connection.executemany(f"DELETE FROM {name} NOT INDEXED WHERE +{where}", keys)
        return damaged["outcomes"]

    def origins(self, judge: int, metric: int, first: int, stop: int) -> dict[int, int]:
        """Return the origin of every existing row."""
        return dict(self._read(f"SELECT row, origin FROM outcomes {_RANGE}", judge, metric, first, stop))

    def is_planned(self, judge: int, metric: int, window: int) -> bool:
        """Whether `begin_window` was called for a window."""
        asked = "SELECT 1 FROM plans WHERE judge = ? AND metric = ? AND window = ?"
        return bool(self._read(asked, judge, metric, window))

    def counts(self, judge: int, window_rows: Sequence[int]) -> dict[tuple[int, int], int]:
        """Count finished rows: ``{(metric, window): rows}``, given the rows per window of every metric."""
        asked = "SELECT row / ?, COUNT(*) FROM outcomes WHERE judge = ? AND metric = ? GROUP BY 1"
        return {
            (metric, window): count
            for metric, rows in enumerate(window_rows)
            for window, count in self._read(asked, rows, judge, metric)
        }

    def is_empty(self) -> bool:
        """Whether there are neither finished rows nor thoughts about any."""
        return not self._read("SELECT 1 FROM outcomes UNION ALL SELECT 1 FROM thoughts LIMIT 1")

    def totals(self, judge: int, metric: int) -> dict[str, int]:
        """Count rows by origin and by whether there is a score, and tokens as planned."""
        of = "WHERE judge = ? AND metric = ?"
        counted = f"SELECT COUNT(*), SUM(error IS NOT NULL), SUM(origin = {Origin.CACHE}) FROM outcomes {of}"
        (rows,) = self._read(counted, judge, metric)
        (tokens,) = self._read(f"SELECT SUM(prompt_tokens), SUM(planned_tokens) FROM plans {of}", judge, metric)
        names = ("rows", "unscored", "from_cache", "prompt_tokens", "planned_tokens")
        return {name: int(value or 0) for name, value in zip(names, (*rows, *tokens), strict=True)}

    def take_over(
        self, shares: Iterable[tuple[Path, str, int]], outcomes: Sequence[Sequence[int]], refused: Mapping[int, Cause]
    ) -> None:
        """Hold what finished shares have stored and nothing else, by one transaction.

        Of each share this is the store, the share's own identifier, and the number of rows before it. `outcomes` is the
        number of those that a row has, for each judge and metric. Rows that are `refused`, by their reasons, have no
        figures, whatever a share has computed.
        """
        with plain_errors(self.path), transaction(self._connection):
            for name in _tables(self._connection):
                self._connection.execute(f"DELETE FROM {name}")
            windows = 0
            for path, run, before in shares:
                windows = self._take_share(path, run, before, outcomes, refused, windows)

    def _take_share(
        self,
        path: Path,
        run: str,
        before: int,
        outcomes: Sequence[Sequence[int]],
        refused: Mapping[int, Cause],
        windows: int,
    ) -> int:
        """Take all tables of a share whose first window is `windows`; return the number of the next window."""
        stop = windows
        with closing(_connect_finished(path)) as source, plain_errors(path):
            if source.execute("SELECT value FROM about WHERE key = 'run'").fetchone() != (run,):
                raise OutputError(
                    f"{path} belongs to another run than the manifest beside it",
                    hint="Put back the file that belongs here, or score that share again.",
                )
            for name in _tables(source):
                rows = source.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3")
                while some := rows.fetchmany(_TAKEN_AT_ONCE):
                    moved: list[list[Any]] = []
                    for *values, sealed in some:
                        if seal(*values) != sealed:
                            judge, metric, row = (one + 1 if isinstance(one, int) else one for one in values[:3])
                            raise OutputError(
                                f"{path} is damaged: row {row}, judge {judge}, metric {metric}",
                                hint=f"Resume that share, which computes it again: geval-local resume {path.parent}",
                            )
                        if _PLACES[name] == "window":
                            values[2] += windows
                            stop = max(stop, values[2] + 1)
                        else:
                            each = outcomes[values[0]][values[1]]
                            values[2] += before * each
                            reason = refused.get(values[2] // each)
                            if reason is not None and name != "outcomes":
                                continue
                            if reason is not None and values[4] is not None:
                                values[3:] = [Origin.INPUT, *to_columns(Outcome(error=reason))]
                        moved.append([*values, seal(*values)])
                    if moved:
                        marks = ", ".join("?" * len(moved[0]))
                        self._connection.executemany(f"INSERT OR IGNORE INTO {name} VALUES ({marks})", moved)
        return stop

    def take_errors_back(self) -> int:
        """Delete unscored rows so that they are scored again; return their number."""
        with plain_errors(self.path), transaction(self._connection):
            return self._connection.execute("DELETE FROM outcomes WHERE error IS NOT NULL").rowcount


def _connect_finished(path: Path) -> sqlite3.Connection:
    """Open the database of a run that has ended, which may be on a disk that nobody can write to."""
    log = path.with_name(f"{path.name}-wal")
    if not path.is_file() or (log.is_file() and log.stat().st_size):
        raise OutputError(
            f"{path} is {'in use, or its run was killed at its end' if path.is_file() else 'missing'}",
            hint=f"Resume that share first: geval-local resume {path.parent}",
        )
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)


def _tables(connection: sqlite3.Connection) -> list[str]:
    """Name the tables of what a run has stored; each has its entry in `_PLACES`."""
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'about'")
    return sorted(name for (name,) in found)


def to_columns(outcome: Outcome) -> tuple[Any, ...]:
    """Convert an outcome: log-probabilities as little-endian float64, the key as signed int64.

    JSON: other tokens, a list; what was written, an object. A reason is behind its code: ``too_long: the prompt ...``.
    """
    key, error = outcome.sample_key, outcome.error
    other = outcome.other_tokens or outcome.written
    return (
        None if outcome.label_logprobs is None else outcome.label_logprobs.astype("<f8", copy=False).tobytes(),
        json.dumps(other, ensure_ascii=True) if other else None,
        outcome.prompt_tokens,
        outcome.dropped_tokens,
        key - (1 << 64) if key >= 1 << 63 else key,
        None if error is None else f"{code_of(error)}: {error}".encode("utf-8", "backslashreplace").decode(),
    )


def from_columns(columns: tuple[Any, ...]) -> Outcome:
    """Convert columns back to an outcome, once their checksum has shown that they are as they were stored."""
    logprobs, other, prompt_tokens, dropped_tokens, key, error = columns
    code, _, why = (error or "").partition(": ")
    reason = None if error is None else Cause(why, ErrorCode.read(code))
    more = [] if other is None else json.loads(other)
    if isinstance(more, dict):
        return Outcome(prompt_tokens=prompt_tokens, error=reason, written=more)
    values = None if logprobs is None else np.frombuffer(logprobs, dtype="<f8")
    tokens = tuple((token, p) for token, p in more)
    return Outcome(values, tokens, prompt_tokens, dropped_tokens, key % (1 << 64), reason)
