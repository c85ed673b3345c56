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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
TELL_SECONDS = 0.5
#: Seconds in which workers finish their batch when the run is stopped.
ENDING_SECONDS = 30.0
#: Seconds in which a worker without a command gives its judge back.
_CLOSING_SECONDS = 5.0
#: Most characters shown of what a dead worker wrote to stderr.
_SHOWN = 400
_DEVICES = "CUDA_VISIBLE_DEVICES"
_THREADS = "OMP_NUM_THREADS"
#: What a worker's process does first: it finds modules as the command does.
_BEGIN = (
    "import sys, pickle; sys.path[:] = pickle.load(sys.stdin.buffer); from geval_local.runs.workers import serve; "
    "serve()"
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
    #: Identifier of the whole run.
    run: str
    retry_errors: bool = False


@dataclass(frozen=True)
class Told:
    """A message of a worker."""

    #: ``met``: the judge is loaded, with its record and precision; ``done``: so many outcomes of the share; ``ended``:
    #: the share is finished; ``died``: the worker is gone, and how; ``lost``: so is its machine; ``failed``: with the
    #: error; ``log``: level and text; ``size``: there are so many workers from now on.
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
STOP = "stop"


class Process:
    """A process that works for this one.

    Parameters
    ----------
    work : callable
        What it does; it gets a `Command`.
    environment : mapping of str to str
        Variables of its environment besides those of this process.
    hear : callable
        Is called, in a thread, with what it tells, and at last with `Told` of its death.
    """

    def __init__(
        self, work: Callable[[Command], None], environment: Mapping[str, str], hear: Callable[[Any], object]
    ) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=os.environ | {"HF_HUB_OFFLINE": "1"} | dict(environment),
            start_new_session=True,  # a terminal's Ctrl-C is for the command, which then stops its workers
        )
        self.send(sys.path)
        self.send(work)
        threading.Thread(target=self._listen, args=(hear,), daemon=True).start()

    def send(self, item: object) -> None:
        """Send something that its `Command` gives out."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it is gone, as `_listen` says
            pickle.dump(item, self._process.stdin)
            self._process.stdin.flush()

    def _listen(self, hear: Callable[[Any], object]) -> None:
        assert self._process.stdout is not None
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                hear(pickle.load(self._process.stdout))
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        with suppress(ValueError):  # it was closed
            self._stderr.seek(0)
            words = self._stderr.read()[-_SHOWN:].decode(errors="replace").strip()
            hear(Told("died", f"{how}; it wrote: {words}" if words else how))

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def close(self, seconds: float = 0.0) -> None:
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


class Workers:
    """Workers that do tasks, each in a place of its own; whoever drives them knows nothing else of where they are.

    A task whose worker dies is done again by another. Subclasses begin tasks, and hear of them by `hear`.
    """

    def __init__(self, size: int) -> None:
        #: Number of workers.
        self.size = size
        #: What each place is at work on, and the places whose workers have loaded their judge.
        self.busy: dict[int, Task] = {}
        self.ready: set[int] = set()
        self._told: queue.SimpleQueue[tuple[int, Told]] = queue.SimpleQueue()

    def hear(self, place: int, told: Told) -> None:
        """Take a message, in any thread."""
        self._told.put((place, told))

    def begin(self, place: int, task: Task) -> None:
        """Have a task done at a place, by a worker that is there or by a new one."""
        raise NotImplementedError

    def close(self) -> None:
        """End all workers: those at work after their batch."""
        raise NotImplementedError

    def next_told(self) -> tuple[int, Told] | None:
        """Wait a moment for what is told of a task."""
        try:
            place, told = self._told.get(timeout=TELL_SECONDS)
        except queue.Empty:
            return None
        if told.kind == "failed":
            raise told.value
        if told.kind == "log":
            logger.log(*told.value)
        elif told.kind == "size":
            self.size = told.value
        else:
            return place, told
        return None

    def run(
        self, tasks: Iterator[Task], *, is_alone: Callable[[], bool], should_stop: Callable[[], bool]
    ) -> Iterator[tuple[Task, Told]]:
        """Have tasks done; yield what is told of each.

        While `is_alone`, one worker works, and the others wait: for evaluation steps that only one is to write.
        """
        waiting: list[Task] = []
        deaths: Counter[int] = Counter()
        while self._hand_out(waiting, tasks, is_alone()):
            if should_stop():
                raise Interrupted
            if (message := self.next_told()) is None:
                continue
            place, told = message
            task = self.busy.get(place)
            if told.kind in ("died", "lost"):
                self.ready.discard(place)
                if task is not None:
                    deaths[task.number] += told.kind == "died"
                    _mourn(task, told.value, deaths[task.number])
                    waiting.append(self.busy.pop(place))
            elif task is not None:
                self.ready.add(place)
                if told.kind == "ended":
                    del self.busy[place]
                yield task, told

    def _hand_out(self, waiting: list[Task], tasks: Iterator[Task], alone: bool) -> bool:
        """Give tasks to places without one, as long as there are tasks for them; say whether any is at work."""
        for place in range(1 if alone else self.size):
            task = None if place in self.busy else waiting.pop(0) if waiting else next(tasks, None)
            if task is not None:
                self.busy[place] = task
                self.begin(place, task)
        return bool(self.busy)


def _mourn(task: Task, how: str, deaths: int) -> None:
    """Say that a worker has died, and how; give up a share that has cost too many."""
    if deaths >= ATTEMPTS:
        raise JudgeError(
            f"{deaths} workers died over the same share of the rows, number {task.number}; the last {how}",
            hint="A killed worker has often run out of memory: fewer `workers`, or smaller `batch_tokens`, may help.",
        )
    logger.warning("a worker %s; its share of the rows, number %d, is run again", how, task.number)


class LocalWorkers(Workers):
    """Workers that are processes of this machine, each with its environment."""

    def __init__(
        self, environments: Sequence[Mapping[str, str]], load: Callable[[JudgeRecord], Judge] | None = None
    ) -> None:
        super().__init__(len(environments))
        self._environments = list(environments)
        self._work = partial(work, load)
        self._processes: dict[int, Process] = {}

    def begin(self, place: int, task: Task) -> None:
        """See `Workers.begin`."""
        if place not in self._processes:
            self._processes[place] = Process(self._work, self._environments[place], partial(self.hear, place))
        self._processes[place].send(task)

    def next_told(self) -> tuple[int, Told] | None:
        """See `Workers.next_told`."""
        message = super().next_told()
        if message is not None and message[1].kind == "died":
            self._processes.pop(message[0]).close()
        return message

    def close(self) -> None:
        """See `Workers.close`; a worker that is loading its judge is ended at once."""
        for place in self.busy.keys() & self._processes.keys():
            process = self._processes[place]
            process.send(STOP) if place in self.ready else process.kill()
        end = time.monotonic() + ENDING_SECONDS
        try:
            for process in self._processes.values():
                process.close(max(0.0, end - time.monotonic()))
        finally:  # a second Ctrl-C does not wait
            for process in self._processes.values():
                process.close()
            self._processes.clear()


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
            if time.monotonic() > told_at + TELL_SECONDS:
                told_at = time.monotonic()
                self.tell(Told("done", done))

        manifest = RunManifest.new(fingerprint_share(task.share), task.settings, list(task.judges))
        # A worker of a command that was killed may be in it still.
        with open_run(task.directory, manifest, retry_errors=task.retry_errors, patience=2 * ENDING_SECONDS) as run:
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


class Command:
    """The command, as a process that works for it knows it."""

    def __init__(self) -> None:
        #: What the command asks for; None when there is no command any more.
        self.asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: That it asks for the end.
        self.is_stopped = threading.Event()
        self._out = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # what a library prints is no message
        self._lock = threading.Lock()
        package = logging.getLogger("geval_local")
        package.addHandler(_Telling(self.tell))
        package.propagate = False
        threading.Thread(target=self._receive, daemon=True).start()

    def tell(self, told: object) -> None:
        """Tell the command something."""
        with self._lock, suppress(OSError):
            pickle.dump(told, self._out)
            self._out.flush()

    def _receive(self) -> None:
        """Take what the command sends; without a command there is nothing to work for."""
        with suppress(EOFError, OSError):
            while True:
                if (item := pickle.load(sys.stdin.buffer)) == STOP:
                    self.is_stopped.set()
                else:
                    self.asked.put(item)
        self.asked.put(None)
        time.sleep(ENDING_SECONDS if self.is_stopped.is_set() else _CLOSING_SECONDS)
        os._exit(1)  # no commit is lost by that


def serve() -> None:
    """Work for the command that has started this process."""
    doing = pickle.load(sys.stdin.buffer)
    doing(Command())


def work(load: Callable[[JudgeRecord], Judge] | None, command: Command) -> None:
    """Do the tasks of a command."""
    scorer = ShareScorer(load, command.tell, command.is_stopped)
    while (task := command.asked.get()) is not None:
        try:
            scorer.do(task)
        except Interrupted:
            break
        except GevalError as error:
            command.tell(Told("failed", error))
    if scorer.judge is not None:
        scorer.judge[1].close()
