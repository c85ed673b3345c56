"""Ray as a place for workers: actors that load a judge once bring shares of a run to their outcomes.

Only a process of its own talks to Ray, since Ray ends one whose cluster is gone without a message, and lets it wait
for ever in native code for one that hangs. The command sees that it is silent, or gone, and goes on to its end.

Where a worker sees the run's directory, on the same machine or a disk that all machines share, it works there, and
whoever takes a share over goes on where a dead worker was. Elsewhere it works in a directory of its own and returns
what the share has stored. No row of the input passes Ray.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from geval_local import __version__
from geval_local.errors import ConfigurationError, GevalError, Interrupted, JudgeError, first_line
from geval_local.files import replacing
from geval_local.options import JudgeOptions
from geval_local.ray.resources import WorkerShare, share_out, warn_of_cpus
from geval_local.runs.directory import STORE_NAME
from geval_local.runs.manifest import MANIFEST_NAME, JudgeRecord, read_manifest
from geval_local.runs.workers import (
    ENDING_SECONDS,
    STOP,
    TELL_SECONDS,
    Command,
    Process,
    ShareScorer,
    Task,
    Told,
    Workers,
)

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

logger = logging.getLogger("geval_local")

#: Of the process that talks to Ray, which reads them as it is imported: no statistics, no errors of Ray Data on stderr.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
#: Seconds in which a cluster answers, and without a word after which it counts as gone.
CONNECTING_SECONDS = 60.0
SILENT_SECONDS = 120.0
#: Seconds to wait for what a worker tells, after which it is asked again later.
_ANSWER_SECONDS = 10.0
#: Seconds between two looks at the machines of a cluster.
_LOOK_SECONDS = 5.0
#: What of a share goes to and from a worker that does not see its directory.
_FILES = (MANIFEST_NAME, STORE_NAME)


# --- the side of the command ------------------------------------------------------------------------------------------


def ray_workers(workers: str, judges: Sequence[JudgeOptions], address: str | None = None) -> RayWorkers:
    """Connect to a cluster, and divide it; ``ray:8`` are eight workers."""
    _, _, count = workers.partition(":")
    return RayWorkers(int(count) if count else None, judges, address)


class RayWorkers(Workers):
    """Workers that are actors of a cluster; without an address, of the one that this machine is in.

    Raises
    ------
    ConfigurationError
        If there is no cluster, it does not answer, or it is too small.
    """

    def __init__(
        self,
        workers: int | None,
        judges: Sequence[JudgeOptions],
        address: str | None = None,
        load: Callable[[JudgeRecord], Judge] | None = None,
    ) -> None:
        super().__init__(0)
        if find_spec("ray") is None:
            raise ConfigurationError(
                "Ray is not installed, and `workers=ray` needs it", hint="pip install 'geval-local[ray]'"
            )
        self._address = address or "auto"
        self._heard = time.monotonic()
        self._driver = Process(partial(drive, workers, judges, self._address, load), _ENVIRONMENT, self._take)
        try:
            self._connect()
        except BaseException:
            self._driver.close()
            raise

    def _take(self, item: tuple[int, Told] | Told) -> None:
        self._heard = time.monotonic()
        self.hear(*((-1, item) if isinstance(item, Told) else item))

    def _connect(self) -> None:
        end = time.monotonic() + CONNECTING_SECONDS
        while not self.size:
            self.next_told()
            if time.monotonic() > end:
                raise ConfigurationError(
                    f"the Ray cluster at {self._address} has not answered for {CONNECTING_SECONDS:g} s",
                    hint="Is it another machine's, or behind a firewall? `ray status` on it tells its "
                    "address. A cluster that was started for 127.0.0.1 is reached by `auto` only.",
                )

    def next_told(self) -> tuple[int, Told] | None:
        """See `Workers.next_told`; without the process that talks to Ray there is nothing to wait for."""
        message = super().next_told()
        if message is not None and message[0] == -1 and message[1].kind == "died":
            logger.error("the Ray cluster, or the machine that it ran on, is gone (%s)", message[1].value)
            raise Interrupted
        if self.size and time.monotonic() > self._heard + SILENT_SECONDS:
            self._driver.kill()
            logger.error("the Ray cluster has not answered for %g s", SILENT_SECONDS)
            raise Interrupted
        return message

    def begin(self, place: int, task: Task) -> None:
        """See `Workers.begin`."""
        self._driver.send((place, task))

    def close(self) -> None:
        """See `Workers.close`."""
        self._driver.send(STOP)
        try:
            self._driver.close(ENDING_SECONDS)
        finally:  # a second Ctrl-C does not wait
            self._driver.close()


# --- the process that talks to Ray ------------------------------------------------------------------------------------


def drive(
    workers: int | None,
    judges: Sequence[JudgeOptions],
    address: str,
    load: Callable[[JudgeRecord], Judge] | None,
    command: Command,
) -> None:
    """Be the process that talks to Ray, see `RayWorkers`."""
    import ray

    try:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # of any kind
            raise ConfigurationError(
                f"cannot reach a Ray cluster at {address}: {first_line(error)}",
                hint="`ray start --head` begins one; if that cluster asks for a token, set RAY_AUTH_MODE and "
                "RAY_AUTH_TOKEN as there. On one machine `workers=N` needs no Ray.",
            ) from error
        _Driver(workers, judges, load, command).work()
    except GevalError as error:
        command.tell(Told("failed", error))
    except BaseException as error:
        print(first_line(error), file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # to disconnect may hang, and ends nothing that the end of this process does not


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

    def score(self, task: Task, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Bring a share to its outcomes; return its files, unless they are where they belong."""
        whole = task.directory.parent.parent
        known = read_manifest(whole) if whole.is_dir() else None
        if known is not None and known.run == task.run:  # it is seen from here
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


@dataclass
class _Worker:
    """A worker, as the driver knows it."""

    actor: Any
    #: Id of its machine, once it has told that.
    node: str | None = None
    task: Task | None = None
    #: What the task is going to return.
    result: Any = None
    #: That the share is finished, which counts when its files are there.
    ended: list[Told] = field(default_factory=list)


class _Driver:
    """Starts actors, hands them tasks of the command, and tells it what they tell."""

    def __init__(
        self,
        workers: int | None,
        judges: Sequence[JudgeOptions],
        load: Callable[[JudgeRecord], Judge] | None,
        command: Command,
    ) -> None:
        import ray

        self._ray: Any = ray
        self._count, self._judges, self._load, self._command = workers, judges, load, command
        self._workers: dict[int, _Worker] = {}
        self._looked = time.monotonic()
        self._part = self._divided(self._ray.nodes())
        for judge in judges:
            warn_of_cpus(self._part, judge)
        self._size = self._part.workers
        command.tell(Told("size", self._size))

    def _divided(self, nodes: Sequence[Mapping[str, Any]]) -> WorkerShare:
        """Divide the cluster as it is now, by the judge that needs most."""
        there = [node["Resources"] for node in nodes if node["Alive"]]
        return min((share_out(there, self._count, judge) for judge in self._judges), key=lambda part: part.workers)

    def work(self) -> None:
        """Do what the command asks for until it asks for the end."""
        while not self._command.is_stopped.is_set():
            busy = [worker for worker in self._workers.values() if worker.task is not None]
            with suppress(Empty):
                while (item := self._command.asked.get(timeout=0.05 if busy else TELL_SECONDS)) is not None:
                    self._begin(*item)
                return
            self._follow()
            self._look()
        self._stop()

    def _begin(self, place: int, task: Task) -> None:
        if place not in self._workers:
            kind = self._ray.remote(num_cpus=self._part.cpus, num_gpus=self._part.gpus, max_concurrency=2)(_Actor)
            self._workers[place] = _Worker(kind.remote(__version__, self._load))
        worker = self._workers[place]
        worker.task = task
        worker.result = worker.actor.score.remote(task, _files_in(task.directory))

    def _follow(self) -> None:
        """Tell what workers tell, and what became of their tasks."""
        busy = {place: worker for place, worker in self._workers.items() if worker.task is not None}
        if not busy:
            return
        ready, _ = self._ray.wait([worker.result for worker in busy.values()], num_returns=1, timeout=TELL_SECONDS)
        for place, worker in busy.items():
            self._ask(place, worker)
            if worker.result not in ready:
                continue
            assert worker.task is not None
            try:
                files = self._ray.get(worker.result)
            except self._ray.exceptions.RayActorError as error:
                del self._workers[place]
                self._command.tell((place, self._death(worker, error)))
                continue
            except self._ray.exceptions.RayError as error:
                raise _reason(error) from error
            _write(worker.task.directory, files)
            worker.task = None
            self._ask(place, worker)
            for told in worker.ended:
                self._command.tell((place, told))
            worker.ended = []

    def _ask(self, place: int, worker: _Worker) -> None:
        """Tell what a worker has to tell, but that a share is finished only at its end."""
        try:
            worker.node, told = self._ray.get(worker.actor.told.remote(), timeout=_ANSWER_SECONDS)
        except self._ray.exceptions.RayError:  # it is loading, or gone, which its result says
            return
        worker.ended += [one for one in told if one.kind == "ended"]
        for one in told:
            if one.kind != "ended":
                self._command.tell((place, one))

    def _look(self) -> None:
        """Take machines that have joined a cluster which may grow; say that the cluster is there."""
        if time.monotonic() < self._looked + _LOOK_SECONDS:
            return
        nodes = self._ray.nodes()
        here = self._ray.get_runtime_context().get_node_id()
        if any(one["NodeID"] == here and not one["Alive"] for one in nodes):
            raise ConnectionError("it has lost this machine")
        if self._count is None:
            with suppress(ConfigurationError):  # machines are gone: those that are left work on
                self._size = max(self._size, self._divided(nodes).workers)
        self._looked = time.monotonic()
        self._command.tell(Told("size", self._size))

    def _death(self, worker: _Worker, error: Exception) -> Told:
        """Say how a worker has died, and whether its whole machine is gone."""
        told = str(error).strip().splitlines()
        is_there = any(one["NodeID"] == worker.node and one["Alive"] for one in self._ray.nodes())
        is_lost = worker.node is not None and not is_there
        return Told("lost" if is_lost else "died", f"is gone ({told[0] if told else type(error).__name__})")

    def _stop(self) -> None:
        """Let workers end their batch, and take the shares that are finished then."""
        busy = [worker for worker in self._workers.values() if worker.task is not None]
        for worker in busy:
            worker.actor.stop.remote()
        if busy:
            self._ray.wait([worker.result for worker in busy], num_returns=len(busy), timeout=ENDING_SECONDS)
        for worker in busy:
            with suppress(self._ray.exceptions.RayError):
                _write(worker.task.directory, self._ray.get(worker.result, timeout=0))  # type: ignore[union-attr]


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    """Put the files of a share where they belong, the manifest last."""
    if files:
        directory.mkdir(mode=0o700, exist_ok=True)
    for name in reversed(_FILES):
        if name in files:
            with replacing(directory / name, private=True) as file:
                file.write(files[name])


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
