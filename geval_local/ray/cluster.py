"""Ray: resources of a cluster divided among workers, and blocks scored by an actor pool of Ray Data.

The driver sends the location of a block and receives its report. Ray Data assigns blocks to actors, restarts dead
actors, and reassigns their blocks; reports arrive in the order of completion.

The cluster is the one at hand, one at an address, or one of this machine's own that goes again. An own one keeps to
this machine and this user: its processes listen on the loopback address only, its token is known to its own processes,
and its files lie in a private directory that is removed with it. It sends no usage statistics, looks up no name and
asks no cloud's metadata address.
"""

from __future__ import annotations

import inspect
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from geval_local.errors import ConfigurationError, GevalError, JudgeError
from geval_local.judge.steps import OnSteps, pinned_steps
from geval_local.metric import Metric
from geval_local.prompt import Prompt
from geval_local.ray.blocks import Block, Cut, survey
from geval_local.ray.worker import BlockScorer, Job, PartReport, pack, rows_of_block, unpack, write_bucket
from geval_local.runs.manifest import JudgeRecord

if TYPE_CHECKING:
    import pyarrow as pa
    import ray

    from geval_local.judge.judge import Judge

#: Seconds between two questions how far the steps are.
_ASKED_SECONDS = 1.0


class WorkerShare(NamedTuple):
    """Number of workers, and the resources of each."""

    workers: int
    cpus: int
    gpus: int


def share_out(nodes: Sequence[Mapping[str, float]], workers: int | None, choice: Mapping[str, Any]) -> WorkerShare:
    """Divide a cluster among workers."""
    device = str(choice.get("device", ""))
    if device.startswith("cuda:"):
        raise ConfigurationError(
            f"`device={device}` names one GPU, and `distributed` gives every worker one of its own",
            hint="Leave `device` out.",
        )
    gpus, cpus = ([int(node.get(name, 0)) for node in nodes] for name in ("GPU", "CPU"))
    if sum(gpus) and device != "cpu":
        each = 1
        if choice.get("device_map") is not None:
            each = _largest_share(gpus, workers or sum(count > 0 for count in gpus))
        places = sum(count // each for count in gpus) if each else 0
        workers = workers or places
        if workers > places:
            raise _too_many(workers, f"{sum(gpus)} GPUs")
        return WorkerShare(workers, min(1, sum(cpus) // workers), each)
    workers = workers or max(1, sum(count > 0 for count in cpus))
    each = _largest_share(cpus, workers)
    if not each:
        raise _too_many(workers, f"{sum(cpus)} CPUs")
    return WorkerShare(workers, each, 0)


def _largest_share(counts: Sequence[int], workers: int) -> int:
    """Return the largest number of units per worker with no worker on two machines; 0 if there are too few."""
    shares = range(max(counts, default=0), 0, -1)
    return next((share for share in shares if sum(count // share for count in counts) >= workers), 0)


def _too_many(workers: int, there: str) -> ConfigurationError:
    return ConfigurationError(
        f"the cluster has {there}, not enough for {workers} workers",
        hint="Ask for fewer with `workers`, or add machines with `ray start --address=HEAD:6379`.",
    )


def cluster_share(workers: int | None, record: JudgeRecord) -> WorkerShare:
    """Divide the connected cluster; see `share_out`."""
    import ray

    return share_out([node["Resources"] for node in ray.nodes() if node["Alive"]], workers, record.choice)


def survey_files(files: Sequence[Block], cut: Cut) -> Generator[list[Block], None, None]:
    """Survey files on the connected cluster, in any order; see `geval_local.ray.blocks.survey`."""
    with working("the survey of the input"):
        yield from results_of(
            handed_out(files).map_batches(partial(_survey, cut=cut), batch_size=1, batch_format="pyarrow")
        )


def _survey(table: pa.Table, cut: Cut) -> pa.Table:
    (file,) = unpack(table)
    try:
        return pack(survey(file, cut))
    except GevalError as error:
        return pack(error)


def score_blocks(
    blocks: Sequence[Block], load: Callable[[JudgeRecord], Judge], job: Job
) -> Generator[PartReport, None, None]:
    """Score blocks on the connected cluster, in any order."""
    from ray.data import ActorPoolStrategy

    (record,) = job.manifest.judges
    share = cluster_share(job.manifest.settings.workers, record)
    with working(f"the workers of {record.name}"):
        options: dict[str, Any] = {"max_tasks_in_flight_per_actor": 1 if job.alone else 2}
        known = inspect.signature(ActorPoolStrategy.__init__).parameters
        if not job.alone and {"enable_true_multi_threading", "max_concurrent_calls_per_actor"} <= set(known):
            # The next block is read, and the last one written, while the model computes.
            options |= {"enable_true_multi_threading": True, "max_concurrent_calls_per_actor": 2}
        yield from results_of(
            handed_out(blocks).map_batches(
                BlockScorer,
                fn_constructor_args=(load, job),
                batch_size=1,
                batch_format="pyarrow",
                compute=ActorPoolStrategy(size=min(share.workers, len(blocks)), **options),
                num_cpus=share.cpus,
                num_gpus=share.gpus,
            )
        )


def gather_blocks(blocks: Sequence[Block], job: Job) -> Generator[Block, None, None]:
    """Gather the rows of blocks on the connected cluster, in at most as many buckets; give these."""
    with working("gathering the rows"):
        rows = handed_out(list(enumerate(blocks))).map_batches(
            partial(rows_of_block, job=job, buckets=len(blocks)), batch_size=1, batch_format="pyarrow"
        )
        yield from results_of(rows.groupby("bucket").map_groups(partial(write_bucket, job=job), batch_format="pyarrow"))


def handed_out(items: Sequence[object]) -> ray.data.Dataset:
    """Make a data set of one row per block, which Ray Data gives to workers one by one.

    `from_arrow_refs` would start a task for every block, only to learn its size.
    """
    import ray

    return ray.data.from_blocks(list(map(pack, items)))


def results_of(data: Any) -> Iterator[Any]:
    """Unpack what workers return, as it comes; an error of the package is raised."""
    for table in data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for item in unpack(table):
            if isinstance(item, GevalError):
                raise item
            yield item


@contextmanager
def working(what: str) -> Iterator[None]:
    """Suppress Ray Data's progress bars and messages; turn Ray's errors into a `JudgeError` that says what failed."""
    import ray
    from ray.data import DataContext

    logger = logging.getLogger("ray.data")
    with ExitStack() as quiet:
        context = DataContext.get_current()
        quiet.enter_context(replaced(context, enable_progress_bars=False, print_on_execution_start=False))
        quiet.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.ERROR)
        try:
            yield
        except ray.exceptions.RayError as error:
            raise JudgeError(
                f"{what} failed: {str(error).strip()}",
                hint="A killed worker has often run out of memory: fewer `workers`, or smaller `batch_tokens`, may "
                "help. If the cluster itself is gone, start it again.",
            ) from error


# --- evaluation steps -------------------------------------------------------------------------------------------------


def steps_by_worker(
    load: Callable[[JudgeRecord], Judge],
    record: JudgeRecord,
    metrics: Sequence[Metric],
    workers: int | None,
    on_steps: OnSteps,
) -> list[Metric]:
    """Give metrics their steps: their own, those pinned on this machine, or ones that a worker writes, pinned here."""
    import ray

    share = cluster_share(workers, record)
    # It is asked how far it is while it writes.
    actor = ray.remote(num_cpus=share.cpus, num_gpus=share.gpus, max_concurrency=2)(_Writer).remote()
    try:
        writer = _RemoteJudge(record.name, actor, ray.get(actor.load.remote(load, record)))
        return [pinned_steps(writer, metric, on_steps=on_steps)[0] for metric in metrics]
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, GevalError):  # as the worker raised it
            raise cause from None
        raise JudgeError(f"the worker of {record.name} failed: {str(error).strip()}") from error
    finally:
        ray.kill(actor)  # its GPU is wanted


class _Writer:
    """The judge, on a worker."""

    def __init__(self) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        self._tokens = 0

    def load(self, load: Callable[[JudgeRecord], Judge], record: JudgeRecord) -> tuple[str, bool, str, bool]:
        self._judge = load(record)
        return self._judge.fingerprint, self._judge.is_chat, self._judge.generation, self._judge.writes_steps

    def write(self, prompt: Prompt, most: int) -> str:
        return self._judge.continue_text(prompt, max_new_tokens=most, on_token=partial(setattr, self, "_tokens"))

    def tokens(self) -> int:
        return self._tokens


class _RemoteJudge:
    """The judge as `pinned_steps` needs it, see `geval_local.judge.steps.StepsWriter`."""

    def __init__(self, name: str, actor: Any, about: tuple[str, bool, str, bool]) -> None:
        self.name = name
        self.fingerprint, self.is_chat, self.generation, self.writes_steps = about
        self._actor = actor

    def continue_text(self, prompt: Prompt, *, max_new_tokens: int, on_token: Callable[[int], object]) -> str:
        import ray

        written = self._actor.write.remote(prompt, max_new_tokens)
        while not ray.wait([written], timeout=_ASKED_SECONDS)[0]:
            on_token(ray.get(self._actor.tokens.remote()))
        return str(ray.get(written))


# --- a cluster to work on ---------------------------------------------------------------------------------------------


logger = logging.getLogger("geval_local")

#: Holds for every own cluster of this process: Ray reads its token once.
_TOKEN = secrets.token_hex(32)
#: Longest temporary directory behind which Ray's sockets still fit into the 107 characters of a socket's name.
_LONGEST_BASE = 24
#: Seconds in which Ray's processes have let go of their files.
_REMOVAL_SECONDS = 10.0
#: Seconds between two looks at the head of a cluster, and looks in vain after which it counts as gone.
_LOOK_SECONDS = 3.0
_LOOKS = 3


@contextmanager
def connected(address: str | None, workers: int | None) -> Iterator[None]:
    """Connect to the cluster at hand, to the one at `address`, or to a temporary one on this machine."""
    # Read when Ray is imported and when its processes start.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Or else every restart policy of Ray Data's own is announced as an error on stderr.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with ExitStack() as own:
        imported: Any = sys.modules.get("ray")
        options: dict[str, Any] = {"address": address or "local"}
        if address is None and not (imported is not None and imported.is_initialized()):
            _set(_own_settings(), own)
            options |= {"include_dashboard": False, "_temp_dir": str(own.enter_context(_private_directory()))}
            if workers is not None and workers > (os.cpu_count() or 1):
                options["num_cpus"] = workers
        try:
            import ray
        except ImportError as error:
            raise ConfigurationError(
                "Ray is not installed, and `distributed=ray` needs it", hint="pip install 'geval-local[ray]'"
            ) from error
        if ray.is_initialized():
            yield
            return
        # Ray takes SIGTERM for itself; it is the caller's.
        is_main = threading.current_thread() is threading.main_thread()
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
        try:
            if address is None:
                _confine(own)
            with _without_stderr():
                ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises a bare one where a machine is too busy to begin
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ConfigurationError(
                f"cannot reach a Ray cluster at {address or 'this machine'}: {told}",
                hint="`ray start --head` begins one; if that cluster asks for a token, set RAY_AUTH_MODE and "
                "RAY_AUTH_TOKEN as there; leave `address` out for a cluster of this machine's own.",
            ) from error
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        try:
            with watched_head(ray.get_runtime_context().gcs_address):
                yield
        finally:
            ray.shutdown()


@contextmanager
def watched_head(address: str, seconds: float = _LOOK_SECONDS) -> Iterator[None]:
    """Log an error when a cluster's head at HOST:PORT stays silent: Ray soon ends this process, without a word."""
    host, _, port = address.rpartition(":")
    is_over = threading.Event()

    def watch() -> None:
        failed = 0
        while failed < _LOOKS and not is_over.wait(seconds):
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
                failed = 0
            except OSError:
                failed += 1
        if failed == _LOOKS:
            logger.error(
                "the head of the Ray cluster at %s does not answer; if it is gone, Ray ends this run within a minute; "
                "finished blocks are kept: start the cluster, then repeat the command",
                address,
            )

    thread = threading.Thread(target=watch, name="watched-head", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _own_settings() -> dict[str, str]:
    """Say what an own cluster's processes find in their environment; what the user has set stays."""
    settings = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    if "RAY_worker_niceness" not in os.environ:
        # Ray's workers are 15 times nicer than everybody else, and get next to nothing beside other work. Here they are
        # the command itself, whose first process only waits for them.
        settings["RAY_worker_niceness"] = "0"
    if not any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        # Or else Ray writes one into ~/.ray/auth_token, where everybody may read it.
        settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}
    return settings


def _set(settings: dict[str, str], own: ExitStack) -> None:
    """Set variables of the environment until the stack ends."""
    for name, value in settings.items():
        before = os.environ.get(name)
        if before is None:
            own.callback(os.environ.pop, name, None)
        else:
            own.callback(os.environ.__setitem__, name, before)
        os.environ[name] = value


@contextmanager
def _private_directory() -> Iterator[Path]:
    """Make a directory for a cluster's logs, sockets and spilled objects that only this user may enter, and remove it.

    Ray opens the directory that it is given to everybody, so it is given one inside.
    """
    base = tempfile.gettempdir()
    short = base if len(base) <= _LONGEST_BASE or not os.path.isdir("/tmp") else "/tmp"
    directory = Path(tempfile.mkdtemp(prefix="geval-ray-", dir=short))
    try:
        yield directory / "r"
    finally:
        end = time.monotonic() + _REMOVAL_SECONDS
        while directory.exists() and time.monotonic() < end:
            shutil.rmtree(directory, ignore_errors=True)
            if directory.exists():  # a process of the cluster has just written its last line
                time.sleep(0.1)


def _confine(own: ExitStack) -> None:
    """Keep an own cluster on the loopback address, and start no dashboard process.

    Even without its pages the dashboard process looks for a cloud's metadata address, and no option switches it off. A
    Ray that names these things otherwise is left as it is: tests/house/test_network.py tells.
    """
    from ray._private import ray_constants, services

    own.enter_context(replaced(services, start_api_server=lambda *_, **__: (None, None)))
    # The constant is read when Ray is imported, which may be long ago.
    own.enter_context(replaced(ray_constants, ENABLE_RAY_CLUSTER=False))


@contextmanager
def replaced(target: object, **values: object) -> Iterator[None]:
    """Set attributes of a module or an object for a while, as far as it has them."""
    before = {name: getattr(target, name) for name in values if hasattr(target, name)}
    try:
        for name in before:
            setattr(target, name, values[name])
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Silence what Ray's own code writes past Python; what matters in it is raised."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
