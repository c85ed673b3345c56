"""Judge: the entry point shared by the Python API, the command line, runs and integrations.

This module covers the model, how it was loaded, and what its scores depend on; on a CPU those facts are kept for the
next start, so that rows that are all in the cache need no weights. Scoring of samples is in `geval_local.judge.scorer`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
import transformers

from geval_local import __version__
from geval_local.engine.choose import EngineReport, choose_engine
from geval_local.engine.interface import Pack, Readout
from geval_local.errors import ConfigurationError, WeightsError
from geval_local.judge.scorer import Scorer
from geval_local.judge.steps import OnSteps, pinned_steps
from geval_local.metric import Metric
from geval_local.models.generate import BEAMS, generate_list, generation_text
from geval_local.models.head import Head
from geval_local.models.load import CheckedJudge, LoadedModel, check_judge, read_model
from geval_local.models.precision import dtype_name
from geval_local.models.registry import entry_of
from geval_local.models.verdicts import Verdict, verdict_of, verdict_on
from geval_local.options import EngineName, JudgeOptions, Style
from geval_local.prompt import CHAT_FORM, Prompt
from geval_local.score import Estimator
from geval_local.signature import Signature
from geval_local.tokens.encoder import PromptEncoder
from geval_local.tokens.requests import Request

logger = logging.getLogger("geval_local")

DEFAULT_CONTEXT = 1 << 20
_KEPT = "facts"
_T = TypeVar("_T")


@dataclass(frozen=True)
class JudgeFacts:
    """What a judge is, apart from its weights."""

    #: Its name, with an adapter's, and the content hash of its weights.
    label: str
    fingerprint: str
    #: The settings that it runs with, under the keys of a signature.
    setup: Mapping[str, str]
    #: Longest prompt in tokens, including the label's tokens.
    context: int
    #: The dtype that it runs in, the reason, and its measured effect on a score.
    precision: str
    #: Its engine, and the tokens of the engine's packs.
    report: EngineReport
    batch_tokens: int

    def identity(self, engine: str) -> str:
        """Identify everything a read-out depends on besides the prompt's tokens and the labels.

        Metric, steps and style are in the tokens, and the estimator is applied afterwards. Names do not count.
        """
        parts = {"judge": self.fingerprint, **self.setup, "engine": engine}
        return "|".join(f"{name}:{value}" for name, value in parts.items())

    def signature(self, encoder: PromptEncoder, metric: Metric, estimator: Estimator | None) -> Signature:
        """Return the signature of the judge's scores of a metric."""
        return Signature(
            judge=f"{self.label}@{self.fingerprint}",
            metric=f"{metric.name}@{metric.hash}",
            steps=metric.steps_hash,
            scale=metric.scale.text,
            style=_style(encoder),
            estimator=(estimator or Estimator()).text,
            **self.setup,
            # What is cut off a field depends on it.
            further={"context": str(self.context)} if metric.shorten is not None else {},
        )


#: Versions that a score depends on, under the keys of a signature.
_VERSIONS = {"transformers": transformers.__version__, "torch": torch.__version__, "version": __version__}


def facts_of(loaded: LoadedModel, report: EngineReport, batch_tokens: int) -> JudgeFacts:
    """State the facts of a loaded judge."""
    config: Any = loaded.model.config.get_text_config()
    limits = [loaded.entry.context, getattr(config, "max_position_embeddings", None)]
    return JudgeFacts(
        label=loaded.entry.label,
        fingerprint=loaded.fingerprint,
        setup={
            "tokenizer": loaded.tokenizer_hash,
            "dtype": dtype_name(loaded.dtype) + _quantization(loaded.model),
            "attention": loaded.attention,
            **_VERSIONS,
        },
        context=min((int(limit) for limit in limits if limit), default=DEFAULT_CONTEXT),
        precision=loaded.precision.text(dtype_name(loaded.dtype)),
        report=report,
        batch_tokens=batch_tokens,
    )


def keep_facts(facts: JudgeFacts, checked: CheckedJudge) -> None:
    """Keep the facts of a judge on the CPU for its next start."""
    verdict = _verdict(checked, facts.fingerprint)
    if verdict is not None and verdict.read(_KEPT, JudgeFacts) != facts:
        verdict.keep(_KEPT, facts)


def kept_facts(checked: CheckedJudge) -> JudgeFacts | None:
    """Return what an earlier start with the same options found a judge to be; None if it is not known."""
    if not checked.is_on_cpu or (content := checked.known_fingerprint()) is None:
        return None
    verdict = _verdict(checked, content)
    kept = None if verdict is None else verdict.read(_KEPT, JudgeFacts)
    if kept is None or checked.files.moved_or_new():  # reading the weights tells which file
        return None
    # What the files say stands above what is kept.
    dtype = checked.arguments["dtype"]
    named = {"dtype": dtype_name(dtype)} if isinstance(dtype, torch.dtype) else {}
    setup = {**kept.setup, "tokenizer": checked.tokenizer_hash, **named, **_VERSIONS}
    return replace(kept, label=checked.entry.label, fingerprint=content, setup=setup)


def _verdict(checked: CheckedJudge, content: str) -> Verdict | None:
    if not checked.is_on_cpu:
        return None
    asked = {"entry": checked.entry.model_dump(mode="json"), "options": checked.options.model_dump(mode="json")}
    return verdict_on([torch.device("cpu")], {"fingerprint": content, "tokenizer": checked.tokenizer_hash, **asked})


def _style(encoder: PromptEncoder) -> str:
    """Name the prompt style, with the form's edition where a chat prompt contains more than the paper's form."""
    edition = f"+form{CHAT_FORM}" if encoder.style.startswith("chat") else ""
    return encoder.style + edition + ("+closed-thinking" if encoder.closes_thinking else "")


def _quantization(model: Any) -> str:
    """Return the quantization applied while loading, which the weights' fingerprint does not include."""
    return next((f"+{bits}bit" for bits in (4, 8) if getattr(model, f"is_loaded_in_{bits}bit", False)), "")


def in_own_thread(work: Callable[[], _T]) -> _T:
    """Do some work in a thread that ends with it, and return its result or raise its exception.

    On a CPU, a thread that has run a model keeps a team of OpenMP threads as long as it lives. Two teams are more
    threads than cores, and libgomp then puts waiting ones to sleep at every small operation: with the embedded judge,
    probed by the main thread and used by another (a batcher, a server), a batch took 1.5 to 2 times as long.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    # A daemon: whoever interrupts the wait does not want to wait for the end of loading.
    thread = threading.Thread(target=run, name="geval-local loading", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


class Judge(Scorer):
    """A local language model that scores.

    Parameters
    ----------
    loaded : LoadedModel
        The loaded model; usually created by `load`.
    batch_tokens : int, optional
        Most tokens per forward pass; chosen by device when absent.
    engine : {"auto", "trie", "cache", "padded"}
        ``trie``: every distinct prompt token is computed once. ``cache``: right-padded batches after a copy of the
        model's own cache of their shared prefix. ``padded``: right-padded batches. ``auto``: the first of trie, cache
        and padded that a probe shows exact for this model.

    Attributes
    ----------
    engine_report : EngineReport
        Which engine serves this judge, and why.
    """

    def __init__(self, loaded: LoadedModel, *, batch_tokens: int | None = None, engine: EngineName = "auto") -> None:
        self.loaded = loaded
        self._entry = loaded.entry
        self.name = loaded.entry.label
        self.fingerprint = loaded.fingerprint
        encoder = PromptEncoder(loaded.tokenizer, style=loaded.entry.style)
        if batch_tokens is not None and batch_tokens < 1:
            raise ConfigurationError(f"the token budget of a batch is at least 1, not {batch_tokens}")
        chosen, self.engine_report = choose_engine(
            loaded.model,
            Head(loaded.model),
            engine,
            batch_tokens=batch_tokens,
            verdict=verdict_of(loaded.model, loaded.fingerprint),
        )
        self.facts = facts_of(loaded, self.engine_report, chosen.batch_tokens)
        super().__init__(encoder, chosen)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.encoder.style}, engine {self.engine.name})"

    @classmethod
    def load(
        cls,
        judge: str | os.PathLike[str] | JudgeOptions | None = None,
        *,
        on_read: Callable[[Callable[[], Judge]], Judge] | None = None,
        **options: Any,
    ) -> Judge:
        """Load a judge from local files; the network is never touched.

        Parameters
        ----------
        judge : str, path or JudgeOptions, optional
            A name in models.yaml, a directory, a GGUF file, or a hub id that is already in the local cache; None is the
            default judge.
        on_read : callable, optional
            Lets the weights wait: where an earlier start found out what the judge is, they are read when a figure is
            wanted that no cache has. Called then, else at once, with what reads them; it returns the result.
        **options
            As `JudgeOptions` names them: ``device``, ``dtype``, ``style``, ``engine``, ...

        Raises
        ------
        ConfigurationError
            If an option is unknown, or its value does not fit.
        JudgeError
            If the judge is unknown, its weights are missing or not safetensors, its architecture or tokenizer
            cannot be used, or `engine` is ``trie`` or ``cache`` and that is not exact for the model.
        """
        if not isinstance(judge, JudgeOptions):
            judge = JudgeOptions(name=judge, **options)  # type: ignore[arg-type]  # a path becomes its name
        elif options:
            judge = JudgeOptions(**(judge.model_dump() | options))
        wanted = judge
        checked = check_judge(entry_of(wanted), wanted)
        read = partial(cls._read, checked)
        if on_read is None:
            return read()
        facts = kept_facts(checked)
        return on_read(read) if facts is None else UnreadJudge(checked, facts, partial(on_read, read))

    @classmethod
    def _read(cls, checked: CheckedJudge) -> Judge:
        wanted = checked.options
        judge = in_own_thread(lambda: cls(read_model(checked), batch_tokens=wanted.batch_tokens, engine=wanted.engine))
        keep_facts(judge.facts, checked)
        return judge

    @property
    def precision(self) -> str:
        """The dtype it runs in, the reason, and its measured effect on a score; human-readable."""
        return self.facts.precision

    @property
    def is_chat(self) -> bool:
        """Whether it is asked for evaluation steps through the tokenizer's chat template."""
        return self._steps_style != "completion"

    @property
    def _steps_style(self) -> Style:
        return self._entry.steps_style or self.encoder.style

    @property
    def context(self) -> int:
        """Longest prompt in tokens, including the label's tokens."""
        return self.facts.context

    def with_steps(self, metric: Metric, *, on_steps: OnSteps = lambda metric, tokens: None) -> Metric:
        """Return a metric with steps: its own, those pinned for this judge, or newly written and pinned ones.

        Parameters
        ----------
        metric : Metric
            Any metric.
        on_steps : callable
            Called with the metric and the number of tokens written so far while new steps are written.
        """
        with self.engine.turn:
            complete, written = pinned_steps(self, metric, on_steps=on_steps)
        if written is not None:
            logger.info("pinned in %s", written)
        return complete

    def continue_text(
        self, prompt: Prompt, *, max_new_tokens: int, on_token: Callable[[int], object] = lambda count: None
    ) -> str:
        """Continue a prompt with a numbered list; used for evaluation steps only, never for scores."""
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        ids = PromptEncoder(tokenizer, style=self._steps_style).encode([prompt])[0]
        with self.engine.turn:
            text = generate_list(
                model, tokenizer, ids, max_new_tokens=max_new_tokens, beams=self._beams, on_token=on_token
            )
        self.check_files()
        return text

    @property
    def _beams(self) -> int:
        return 1 if self.is_chat else BEAMS

    @property
    def writes_steps(self) -> bool:
        """Whether it is asked for evaluation steps, see `geval_local.models.registry.JudgeEntry`."""
        return self._entry.writes_steps

    @property
    def generation(self) -> str:
        """How it writes evaluation steps; no setting of the model's own directory counts."""
        return generation_text(self.loaded.model, self._beams)

    def check_files(self) -> None:
        """Tell if the model's files have changed since it was loaded, see `LoadedModel.check_files`."""
        self.loaded.check_files()

    @property
    def identity(self) -> str:
        """Identifier of everything a read-out depends on besides the prompt's tokens and the labels."""
        return self.facts.identity(self.engine.name)

    def signature(self, metric: Metric, estimator: Estimator | None = None) -> Signature:
        """Return the signature: everything that a score of this metric depends on.

        Parameters
        ----------
        metric : Metric
            With its final evaluation steps (see `with_steps`).
        estimator : Estimator, optional
            Exact expectation when absent.
        """
        return self.facts.signature(self.encoder, metric, estimator)


class UnreadJudge(Judge):
    """A judge whose weights are read when they are first needed; until then it prepares prompts and names figures."""

    def __init__(self, checked: CheckedJudge, facts: JudgeFacts, read: Callable[[], Judge]) -> None:
        self.name = facts.label
        self.fingerprint = facts.fingerprint
        self.facts = facts
        self.engine_report = facts.report
        self._entry = checked.entry
        self._read_weights = read
        self._reading = threading.RLock()
        Scorer.__init__(self, PromptEncoder(checked.tokenizer, style=checked.entry.style), _UnreadEngine(self))

    @property
    def _whole(self) -> Judge:
        with self._reading:
            return self._read_once

    @cached_property
    def _read_once(self) -> Judge:
        judge = self._read_weights()
        # The probe's figures are as the number of threads had it.
        if replace(judge.facts, report=self.facts.report) != self.facts or judge.engine.name != self.engine.name:
            raise WeightsError(
                f"judge {self.name!r} is not what it was when the run began",
                hint="Start again: what is in the cache stays valid for the judge that it came from.",
            )
        judge.engine.batch_tokens = judge.engine.limit = self.engine.batch_tokens
        return judge

    @property
    def loaded(self) -> LoadedModel:  # type: ignore[override]
        """The loaded model."""
        return self._whole.loaded

    def check_files(self) -> None:
        """See `Judge.check_files`; reading the weights compares the files with those that were checked."""
        if "_read_once" in vars(self):
            self._read_once.check_files()


class _UnreadEngine:
    """The engine of a judge whose weights are not read: it plans nothing without reading them."""

    def __init__(self, judge: UnreadJudge) -> None:
        self._judge = judge
        self.name = judge.facts.report.engine
        self.batch_tokens = self.limit = judge.facts.batch_tokens

    @property
    def turn(self) -> AbstractContextManager[object]:
        """The model's, see `geval_local.engine.interface.Engine`; until it is read, that of the reading."""
        return self._judge._reading

    def plan(self, requests: Sequence[Request]) -> list[Pack]:
        """See `geval_local.engine.interface.Engine.plan`."""
        return self._judge._whole.engine.plan(requests) if requests else []

    def execute(self, requests: Sequence[Request], packs: Sequence[Pack]) -> Iterator[tuple[Pack, list[Readout]]]:
        """See `geval_local.engine.interface.Engine.execute`."""
        return self._judge._whole.engine.execute(requests, packs)
