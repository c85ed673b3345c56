"""Ctrl-C and SIGTERM: the current batch is finished and committed, then the run ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from geval_local.cli.output.console import note

__all__ = ["Stopper"]

#: Seconds of clean-up after an immediate stop, during which further signals are ignored.
ENDING_SECONDS = 5.0


class Stopper:
    """Signal handler, active within its context.

    A signal stops immediately, as usual, except while `is_working`: then it is recorded, and the run checks `wanted`
    after every pack. A second signal stops immediately. Further ones within `ENDING_SECONDS` are ignored:
    they would interrupt the removal of partial files.
    """

    def __init__(self) -> None:
        self.is_working = False
        self._noted = False
        self._stopped: float | None = None

    def wanted(self) -> bool:
        """Whether a stop was requested."""
        return self._noted

    @contextmanager
    def listening(self) -> Iterator[Stopper]:
        """Handle SIGINT and SIGTERM."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        taken = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, before in taken.items():
                signal.signal(number, before)

    def _take(self, number: int, frame: Any) -> None:
        if not self.is_working or self._noted:
            now = time.monotonic()
            if self._stopped is not None and now - self._stopped < ENDING_SECONDS:
                return
            self._stopped = now
            raise KeyboardInterrupt
        self._noted = True
        note("stopping after the current batch; press Ctrl-C again to stop at once", "yellow")
