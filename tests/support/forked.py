"""The command line in a process of its own, forked from the test's, where what takes seconds to import is loaded.

For tests of signals, streams and death. What concerns the start of Python itself (its imports, the names of arguments,
its end without stdout) takes ``python -m geval_local``.
"""

from __future__ import annotations

import os
import runpy
import shlex
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, NoReturn

__all__ = ["script", "start"]


def start(arguments: Sequence[object], program: Callable[[], object] | None = None, **settings: Any) -> Forked:
    """Begin ``geval-local`` with these arguments, or another program; settings as of `subprocess.Popen`."""
    import geval_local.cli.app  # here, not in every child
    import geval_local.judge.judge  # noqa: F401

    return Forked(["geval-local", *map(str, arguments)], program=program or _command_line, **settings)


def script(line: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of Python's to its end: ``python FILE ...``, or what an installed package calls by a name."""
    name, *arguments = shlex.split(line)

    def program() -> None:
        if name == "python":
            sys.argv = arguments
            sys.path.insert(0, os.path.dirname(arguments[0]))
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            (entry,) = entry_points(group="console_scripts", name=name)
            sys.exit(entry.load()())

    with Forked(
        [name, *arguments], program=program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings
    ) as process:
        results, messages = process.communicate(timeout=300)
    return subprocess.CompletedProcess([name, *arguments], process.returncode, results, messages)


def _command_line() -> None:
    from geval_local.cli import main

    main()


class Forked(subprocess.Popen):
    """A child as `subprocess.Popen` has it, that goes on from here instead of executing a file."""

    def __init__(self, arguments: list[str], *, program: Callable[[], object], **settings: Any) -> None:
        self._program = program
        super().__init__(arguments, **settings)

    def _execute_child(self, arguments, executable, prepare, close_fds, pass_fds, cwd, env, *rest: Any) -> None:
        # After the environment: startupinfo, creationflags, shell, the six ends of pipes, restore_signals, ...
        streams, is_leader = (rest[3], rest[6], rest[8]), bool(rest[14])
        self.pid = os.fork()
        if self.pid == 0:
            _become(self._program, arguments, streams, prepare, cwd, env, is_leader=is_leader)
        self._child_created = True
        self._close_pipe_fds(*rest[3:9])


def _become(program, arguments, streams, prepare, cwd, env, *, is_leader: bool) -> NoReturn:
    """Be the child until it ends; nothing of the test that it is a copy of may go on."""
    code = 1
    try:
        for number, stream in enumerate(streams):
            if stream >= 0:
                os.dup2(stream, number)
        os.closerange(3, 4096)
        if is_leader:
            os.setsid()
        if cwd is not None:
            os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        # As a new interpreter begins; threads of the tokenizers and of OpenMP did not come along.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if prepare is not None:
            prepare()
        encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
        stdout, stderr = {"errors": "strict"}, {"errors": "backslashreplace", "buffering": 1}
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding=encoding, closefd=False, **more)
            for number, mode, more in ((0, "r", {}), (1, "w", stdout), (2, "w", stderr))
        )
        sys.argv = arguments
        import torch

        torch.set_num_threads(1)
        program()
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
