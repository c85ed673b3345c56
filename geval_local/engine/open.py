"""Choose and open the backend of a judge: the only module that knows all backends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from geval_local.engine.backend import Backend
from geval_local.engine.served_backend import check_served, read_served
from geval_local.engine.transformers_backend import check_transformers, read_transformers
from geval_local.engine.unread_backend import UnreadBackend, keep_facts, kept_facts
from geval_local.engine.vllm_backend import check_vllm, read_vllm
from geval_local.models.load import CheckedJudge
from geval_local.options import JudgeOptions

#: Wraps the reading of weights: called with the function that reads them, returns its result.
OnRead = Callable[[Callable[[], Backend]], Backend]


def check_backend(options: JudgeOptions) -> None:
    """Check that a judge can be loaded, without reading its weights; errors as for `Judge.load`."""
    if options.is_served:
        check_served(options)
    elif options.engine == "vllm":
        check_vllm(options)
    else:
        check_transformers(options)


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
    if options.is_served or options.engine == "vllm":
        found = partial(read_served, options) if options.is_served else partial(read_vllm, check_vllm(options))
        return found() if on_read is None else on_read(found)
    checked = check_transformers(options)
    read = partial(_read, checked)
    if on_read is None:
        return read()
    facts = kept_facts(checked)
    return on_read(read) if facts is None else UnreadBackend(checked, facts, partial(on_read, read))


def _read(checked: CheckedJudge) -> Backend:
    backend = read_transformers(checked)
    keep_facts(backend.facts, checked)
    return backend
