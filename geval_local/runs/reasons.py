"""Reasons of a result file's rows, written to a file of their own: chosen rows, batch by batch, resumable."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geval_local.errors import ConfigurationError, OutputError
from geval_local.files import replacing, temporary_path
from geval_local.io.ownership import check_place
from geval_local.io.samples import Sample
from geval_local.metric import Metric
from geval_local.prompt import REASON_REQUEST
from geval_local.runs.own_files import locked

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

FORMAT = "geval-local reasons"
#: Rows that are handed to the judge together; it batches them by length.
ROWS_IN_HAND = 32


@dataclass(frozen=True)
class ScoredRow:
    """A row whose score is to be explained."""

    #: The row.
    sample: Sample
    #: Its figures on the metric, as the result file holds them.
    figures: Mapping[str, Any]

    @property
    def label(self) -> str:
        """The most likely label."""
        return str(self.figures["mode"])


@dataclass(frozen=True)
class ReasonTask:
    """What reasons are asked for."""

    #: With the evaluation steps of the scores.
    metric: Metric
    rows: Sequence[ScoredRow]
    #: Content hash of the result file.
    results_sha256: str
    #: Most tokens of a reason.
    max_new_tokens: int

    def digest(self, signature: str) -> str:
        """Hash all that the reasons depend on, 16 hex digits."""
        numbers = [row.sample.row for row in self.rows]
        record = [self.results_sha256, self.metric.hash, self.metric.steps_hash, signature, numbers]
        text = json.dumps([*record, self.max_new_tokens, REASON_REQUEST])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def chosen_rows(
    rows: Sequence[ScoredRow], *, lowest: int | None = None, entropy: float | None = None, everything: bool = False
) -> list[ScoredRow]:
    """Choose the scored rows that get a reason, in input order."""
    if (lowest is not None) + (entropy is not None) + everything != 1:
        raise ConfigurationError(
            "choose the rows that get a reason", hint="Add one of `lowest=N`, `entropy=NATS` and `everything=True`."
        )
    scored = [row for row in rows if _figure(row, "score") is not None and row.figures.get("mode") is not None]
    if lowest is not None:
        ranked = sorted(range(len(scored)), key=lambda place: (_figure(scored[place], "score"), place))
        chosen = [scored[place] for place in sorted(ranked[:lowest])]
    elif entropy is not None:
        chosen = [row for row in scored if (_figure(row, "entropy") or 0.0) >= entropy]
    else:
        chosen = scored
    if not chosen:
        which = "no row has a score" if not scored else f"none of {len(scored)} scored rows has an entropy that high"
        raise ConfigurationError(
            f"there is no row to give a reason for: {which}", hint="Choose others, or `everything=True`."
        )
    return chosen


def _figure(row: ScoredRow, name: str) -> float | None:
    value = row.figures.get(name)
    try:
        number = None if value is None or value == "" else float(value)
    except (TypeError, ValueError):
        return None
    return number if number is not None and math.isfinite(number) else None


def write_reason_file(
    output: Path,
    task: ReasonTask,
    judge: Judge,
    *,
    on_reason: Callable[[int], object] = lambda done: None,
) -> list[dict[str, Any]]:
    """Write the reasons of a task as JSON lines, in input order.

    Finished reasons are gathered in a hidden file beside `output`, whose name holds the hash of the task: the same
    task goes on where it was interrupted, and another one starts anew.
    """
    signature = str(judge.signature(task.metric))
    partial = temporary_path(output, f"reasons-{task.digest(signature)}")
    with _held(partial):
        done = _read_partial(partial)
        on_reason(len(done))
        waiting = [row for row in task.rows if row.sample.row not in done]
        for record in _written(partial, task, judge, signature, waiting):
            done[record["row"]] = record
            on_reason(len(done))
        records = [done[row.sample.row] for row in task.rows]
        try:
            with replacing(output) as file:
                file.writelines(_line(record) for record in records)
            partial.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write {output}: {error.strerror or error}") from error
    return records


def _written(
    partial: Path,
    task: ReasonTask,
    judge: Judge,
    signature: str,
    waiting: Sequence[ScoredRow],
) -> Iterator[dict[str, Any]]:
    """Write what is still missing, each reason on the disk before it is yielded."""
    from geval_local.judge.reason_writer import write_reasons

    for start in range(0, len(waiting), ROWS_IN_HAND):
        rows = waiting[start : start + ROWS_IN_HAND]
        samples, labels = [row.sample for row in rows], [row.label for row in rows]
        for place, reason in write_reasons(judge, task.metric, samples, labels, max_new_tokens=task.max_new_tokens):
            row = rows[place]
            identity = row.sample.fields.get("id")
            record = {
                "row": row.sample.row,
                **({} if identity is None else {"id": identity}),
                "metric": task.metric.name,
                "score": _figure(row, "score"),
                "label": reason.label,
                "reason": reason.text or None,
                "is_complete": reason.is_complete,
                "cites_text": reason.cites,
                "error": reason.error,
                "prompt_sha256": reason.prompt_sha256 or None,
                "signature": signature,
            }
            _append(partial, record)
            yield record


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=True).encode() + b"\n"


def _append(partial: Path, record: Mapping[str, Any]) -> None:
    try:
        with partial.open("ab") as file:
            file.write(_line(record))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OutputError(f"cannot write {partial}: {error.strerror or error}") from error


def _read_partial(partial: Path) -> dict[int, dict[str, Any]]:
    """Read the finished reasons of an interrupted task; a line that a kill has cut off is dropped from the file."""
    check_place(partial)
    if not partial.exists():
        return {}
    found, whole = {}, 0
    content = partial.read_bytes()
    for line in content.splitlines(keepends=True):
        try:
            record = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("row"), int):
            break
        found[record["row"]] = record
        whole += len(line)
    if whole < len(content):
        os.truncate(partial, whole)
    return found


@contextmanager
def _held(partial: Path) -> Iterator[None]:
    """Hold a task for this process."""
    path = partial.with_name(f"{partial.name}.lock")
    busy = OutputError(f"another process writes the same reasons to {partial.parent}", hint="Wait for it.")
    with locked(path, lambda: busy):
        try:
            yield
        finally:
            # While it is held: a process that opened it before finds that it has no name any more, and tries again.
            with suppress(OSError):
                path.unlink()
