"""A run in this process: read, prepare, plan, execute what is missing, commit, judge after judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.errors import Interrupted, OutputError
from geval_local.io.samples import read_samples
from geval_local.metric import Metric
from geval_local.runs.cache import OutcomeCache
from geval_local.runs.collector import LONG_RUN, collecting_rarely
from geval_local.runs.executor import Worker
from geval_local.runs.files import check_unchanged
from geval_local.runs.manifest import JudgeRecord, Manifest
from geval_local.runs.run import Identity, Run, ScoredRow
from geval_local.runs.store import Store
from geval_local.runs.windows import Preparer, Window, read_windows, run_ahead
from geval_local.score import Estimator
from geval_local.steps import OnSteps, read_pinned

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["LocalRun"]


class LocalRun(Run):
    """A run in this process, its outcomes in a `Store`; see `Run`."""

    store: Store

    def __init__(self, manifest: Manifest, store: Store, directory: Path | None) -> None:
        super().__init__(manifest, store, directory)
        self._cache = OutcomeCache() if manifest.settings.use_cache else None

    def rows(
        self,
        load: Callable[[JudgeRecord], Judge],
        *,
        advance: Callable[[int], object] = lambda count: None,
        should_stop: Callable[[], bool] = lambda: False,
        on_judge: Callable[[JudgeRecord], object] = lambda judge: None,
        on_steps: OnSteps = lambda metric, tokens: None,
    ) -> Iterator[ScoredRow]:
        """Score what is missing, and give out every row while the last judge is at work; see `Run.rows`."""
        last = len(self.manifest.judges) - 1
        for number, record in enumerate(self.manifest.judges):
            judge = None if record.complete else load(record)
            try:
                if judge is not None:
                    self._meet(record, judge, on_steps)
                on_judge(record)
                if judge is None and number < last:
                    advance((self.manifest.input.rows or 0) * len(self.metrics))
                    continue
                for window in self._windows(number, judge, advance, should_stop):
                    if number == last:
                        yield from self.scored(window)
            finally:
                if judge is not None and number < last:
                    from geval_local.models.memory import release_memory

                    del judge
                    release_memory()

    def _windows(
        self,
        number: int,
        judge: Judge | None,
        advance: Callable[[int], object],
        should_stop: Callable[[], bool],
    ) -> Iterator[Window]:
        """Go through the input once, with one judge; windows come out with all their outcomes committed."""
        check_unchanged(self.manifest.input)
        settings, record = self.manifest.settings, self.manifest.judges[number]
        counts = self.store.counts(number, settings.window)
        preparers: list[Preparer | None] = [None] * len(self.metrics)
        worker = None
        if judge is not None:
            definitions = (Metric.model_validate(record.definitions[metric.name]) for metric in self.metrics)
            preparers = [partial(judge.prepare, metric) for metric in definitions]
            worker = Worker(self.store, self._cache, judge, number, advance=advance, should_stop=should_stop)
        windows = read_windows(
            read_samples(self.manifest.input.path, limit=settings.limit, fields=settings.fields),
            settings.window,
            preparers,
            lambda metric, window, rows: counts.get((metric, window), 0) == rows,
        )
        rows = 0
        with closing(run_ahead(windows)) as ahead, ExitStack() as whole:
            for window in ahead:
                if rows < LONG_RUN <= window.stop:
                    whole.enter_context(collecting_rarely())
                for metric, prepared in enumerate(window.prepared):
                    if prepared is None or worker is None:
                        advance(len(window.samples))
                    else:
                        worker.execute(window, metric, prepared)
                rows = window.stop
                yield window
                if should_stop():
                    raise Interrupted
        check_unchanged(self.manifest.input, through=True)
        self.store.sync()
        self.manifest.input.rows = rows
        record.complete = True
        self.save()

    def _meet(self, record: JudgeRecord, judge: Judge, on_steps: OnSteps) -> None:
        """Write down what a judge is, or make sure that it is still the one that the run began with."""
        metrics = [self._with_steps(record, judge, metric, on_steps) for metric in self.metrics]
        estimator = Estimator(**self.manifest.settings.estimator)
        signatures = {metric.name: str(judge.signature(metric, estimator)) for metric in metrics}
        self.meet(
            record, Identity(judge.fingerprint, judge.engine.name, judge.engine.batch_tokens, signatures), metrics
        )
        assert record.batch_tokens is not None
        judge.engine.batch_tokens = judge.engine.limit = record.batch_tokens

    def _with_steps(self, record: JudgeRecord, judge: Judge, metric: Metric, on_steps: OnSteps) -> Metric:
        """Give a metric the steps that this run began with."""
        if metric.name not in record.definitions or not metric.needs_steps:
            return judge.with_steps(metric, on_steps=on_steps)
        used = Metric.model_validate(record.definitions[metric.name])
        pinned = read_pinned(metric, judge.fingerprint)
        if pinned is not None and pinned.steps != used.steps:
            raise OutputError(
                f"the evaluation steps of {metric.name} that are pinned for {record.name} are not those that this run "
                "began with",
                hint="Put the pinned steps back, or score into another directory.",
            )
        return metric.with_steps(used.steps, used.steps_provenance)
