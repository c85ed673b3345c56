"""The store of a run: every finished row, committed unit by unit, in one SQLite file.

Contract: a row that was committed is never changed, except that ``--retry-errors`` takes rows without a score back. A
process may die at any moment; what was committed is there, and nothing else is. Rows are numbered from 0 in the order
of the input, judges and metrics in the order of the manifest.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from geval_local.errors import OutputError
from geval_local.runs.database import connect, migrate, plain_errors, transaction
from geval_local.runs.records import COLUMNS, from_columns, to_columns
from geval_local.runs.schema import MIGRATIONS, Origin, PlanRecord
from geval_local.score import Outcome

__all__ = ["DAMAGE_REMEDY", "Store"]

DAMAGE_REMEDY = (
    "Restore it from a backup, or delete the directory and run again: figures already computed come from the cache "
    "where that is in use."
)

#: A power cut loses what was committed in the last so many seconds; a process that dies loses nothing committed.
SYNC_SECONDS = 1.0
#: Rows that one statement inserts, where there are as many. SQLite takes 999 values at least.
_ROWS_AT_ONCE = 32
_INSERT = f"INSERT OR IGNORE INTO outcomes (judge, metric, row, origin, {COLUMNS}) VALUES"
_MARKS = "(?,?,?,?,?,?,?,?,?,?)"


class Store:
    """Outcomes of a run; use it as a context manager.

    Parameters
    ----------
    path : Path or None
        The file; None for a temporary store that goes with the process.
    run : str
        The run's own identifier. A new file takes it, an existing one must have it.
    is_new : bool
        Whether the file is to be created.

    Raises
    ------
    OutputError
        If the file is missing, cut off, of a newer schema, or of another run; from any method if it cannot be read or
        written.
    """

    def __init__(self, path: Path | None, run: str, *, is_new: bool) -> None:
        self.path = path or Path("the temporary store")
        self._file = path
        self._synced = time.monotonic()
        if path is not None and not is_new and not (path.is_file() and path.stat().st_size):
            raise OutputError(
                f"{path} is {'empty' if path.is_file() else 'missing'}, although its run has begun",
                hint="Restore it from a backup, or delete the directory and run again.",
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
        migrate(self._connection, MIGRATIONS, self.path)
        if is_new:
            self._connection.execute("INSERT INTO about VALUES ('run', ?)", (run,))
        found = self._connection.execute("SELECT value FROM about WHERE key = 'run'").fetchone()
        if found is None or found[0] != run:
            raise OutputError(
                f"{self.path} belongs to another run than the manifest beside it",
                hint="Put back the file that belongs here, or delete the directory and run again.",
            )

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        with suppress(sqlite3.Error):  # a full disk does not let the log be folded in; it stays beside the file
            self._connection.close()

    def begin_window(
        self, judge: int, metric: int, window: int, plan: PlanRecord, given: Iterable[tuple[int, int, Outcome]]
    ) -> None:
        """Write down that a window has been planned, with the rows that need no model: ``(row, origin, outcome)``.

        From then on what is planned is fixed, whatever a cache may hold later.
        """
        with plain_errors(self.path), transaction(self._connection):
            self._insert(judge, metric, given)
            self._connection.execute(
                "INSERT OR REPLACE INTO plans VALUES (?, ?, ?, ?, ?)", (judge, metric, window, *plan)
            )

    def add(self, judge: int, metric: int, outcomes: Iterable[tuple[int, Outcome]]) -> None:
        """Commit the rows of a unit; a row that is there already stays as it is."""
        with plain_errors(self.path):
            with transaction(self._connection):
                self._insert(judge, metric, ((row, Origin.MODEL, outcome) for row, outcome in outcomes))
            if time.monotonic() - self._synced > SYNC_SECONDS:
                self.sync()

    def _insert(self, judge: int, metric: int, rows: Iterable[tuple[int, int, Outcome]]) -> None:
        records = [(judge, metric, row, origin, *to_columns(outcome)) for row, origin, outcome in rows]
        together = len(records) - len(records) % _ROWS_AT_ONCE
        # SQLite gives the interpreter up at every step; many rows in a step leave the reader fewer times to take it.
        for start in range(0, together, _ROWS_AT_ONCE):
            values = [value for record in records[start : start + _ROWS_AT_ONCE] for value in record]
            self._connection.execute(f"{_INSERT} {', '.join([_MARKS] * _ROWS_AT_ONCE)}", values)
        self._connection.executemany(f"{_INSERT} {_MARKS}", records[together:])

    def sync(self) -> None:
        """Bring what was committed to the disk itself, so that it survives a power cut."""
        self._synced = time.monotonic()
        log = None if self._file is None else self._file.with_name(f"{self._file.name}-wal")
        if log is not None and log.exists():
            try:
                descriptor = os.open(log, os.O_RDWR)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise OutputError(
                    f"{log}: {error.strerror}", hint="Make room on that disk and resume; what was committed is kept."
                ) from error

    def outcomes(self, judge: int, metric: int, first: int, stop: int) -> dict[int, Outcome]:
        """Read the outcomes of rows `first` up to, but not including, `stop`; by row."""
        with plain_errors(self.path):
            rows = self._connection.execute(
                f"SELECT row, {COLUMNS} FROM outcomes WHERE judge = ? AND metric = ? AND row >= ? AND row < ?",
                (judge, metric, first, stop),
            ).fetchall()
        return {row: self._outcome(judge, metric, row, columns) for row, *columns in rows}

    def _outcome(self, judge: int, metric: int, row: int, columns: Sequence[Any]) -> Outcome:
        try:
            return from_columns(tuple(columns))
        except (TypeError, ValueError) as error:
            raise self._damaged(f"row {row + 1}, judge {judge + 1}, metric {metric + 1}: {error}") from error

    def _damaged(self, problem: str) -> OutputError:
        return OutputError(f"{self.path} is damaged: {problem}", hint=DAMAGE_REMEDY)

    def verify(self, labels: Sequence[int], complete: Sequence[bool], rows: int | None) -> None:
        """Make sure, before a judge is loaded for it, that what is there can be used.

        Parameters
        ----------
        labels : sequence of int
            Number of labels, per metric.
        complete : sequence of bool
            Whether every row has its outcome, per judge.
        rows : int or None
            Rows of the input; None as long as that is not known.

        Raises
        ------
        OutputError
            If an outcome is damaged or of no judge or metric of this run, or if a row is missing.
        """
        counts: dict[tuple[int, int], int] = {}
        with plain_errors(self.path):
            for judge, metric, row, origin, *columns in self._connection.execute(
                f"SELECT judge, metric, row, origin, {COLUMNS} FROM outcomes"
            ):
                numbers = (judge, metric, row, origin)
                if not all(isinstance(number, int) and number >= 0 for number in numbers) or not (
                    judge < len(complete) and metric < len(labels) and origin <= Origin.INPUT
                ):
                    raise self._damaged(f"it has a row of no part of this run: {numbers}")
                outcome = self._outcome(judge, metric, row, columns)
                if outcome.label_logprobs is not None and len(outcome.label_logprobs) != labels[metric]:
                    found = len(outcome.label_logprobs)
                    raise self._damaged(f"row {row + 1} has {found} log-probabilities for {labels[metric]} labels")
                counts[judge, metric] = counts.get((judge, metric), 0) + 1
                if complete[judge] and rows is not None and row >= rows:
                    raise self._damaged(f"it has a row {row + 1} of an input of {rows}")
            for judge, is_complete in enumerate(complete):
                for metric in range(len(labels)):
                    if is_complete and rows is not None and counts.get((judge, metric), 0) != rows:
                        lost = rows - counts.get((judge, metric), 0)
                        raise self._damaged(f"{lost} of {rows} rows are missing, although all were finished")
            for table in ("plans", "limits", "retries"):
                for record in self._connection.execute(f"SELECT * FROM {table}"):
                    if not all(isinstance(number, int) for number in record):
                        raise self._damaged(f"a record of its {table} is no record of whole numbers: {record}")

    def origins(self, judge: int, metric: int, first: int, stop: int) -> dict[int, int]:
        """Say which rows there are, and where they came from."""
        with plain_errors(self.path):
            return dict(
                self._connection.execute(
                    "SELECT row, origin FROM outcomes WHERE judge = ? AND metric = ? AND row >= ? AND row < ?",
                    (judge, metric, first, stop),
                )
            )

    def is_planned(self, judge: int, metric: int, window: int) -> bool:
        """Whether `begin_window` has been called for a window."""
        with plain_errors(self.path):
            found = self._connection.execute(
                "SELECT 1 FROM plans WHERE judge = ? AND metric = ? AND window = ?", (judge, metric, window)
            )
            return found.fetchone() is not None

    def counts(self, judge: int, window_rows: int) -> dict[tuple[int, int], int]:
        """Count finished rows: ``{(metric, window): rows}``."""
        with plain_errors(self.path):
            found = self._connection.execute(
                "SELECT metric, row / ?, COUNT(*) FROM outcomes WHERE judge = ? GROUP BY 1, 2", (window_rows, judge)
            )
            return {(metric, window): count for metric, window, count in found}

    def is_empty(self) -> bool:
        """Whether no row is finished."""
        with plain_errors(self.path):
            return self._connection.execute("SELECT 1 FROM outcomes LIMIT 1").fetchone() is None

    def totals(self, judge: int, metric: int) -> dict[str, int]:
        """Count rows by origin and by whether there is a score, and tokens as planned."""
        with plain_errors(self.path):
            rows = self._connection.execute(
                "SELECT COUNT(*), SUM(error IS NOT NULL), SUM(origin = ?) FROM outcomes WHERE judge = ? AND metric = ?",
                (Origin.CACHE, judge, metric),
            ).fetchone()
            tokens = self._connection.execute(
                "SELECT SUM(prompt_tokens), SUM(planned_tokens) FROM plans WHERE judge = ? AND metric = ?",
                (judge, metric),
            ).fetchone()
        names = ("rows", "unscored", "from_cache", "prompt_tokens", "planned_tokens")
        return {name: int(value or 0) for name, value in zip(names, (*rows, *tokens), strict=True)}

    def take_errors_back(self, judges: Sequence[int]) -> int:
        """Make rows without a score missing again; return how many there were."""
        marks = ",".join("?" * len(judges))
        with plain_errors(self.path), transaction(self._connection):
            done = self._connection.execute(
                f"DELETE FROM outcomes WHERE error IS NOT NULL AND judge IN ({marks})", tuple(judges)
            )
            return done.rowcount
