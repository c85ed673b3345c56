"""Ctrl-C and a scheduler's polite stop: the pack at work is finished and committed, then the run ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from geval_local.cli.output.console import note

__all__ = ["Stopper"]

#: Seconds in which a run that stops at once puts its files in order, undisturbed by a finger that stays on the key.
ENDING_SECONDS = 5.0


class Stopper:
    """Takes the signals while it is entered.

    A signal stops at once, as everywhere else, except while `is_working`: then it is noted, and the run asks `wanted`
    after every pack. A second signal stops at once. More of them within `ENDING_SECONDS` after that are passed over:
    they would interrupt the very cleaning up that removes what is half-made.
    """

    def __init__(self) -> None:
        self.is_working = False
        self._noted = False
        self._stopped: float | None = None

    def wanted(self) -> bool:
        """Whether a stop has been asked for."""
        return self._noted

    @contextmanager
    def listening(self) -> Iterator[Stopper]:
        """Take SIGINT and SIGTERM."""
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
        note("stopping after the pack at work; press Ctrl-C once more to stop at once", "yellow")
