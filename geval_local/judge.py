"""Judge: the one entry point that the Python API, the command line, runs and integrations share.

A sample goes in at `Judge.iter_scores`, becomes a filled form, tokens and a label trie (`inference.prepare`), goes
through the model in packs (`inference.engine`), and comes out as a `Score`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers

from geval_local import __version__
from geval_local.errors import ConfigurationError
from geval_local.inference.encoding import PromptEncoder
from geval_local.inference.engine import Engine, Readout
from geval_local.inference.gate import EngineChoice, choose_engine
from geval_local.inference.generate import generate_greedily
from geval_local.inference.load import LoadedModel, LoadOptions, load_model
from geval_local.inference.prepare import Prepared, RequestMaker
from geval_local.inference.readout import Head
from geval_local.inference.registry import find_judge
from geval_local.inference.units import cut_units
from geval_local.metric import Metric
from geval_local.outcome import Outcome
from geval_local.prompt import Prompt
from geval_local.samples import Sample
from geval_local.scale import Scale
from geval_local.score import Estimator, Score
from geval_local.signature import Signature
from geval_local.steps import pinned_steps

__all__ = ["Judge"]

logger = logging.getLogger("geval_local")

#: Samples that are planned together. Two runs over one file give the same figures to the last bit because they cut it
#: into the same windows.
WINDOW = 4096
#: Below this label mass a score names the tokens that took the rest.
LOW_LABEL_MASS = 0.9
DEFAULT_CONTEXT = 1 << 20


class Judge:
    """A local language model that scores.

    Parameters
    ----------
    loaded : LoadedModel
        See `load`, which is the usual way to a judge.
    batch_tokens : int, optional
        Most tokens per forward pass; chosen by device when absent.
    engine : {"auto", "trie", "cache", "padded"}
        ``trie``: every distinct prompt token is computed once. ``cache``: right-padded batches behind copies of the
        model's own cache of what they share. ``padded``: right-padded batches. ``auto``: the first of them that a probe
        shows exact for this model.

    Attributes
    ----------
    engine_report : EngineReport
        Which engine serves this judge, and why.
    """

    def __init__(self, loaded: LoadedModel, *, batch_tokens: int | None = None, engine: EngineChoice = "auto") -> None:
        self.loaded = loaded
        self.name = loaded.entry.name
        self.fingerprint = loaded.fingerprint
        self.encoder = PromptEncoder(
            loaded.tokenizer, style=loaded.entry.style, close_thinking=loaded.entry.thinking == "closed"
        )
        if batch_tokens is not None and batch_tokens < 1:
            raise ConfigurationError(f"the token budget of a batch is at least 1, not {batch_tokens}")
        self.engine: Engine
        self.engine, self.engine_report = choose_engine(
            loaded.model, Head(loaded.model), engine, batch_tokens=batch_tokens
        )
        self._makers: dict[tuple[str, str, str | None], RequestMaker] = {}

    @classmethod
    def load(
        cls,
        name: str | Path | None = None,
        *,
        models_file: str | Path | None = None,
        style: Literal["completion", "chat", "chat-no-prefill"] | None = None,
        batch_tokens: int | None = None,
        engine: EngineChoice = "auto",
        device: str | None = None,
        device_map: str | None = None,
        dtype: str | None = None,
        attention: str | None = None,
        quantization: Literal["8bit", "4bit"] | None = None,
        trust_remote_code: bool = False,
    ) -> Judge:
        """Load a judge from local files; the network is never touched.

        Parameters
        ----------
        name : str or Path, optional
            A name in models.yaml, a directory, or a hub id that is already in the local cache; None is the default
            judge.
        models_file : str or Path, optional
            A models file of your own, laid over the packaged one.
        style : {"completion", "chat", "chat-no-prefill"}, optional
            Prompt style; the entry's own when absent.
        batch_tokens : int, optional
            Most tokens per forward pass.
        engine : {"auto", "trie", "cache", "padded"}
            See `Judge`.
        device, device_map, dtype, attention, quantization, trust_remote_code
            See `LoadOptions`.

        Raises
        ------
        JudgeError
            If the judge is unknown, its weights are missing or not safetensors, its architecture or tokenizer
            cannot be used, or `engine` is ``trie`` or ``cache`` and that is not exact for the model.
        """
        entry = find_judge(name, models_file)
        if style is not None:
            entry = entry.model_copy(update={"style": style})
        options = LoadOptions(
            device=device,
            device_map=device_map,
            dtype=dtype,
            attention=attention,
            quantization=quantization,
            trust_remote_code=trust_remote_code,
        )
        return cls(load_model(entry, options), batch_tokens=batch_tokens, engine=engine)

    @property
    def is_chat(self) -> bool:
        """Whether prompts are wrapped in the tokenizer's chat template."""
        return self.encoder.style != "completion"

    @property
    def context(self) -> int:
        """Longest prompt in tokens, the label's own tokens included."""
        config: Any = self.loaded.model.config.get_text_config()
        limits = [self.loaded.entry.context, getattr(config, "max_position_embeddings", None)]
        return min((int(limit) for limit in limits if limit), default=DEFAULT_CONTEXT)

    def score(
        self,
        metric: Metric,
        /,
        *,
        estimator: Estimator | None = None,
        threshold: float | None = None,
        **fields: str,
    ) -> Score:
        """Score one sample, given by its fields.

        Parameters
        ----------
        metric : Metric
            What to rate. Steps are written and pinned first if it has none.
        estimator : Estimator, optional
            Exact expectation when absent.
        threshold : float, optional
            Overrides the metric's own.
        **fields : str
            The sample's texts, such as ``source=..., output=...``; aliases as in data files.

        Returns
        -------
        Score
            Unscored, with the reason in ``error``, if the fields do not fit the metric.
        """
        return self.score_many(metric, [fields], estimator=estimator, threshold=threshold)[0]

    def score_many(
        self,
        metric: Metric,
        samples: Iterable[Sample | Mapping[str, Any]],
        *,
        estimator: Estimator | None = None,
        threshold: float | None = None,
        progress: bool = False,
    ) -> list[Score]:
        """Score samples; the result has one score per sample, in the order given.

        Parameters
        ----------
        metric : Metric
            What to rate.
        samples : iterable of Sample or mapping
            From `read_samples`, or plain dictionaries of texts.
        estimator : Estimator, optional
            Exact expectation when absent.
        threshold : float, optional
            Overrides the metric's own.
        progress : bool
            Whether to show a progress bar on stderr.
        """
        listed = list(samples)
        if not progress:
            return list(self.iter_scores(metric, listed, estimator=estimator, threshold=threshold))
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task(metric.name, total=len(listed))
            return list(
                self.iter_scores(
                    metric, listed, estimator=estimator, threshold=threshold, advance=lambda n: bar.advance(task, n)
                )
            )

    def iter_scores(
        self,
        metric: Metric,
        samples: Iterable[Sample | Mapping[str, Any]],
        *,
        estimator: Estimator | None = None,
        threshold: float | None = None,
        advance: Callable[[int], object] = lambda count: None,
    ) -> Iterator[Score]:
        """Score a stream of samples, in order, `WINDOW` samples at a time.

        Parameters
        ----------
        metric, samples, estimator, threshold
            As in `score_many`.
        advance : callable
            Called with the number of samples finished, pack by pack.
        """
        complete = self.with_steps(metric)
        estimator = estimator or Estimator()
        limit = metric.threshold if threshold is None else threshold
        stream = (sample if isinstance(sample, Sample) else Sample(sample) for sample in samples)
        while window := list(itertools.islice(stream, WINDOW)):
            prepared = self.prepare(complete, window)
            readouts = self._read(prepared, advance)
            for entry, readout in zip(prepared, readouts, strict=True):
                yield self.outcome(entry, readout).score(metric, estimator=estimator, threshold=limit)

    def prepare(self, metric: Metric, samples: Sequence[Sample]) -> list[Prepared]:
        """Turn samples into what the engine takes, or into reasons why not, in order.

        Parameters
        ----------
        metric : Metric
            With its final evaluation steps (see `with_steps`).
        samples : sequence of Sample
        """
        return self._maker(metric).prepare(samples)

    def outcome(self, entry: Prepared, readout: Readout | None) -> Outcome:
        """Put together what is known of a sample once the engine has seen it.

        Parameters
        ----------
        entry : Prepared
            As by `prepare`.
        readout : Readout or None
            What the engine gave; None if there was no request.
        """
        if entry.request is None or readout is None or readout.label_logprobs is None:
            reason = entry.error if readout is None else readout.error
            return Outcome(error=reason or "unknown reason", prompt_tokens=entry.prompt_tokens)
        other: tuple[tuple[str, float], ...] = ()
        if np.exp(readout.label_logprobs).sum() < LOW_LABEL_MASS:
            other = tuple((self.encoder.decode_token(token), p) for token, p in readout.other_tokens)
        return Outcome(
            readout.label_logprobs,
            other,
            entry.prompt_tokens,
            entry.dropped_tokens,
            _sample_key(entry.request.ids.tobytes()),
        )

    def with_steps(self, metric: Metric) -> Metric:
        """Give a metric its steps: its own, those pinned for this judge, or newly written and pinned ones."""
        complete, written = pinned_steps(self, metric)
        if written is not None:
            logger.info("%s wrote the evaluation steps of %s; they are pinned in %s", self.name, metric.name, written)
        return complete

    def continue_text(self, prompt: Prompt, *, max_new_tokens: int) -> str:
        """Continue a prompt greedily; used for evaluation steps only, never for scores."""
        ids = self.encoder.encode([prompt])[0]
        return generate_greedily(self.loaded.model, self.loaded.tokenizer, ids, max_new_tokens=max_new_tokens)

    @property
    def identity(self) -> str:
        """All that a read-out depends on beside the prompt's tokens and the labels."""
        signature = self.signature(Metric(name="any", criteria="any", scale=Scale.parse("1-5")))
        kept = {field.name: getattr(signature, field.name) for field in dataclasses.fields(signature)}
        for name in ("metric", "steps", "scale", "style", "estimator"):  # in the tokens, or applied afterwards
            del kept[name]
        kept["judge"] = self.fingerprint
        kept["engine"] = self.engine.name
        return "|".join(f"{name}:{value}" for name, value in kept.items())

    def signature(self, metric: Metric, estimator: Estimator | None = None) -> Signature:
        """Name everything that a score of this metric depends on.

        Parameters
        ----------
        metric : Metric
            With its final evaluation steps (see `with_steps`).
        estimator : Estimator, optional
            Exact expectation when absent.
        """
        return Signature(
            judge=f"{self.name}@{self.fingerprint}",
            tokenizer=self.loaded.tokenizer_hash,
            metric=f"{metric.name}@{metric.hash}",
            steps=metric.steps_hash,
            scale=metric.scale.text,
            style=self.encoder.style + ("+closed-thinking" if self.is_chat and self.encoder.close_thinking else ""),
            dtype=str(self.loaded.dtype).removeprefix("torch.") + _quantization(self.loaded.model),
            attention=self.loaded.attention,
            estimator=(estimator or Estimator()).text,
            transformers=transformers.__version__,
            torch=torch.__version__,
            version=__version__,
        )

    def _maker(self, metric: Metric) -> RequestMaker:
        key = (metric.hash, metric.steps_hash, metric.shorten)
        if key not in self._makers:
            self._makers[key] = RequestMaker(self.encoder, metric, self.context)
        return self._makers[key]

    def _read(self, prepared: Sequence[Prepared], advance: Callable[[int], object]) -> list[Readout | None]:
        """Run the engine over what can be scored; the result is in the order of `prepared`."""
        readouts: list[Readout | None] = [None] * len(prepared)
        places = [place for place, entry in enumerate(prepared) if entry.request is not None]
        requests = [entry.request for entry in prepared if entry.request is not None]
        advance(len(prepared) - len(places))
        for unit in cut_units(requests, self.engine):
            # A window's figures depend on its samples alone, to the last bit: not on what this judge scored before or,
            # when runs take turns, in between.
            self.engine.forget()
            own = unit.requests(requests)
            for pack, results in self.engine.execute(own, self.engine.plan(own)):
                for index, readout in zip(pack.requests, results, strict=True):
                    readouts[places[unit.members[index]]] = readout
                advance(len(results))
        return readouts


def _quantization(model: Any) -> str:
    """Name what quantization while loading made of the weights, which their fingerprint does not show."""
    return next((f"+{bits}bit" for bits in (4, 8) if getattr(model, f"is_loaded_in_{bits}bit", False)), "")


def _sample_key(content: bytes) -> int:
    """Derive a number from a prompt's tokens, so that seeded draws follow the sample and not its row."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
