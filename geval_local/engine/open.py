"""Choose and open the backend of a judge, by the table of backends."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from geval_local.engine.backend import Backend
from geval_local.engine.unread_backend import UnreadBackend, keep_facts, kept_facts
from geval_local.options import JudgeOptions

#: Wraps the reading of weights: called with the function that reads them, returns its result.
OnRead = Callable[[Callable[[], Backend]], Backend]


def check_backend(options: JudgeOptions) -> Any:
    """Check that a judge can be loaded, without reading its weights; errors as for `Judge.load`."""
    return _module(options).check(options)


def open_backend(options: JudgeOptions, on_read: OnRead | None = None) -> Backend:
    """Open the backend of a judge.

    Parameters
    ----------
    options : JudgeOptions
        Which judge, and how it is loaded.
    on_read : callable, optional
        Called with the function that reads the weights. If an earlier start recorded the judge's identity, that is when
        the first figure is needed that no cache has; else at once.
    """
    may_wait, module = options.backend.may_wait, _module(options)
    checked = module.check(options)

    def read() -> Backend:
        backend: Backend = module.read(checked)
        if may_wait:
            keep_facts(backend.facts, checked)
        return backend

    if on_read is None:
        return read()
    facts = kept_facts(checked) if may_wait else None
    return on_read(read) if facts is None else UnreadBackend(checked, facts, partial(on_read, read))


def _module(options: JudgeOptions) -> Any:
    return importlib.import_module(f"geval_local.engine.{options.backend.module}")
