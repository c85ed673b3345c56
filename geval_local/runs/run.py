"""A run: its manifest, the identity of its judges, and its scored rows in input order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from geval_local.engine.window import window_piece
from geval_local.errors import Interrupted, OutputError
from geval_local.files import safe_file_name
from geval_local.io.input_files import read_input
from geval_local.io.pairs import pair_samples
from geval_local.io.result_manifest import manifest_path, rows_path
from geval_local.io.results import numbered, read_result_rows
from geval_local.io.samples import Sample
from geval_local.io.shares import read_share
from geval_local.judge.steps import OnSteps, read_pinned
from geval_local.metric import Metric
from geval_local.runs.cache import OutcomeCache
from geval_local.runs.executor import Preparer, Window, read_windows, run_ahead
from geval_local.runs.forms import Result, asked_of
from geval_local.runs.input_file import check_unchanged
from geval_local.runs.manifest import STEPS_NAME, JudgeRecord, RunManifest, definition, now, write_manifest
from geval_local.runs.own_files import OwnFiles
from geval_local.runs.store import Store
from geval_local.score import Outcome, mean_over_thoughts
from geval_local.signature import signature_differences, with_canary_of

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

#: A row with its results, by metric or question, or by ``metric@judge`` where there are several judges.
ScoredRow = tuple[Sample, dict[str, Result]]


def export_name(format_name: str, stem: str = "scores") -> str:
    """Name the file of a run directory that holds the results in a format; for the stem see `Settings.stem`."""
    return f"{stem}.{format_name}"


def planned_names(manifest: RunManifest) -> list[str]:
    """List the files that a run is to write into its directory besides its store, as far as names can be told."""
    names = [export_name(one, manifest.settings.stem) for one in manifest.settings.formats]
    rows = [rows_path(name).name for name in names if name.endswith(".csv")]
    if manifest.settings.output is None:
        names += [manifest_path(name).name for name in names]
    names += rows
    scored = manifest.settings.metrics if manifest.settings.questions is None else []
    with_steps = {metric["name"] for metric in scored if metric.get("steps") != []}
    return [*names, *(name for (_, metric), name in steps_names(manifest).items() if metric in with_steps)]


def _result_key(manifest: RunManifest, judge: str, metric: str) -> str:
    """Return the key of a judge's results on a metric: the metric, or ``metric@judge`` with several judges."""
    return metric if len(manifest.judges) == 1 else f"{metric}@{judge}"


def steps_names(manifest: RunManifest) -> dict[tuple[str, str], str]:
    """Return the file names of the steps used: ``{(judge, metric): name}``, distinct even ignoring case."""
    names: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for judge in manifest.judges:
        for metric in manifest.settings.metrics:
            key = _result_key(manifest, judge.name, metric["name"])
            name = safe_file_name(key)
            if name.lower() in taken:
                name = safe_file_name(f"{key}\0")
            taken.add(name.lower())
            names[judge.name, metric["name"]] = f"{STEPS_NAME}/{name}.yaml"
    return names


def meet(record: JudgeRecord, found: JudgeRecord) -> None:
    """Record what a judge is, or check that it is the one that the run started with."""
    if record.fingerprint is not None:
        changed = [] if record.engine == found.engine else [f"engine was {record.engine}, is {found.engine}"]
        for name, before in record.signatures.items():
            differing = signature_differences(before, found.signatures[name])
            changed += [f"{key} was {old}, is {new}" for key, (old, new) in differing.items() if key != "estimator"]
        if record.fingerprint != found.fingerprint and not any(one.startswith("judge was") for one in changed):
            changed.append(f"fingerprint was {record.fingerprint}, is {found.fingerprint}")
        if changed:
            what = "; ".join(dict.fromkeys(changed))
            raise OutputError(
                f"the judge {record.name} is not as it was when this run began: {what}",
                hint="Put it back as it was, or score into another directory.",
            )
    else:
        record.batch_tokens = found.batch_tokens
    known = record.signatures
    record.signatures = {name: with_canary_of(one, known.get(name, "")) for name, one in found.signatures.items()}
    record.fingerprint, record.engine = found.fingerprint, found.engine


class Run:
    """An open run; see `geval_local.runs.directory.open_run`."""

    def __init__(self, manifest: RunManifest, store: Store, directory: Path | None) -> None:
        self.manifest = manifest
        self.store = store
        self.directory = directory
        self.asked = asked_of(manifest.settings)
        self.metrics = self.asked.metrics
        self._cache = OutcomeCache(in_use=manifest.settings.use_cache)

    def thoughts(self, judge: int) -> int:
        """How many outcomes a form has by a judge: one, or one after each thought."""
        return 1 if self.manifest.settings.reasons is not None else self.manifest.judges[judge].thoughts

    def outcomes(self, judge: int) -> list[int]:
        """How many outcomes a row has by a judge, for each metric."""
        return [metric.forms * self.thoughts(judge) for metric in self.metrics]

    def samples(self) -> Iterator[Sample]:
        """Read the input from its beginning: its rows, those chosen, or the pairs of them that are to be judged."""
        settings, file = self.manifest.settings, self.manifest.input
        if settings.chosen is not None:
            chosen = set(settings.chosen)
            return (
                Sample(row, number, file.name, None, settings.fields)
                for number, row in numbered(read_result_rows(file.path))
                if not chosen or number in chosen
            )
        share = file.share
        if share is not None and share.samples is None:
            return read_share(share, settings)
        samples = read_input(file.paths, settings)
        if settings.pairs is not None:
            samples = pair_samples(samples, settings.pairs, settings.documents)
        return samples if share is None or share.samples is None else islice(samples, *share.samples)

    @property
    def keys(self) -> list[str]:
        """Names of the results, in the order of the output: by judge where there are several, see `results`."""
        return [key for key, _, _ in self.results()]

    def results(self) -> list[tuple[str, JudgeRecord, int]]:
        """List the results in the order of the output: name (``metric@judge`` with several judges), judge, place."""
        return [
            (_result_key(self.manifest, judge.name, name), judge, place)
            for judge in self.manifest.judges
            for place, name in enumerate(self.asked.names)
        ]

    def scored(self, window: Window) -> Iterator[ScoredRow]:
        """Rebuild the results of a window from the store, row by row."""
        columns: list[Sequence[Result]] = []
        for number in range(len(self.manifest.judges)):
            outcomes = []
            for place, (metric, each) in enumerate(zip(self.metrics, self.outcomes(number), strict=True)):
                forms = range(window.first * each, window.stop * each)
                found = self.store.outcomes(number, place, forms.start, forms.stop)
                lost = [form // each for form in forms if form not in found]
                if lost:
                    check_unchanged(self.manifest.input)  # else rows were added to it
                    raise OutputError(
                        f"the store of {self.directory} has lost the outcome of row {lost[0] + 1} on {metric.name}",
                        hint="Restore the directory from a backup, or delete it and run again.",
                    )
                outcomes.append(self._thought(number, place, [found[form] for form in forms], forms.start))
            columns += self.asked.results(outcomes)
        keys = self.keys
        for sample, *results in zip(window.samples, *columns, strict=True):
            yield sample, dict(zip(keys, results, strict=True))

    def _thought(self, judge: int, metric: int, outcomes: list[Outcome], first: int) -> list[Outcome]:
        """Bring the outcomes after the thoughts of a judge to one per form; `first` is the number of the first."""
        if "think" not in self.manifest.judges[judge].choice or self.manifest.settings.reasons is not None:
            return outcomes
        drawn = self.store.thoughts(judge, metric, first, first + len(outcomes))
        if not self.manifest.settings.keep_thoughts:
            drawn = {form: replace(thought, text="") for form, thought in drawn.items()}
        thoughts = [drawn.get(first + place) for place in range(len(outcomes))]
        return mean_over_thoughts(outcomes, thoughts, self.thoughts(judge))

    def write_steps(self, record: JudgeRecord, metrics: Sequence[Metric]) -> None:
        """Write the evaluation steps as used into the run's directory."""
        if self.directory is None:
            return
        names = steps_names(self.manifest)
        for metric in metrics:
            if metric.steps:
                self.own_files.write_text(names[record.name, metric.name], metric.to_yaml())

    @property
    def own_files(self) -> OwnFiles:
        """The files that the run may replace and remove in its directory."""
        assert self.directory is not None
        return OwnFiles(self.directory, self.manifest)

    def save(self) -> None:
        """Write the manifest."""
        if self.directory is not None:
            write_manifest(self.directory, self.manifest)

    def finish(self, files: list[str]) -> None:
        """Record that the results are written."""
        self.manifest.files = files
        self.manifest.ended = now()
        self.save()

    def rows(
        self,
        load: Callable[[JudgeRecord], Judge],
        *,
        advance: Callable[[int], object] = lambda count: None,
        should_stop: Callable[[], bool] = lambda: False,
        on_judge: Callable[[JudgeRecord], object] = lambda judge: None,
        on_steps: OnSteps = lambda metric, tokens: None,
        on_write: Callable[[], object] = lambda: None,
        close: Callable[[Judge], object] = lambda judge: None,
    ) -> Iterator[ScoredRow]:
        """Score missing rows, judge by judge, and yield every row; `close` takes a judge whose work is done.

        Rows are yielded while the last judge is scoring. Where it has finished rows already, what is missing comes
        first: to rebuild every row before the first missing one would keep the model waiting.
        """
        last = len(self.manifest.judges) - 1
        for number, record in enumerate(self.manifest.judges):
            judge = None if record.complete else load(record)
            try:
                if judge is not None:
                    self.meet(record, judge, on_steps)
                on_judge(record)
                if judge is None and number < last:
                    advance((self.manifest.input.rows or 0) * sum(self.outcomes(number)))
                    continue
                is_computed = number < last
                if judge is not None and not is_computed:
                    is_computed = any(self.store.totals(number, place)["rows"] for place in range(len(self.metrics)))
                for window in self._windows(number, judge, advance, should_stop):
                    if not is_computed:
                        yield from self.scored(window)
                if number == last and is_computed:
                    on_write()
                    for window in self._windows(number, None, lambda count: None, should_stop):
                        yield from self.scored(window)
            finally:
                if judge is not None:
                    close(judge)

    def compute(
        self,
        number: int,
        load: Callable[[JudgeRecord], Judge],
        *,
        advance: Callable[[int], object],
        should_stop: Callable[[], bool],
        on_judge: Callable[[JudgeRecord, Judge], object],
    ) -> None:
        """Score all rows by one judge, and derive nothing from their outcomes."""
        record = self.manifest.judges[number]
        if record.complete:
            return
        judge = load(record)
        self.meet(record, judge)
        on_judge(record, judge)
        for _ in self._windows(number, judge, advance, should_stop):
            pass

    def _windows(
        self,
        number: int,
        judge: Judge | None,
        advance: Callable[[int], object],
        should_stop: Callable[[], bool],
    ) -> Iterator[Window]:
        """Score the input with one judge; yield windows after all their outcomes are committed."""
        check_unchanged(self.manifest.input)
        settings, record = self.manifest.settings, self.manifest.judges[number]
        piece = window_piece(settings.window)
        each = self.outcomes(number)
        counts = self.store.counts(number, [piece * one for one in each])
        groups = self.asked.groups

        def is_done(group: int, first: int, stop: int) -> bool:
            return all(
                sum(counts.get((metric, place), 0) for place in range(first // piece, -(-stop // piece)))
                == (stop - first) * each[metric]
                for metric in groups[group]
            )

        preparers: list[Preparer | None] = [None] * len(groups)
        worker = None
        if judge is not None:
            definitions = [Metric.model_validate(record.definitions[metric.name]) for metric in self.metrics]
            preparers = [*self.asked.preparers(judge, definitions)]
            from geval_local.engine.window import regrow  # brings torch

            regrow(judge.engine)
            worker = self.asked.worker(self.store, self._cache, judge, number, advance=advance, should_stop=should_stop)
        share = self.manifest.input.share
        before = 0 if share is None else share.windows
        windows = read_windows(self.samples(), settings.window, preparers, is_done, before)
        rows = 0
        with closing(run_ahead(windows)) as ahead:
            for window in ahead:
                for metrics, prepared in zip(groups, window.prepared, strict=True):
                    if prepared is None or worker is None:
                        advance(len(window.samples) * sum(each[metric] for metric in metrics))
                    else:
                        worker.execute(window, metrics, prepared)
                rows = window.stop
                yield window
                if should_stop():
                    raise Interrupted
        check_unchanged(self.manifest.input, through=True)
        self.store.sync()
        self.manifest.input.rows = rows
        record.complete = True
        self.save()

    def meet(self, record: JudgeRecord, judge: Judge, on_steps: OnSteps = lambda metric, tokens: None) -> None:
        """Record what a judge is, or check that it is the one that the run started with."""
        metrics = [self._with_steps(record, judge, metric, on_steps) for metric in self.metrics]
        found = record.model_copy()
        found.fingerprint, found.engine = judge.fingerprint, judge.engine.name
        found.batch_tokens = judge.engine.batch_tokens
        found.signatures = {one.name: str(judge.signature(one, self.manifest.settings.estimator)) for one in metrics}
        meet(record, found)
        record.definitions = {metric.name: definition(metric) for metric in metrics}
        self.save()
        self.write_steps(record, metrics)
        assert record.batch_tokens is not None
        judge.engine.batch_tokens = judge.engine.limit = record.batch_tokens

    def _with_steps(self, record: JudgeRecord, judge: Judge, metric: Metric, on_steps: OnSteps) -> Metric:
        """Return a metric with the steps that this run started with."""
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
