"""A run on a cluster: windows are cut into shards, workers score them, this process writes parts and results."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.errors import Interrupted
from geval_local.io.samples import read_samples
from geval_local.metric import Metric
from geval_local.runs.executor import Window, read_windows
from geval_local.runs.files import check_unchanged
from geval_local.runs.manifest import JudgeRecord, Manifest
from geval_local.runs.ray.cluster import score_shards
from geval_local.runs.ray.own_cluster import connected
from geval_local.runs.ray.parts import PartStore
from geval_local.runs.ray.shards import Shard, cut_shards
from geval_local.runs.ray.steps import steps_by_worker
from geval_local.runs.ray.worker import ShardResult, ShardTask
from geval_local.runs.run import Identity, Run, ScoredRow
from geval_local.steps import OnSteps

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["DistributedRun"]


class DistributedRun(Run):
    """A run on a cluster, its outcomes in a `PartStore`; see `Run`.

    Only this process writes into the run directory, so the cluster needs no common file system, and what a worker does
    twice is kept once. The figures are those of a run in one process but for the rounding of other batch shapes.
    """

    store: PartStore

    def __init__(self, manifest: Manifest, store: PartStore, directory: Path | None) -> None:
        super().__init__(manifest, store, directory)

    def rows(
        self,
        load: Callable[[JudgeRecord], Judge],
        *,
        advance: Callable[[int], object] = lambda count: None,
        should_stop: Callable[[], bool] = lambda: False,
        on_judge: Callable[[JudgeRecord], object] = lambda judge: None,
        on_steps: OnSteps = lambda metric, tokens: None,
    ) -> Iterator[ScoredRow]:
        """Score what is missing, judge after judge, then give out every row; see `Run.rows`."""
        for number, record in enumerate(self.manifest.judges):
            check_unchanged(self.manifest.input)
            with closing(self._tasks(number, advance)) as tasks:
                first = next(tasks, None)
                if first is None and not record.complete:
                    # Nothing to score, but what the judge is has to be told anew.
                    first = ShardTask(Shard(0, 0, ()), (), [()] * len(self.metrics))
                if first is None:
                    on_judge(record)
                else:
                    self._score(number, chain([first], tasks), load, advance, should_stop, on_judge, on_steps)
            record.complete = True
            self.save()
        for window in self._windows():
            yield from self.scored(window)
            if should_stop():
                raise Interrupted

    def _windows(self) -> Iterator[Window]:
        """Read the input once; the number of its rows is known afterwards."""
        settings, rows = self.manifest.settings, 0
        samples = read_samples(self.manifest.input.path, limit=settings.limit, fields=settings.fields)
        for window in read_windows(samples, settings.window, [], lambda metric, number, count: True):
            yield window
            rows = window.stop
        check_unchanged(self.manifest.input, through=True)
        self.manifest.input.rows = rows

    def _tasks(self, number: int, advance: Callable[[int], object]) -> Generator[ShardTask, None, None]:
        """Say what a judge still owes, shard by shard."""
        forms = [list(metric.fields) for metric in self.metrics]
        for window in self._windows():
            for shard in cut_shards(window.samples, forms, window=window.number, first=window.first):
                places = self.store.missing(number, shard)
                left = sum(map(len, places))
                advance(len(shard.rows) * len(self.metrics) - left)
                if left:
                    yield ShardTask(shard, [window.samples[row - window.first] for row in shard.rows], places)

    def _score(
        self,
        number: int,
        tasks: Iterator[ShardTask],
        load: Callable[[JudgeRecord], Judge],
        advance: Callable[[int], object],
        should_stop: Callable[[], bool],
        on_judge: Callable[[JudgeRecord], object],
        on_steps: OnSteps,
    ) -> None:
        """Have tasks done, and write the part of a shard as soon as its result is in."""
        settings, record = self.manifest.settings, self.manifest.judges[number]
        known: list[Identity] = []
        with connected(settings.address, settings.workers):
            metrics = self._with_steps(record, load, on_steps)
            scored = score_shards(tasks, load, record, metrics, settings.estimator, settings.workers)
            with closing(scored) as results:
                for result in results:
                    if result.judge not in known:  # every worker is asked, not only the first
                        self.meet(record, result.judge, metrics)
                        if not known:
                            on_judge(record)
                        known.append(result.judge)
                    self._keep(number, result)
                    advance(len(result.rows))
                    if should_stop():
                        raise Interrupted

    def _keep(self, number: int, result: ShardResult) -> None:
        if result.rows:
            signatures = [result.judge.signatures[metric.name] for metric in self.metrics]
            self.store.add(number, result.shard, result.rows, result.plans, signatures)

    def _with_steps(self, record: JudgeRecord, load: Callable[[JudgeRecord], Judge], on_steps: OnSteps) -> list[Metric]:
        """Give metrics the steps that this run began with, or their first ones."""
        if record.definitions:
            return [
                metric.with_steps(used.steps, used.steps_provenance) if metric.needs_steps else metric
                for metric in self.metrics
                for used in (Metric.model_validate(record.definitions[metric.name]),)
            ]
        if not any(metric.needs_steps for metric in self.metrics):
            return self.metrics
        return steps_by_worker(load, record, self.metrics, self.manifest.settings.workers, on_steps)
