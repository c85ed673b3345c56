"""Workers on this machine: processes that load a judge once and bring shares of a run to their outcomes.

A worker reads tasks from its stdin and writes messages to its stdout, both pickled; it ends when stdin does, so that no
worker outlives the command. It commits to the store of its share as any run does: whoever runs the share again goes on
where it was.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from geval_local.errors import ConfigurationError, GevalError, Interrupted, JudgeError
from geval_local.io.shares import Share
from geval_local.options import JudgeOptions
from geval_local.runs.manifest import JudgeRecord, RunManifest
from geval_local.runs.settings import Settings

if TYPE_CHECKING:
    from geval_local.judge.judge import Judge

logger = logging.getLogger("geval_local")

#: Workers that may die over a share before the run is given up.
ATTEMPTS = 3
#: Processors of a worker where there is no GPU and the number of workers is found.
_PROCESSORS = 8
#: Seconds between two messages of a worker about its progress.
_TELL_SECONDS = 0.5
#: Seconds in which workers finish their batch when the run is stopped.
_ENDING_SECONDS = 30.0
#: Seconds in which a worker without a command gives its judge back.
_CLOSING_SECONDS = 5.0
#: Most characters shown of what a dead worker wrote to stderr.
_SHOWN = 400
_DEVICES = "CUDA_VISIBLE_DEVICES"
_THREADS = "OMP_NUM_THREADS"
#: What a worker's process does first: it finds modules as the command does.
_BEGIN = (
    "import sys, pickle; sys.path[:] = pickle.load(sys.stdin.buffer); from geval_local.runs.workers import work; work()"
)


@dataclass(frozen=True)
class Task:
    """What a worker does: one judge scores one share."""

    #: The share's number, and its directory.
    number: int
    directory: Path
    share: Share
    settings: Settings
    judges: Sequence[JudgeRecord]
    #: Which of the judges.
    judge: int
    retry_errors: bool = False
    accept_version: bool = False


@dataclass(frozen=True)
class Told:
    """A message of a worker."""

    #: ``met``: the judge is loaded, with its record and precision; ``done``: so many outcomes of the share; ``ended``:
    #: the share is finished; ``failed``: with the error; ``log``: level and text; ``died``: the process is gone.
    kind: str
    value: Any = None


# --- how a machine is divided -----------------------------------------------------------------------------------------


def environments(workers: str, judges: Sequence[JudgeOptions]) -> list[dict[str, str]]:
    """Give each worker its part of this machine, as variables of its environment.

    Parameters
    ----------
    workers : str
        Their number, or ``auto``: one per GPU, else one per eight processors, and one for a server.
    judges : sequence of JudgeOptions
        The judges that every worker loads, one after the other.

    Raises
    ------
    ConfigurationError
        If there are fewer GPUs than the workers need, or a judge names one.
    """
    for one in judges:
        if one.device is not None and one.device.startswith("cuda:"):
            raise ConfigurationError(
                f"`device={one.device}` names one GPU, and every worker gets one of its own",
                hint=f"Leave `device` out; {_DEVICES} says which GPUs may be used.",
            )
    count = None if workers == "auto" else int(workers)
    on_gpus = any(one.backend.uses_devices and one.device != "cpu" for one in judges)
    devices = _devices() if on_gpus else []
    if devices:
        each = max(one.tensor_parallel or 1 for one in judges)
        if any(one.device_map is not None for one in judges):
            each = max(each, len(devices) // (count or 1))
        places = len(devices) // each
        if places < (count or 1):
            raise ConfigurationError(
                f"there are {len(devices)} GPUs, not enough for {count or 1} workers with {each}",
                hint=f"Ask for fewer `workers`. {_DEVICES} says which GPUs may be used.",
            )
        return [{_DEVICES: ",".join(devices[place * each :][:each])} for place in range(count or places)]
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = count or (max(1, processors // _PROCESSORS) if any(one.backend.uses_devices for one in judges) else 1)
    return [{_THREADS: os.environ.get(_THREADS, str(max(1, processors // count)))}] * count


def _devices() -> list[str]:
    """List the GPUs that may be used, as the driver names them."""
    given = os.environ.get(_DEVICES)
    if given is not None:
        return [one.strip() for one in given.split(",") if one.strip() not in ("", "-1")]
    from geval_local.models.memory import count_gpus  # brings torch

    return [str(number) for number in range(count_gpus())]


# --- the side of the command ------------------------------------------------------------------------------------------


#: Asks a worker to end after its batch.
_STOP = "stop"


class LocalWorker:
    """A process that scores shares; what it says comes into a queue, with the worker itself."""

    def __init__(
        self,
        load: Callable[[JudgeRecord], Judge] | None,
        environment: Mapping[str, str],
        told: queue.SimpleQueue[tuple[LocalWorker, Told]],
    ) -> None:
        self.environment = environment
        self.task: Task | None = None
        #: Whether it has loaded its judge.
        self.is_ready = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | dict(environment),
            start_new_session=True,  # a terminal's Ctrl-C is for the command, which then stops its workers
        )
        assert self._process.stdin is not None
        pickle.dump(sys.path, self._process.stdin)
        self._send(load)
        threading.Thread(target=self._listen, args=(told,), daemon=True).start()

    def _send(self, item: object) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # it is gone, as `_listen` says
            pickle.dump(item, self._process.stdin)
            self._process.stdin.flush()

    def _listen(self, told: queue.SimpleQueue[tuple[LocalWorker, Told]]) -> None:
        assert self._process.stdout is not None
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                told.put((self, pickle.load(self._process.stdout)))
        told.put((self, Told("died", self._process.wait())))

    def begin(self, task: Task) -> None:
        """Hand out a task."""
        self.task = task
        self._send(task)

    def stop(self) -> None:
        """Ask for the end after the current batch; one that is loading its judge is ended at once."""
        if self.is_ready:
            self._send(_STOP)
        else:
            self._process.kill()

    def close(self, seconds: float) -> None:
        """Wait for the end, and bring it about if it does not come."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    @property
    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        self._stderr.seek(0)
        return self._stderr.read()[-_SHOWN:].decode(errors="replace").strip()


class Scheduler(Protocol):
    """Has tasks done; whoever drives it knows nothing else of where and by whom."""

    #: Number of workers.
    size: int

    def run(
        self, tasks: Iterator[Task], *, is_alone: Callable[[], bool], should_stop: Callable[[], bool]
    ) -> Iterator[tuple[Task, Told]]:
        """Have tasks done; yield what is told of each.

        While `is_alone`, one worker works, and the others wait: for evaluation steps that only one is to write.
        """
        ...

    def close(self) -> None:
        """End all workers: those at work after their batch."""
        ...


def local_workers(workers: str, judges: Sequence[JudgeOptions]) -> LocalWorkers:
    """Divide this machine among workers, see `environments`."""
    return LocalWorkers(environments(workers, judges))


class LocalWorkers:
    """Hands tasks to processes on this machine, and starts one again that dies; see `Scheduler`."""

    def __init__(
        self, environments: Sequence[Mapping[str, str]], load: Callable[[JudgeRecord], Judge] | None = None
    ) -> None:
        self.size = len(environments)
        self._environments = list(environments)
        self._load = load
        self._told: queue.SimpleQueue[tuple[LocalWorker, Told]] = queue.SimpleQueue()
        self._workers: list[LocalWorker] = []

    def run(
        self, tasks: Iterator[Task], *, is_alone: Callable[[], bool], should_stop: Callable[[], bool]
    ) -> Iterator[tuple[Task, Told]]:
        """See `Scheduler.run`."""
        waiting: list[Task] = []
        deaths: dict[int, int] = {}
        self._hand_out(waiting, tasks, is_alone())
        while any(worker.task for worker in self._workers):
            if should_stop():
                raise Interrupted
            try:
                worker, told = self._told.get(timeout=_TELL_SECONDS)
            except queue.Empty:
                continue
            task = worker.task
            if told.kind == "log":
                logger.log(*told.value)
            elif told.kind == "died":
                self._workers.remove(worker)
                if task is not None:
                    deaths[task.number] = deaths.get(task.number, 0) + 1
                    self._mourn(worker, task, told.value, deaths[task.number])
                    waiting.append(task)
                worker.close(0)
            elif told.kind == "failed":
                raise told.value
            elif task is not None:
                worker.is_ready = True
                if told.kind == "ended":
                    worker.task = None
                yield task, told
            self._hand_out(waiting, tasks, is_alone())

    def _hand_out(self, waiting: list[Task], tasks: Iterator[Task], alone: bool) -> None:
        """Give tasks to workers without one, and start workers as long as there are tasks for them."""
        for environment in self._environments[: 1 if alone else None]:
            worker = next((one for one in self._workers if one.environment is environment), None)
            if worker is not None and worker.task is not None:
                continue
            task = waiting.pop(0) if waiting else next(tasks, None)
            if task is None:
                return
            if worker is None:
                worker = LocalWorker(self._load, environment, self._told)
                self._workers.append(worker)
            worker.begin(task)

    def _mourn(self, worker: LocalWorker, task: Task, code: int, deaths: int) -> None:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        words = worker.last_words
        said = f"; it wrote: {words}" if words else ""
        if deaths >= ATTEMPTS:
            raise JudgeError(
                f"{deaths} workers died over the same share of the rows, number {task.number}; the last {how}{said}",
                hint="A killed worker has often run out of memory: fewer `workers`, or smaller `batch_tokens`, may "
                "help.",
            )
        logger.warning("a worker %s; its share of the rows, number %d, is run again%s", how, task.number, said)

    def close(self) -> None:
        """See `Scheduler.close`."""
        for worker in self._workers:
            if worker.task is not None:
                worker.stop()
        end = time.monotonic() + _ENDING_SECONDS
        try:
            for worker in self._workers:
                worker.close(max(0.0, end - time.monotonic()))
        finally:  # a second Ctrl-C does not wait
            for worker in self._workers:
                worker.close(0)
            self._workers.clear()


# --- the side of a worker ---------------------------------------------------------------------------------------------


@dataclass
class ShareScorer:
    """What a worker keeps from one share to the next."""

    load: Callable[[JudgeRecord], Judge] | None
    tell: Callable[[Told], object]
    is_stopped: threading.Event = field(default_factory=threading.Event)
    judge: tuple[dict[str, Any], Judge] | None = None

    def do(self, task: Task) -> None:
        """Bring a share to the outcomes of a judge."""
        from geval_local.runs.directory import open_run
        from geval_local.runs.input_file import fingerprint_share

        done, told_at = 0, time.monotonic()

        def advance(count: int) -> None:
            nonlocal done, told_at
            done += count
            if time.monotonic() > told_at + _TELL_SECONDS:
                told_at = time.monotonic()
                self.tell(Told("done", done))

        manifest = RunManifest.new(fingerprint_share(task.share), task.settings, list(task.judges))
        with open_run(
            task.directory, manifest, retry_errors=task.retry_errors, accept_version=task.accept_version
        ) as run:
            run.compute(
                task.judge,
                self._find,
                advance=advance,
                should_stop=self.is_stopped.is_set,
                on_judge=lambda record, judge: self.tell(Told("met", (record.model_copy(deep=True), judge.precision))),
            )
            rows = run.manifest.input.rows
        self.tell(Told("ended", rows))

    def _find(self, record: JudgeRecord) -> Judge:
        """Load a judge, unless it is the one at work."""
        if self.judge is None or self.judge[0] != record.choice:
            if self.judge is not None:
                self.judge[1].close()
            from geval_local.judge.judge import Judge

            self.judge = None
            load = self.load or (lambda record: Judge.load(JudgeOptions(**record.choice)))
            self.judge = record.choice, load(record)
        return self.judge[1]


class _Telling(logging.Handler):
    """Hands messages of the package on."""

    def __init__(self, tell: Callable[[Told], object]) -> None:
        super().__init__(logging.WARNING)
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(Told("log", (record.levelno, record.getMessage())))


def work() -> None:
    """Be a worker until stdin ends."""
    tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no message
    lock = threading.Lock()

    def tell(told: Told) -> None:
        with lock, suppress(OSError):
            pickle.dump(told, out)
            out.flush()

    doing = ShareScorer(pickle.load(sys.stdin.buffer), tell)
    package = logging.getLogger("geval_local")
    package.addHandler(_Telling(tell))
    package.propagate = False
    threading.Thread(target=_receive, args=(tasks, doing.is_stopped), daemon=True).start()
    while (task := tasks.get()) is not None:
        try:
            doing.do(task)
        except Interrupted:
            break
        except GevalError as error:
            tell(Told("failed", error))
    if doing.judge is not None:
        doing.judge[1].close()


def _receive(tasks: queue.SimpleQueue[Task | None], is_stopped: threading.Event) -> None:
    """Take what the command sends; without a command there is nothing to work for."""
    with suppress(EOFError, OSError):
        while True:
            if (item := pickle.load(sys.stdin.buffer)) == _STOP:
                is_stopped.set()
            else:
                tasks.put(item)
    tasks.put(None)
    time.sleep(_ENDING_SECONDS if is_stopped.is_set() else _CLOSING_SECONDS)
    os._exit(1)  # no commit is lost by that
