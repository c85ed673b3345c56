"""A command that Ray may end: when a cluster is gone, Ray leaves its driver without a word, with code 1.

So such a command runs in a process of its own, and the one that was started waits for it. If that ends without having
come to its end, the command counts as interrupted.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from geval_local.cli.ending import EXIT_INTERRUPTED

_DISTRIBUTED = re.compile(r'"distributed":\s*"ray"')
#: Tells a process of Linux to die with the one that started it (prctl(2)).
_PR_SET_PDEATHSIG = 1


def is_distributed(arguments: Sequence[str]) -> bool:
    """Whether a command line is about a distributed run, as far as that can be told without reading its options."""
    if any(one.partition("=")[0] == "--distributed" for one in arguments):
        return True
    if "resume" not in arguments[:2]:
        return False
    runs = [one for one in arguments if not one.startswith("-")][1:]
    if any("://" in one for one in runs):
        return True
    try:
        return any(_DISTRIBUTED.search((Path(one) / "manifest.json").read_text(encoding="utf-8")) for one in runs)
    except (OSError, ValueError):
        return False


def guarded(work: Callable[[], None], arguments: Sequence[str]) -> None:
    """Do the work of a command in another process, and exit as it does; if it was cut off, as interrupted."""
    if not hasattr(os, "fork"):
        work()
        return
    told, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.setpgid(0, 0)  # or else a terminal's signal would come twice: from it, and handed on
        _die_with_parent()
        try:
            work()
        finally:
            os.write(tells, b"1")  # what ends Python itself does not come here
        return
    os.close(tells)

    def forward(number: int, frame: Any) -> None:
        os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os.set_blocking(told, False)  # processes of the cluster may hold the other end
    try:
        is_told = bool(os.read(told, 1))
    except BlockingIOError:
        is_told = False
    if not is_told:
        print(
            "the Ray cluster, or the machine that it ran on, is gone; finished blocks are kept. Continue with:\n"
            f"  {resume_command(arguments)}",
            file=sys.stderr,
        )
        code = EXIT_INTERRUPTED
    os._exit(code)


def resume_command(arguments: Sequence[str]) -> str:
    """Write the command that goes on with a run: the same again always does."""
    for place, one in enumerate(arguments):
        name, found, value = one.partition("=")
        if name in ("-o", "--output"):
            given = [value] if found else arguments[place + 1 : place + 2]
            return shlex.join(["geval-local", "resume", *given])
    return shlex.join(["geval-local", *arguments])


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
