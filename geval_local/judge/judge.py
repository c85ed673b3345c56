"""Judge: the entry point shared by the Python API, the command line, runs and integrations.

A judge keeps its evaluation steps, its identity and its signature; what computes and writes is its backend, see
`geval_local.engine.backend`. Scoring of samples is in `geval_local.judge.scorer`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from geval_local.errors import JudgeError
from geval_local.judge.scorer import Scorer
from geval_local.judge.steps import OnSteps, pinned_steps
from geval_local.judge.thoughts import Thinker
from geval_local.metric import Metric
from geval_local.notebook import facts_html
from geval_local.options import JudgeOptions
from geval_local.prompt import CHAT_FORM, Prompt
from geval_local.score import Estimator
from geval_local.signature import Signature, own_and_further
from geval_local.tokens.encoder import PromptEncoder

if TYPE_CHECKING:
    from geval_local.engine.backend import Backend, EngineReport

logger = logging.getLogger("geval_local")


def _style(encoder: PromptEncoder) -> str:
    """Name the prompt style, with the form's edition where a chat prompt contains more than the paper's form."""
    edition = f"+form{CHAT_FORM}" if encoder.style.startswith("chat") else ""
    return encoder.style + edition + ("+closed-thinking" if encoder.closes_thinking else "")


class Judge(Scorer):
    """A local language model that scores.

    Parameters
    ----------
    backend : Backend
        What it is made of; usually opened by `load`.
    options : JudgeOptions, optional
        Whether and how it thinks; what else they name has been used for the backend.
    """

    def __init__(self, backend: Backend, options: JudgeOptions | None = None) -> None:
        self.backend = backend
        super().__init__(PromptEncoder(backend.tokenizer, style=backend.entry.style), backend.engine)
        #: The options by which it thinks, for records.
        self.thinking = options.thinking() if options is not None else {}
        if options is not None and options.think is not None:
            self.thinker = Thinker(backend, self.encoder, options)

    def __repr__(self) -> str:
        if isinstance(self.backend, _Closed):
            return f"{type(self).__name__}(closed)"
        return f"{type(self).__name__}({self.name}, {self.encoder.style}, engine {self.engine.name})"

    def _repr_html_(self) -> str:
        """Show the judge in a notebook."""
        if isinstance(self.backend, _Closed):
            return facts_html("judge", {"state": "closed"})
        facts = {
            "fingerprint": self.fingerprint,
            "prompt style": self.encoder.style,
            "engine": self.engine.name,
            "context": f"{self.context:,} tokens",
            "precision": self.precision,
        }
        return facts_html(f"judge {self.name}", facts)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(
            "a judge cannot be pickled or copied, because its weights belong to one process: pickle its name instead, "
            "and load it by Judge.load(name) where it is needed"
        )

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
        from geval_local.engine.open import open_backend  # brings torch

        if not isinstance(judge, JudgeOptions):
            judge = JudgeOptions(name=judge, **options)  # type: ignore[arg-type]  # a path becomes its name
        elif options:
            judge = JudgeOptions(**(judge.model_dump() | options))
        if on_read is None:
            return cls(open_backend(judge), judge)
        found: list[Judge] = []

        def wait(read: Callable[[], Backend]) -> Backend:
            found.append(on_read(lambda: cls(read(), judge)))
            return found[0].backend

        backend = open_backend(judge, wait)
        return found[0] if found else cls(backend, judge)

    def thinking_as(self, options: JudgeOptions) -> Judge:
        """Return a judge of the same backend that thinks as these options say, or not at all."""
        return Judge(self.backend, options)

    def close(self) -> None:
        """Give the memory of the judge back; it cannot be used afterwards."""
        self.backend.close()
        if not isinstance(self.backend, _Closed):
            self.backend = self.engine = _Closed(self.name)

    @property
    def name(self) -> str:
        """Name of the judge, with an adapter's."""
        return self.backend.facts.label

    @property
    def fingerprint(self) -> str:
        """Content hash of its weights."""
        return self.backend.facts.fingerprint

    @property
    def engine_report(self) -> EngineReport:
        """Which engine serves this judge, and why."""
        return self.backend.facts.report

    @property
    def precision(self) -> str:
        """The dtype it runs in, the reason, and its measured effect on a score; human-readable."""
        return self.backend.facts.precision

    @property
    def is_chat(self) -> bool:
        """Whether it is asked for evaluation steps through the tokenizer's chat template."""
        return self.backend.entry.is_asked_in_chat

    @property
    def context(self) -> int:
        """Longest prompt in tokens, including the label's tokens."""
        return self.backend.facts.context

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
        style = self.backend.entry.steps_style or self.encoder.style
        ids = PromptEncoder(self.backend.tokenizer, style=style).encode([prompt])[0]
        text = self.backend.write_list(ids, max_new_tokens=max_new_tokens, on_token=on_token)
        self.check_files()
        return text

    @property
    def writes_steps(self) -> bool:
        """Whether it is asked for evaluation steps, see `geval_local.models.registry.JudgeEntry`."""
        return self.backend.entry.writes_steps

    @property
    def generation(self) -> str:
        """How it writes evaluation steps; no setting of the model's own directory counts."""
        return self.backend.facts.generation

    def check_files(self) -> None:
        """Tell if the model's files have changed since it was loaded."""
        self.backend.check_files()

    @property
    def identity(self) -> str:
        """Identifier of everything a read-out depends on besides the prompt's tokens and the labels."""
        return self.backend.facts.identity(self.engine.name)

    def signature(self, metric: Metric, estimator: Estimator | None = None) -> Signature:
        """Return the signature: everything that a score of this metric depends on.

        Parameters
        ----------
        metric : Metric
            With its final evaluation steps (see `with_steps`).
        estimator : Estimator, optional
            Exact expectation when absent.
        """
        facts = self.backend.facts
        own, further = own_and_further(facts.setup)
        if metric.shorten is not None:
            further["context"] = str(self.context)  # what is cut off the field depends on it
        if self.thinker is not None:
            further["thinking"] = self.thinker.settings.text
        return Signature(
            judge=f"{self.name}@{self.fingerprint}",
            metric=f"{metric.name}@{metric.hash}",
            steps=metric.steps_hash,
            scale=metric.scale.text,
            style=_style(self.encoder if self.thinker is None else self.thinker.encoder),
            estimator=(estimator or Estimator()).text,
            further=further,
            **own,
        )


class _Closed:
    """Stands where a judge had its backend and engine."""

    def __init__(self, name: str) -> None:
        self._name = name

    def close(self) -> None:
        """Do nothing: it is closed."""

    def __getattr__(self, what: str) -> Any:
        raise JudgeError(f"judge {self._name!r} is closed", hint="Load it again.")
