"""Batcher: single calls from many threads, gathered for a few milliseconds and computed as one batch.

Callers that work row by row (a server's clients, the hosts of adapters) would not share prefixes. Here one thread owns
the model; all others queue work and hold a future. A batch takes a part of every waiting job, so that
a large job does not delay small ones, and lasts about `SLICE_SECONDS`.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Protocol, TypeAlias, TypeVar

from geval_local.engine.interface import Readout
from geval_local.engine.window import read_units, regrow
from geval_local.errors import BusyError, GevalError
from geval_local.io.samples import Sample
from geval_local.judge.kept_prefixes import KeptPrefixes, Newcomer
from geval_local.judge.scorer import Scorer
from geval_local.judge.thoughts import Thinker
from geval_local.metric import Metric
from geval_local.questions.answer import Decision
from geval_local.questions.pair import scores_of
from geval_local.questions.question import Question, parse_questions
from geval_local.score import Estimator, Outcome, Score
from geval_local.tokens.requests import Ids, Prepared

#: Target duration of a batch: a new call waits at most this long for another caller's large job.
SLICE_SECONDS = 0.25
#: Characters of a batch while the judge's speed is unknown, and the minimum later.
FIRST_CHARACTERS = 16_000
LEAST_CHARACTERS = 4_000
#: This many calls always fit into a batch: the more small calls, the more they share, and otherwise they would wait for
#: each other.
CROWD = 64

_T_co = TypeVar("_T_co", covariant=True)
_T = TypeVar("_T")


class _Work(Protocol[_T_co]):
    """Work of several items that are prepared, computed and assembled, see `DecisionWork`; a call has none."""

    @property
    def shared(self) -> int:
        return 0

    def __len__(self) -> int:
        return 0

    def own(self, item: int) -> int:
        return 0

    def prepare(self, start: int, stop: int) -> list[Prepared]:
        return []

    def prefix(self) -> Ids | None:
        return None

    def finish(self, outcomes: Sequence[Outcome]) -> _T_co: ...


@dataclass(frozen=True)
class BatchRecord:
    """Statistics of a batch."""

    #: Prompts in the batch.
    items: int
    #: Duration of the batch.
    seconds: float


class _ScoreWork(_Work[list[Score]]):
    """Samples of one metric; missing steps are written by the model's thread."""

    def __init__(
        self,
        judge: Scorer,
        metric: Metric,
        samples: Sequence[Sample],
        estimator: Estimator | None,
        threshold: float | None,
    ) -> None:
        self._judge, self._metric, self._samples = judge, metric, samples
        self._estimator, self._threshold = estimator, threshold
        self._complete: Metric | None = None

    def __len__(self) -> int:
        return len(self._samples)

    def own(self, item: int) -> int:
        return sum(len(value) for value in self._samples[item].fields.values() if isinstance(value, str))

    def prepare(self, start: int, stop: int) -> list[Prepared]:
        if self._complete is None:
            self._complete = self._judge.with_steps(self._metric)
        return self._judge.prepare(self._complete, self._samples[start:stop])

    def finish(self, outcomes: Sequence[Outcome]) -> list[Score]:
        return scores_of(self._metric, outcomes, self._estimator, self._threshold)


class _Call(_Work[_T]):
    """A function that needs the model's thread to itself."""

    def __init__(self, function: Callable[[], _T]) -> None:
        self._function = function

    def finish(self, outcomes: Sequence[Outcome]) -> _T:
        return self._function()


@dataclass(eq=False)
class _Job:
    work: _Work[Any]
    future: Future[Any]
    outcomes: list[Outcome] = field(default_factory=list)
    next: int = 0
    group: bytes | None = None
    #: Tokens that its prompts begin with, if the engine keeps them.
    prefix: Ids | None = None

    def stretch(self, characters: float) -> tuple[int, float]:
        """Return the end of a stretch of about `characters`, and its cost in characters."""
        # The evidence is computed with every stretch, so a stretch contains at least as many characters of questions.
        cost, stop = float(self.work.shared), self.next
        limit = max(characters, 2.0 * self.work.shared)
        while stop < len(self.work) and (stop == self.next or cost + self.work.own(stop) <= limit):
            cost += self.work.own(stop)
            stop += 1
        return stop, cost


#: A job's part in a batch: where it ends, and what it gives to the engine.
_Part: TypeAlias = "tuple[_Job, int, list[Prepared]]"


class Batcher:
    """Batches the calls of many threads for one judge; a context manager.

    All methods may be called from any thread. The judge may be used directly as well: the two take turns.
    """

    def __init__(
        self,
        judge: Scorer,
        *,
        queue: int = 1024,
        gather_seconds: float = 0.004,
        on_batch: Callable[[BatchRecord], object] = lambda record: None,
    ) -> None:
        self.judge = judge
        self.queue = queue
        self.gather_seconds = gather_seconds
        self._on_batch = on_batch
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._pace = FIRST_CHARACTERS / SLICE_SECONDS
        #: Calls that had a part in the last batch, and its seconds.
        self._last = (0, 0.0)
        self._kept = KeptPrefixes()
        self._thread = threading.Thread(target=self._run, name="geval-local batcher", daemon=True)
        self._thread.start()
        atexit.register(self.close, finish=False)

    # --- calls from other threads -----------------------------------------------------------------------------------

    def decide(
        self,
        state: Any,
        questions: Mapping[str, Any] | Sequence[Question | Mapping[str, Any]],
        *,
        rotations: int = 1,
    ) -> Future[Decision]:
        """Queue questions about one piece of evidence; parameters and errors as for `Scorer.decide`."""
        work = self.judge.decision_work(state, parse_questions(questions), rotations=rotations)
        group = hashlib.blake2b(work.evidence.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return self._submit(work, group)

    def score(
        self,
        metric: Metric,
        samples: Sequence[Sample | Mapping[str, Any]],
        *,
        estimator: Estimator | None = None,
        threshold: float | None = None,
    ) -> Future[list[Score]]:
        """Queue samples to score; parameters as for `Scorer.score_many`, the rest as for `decide`."""
        listed = [sample if isinstance(sample, Sample) else Sample(sample) for sample in samples]
        return self._submit(_ScoreWork(self.judge, metric, listed, estimator, threshold), None)

    def call(self, function: Callable[[], _T]) -> Future[_T]:
        """Run a function in the model's thread, between batches."""
        return self._submit(_Call(function), None)

    @property
    def pending(self) -> int:
        """Number of calls that are queued or running."""
        return len(self._jobs)

    @property
    def retry_after(self) -> int:
        """Seconds, 1 to 60, after which another call may be accepted."""
        with self._changed:
            sample = list(itertools.islice(self._jobs, 64))
            left = sum(sum(map(job.work.own, range(job.next, len(job.work)))) for job in sample)
            total = left * len(self._jobs) / max(1, len(sample))
        return min(60, max(1, math.ceil(total / self._pace / 2)))

    def close(self, *, finish: bool = True) -> None:
        """Accept no more calls, and stop after the queued ones, or immediately (cancelling them)."""
        with self._changed:
            self._closing = True
            if not finish:
                for job in self._jobs:
                    job.future.cancel()
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> Batcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(finish=kind is None)

    def _submit(self, work: _Work[_T], group: bytes | None) -> Future[_T]:
        future: Future[_T] = Future()
        with self._changed:
            if self._closing:
                raise BusyError("the batcher is closed")
            if len(self._jobs) >= self.queue:
                raise BusyError(f"{len(self._jobs)} calls are waiting already", hint="Come again in a moment.")
            self._jobs.append(_Job(work, future, group=group))
            self._changed.notify_all()
        return future

    # --- the model's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._closing:
                    regrow(self.judge.engine)
                    self._changed.wait()
                if not self._jobs:
                    return
                self._gather()
                for job in [job for job in self._jobs if job.future.done()]:
                    self._jobs.remove(job)
                batch = self._pick()
            try:
                self._execute(batch)
            except BaseException as error:
                # Report any exception to the callers; the thread continues.
                for job, _ in batch:
                    _fail(job, error)
            with self._changed:
                # A job that had its turn but is not finished goes after those still waiting.
                done = {id(job) for job, _ in batch}
                turned = [job for job in self._jobs if id(job) in done and not job.future.done()]
                self._jobs = deque(itertools.chain((job for job in self._jobs if id(job) not in done), turned))
                self._changed.notify_all()

    def _gather(self) -> None:
        """Wait for more calls as long as some come, but no longer than a share of what a batch takes.

        Whoever got an answer from the last batch is likely to come again: with as many as that had, nobody is missed.
        """
        works, seconds = self._last
        end = time.monotonic() + max(self.gather_seconds, 0.1 * max(SLICE_SECONDS, seconds))
        silence = max(self.gather_seconds, 0.02 * seconds)
        while not self._closing and not any(len(job.work) == 0 for job in self._jobs):
            before = len(self._jobs)
            self._changed.wait(silence)
            if len(self._jobs) == before or len(self._jobs) >= works > 1 or time.monotonic() >= end:
                return

    def _pick(self) -> list[tuple[_Job, int]]:
        """Choose a stretch of every job to fill a batch: equal shares first, then the remaining capacity."""
        if not self._jobs:
            return []
        calls = [job for job in self._jobs if len(job.work) == 0]
        if calls:
            return [(calls[0], 0)]
        budget = max(LEAST_CHARACTERS, self._pace * SLICE_SECONDS)
        chosen: dict[int, tuple[int, float]] = {}
        left = budget
        for is_rest in (False, True):
            for job in self._jobs:
                if left <= 0 and len(chosen) >= (1 if is_rest else CROWD):
                    break
                _, spent = chosen.get(id(job), (job.next, 0.0))
                stop, cost = job.stretch(spent + left if is_rest else budget / len(self._jobs))
                chosen[id(job)] = (stop, cost)
                left -= cost - spent
        return [(job, chosen[id(job)][0]) for job in self._jobs if id(job) in chosen]

    def _execute(self, batch: list[tuple[_Job, int]]) -> None:
        start = time.monotonic()
        characters, items = 0.0, 0
        prepared: list[_Part] = []
        for job, stop in batch:
            characters += job.work.shared + sum(map(job.work.own, range(job.next, stop)))
            items += stop - job.next
            with self._failing(job):
                prepared.append((job, stop, job.work.prepare(job.next, stop)))
        self._choose_kept(prepared)
        groups: dict[int, list[_Part]] = {}
        for job, stop, entries in prepared:
            # Prompts of one call that do not begin with what is kept are computed without it.
            kept = entries if job.prefix is None else [_with_prefix(entry, job.prefix) for entry in entries]
            groups.setdefault(id(job.prefix), []).append((job, stop, kept))
        for members in groups.values():
            self._read(members if self.judge.thinker is None else self._thought(self.judge.thinker, members))
        seconds = time.monotonic() - start
        if items:
            pace = characters / max(seconds, 1e-4)
            # The time of a device's first batch, or of an outlier, says little about the next one.
            share = 0.5 if pace > self._pace else 0.2
            self._pace += share * (pace - self._pace)
            self._last = (len(batch), seconds)
            self._on_batch(BatchRecord(items, seconds))

    def _thought(self, thinker: Thinker, members: list[_Part]) -> list[_Part]:
        """Think about the members' prompts, of all of them together."""
        try:
            entries = iter(thinker.after_thoughts([entry for _, _, own in members for entry in own]))
        except BaseException as error:
            for job, _, _ in members:
                _fail(job, error)
            return []
        count = thinker.settings.count
        return [(job, stop, list(itertools.islice(entries, count * len(own)))) for job, stop, own in members]

    def _read(self, members: list[_Part]) -> None:
        """Compute the members' prompts, and answer each call as soon as the unit with its last prompt is done."""
        entries = [entry for _, _, own in members for entry in own]
        found: list[Readout | None] = [None] * len(entries)
        waiting = {place for place, entry in enumerate(entries) if entry.request is not None}
        ends = list(itertools.accumulate(len(own) for _, _, own in members))
        left = list(zip(members, [0, *ends], ends, strict=False))

        def answer() -> None:
            for one in list(left):
                (job, stop, own), start, end = one
                if waiting.isdisjoint(range(start, end)):
                    left.remove(one)
                    with self._failing(job):
                        self._answer(job, stop, self.judge.mean_outcomes(own, found[start:end]))

        try:
            answer()
            for readouts in read_units(self.judge.engine, entries):
                self.judge.check_files()
                for place, readout in readouts.items():
                    found[place] = readout
                waiting.difference_update(readouts)
                answer()
        except BaseException:
            if len(left) > 1:
                # One job may be the cause: retry them separately, so that the others do not fail.
                for member, _, _ in left:
                    self._read([member])
                return
            for (job, _, _), _, _ in left:
                with self._failing(job):
                    raise

    def _answer(self, job: _Job, stop: int, outcomes: Iterable[Outcome]) -> None:
        """Take the outcomes of a job's part, and answer it if it was the last one."""
        job.outcomes += outcomes
        job.next = stop
        if stop == len(job.work) and not job.future.done():
            result = job.work.finish(job.outcomes)
            with contextlib.suppress(InvalidStateError):  # cancelled in between
                job.future.set_result(result)

    @contextlib.contextmanager
    def _failing(self, job: _Job) -> Any:
        """Assign an exception to the job that caused it."""
        try:
            yield
        except BaseException as error:
            _fail(job, error)

    def _choose_kept(self, prepared: Sequence[_Part]) -> None:
        """Find what the engine keeps of calls that begin with this batch, see `KeptPrefixes`."""
        jobs, newcomers = [], []
        for job, stop, entries in prepared:
            request = entries[0].request if entries and job.next == 0 else None
            if request is not None:
                start = 0 if request.prefix is None else len(request.prefix)
                goes_on = job.group is not None and stop < len(job.work)
                jobs.append(job)
                newcomers.append(Newcomer(request.ids, start, job.group, goes_on, job.work.prefix))
        for job, prefix in zip(jobs, self._kept.choose(newcomers), strict=True):
            job.prefix = prefix


def _fail(job: _Job, error: BaseException) -> None:
    """Give a job its exception. What is no `Exception`, such as a panic of a library in Rust, would end the caller."""
    if not isinstance(error, Exception):
        given = GevalError(
            f"a library gave up on these texts ({type(error).__name__})", hint="Leave out the text that it is about."
        )
        given.__cause__ = error
        error = given
    with contextlib.suppress(InvalidStateError):
        job.future.set_exception(error)


def _with_prefix(entry: Prepared, prefix: Ids) -> Prepared:
    return entry if entry.request is None else replace(entry, request=replace(entry.request, prefix=prefix))
