"""The command line in a process of its own that begins where torch is loaded: importing it takes seconds every time.

A server is started once a test process. It imports what all commands need, does nothing else, and forks itself for
every command; so a command knows nothing of the tests. For tests of signals, streams, death and whole programs. What
concerns the start of Python itself (its imports, the names of arguments, its end without stdout) takes ``python -m``.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import shlex
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["code", "endless_steps", "script", "start"]

#: A request's longest text; the arguments and the environment of a command.
MOST = 1 << 20
#: How the number of a process and its code are told.
NUMBER = struct.Struct("i")


def start(arguments: Sequence[object], program: str = "", **settings: Any) -> Forked:
    """Begin ``geval-local`` with these arguments, or a function of this module; settings as of `subprocess.Popen`."""
    return Forked(["geval-local", *map(str, arguments)], program=program, **settings)


def script(line: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of Python's to its end: ``python FILE ...``, or what an installed package calls by a name."""
    return _ended(shlex.split(line), "_script", settings)


def code(text: str, *arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run statements to their end, as ``python -c`` does where torch is loaded already."""
    return _ended([text, *map(str, arguments)], "_code", settings)


def _ended(command: list[str], program: str, settings: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Forked(command, program=program, **pipes, **settings) as process:
        results, messages = process.communicate(timeout=300)
    return subprocess.CompletedProcess(command, process.returncode, results, messages)


class Forked(subprocess.Popen):
    """A process as `subprocess.Popen` has it, whose parent is the server."""

    def __init__(self, arguments: list[str], *, program: str, **settings: Any) -> None:
        self._program = program
        self._server, self._other = socket.socketpair()
        super().__init__(arguments, **settings)

    def _execute_child(self, arguments, executable, prepare, close_fds, pass_fds, cwd, env, *rest: Any) -> None:
        # After the environment: startupinfo, creationflags, shell, the six ends of pipes, restore_signals, ...
        streams = [own if own >= 0 else number for number, own in enumerate((rest[3], rest[6], rest[8]))]
        asked = {
            "program": self._program,
            "arguments": list(arguments),
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
        }
        socket.send_fds(_server(), [json.dumps(asked).encode()], [self._other.fileno(), *streams])
        self._other.close()
        self.pid = NUMBER.unpack(self._server.recv(NUMBER.size))[0]
        self._child_created = True
        self._close_pipe_fds(*rest[3:9])

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            self._look(0.0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None and not self._look(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _look(self, timeout: float | None) -> bool:
        self._server.settimeout(timeout)
        try:
            told = self._server.recv(NUMBER.size)
        except (BlockingIOError, TimeoutError):
            return False
        self.returncode = NUMBER.unpack(told)[0]
        self._server.close()
        return True


@functools.cache
def _server() -> socket.socket:
    """Start the server of this test process; it ends when its socket is closed."""
    own, other = socket.socketpair(type=socket.SOCK_SEQPACKET)  # one message, one request
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(Path(__file__).parent)])
    process = subprocess.Popen(
        [sys.executable, __file__, str(other.fileno())],
        pass_fds=[other.fileno()],
        env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    other.close()
    atexit.register(lambda: (own.close(), process.terminate(), process.wait()))
    return own


# --- in the server ----------------------------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Fork for every request, until nobody can ask any more."""

    import geval_local.cli.app
    import geval_local.judge.judge  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers end by themselves
    while True:
        text, files, _, _ = socket.recv_fds(control, MOST, 4)
        if not text:
            return
        if os.fork() == 0:
            _keep(json.loads(text), *files)
        for file in files:
            os.close(file)


def _keep(asked: dict[str, Any], answer: int, *streams: int) -> NoReturn:
    """Tell a command's number, wait for its end, and tell its code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        _become(asked, streams)
    for stream in streams:
        os.close(stream)
    os.write(answer, NUMBER.pack(pid))
    _, status = os.waitpid(pid, 0)
    os.write(answer, NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _become(asked: dict[str, Any], streams: Sequence[int]) -> NoReturn:
    """Be the command until it ends."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(3, 4096)
        os.setsid()
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"], TOKENIZERS_PARALLELISM="false")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
        stdout, stderr = {"errors": "strict"}, {"errors": "backslashreplace", "buffering": 1}
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding=encoding, closefd=False, **more)
            for number, mode, more in ((0, "r", {}), (1, "w", stdout), (2, "w", stderr))
        )
        sys.argv = asked["arguments"]
        # As Python begins: the folders of the environment, and what the first of them wants to be done.
        sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
        own = next((place for place in map(Path, sys.path) if (place / "sitecustomize.py").is_file()), None)
        if own is not None and os.environ.get("PYTHONPATH", "").startswith(str(own)):
            runpy.run_path(str(own / "sitecustomize.py"))
        globals()[asked["program"] or "_command_line"]()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            code = 120  # as Python ends where it cannot flush
        os._exit(code)


def _command_line() -> None:
    from geval_local.cli import main

    main()


def _script() -> None:
    name, *arguments = sys.argv
    if name == "python":
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
        return
    (entry,) = entry_points(group="console_scripts", name=name)
    sys.exit(entry.load()())


def _code() -> None:
    text, *arguments = sys.argv
    sys.argv = ["-c", *arguments]
    exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})


def endless_steps() -> None:
    """Be the command line with a judge that writes steps until a signal ends it."""
    import time

    from transformers import GenerationMixin

    def endless(self, *given, stopping_criteria, **named):
        prompt, count = given[0], 0
        while True:
            count += 1
            time.sleep(0.01)
            for one in stopping_criteria:
                one(prompt[:, :1].expand(1, prompt.shape[1] + count), None)

    GenerationMixin.generate = endless
    _command_line()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
