"""Distributed runs for tests: a cluster in this process, and the directory of parts read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from run_kit import METRICS

from geval_local.io.parts import PartRows
from geval_local.metric import Metric
from geval_local.options import JudgeOptions
from geval_local.ray import driver
from geval_local.ray.driver import PartsRun, wanted_parts
from geval_local.ray.gather import rows_of_block, write_bucket
from geval_local.ray.job import PartReport
from geval_local.ray.survey import bundled, survey
from geval_local.ray.worker import BlockScorer, KilledError
from geval_local.runs.events import RunEvents
from geval_local.runs.manifest import JudgeRecord, definition
from geval_local.runs.settings import Settings
from geval_local.testing import MockEngine, MockJudge


def mock(record: JudgeRecord) -> MockJudge:
    return MockJudge(MockEngine(batch_tokens=6000), name=record.name, options=JudgeOptions(**record.choice))


class Workers:
    """Stands in for the cluster: one worker after the other in this process, reports in the wrong order.

    A worker dies over a part named in `deadly`.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.scored: list[str] = []
        self.surveyed: list[str] = []
        self.deadly: set[str] = set()
        self.connections = 0
        self.gathered = 0
        patch.setattr(driver, "connected", self._connected)
        patch.setattr(driver, "score_blocks", self._score)
        patch.setattr(driver, "survey_files", self._survey)
        patch.setattr(driver, "gather_blocks", self._gather)
        patch.setattr(driver, "steps_by_worker", lambda load, record, metrics, workers, on_steps: metrics)

    def _connected(self, address, workers):
        self.connections += 1
        return nullcontext()

    def _survey(self, files, cut):
        for bundle in reversed(list(bundled(files)) if cut and cut.files > 1 else [[file] for file in files]):
            self.surveyed += [file.place.name for file in bundle]
            yield from survey(bundle, cut)

    def _gather(self, blocks, job):
        self.gathered += 1
        numbered = reversed(list(enumerate(blocks)))
        rows = pa.Table.from_pylist([row for one in numbered for row in rows_of_block({"item": one}, job, len(blocks))])
        for bucket in sorted(set(rows.column("bucket").to_pylist()), reverse=True):
            yield from write_bucket(rows.filter(pc.field("bucket") == bucket), job)["item"]

    def _score(self, items, load, job):
        given = [BlockScorer(load, job) for _ in range(job.manifest.settings.ray_workers or 1)]
        known, files = ([item for item in items if bool(item.digest) == is_known] for is_known in (True, False))
        for number, block in enumerate(chain(reversed(known), driver.survey_files(files, job.cut))):
            if block.part in self.deadly:
                yield PartReport(block, error=KilledError("4 workers were killed while they scored it"))
                continue
            report = given[number % len(given)]({"item": block})["item"]
            if report.judge is not None or report.error is not None:
                self.scored.append(block.part)
            yield report


def carry_out(
    directory: Path | str,
    given: list[Path | str],
    load: Callable = mock,
    *,
    stop_after: int | None = None,
    retry_errors: bool = False,
    overwrite: bool = False,
    rows: int | None = 12,
    metrics: list[Metric] = METRICS,
    judge: str = "mock",
    thinking: Mapping[str, Any] = MappingProxyType({}),
    **settings,
) -> PartsRun:
    """Run to the end, or until so many blocks are finished."""

    class Events(RunEvents):
        asked = 0

        def should_stop(self) -> bool:
            Events.asked += 1
            return stop_after is not None and directory_of(directory) >= stop_after

    base = {"window": rows or 4096, "metrics": [definition(metric) for metric in metrics], "use_cache": False}
    asked = Settings(**(base | {"workers": "ray:2", "block_rows": rows} | settings))
    wanted = wanted_parts(asked, given, [JudgeRecord(name=judge, choice={"name": judge, **thinking})], metrics)
    run = PartsRun(wanted, str(directory), load, {}, Events())
    run.summaries = run.run(retry_errors=retry_errors, overwrite=overwrite).summaries
    return run


def directory_of(directory: Path | str) -> int:
    """Count the parts that are there."""
    return len(list(Path(directory).glob("part-*.parquet")))


def rows_of(directory: Path | str) -> list[dict]:
    return [dict(row) for row in PartRows(Path(directory))]


__all__ = ["Workers", "carry_out", "directory_of", "mock", "rows_of"]
