"""Attempts: how often a shard has been begun on this machine, so that one which kills its worker does not kill all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from geval_local.errors import JudgeError
from geval_local.runs.ray.shards import Shard

__all__ = ["MOST_ATTEMPTS", "attempt"]

#: A worker may die for reasons of its own; a shard that loses so many is the reason.
MOST_ATTEMPTS = 4


@contextmanager
def attempt(session: str, shard: Shard) -> Iterator[None]:
    """Count an attempt, and forget it once it has ended in any way but the death of the process.

    Parameters
    ----------
    session : str
        Tells attempts of different drivers apart.
    shard : Shard
        What is attempted.

    Raises
    ------
    JudgeError
        If `MOST_ATTEMPTS` were made before.
    """
    folder = Path(tempfile.gettempdir()) / f"geval-local-{session}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{shard.window}-{shard.number}"
    with path.open("ab") as file:
        file.write(b".")
        count = file.tell()
    try:
        if count > MOST_ATTEMPTS:
            rows = f"{shard.rows[0] + 1} to {shard.rows[-1] + 1}"
            raise JudgeError(
                f"{MOST_ATTEMPTS} workers were killed while they scored the same rows (among rows {rows})",
                hint="A worker that is killed is often one that ran out of memory: fewer --workers, or smaller "
                "--batch-tokens, may help.",
            )
        yield
    finally:
        path.unlink(missing_ok=True)
        with suppress(OSError):
            os.rmdir(folder)  # stays while other shards are at work
