"""The backend that waits with reading: it prepares prompts, and reads its weights when a figure is wanted.

On a CPU the facts of a judge are kept for its next start, so that rows that are all in the cache need no weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from geval_local.engine.backend import Backend, BackendFacts
from geval_local.engine.interface import Engine, Pack, Readout
from geval_local.engine.transformers_backend import VERSIONS
from geval_local.errors import WeightsError
from geval_local.models.load import CheckedJudge, own_sampling
from geval_local.models.precision import dtype_name
from geval_local.models.verdicts import Verdict, verdict_on
from geval_local.tokens.requests import Request

_KEPT = "facts"


def keep_facts(facts: BackendFacts, checked: CheckedJudge) -> None:
    """Keep the facts of a judge on the CPU for its next start."""
    verdict = _verdict(checked, facts.fingerprint)
    if verdict.read(_KEPT, BackendFacts) != facts:
        verdict.keep(_KEPT, facts)


def kept_facts(checked: CheckedJudge) -> BackendFacts | None:
    """Return what an earlier start with the same options found a judge to be; None if it is not known."""
    if not checked.is_on_cpu or (content := checked.known_fingerprint()) is None:
        return None
    kept = _verdict(checked, content).read(_KEPT, BackendFacts)
    if kept is None or checked.files.moved_or_new():  # reading the weights tells which file
        return None
    # What the files say stands above what is kept.
    dtype = checked.arguments["dtype"]
    named = {"dtype": dtype_name(dtype)} if isinstance(dtype, torch.dtype) else {}
    setup = {**kept.setup, "tokenizer": checked.tokenizer_hash, **named, **VERSIONS}
    return replace(
        kept, label=checked.entry.label, fingerprint=content, setup=setup, sampling=own_sampling(checked.directory)
    )


def _verdict(checked: CheckedJudge, content: str) -> Verdict:
    if not checked.is_on_cpu:
        return Verdict()
    asked = {"entry": checked.entry.model_dump(mode="json"), "options": checked.options.model_dump(mode="json")}
    return verdict_on([torch.device("cpu")], {"fingerprint": content, "tokenizer": checked.tokenizer_hash, **asked})


class UnreadBackend:
    """A backend whose weights are read when they are first needed.

    Parameters
    ----------
    checked : CheckedJudge
        The judge, without its weights.
    facts : BackendFacts
        What it is known to be.
    read : callable
        Reads the weights. What comes has to have these facts.
    """

    def __init__(self, checked: CheckedJudge, facts: BackendFacts, read: Callable[[], Backend]) -> None:
        self.facts = facts
        self.entry = checked.entry
        self.tokenizer = checked.tokenizer
        self._read = read
        self.reading = threading.RLock()
        self.engine: Engine = _UnreadEngine(self)

    @property
    def whole(self) -> Backend:
        """The backend with its weights; read at the first time."""
        with self.reading:
            return self._whole

    @cached_property
    def _whole(self) -> Backend:
        backend = self._read()
        # The probe's figures are as the number of threads had it.
        if replace(backend.facts, report=self.facts.report) != self.facts or backend.engine.name != self.engine.name:
            raise WeightsError(
                f"judge {self.facts.label!r} is not what it was when the run began",
                hint="Start again: what is in the cache stays valid for the judge that it came from.",
            )
        backend.engine.batch_tokens = backend.engine.limit = self.engine.batch_tokens
        return backend

    def __getattr__(self, name: str) -> Any:
        """Hand on what needs the weights."""
        if name == "whole" or name.startswith("_"):  # which failed by itself, or which nobody has
            raise AttributeError(name)
        return getattr(self.whole, name)

    @property
    def is_read(self) -> bool:
        """Whether the weights are there."""
        return "_whole" in vars(self)

    def check_files(self) -> None:
        """See `geval_local.engine.backend.Backend.check_files`; reading compares the files with those checked."""
        if self.is_read:
            self._whole.check_files()

    def close(self) -> None:
        """See `geval_local.engine.backend.Backend.close`."""
        if self.is_read:
            self._whole.close()
            del self._whole


class _UnreadEngine(Engine):
    """The engine of a backend whose weights are not read: it plans nothing without reading them."""

    def __init__(self, backend: UnreadBackend) -> None:
        self._backend = backend
        self.name = backend.facts.report.engine
        self.batch_tokens = self.limit = backend.facts.batch_tokens
        # That of the reading, which all use of the backend goes through.
        self.turn = backend.reading

    @property
    def parts(self) -> Sequence[Engine]:
        """See `geval_local.engine.interface.Engine.parts`."""
        return self._backend.whole.engine.parts if self._backend.is_read else [self]

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """See `geval_local.engine.interface.Engine.plan`."""
        return self._backend.whole.engine.plan(requests) if requests else []

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """See `geval_local.engine.interface.Engine.execute`."""
        return self._backend.whole.engine.execute(requests, packs)
