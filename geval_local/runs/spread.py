"""A run over shares of its input: each is a run of its own, and the run takes over what they have stored.

Workers bring each share to its outcomes in ``shares/`` of the run's directory. A worker that dies loses one batch, and
a run that is stopped goes on with what every share has. When all shares are finished, the run takes over their stores,
removes them, and ends as any run: it reads the input, derives scores and writes the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from geval_local.engine.window import window_sizes
from geval_local.errors import OutputError
from geval_local.io.shares import Share, share_name, shares_of
from geval_local.metric import Metric
from geval_local.options import JudgeOptions
from geval_local.runs.directory import SHARES_NAME, STORE_NAME, remove_shares, shares_in
from geval_local.runs.manifest import JudgeRecord, RunManifest, read_manifest
from geval_local.runs.run import Run, meet
from geval_local.runs.workers import LocalWorkers, Task, Workers, environments

if TYPE_CHECKING:
    from geval_local.runs.completion import Completion

#: Shares per worker: what a slow worker does not reach, the others do.
SHARES_EACH = 4
#: Least bytes of a share, if there are so many for every worker: each share computes its first texts anew.
LEAST_BYTES = 1 << 18


class ScoredShare(NamedTuple):
    """A share that has been scored."""

    directory: Path
    manifest: RunManifest


def fill(run: Run, shares: Sequence[ScoredShare]) -> None:
    """Bring the outcomes of shares into a run, and say that its judges have done their work."""
    rows, stored = 0, []
    for directory, manifest in shares:
        stored.append((directory / STORE_NAME, manifest.run, rows))
        rows += manifest.input.rows or 0
    # What only the whole input tells: an id that a row of an earlier share has.
    refused = {place: sample.error for place, sample in enumerate(run.samples()) if sample.error is not None}
    run.store.take_over(stored, [run.outcomes(judge) for judge in range(len(run.manifest.judges))], refused)
    run.manifest.input.rows = rows
    for place, record in enumerate(run.manifest.judges):
        its = next(
            (share.manifest.judges[place] for share in shares if share.manifest.judges[place].fingerprint is not None),
            None,
        )
        if its is None:
            raise OutputError(f"no share has rows that {record.name} has scored", hint="Is the input empty?")
        meet(record, its)
        record.definitions = its.definitions
        record.complete = True
    run.save()
    for record in run.manifest.judges:
        run.write_steps(record, [Metric.model_validate(one) for one in record.definitions.values()])


@dataclass
class Spread:
    """The work of workers on the shares of a run."""

    #: Number of workers, or ``auto``.
    count: str
    retry_errors: bool = False
    #: Starts the workers, given their number and the judges that each loads.
    start: Callable[[str, Sequence[JudgeOptions]], Workers] = lambda count, judges: LocalWorkers(
        environments(count, judges)
    )

    def score(self, completion: Completion) -> None:
        """Bring a run to its outcomes, unless it has some: what is missing then, it computes itself."""
        run = self._run = completion.run
        if not run.store.is_empty() or all(record.complete for record in run.manifest.judges):
            return
        with TemporaryDirectory(prefix="geval-local-") as scratch, ExitStack() as stack:
            self._place = Path(scratch) if run.directory is None else run.directory / SHARES_NAME
            self._place.mkdir(mode=0o700, exist_ok=True)
            choices = [JudgeOptions(**record.choice) for record in run.manifest.judges]
            # It takes seconds, and nothing may be left to do.
            self._workers = cache(lambda: stack.enter_context(closing(self.start(self.count, choices))))
            self._score_all(completion)
            stack.close()
            found = [self._directory(number) for number in self._shares]
            fill(run, [ScoredShare(one, manifest) for one in found if (manifest := read_manifest(one)) is not None])
            remove_shares(self._place)
        completion.write()

    def _score_all(self, completion: Completion) -> None:
        """Have all shares scored, judge by judge."""
        manifest = self._run.manifest
        settings, paths = manifest.settings, manifest.input.paths
        if there := shares_in(self._place):
            self._of = int(there[0].name.rpartition("-")[2])
        else:
            workers = self._workers().size
            self._of = min(SHARES_EACH * workers, max(workers, manifest.input.bytes // LEAST_BYTES))
        sizes = None if settings.block_rows is None else window_sizes(settings.window)
        self._shares = shares_of(
            paths, settings, self._of, sizes=sizes, pairs=settings.pairs, documents=settings.documents
        )
        none = {"output": None, "address": None, "workers": None}
        self._settings = settings.model_copy(update=none | {"inputs": list(map(str, paths))})
        #: Outcomes that are finished: of a judge and a share.
        self._done: dict[tuple[int, int], int] = {}
        waiting = {
            judge: {number: share for number, share in self._shares.items() if not self._is_finished(number, judge)}
            for judge in range(len(manifest.judges))
        }
        completion.there = sum(self._done.values())
        if completion.there:
            completion.tell_of_resuming()
        for judge, shares in waiting.items():
            if shares:
                completion.events.on_load(None)
                self._score(completion, judge, shares)

    def _directory(self, number: int) -> Path:
        return self._place / share_name(f"{number}/{self._of}")

    def _is_finished(self, number: int, judge: int) -> bool:
        manifest = None if self.retry_errors else read_manifest(self._directory(number))
        log = self._directory(number) / f"{STORE_NAME}-wal"
        if manifest is None or not manifest.judges[judge].complete or (log.exists() and log.stat().st_size):
            return False
        self._done[judge, number] = (manifest.input.rows or 0) * sum(self._run.outcomes(judge))
        return True

    def _tasks(self, judge: int, shares: dict[int, Share]) -> Iterator[Task]:
        for number, share in shares.items():
            yield Task(
                number,
                self._directory(number),
                share,
                self._settings.model_copy(update={"shard": f"{number}/{self._of}"}),
                [one.model_copy(deep=True) for one in self._run.manifest.judges],
                judge,
                self._run.manifest.run,
                retry_errors=self.retry_errors and judge == 0,
            )

    def _score(self, completion: Completion, judge: int, shares: dict[int, Share]) -> None:
        record = self._run.manifest.judges[judge]
        is_met = False

        def is_alone() -> bool:
            return not record.definitions and any(metric.needs_steps for metric in self._run.metrics)

        should_stop = completion.events.should_stop
        for task, one in self._workers().run(self._tasks(judge, shares), is_alone=is_alone, should_stop=should_stop):
            if one.kind == "met":
                found, precision = one.value
                self._meet(record, found)
                if not is_met:
                    completion.begin(record, precision)
                is_met = True
                continue
            finished = one.value * sum(self._run.outcomes(judge)) if one.kind == "ended" else one.value
            self._done[judge, task.number] = finished
            completion.reach(sum(self._done.values()))

    def _meet(self, record: JudgeRecord, found: JudgeRecord) -> None:
        """Record the judge of the first worker, and check that the others have the same."""
        meet(record, found)
        if not record.definitions:
            record.definitions = found.definitions
            self._run.save()
