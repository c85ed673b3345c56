"""Ray as a scheduler of shares: actors that load a judge once bring shares of a run to their outcomes.

Where a worker sees the run's directory, on the same machine or a disk that all machines share, it works there, and
whoever takes a share over goes on where a dead worker was. Elsewhere it works in a directory of its own and returns
what the share has stored. No row of the input passes Ray.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from geval_local import __version__
from geval_local.errors import ConfigurationError, GevalError, Interrupted, JudgeError
from geval_local.options import JudgeOptions
from geval_local.ray.connection import connected
from geval_local.ray.resources import WorkerShare, check_gpus, share_out
from geval_local.runs.directory import MARK, STORE_NAME
from geval_local.runs.manifest import MANIFEST_NAME, JudgeRecord
from geval_local.runs.workers import ATTEMPTS, ENDING_SECONDS, TELL_SECONDS, ShareScorer, Task, Told, given_up

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

logger = logging.getLogger("geval_local")

#: Seconds to wait for what a worker tells, after which it is asked again later.
_ANSWER_SECONDS = 10.0
#: Seconds between two looks for machines that have joined.
_LOOK_SECONDS = 5.0
#: What of a share goes to and from a worker that does not see its directory.
_FILES = (MANIFEST_NAME, STORE_NAME)


def ray_workers(workers: str, judges: Sequence[JudgeOptions], address: str | None = None) -> RayWorkers:
    """Connect to a cluster, see `geval_local.ray.connection.connected`, and divide it; ``ray:8`` are eight workers."""
    _, _, count = workers.partition(":")
    return RayWorkers(int(count) if count else None, judges, address)


class _Actor:
    """The worker, in its own process."""

    def __init__(self, version: str, load: Callable[[JudgeRecord], Judge] | None) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        if version != __version__:
            raise ConfigurationError(
                f"a worker runs geval-local {__version__}, the driver {version}",
                hint="Install the same version on every machine of the cluster.",
            )
        self._told: list[Told] = []
        self._lock = threading.Lock()
        self._scorer = ShareScorer(load, self._tell)

    def _tell(self, told: Told) -> None:
        with self._lock:
            self._told.append(told)

    def told(self) -> tuple[str, list[Told]]:
        """Return the id of its machine, and what it has to tell since it was last asked."""
        import ray

        with self._lock:
            told, self._told = self._told, []
        return ray.get_runtime_context().get_node_id(), told

    def stop(self) -> None:
        """End after the current batch."""
        self._scorer.is_stopped.set()

    def score(self, task: Task, mark: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Bring a share to its outcomes; return its files, unless they are where they belong."""
        if (task.directory.parent / mark).exists():
            self._scorer.do(task)
            return {}
        with TemporaryDirectory(prefix="geval-local-") as scratch:
            directory = Path(scratch) / task.directory.name
            if files:
                directory.mkdir()
            for name, content in files.items():
                (directory / name).write_bytes(content)
            self._scorer.do(replace(task, directory=directory))
            return _files_in(directory)


def _files_in(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in _FILES if (directory / name).is_file()}


@dataclass(eq=False)
class _Worker:
    """A worker, seen from the driver."""

    actor: Any
    #: Id of its machine, once it has told that.
    node: str | None = None
    task: Task | None = None
    #: What the task is going to return.
    result: Any = None
    #: That the share is finished, which counts when its files are there.
    ended: list[Told] = field(default_factory=list)


class RayWorkers:
    """Hands tasks to actors, and starts one again that dies; see `geval_local.runs.workers.Scheduler`."""

    def __init__(
        self,
        workers: int | None,
        judges: Sequence[JudgeOptions],
        address: str | None = None,
        load: Callable[[JudgeRecord], Judge] | None = None,
    ) -> None:
        self._count, self._judges, self._address, self._load = workers, judges, address, load
        self._workers: list[_Worker] = []
        self._looked = 0.0
        self._name = f"{MARK}{secrets.token_hex(8)}"
        with ExitStack() as stack:
            stack.enter_context(connected(address, workers))
            self._part = self._divided()
            self.size = self._part.workers
            import ray

            for judge in judges:
                check_gpus(self._part, judge, address, ray.cluster_resources().get("GPU", 0))
            self._stack = stack.pop_all()

    def _divided(self) -> WorkerShare:
        """Divide the cluster as it is now, by the judge that needs most."""
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return min((share_out(nodes, self._count, judge) for judge in self._judges), key=lambda part: part.workers)

    def _grow(self) -> None:
        """Take machines that have joined a cluster which may grow."""
        if self._address is not None and self._count is None and time.monotonic() > self._looked + _LOOK_SECONDS:
            self._looked = time.monotonic()
            with suppress(ConfigurationError):  # machines are gone: those that are left work on
                self.size = max(self.size, self._divided().workers)

    def run(
        self, tasks: Iterator[Task], *, is_alone: Callable[[], bool], should_stop: Callable[[], bool]
    ) -> Iterator[tuple[Task, Told]]:
        """See `geval_local.runs.workers.Scheduler.run`."""
        import ray

        waiting: list[Task] = []
        deaths: dict[int, int] = {}
        self._hand_out(waiting, tasks, is_alone())
        while busy := [worker for worker in self._workers if worker.task is not None]:
            if should_stop():
                raise Interrupted
            ready, _ = ray.wait([worker.result for worker in busy], num_returns=1, timeout=TELL_SECONDS)
            for worker in busy:
                task = worker.task
                assert task is not None
                yield from ((task, told) for told in self._ask(worker))
                if worker.result not in ready:
                    continue
                worker.task = None
                try:
                    files = ray.get(worker.result)
                except ray.exceptions.RayActorError as error:
                    self._workers.remove(worker)
                    self._mourn(worker, task, error, deaths)
                    waiting.append(task)
                    continue
                except ray.exceptions.RayError as error:
                    raise _reason(error) from error
                _write(task.directory, files)
                yield from ((task, told) for told in self._ask(worker, at_end=True))
            self._grow()
            self._hand_out(waiting, tasks, is_alone())

    def _ask(self, worker: _Worker, *, at_end: bool = False) -> list[Told]:
        """Return what a worker has to tell, but that a share is finished only at its end."""
        import ray

        try:
            worker.node, told = ray.get(worker.actor.told.remote(), timeout=_ANSWER_SECONDS)
        except ray.exceptions.RayError:  # it is loading, or gone, which its result says
            return []
        worker.ended += [one for one in told if one.kind == "ended"]
        for one in told:
            if one.kind == "log":
                logger.log(*one.value)
        found = [one for one in told if one.kind not in ("log", "ended")]
        if at_end:
            found, worker.ended = found + worker.ended, []
        return found

    def _hand_out(self, waiting: list[Task], tasks: Iterator[Task], alone: bool) -> None:
        """Give tasks to workers without one, and start workers as long as there are tasks for them."""
        import ray

        most = 1 if alone else self.size
        while sum(worker.task is not None for worker in self._workers) < most:
            task = waiting.pop(0) if waiting else next(tasks, None)
            if task is None:
                return
            worker = next((one for one in self._workers if one.task is None), None)
            if worker is None:
                kind = ray.remote(num_cpus=self._part.cpus, num_gpus=self._part.gpus, max_concurrency=2)(_Actor)
                worker = _Worker(kind.remote(__version__, self._load))
                self._workers.append(worker)
            worker.task = task
            worker.result = worker.actor.score.remote(task, self.mark(task.directory.parent), _files_in(task.directory))

    def mark(self, place: Path) -> str:
        """Mark the directory of shares, so that a worker can tell whether it sees it."""
        mark = place / self._name
        if not mark.exists():
            mark.touch(mode=0o600)
            self._stack.callback(mark.unlink, missing_ok=True)
        return self._name

    def _mourn(self, worker: _Worker, task: Task, error: Exception, deaths: dict[int, int]) -> None:
        """Count the death of a worker for its share, unless its whole machine is gone."""
        import ray

        told = str(error).strip().splitlines()
        how = told[0] if told else type(error).__name__
        if worker.node is None or any(one["NodeID"] == worker.node and one["Alive"] for one in ray.nodes()):
            deaths[task.number] = deaths.get(task.number, 0) + 1
        if deaths.get(task.number, 0) >= ATTEMPTS:
            raise given_up(deaths[task.number], task, how)
        logger.warning("a worker is gone; its share of the rows, number %d, is run again (%s)", task.number, how)

    def close(self) -> None:
        """See `geval_local.runs.workers.Scheduler.close`."""
        import ray

        with self._stack, suppress(ray.exceptions.RayError):
            busy = [worker for worker in self._workers if worker.task is not None]
            for worker in busy:
                worker.actor.stop.remote()
            if busy:
                ray.wait([worker.result for worker in busy], num_returns=len(busy), timeout=ENDING_SECONDS)
                for worker in busy:
                    with suppress(ray.exceptions.RayError):
                        _write(worker.task.directory, ray.get(worker.result, timeout=0))  # type: ignore[union-attr]
            for worker in self._workers:
                ray.kill(worker.actor)
            self._workers.clear()


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    """Put the files of a share where they belong, the manifest last."""
    if files:
        directory.mkdir(mode=0o700, exist_ok=True)
    for name in reversed(_FILES):
        if name in files:
            partial = directory / f".{name}.tmp"
            partial.touch(mode=0o600)
            partial.write_bytes(files[name])
            partial.replace(directory / name)


def _reason(error: Exception) -> GevalError:
    """Return what a worker raised; of anything from outside of the package, its text."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, GevalError):
        return cause
    return JudgeError(
        f"the workers failed: {str(error).strip()}",
        hint="A killed worker has often run out of memory: fewer workers, `workers=ray:N`, or smaller `batch_tokens`, "
        "may help. If the cluster itself is gone, start it again.",
    )
