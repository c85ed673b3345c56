"""A command that Ray may end: if the cluster is gone, Ray exits from the driver without a message, with code 1.

So such a command runs in a child process, and the first process waits for it. If the child dies before its work is
complete, the command counts as interrupted.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from geval_local.cli.ending import EXIT_INTERRUPTED

_ON_RAY = re.compile(r'"workers":\s*"ray')
#: Seconds to end after a signal: a driver that waits for a hanging process of Ray does not handle signals.
ENDING_SECONDS = 60
#: Makes a Linux process die with its parent (prctl(2)).
_PR_SET_PDEATHSIG = 1


def is_on_ray(arguments: Sequence[str]) -> bool:
    """Whether a command line is about a run on Ray, judged without parsing its options."""
    if "--workers ray" in " ".join(arguments).replace("--workers=", "--workers "):
        return True
    if "resume" not in arguments[:2]:
        return False
    runs = [one for one in arguments if not one.startswith("-")][1:]
    for place in (place for one in map(Path, runs) for place in (one, one.parent / f".{one.name}.run")):
        with suppress(OSError, ValueError):
            if _ON_RAY.search((place / "manifest.json").read_text(encoding="utf-8")):
                return True
    return any("://" in one for one in runs)


def guarded(work: Callable[[], None], arguments: Sequence[str]) -> None:
    """Do the work of a command in a child process and exit with its code; if the child was cut off, as interrupted."""
    if not hasattr(os, "fork"):
        work()
        return
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.setpgid(0, 0)  # otherwise a terminal's signal would arrive twice: directly, and forwarded
        _die_with_parent()
        try:
            work()
        finally:
            os.write(tells, b"1")  # skipped if Ray ends the process
        return
    os.close(tells)

    def forward(number: int, frame: Any) -> None:
        os.kill(child, number)
        signal.alarm(ENDING_SECONDS)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os.set_blocking(told, False)  # processes of the cluster may hold the other end
    try:
        is_told = bool(os.read(told, 1))
    except BlockingIOError:
        is_told = False
    if not is_told:
        print(
            "the Ray cluster, or the machine that it ran on, is gone or hangs; finished work is kept. Continue "
            "with:\n"
            f"  {resume_command(arguments)}",
            file=sys.stderr,
        )
        code = EXIT_INTERRUPTED
    os._exit(code)


def resume_command(arguments: Sequence[str]) -> str:
    """Return the command that continues a run; the same command always does."""
    for place, one in enumerate(arguments):
        name, found, value = one.partition("=")
        if name in ("-o", "--output"):
            given = [value] if found else arguments[place + 1 : place + 2]
            return shlex.join(["geval-local", "resume", *given])
    return shlex.join(["geval-local", *arguments])


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
