"""Kept scores of model baselines: one file per column, named by everything it depends on.

The key of a column is everything it depends on: content of the model, texts, direction, versions. Each key has its own
file, so columns cannot be confused or overwritten.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from geval_local.cli.meta_eval.kept_runs import kept_name
from geval_local.cli.output.console import note
from geval_local.errors import DataError
from geval_local.files import save_text

__all__ = ["Column", "KeptColumns", "text_hash"]

FORMAT = "geval-local baseline"
VERSION = 1
_HEX_DIGITS = 16


@dataclass(frozen=True)
class Column:
    """Scores of a baseline for every row.

    Attributes
    ----------
    figures : list of mapping
        ``score`` and, where it is None, ``error``; one per row, in order.
    facts : dict of str to int
        Other facts about the model: its layer, the number of truncated texts.
    is_final : bool
        Whether another attempt would give the same result; otherwise it is not kept.
    """

    figures: list[Mapping[str, Any]]
    facts: dict[str, int]
    is_final: bool = True


@dataclass(frozen=True)
class KeptColumns:
    """Scores of baselines over the rows of one file.

    Attributes
    ----------
    source : Path
        The file that the rows are from.
    directory : Path or None
        Where columns are kept; None keeps nothing.
    part : str
        Name of the subset of rows; empty for all.
    """

    source: Path
    directory: Path | None
    part: str = ""

    def column(self, name: str, key: Mapping[str, str], compute: Callable[[], Column]) -> Column:
        """Return the column kept under the same key, or compute and keep it.

        Parameters
        ----------
        name : str
            Name of the baseline and its model, for the file name and for messages.
        key : mapping of str to str
            Everything that the figures depend on, including the texts.
        compute : callable
            Called if no column is kept.

        Raises
        ------
        DataError
            If the kept file is damaged.
        OutputError
            If the column cannot be written.
        """
        if self.directory is None:
            return compute()
        digest = _digest(dict(key))
        path = self.directory / kept_name(self.source, name, self.part, digest, suffix=".json")
        if path.exists():
            note(f"{name}: taken from {path}, of the same model and texts")
            return _read(path, dict(key))
        column = compute()
        if column.is_final:
            record = {"format": FORMAT, "version": VERSION, "key": dict(key), **asdict(column)}
            del record["is_final"]
            save_text(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")
        return column


def text_hash(texts: Sequence[object]) -> str:
    """Hash texts in their order, 16 hex digits."""
    return _digest(list(texts))


def _digest(record: object) -> str:
    canonical = json.dumps(record, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_HEX_DIGITS]


def _read(path: Path, key: dict[str, str]) -> Column:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if (record["format"], record["version"], record["key"]) != (FORMAT, VERSION, key):
            raise ValueError("it was made under another key than its name says")
        figures: list[Mapping[str, Any]] = [
            {"score": None, "error": str(one["error"])} if one["score"] is None else {"score": float(one["score"])}
            for one in record["figures"]
        ]
        return Column(figures, {str(name): int(value) for name, value in record["facts"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged: {error}", hint="Delete it; the scores are then computed again.") from error
