"""Parts: the outcomes of a distributed run, one Parquet file per shard.

Contract: one process writes, the driver, which holds the run's lock. A part is there whole or not at all, and a row
that is in one is never changed, except that ``--retry-errors`` takes rows without a score out. Names tell judge, window
and shard, so that the parts there are say what is left to do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from geval_local.errors import ConfigurationError, OutputError
from geval_local.files import temporary_path
from geval_local.runs.files import is_plain_file, sweep
from geval_local.runs.ray.part_records import PartRow, from_table, to_table
from geval_local.runs.ray.shards import Shard
from geval_local.runs.store import PlanRecord
from geval_local.score import Outcome

__all__ = ["PARTS_NAME", "PartStore"]

PARTS_NAME = "parts"
_KEY = b"geval-local part"


class PartStore:
    """The parts of a run.

    Parameters
    ----------
    directory : Path
        Where they are; need not exist.
    run : str
        The run's own identifier.
    window_rows : int
        Rows per window.
    metrics : int
        Number of metrics.

    Raises
    ------
    ConfigurationError
        If pyarrow is not installed.
    OutputError
        From any method, if a part is damaged, of another run, or cannot be written.
    """

    def __init__(self, directory: Path, run: str, window_rows: int, metrics: int) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                "a distributed run needs Ray and pyarrow, which are not installed",
                hint="pip install 'geval-local[ray]'",
            ) from error
        self.directory = directory
        self._run = run
        self._window_rows = window_rows
        self._metrics = metrics
        self._shown: tuple[int, dict[tuple[int, int], dict[int, Outcome]]] = (-1, {})

    def path(self, judge: int, shard: Shard) -> Path:
        """Name the part of a shard."""
        return self.directory / f"{judge}-{shard.window:07d}-{shard.number:04d}.parquet"

    def missing(self, judge: int, shard: Shard) -> list[list[int]]:
        """List what is left of a shard: per metric, the places of the rows in it that have no outcome."""
        path = self.path(judge, shard)
        if not path.exists():
            return [list(range(len(shard.rows))) for _ in range(self._metrics)]
        if sum(about["rows"] for about in self._about(path, shard)) == len(shard.rows) * self._metrics:
            return [[] for _ in range(self._metrics)]
        there = {(entry.row, entry.metric) for entry in self._read(path)}
        return [
            [place for place, row in enumerate(shard.rows) if (row, metric) not in there]
            for metric in range(self._metrics)
        ]

    def add(
        self, judge: int, shard: Shard, rows: Iterable[PartRow], plans: Sequence[PlanRecord], signatures: Sequence[str]
    ) -> None:
        """Write the part of a shard, or complete it; a row that is there already stays as it is.

        Parameters
        ----------
        judge, shard
            Whose part it is.
        rows : iterable of PartRow
            The outcomes.
        plans : sequence of PlanRecord
            Tokens, per metric.
        signatures : sequence of str
            What the outcomes depend on, per metric; written into the file.
        """
        path = self.path(judge, shard)
        kept: list[PartRow] = []
        if path.exists():
            kept = self._read(path)
            plans = [PlanRecord(about["prompt_tokens"], about["planned_tokens"]) for about in self._about(path)]
        there = {(entry.row, entry.metric) for entry in kept}
        new = (entry for entry in rows if (entry.row, entry.metric) not in there)
        self._write(path, _span(shard), [*kept, *new], plans, signatures)

    def outcomes(self, judge: int, metric: int, first: int, stop: int) -> dict[int, Outcome]:
        """Read the outcomes of rows `first` up to, but not including, `stop`, all of one window; by row."""
        window = first // self._window_rows
        number, shown = self._shown
        if number != window:
            shown = {}
            self._shown = (window, shown)
        if (judge, metric) not in shown:
            shown.update({(judge, other): {} for other in range(self._metrics)})
            for path in self._paths(f"{judge}-{window:07d}-*"):
                for entry in self._read(path):
                    shown[judge, entry.metric][entry.row] = entry.outcome
        return {row: outcome for row, outcome in shown[judge, metric].items() if first <= row < stop}

    def totals(self, judge: int, metric: int) -> dict[str, int]:
        """Count rows by origin and by whether there is a score, and tokens as planned."""
        names = ("rows", "unscored", "from_cache", "prompt_tokens", "planned_tokens")
        counts = dict.fromkeys(names, 0)
        for path in self._paths(f"{judge}-*"):
            about = self._about(path)[metric]
            for name in names:
                counts[name] += int(about.get(name, 0))
        return counts

    def take_errors_back(self, judges: Sequence[int]) -> int:
        """Make rows without a score missing again; return how many there were."""
        taken = 0
        for judge in judges:
            for path in self._paths(f"{judge}-*"):
                abouts = self._about(path)
                if any(about["unscored"] for about in abouts):
                    rows = self._read(path)
                    scored = [entry for entry in rows if entry.outcome.error is None]
                    taken += len(rows) - len(scored)
                    plans = [PlanRecord(about["prompt_tokens"], about["planned_tokens"]) for about in abouts]
                    signatures = [str(about["signature"]) for about in abouts]
                    self._write(path, self._record(path)["shard"], scored, plans, signatures)
        return taken

    def is_empty(self) -> bool:
        """Whether no shard is finished."""
        return not self._paths("*")

    def verify(self, labels: Sequence[int], complete: Sequence[bool], rows: Sequence[int] | None) -> None:
        """Make sure, before a judge is loaded for them, that the parts can be used; see `Store.verify`.

        A row that is missing is no damage here: its shard is given out again.
        """
        for path in self._paths("*"):
            found = self._read(path)
            abouts = self._about(path)
            for metric, about in enumerate(abouts):
                if about["rows"] != sum(entry.metric == metric for entry in found):
                    raise _damaged(path, ValueError("it has not as many rows as it says"))
            for entry in found:
                logprobs = entry.outcome.label_logprobs
                if logprobs is not None and len(logprobs) != labels[entry.metric]:
                    raise _damaged(path, ValueError(f"row {entry.row + 1} has {len(logprobs)} log-probabilities"))

    def remove(self) -> None:
        """Remove the parts of this run, and what was left half-written of them; other files stay."""
        for path in self._paths("*"):
            with suppress(OutputError, OSError):
                self._record(path)
                path.unlink()
        sweep(self.directory, self._run)
        with suppress(OSError):
            self.directory.rmdir()  # stays while there is anything else in it

    def close(self) -> None:
        """Let go of what was read."""
        self._shown = (-1, {})

    def _paths(self, pattern: str) -> list[Path]:
        # A link is none of ours, and a link for the whole directory may lead anywhere.
        if self.directory.is_symlink():
            raise OutputError(
                f"{self.directory} is a link, and no run makes links", hint="Put the directory itself in its place."
            )
        return sorted(path for path in self.directory.glob(f"{pattern}.parquet") if is_plain_file(path))

    def _about(self, path: Path, shard: Shard | None = None) -> list[dict[str, Any]]:
        """Read what a part says of itself, per metric; make sure that it is of this run, and of this shard."""
        record = self._record(path)
        if shard is not None and record["shard"] != _span(shard):
            raise OutputError(
                f"{path} holds other rows than its shard: another version of geval-local cut the input",
                hint="Resume with the version that began the run, or score into another directory.",
            )
        metrics: list[dict[str, Any]] = record["metrics"]
        return metrics

    def _record(self, path: Path) -> dict[str, Any]:
        import pyarrow.parquet as pq

        try:
            record = json.loads((pq.read_metadata(path).metadata or {})[_KEY])
            self._check_record(record)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise _damaged(path, error) from error
        if record["run"] != self._run:
            raise OutputError(
                f"{path} belongs to another run than the manifest beside it",
                hint="Put back the files that belong here, or delete the directory and run again.",
            )
        return dict(record)

    def _check_record(self, record: Any) -> None:
        """Make sure that a part says of itself what `_write` lets it say."""
        first, last, count = record["shard"]
        abouts = record["metrics"]
        names = ("rows", "unscored", "prompt_tokens", "planned_tokens")
        numbers = [first, last, count, *(about[name] for about in abouts for name in names)]
        texts = [record["run"], *(about["signature"] for about in abouts)]
        if len(abouts) != self._metrics or not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError("what it says of itself does not hold together")
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("what it says of itself does not hold together")

    def _read(self, path: Path) -> list[PartRow]:
        import pyarrow.parquet as pq

        self._about(path)
        try:
            # Not `read_table`, which would take the part for one file of a data set.
            rows = from_table(pq.ParquetFile(path).read())
            if any(entry.metric not in range(self._metrics) for entry in rows):
                raise ValueError("it has rows of no metric of this run")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, error) from error
        return rows

    def _write(
        self,
        path: Path,
        shard: list[int],
        rows: Iterable[PartRow],
        plans: Sequence[PlanRecord],
        signatures: Sequence[str],
    ) -> None:
        import pyarrow.parquet as pq

        ordered = sorted(rows, key=lambda entry: (entry.metric, entry.row))
        metrics = [
            {
                "signature": signature,
                "rows": sum(entry.metric == metric for entry in ordered),
                "unscored": sum(entry.metric == metric and entry.outcome.error is not None for entry in ordered),
                **plan._asdict(),
            }
            for metric, (plan, signature) in enumerate(zip(plans, signatures, strict=True))
        ]
        about = {"run": self._run, "shard": shard, "metrics": metrics}
        table = to_table(ordered, {_KEY: json.dumps(about)})
        partial = temporary_path(path, self._run)
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            partial.unlink(missing_ok=True)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                pq.write_table(table, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise OutputError(
                f"cannot write {path}: {error.strerror or error}",
                hint="Is the disk full? Make room and resume; the parts that are there are kept.",
            ) from error


def _damaged(path: Path, error: Exception) -> OutputError:
    return OutputError(
        f"{path} is damaged or cut off ({str(error).splitlines()[0] if str(error) else type(error).__name__})",
        hint="Delete it and resume; its rows are scored again.",
    )


def _span(shard: Shard) -> list[int]:
    """Tell the rows of a shard from those of another cut."""
    return [shard.rows[0], shard.rows[-1], len(shard.rows)]
