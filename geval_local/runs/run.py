"""A run: read, prepare, plan, execute what is missing, commit; rows come out scored and in input order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.derive import derive_scores
from geval_local.errors import OutputError
from geval_local.metric import Metric
from geval_local.runs.cache import OutcomeCache
from geval_local.runs.files import check_unchanged, write_atomically
from geval_local.runs.manifest import JudgeRecord, Manifest, definition, now, write_manifest
from geval_local.runs.store import Store
from geval_local.runs.windows import Preparer, Window, read_windows, run_ahead
from geval_local.runs.work import Interrupted, Worker
from geval_local.samples import Sample, read_samples
from geval_local.score import Estimator, Score
from geval_local.signature import signature_differences
from geval_local.steps import read_pinned

if TYPE_CHECKING:
    from geval_local.judge import Judge

__all__ = ["Run", "ScoredRow"]

#: A row with its scores, by metric, or by ``metric@judge`` where there are several judges.
ScoredRow = tuple[Sample, dict[str, Score]]


class Run:
    """A run that is open; see `geval_local.runs.directory.open_run`.

    Parameters
    ----------
    manifest : Manifest
        What the run is.
    store : Store
        What it has done.
    directory : Path or None
        Where the manifest is kept; None for a run that leaves nothing behind.
    """

    def __init__(self, manifest: Manifest, store: Store, directory: Path | None) -> None:
        self.manifest = manifest
        self.store = store
        self.directory = directory
        self.metrics = [Metric.model_validate(one) for one in manifest.settings.metrics]
        self._cache = OutcomeCache() if manifest.settings.use_cache else None

    @property
    def keys(self) -> list[str]:
        """Names of the results, in the order of the output: metrics, or ``metric@judge`` with several judges."""
        return [key for key, _, _ in self.results()]

    def results(self) -> list[tuple[str, JudgeRecord, Metric]]:
        """List the results with their judges and metrics, in the order of the output."""
        return [(self._key(judge, metric), judge, metric) for judge in self.manifest.judges for metric in self.metrics]

    def _key(self, judge: JudgeRecord, metric: Metric) -> str:
        return metric.name if len(self.manifest.judges) == 1 else f"{metric.name}@{judge.name}"

    def rows(
        self,
        load: Callable[[JudgeRecord], Judge],
        *,
        advance: Callable[[int], object] = lambda count: None,
        should_stop: Callable[[], bool] = lambda: False,
        on_judge: Callable[[JudgeRecord], object] = lambda judge: None,
    ) -> Iterator[ScoredRow]:
        """Score what is missing, judge after judge, and give out every row while the last judge is at work.

        Parameters
        ----------
        load : callable
            Loads a judge. It is not called for a judge that has nothing left to do.
        advance : callable
            Called with the number of (row, metric) pairs finished.
        should_stop : callable
            Asked behind every pack.
        on_judge : callable
            Called when it is known what a judge is, before it is put to work.

        Raises
        ------
        Interrupted
            If the run is to stop.
        OutputError
            If the store fails, or a judge is not what it was when the run began.
        DataError
            If the input cannot be read, or changes while it is read.
        """
        last = len(self.manifest.judges) - 1
        for number, record in enumerate(self.manifest.judges):
            judge = None if record.complete else load(record)
            try:
                if judge is not None:
                    self._meet(record, judge)
                on_judge(record)
                if judge is None and number < last:
                    advance((self.manifest.input.rows or 0) * len(self.metrics))
                    continue
                for window in self._windows(number, judge, advance, should_stop):
                    if number == last:
                        yield from self._scored(window)
            finally:
                if judge is not None and number < last:
                    from geval_local.inference.memory import release_memory

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
            read_samples(self.manifest.input.path, limit=settings.limit),
            settings.window,
            preparers,
            lambda metric, window, rows: counts.get((metric, window), 0) == rows,
        )
        rows = 0
        with closing(run_ahead(windows)) as ahead:
            for window in ahead:
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

    def _scored(self, window: Window) -> Iterator[ScoredRow]:
        """Rebuild the scores of a window from the store."""
        settings = self.manifest.settings
        estimator = Estimator(**settings.estimator)
        columns = []
        for number, judge in enumerate(self.manifest.judges):
            for place, metric in enumerate(self.metrics):
                outcomes = self.store.outcomes(number, place, window.first, window.stop)
                threshold = metric.threshold if settings.threshold is None else settings.threshold
                listed = [outcomes[row] for row in range(window.first, window.stop)]
                scores = derive_scores(listed, metric, estimator=estimator, threshold=threshold)
                columns.append((self._key(judge, metric), scores))
        for row, sample in enumerate(window.samples):
            yield sample, {key: scores[row] for key, scores in columns}

    def _meet(self, record: JudgeRecord, judge: Judge) -> None:
        """Write down what a judge is, or make sure that it is still the one that the run began with."""
        metrics = [self._with_steps(record, judge, metric) for metric in self.metrics]
        estimator = Estimator(**self.manifest.settings.estimator)
        signatures = {metric.name: str(judge.signature(metric, estimator)) for metric in metrics}
        if record.fingerprint is not None:
            changed = (
                [] if record.engine == judge.engine.name else [f"engine was {record.engine}, is {judge.engine.name}"]
            )
            for name, before in record.signatures.items():
                differing = signature_differences(before, signatures[name])
                changed += [f"{key} was {old}, is {new}" for key, (old, new) in differing.items() if key != "estimator"]
            if changed:
                what = "; ".join(dict.fromkeys(changed))
                raise OutputError(
                    f"the judge {record.name} is not as it was when this run began: {what}",
                    hint="Put it back as it was, or score into another directory.",
                )
            assert record.batch_tokens is not None
            judge.engine.batch_tokens = judge.engine.limit = record.batch_tokens
        record.fingerprint, record.engine = judge.fingerprint, judge.engine.name
        record.batch_tokens, record.signatures = judge.engine.batch_tokens, signatures
        record.definitions = {metric.name: definition(metric) for metric in metrics}
        self.save()
        self._write_steps(record, metrics)

    def _with_steps(self, record: JudgeRecord, judge: Judge, metric: Metric) -> Metric:
        """Give a metric the steps that this run began with."""
        if metric.name not in record.definitions or not metric.needs_steps:
            return judge.with_steps(metric)
        used = Metric.model_validate(record.definitions[metric.name])
        pinned = read_pinned(metric, judge.fingerprint)
        if pinned is not None and pinned.steps != used.steps:
            raise OutputError(
                f"the evaluation steps of {metric.name} that are pinned for {record.name} are not those that this run "
                "began with",
                hint="Put the pinned steps back, or score into another directory.",
            )
        return metric.with_steps(used.steps, used.steps_provenance)

    def _write_steps(self, record: JudgeRecord, metrics: list[Metric]) -> None:
        if self.directory is None:
            return
        for metric in metrics:
            if metric.steps:
                folder = self.directory / "steps"
                folder.mkdir(exist_ok=True)
                name = self._key(record, metric).replace("/", ".")
                write_atomically(folder / f"{name}.yaml", metric.to_yaml())

    def save(self) -> None:
        """Write the manifest."""
        if self.directory is not None:
            write_manifest(self.directory, self.manifest)

    def finish(self, files: list[str]) -> None:
        """Write down that the results are out, with their counts."""
        results = {}
        for number, judge in enumerate(self.manifest.judges):
            for place, metric in enumerate(self.metrics):
                results[self._key(judge, metric)] = {
                    "signature": judge.signatures.get(metric.name),
                    "definition": judge.definitions.get(metric.name),
                    **self.store.totals(number, place),
                }
        self.manifest.results = results
        self.manifest.files = files
        self.manifest.ended = now()
        self.save()
