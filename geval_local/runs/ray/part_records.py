"""Outcomes as rows of a Parquet table and back, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from geval_local.runs.store import checked_outcome
from geval_local.score import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PartRow", "from_table", "to_table"]


class PartRow(NamedTuple):
    """One row's outcome on one metric."""

    row: int
    metric: int
    origin: int
    outcome: Outcome


def to_table(rows: Iterable[PartRow], about: Mapping[bytes, str]) -> pa.Table:
    """Write outcomes as a table.

    Parameters
    ----------
    rows : iterable of PartRow
        In the order of the table.
    about : mapping of bytes to str
        The table's own metadata.
    """
    import pyarrow as pa

    schema = pa.schema(
        [
            ("row", pa.int64()),
            ("metric", pa.int32()),
            ("origin", pa.int8()),
            ("label_logprobs", pa.list_(pa.float64())),
            ("other_tokens", pa.string()),
            ("prompt_tokens", pa.int64()),
            ("dropped_tokens", pa.int64()),
            ("sample_key", pa.uint64()),
            ("error", pa.string()),
        ],
        metadata=dict(about),
    )
    return pa.Table.from_pylist([_to_record(entry) for entry in rows], schema=schema)


def from_table(table: pa.Table) -> list[PartRow]:
    """Read outcomes back.

    Raises
    ------
    KeyError, TypeError, ValueError
        If the table is none of `to_table`.
    """
    return [_from_record(record) for record in table.to_pylist()]


def _to_record(entry: PartRow) -> dict[str, Any]:
    outcome = entry.outcome
    return {
        "row": entry.row,
        "metric": entry.metric,
        "origin": entry.origin,
        "label_logprobs": None if outcome.label_logprobs is None else outcome.label_logprobs.tolist(),
        "other_tokens": json.dumps(outcome.other_tokens) if outcome.other_tokens else None,
        "prompt_tokens": outcome.prompt_tokens,
        "dropped_tokens": outcome.dropped_tokens,
        "sample_key": outcome.sample_key,
        "error": None if outcome.error is None else outcome.error.encode("utf-8", "backslashreplace").decode(),
    }


def _from_record(record: Mapping[str, Any]) -> PartRow:
    logprobs = record["label_logprobs"]
    return PartRow(
        int(record["row"]),
        int(record["metric"]),
        int(record["origin"]),
        checked_outcome(
            None if logprobs is None else np.array(logprobs, dtype=np.float64),
            record["other_tokens"],
            int(record["prompt_tokens"]),
            int(record["dropped_tokens"]),
            int(record["sample_key"]),
            record["error"],
        ),
    )
