"""Judge: the entry point shared by the Python API, the command line, runs and integrations.

This module covers the model, how it was loaded, and what its scores depend on. Scoring of samples is in
`geval_local.judge.scorer`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import transformers

from geval_local import __version__
from geval_local.engine.choose import choose_engine
from geval_local.errors import ConfigurationError
from geval_local.judge.scorer import Scorer
from geval_local.judge.steps import OnSteps, pinned_steps
from geval_local.metric import Metric
from geval_local.models.generate import BEAMS, generate_list, generation_text
from geval_local.models.head import Head
from geval_local.models.load import LoadedModel, load_model
from geval_local.models.precision import dtype_name
from geval_local.models.registry import entry_of
from geval_local.models.verdicts import verdict_of
from geval_local.options import EngineName, JudgeOptions
from geval_local.prompt import CHAT_FORM, Prompt
from geval_local.score import Estimator
from geval_local.signature import Signature
from geval_local.tokens.encoder import PromptEncoder


def judge_signature(
    loaded: LoadedModel, encoder: PromptEncoder, metric: Metric, estimator: Estimator | None = None
) -> Signature:
    """Return the signature of a judge's scores of a metric: everything that they depend on."""
    return Signature(
        judge=f"{loaded.entry.label}@{loaded.fingerprint}",
        metric=f"{metric.name}@{metric.hash}",
        steps=metric.steps_hash,
        scale=metric.scale.text,
        style=_style(encoder),
        estimator=(estimator or Estimator()).text,
        **_setup(loaded),
    )


def _style(encoder: PromptEncoder) -> str:
    """Name the prompt style, with the form's edition where a chat prompt contains more than the paper's form."""
    edition = f"+form{CHAT_FORM}" if encoder.style.startswith("chat") else ""
    return encoder.style + edition + ("+closed-thinking" if encoder.closes_thinking else "")


def readout_identity(loaded: LoadedModel, engine: str) -> str:
    """Return an identifier of everything a read-out depends on besides the prompt's tokens and the labels.

    Metric, steps and style are in the tokens, and the estimator is applied afterwards. Names do not count.
    """
    parts = {"judge": loaded.fingerprint, **_setup(loaded), "engine": engine}
    return "|".join(f"{name}:{value}" for name, value in parts.items())


def _setup(loaded: LoadedModel) -> dict[str, str]:
    """Return the model's run settings under the keys of the signature."""
    return {
        "tokenizer": loaded.tokenizer_hash,
        "dtype": str(loaded.dtype).removeprefix("torch.") + _quantization(loaded.model),
        "attention": loaded.attention,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "version": __version__,
    }


def _quantization(model: Any) -> str:
    """Return the quantization applied while loading, which the weights' fingerprint does not include."""
    return next((f"+{bits}bit" for bits in (4, 8) if getattr(model, f"is_loaded_in_{bits}bit", False)), "")


_T = TypeVar("_T")


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


logger = logging.getLogger("geval_local")

DEFAULT_CONTEXT = 1 << 20


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
        super().__init__(encoder, chosen)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.encoder.style}, engine {self.engine.name})"

    @classmethod
    def load(cls, judge: str | os.PathLike[str] | JudgeOptions | None = None, **options: Any) -> Judge:
        """Load a judge from local files; the network is never touched.

        Parameters
        ----------
        judge : str, path or JudgeOptions, optional
            A name in models.yaml, a directory, a GGUF file, or a hub id that is already in the local cache; None is the
            default judge.
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
        entry = entry_of(wanted)
        return in_own_thread(
            lambda: cls(load_model(entry, wanted), batch_tokens=wanted.batch_tokens, engine=wanted.engine)
        )

    @property
    def precision(self) -> str:
        """The dtype it runs in, the reason, and its measured effect on a score; human-readable."""
        return self.loaded.precision.text(dtype_name(self.loaded.dtype))

    @property
    def is_chat(self) -> bool:
        """Whether prompts are wrapped in the tokenizer's chat template."""
        return self.encoder.style != "completion"

    @property
    def context(self) -> int:
        """Longest prompt in tokens, including the label's tokens."""
        config: Any = self.loaded.model.config.get_text_config()
        limits = [self.loaded.entry.context, getattr(config, "max_position_embeddings", None)]
        return min((int(limit) for limit in limits if limit), default=DEFAULT_CONTEXT)

    def with_steps(self, metric: Metric, *, on_steps: OnSteps = lambda metric, tokens: None) -> Metric:
        """Return a metric with steps: its own, those pinned for this judge, or newly written and pinned ones.

        Parameters
        ----------
        metric : Metric
            Any metric.
        on_steps : callable
            Called with the metric and the number of tokens written so far while new steps are written.
        """
        complete, written = pinned_steps(self, metric, on_steps=on_steps)
        if written is not None:
            logger.info("%s wrote the evaluation steps of %s; they are pinned in %s", self.name, metric.name, written)
        return complete

    def continue_text(
        self, prompt: Prompt, *, max_new_tokens: int, on_token: Callable[[int], object] = lambda count: None
    ) -> str:
        """Continue a prompt with a numbered list; used for evaluation steps only, never for scores."""
        ids = self.encoder.encode([prompt])[0]
        model, tokenizer = self.loaded.model, self.loaded.tokenizer
        text = generate_list(model, tokenizer, ids, max_new_tokens=max_new_tokens, beams=self._beams, on_token=on_token)
        self.check_files()
        return text

    @property
    def _beams(self) -> int:
        return 1 if self.is_chat else BEAMS

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
        return readout_identity(self.loaded, self.engine.name)

    def signature(self, metric: Metric, estimator: Estimator | None = None) -> Signature:
        """Return the signature: everything that a score of this metric depends on.

        Parameters
        ----------
        metric : Metric
            With its final evaluation steps (see `with_steps`).
        estimator : Estimator, optional
            Exact expectation when absent.
        """
        return judge_signature(self.loaded, self.encoder, metric, estimator)
