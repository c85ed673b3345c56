"""Parts of a distributed run, for tests."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from geval_local.runs.ray.part_records import PartRow
from geval_local.runs.ray.parts import PartStore
from geval_local.runs.ray.shards import Shard
from geval_local.runs.store import Origin, PlanRecord
from geval_local.score import Outcome

pq = pytest.importorskip("pyarrow.parquet", reason="parts are Parquet files")

SHARD = Shard(2, 1, (20, 22, 25))
PLANS = [PlanRecord(100, 40), PlanRecord(30, 30)]


def outcome(row: int) -> Outcome:
    logprobs = np.array([-0.1 * row, -np.inf, np.nextafter(-1.0, 0.0)])
    return Outcome(logprobs, (("\u2581tok\n", 0.25),), 7, 1, (1 << 64) - row)


def part(rows=(20, 22, 25), metrics=(0, 1), make=outcome) -> list[PartRow]:
    return [PartRow(row, metric, Origin.MODEL, make(row + metric)) for row in rows for metric in metrics]


def failed(row: int) -> Outcome:
    return Outcome(error=f"row {row} is bad \udc80", prompt_tokens=3)


def store(tmp_path: Path, run: str = "run") -> PartStore:
    return PartStore(tmp_path / "parts", run, 10, 2)


def add(target: PartStore, rows: list[PartRow], shard: Shard = SHARD) -> None:
    target.add(0, shard, rows, PLANS, ["one", "two"])


def plain(one: Outcome) -> tuple:
    logprobs, *rest = astuple(one)
    return (None if logprobs is None else logprobs.tobytes(), *rest)
