"""The judges of a server: loaded while it listens already, each behind a batcher of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from geval_local.serve.counters import Counters

if TYPE_CHECKING:
    from geval_local.judge import Judge
    from geval_local.judging.batcher import Batcher

__all__ = ["Load", "ServedJudges"]

#: Loads a judge; called once, in a thread of its own, where torch is imported too.
Load: TypeAlias = "Callable[[], Judge]"


class ServedJudges:
    """Judges by name, with their batchers."""

    def __init__(
        self,
        given: Mapping[str, Judge | Load],
        queue: int,
        counters: Counters,
        on_loaded: Callable[[BaseException | None], None] = lambda error: None,
    ) -> None:
        self.names = tuple(given)
        self.judges: dict[str, Judge] = {}
        self.batchers: dict[str, Batcher] = {}
        self._queue = queue
        self._counters = counters
        self._on_loaded = on_loaded
        self._lock = threading.Lock()
        self._is_closed = False
        self._loads: dict[str, Load] = {}
        for name, one in given.items():
            if callable(one):
                self._loads[name] = one
            else:
                self._take(name, one)

    @property
    def are_ready(self) -> bool:
        """Whether all of them are loaded."""
        return len(self.batchers) == len(self.names)

    def start(self) -> None:
        """Load those that are not loaded, in a thread that does not keep the process alive."""
        if self._loads:
            threading.Thread(target=self._load, name="geval-local-loading", daemon=True).start()

    def _load(self) -> None:
        try:
            for name, load in self._loads.items():
                self._take(name, load())
        except BaseException as error:
            self._on_loaded(error)
        else:
            self._on_loaded(None)

    def _take(self, name: str, judge: Judge) -> None:
        from geval_local.judging.batcher import Batcher

        with self._lock:
            if self._is_closed:
                return
            batcher = Batcher(judge, queue=self._queue, on_batch=partial(self._counters.batch, name))
            self._counters.watch(name, batcher)
            self.judges[name] = judge
            self.batchers[name] = batcher

    def close(self) -> None:
        """Finish the calls that are waiting, and take no more."""
        with self._lock:
            self._is_closed = True
            batchers = list(self.batchers.values())
        for batcher in batchers:
            batcher.close()
