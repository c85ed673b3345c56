"""The Ray cluster: the connected one, one at an address, or a temporary cluster on this machine, stopped at the end.

A temporary cluster is private to this machine and this user: its processes listen on the loopback address only, only
they know its token, and its files are in a private directory that is removed with it. It sends no usage statistics,
looks up no host name and asks no cloud's metadata address.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from unittest.mock import patch

from filelock import FileLock, Timeout

from geval_local.errors import ConfigurationError

logger = logging.getLogger("geval_local")

#: Token of all temporary clusters of this process: Ray reads it only once.
_TOKEN = secrets.token_hex(32)
#: Longest temporary directory, characters: a Unix socket's path has at most 107, and Ray appends its own names.
_LONGEST_BASE = 24
#: Seconds that Ray's processes may take to start: on a busy machine Ray's own limit of 30 s is too short.
_START_SECONDS = 180
#: How often a temporary cluster is started if its processes die meanwhile.
_STARTS = 3
#: Seconds to wait for an answer of a cluster.
_ANSWER_SECONDS = 60
#: Private names of Ray that are patched while a temporary cluster starts: module and name.
PRIVATE_NAMES = (
    ("ray._private.services", "start_api_server"),
    ("ray._private.services", "get_node"),
    ("ray._private.ray_constants", "ENABLE_RAY_CLUSTER"),
)
#: Prefix of the directories of temporary clusters.
_PREFIX = "geval-ray-"
#: File in a temporary cluster's directory that its driver keeps locked.
_LOCK = "driver.lock"
#: Seconds to wait until Ray's processes have closed their files.
_REMOVAL_SECONDS = 10.0
#: Seconds between two checks of a cluster's head, and failed checks after which it counts as gone.
_LOOK_SECONDS = 3.0
_LOOKS = 3
#: Seconds without an answer of a head that can be reached, after which it counts as gone.
_SILENT_SECONDS = 120.0


class _TooBusyError(ConfigurationError):
    """A machine on which Ray's processes do not start in the time that they give each other."""


@contextmanager
def connected(address: str | None, workers: int | None) -> Iterator[None]:
    """Connect to this process's running Ray, to the cluster at `address`, or to a temporary one on this machine."""
    # Read when Ray is imported and when its processes start.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Otherwise Ray logs every restart policy of Ray Data as an error on stderr.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    imported: Any = sys.modules.get("ray")
    if imported is not None and imported.is_initialized():
        yield
        return
    with ExitStack() as stack:
        if address is None:
            stack.enter_context(_environment(own_settings()))
        try:
            import ray
        except ImportError as error:
            raise ConfigurationError(
                "Ray is not installed, and `workers=ray` needs it", hint="pip install 'geval-local[ray]'"
            ) from error
        options: dict[str, Any] = {"address": address or "local"}
        if address is not None:
            check_answers(address)
        else:
            _confine(stack)
            options |= {"include_dashboard": False, "_temp_dir": str(stack.enter_context(_private_directory()))}
            if workers is not None and workers > (os.cpu_count() or 1):
                options["num_cpus"] = workers
        for attempt in range(_STARTS, 0, -1):
            try:
                _initialize(options)
                break
            except _TooBusyError:
                if attempt == 1:
                    raise
                logger.warning("Ray's processes died while they started, since this machine is busy; starting again")
        stack.callback(_shut_down)
        here = ray.get_runtime_context()
        stack.enter_context(watched_head(here.gcs_address, look=partial(_loss, here.get_node_id())))
        yield


def _shut_down() -> None:
    """Disconnect; end this process if that hangs, as with a raylet that hangs: what is finished has been kept."""
    import ray

    is_over = threading.Event()

    def watch() -> None:
        if not is_over.wait(_ANSWER_SECONDS):
            logger.error("the Ray cluster does not let go; finished work is kept: repeat the command")
            os._exit(1)

    threading.Thread(target=watch, name="watched-end", daemon=True).start()
    ray.shutdown()
    is_over.set()


def check_answers(address: str, seconds: float = _ANSWER_SECONDS) -> None:
    """Try the connection in another process first: Ray waits forever for some clusters that do not answer."""
    code = f"import ray; ray.init(address={address!r}, log_to_driver=False)"
    try:
        subprocess.run(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigurationError(
            f"the Ray cluster at {address} has not answered for {seconds:g} s",
            hint="Is it another machine's, or behind a firewall? `ray status` on it tells its "
            "address. A cluster that was started for 127.0.0.1 is reached by `auto` only.",
        ) from error


def _initialize(options: dict[str, Any]) -> None:
    import ray

    # Ray replaces the signal handlers; restore the caller's.
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM) if is_main}
    try:
        with _without_stderr():
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises a plain Exception if a machine is too busy to start it
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        if options["address"] == "local":
            ray.shutdown()
            raise _TooBusyError(
                f"this machine is too busy to start Ray: {told}",
                hint="Try again when it is less busy; or leave Ray out: `workers=N` starts processes of its own.",
            ) from error
        raise ConfigurationError(
            f"cannot reach a Ray cluster at {options['address']}: {told}",
            hint="`ray start --head` begins one; if that cluster asks for a token, set RAY_AUTH_MODE and "
            "RAY_AUTH_TOKEN as there; leave `address` out for a cluster of this machine's own.",
        ) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _loss(node: str) -> str:
    """Return why a process on a node, named by its id, can no longer use its cluster; empty if it can.

    A driver whose raylet or head hangs waits for it in native code: it raises no error and handles no signal.
    """
    import ray

    answers: SimpleQueue[list[dict[str, Any]]] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(ray.nodes())
        except Exception:  # of any kind, while the cluster ends; Ray says what matters
            answers.put([])

    threading.Thread(target=ask, name="asks-head", daemon=True).start()
    try:
        nodes = answers.get(timeout=_SILENT_SECONDS)
    except Empty:
        return f"the head of the Ray cluster has not answered for {_SILENT_SECONDS:g} s"
    is_lost = any(one["NodeID"] == node and not one["Alive"] for one in nodes)
    return "the Ray cluster has lost this machine" if is_lost else ""


@contextmanager
def watched_head(address: str, seconds: float = _LOOK_SECONDS, look: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Log an error if a cluster's head at HOST:PORT stays silent: Ray soon ends this process without a message.

    As long as it can be reached, call `look`; end this process, as Ray does if its raylet dies, if that gives a reason.
    """
    host, _, port = address.rpartition(":")
    is_over = threading.Event()

    def watch() -> None:
        failed = 0
        while failed < _LOOKS and not is_over.wait(seconds):
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
                failed = 0
                if (reason := look()) and not is_over.is_set():
                    logger.error("%s; finished shares are kept: repeat the command", reason)
                    os._exit(1)
            except OSError:
                failed += 1
        if failed == _LOOKS:
            logger.error(
                "the head of the Ray cluster at %s does not answer; if it is gone, Ray ends this run within a minute; "
                "finished shares are kept: start the cluster, then repeat the command",
                address,
            )

    thread = threading.Thread(target=watch, name="watched-head", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(seconds)  # it may wait for a head that hangs


def own_settings() -> dict[str, str]:
    """Return the environment of a temporary cluster's processes; variables that the user set stay."""
    settings = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    for name in ("RAY_raylet_start_wait_time_s", "RAY_gcs_server_port_wait_time_s"):
        if name not in os.environ:
            settings[name] = str(_START_SECONDS)
    if "RAY_worker_niceness" not in os.environ:
        # Ray runs workers at nice 15, so they starve on a busy machine. Here they do the command's work; its first
        # process only waits for them.
        settings["RAY_worker_niceness"] = "0"
    if not any(name in os.environ for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        # Otherwise Ray writes a token into ~/.ray/auth_token, which everybody may read.
        settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _TOKEN}
    return settings


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _private_directory() -> Iterator[Path]:
    """Make a directory for a cluster's logs, sockets and spilled objects that only this user may enter, and remove it.

    Ray makes its own directory readable for everybody, so it gets a subdirectory.
    """
    base = tempfile.gettempdir()
    short = base if len(base) <= _LONGEST_BASE or not os.path.isdir("/tmp") else "/tmp"
    remove_abandoned(Path(short))
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=short))
    lock = FileLock(directory / _LOCK, mode=0o600)
    try:
        with lock:
            yield directory / "r"
    finally:
        end = time.monotonic() + _REMOVAL_SECONDS
        while directory.exists() and time.monotonic() < end:
            shutil.rmtree(directory, ignore_errors=True)
            if directory.exists():  # a process of the cluster has just written its last line
                time.sleep(0.1)


def remove_abandoned(base: Path) -> None:
    """Remove the directories of temporary clusters whose drivers were killed; their locks are free."""
    for directory in base.glob(f"{_PREFIX}*"):
        try:
            if directory.is_symlink() or directory.stat().st_uid != os.getuid() or not (directory / _LOCK).is_file():
                continue
            with FileLock(directory / _LOCK, timeout=0):
                shutil.rmtree(directory, ignore_errors=True)
        except (OSError, Timeout, AttributeError):  # in use, or just removed; Windows has no user ids
            continue


def _confine(stack: ExitStack) -> None:
    """Keep a temporary cluster on the loopback address, and start no dashboard process.

    Even without its pages the dashboard process asks for a cloud's metadata address, and no option disables it. If a
    Ray version has other names, the patches have no effect, and tests/house/test_network.py fails.
    """
    from ray._private import services

    get_node = getattr(services, "get_node", None)

    def patient(*given: Any, **named: Any) -> Any:
        """Wait up to `_START_SECONDS` for the node: Ray itself retries for 30 s only."""
        end, seen = time.monotonic() + _START_SECONDS, False
        while True:
            try:
                return get_node(*given, **named)  # type: ignore[misc]  # only called if Ray has it
            except RuntimeError as error:
                if time.monotonic() > end:
                    raise
                if own_raylets() == 0 and seen:  # it ends itself after some seconds without its helpers
                    raise RuntimeError("its raylet died") from error
                seen |= own_raylets() > 0
                time.sleep(0.2)

    # Ray reads the constant at import, which may already have happened.
    instead = {"start_api_server": lambda *_, **__: (None, None), "get_node": patient, "ENABLE_RAY_CLUSTER": False}
    for module, name in PRIVATE_NAMES:
        stack.enter_context(patch.object(import_module(module), name, instead[name], create=True))


def own_raylets() -> int:
    """Count the living raylets that this process has started; 0 where a system has no /proc."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            head, _, rest = path.read_text().rpartition(")")
            state, parent, *_ = rest.split()
            found += head.endswith("(raylet") and state not in "ZX" and int(parent) == os.getpid()
    return found


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Silence what Ray's native code writes to stderr; errors that matter are raised."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
